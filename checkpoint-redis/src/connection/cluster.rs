//! The nodes of a cluster and which slots they have.
//!
//! The driver has a cluster connection of its own. It does not follow redirections inside of MULTI, gives no access to
//! the connection of a node (which WATCH and WAIT need), and retries by rules that cannot be joined with ours, so we keep
//! the slot map here; it is a page of code.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use checkpoint_core::{Error, ErrorKind, Result};
use futures_util::stream::{StreamExt, iter};
use redis::{Cmd, ServerError, Value};
use tokio::time::{Instant, timeout_at};

use super::request::Request;
use super::server::{Endpoint, Server, Settings, too_late};
use crate::error::{convert_server, not_understood};
use crate::target::Address;

const SLOTS: u16 = 16384;

/// How many nodes are asked for the slots at the same time.
const ASKED_AT_ONCE: usize = 3;

#[derive(Debug)]
pub(super) struct Cluster {
    settings: Arc<Settings>,
    /// The nodes of the URL.
    seeds: Vec<Address>,
    // Held for moments only.
    map: Mutex<Map>,
    /// Held while the map is being asked for: one call asks, the others wait.
    refreshing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Map {
    nodes: HashMap<Address, Arc<Server>>,
    /// The primary of each slot.
    slots: Vec<Option<Arc<Server>>>,
    /// Counts the attempts to refresh it.
    attempts: u64,
    /// Why the last one failed.
    failed: Option<Arc<Error>>,
    is_stale: bool,
}

/// Where a server sends a request instead.
pub(super) enum Redirect {
    /// For good.
    Moved(u16, Address),
    /// For this request, after ASKING.
    Ask(Address),
}

impl Redirect {
    /// Reads `MOVED 3999 10.0.0.1:6381`; without a host it is that of the server that answered.
    pub(super) fn of(error: &ServerError, from: Option<&Address>) -> Option<Self> {
        let mut parts = error.details()?.split(' ');
        let slot = parts.next()?.parse().ok().filter(|slot| *slot < SLOTS)?;
        let (host, port) = parts.next()?.rsplit_once(':')?;
        let port = port.parse().ok()?;
        let address = match (host, from) {
            ("" | "?", Some(Address::Tcp(host, _))) => Address::Tcp(host.clone(), port),
            ("" | "?", _) => return None,
            _ => Address::Tcp(host.to_owned(), port),
        };
        match error.code() {
            "MOVED" => Some(Self::Moved(slot, address)),
            "ASK" => Some(Self::Ask(address)),
            _ => None,
        }
    }
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Address>, settings: Arc<Settings>) -> Self {
        Self { settings, seeds, map: Mutex::default(), refreshing: tokio::sync::Mutex::default() }
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The primary of a slot.
    pub(super) async fn primary(&self, slot: u16, deadline: Instant) -> Result<Arc<Server>> {
        loop {
            let seen = {
                let map = self.map();
                if let Some(Some(server)) = map.slots.get(usize::from(slot)).filter(|_| !map.is_stale) {
                    return Ok(Arc::clone(server));
                }
                if !map.slots.is_empty() && !map.is_stale {
                    drop(map);
                    self.refresh_later();
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        "no node of the cluster serves the thread's slot; try again",
                    )
                    .retryable(true)
                    .with("slot", slot));
                }
                map.attempts
            };
            let _guard = timeout_at(deadline, self.refreshing.lock()).await.map_err(|_| too_late())?;
            let attempted = {
                let map = self.map();
                (map.attempts != seen).then(|| map.failed.clone())
            };
            match attempted {
                Some(None) => {}
                // Another call has just tried, for all that waited.
                Some(Some(error)) => return Err(Error::share(&error)),
                None => {
                    let result = Box::pin(self.refresh(deadline)).await.map_err(Arc::new);
                    let mut map = self.map();
                    map.attempts += 1;
                    map.failed = result.err();
                    if let Some(error) = &map.failed {
                        return Err(Error::share(error));
                    }
                }
            }
        }
    }

    /// All primaries.
    pub(super) async fn primaries(&self, deadline: Instant) -> Result<Vec<Arc<Server>>> {
        self.primary(0, deadline).await?;
        let mut found: Vec<Arc<Server>> = Vec::new();
        for server in self.map().slots.iter().flatten() {
            if !found.iter().any(|known| Arc::ptr_eq(known, server)) {
                found.push(Arc::clone(server));
            }
        }
        Ok(found)
    }

    /// The next call asks for the slots again.
    pub(super) fn refresh_later(&self) {
        self.map().is_stale = true;
    }

    /// Remembers that a slot has moved; the others may have too.
    pub(super) fn moved(&self, slot: u16, address: Address) -> Arc<Server> {
        let mut map = self.map();
        // A node that nobody knew: the cluster has another shape.
        map.is_stale |= !map.nodes.contains_key(&address);
        let server = map.node(address, &self.settings);
        if let Some(primary) = map.slots.get_mut(usize::from(slot)) {
            *primary = Some(Arc::clone(&server));
        }
        server
    }

    pub(super) fn node(&self, address: Address) -> Arc<Server> {
        self.map().node(address, &self.settings)
    }

    pub(super) fn disconnect(&self) {
        let nodes: Vec<_> = self.map().nodes.values().cloned().collect();
        for node in nodes {
            node.disconnect();
        }
    }

    /// Asks a few nodes at once, for some may be down, and takes the first answer.
    async fn refresh(&self, deadline: Instant) -> Result<()> {
        let known: Vec<Address> = {
            let map = self.map();
            let seeds = self.seeds.iter().filter(|seed| !map.nodes.contains_key(*seed));
            map.nodes.keys().chain(seeds).cloned().collect()
        };
        let mut asked = Vec::with_capacity(known.len());
        for address in known {
            asked.push(self.ask(address, deadline));
        }
        let mut answers = iter(asked).buffer_unordered(ASKED_AT_ONCE);
        let mut failed: Option<Error> = None;
        while let Some(answer) = answers.next().await {
            match answer {
                // A node that does not belong to the cluster yet, or no longer.
                Ok(ranges) if ranges.is_empty() => {}
                Ok(ranges) => {
                    drop(answers);
                    self.map().replace(ranges, &self.settings);
                    return Ok(());
                }
                // A node that refuses says more than one that is down.
                Err(error) if failed.as_ref().is_none_or(Error::is_retryable) => {
                    failed = Some(error);
                }
                Err(_) => {}
            }
        }
        Err(failed.unwrap_or_else(|| {
            Error::new(
                ErrorKind::Unavailable,
                "the cluster has no slots yet; create it with redis-cli --cluster create",
            )
            .retryable(true)
        }))
    }

    async fn ask(&self, address: Address, deadline: Instant) -> Result<Vec<(u16, u16, Address)>> {
        let mut question = Cmd::new();
        question.arg("CLUSTER").arg("SLOTS");
        let node = self.node(address.clone());
        let replies = node.send(&Request::Command(&question), false, false, deadline).await?;
        match replies.and_then(|mut replies| replies.pop()) {
            Some(Value::ServerError(error)) => Err(convert_server(&error).with("server", &address)),
            Some(reply) => ranges(&reply, &address),
            None => Err(not_understood()),
        }
    }
}

impl Map {
    fn node(&mut self, address: Address, settings: &Arc<Settings>) -> Arc<Server> {
        let nodes = &mut self.nodes;
        Arc::clone(nodes.entry(address).or_insert_with_key(|address| {
            Server::new(Endpoint::Fixed(address.clone()), Arc::clone(settings))
        }))
    }

    fn replace(&mut self, ranges: Vec<(u16, u16, Address)>, settings: &Arc<Settings>) {
        let mut slots = vec![None; usize::from(SLOTS)];
        let mut used = Vec::new();
        for (first, last, address) in ranges {
            let server = self.node(address.clone(), settings);
            used.push(address);
            if let Some(slots) = slots.get_mut(usize::from(first)..=usize::from(last)) {
                slots.fill(Some(server));
            }
        }
        self.slots = slots;
        // Replicas and nodes that have left; calls on them end in peace.
        self.nodes.retain(|address, _| used.contains(address));
        self.is_stale = false;
    }
}

/// The ranges in a reply of `CLUSTER SLOTS`: first and last slot, and the primary.
fn ranges(reply: &Value, from: &Address) -> Result<Vec<(u16, u16, Address)>> {
    let Value::Array(ranges) = reply else { return Err(not_understood()) };
    let range = |range: &Value| -> Option<(u16, u16, Address)> {
        let Value::Array(parts) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = parts.as_slice() else {
            return None;
        };
        let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
        let host = match (host, from) {
            (Value::BulkString(host), _) if !host.is_empty() && host != b"?" => {
                String::from_utf8(host.clone()).ok()?
            }
            // A node that does not know its own name.
            (_, Address::Tcp(host, _)) => host.clone(),
            (_, Address::Unix(_)) => return None,
        };
        let slot = |number: i64| u16::try_from(number).ok().filter(|slot| *slot < SLOTS);
        Some((slot(*first)?, slot(*last)?, Address::Tcp(host, u16::try_from(*port).ok()?)))
    };
    ranges.iter().map(|one| range(one).ok_or_else(not_understood)).collect()
}

/// The slot of a key: of what is between the first `{` and the next `}`, if that is not empty.
pub(super) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        let close = rest.iter().position(|byte| *byte == b'}').filter(|close| *close > 0)?;
        rest.get(..close)
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16 of XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    const TABLE: [u16; 256] = table();
    bytes.iter().fold(0, |crc, byte| {
        let [high, low] = crc.to_be_bytes();
        u16::from_be_bytes([low, 0]) ^ TABLE[usize::from(high ^ byte)]
    })
}

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut at: u16 = 0;
    while at < 256 {
        let mut crc = at << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[at as usize] = crc;
        at += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use redis::parse_redis_value;

    use super::*;

    #[test]
    fn keys_have_slots() {
        // From the specification of Redis Cluster, and from CLUSTER KEYSLOT.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, expected) in [("", 0), ("foo", 12182), ("{t0}:h", 13006), ("{t5}", 8811)] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
        assert_eq!(slot(b"ckpt:{a}:h"), slot(b"ckpt:{a}:i"));
        assert_eq!(slot(b"{a}x{b}"), slot(b"a"));
        // An empty tag is none: the whole key counts.
        assert_eq!(slot(b"{}a{b}"), crc16(b"{}a{b}") % SLOTS);
        assert_eq!(slot(b"{a"), crc16(b"{a") % SLOTS);
    }

    fn error(line: &str) -> ServerError {
        match parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap() {
            Value::ServerError(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn redirections_name_a_node() {
        let from = Address::Tcp("old".into(), 1);
        let of = |line: &str| match Redirect::of(&error(line), Some(&from)) {
            Some(Redirect::Moved(slot, address)) => Some((Some(slot), address.to_string())),
            Some(Redirect::Ask(address)) => Some((None, address.to_string())),
            None => None,
        };
        assert_eq!(of("MOVED 3999 10.0.0.1:6381"), Some((Some(3999), "10.0.0.1:6381".into())));
        assert_eq!(of("MOVED 3999 :6381"), Some((Some(3999), "old:6381".into())));
        assert_eq!(of("ASK 3999 ::1:6381"), Some((None, "[::1]:6381".into())));
        for line in ["MOVED 16384 a:1", "MOVED", "MOVED x a:1", "MOVED 1 a", "ERR 1 a:1", "MOVED 1 a:99999"] {
            assert_eq!(of(line), None, "{line}");
        }
    }

    #[test]
    fn ranges_are_read() {
        let reply =
            b"*2\r\n*4\r\n:0\r\n:5460\r\n*3\r\n$1\r\na\r\n:7000\r\n$2\r\nid\r\n*2\r\n$1\r\nb\r\n:7001\r\n\
                      *3\r\n:5461\r\n:16383\r\n*2\r\n$-1\r\n:7002\r\n";
        let from = Address::Tcp("seed".into(), 1);
        let found = ranges(&parse_redis_value(reply).unwrap(), &from).unwrap();
        let node = |host: &str, port| Address::Tcp(host.into(), port);
        assert_eq!(found, [(0, 5460, node("a", 7000)), (5461, 16383, node("seed", 7002))]);
        for wrong in [&b":1\r\n"[..], b"*1\r\n:1\r\n", b"*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\na\r\n:1\r\n"]
        {
            ranges(&parse_redis_value(wrong).unwrap(), &from).unwrap_err();
        }
    }
}
