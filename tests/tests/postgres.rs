//! The suite on the Postgres saver: on PostgreSQL 17, on PostgreSQL 15, and behind PgBouncer in transaction mode. Each has
//! a schema of its own, which goes at the end.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::ExitCode;
use std::sync::Arc;

use checkpoint_conformance::Target;

use shared::postgres::{Kind, Postgres, Server, in_runtime};
use shared::server;

mod shared {
    pub(crate) mod postgres;
    pub(crate) mod postgres_wire;
    pub(crate) mod server;
}

fn main() -> ExitCode {
    server::with_servers(run)
}

fn run() -> ExitCode {
    let mut targets = Vec::new();
    for kind in Kind::ALL {
        let target = match Server::find(kind) {
            Ok(server) => match in_runtime(Postgres::new(server)) {
                Ok(target) => Ok(Arc::new(target) as Arc<dyn Target>),
                Err(error) => {
                    eprintln!("{}: {error:?}", kind.name());
                    return ExitCode::FAILURE;
                }
            },
            Err(missing) => Err(missing),
        };
        targets.push(target);
    }
    checkpoint_conformance::run_all(targets)
}
