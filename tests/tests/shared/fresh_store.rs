//! Empty stores, in memory and on PostgreSQL.

use std::sync::Arc;

use checkpoint_core::store::{
    BaseStore, IndexConfig, ListNamespacesOp, Namespace, Op, OpResult, SearchItem, SearchOp, StoreExt,
    TtlConfig,
};
use checkpoint_core::{InMemoryStore, Result};
use serde_json::Value as Json;
use store_postgres::{PostgresStore, PostgresStoreBuilder};

use super::postgres::{Database, Server, rows};

/// An empty store.
pub(crate) struct Fresh {
    pub(crate) store: Arc<dyn BaseStore>,
    /// Where it is, unless in memory.
    pub(crate) database: Option<Database>,
}

impl Fresh {
    pub(crate) async fn in_memory(index: Option<IndexConfig>, ttl: TtlConfig) -> Self {
        let builder = InMemoryStore::builder().ttl(ttl);
        let builder = match index {
            Some(index) => builder.index(index),
            None => builder,
        };
        let store = builder.build().unwrap();
        store.setup().await.unwrap();
        Self { store: Arc::new(store), database: None }
    }

    pub(crate) async fn on_postgres(
        server: &Server,
        configure: impl FnOnce(PostgresStoreBuilder) -> PostgresStoreBuilder,
    ) -> Self {
        let database = Database::create(server.url()).await;
        let store = configure(PostgresStore::builder(database.url())).build().unwrap();
        store.setup().await.unwrap();
        Self { store: Arc::new(store), database: Some(database) }
    }

    /// Rows of a query, each column as text.
    pub(crate) async fn rows(&self, query: &str) -> Vec<Vec<Option<String>>> {
        rows(&self.database.as_ref().unwrap().client().await, query).await
    }

    pub(crate) async fn execute(&self, statement: &str) {
        self.database.as_ref().unwrap().client().await.batch_execute(statement).await.unwrap();
    }

    pub(crate) async fn put(&self, namespace: &[&'static str], key: &'static str, value: Json) {
        self.store.put(namespace, key, value).await.unwrap();
    }

    pub(crate) async fn search(&self, search: SearchOp) -> Result<Vec<SearchItem>> {
        match self.store.batch(vec![Op::Search(search)]).await?.remove(0) {
            OpResult::Items(items) => Ok(items),
            other => panic!("a search came to {other:?}"),
        }
    }

    pub(crate) async fn namespaces(&self, list: ListNamespacesOp) -> Json {
        match self.store.batch(vec![Op::ListNamespaces(list)]).await.unwrap().remove(0) {
            OpResult::Namespaces(namespaces) => namespaces.iter().map(Namespace::to_text).collect(),
            other => panic!("a listing came to {other:?}"),
        }
    }
}
