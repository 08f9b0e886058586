//! Conditional calls and leases of the Postgres saver: Python's deletes in between, cut connections, and databases that have
//! no table of leases.

use std::time::Duration;

use checkpoint_core::{
    BaseCheckpointSaver, CheckpointConfig, ErrorKind, ListQuery, PutCondition, PutOptions, PutWritesOptions,
    Result, SaverExt,
};
use checkpoint_postgres::PostgresSaver;

use crate::shared::faults::{Load, cut_again_and_again, may_fail};
use crate::shared::postgres::{Database, Server, Test, count, tests};
use crate::shared::writers::{metadata, step, writes};

const TTL: Duration = Duration::from_secs(3600);

async fn put(
    saver: &PostgresSaver,
    config: &CheckpointConfig,
    options: &PutOptions,
) -> Result<CheckpointConfig> {
    let made = step(1);
    saver.put_with(config, &made, &metadata(), &made.channel_versions, options).await
}

/// Python's saver deletes without our locks.
async fn python_deletes_the_parent_meanwhile(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().build().unwrap();
    let (client, observer) = (database.client().await, database.client().await);
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                   AND wait_event_type = 'Lock'";
    for condition in [PutCondition::ParentIsLatest, PutCondition::ParentStored] {
        for (end, is_kept) in [("COMMIT", false), ("ROLLBACK", true)] {
            let first = put(&saver, &CheckpointConfig::new("thread"), &PutOptions::default()).await.unwrap();
            client.batch_execute("BEGIN; DELETE FROM checkpoints WHERE thread_id = 'thread'").await.unwrap();
            let options = PutOptions::default().condition(condition);
            let put_writes = PutWritesOptions::default().once().checkpoint_stored();
            let wait_and_end = async {
                for _ in 0..500 {
                    if count(&observer, waiting).await == 2 {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                assert_eq!(count(&observer, waiting).await, 2, "both calls wait for the delete");
                client.batch_execute(end).await.unwrap();
            };
            let writes = writes(1);
            let (put, written, ()) = tokio::join!(
                put(&saver, &first, &options),
                saver.put_writes_with(&first, &writes, "task", "", &put_writes),
                wait_and_end
            );
            let kinds = [put.err(), written.err()].map(|error| error.map(|error| error.kind()));
            let expected = if is_kept { None } else { Some(ErrorKind::Conflict) };
            assert_eq!(kinds, [expected, expected], "{condition:?} {end}");
            let left = saver.list_all(ListQuery::thread("thread")).await.unwrap().len();
            assert_eq!(left, if is_kept { 2 } else { 0 });
            saver.delete_thread("thread").await.unwrap();
        }
    }
}

/// A call whose reply was lost is retried and finds what it stored.
async fn connections_are_cut(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().max_connections(4).max_retries(3).build().unwrap();
    let load = std::sync::Arc::<Load>::default();
    let writers: Vec<_> = (0..4)
        .map(|at| {
            let (saver, load) = (saver.clone(), load.clone());
            tokio::spawn(async move {
                let lease = loop {
                    match saver.acquire_lease(&format!("thread-{at}"), TTL).await {
                        Ok(lease) => break lease,
                        Err(error) => may_fail(&error),
                    }
                };
                let options =
                    PutOptions::default().condition(PutCondition::ParentIsLatest).lease(lease.clone());
                let mut config = CheckpointConfig::new(lease.thread_id());
                let mut stored = 0;
                while load.lasts() {
                    let made = step(1);
                    config = loop {
                        let put = saver
                            .put_with(&config, &made, &metadata(), &made.channel_versions, &options)
                            .await;
                        match put {
                            Ok(stored) => break stored,
                            // The same checkpoint again: it may be stored.
                            Err(error) => may_fail(&error),
                        }
                    };
                    stored += 1;
                    load.count();
                }
                (lease, stored)
            })
        })
        .collect();
    cut_again_and_again(&database, 200).await;
    for (lease, stored) in load.end(writers).await {
        let listed = saver.list_all(ListQuery::thread(lease.thread_id())).await.unwrap();
        assert_eq!(listed.len(), stored);
        let parents = listed.iter().map(|tuple| tuple.parent_config.as_ref().and_then(|p| p.checkpoint_id()));
        let ids = listed.iter().map(|tuple| Some(&*tuple.checkpoint.id));
        assert!(parents.eq(ids.skip(1).chain([None])), "one chain");
        saver.renew_lease(&lease).await.unwrap();
    }
    let in_transaction = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                          AND state LIKE 'idle in transaction%'";
    assert_eq!(count(&database.client().await, in_transaction).await, 0);
}

/// As Python and earlier versions set up.
async fn without_a_table_of_leases(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let client = database.client().await;
    let saver = database.builder().build().unwrap();
    saver.setup().await.unwrap();
    let lease = saver.acquire_lease("thread", TTL).await.unwrap();
    client.batch_execute("DROP TABLE checkpoint_leases").await.unwrap();
    let no_condition = PutOptions::default();
    // This saver saw the table, the other did not.
    for saver in [&saver, &database.builder().build().unwrap()] {
        let stored = put(saver, &CheckpointConfig::new("thread"), &no_condition).await.unwrap();
        put(saver, &stored, &no_condition.clone().condition(PutCondition::ParentIsLatest)).await.unwrap();
        let leased = PutWritesOptions::default().lease(lease.clone());
        let errors = [
            saver.acquire_lease("thread", TTL).await.unwrap_err(),
            saver.renew_lease(&lease).await.unwrap_err(),
            saver.release_lease(&lease).await.unwrap_err(),
            put(saver, &stored, &no_condition.clone().lease(lease.clone())).await.unwrap_err(),
            saver.put_writes_with(&stored, &writes(1), "task", "", &leased).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Schema, "{error:?}");
            assert!(error.to_string().contains("setup()"), "{error}");
        }
        for _ in 0..2 {
            saver.delete_thread("thread").await.unwrap();
            assert_eq!(saver.list_all(ListQuery::thread("thread")).await.unwrap(), []);
        }
    }
    // Somebody else sets it up: a saver without `setup` finds the table, too.
    let other = database.builder().build().unwrap();
    other.setup().await.unwrap();
    for saver in [saver, database.builder().build().unwrap()] {
        let lease = saver.acquire_lease("thread", TTL).await.unwrap();
        put(&saver, &CheckpointConfig::new("thread"), &no_condition).await.unwrap();
        saver.delete_thread("thread").await.unwrap();
        assert_eq!(saver.list_all(ListQuery::thread("thread")).await.unwrap(), []);
        assert_eq!(saver.renew_lease(&lease).await.unwrap_err().kind(), ErrorKind::Conflict);
    }
    assert_eq!(count(&client, "SELECT count(*) FROM checkpoint_leases").await, 0);
}

pub(crate) fn tests() -> &'static [Test] {
    tests![python_deletes_the_parent_meanwhile, connections_are_cut, without_a_table_of_leases]
}
