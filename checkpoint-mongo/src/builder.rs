//! The builder.

use std::fmt;
use std::time::Duration;

use checkpoint_core::backend::{KeepLast, ValueCodec};
use checkpoint_core::{Cipher, Error, Result, ResultExt};
use mongodb::options::ConnectionString;

use crate::MongoSaver;
use crate::client::{Mongo, Target};
use crate::error::{BACKEND, convert};
use crate::shared::Shared;
use crate::url;

const DEFAULT_DATABASE: &str = "langgraph";
const DEFAULT_COLLECTION: &str = "lg_checkpoints";

/// The longest name of database and collection together, in bytes, that every server accepts.
const LONGEST_NAMESPACE: usize = 120;

/// The options of a saver, checked.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) ttl: Option<Duration>,
    pub(crate) refresh_on_read: bool,
    pub(crate) codec: ValueCodec,
    /// The level of zstd.
    pub(crate) compression: Option<i32>,
    pub(crate) keep_last: Option<KeepLast>,
}

/// Builds a saver. Setters cannot fail; `build()` checks everything.
#[derive(Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct MongoSaverBuilder {
    url: String,
    database: Option<String>,
    collection: Option<String>,
    sharded: Option<bool>,
    ttl: Option<Duration>,
    refresh_on_read: bool,
    compression: Option<i32>,
    connect_timeout: Duration,
    timeout: Duration,
    max_retries: u32,
    max_pool_size: u32,
    app_name: Option<String>,
    keep_last: Option<usize>,
    codec: ValueCodec,
}

impl fmt::Debug for MongoSaverBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may have a password.
        f.debug_struct("MongoSaverBuilder")
            .field("database", &self.database)
            .field("collection", &self.collection)
            .field("sharded", &self.sharded)
            .field("ttl", &self.ttl)
            .field("timeout", &self.timeout)
            .field("max_retries", &self.max_retries)
            .field("cipher", &self.codec.cipher)
            .finish_non_exhaustive()
    }
}

impl MongoSaverBuilder {
    pub(crate) fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            database: None,
            collection: None,
            sharded: None,
            ttl: None,
            refresh_on_read: false,
            compression: None,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(30),
            max_retries: 5,
            max_pool_size: 32,
            app_name: None,
            keep_last: None,
            codec: ValueCodec::default(),
        }
    }

    /// Sets the database: that of the URL unless set, or else `langgraph`.
    pub fn database(mut self, database: impl Into<String>) -> Self {
        self.database = Some(database.into());
        self
    }

    /// Sets the collection: `lg_checkpoints` unless set here or as `collection` in the URL. Savers with different collections share nothing.
    pub fn collection(mut self, collection: impl Into<String>) -> Self {
        self.collection = Some(collection.into());
        self
    }

    /// Chooses whether the collection is sharded: no unless set here or as `sharded` in the URL. Every call on a thread then names the shard key, so that one
    /// shard answers it, and `setup()` shards the collection if it is not; see the [crate's page](crate#sharding).
    pub fn sharded(mut self, sharded: bool) -> Self {
        self.sharded = Some(sharded);
        self
    }

    /// Sets how long after its last write a thread expires, as a whole. Unless set here or as `ttl` in the URL (in seconds),
    /// threads do not expire.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Chooses whether reading a thread also counts for [`ttl`](Self::ttl): no unless set.
    pub fn refresh_on_read(mut self, refresh_on_read: bool) -> Self {
        self.refresh_on_read = refresh_on_read;
        self
    }

    /// Compresses stored values with zstd of this level, from 1 to 22. Compressed and plain values can be mixed.
    #[cfg(feature = "zstd")]
    pub fn compression(mut self, level: i32) -> Self {
        self.compression = Some(level);
        self
    }

    /// Sets the timeout of opening a connection: 5 seconds unless set. It is also how long a call waits for a server that it
    /// can use.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long one request to the server may take before the call fails with
    /// [`Timeout`](checkpoint_core::ErrorKind::Timeout): 30 seconds unless set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the maximum number of retries of a request that failed because a connection was cut or the primary stepped down:
    /// 5 unless set. The first retry is immediate, the others have an exponential backoff of up to 0.1, 0.2, 0.4 and 0.8
    /// seconds. A request that has taken 5 seconds is not retried. Every call is idempotent.
    pub fn max_retries(mut self, max_retries: u32) -> Self {
        self.max_retries = max_retries;
        self
    }

    /// Sets the maximum number of connections to each server: 32 unless set.
    pub fn max_pool_size(mut self, max_pool_size: u32) -> Self {
        self.max_pool_size = max_pool_size;
        self
    }

    /// Prunes behind each `put`: of its namespace, at least the newest `count` checkpoints stay, and normally about twice as
    /// many at most, besides the ancestors that their delta channels need. Branches that runs work on at the same time count
    /// together, so `count` should be well above their number.
    ///
    /// Some calls count the checkpoints, in the same round trip. About each `count`-th removes checkpoints, and a later one what
    /// only these referred to. What the last call of a process has left is removed by the next run of
    /// [`retain`](checkpoint_core::BaseCheckpointSaver::retain), or by another process behind a `put`. A failure is only logged.
    pub fn keep_last(mut self, count: usize) -> Self {
        self.keep_last = Some(count);
        self
    }

    /// Sets the name of the application in the server's log. It has at most 128 bytes.
    pub fn app_name(mut self, app_name: impl Into<String>) -> Self {
        self.app_name = Some(app_name.into());
        self
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
    pub fn opaque_values(mut self, opaque_values: bool) -> Self {
        self.codec.opaque_values = opaque_values;
        self
    }

    /// Checks the options and creates the saver. The first call opens a connection.
    ///
    /// # Errors
    /// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) for an invalid URL or option, such as `keep_last(0)`.
    pub fn build(self) -> Result<MongoSaver> {
        self.checked()
            .map(|(mongo, options)| MongoSaver::from_shared(Shared::new(mongo, options)))
            .at(BACKEND, "build")
    }

    fn checked(self) -> Result<(Mongo, Options)> {
        let (url, parameters) = url::parameters(&self.url)?;
        let ttl = self.ttl.or(parameters.ttl);
        self.check(ttl)?;
        let parsed = ConnectionString::parse(&url).map_err(|error| {
            let message = "the URL is not valid; it begins with mongodb:// or mongodb+srv://";
            // The source may quote the password.
            let _ = convert(error);
            Error::invalid_config(message)
        })?;
        let database = self
            .database
            .or_else(|| parsed.default_database.clone())
            .unwrap_or_else(|| DEFAULT_DATABASE.to_owned());
        let collection =
            self.collection.or(parameters.collection).unwrap_or_else(|| DEFAULT_COLLECTION.to_owned());
        check_names(&database, &collection)?;
        let target = Target {
            parsed,
            database,
            collection,
            sharded: self.sharded.or(parameters.sharded).unwrap_or(false),
            connect_timeout: self.connect_timeout,
            timeout: self.timeout,
            max_retries: self.max_retries,
            max_pool_size: self.max_pool_size,
            app_name: self.app_name,
        };
        let options = Options {
            ttl,
            refresh_on_read: self.refresh_on_read,
            codec: self.codec,
            compression: self.compression,
            keep_last: self.keep_last.map(KeepLast::new).transpose()?,
        };
        Ok((Mongo::new(target), options))
    }

    fn check(&self, ttl: Option<Duration>) -> Result<()> {
        let wrong = |message: &'static str| Err(Error::invalid_config(message));
        let longest = Duration::from_secs(100 * 365 * 24 * 3600);
        if ttl.is_some_and(|ttl| ttl < Duration::from_millis(1) || ttl > longest) {
            return wrong("ttl must be at least a millisecond and at most 100 years");
        }
        if self.connect_timeout.is_zero() || self.timeout.is_zero() {
            return wrong("timeout and connect_timeout must not be zero");
        }
        if self.connect_timeout > longest || self.timeout > longest {
            return wrong("timeout and connect_timeout must be at most 100 years");
        }
        if self.compression.is_some_and(|level| !(1..=22).contains(&level)) {
            return wrong("the level of compression is from 1 to 22");
        }
        if self.max_pool_size == 0 {
            return wrong("max_pool_size must not be zero");
        }
        if self.app_name.as_ref().is_some_and(|name| name.is_empty() || name.len() > 128) {
            return wrong("app_name must have 1 to 128 bytes");
        }
        Ok(())
    }
}

/// Checks names as the server does, which tells it only when it is asked.
fn check_names(database: &str, collection: &str) -> Result<()> {
    if database.is_empty() || database.len() > 63 || database.contains(['/', '\\', '.', '"', '$', ' ', '\0'])
    {
        return Err(Error::invalid_config(
            "the name of the database must have 1 to 63 bytes, without spaces and / \\ . \" $",
        ));
    }
    let is_wrong = collection.is_empty()
        || collection.contains(['$', '\0'])
        || collection.starts_with("system.")
        || collection.starts_with('.')
        || collection.ends_with('.');
    if is_wrong || database.len() + collection.len() > LONGEST_NAMESPACE {
        return Err(Error::invalid_config(
            "the name of the collection must not be empty or long, contain $ or NUL, begin with system., or begin or end with a dot",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use checkpoint_core::ErrorKind;

    use super::*;

    type Setter = fn(MongoSaverBuilder) -> MongoSaverBuilder;

    #[test]
    fn options_are_checked() {
        let wrong: [(Setter, &str); 12] = [
            (|b| b.collection(""), "collection"),
            (|b| b.collection("a$b"), "collection"),
            (|b| b.collection("system.users"), "collection"),
            (|b| b.collection("x".repeat(200)), "collection"),
            (|b| b.database("a.b"), "database"),
            (|b| b.database(""), "database"),
            (|b| b.ttl(Duration::ZERO), "ttl"),
            (|b| b.ttl(Duration::MAX), "ttl"),
            (|b| b.timeout(Duration::ZERO), "timeout"),
            (|b| b.connect_timeout(Duration::MAX), "timeout"),
            (|b| b.max_pool_size(0), "max_pool_size"),
            (|b| b.keep_last(0), "keep_last"),
        ];
        for (set, part) in wrong {
            let error = set(MongoSaver::builder("mongodb://u:SECRET@h")).build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            assert!(error.message().contains(part) && !format!("{error:?}").contains("SECRET"), "{error:?}");
        }
        for url in
            ["", "h", "redis://h", "mongodb://", "mongodb://u:SECRET@h:x", "mongodb://u:SECRET@h/?w=-1"]
        {
            let error = MongoSaver::builder(url).build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}: {error}");
            assert!(!format!("{error:?}").contains("SECRET"), "{error:?}");
        }
    }

    #[test]
    fn unset_options_have_defaults() {
        let target = |url: &str| MongoSaverBuilder::new(url).checked().unwrap().0.namespace();
        assert_eq!(target("mongodb://h"), "langgraph.lg_checkpoints");
        assert_eq!(target("mongodb://h/own"), "own.lg_checkpoints");
        assert_eq!(target("mongodb://h/own?collection=a%20b"), "own.a b");
    }

    #[test]
    fn setters_take_precedence_over_the_url() {
        let builder = MongoSaverBuilder::new("mongodb://h/d?collection=a&ttl=60&sharded=true");
        let of = |builder: MongoSaverBuilder| {
            let (mongo, options) = builder.checked().unwrap();
            (mongo.namespace(), options.ttl, mongo.is_sharded())
        };
        assert_eq!(of(builder.clone()), ("d.a".to_owned(), Some(Duration::from_secs(60)), true));
        let set = builder.database("e").collection("b").ttl(Duration::from_secs(1)).sharded(false);
        assert_eq!(of(set), ("e.b".to_owned(), Some(Duration::from_secs(1)), false));
    }

    #[test]
    fn passwords_are_not_shown() {
        let builder = MongoSaverBuilder::new("mongodb://u:SECRET@h");
        let shown = format!(
            "{builder:?} {:?} {:?}",
            builder.clone().checked().unwrap(),
            builder.clone().build().unwrap()
        );
        assert!(!shown.contains("SECRET"), "{shown}");
    }

    #[cfg(feature = "zstd")]
    #[test]
    fn levels_of_compression_are_those_of_zstd() {
        for set in [(|b| b.compression(0)) as Setter, |b| b.compression(23)] {
            let error = set(MongoSaverBuilder::new("mongodb://h")).build().unwrap_err();
            assert!(error.message().contains("1 to 22"));
        }
    }
}
