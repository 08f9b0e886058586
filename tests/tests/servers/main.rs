//! What the other tests rely on: a server of a test's own comes back where it was, with what it had.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../shared"]
mod shared {
    pub(crate) mod mongo;
    pub(crate) mod redis;
    pub(crate) mod server;
    pub(crate) mod trials;
}

mod mongo;

use std::process::ExitCode;
use std::time::Duration;

use checkpoint_servers::{ALL, PGBOUNCER, POSTGRES, POSTGRES_15, Server};
use libtest_mimic::{Arguments, Completion, Trial};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use shared::redis::Prefix;
use shared::server::{Private, url, with_servers};

/// Connects, once the server takes connections.
async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn count(url: &str) -> i64 {
    let row = connect(url).await.unwrap().query_one("SELECT count(*) FROM kept", &[]).await.unwrap();
    row.get(0)
}

async fn comes_back(server: Private) {
    let url = server.url();
    let client = connect(&url).await.unwrap();
    client.batch_execute("CREATE TABLE kept (id int); INSERT INTO kept VALUES (1)").await.unwrap();

    // Not even a client in a transaction holds it up.
    client.batch_execute("BEGIN; INSERT INTO kept VALUES (2)").await.unwrap();
    server.stop().await;
    assert!(connect(&url).await.is_err());
    server.start().await;
    assert_eq!(server.url(), url);
    assert_eq!(count(&url).await, 1);

    let client = connect(&url).await.unwrap();
    client.batch_execute("INSERT INTO kept VALUES (3)").await.unwrap();
    server.kill().await;
    assert!(client.query("SELECT 1", &[]).await.is_err());
    server.start().await;
    assert_eq!(count(&url).await, 2);
}

async fn keeps_its_promises(server: &'static Server, url: &str) {
    let client = connect(url).await.unwrap();
    let wanted = [("server_version_num", if server.name == POSTGRES_15.name { "15" } else { "17" })];
    for (setting, begins) in wanted.into_iter().chain([("fsync", "on"), ("max_connections", "300")]) {
        let rows = client.simple_query(&format!("SHOW {setting}")).await.unwrap();
        let value = rows.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        assert!(value.unwrap().starts_with(begins), "{setting}: {value:?}");
    }
}

fn in_runtime(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(future);
}

/// Without named statements, since PgBouncer has none here.
async fn has_no_named_statements(url: &str) {
    let client = connect(url).await.unwrap();
    let statement = client.prepare("SELECT 1").await;
    let mut failed = statement.is_err();
    if let Ok(statement) = statement {
        // With every connection that there is in use, the next transaction gets a new one, which does not know it.
        let mut others = Vec::new();
        while !failed && others.len() < 15 {
            let other = connect(url).await.unwrap();
            other.batch_execute("BEGIN; SELECT 1").await.unwrap();
            others.push(other);
            failed = client.query(&statement, &[]).await.is_err();
        }
    }
    assert!(failed, "PgBouncer keeps named statements");
}

/// Keys are still there, in a cluster those of every node, and programs on this machine reach each node.
async fn redis_comes_back(server: Private) {
    let url = server.url();
    let prefix = Prefix::new(&url);
    let keys: Vec<_> = (0..20).map(|at| format!("{}:{at}", prefix.name()).into_bytes()).collect();
    let raw = prefix.raw().await;
    for key in &keys {
        raw.call::<()>(&[b"SET", key, b"kept"]).await;
    }
    for crash in [false, true] {
        // A crash may take what is not on disk yet.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        server.restart(crash).await;
        assert_eq!(server.url(), url);
        let raw = prefix.raw().await;
        for key in &keys {
            assert!(raw.exists(key).await, "crash: {crash}");
        }
        assert_eq!(raw.keys(prefix.name()).await.unwrap().len(), keys.len());
    }
}

fn main() -> ExitCode {
    let mut trials = Vec::new();
    for server in [&POSTGRES, &POSTGRES_15, &PGBOUNCER] {
        let name = format!("version_and_settings::{}", server.name);
        trials.push(Trial::ignorable_test(name, move || match url(server) {
            Ok(url) => {
                in_runtime(keeps_its_promises(server, &url));
                Ok(Completion::Completed)
            }
            Err(missing) => missing.end(),
        }));
    }
    trials.push(Trial::ignorable_test("no_named_statements::pgbouncer", || match url(&PGBOUNCER) {
        Ok(url) => {
            in_runtime(has_no_named_statements(&url));
            Ok(Completion::Completed)
        }
        Err(missing) => missing.end(),
    }));
    for server in ALL.iter().copied().filter(|server| server.family == "postgres" && server.before.is_none())
    {
        let name = format!("comes_back::{}", server.name);
        trials.push(Trial::ignorable_test(name, move || {
            let mut missing = None;
            in_runtime(async {
                match Private::new(server).await {
                    Ok(server) => comes_back(server).await,
                    Err(reason) => missing = Some(reason),
                }
            });
            missing.map_or(Ok(Completion::Completed), |missing| missing.end())
        }));
    }
    for server in ALL.iter().copied().filter(|server| server.family == "redis") {
        let name = format!("comes_back::{}", server.name);
        trials.push(Trial::ignorable_test(name, move || {
            let mut missing = None;
            in_runtime(async {
                match Private::new(server).await {
                    Ok(server) => redis_comes_back(server).await,
                    Err(reason) => missing = Some(reason),
                }
            });
            missing.map_or(Ok(Completion::Completed), |missing| missing.end())
        }));
    }
    for server in mongo::LASTING {
        let name = format!("comes_back::{}", server.name);
        trials.push(Trial::ignorable_test(name, move || {
            let mut missing = None;
            in_runtime(async {
                match Private::new(server).await {
                    Ok(server) => mongo::comes_back(server).await,
                    Err(reason) => missing = Some(reason),
                }
            });
            missing.map_or(Ok(Completion::Completed), |missing| missing.end())
        }));
    }
    trials.extend(mongo::trials());
    with_servers(|| libtest_mimic::run(&Arguments::from_args(), trials).exit_code())
}
