//! Data that Python wrote and that needs no server: values, ciphers, and a SQLite file; see `vectors/README.md`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../shared"]
mod shared {
    pub(crate) mod copy;
    pub(crate) mod golden;
}

mod codec;
mod sqlite;
mod users;
mod views;
