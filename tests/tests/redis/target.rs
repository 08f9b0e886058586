//! The suite's targets: the servers, each with several configurations of the saver.

use std::sync::Arc;
use std::time::Duration;

use checkpoint_conformance::wire::{Cost, Counted};
use checkpoint_conformance::{Call, CountedSaver, Facility, Missing, OpenOptions, Saver, Target};
use checkpoint_core::{BaseCheckpointSaver, Error, ErrorKind, Result, async_trait};
use checkpoint_redis::RedisSaverBuilder;
use redis::RedisError;

use crate::shared::redis::wire::proxy;
use crate::shared::redis::{HASH, INDEX, Kind, Prefix, Raw, Server, command, dump};

/// How the saver is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    Default,
    /// Without scripts.
    Plain,
    /// Threads expire, later with each read.
    Ttl,
    Resp3,
    /// Every read takes two steps.
    Stepwise,
    /// Every read takes one step.
    AtOnce,
}

/// What runs: every configuration on Redis, and two on the others.
const TARGETS: [(Kind, Variant, &str); 10] = [
    (Kind::Redis8, Variant::Default, "redis 8"),
    (Kind::Redis8, Variant::Plain, "redis 8 without scripts"),
    (Kind::Redis8, Variant::Ttl, "redis 8 with ttl"),
    (Kind::Redis8, Variant::Resp3, "redis 8 with resp3"),
    (Kind::Redis8, Variant::Stepwise, "redis 8 with two-step reads"),
    (Kind::Redis8, Variant::AtOnce, "redis 8 with one-step reads"),
    (Kind::Valkey8, Variant::Default, "valkey 8"),
    (Kind::Valkey8, Variant::Plain, "valkey 8 without scripts"),
    (Kind::Cluster, Variant::Default, "redis cluster"),
    (Kind::Cluster, Variant::Plain, "redis cluster without scripts"),
];

impl Variant {
    pub(crate) fn apply(self, builder: RedisSaverBuilder) -> RedisSaverBuilder {
        match self {
            Self::Default => builder,
            Self::Plain => builder.scripts(false),
            Self::Ttl => builder.ttl(Duration::from_secs(3600)).refresh_on_read(true),
            Self::Resp3 => builder.resp3(true),
            Self::Stepwise => builder.max_inline_bytes(0),
            Self::AtOnce => builder.max_inline_bytes(1 << 40),
        }
    }
}

/// Every target.
pub(crate) fn targets() -> Vec<std::result::Result<Arc<dyn Target>, Missing>> {
    let target = |(kind, variant, name): (Kind, Variant, &'static str)| {
        let server = Server::find(kind).map_err(|mut missing| {
            name.clone_into(&mut missing.name);
            missing
        })?;
        Ok(Arc::new(Redis::new(server, variant, name)) as Arc<dyn Target>)
    };
    TARGETS.into_iter().map(target).collect()
}

/// A key prefix of its own.
#[derive(Debug)]
struct Redis {
    name: &'static str,
    server: Server,
    variant: Variant,
    prefix: Prefix,
}

fn broken(source: RedisError) -> Error {
    Error::new(ErrorKind::Backend, "the test cannot reach its server").with_source(source)
}

impl Redis {
    fn new(server: Server, variant: Variant, name: &'static str) -> Self {
        Self { name, variant, prefix: Prefix::new(server.url()), server }
    }

    fn builder(&self, url: &str, options: OpenOptions) -> RedisSaverBuilder {
        let builder = self.prefix.builder_at(url).opaque_values(options.opaque_values);
        let builder = match options.cipher {
            Some(cipher) => builder.cipher(cipher),
            None => builder,
        };
        let builder = match options.keep_last {
            Some(count) => builder.keep_last(count),
            None => builder,
        };
        self.variant.apply(builder)
    }

    async fn raw(&self) -> Result<Raw> {
        Raw::connect(self.server.url()).await.map_err(broken)
    }
}

/// What the page of `checkpoint-redis` says under "What a call costs".
fn cost(call: Call) -> Cost {
    let round_trips = match call {
        Call::Put
        | Call::PutUnchanged
        | Call::PutOntoParent
        | Call::PutConditional
        | Call::PutWrites
        | Call::PutWritesConditional
        | Call::AcquireLease
        | Call::Lease
        | Call::GetTuple
        | Call::GetNothing
        | Call::Ping
        | Call::CheckSchema => return Cost::new(1, 1),
        Call::PutOrphaned => return Cost::new(2, 2),
        Call::DeleteThread | Call::PruneDelete { threads: 1 } => return Cost::new(1, 4),
        Call::PruneDelete { threads } => threads,
        Call::Setup => return Cost::new(2, 3),
        // These checkpoints have neither writes nor values that are not inline: the third trip of each page is missing.
        Call::List { checkpoints } => {
            let (mut left, mut page, mut trips) = (checkpoints, 16, 0);
            loop {
                let rows = left.min(page);
                trips += if rows > 0 { 2 } else { 1 };
                if rows < page {
                    break trips;
                }
                left -= rows;
                page = (page * 2).min(64);
            }
        }
        Call::ListThreads { threads, with_state } => threads.div_ceil(128) * if with_state { 4 } else { 2 },
        Call::ListThreadIds { threads } => 2 * threads.div_ceil(128),
        // The same; the first page has the target, too.
        Call::DeltaChannelHistory { ancestors } => 2 * (ancestors + 1).div_ceil(64),
        Call::CopyThread { .. } => 11,
        Call::PruneKeepLatest { threads, namespaces } => threads * (4 + namespaces),
        Call::DeleteForRuns { threads } => 3 + 4 * threads,
        Call::Rekey { .. } => 19,
        Call::PutPruning | Call::RekeyNothing { dry_run: true } => 5,
        Call::RekeyNothing { dry_run: false } => 10,
    };
    Cost::new(round_trips, Cost::ANY)
}

#[async_trait]
impl Target for Redis {
    fn name(&self) -> &str {
        self.name
    }

    async fn open(&self, options: OpenOptions) -> Result<Saver> {
        Ok(Arc::new(self.builder(self.server.url(), options).build()?))
    }

    fn offers(&self, facility: Facility) -> bool {
        match facility {
            Facility::WholeCheckpoints => false,
            // The nodes of a cluster announce their own addresses, past the proxy.
            Facility::RoundTrips => self.server.kind() != Kind::Cluster && self.variant == Variant::Default,
            // Every case is repeated with each cipher, which is enough on one server with and without scripts, and in a
            // cluster.
            Facility::Cipher => match self.server.kind() {
                Kind::Redis8 => matches!(self.variant, Variant::Default | Variant::Plain),
                Kind::Valkey8 => false,
                Kind::Cluster => self.variant == Variant::Default,
            },
            _ => true,
        }
    }

    async fn fresh(&self) -> Result<Arc<dyn Target>> {
        Ok(Arc::new(Self::new(self.server.clone(), self.variant, self.name)))
    }

    async fn raw(&self) -> Result<Vec<u8>> {
        dump(&self.raw().await?, self.prefix.name()).await.map_err(broken)
    }

    async fn move_rows(&self, from_thread_id: &str, to_thread_id: &str) -> Result<()> {
        let raw = self.raw().await?;
        // Not by RENAME: in a cluster the keys may be on different nodes.
        for end in [HASH, INDEX] {
            let (from, to) = (self.prefix.key(from_thread_id, end), self.prefix.key(to_thread_id, end));
            let dumped: Vec<u8> = raw.tried(&command(&[b"DUMP", &from])).await.map_err(broken)?;
            let restore = command(&[b"RESTORE", &to, b"0", &dumped, b"REPLACE"]);
            raw.tried::<()>(&restore).await.map_err(broken)?;
            raw.tried::<()>(&command(&[b"UNLINK", &from])).await.map_err(broken)?;
        }
        Ok(())
    }

    async fn corrupt(&self, thread_id: &str) -> Result<()> {
        let raw = self.raw().await?;
        let hash = self.prefix.key(thread_id, HASH);
        for (field, value) in raw.fields(&hash).await {
            if matches!(field.first(), Some(b'c' | b'm')) {
                let half = &value[..value.len() / 2];
                raw.tried::<u64>(&command(&[b"HSET", &hash, &field, half])).await.map_err(broken)?;
            }
        }
        Ok(())
    }

    async fn counted(&self, options: OpenOptions) -> Result<CountedSaver> {
        let (proxy, url) = proxy(self.server.url()).await?;
        let saver = self.builder(&url, options).build()?;
        saver.setup().await?;
        Ok(Counted { handle: Arc::new(saver), proxy, cost: Box::new(cost) })
    }
}
