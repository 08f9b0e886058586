//! What becomes of calls where the driver cannot work.

use std::time::Duration;

use checkpoint_core::ErrorKind;
use checkpoint_core::store::{BaseStore, IndexConfig, NgramEmbeddings, StoreExt, TtlConfig};
use serde_json::json;

use crate::shared::fresh_store::Fresh;
use crate::shared::postgres::{Server, Test, tests};
use crate::shared::runtimes::expect_errors;
use store_postgres::PostgresStore;

async fn calls_without_a_runtime_fail_and_harm_nothing(server: &Server) {
    let index = || IndexConfig::new(8, NgramEmbeddings::new(8));
    let ttl = TtlConfig::new().default_ttl(Duration::from_secs(3600)).refresh_on_read(true);
    let fresh = Fresh::on_postgres(server, |builder| builder.index(index()).ttl(ttl)).await;
    let url = fresh.database.as_ref().unwrap().url();
    let store =
        &PostgresStore::builder(url).index(index()).max_connections(2).max_retries(0).build().unwrap();
    let value = &json!({"text": "x"});

    expect_errors("setup", || async { store.setup().await.err() });
    expect_errors("ping", || async { store.ping().await.err() });
    expect_errors("check_schema", || async { store.check_schema().await.err() });
    expect_errors("get", || async { store.get(["a"], "k").await.err() });
    expect_errors("put", || async { store.put(["a"], "k", value).await.err() });
    expect_errors("delete", || async { store.delete(["a"], "k").await.err() });
    expect_errors("search", || async { store.search(["a"]).await.err() });
    expect_errors("search with a query", || async { store.search(["a"]).query("x").await.err() });
    expect_errors("list_namespaces", || async { store.list_namespaces().await.err() });
    expect_errors("sweep_ttl", || async { store.sweep_ttl().await.err() });

    let sweepers = std::thread::scope(|scope| {
        let sweepers = || {
            let bare = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let sweeper = || store.start_ttl_sweeper(Duration::from_secs(1)).map(drop);
            [sweeper(), bare.block_on(async { sweeper() })]
        };
        scope.spawn(sweepers).join().unwrap()
    });
    for sweeper in sweepers {
        assert_eq!(sweeper.unwrap_err().kind(), ErrorKind::InvalidConfig);
    }

    store.put(["a"], "k", value).await.unwrap();
    assert_eq!(store.search(["a"]).query("x").await.unwrap().len(), 1);
    store.close().await.unwrap();
}

pub(crate) fn tests() -> &'static [Test] {
    tests![calls_without_a_runtime_fail_and_harm_nothing]
}
