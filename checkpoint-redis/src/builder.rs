//! The builder.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use checkpoint_core::backend::{KeepLast, ValueCodec};
use checkpoint_core::{Cipher, Error, Result, ResultExt};

use crate::RedisSaver;
use crate::connection::{CallOptions, Connections, Login, client_config};
use crate::error::BACKEND;
use crate::shared::Shared;
use crate::target::Target;

const DEFAULT_PREFIX: &str = "ckpt";
const DEFAULT_MAX_INLINE: usize = 64 * 1024;

/// Values pass through Lua twice, and the server does nothing else meanwhile.
const MAX_MAX_INLINE: usize = 256 * 1024;

/// How many servers must have a write before the call returns.
///
/// Without it, a call returns when the primary has the write: if it fails before its replicas have it too, the newest
/// checkpoints are lost. Each thread stays consistent all the same.
///
/// A call that writes waits on a connection of its own, of which there are at most 32 for each server. A call that too few
/// servers confirmed fails with [`Timeout`](checkpoint_core::ErrorKind::Timeout); its data may be stored or not, and it
/// can be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Durability {
    /// The number of replicas.
    pub replicas: u32,
    /// How long to wait for them. It is a part of the call's timeout.
    pub timeout: Duration,
    /// Whether the primary and the replicas must have the write on disk (WAITAOF: version 7.2 with `appendonly yes`), instead
    /// of the replicas in memory (WAIT).
    pub aof: bool,
}

/// The options of a saver, checked.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) key_prefix: String,
    pub(crate) ttl: Option<Duration>,
    pub(crate) refresh_on_read: bool,
    pub(crate) max_inline_bytes: usize,
    pub(crate) scripts: bool,
    pub(crate) codec: ValueCodec,
    /// The level of zstd.
    pub(crate) compression: Option<i32>,
    pub(crate) keep_last: Option<KeepLast>,
}

/// Builds a saver. Setters cannot fail; `build()` checks everything.
#[derive(Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct RedisSaverBuilder {
    url: String,
    key_prefix: Option<String>,
    ttl: Option<Duration>,
    refresh_on_read: bool,
    max_inline_bytes: usize,
    scripts: Option<bool>,
    durability: Option<Durability>,
    compression: Option<i32>,
    keep_last: Option<usize>,
    resp3: Option<bool>,
    connect_timeout: Duration,
    timeout: Duration,
    max_retries: u32,
    root_certificates: Option<PathBuf>,
    client_certificate: Option<(PathBuf, PathBuf)>,
    client_name: Option<String>,
    codec: ValueCodec,
}

impl fmt::Debug for RedisSaverBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may have a password.
        f.debug_struct("RedisSaverBuilder")
            .field("key_prefix", &self.key_prefix)
            .field("ttl", &self.ttl)
            .field("scripts", &self.scripts)
            .field("durability", &self.durability)
            .field("timeout", &self.timeout)
            .field("max_retries", &self.max_retries)
            .field("cipher", &self.codec.cipher)
            .finish_non_exhaustive()
    }
}

impl RedisSaverBuilder {
    pub(crate) fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            key_prefix: None,
            ttl: None,
            refresh_on_read: false,
            max_inline_bytes: DEFAULT_MAX_INLINE,
            scripts: None,
            durability: None,
            compression: None,
            keep_last: None,
            resp3: None,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(30),
            max_retries: 5,
            root_certificates: None,
            client_certificate: None,
            client_name: None,
            codec: ValueCodec::default(),
        }
    }

    /// Sets what all keys begin with: `ckpt` unless set here or as `prefix` in the URL. It is not empty and has no `{`, `}` and NUL. Savers with different
    /// prefixes share nothing.
    pub fn key_prefix(mut self, key_prefix: impl Into<String>) -> Self {
        self.key_prefix = Some(key_prefix.into());
        self
    }

    /// Sets how long after its last write a thread expires, as a whole. Unless set here or as `ttl` in the URL (in
    /// seconds), threads do not expire.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Chooses whether reading a thread also counts for [`ttl`](Self::ttl): no unless set.
    pub fn refresh_on_read(mut self, refresh_on_read: bool) -> Self {
        self.refresh_on_read = refresh_on_read;
        self
    }

    /// Sets up to how many bytes a checkpoint with its values is read in one round trip instead of two: 64 KiB unless set,
    /// at most 256 KiB. Larger ones would hold up the server, which copies them twice in a script; raise it when the server
    /// is far away.
    pub fn max_inline_bytes(mut self, max_inline_bytes: usize) -> Self {
        self.max_inline_bytes = max_inline_bytes;
        self
    }

    /// Chooses whether Lua scripts are used: yes unless set here or as `scripts` in the URL. Without them, reads take more round trips, and conditional
    /// writes watch keys on connections of their own. For users without `+@scripting`, and servers without Lua.
    pub fn scripts(mut self, scripts: bool) -> Self {
        self.scripts = Some(scripts);
        self
    }

    /// Makes writes wait for replicas or disks. See [`Durability`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// Compresses stored values with zstd of this level, from 1 to 22. Compressed and plain values can be mixed.
    #[cfg(feature = "zstd")]
    pub fn compression(mut self, level: i32) -> Self {
        self.compression = Some(level);
        self
    }

    /// Prunes behind each `put`: of its namespace, at least the newest `count` checkpoints stay, and normally at most twice as
    /// many, besides the ancestors that their delta channels need. Branches that runs work on at the same time count together,
    /// so `count` should be well above their number.
    ///
    /// Each call counts the checkpoints, in the same round trip. Each `count`-th removes, in steps of its own, unless others
    /// keep storing something in the thread at that moment; a failure is only logged.
    pub fn keep_last(mut self, count: usize) -> Self {
        self.keep_last = Some(count);
        self
    }

    /// Chooses between the protocols RESP3 and RESP2: RESP2 unless set here or in the URL, which every server and proxy
    /// speaks. For a saver they are alike.
    pub fn resp3(mut self, resp3: bool) -> Self {
        self.resp3 = Some(resp3);
        self
    }

    /// Sets the timeout of opening a connection: 5 seconds unless set.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long one request to the server may take, retries included, before the call fails with
    /// [`Timeout`](checkpoint_core::ErrorKind::Timeout): 30 seconds unless set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the maximum number of retries of a request that failed because the server restarts, a connection was cut, or a
    /// cluster moves data: 5 unless set. The first retry is immediate, the others have an exponential backoff of up to 0.1,
    /// 0.2, 0.4 and 0.8 seconds. A request that has taken 5 seconds is not retried. Every call is idempotent.
    ///
    /// So a server that refuses connections for about a second is waited for, with more retries one that does so for 5 seconds. After a
    /// longer outage, calls fail with [`Unavailable`](checkpoint_core::ErrorKind::Unavailable), reads too, and can be repeated.
    pub fn max_retries(mut self, max_retries: u32) -> Self {
        self.max_retries = max_retries;
        self
    }

    /// Names a PEM file with the certificates of the authorities to trust, for a URL with TLS: those of the system unless set
    /// here or in the URL.
    pub fn tls_root_certificates(mut self, path: impl Into<PathBuf>) -> Self {
        self.root_certificates = Some(path.into());
        self
    }

    /// Names the PEM files of the client's certificate and of its key, for a server that asks for one.
    pub fn tls_client_certificate(mut self, path: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.client_certificate = Some((path.into(), key.into()));
        self
    }

    /// Sets the name of the connections in the server's `CLIENT LIST`. It has no spaces.
    pub fn client_name(mut self, client_name: impl Into<String>) -> Self {
        self.client_name = Some(client_name.into());
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

    /// Checks the options, reads certificates, and creates the saver. The first call opens a connection.
    ///
    /// # Errors
    /// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) for an invalid URL or option, and for a certificate that
    /// cannot be read.
    pub fn build(self) -> Result<RedisSaver> {
        let checked = self.checked().map(|(connections, options)| Shared::new(connections, options));
        checked.map(RedisSaver::from_shared).at(BACKEND, "build")
    }

    /// Checks the options and reads certificates. Opens no connection.
    pub(crate) fn checked(self) -> Result<(Connections, Options)> {
        let mut target = Target::parse(&self.url)?;
        let key_prefix = self.key_prefix.clone().or_else(|| target.key_prefix.take());
        let key_prefix = key_prefix.unwrap_or_else(|| DEFAULT_PREFIX.to_owned());
        let ttl = self.ttl.or(target.ttl);
        self.check(&key_prefix, ttl)?;
        let keep_last = self.keep_last.map(KeepLast::new).transpose()?;
        let tls = self.tls(&target)?;
        let login = Login {
            credentials: target.credentials,
            database: target.database,
            resp3: self.resp3.or(target.resp3).unwrap_or_default(),
            client_name: self.client_name,
            tls,
            connect_timeout: self.connect_timeout,
        };
        let sentinel_login =
            Login { credentials: target.sentinel_credentials, database: 0, resp3: false, ..login.clone() };
        let calls =
            CallOptions { timeout: self.timeout, max_retries: self.max_retries, durability: self.durability };
        let connections = Connections::new(target.servers, login, sentinel_login, &calls);
        let options = Options {
            key_prefix,
            ttl,
            refresh_on_read: self.refresh_on_read,
            max_inline_bytes: self.max_inline_bytes.min(MAX_MAX_INLINE),
            scripts: self.scripts.or(target.scripts).unwrap_or(true),
            codec: self.codec,
            compression: self.compression,
            keep_last,
        };
        Ok((connections, options))
    }

    fn check(&self, key_prefix: &str, ttl: Option<Duration>) -> Result<()> {
        let wrong = |message: &'static str| Err(Error::invalid_config(message));
        if key_prefix.is_empty() || key_prefix.contains(['{', '}', '\0']) {
            return wrong("key_prefix must not be empty, and must not contain {, } or NUL");
        }
        // Redis adds it to the time of day, in milliseconds.
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
        if let Some(Durability { replicas, timeout, aof }) = self.durability {
            if replicas == 0 && !aof {
                return wrong("durability needs at least one replica, or aof");
            }
            if timeout < Duration::from_millis(1) || timeout >= self.timeout {
                return wrong(
                    "durability's timeout must be at least a millisecond, and shorter than timeout",
                );
            }
        }
        if self
            .client_name
            .as_ref()
            .is_some_and(|name| name.is_empty() || !name.chars().all(|c| c.is_ascii_graphic()))
        {
            return wrong("client_name must not be empty, and has no spaces or special characters");
        }
        Ok(())
    }

    fn tls(&self, target: &Target) -> Result<Option<std::sync::Arc<rustls::ClientConfig>>> {
        let roots = self.root_certificates.as_deref().or(target.root_certificates.as_deref());
        let client = match (&self.client_certificate, &target.client_certificate, &target.client_key) {
            (Some((certificate, key)), ..) | (None, Some(certificate), Some(key)) => {
                Some((certificate.as_path(), key.as_path()))
            }
            (None, None, None) => None,
            (None, ..) => {
                return Err(Error::invalid_config("ssl_certfile and ssl_keyfile in the URL need each other"));
            }
        };
        if target.tls {
            return client_config(roots, client).map(Some);
        }
        if roots.is_some() || client.is_some() {
            return Err(Error::invalid_config(
                "certificates are set, but the URL is without TLS; begin it with rediss:// or rediss+cluster://",
            ));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use checkpoint_core::ErrorKind;

    use super::*;

    type Setter = fn(RedisSaverBuilder) -> RedisSaverBuilder;

    fn checked(url: &str, set: Setter) -> Result<(Connections, Options)> {
        set(RedisSaverBuilder::new(url)).checked()
    }

    #[test]
    fn options_are_checked() {
        let wrong: [(Setter, &str); 15] = [
            (|b| b.key_prefix(""), "key_prefix"),
            (|b| b.key_prefix("a{b"), "key_prefix"),
            (|b| b.key_prefix("a}b"), "key_prefix"),
            (|b| b.key_prefix("a\0b"), "key_prefix"),
            (|b| b.ttl(Duration::ZERO), "ttl"),
            (|b| b.ttl(Duration::MAX), "ttl"),
            (|b| b.timeout(Duration::ZERO), "timeout"),
            (|b| b.connect_timeout(Duration::MAX), "timeout"),
            (|b| b.client_name("a b"), "client_name"),
            (|b| b.keep_last(0), "keep_last"),
            (
                |b| b.durability(Durability { replicas: 0, timeout: Duration::from_secs(1), aof: false }),
                "replica",
            ),
            (|b| b.durability(Durability { replicas: 1, timeout: Duration::ZERO, aof: true }), "durability"),
            (
                |b| b.durability(Durability { replicas: 1, timeout: Duration::from_secs(30), aof: true }),
                "shorter than timeout",
            ),
            (|b| b.tls_root_certificates("/nowhere"), "without TLS"),
            (|b| b.tls_client_certificate("/nowhere", "/nowhere"), "without TLS"),
        ];
        for (set, part) in wrong {
            let error = checked("redis://u:SECRET@h", set).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            assert!(error.message().contains(part) && !format!("{error:?}").contains("SECRET"), "{error:?}");
        }
        for (url, part) in [
            ("rediss://h?ssl_ca_certs=/nowhere", "cannot be read"),
            ("rediss://h?ssl_certfile=/nowhere", "need each other"),
            ("redis://h?ssl_ca_certs=/nowhere", "without TLS"),
            ("redis://h?prefix=", "key_prefix"),
            ("redis://h?prefix=%7B", "key_prefix"),
            ("redis://h?ttl=0", "ttl"),
            ("redis://h?ttl=SECRET", "ttl"),
            ("redis://h?ttl=18446744073709551615", "ttl"),
            ("redis://h?scripts=SECRET", "scripts"),
        ] {
            let error = checked(url, |b| b).unwrap_err();
            assert!(error.kind() == ErrorKind::InvalidConfig && error.message().contains(part), "{error}");
            assert!(!format!("{error:?}").contains("SECRET"), "{error:?}");
        }
    }

    #[test]
    fn unset_options_have_defaults() {
        let (connections, options) = checked("redis://u:SECRET@h", |b| b).unwrap();
        assert!(!connections.is_cluster());
        assert_eq!((options.key_prefix.as_str(), options.max_inline_bytes), ("ckpt", 64 * 1024));
        assert!(options.scripts && options.ttl.is_none() && options.compression.is_none());
        assert_eq!(options.keep_last, None);
        let (cluster, options) = checked("redis+cluster://h", |b| b.max_inline_bytes(usize::MAX)).unwrap();
        assert!(cluster.is_cluster());
        assert_eq!(options.max_inline_bytes, 256 * 1024);
    }

    #[test]
    fn setters_take_precedence_over_the_url() {
        let url = "redis://h?prefix=a%20b&ttl=60&scripts=false";
        let of = |set: Setter| {
            let options = checked(url, set).unwrap().1;
            (options.key_prefix, options.ttl, options.scripts)
        };
        assert_eq!(of(|b| b), ("a b".into(), Some(Duration::from_secs(60)), false));
        let set: Setter = |b| b.key_prefix("c").ttl(Duration::from_secs(1)).scripts(true);
        assert_eq!(of(set), ("c".into(), Some(Duration::from_secs(1)), true));
    }

    #[test]
    fn passwords_are_not_shown() {
        let builder = RedisSaverBuilder::new("redis+sentinel://u:SECRET@h/s?sentinel_password=SECRET");
        let shown = format!("{builder:?} {:?}", builder.clone().checked().unwrap());
        assert!(!shown.contains("SECRET"), "{shown}");
    }

    #[cfg(feature = "zstd")]
    #[test]
    fn levels_of_compression_are_those_of_zstd() {
        assert_eq!(checked("redis://", |b| b.compression(3)).unwrap().1.compression, Some(3));
        for set in [(|b| b.compression(0)) as Setter, |b| b.compression(23)] {
            assert!(checked("redis://", set).unwrap_err().message().contains("1 to 22"));
        }
    }
}
