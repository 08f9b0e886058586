//! LangGraph stores in PostgreSQL, in the very tables that LangGraph's Python (`langgraph-checkpoint-postgres`) uses,
//! with semantic search by pgvector.

mod builder;
mod filter;
mod read;
mod schema;
mod sql;
mod store;
mod sweep;
mod write;

pub use builder::{AnnIndex, PostgresStoreBuilder, VectorType};
pub use common_postgres::{PostgresConfig, SslMode, deadpool_postgres, tokio_postgres};
pub use store::PostgresStore;
pub use sweep::TtlSweeper;
