//! LangGraph checkpoints in PostgreSQL, in the very tables that LangGraph's Python (`langgraph-checkpoint-postgres`) uses.

mod builder;
mod document;
mod read;
mod row;
mod saver;
mod schema;
mod sql;
mod write;

pub use builder::{Compression, PostgresSaverBuilder};
pub use common_postgres::{PostgresConfig, SslMode, deadpool_postgres, tokio_postgres};
pub use saver::PostgresSaver;
