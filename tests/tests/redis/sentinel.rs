//! The Redis saver with sentinels: it follows the primary.

use std::time::Duration;

use checkpoint_conformance::Missing;
use checkpoint_redis::Durability;

use super::load::{conversation, is_sound};
use crate::shared::everything::everything_works;
use crate::shared::redis::{Prefix, Server, Test, tests};
use crate::shared::server::Private;
use crate::shared::soak::rounds;
use crate::shared::writers::{read_back, start};

/// Has the sentinels promote the replica, again and again. The old primary goes on to accept writes for a moment, so that
/// only those that the replica has are acknowledged. Once it is killed, and some sentinels too.
async fn the_primary_changes_in_a_loop(_server: &Server) -> Result<(), Missing> {
    let server = Private::new(&checkpoint_servers::REDIS_SENTINEL).await?;
    let url = server.url();
    let prefix = Prefix::set_up(&url).await;
    let durability = Durability { replicas: 1, timeout: Duration::from_millis(500), aof: false };
    let saver = prefix.builder().durability(durability).build().unwrap();
    saver_works(&prefix).await;
    let (load, writers) = start(&saver, 6, conversation);
    load.goes_on(20).await;
    let first = server.port();
    let primary = async || {
        let ask = format!("redis-cli -p {first} sentinel get-master-addr-by-name checkpoint");
        server.run(&ask).await.lines().nth(1).unwrap().to_owned()
    };
    for round in 0..rounds(3) {
        let before = primary().await;
        if round % 3 == 2 {
            let kill = format!(
                "kill -9 $(cat /srv/redis-sentinel/{before}/pid) $(cat /srv/redis-sentinel/{}/pid)",
                first + 2
            );
            server.run(&kill).await;
        } else {
            // Refused until the sentinels have agreed on the last one.
            while !server
                .run(&format!("redis-cli -p {first} sentinel failover checkpoint"))
                .await
                .contains("OK")
            {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        while primary().await == before {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if round % 3 == 2 {
            let start =
                format!("for port in {before} {}; do sh /srv/redis-sentinel/start $port; done", first + 2);
            server.run(&start).await;
        }
        load.goes_on(20).await;
        server.responds().await;
    }
    let known = load.end(writers).await;
    assert!(read_back(&saver, &known).await > 0);
    is_sound(&prefix, &saver).await;
    Ok(())
}

async fn saver_works(prefix: &Prefix) {
    let saver = prefix.builder().build().unwrap();
    checkpoint_core::BaseCheckpointSaver::setup(&saver).await.unwrap();
    everything_works(&saver).await;
    // By way of any sentinel.
    let (address, service) = prefix.url().split_once("/checkpoint").unwrap();
    let sentinel = address.rsplit(',').next().unwrap();
    let one = prefix.builder_at(&format!("redis+sentinel://{sentinel}/checkpoint{service}")).build().unwrap();
    everything_works(&one).await;
}

pub(crate) fn tests() -> &'static [Test] {
    tests![the_primary_changes_in_a_loop]
}
