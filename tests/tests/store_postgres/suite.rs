//! The suite on the Postgres store: on PostgreSQL 17, on PostgreSQL 15, and behind PgBouncer in transaction mode; what
//! searches find, also with indexes of other kinds. Each kind of index has a schema of its own, which goes at the end.

use std::sync::{Arc, Mutex, PoisonError};

use checkpoint_conformance::wire::{Cost, Counted};
use checkpoint_conformance::{
    CountedStore, Missing, Store, StoreCall, StoreFacility, StoreOptions, StoreTarget,
};
use checkpoint_core::store::{BaseStore, Distance};
use checkpoint_core::{Result, async_trait};
use store_postgres::{AnnIndex, PostgresStore, PostgresStoreBuilder, VectorType};

use crate::shared::postgres::wire::proxy;
use crate::shared::postgres::{Kind, Scratch, Server, unique_name};

/// What handles have to agree on to share tables: the length of the vectors, and what their index sorts by.
type Layout = Option<(usize, Distance)>;

/// The indexes of a target's handles.
#[derive(Debug, Clone, Copy)]
struct Indexes {
    name: &'static str,
    ann: AnnIndex,
    vector_type: VectorType,
    filters: bool,
}

impl Indexes {
    /// Those of a target for which alone the cases of searches are run.
    const OTHERS: [Self; 4] = [
        Self {
            name: "postgres 17, halfvec by hnsw",
            ann: AnnIndex::hnsw(),
            vector_type: VectorType::Halfvec,
            filters: true,
        },
        Self {
            name: "postgres 17, vector by ivfflat",
            ann: AnnIndex::ivfflat(4),
            vector_type: VectorType::Vector,
            filters: false,
        },
        Self {
            name: "postgres 17, vector, flat",
            ann: AnnIndex::Flat,
            vector_type: VectorType::Vector,
            filters: true,
        },
        Self {
            name: "postgres 17, halfvec, flat",
            ann: AnnIndex::Flat,
            vector_type: VectorType::Halfvec,
            filters: false,
        },
    ];

    /// The groups of cases to which they make a difference.
    const GROUPS: [&str; 8] = [
        "store_search",
        "store_filters",
        "store_operators",
        "store_index",
        "store_scores",
        "store_embedding",
        "store_model",
        "store_round_trips",
    ];
}

#[derive(Debug)]
pub(crate) struct Postgres {
    server: Server,
    /// What stores connect to: the server, or what is before it.
    url: String,
    /// Unless these are chosen, hnsw with `vector`, and no index for filters.
    indexes: Option<Indexes>,
    /// Whether all handles share one schema, whatever their index is.
    one_schema: bool,
    schemas: Mutex<Vec<(Layout, String, Scratch)>>,
}

impl Postgres {
    fn new(server: Server, indexes: Option<Indexes>, one_schema: bool) -> Self {
        let url = server.url().to_owned();
        Self { server, url, indexes, one_schema, schemas: Mutex::default() }
    }

    /// One whose stores reach the server by another URL.
    pub(crate) fn through(server: Server, url: String) -> Self {
        Self { url, ..Self::new(server, None, false) }
    }

    /// The schema of a layout; `setup()` makes it.
    fn schema(&self, layout: Layout) -> String {
        let mut schemas = self.schemas.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, schema, _)) = schemas.iter().find(|(known, _, _)| *known == layout) {
            return schema.clone();
        }
        let schema = unique_name();
        let drop = format!("SET client_min_messages = warning; DROP SCHEMA IF EXISTS {schema} CASCADE");
        schemas.push((layout, schema.clone(), Scratch::new(self.server.direct(), &drop)));
        schema
    }

    pub(crate) fn builder(&self, url: &str, options: StoreOptions) -> PostgresStoreBuilder {
        let layout =
            options.index.as_ref().filter(|_| !self.one_schema).map(|index| (index.dims, index.distance));
        let mut builder = PostgresStore::builder(url)
            .schema(self.schema(layout))
            .pgbouncer(self.server.kind() == Kind::PgBouncer)
            .max_connections(4)
            .ttl(options.ttl);
        if let Some(Indexes { ann, vector_type, filters, .. }) = self.indexes {
            builder = builder.ann_index(ann).vector_type(vector_type).filter_index(filters);
        }
        match options.index {
            Some(index) => builder.index(index),
            None => builder,
        }
    }

    /// What stores connect to.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// What the page of `store-postgres` says under "Round trips".
    fn cost(flat: bool, filters: bool, call: StoreCall) -> Cost {
        let each = |round_trips| Cost::new(round_trips, round_trips);
        // A transaction of so many statements, sent at once.
        let together = |statements: usize| Cost::new(1, statements + 2);
        match call {
            StoreCall::Get
            | StoreCall::GetMany { .. }
            | StoreCall::Put { indexed: false }
            | StoreCall::PutIf { .. }
            | StoreCall::Search
            | StoreCall::SearchMany { indexed: false }
            | StoreCall::ListNamespaces
            | StoreCall::Ping => each(1),
            StoreCall::SearchByQuery | StoreCall::SearchMany { indexed: true } if flat => each(1),
            StoreCall::GetRefreshed => each(2),
            StoreCall::SearchByQuery
            | StoreCall::SearchMany { indexed: true }
            | StoreCall::Delete
            | StoreCall::PutMany { indexed: false } => together(1),
            StoreCall::Put { indexed: true } | StoreCall::PutMany { indexed: true } => together(2),
            StoreCall::Mixed => each(4),
            StoreCall::Sweep { items } => each(items / 1000 + 1),
            StoreCall::CheckSchema { indexed } => {
                each(1 + usize::from(filters) + if indexed { 3 } else { 0 })
            }
            StoreCall::Setup { indexed } => each(1 + usize::from(filters) + if indexed { 4 } else { 0 }),
        }
    }
}

#[async_trait]
impl StoreTarget for Postgres {
    fn name(&self) -> &str {
        self.indexes.map_or_else(|| self.server.name(), |indexes| indexes.name)
    }

    fn concerns(&self, group: &str) -> bool {
        self.indexes.is_none() || Indexes::GROUPS.contains(&group)
    }

    async fn open(&self, options: StoreOptions) -> Result<Store> {
        Ok(Arc::new(self.builder(&self.url, options).build()?))
    }

    fn offers(&self, facility: StoreFacility) -> bool {
        // PostgreSQL 15 comes without pgvector.
        facility != StoreFacility::Index || self.server.kind() != Kind::Postgres15
    }

    async fn fresh(&self) -> Result<Arc<dyn StoreTarget>> {
        Ok(Arc::new(Self::new(self.server.clone(), self.indexes, true)))
    }

    async fn counted(&self, options: StoreOptions) -> Result<CountedStore> {
        let (proxy, url) = proxy(self.server.url()).await?;
        let store = self.builder(&url, options).build()?;
        store.setup().await?;
        let flat = self.indexes.is_some_and(|indexes| indexes.ann == AnnIndex::Flat);
        let filters = self.indexes.is_some_and(|indexes| indexes.filters);
        let cost = move |call| Self::cost(flat, filters, call);
        Ok(Counted { handle: Arc::new(store), proxy, cost: Box::new(cost) })
    }
}

/// Every target of the suite.
pub(crate) fn targets() -> Vec<Result<Arc<dyn StoreTarget>, Missing>> {
    let target = |kind, indexes| {
        let target = |server| Arc::new(Postgres::new(server, indexes, false)) as Arc<dyn StoreTarget>;
        Server::find(kind).map(target)
    };
    let servers = Kind::ALL.map(|kind| target(kind, None));
    let others = Indexes::OTHERS.map(|indexes| target(Kind::Postgres17, Some(indexes)));
    servers.into_iter().chain(others).collect()
}
