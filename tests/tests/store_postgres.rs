//! The suite on the Postgres store: on PostgreSQL 17, on PostgreSQL 15, and behind PgBouncer in transaction mode. Each kind
//! of index has a schema of its own, which goes at the end.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use checkpoint_conformance::{Store, StoreFacility, StoreOptions, StoreTarget};
use checkpoint_core::store::Distance;
use checkpoint_core::{Result, async_trait};
use store_postgres::{AnnIndex, PostgresStore};

use shared::postgres::{Kind, Scratch, Server, unique_name};
use shared::server;

mod shared {
    pub(crate) mod postgres;
    pub(crate) mod server;
}

/// What handles have to agree on to share tables: the length of the vectors, and what their index sorts by.
type Layout = Option<(usize, Distance)>;

#[derive(Debug)]
struct Postgres {
    server: Server,
    /// Whether all handles share one schema, whatever their index is.
    one_schema: bool,
    schemas: Mutex<Vec<(Layout, String, Scratch)>>,
}

impl Postgres {
    fn new(server: Server, one_schema: bool) -> Self {
        Self { server, one_schema, schemas: Mutex::default() }
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
}

#[async_trait]
impl StoreTarget for Postgres {
    fn name(&self) -> &str {
        self.server.name()
    }

    async fn open(&self, options: StoreOptions) -> Result<Store> {
        let layout =
            options.index.as_ref().filter(|_| !self.one_schema).map(|index| (index.dims, index.distance));
        let mut builder = PostgresStore::builder(self.server.url())
            .schema(self.schema(layout))
            .pgbouncer(self.server.kind() == Kind::PgBouncer)
            .max_connections(4)
            .ttl(options.ttl);
        if let Some(index) = options.index {
            // Some with an index of vectors, some without.
            let ann = if index.distance == Distance::L2 { AnnIndex::Flat } else { AnnIndex::hnsw() };
            builder = builder.index(index).ann_index(ann);
        }
        Ok(Arc::new(builder.build()?))
    }

    fn offers(&self, facility: StoreFacility) -> bool {
        // PostgreSQL 15 comes without pgvector.
        facility != StoreFacility::Index || self.server.kind() != Kind::Postgres15
    }

    async fn fresh(&self) -> Result<Arc<dyn StoreTarget>> {
        Ok(Arc::new(Self::new(self.server.clone(), true)))
    }
}

fn main() -> ExitCode {
    server::with_servers(|| {
        let target = |kind| {
            Server::find(kind).map(|server| Arc::new(Postgres::new(server, false)) as Arc<dyn StoreTarget>)
        };
        checkpoint_conformance::run_stores(Kind::ALL.map(target).into())
    })
}
