//! The Redis saver on a cluster: where keys are, and what becomes of writers while primaries are killed, replicas take
//! over, and slots move.

use std::collections::BTreeMap;
use std::time::Duration;

use checkpoint_conformance::Missing;
use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig};
use checkpoint_redis::{Durability, RedisSaver};
use redis::aio::MultiplexedConnection;

use super::load::{conversation, is_sound};
use crate::shared::everything::everything_works;
use crate::shared::redis::{HASH, INDEX, Kind, Prefix, Server, Test, node, nodes, tests, words};
use crate::shared::server::Private;
use crate::shared::soak::rounds;
use crate::shared::writers::{Acknowledged, metadata, read_back, start, step};

/// A cluster of one test's own.
struct Cluster {
    server: Private,
}

/// A node, as the cluster sees it.
#[derive(Debug, Clone)]
struct Node {
    id: String,
    port: u16,
    is_primary: bool,
    /// Of a replica.
    primary: String,
    is_up: bool,
    slots: Vec<(u16, u16)>,
}

impl Cluster {
    async fn new() -> Result<Self, Missing> {
        Ok(Self { server: Private::new(&checkpoint_servers::REDIS_CLUSTER).await? })
    }

    fn url(&self) -> String {
        self.server.url()
    }

    fn ports(&self) -> impl Iterator<Item = u16> + use<> {
        let first = self.server.port();
        first..first + 6
    }

    async fn node(&self, port: u16) -> MultiplexedConnection {
        node(&format!("127.0.0.1:{port}")).await.unwrap()
    }

    async fn on(&self, port: u16, text: &str) {
        let done: redis::Value = words(text).query_async(&mut self.node(port).await).await.unwrap();
        assert_eq!(done, redis::Value::Okay, "{text}");
    }

    /// The nodes, as one of those that can be reached sees them.
    async fn nodes(&self) -> Vec<Node> {
        for port in self.ports() {
            let Ok(mut connection) = node(&format!("127.0.0.1:{port}")).await else { continue };
            let text: String = words("CLUSTER NODES").query_async(&mut connection).await.unwrap();
            return text.lines().map(parse).collect();
        }
        panic!("no node can be reached");
    }

    /// The primary that has a slot.
    async fn owner(&self, slot: u16) -> Node {
        let is_in = |node: &Node| node.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot));
        self.nodes().await.into_iter().find(is_in).unwrap()
    }

    /// The slot of a thread.
    async fn slot(&self, prefix: &Prefix, thread_id: &str) -> u16 {
        let key = String::from_utf8(prefix.key(thread_id, HASH)).unwrap();
        let mut connection = self.node(self.server.port()).await;
        words(&format!("CLUSTER KEYSLOT {key}")).query_async(&mut connection).await.unwrap()
    }

    async fn kill(&self, port: u16) {
        self.server.run(&format!("kill -9 $(cat /srv/redis-cluster/{port}/pid)")).await;
    }

    /// Starts a killed node again, and waits until each primary has its replica.
    async fn start(&self, port: u16) {
        self.server.run(&format!("sh /srv/redis-cluster/start {port}")).await;
        self.server.responds().await;
    }
}

fn parse(line: &str) -> Node {
    let fields: Vec<_> = line.split(' ').collect();
    let address = fields[1].split('@').next().unwrap();
    let flags: Vec<_> = fields[2].split(',').collect();
    let slots = fields[8..].iter().filter(|slots| !slots.starts_with('['));
    let range = |slots: &&str| {
        let (first, last) = slots.split_once('-').unwrap_or((*slots, *slots));
        (first.parse().unwrap(), last.parse().unwrap())
    };
    Node {
        id: fields[0].to_owned(),
        port: address.rsplit_once(':').unwrap().1.parse().unwrap(),
        is_primary: flags.contains(&"master"),
        primary: fields[3].to_owned(),
        is_up: !flags.contains(&"fail") && !flags.contains(&"fail?"),
        slots: slots.map(range).collect(),
    }
}

async fn everything_works_and_threads_are_spread(_server: &Server) -> Result<(), Missing> {
    let server = Server::find(Kind::Cluster)?;
    let prefix = Prefix::set_up(server.url()).await;
    for scripts in [true, false] {
        let saver = prefix.builder().scripts(scripts).build().unwrap();
        saver.setup().await.unwrap();
        everything_works(&saver).await;
    }
    // The saver finds the other nodes from any one.
    let mut by_node: BTreeMap<String, usize> = BTreeMap::new();
    for (at, address) in nodes(server.url()).iter().enumerate() {
        let saver = prefix.builder_at(&format!("redis+cluster://{address}")).build().unwrap();
        for number in 0..10 {
            let made = step(number);
            let config = CheckpointConfig::new(format!("thread-{at}-{number}"));
            let stored = saver.put(&config, &made, &metadata(), &made.channel_versions).await.unwrap();
            assert_eq!(saver.get_tuple(&stored).await.unwrap().unwrap().checkpoint, made);
        }
    }
    for address in nodes(server.url()) {
        let mut connection = node(&address).await.unwrap();
        let mut scan = redis::cmd("SCAN");
        scan.arg(0).arg("MATCH").arg(format!("{}:*{HASH}", prefix.name())).arg("COUNT").arg(1_000_000);
        let (_, found): (u64, Vec<String>) = scan.query_async(&mut connection).await.unwrap();
        by_node.insert(address, found.len());
    }
    assert!(by_node.values().filter(|count| **count > 0).count() >= 3, "{by_node:?}");
    Ok(())
}

async fn a_node_of_the_url_is_down(_server: &Server) -> Result<(), Missing> {
    let server = Server::find(Kind::Cluster)?;
    let prefix = Prefix::set_up(server.url()).await;
    // No process listens on a port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let node = nodes(server.url()).remove(1);
    let saver = prefix.builder_at(&format!("redis+cluster://127.0.0.1:{port},{node}")).build().unwrap();
    everything_works(&saver).await;
    Ok(())
}

/// Kills the primary of a thread that is written to, again and again.
async fn kill_primaries(cluster: &Cluster, saver: &RedisSaver, prefix: &Prefix) -> Vec<Acknowledged> {
    let (load, writers) = start(saver, 9, conversation);
    load.goes_on(30).await;
    for round in 0..rounds(2) {
        let slot = cluster.slot(prefix, &format!("thread-{}", round % 3)).await;
        let killed = cluster.owner(slot).await;
        cluster.kill(killed.port).await;
        // Until another node has its slots.
        while cluster_sees(cluster, killed.port, slot).await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        load.goes_on(60).await;
        cluster.start(killed.port).await;
        load.goes_on(30).await;
    }
    load.end(writers).await
}

async fn cluster_sees(cluster: &Cluster, port: u16, slot: u16) -> bool {
    cluster.owner(slot).await.port == port
}

/// The primary confirms a write before its replica has it, so that the newest ones may be lost. What is there is whole.
async fn primaries_are_killed(_server: &Server) -> Result<(), Missing> {
    let cluster = Cluster::new().await?;
    let prefix = Prefix::set_up(&cluster.url()).await;
    let saver = prefix.builder().build().unwrap();
    let known = kill_primaries(&cluster, &saver, &prefix).await;
    let (mut there, mut lost) = (0, 0);
    for (config, made) in known.iter().flat_map(|known| &known.checkpoints) {
        match saver.get_tuple(config).await.unwrap() {
            Some(found) => {
                assert_eq!(&found.checkpoint, made);
                there += 1;
            }
            None => lost += 1,
        }
    }
    println!("{lost} of {} acknowledged checkpoints were lost", there + lost);
    assert!(lost * 10 < there, "{lost} of {} checkpoints were lost", there + lost);
    is_sound(&prefix, &saver).await;
    Ok(())
}

/// A write is acknowledged once the replica has it.
async fn primaries_are_killed_with_durability(_server: &Server) -> Result<(), Missing> {
    let cluster = Cluster::new().await?;
    let prefix = Prefix::set_up(&cluster.url()).await;
    let durability = Durability { replicas: 1, timeout: Duration::from_secs(1), aof: false };
    // The replica's place is empty until the killed node is back.
    let saver = prefix.builder().durability(durability).build().unwrap();
    let (load, writers) = start(&saver, 9, conversation);
    load.goes_on(30).await;
    for round in 0..rounds(2) {
        let slot = cluster.slot(&prefix, &format!("thread-{}", round % 3)).await;
        let killed = cluster.owner(slot).await;
        cluster.kill(killed.port).await;
        while cluster_sees(&cluster, killed.port, slot).await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        cluster.start(killed.port).await;
        load.goes_on(60).await;
    }
    let known = load.end(writers).await;
    assert!(read_back(&saver, &known).await > 0);
    is_sound(&prefix, &saver).await;
    Ok(())
}

/// After how many looks at the cluster a replica is asked again to take over.
const ASKED_EVERY: u32 = 300;

/// Replicas take over, by agreement with their primaries.
async fn replicas_take_over_in_a_loop(_server: &Server) -> Result<(), Missing> {
    let cluster = Cluster::new().await?;
    let prefix = Prefix::set_up(&cluster.url()).await;
    let saver = prefix.builder().build().unwrap();
    let (load, writers) = start(&saver, 3, conversation);
    load.goes_on(30).await;
    for round in 0..rounds(6) {
        let slot = cluster.slot(&prefix, &format!("thread-{}", round % 3)).await;
        let owner = cluster.owner(slot).await;
        // The primary of the round before may still be on its way to be one.
        let replica = loop {
            let nodes = cluster.nodes().await;
            if let Some(node) = nodes.into_iter().find(|node| node.primary == owner.id && node.is_up) {
                break node.port;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        // A busy replica may not catch up in the 5 seconds after which its primary goes on: it is asked again.
        let mut asked = 0;
        while cluster_sees(&cluster, owner.port, slot).await {
            assert!(asked < 20 * ASKED_EVERY, "the replica did not take over");
            if asked % ASKED_EVERY == 0 {
                cluster.on(replica, "CLUSTER FAILOVER").await;
            }
            asked += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        cluster.server.responds().await;
        load.goes_on(20).await;
    }
    let known = load.end(writers).await;
    assert!(read_back(&saver, &known).await > 0);
    is_sound(&prefix, &saver).await;
    Ok(())
}

/// Moves the slot of a thread that is written to from node to node, its keys one after the other.
async fn a_slot_in_use_moves(_server: &Server) -> Result<(), Missing> {
    let cluster = Cluster::new().await?;
    let prefix = Prefix::set_up(&cluster.url()).await;
    let saver = prefix.builder().build().unwrap();
    let plain = prefix.builder().scripts(false).build().unwrap();
    let (load, mut writers) = start(&saver, 4, conversation);
    let (more, others) = start(&plain, 2, conversation);
    writers.extend(others);
    load.goes_on(30).await;
    let slot = cluster.slot(&prefix, "thread-0").await;
    for round in 0..rounds(4) {
        let source = cluster.owner(slot).await;
        let all = cluster.nodes().await;
        let others: Vec<_> = all.iter().filter(|node| node.is_primary && node.id != source.id).collect();
        let target = others[usize::try_from(round).unwrap() % others.len()].clone();
        cluster.on(target.port, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", source.id)).await;
        cluster.on(source.port, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", target.id)).await;
        let ends = if round % 2 == 0 { [HASH, INDEX] } else { [INDEX, HASH] };
        for end in ends {
            let key = String::from_utf8(prefix.key("thread-0", end)).unwrap();
            let migrate = format!("MIGRATE 127.0.0.1 {} {key} 0 10000", target.port);
            let _: redis::Value =
                words(&migrate).query_async(&mut cluster.node(source.port).await).await.unwrap();
            // The thread is on two nodes.
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        let rest = format!("CLUSTER GETKEYSINSLOT {slot} 100");
        loop {
            let mut connection = cluster.node(source.port).await;
            let keys: Vec<String> = words(&rest).query_async(&mut connection).await.unwrap();
            if keys.is_empty() {
                break;
            }
            for key in keys {
                let migrate = format!("MIGRATE 127.0.0.1 {} {key} 0 10000", target.port);
                let _: redis::Value = words(&migrate).query_async(&mut connection).await.unwrap();
            }
        }
        for port in [target.port, source.port].into_iter().chain(others.iter().map(|node| node.port)) {
            cluster.on(port, &format!("CLUSTER SETSLOT {slot} NODE {}", target.id)).await;
        }
        assert_eq!(cluster.owner(slot).await.port, target.port);
        load.goes_on(20).await;
        more.goes_on(5).await;
    }
    more.end::<()>(Vec::new()).await;
    let known = load.end(writers).await;
    assert!(read_back(&saver, &known).await > 0);
    is_sound(&prefix, &saver).await;
    Ok(())
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        everything_works_and_threads_are_spread,
        a_node_of_the_url_is_down,
        primaries_are_killed,
        primaries_are_killed_with_durability,
        replicas_take_over_in_a_loop,
        a_slot_in_use_moves,
    ]
}
