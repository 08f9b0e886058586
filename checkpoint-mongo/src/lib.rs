//! LangGraph checkpoints in MongoDB, and in servers that speak its protocol, without transactions.

mod builder;
mod client;
mod copy;
mod decisions;
mod error;
mod garbage;
mod keys;
mod leases;
mod list;
mod load;
mod prune;
mod read;
mod rekey;
mod row;
mod runtime;
mod saver;
mod schema;
mod shared;
mod threads;
mod tokens;
mod url;
mod write;

pub use builder::MongoSaverBuilder;
pub use error::is_refused_connection;
pub use mongodb;
pub use saver::MongoSaver;
