//! Redis for tests: key prefixes of their own, and what their keys hold.

#![allow(dead_code, unused_imports, reason = "each binary uses its part of this")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use checkpoint_conformance::Missing;
use checkpoint_core::BaseCheckpointSaver as _;
use checkpoint_redis::{RedisSaver, RedisSaverBuilder};
use libtest_mimic::Trial;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisError, RedisResult};

use super::server;
pub(crate) use super::trials::{Ended, in_runtime, tests, unique_name};

#[path = "redis_wire.rs"]
pub(crate) mod wire;

/// The servers that the tests want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Redis8,
    Valkey8,
    /// Three primaries and three replicas.
    Cluster,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Redis8, Self::Valkey8, Self::Cluster];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Redis8 => "redis 8",
            Self::Valkey8 => "valkey 8",
            Self::Cluster => "redis cluster",
        }
    }

    fn entry(self) -> &'static checkpoint_servers::Server {
        match self {
            Self::Redis8 => &checkpoint_servers::REDIS,
            Self::Valkey8 => &checkpoint_servers::VALKEY,
            Self::Cluster => &checkpoint_servers::REDIS_CLUSTER,
        }
    }
}

/// A server that is there.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    kind: Kind,
    url: String,
}

impl Server {
    /// Finds a server, or says why there is none.
    pub(crate) fn find(kind: Kind) -> Result<Self, Missing> {
        let found = server::url(kind.entry()).map_err(|mut missing| {
            kind.name().clone_into(&mut missing.name);
            missing
        });
        Ok(Self { kind, url: found? })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The address without the scheme.
    pub(crate) fn address(&self) -> &str {
        self.url.split_once("://").unwrap().1
    }
}

/// One test that works with Redis 8.
pub(crate) type Test = super::trials::Test<Server>;

/// The tests of a module, named after it. Where Redis is missing they are shown as ignored, or fail where it is required.
pub(crate) fn trials(module: &str, tests: &[Test]) -> Vec<Trial> {
    let name = |name: &str| format!("{module}::{name}");
    super::trials::trials(tests, name, Kind::Redis8.name(), || Server::find(Kind::Redis8))
}

/// How long a test waits for a reply past the saver.
const ANSWER: Duration = Duration::from_secs(30);

/// Connections past the saver.
#[derive(Clone)]
pub(crate) struct Raw {
    /// To each node that can be reached.
    nodes: Vec<MultiplexedConnection>,
    is_cluster: bool,
}

/// Whether another node of the cluster may do it, or the same one later.
fn elsewhere(error: &RedisError) -> bool {
    matches!(error.code(), Some("MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN"))
        || error.is_unrecoverable_error()
}

/// The addresses of the nodes in a URL.
pub(crate) fn nodes(url: &str) -> Vec<String> {
    let (_, rest) = url.split_once("://").unwrap();
    let (authority, _) = rest.split_once('/').unwrap_or((rest, ""));
    authority.split(',').map(str::to_owned).collect()
}

/// Connects to one node.
pub(crate) async fn node(address: &str) -> RedisResult<MultiplexedConnection> {
    let config =
        AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER)).set_connection_timeout(Some(ANSWER));
    let client = Client::open(format!("redis://{address}"))?;
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// A command.
pub(crate) fn command(parts: &[&[u8]]) -> Cmd {
    let mut command = redis::cmd(std::str::from_utf8(parts[0]).unwrap());
    command.arg(&parts[1..]);
    command
}

/// A command whose parts are texts.
pub(crate) fn words(words: &str) -> Cmd {
    let parts: Vec<_> = words.split(' ').map(str::as_bytes).collect();
    command(&parts)
}

impl Raw {
    pub(crate) async fn connect(url: &str) -> RedisResult<Self> {
        if let Some(rest) = url.strip_prefix("redis+sentinel://") {
            let service = rest.split('/').nth(1).unwrap();
            let sentinel = node(&nodes(url)[0]).await?;
            let mut ask = redis::cmd("SENTINEL");
            ask.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
            let (host, port): (String, String) = ask.query_async(&mut sentinel.clone()).await?;
            return Ok(Self { nodes: vec![node(&format!("{host}:{port}")).await?], is_cluster: false });
        }
        if !url.starts_with("redis+cluster:") {
            let path = url.split_once("://").unwrap().1;
            return Ok(Self { nodes: vec![node(path).await?], is_cluster: false });
        }
        let mut reached = Vec::new();
        for address in nodes(url) {
            reached.extend(node(&address).await.ok());
        }
        Ok(Self { nodes: reached, is_cluster: true })
    }

    /// Runs a command on the node that has its key.
    pub(crate) async fn tried<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let mut tries = 0;
        loop {
            for node in &self.nodes {
                match command.query_async(&mut node.clone()).await {
                    Err(error) if self.is_cluster && elsewhere(&error) && tries < 100 => {}
                    done => return done,
                }
            }
            tries += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn call<T: FromRedisValue>(&self, parts: &[&[u8]]) -> T {
        self.tried(&command(parts)).await.unwrap()
    }

    /// Runs a command whose parts are texts.
    pub(crate) async fn words<T: FromRedisValue>(&self, text: &str) -> T {
        self.tried(&words(text)).await.unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// The keys with this prefix on all nodes, in their order.
    pub(crate) async fn keys(&self, prefix: &str) -> RedisResult<Vec<Vec<u8>>> {
        let mut keys = BTreeSet::new();
        for node in &self.nodes {
            // A replica has what its primary has, and would only redirect.
            let role: Vec<redis::Value> = redis::cmd("ROLE").query_async(&mut node.clone()).await?;
            if role.first() != Some(&redis::Value::BulkString(b"master".to_vec())) {
                continue;
            }
            let mut cursor = 0_u64;
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(format!("{prefix}:*")).arg("COUNT").arg(5000);
                let (next, found): (u64, Vec<Vec<u8>>) = scan.query_async(&mut node.clone()).await?;
                keys.extend(found);
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(keys.into_iter().collect())
    }

    /// What a key holds: its type, and its parts in their order.
    pub(crate) async fn contents(&self, key: &[u8]) -> RedisResult<(String, Vec<Vec<u8>>)> {
        let kind: String = self.tried(&command(&[b"TYPE", key])).await?;
        let read: Cmd = match kind.as_str() {
            "hash" => command(&[b"HGETALL", key]),
            "zset" => command(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"]),
            "set" => command(&[b"SMEMBERS", key]),
            "list" => command(&[b"LRANGE", key, b"0", b"-1"]),
            // It may have expired in the meantime.
            "none" => return Ok((kind, Vec::new())),
            _ => {
                let value: Option<Vec<u8>> = self.tried(&command(&[b"GET", key])).await?;
                return Ok((kind, value.into_iter().collect()));
            }
        };
        let mut parts: Vec<Vec<u8>> = self.tried(&read).await?;
        if kind == "hash" {
            // Their order is the server's.
            let mut pairs: Vec<_> = parts.chunks(2).map(<[_]>::to_vec).collect();
            pairs.sort();
            parts = pairs.concat();
        }
        Ok((kind, parts))
    }

    /// The fields of a hash.
    pub(crate) async fn fields(&self, key: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        self.tried(&command(&[b"HGETALL", key])).await.unwrap()
    }

    pub(crate) async fn exists(&self, key: &[u8]) -> bool {
        self.call::<u64>(&[b"EXISTS", key]).await == 1
    }

    /// The memory that a key takes.
    pub(crate) async fn memory(&self, key: &[u8]) -> u64 {
        self.call(&[b"MEMORY", b"USAGE", key, b"SAMPLES", b"0"]).await
    }

    /// Connections to each node.
    pub(crate) fn each(&self) -> &[MultiplexedConnection] {
        &self.nodes
    }
}

/// A key prefix of one test's own. Its keys are deleted with this handle.
#[derive(Debug)]
pub(crate) struct Prefix {
    url: String,
    name: String,
}

/// What the keys of a thread end with: the hash with its data, and the sorted set with its order.
pub(crate) const HASH: &str = ":h";
pub(crate) const INDEX: &str = ":i";

impl Prefix {
    pub(crate) fn new(url: &str) -> Self {
        Self { url: url.to_owned(), name: unique_name() }
    }

    /// One that savers can use.
    pub(crate) async fn set_up(url: &str) -> Self {
        let prefix = Self::new(url);
        prefix.builder().build().unwrap().setup().await.unwrap();
        prefix
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn builder(&self) -> RedisSaverBuilder {
        self.builder_at(&self.url)
    }

    /// One that connects by way of another address.
    pub(crate) fn builder_at(&self, url: &str) -> RedisSaverBuilder {
        RedisSaver::builder(url).key_prefix(&self.name)
    }

    pub(crate) async fn raw(&self) -> Raw {
        Raw::connect(&self.url).await.unwrap()
    }

    /// A key of a thread whose id has no braces and no percent sign.
    pub(crate) fn key(&self, thread_id: &str, end: &str) -> Vec<u8> {
        let tag = if thread_id.is_empty() { "%" } else { thread_id };
        format!("{}:{{{tag}}}{end}", self.name).into_bytes()
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        let (url, name) = (self.url.clone(), self.name.clone());
        // Tests drop inside of a runtime, where another one cannot be started.
        let dropping = std::thread::spawn(move || in_runtime(delete(&url, &name)));
        if !matches!(dropping.join(), Ok(Ok(()))) {
            eprintln!("not cleaned up: {}", self.name);
        }
    }
}

/// Deletes the keys with a prefix.
async fn delete(url: &str, prefix: &str) -> RedisResult<()> {
    let raw = Raw::connect(url).await?;
    for key in raw.keys(prefix).await? {
        raw.tried::<u64>(&command(&[b"UNLINK", &key])).await?;
    }
    Ok(())
}

/// Everything under a prefix: keys, and what they hold.
pub(crate) async fn dump(raw: &Raw, prefix: &str) -> RedisResult<Vec<u8>> {
    let mut all = Vec::new();
    for key in raw.keys(prefix).await? {
        let (_, parts) = raw.contents(&key).await?;
        all.extend(key);
        for part in parts {
            all.push(b'\n');
            all.extend(part);
        }
        all.push(b'\n');
    }
    Ok(all)
}
