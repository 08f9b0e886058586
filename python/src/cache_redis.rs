//! The Redis cache.
//!
//! A value is a key that the server lets expire: `PREFIX:cache:{NAMESPACE}:value:KEY`. Beside the values of a namespace, in
//! the same slot, `PREFIX:cache:{NAMESPACE}:index` is a sorted set of their keys by the time at which they expire, for
//! `clear`. `PREFIX:cache:namespaces` is the set of the namespaces.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use checkpoint_core::{Error, Result, ResultExt, TypedBytes, async_trait};
use checkpoint_redis::RedisClient;
use checkpoint_redis::redis::{Cmd, Pipeline, Value, cmd};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cache::{Cache, Entry, Key, NativeCache, typed};
use crate::error::OrRaise;
use crate::redis::builder;

/// The backend's name in errors.
const BACKEND: &str = "redis";

/// The score of a value that does not expire.
const NEVER: &str = "+inf";

/// For how long the index keeps a value that has expired, in milliseconds: the clocks of clients and servers differ.
const SLACK: u64 = 3_600_000;

/// The longest TTL in milliseconds, 100 years: the server adds it to the time of day.
const LONGEST: f64 = 100.0 * 365.0 * 24.0 * 3_600_000.0;

/// How many values a transaction of `clear` deletes.
const CLEARED: usize = 1000;

struct RedisCache(RedisClient);

/// The name of a namespace, which is the hash tag of its keys. JSON is unambiguous; braces would end the tag.
fn to_text(namespace: &[String]) -> Result<String> {
    let text = serde_json::to_string(namespace).map_err(|error| {
        Error::invalid_argument("a namespace cannot be written as JSON").with_source(error)
    })?;
    Ok(text.replace('%', "%25").replace('{', "%7B").replace('}', "%7D"))
}

/// The time in milliseconds.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// A TTL in milliseconds, or `None` for one that is over.
fn millis(seconds: f64) -> Option<u64> {
    let millis = (seconds * 1000.0).ceil().min(LONGEST);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is between 1 and the longest TTL"
    )]
    (millis >= 1.0).then_some(millis as u64)
}

/// What is stored of a value: its tag, NUL, its bytes.
fn stored(value: &TypedBytes) -> Result<Vec<u8>> {
    if value.tag.contains('\0') {
        return Err(Error::invalid_argument("the serializer's name of a type has U+0000"));
    }
    Ok([value.tag.as_bytes(), b"\0", &value.data].concat())
}

fn not_ours() -> Error {
    Error::codec("the cache has a value that it did not store; choose another prefix")
}

fn from_stored(reply: &Value) -> Result<Option<TypedBytes>> {
    let stored = match reply {
        Value::Nil => return Ok(None),
        Value::BulkString(stored) => stored,
        _ => return Err(not_ours()),
    };
    let end = stored.iter().position(|byte| *byte == 0).ok_or_else(not_ours)?;
    let tag = std::str::from_utf8(&stored[..end]).map_err(|_| not_ours())?;
    Ok(Some(typed(tag, &stored[end + 1..])))
}

/// The texts of a reply.
fn texts(reply: Option<Value>) -> Result<Vec<Vec<u8>>> {
    let Some(Value::Array(items) | Value::Set(items)) = reply else { return Err(not_ours()) };
    let text = |item| if let Value::BulkString(text) = item { Ok(text) } else { Err(not_ours()) };
    items.into_iter().map(text).collect()
}

impl RedisCache {
    fn namespaces(&self) -> Vec<u8> {
        format!("{}:cache:namespaces", self.0.key_prefix()).into_bytes()
    }

    fn index(&self, namespace: &str) -> Vec<u8> {
        format!("{}:cache:{{{namespace}}}:index", self.0.key_prefix()).into_bytes()
    }

    fn value(&self, namespace: &str, key: &[u8]) -> Vec<u8> {
        let mut name = format!("{}:cache:{{{namespace}}}:value:", self.0.key_prefix()).into_bytes();
        name.extend_from_slice(key);
        name
    }

    fn enter<'a>(&self, namespaces: impl Iterator<Item = &'a String>) -> Cmd {
        let mut enter = cmd("SADD");
        enter.arg(self.namespaces());
        namespaces.for_each(|namespace| {
            enter.arg(namespace);
        });
        enter
    }

    /// Adds the commands that store the values of a namespace.
    fn add(&self, commands: &mut Pipeline, namespace: &str, entries: &[&Entry], now: u64) -> Result<()> {
        let index = self.index(namespace);
        for Entry { key, ttl, value } in entries {
            let (name, key) = (self.value(namespace, key.key.as_bytes()), &key.key);
            match ttl.map(millis) {
                Some(None) => {
                    commands.cmd("UNLINK").arg(name);
                    commands.cmd("ZREM").arg(&index).arg(key);
                }
                Some(Some(ttl)) => {
                    commands.cmd("ZADD").arg(&index).arg(now + ttl).arg(key);
                    commands.cmd("SET").arg(name).arg(stored(value)?).arg("PX").arg(ttl);
                }
                None => {
                    commands.cmd("ZADD").arg(&index).arg(NEVER).arg(key);
                    commands.cmd("SET").arg(name).arg(stored(value)?);
                }
            }
        }
        commands.cmd("ZREMRANGEBYSCORE").arg(&index).arg("-inf").arg(now.saturating_sub(SLACK));
        Ok(())
    }

    /// Deletes the values that a namespace has now.
    async fn clear_namespace(&self, namespace: &str) -> Result<()> {
        let index = self.index(namespace);
        loop {
            let mut read = cmd("ZRANGE");
            read.arg(&index).arg(0).arg(CLEARED - 1);
            let keys = texts(self.0.each(vec![read]).await?.pop())?;
            if keys.is_empty() {
                return Ok(());
            }
            let mut commands = Pipeline::new();
            let names: Vec<_> = keys.iter().map(|key| self.value(namespace, key)).collect();
            commands.atomic().cmd("UNLINK").arg(&names);
            commands.cmd("ZREM").arg(&index).arg(&keys);
            self.0.transaction(&index, &commands).await?;
            if keys.len() < CLEARED {
                return Ok(());
            }
        }
    }
}

#[async_trait]
impl Cache for RedisCache {
    async fn setup(&self) -> Result<()> {
        // Keys need no preparation.
        self.0.ping().await.at(BACKEND, "setup")
    }

    async fn get(&self, keys: Vec<Key>) -> Result<Vec<Option<TypedBytes>>> {
        let read = async {
            let command = |key: &Key| {
                let mut get = cmd("GET");
                get.arg(self.value(&to_text(&key.namespace)?, key.key.as_bytes()));
                Ok(get)
            };
            let commands = keys.iter().map(command).collect::<Result<_>>()?;
            self.0.each(commands).await?.iter().map(from_stored).collect::<Result<Vec<_>>>()
        };
        read.await.at(BACKEND, "get")
    }

    async fn set(&self, entries: Vec<Entry>) -> Result<()> {
        let write = async {
            let mut spaces: BTreeMap<String, Vec<&Entry>> = BTreeMap::new();
            for entry in &entries {
                spaces.entry(to_text(&entry.key.namespace)?).or_default().push(entry);
            }
            let Some(first) = spaces.keys().next() else { return Ok(()) };
            let (now, enter, first) = (now(), self.enter(spaces.keys()), self.index(first));
            if !self.0.is_cluster() {
                let mut commands = Pipeline::new();
                commands.atomic().add_command(enter);
                for (namespace, entries) in &spaces {
                    self.add(&mut commands, namespace, entries, now)?;
                }
                return self.0.transaction(&first, &commands).await.map(|_| ());
            }
            // Namespaces are in different slots. A value that `clear` would miss is worse than an entry without values.
            let mut transactions = Vec::with_capacity(spaces.len());
            for (namespace, entries) in &spaces {
                let mut commands = Pipeline::new();
                commands.atomic();
                self.add(&mut commands, namespace, entries, now)?;
                transactions.push((self.index(namespace), commands));
            }
            self.0.each(vec![enter]).await?;
            for (key, commands) in &transactions {
                self.0.transaction(key, commands).await?;
            }
            Ok(())
        };
        write.await.at(BACKEND, "set")
    }

    async fn clear(&self, namespaces: Option<Vec<Vec<String>>>) -> Result<()> {
        let delete = async {
            let names: Vec<String> = if let Some(namespaces) = namespaces {
                namespaces.iter().map(|one| to_text(one)).collect::<Result<_>>()?
            } else {
                let mut read = cmd("SMEMBERS");
                read.arg(self.namespaces());
                let names = texts(self.0.each(vec![read]).await?.pop())?;
                let name = |name| String::from_utf8(name).map_err(|_| not_ours());
                names.into_iter().map(name).collect::<Result<_>>()?
            };
            for namespace in names {
                self.clear_namespace(&namespace).await?;
            }
            Ok(())
        };
        delete.await.at(BACKEND, "clear")
    }

    async fn close(&self) -> Result<()> {
        self.0.close();
        Ok(())
    }
}

/// Creates a cache on the servers of a URL.
#[pyfunction]
#[pyo3(signature = (url, options))]
fn redis_cache(py: Python<'_>, url: &str, options: &Bound<'_, PyDict>) -> PyResult<NativeCache> {
    Ok(NativeCache::new(py, RedisCache(builder(url, options)?.build_client().or_raise(py)?)))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(redis_cache, module)?)
}
