//! What the Postgres backends share.

mod config;
mod database;
mod error;
mod migrate;
mod tls;

pub use config::{PostgresConfig, SslMode};
pub use database::{Connection, Database, Param, Transaction};
pub use error::{convert, convert_pool, is_stale_statement};
pub use migrate::{Migrations, Step};
pub use {deadpool_postgres, tokio_postgres};

/// The backend's name in errors and spans.
pub const BACKEND: &str = "postgres";
