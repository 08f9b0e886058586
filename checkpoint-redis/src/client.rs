//! Other data on the saver's servers, with its connections, retries and errors.

use std::fmt;

use checkpoint_core::{Error, ErrorKind, Result, ResultExt};
use redis::{Cmd, Pipeline, Value};

use crate::RedisSaverBuilder;
use crate::connection::{Access, Connections};
use crate::error::{BACKEND, has_code};

/// What servers answer to a login that they refuse.
const REFUSED: [&str; 3] = ["NOAUTH", "WRONGPASS", "DENIED"];

/// Runs commands of a program's own on the servers that a saver would use, with the same retries, redirects and errors.
///
/// Commands are repeated after a lost connection, so they have to be idempotent. They must not block. Keys should begin with
/// [`key_prefix`](Self::key_prefix), but not be those of a saver: these go on with `:{`.
pub struct RedisClient {
    connections: Connections,
    key_prefix: String,
}

impl fmt::Debug for RedisClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisClient")
            .field("connections", &self.connections)
            .field("key_prefix", &self.key_prefix)
            .finish()
    }
}

impl RedisSaverBuilder {
    /// Checks the options, reads certificates, and creates a client for other data. The first call opens a connection.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_client(self) -> Result<RedisClient> {
        let (connections, options) = self.checked().at(BACKEND, "build")?;
        Ok(RedisClient { connections, key_prefix: options.key_prefix })
    }
}

impl RedisClient {
    /// What the program's keys should begin with.
    pub fn key_prefix(&self) -> &str {
        &self.key_prefix
    }

    /// Whether the servers are a cluster, in which a transaction is on keys of one slot.
    pub fn is_cluster(&self) -> bool {
        self.connections.is_cluster()
    }

    /// Runs commands that do not depend on each other, each on one slot, in one round trip to each server, and returns their
    /// replies in the same order.
    ///
    /// # Errors
    /// As a saver's calls. Commands on other servers may have been run.
    ///
    /// # Cancellation
    /// Commands that were sent are run.
    pub async fn each(&self, commands: Vec<Cmd>) -> Result<Vec<Value>> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        self.connections.each(Access::Write, commands).await
    }

    /// Runs commands in MULTI and EXEC, all or none of them, and returns their replies. In a cluster, all their keys are of
    /// the slot of `key`.
    ///
    /// # Errors
    /// As a saver's calls. Nothing was changed, unless the connection was lost or it took too long.
    ///
    /// # Cancellation
    /// The commands are run or not, as a whole.
    pub async fn transaction(&self, key: &[u8], commands: &Pipeline) -> Result<Vec<Value>> {
        self.connections.transaction(key, commands).await
    }

    /// Checks that the servers answer.
    ///
    /// # Errors
    /// As a saver's `ping`.
    ///
    /// # Cancellation
    /// Nothing was changed.
    pub async fn ping(&self) -> Result<()> {
        self.connections.ping().await
    }

    /// Closes the connections. Later calls fail.
    pub fn close(&self) {
        self.connections.close();
    }
}

/// Tells whether the server refused the connection: its user or password, or the client's host.
pub fn is_refused_connection(error: &Error) -> bool {
    error.kind() == ErrorKind::InvalidConfig && has_code(error, &REFUSED)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::RedisSaver;
    use crate::error::convert_server;

    use super::*;

    fn refused(line: &str) -> Error {
        let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let error = reply.extract_error().unwrap_err();
        convert_server(&crate::error::of_server(&error).unwrap())
    }

    #[test]
    fn refused_connections_are_told_apart() {
        assert!(is_refused_connection(&refused("WRONGPASS invalid username-password pair")));
        assert!(is_refused_connection(&refused("NOAUTH Authentication required.")));
        assert!(is_refused_connection(&Error::share(&Arc::new(refused("WRONGPASS invalid")))));
        assert!(!is_refused_connection(&refused("NOPERM no permissions to run 'get'")));
        assert!(!is_refused_connection(&Error::invalid_config("the URL")));
    }

    #[test]
    fn options_are_those_of_a_saver() {
        let client = RedisSaver::builder("redis://u:SECRET@h").key_prefix("x").build_client().unwrap();
        assert_eq!((client.key_prefix(), client.is_cluster()), ("x", false));
        assert!(!format!("{client:?}").contains("SECRET"));
        let error = RedisSaver::builder("redis://h").key_prefix("{").build_client().unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::InvalidConfig, Some("build")));
    }

    #[tokio::test]
    async fn closed_clients_refuse_calls() {
        let client = RedisSaver::builder("redis://127.0.0.1:1").build_client().unwrap();
        assert!(client.each(Vec::new()).await.unwrap().is_empty());
        client.close();
        assert!(client.ping().await.unwrap_err().to_string().contains("closed"));
    }
}
