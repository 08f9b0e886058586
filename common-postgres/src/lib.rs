//! What the Postgres backends share.

mod config;
mod error;
mod tls;
mod url;

pub use config::{PostgresConfig, SslMode};
pub use error::{READ_ONLY, RUN_SETUP, convert, convert_pool, is_connection_lost, is_stale_statement};
pub use {deadpool_postgres, tokio_postgres};

/// The backend's name in errors and spans.
pub const BACKEND: &str = "postgres";
