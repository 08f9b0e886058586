//! The builder.

use std::fmt;

use checkpoint_core::backend::{KeepLast, ValueCodec};
use checkpoint_core::{Cipher, Error, Result, ResultExt};
use common_postgres::{BACKEND, ConnectionOptions, ConnectionSource, PostgresConfig, connection_setters};

use crate::PostgresSaver;
use crate::shared::Shared;

/// How the server compresses large values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// `setup()` sets LZ4 for the columns of large values if the server supports it: storing a checkpoint of 25 KB takes
    /// about half as long as with the server's default, and Python reads and writes such columns unchanged. Stored rows
    /// are not rewritten.
    #[default]
    Lz4,
    /// The columns are not changed: new tables have the server's default, usually pglz.
    Server,
}

/// Builds a [`PostgresSaver`]. Setters cannot fail; [`build`](Self::build) checks everything.
#[derive(Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct PostgresSaverBuilder {
    source: ConnectionSource,
    replica: Option<ConnectionSource>,
    connection: ConnectionOptions,
    codec: ValueCodec,
    compression: Compression,
    keep_last: Option<usize>,
}

impl fmt::Debug for PostgresSaverBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresSaverBuilder")
            .field("connection", &self.connection)
            .field("cipher", &self.codec.cipher)
            .field("compression", &self.compression)
            .finish_non_exhaustive()
    }
}

impl PostgresSaverBuilder {
    pub(crate) fn new(source: ConnectionSource) -> Self {
        Self {
            source,
            replica: None,
            connection: ConnectionOptions::default(),
            codec: ValueCodec::default(),
            compression: Compression::default(),
            keep_last: None,
        }
    }

    /// Encrypts stored values, and decrypts them when they are read. See the [crate's page](crate) for what is not encrypted.
    pub fn cipher(mut self, cipher: Cipher) -> Self {
        self.codec.cipher = Some(cipher);
        self
    }

    /// Returns values that cannot be decrypted as ciphertext instead of an error, for tools that show a database without its
    /// keys. This applies to `get_tuple` and `list`.
    pub fn return_sealed(mut self, return_sealed: bool) -> Self {
        self.codec.return_sealed = return_sealed;
        self
    }

    /// Stores values of another serializer unchanged and never decodes them, whatever their tags say: blobs are returned
    /// with their tag and bytes, pending writes always as blobs. Snapshots of delta channels have to be named by
    /// [`PutOptions::delta_snapshots`](checkpoint_core::PutOptions::delta_snapshots). Without a
    /// [`cipher`](Self::cipher), values may be encrypted already.
    ///
    /// Scalars are stored in the checkpoint's document if
    /// [`InlineScalars::Jsonb`](checkpoint_core::InlineScalars::Jsonb) contains them. Others are stored as MessagePack and
    /// returned as that, unless the caller gives them as blobs of its own serializer. An integer beyond 64 bits is a blob
    /// under the tag `json`, its digits, and is stored in the document too. The sends of old checkpoints are returned as
    /// [`pending_sends`](checkpoint_core::CheckpointTuple::pending_sends).
    pub fn opaque_values(mut self, opaque_values: bool) -> Self {
        self.codec.opaque_values = opaque_values;
        self
    }

    connection_setters!();

    /// Reads listings (`list` and `list_threads`) from a replica, which may lag behind. Other calls use the primary.
    ///
    /// It takes a connection string, as [`PostgresSaver::builder`] does.
    pub fn read_replica(mut self, conn_string: impl Into<String>) -> Self {
        self.replica = Some(ConnectionSource::ConnString(conn_string.into()));
        self
    }

    /// As [`read_replica`](Self::read_replica), with a [`PostgresConfig`].
    pub fn read_replica_config(mut self, config: PostgresConfig) -> Self {
        self.replica = Some(ConnectionSource::Config(Box::new(config)));
        self
    }

    /// Chooses the compression of large values that `setup()` sets: [`Compression::Lz4`] unless set.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Prunes behind each `put`: of its namespace, at least the newest `count` checkpoints stay, and normally at most twice as
    /// many, besides the ancestors that their delta channels need. Branches that runs work on at the same time count together,
    /// so `count` should be well above their number.
    ///
    /// The checkpoints are counted in the same round trip. Each `count`-th call removes in a short transaction of its own,
    /// unless another call works on the thread at that moment; a failure is only logged.
    pub fn keep_last(mut self, count: usize) -> Self {
        self.keep_last = Some(count);
        self
    }

    /// Checks the options, reads certificates, and creates the saver. The first call opens a connection.
    ///
    /// # Errors
    /// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) for an invalid connection string or option, for a
    /// certificate that cannot be read, for connection options on a pool that is the application's own, and for `keep_last(0)`.
    pub fn build(self) -> Result<PostgresSaver> {
        self.checked().map(PostgresSaver::from_shared).at(BACKEND, "build")
    }

    fn checked(self) -> Result<Shared> {
        let (database, schema) = self.connection.database(&self.source)?;
        let replica =
            match self.replica.as_ref().map(|source| self.connection.database(source)).transpose()? {
                None => database.clone(),
                Some((_, other)) if other.is_some() && other != schema => {
                    return Err(Error::invalid_config(
                        "the read replica has another schema than the primary",
                    ));
                }
                Some((replica, _)) => replica,
            };
        let lz4 = self.compression == Compression::Lz4;
        let keep_last = self.keep_last.map(KeepLast::new).transpose()?;
        Ok(Shared::new(database, replica, schema.as_deref(), lz4, self.codec, keep_last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_replica_has_the_schema_of_the_primary() {
        let built =
            |primary: &str, replica: &str| PostgresSaver::builder(primary).read_replica(replica).build();
        for replica in ["host=b", "host=b schema=s", "postgres://b?schema=s"] {
            assert!(built("postgres://a?schema=s", replica).is_ok(), "{replica}");
        }
        for primary in ["host=a", "host=a schema=t"] {
            assert!(built(primary, "host=b schema=s").unwrap_err().to_string().contains("another schema"));
        }
    }
}
