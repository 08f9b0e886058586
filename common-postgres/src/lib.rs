//! Shared by the Postgres backends: configuration, TLS, connection pool, errors, migrations.

mod config;
mod connect;
mod database;
mod error;
mod migrate;
mod row;
mod runtime;
mod tls;

pub use config::{PostgresConfig, SslMode};
pub use connect::{ConnectionOptions, ConnectionSource};
pub use database::{Connection, Database, Param, Transaction};
pub use error::{convert, convert_pool, is_refused_connection, is_stale_statement};
pub use migrate::{Migrations, Step};
pub use row::{Json, column, quote, text};
pub use runtime::check_timers;
pub use {deadpool_postgres, secrecy, tokio_postgres};

/// The backend's name in errors and spans.
pub const BACKEND: &str = "postgres";

/// The database system in spans and metrics: OpenTelemetry's `db.system.name`.
pub const SYSTEM: &str = "postgresql";
