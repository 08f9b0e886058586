//! What the clones of a saver share.

use checkpoint_core::Result;
use checkpoint_core::backend::{Calls, KeepLast, ValueCodec};
use common_postgres::{BACKEND, Database, SYSTEM};

use crate::schema::Tables;
use crate::sql::Statements;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) calls: Calls,
    pub(crate) database: Database,
    /// Where listings are read.
    pub(crate) replica: Database,
    pub(crate) sql: Statements,
    pub(crate) tables: Tables,
    pub(crate) codec: ValueCodec,
    pub(crate) keep_last: Option<KeepLast>,
}

impl Shared {
    pub(crate) fn new(
        database: Database,
        replica: Database,
        schema: Option<&str>,
        lz4: bool,
        codec: ValueCodec,
        keep_last: Option<KeepLast>,
    ) -> Self {
        Self {
            calls: Calls::saver(BACKEND, SYSTEM),
            database,
            replica,
            sql: Statements::new(schema),
            tables: Tables::new(schema, lz4),
            codec,
            keep_last,
        }
    }

    /// Closes the connections.
    pub(crate) fn release(&self) {
        self.database.close();
        self.replica.close();
    }

    /// The plan of each statement: the call's name, the SQL and the plan as JSON.
    pub(crate) async fn plans(&self) -> Result<Vec<(&'static str, String, String)>> {
        let connection = self.database.connection().await?;
        let mut plans = Vec::new();
        for (call, sql) in self.sql.all() {
            let explain = format!("EXPLAIN (GENERIC_PLAN, FORMAT JSON) {sql}");
            plans.push((call, sql, connection.simple_query(&explain).await?));
        }
        Ok(plans)
    }
}
