//! What Python wrote, which no server is needed to read: values, ciphers, and a file of SQLite; see `vectors/README.md`.

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
