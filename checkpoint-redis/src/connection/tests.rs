use std::sync::atomic::{AtomicBool, AtomicUsize};

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::builder::RedisSaverBuilder;

static SCRIPT: Script = Script::new("return 1");

/// A server that answers everything with OK.
#[derive(Default)]
struct Fake {
    accepted: AtomicUsize,
    is_silent: AtomicBool,
    /// Hangs up instead of the next answer to PING.
    hangs_up: AtomicBool,
}

impl Fake {
    async fn start() -> (Arc<Self>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://:SECRET@{}", listener.local_addr().unwrap());
        let fake = Arc::new(Self::default());
        let shared = Arc::clone(&fake);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                shared.accepted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(Arc::clone(&shared).serve(socket));
            }
        });
        (fake, url)
    }

    async fn serve(self: Arc<Self>, mut socket: TcpStream) {
        let mut buffer = vec![0; 65536];
        while let Ok(length @ 1..) = socket.read(&mut buffer).await {
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if text.contains("PING") && self.hangs_up.swap(false, Ordering::SeqCst) {
                return;
            }
            if !self.is_silent.load(Ordering::SeqCst) {
                let commands = text.lines().filter(|line| line.starts_with('*')).count();
                socket.write_all("+OK\r\n".repeat(commands).as_bytes()).await.unwrap();
            }
        }
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

fn build(url: &str, set: impl FnOnce(RedisSaverBuilder) -> RedisSaverBuilder) -> Connections {
    set(RedisSaverBuilder::new(url)).checked().unwrap().0
}

fn get() -> Cmd {
    let mut command = Cmd::new();
    command.arg("GET").arg("k");
    command
}

fn reading() -> Pipeline {
    let mut pipeline = Pipeline::new();
    pipeline.add_command(get());
    pipeline
}

fn send<T: Send>(future: T) -> T {
    future
}

#[tokio::test]
async fn calls_can_be_sent_to_other_threads_and_fail_once_closed() {
    let connections = build("redis://:PASSWORD@127.0.0.1:1", |b| b.max_retries(0));
    let shown = format!("{connections:?}");
    assert!(!shown.contains("PASSWORD"), "{shown}");
    let (command, pipeline) = (get(), reading());
    for message in ["cannot be reached", "closed"] {
        let c = &connections;
        for result in [
            send(c.command(Access::Read, &command)).await.map(drop),
            send(c.pipeline(Access::Write, b"k", &pipeline)).await.map(drop),
            send(c.transaction(b"k", &pipeline)).await.map(drop),
            send(c.script(Access::Read, &SCRIPT, &[b"k"], &["a"])).await.map(drop),
            send(c.each(Access::Read, vec![command.clone()])).await.map(drop),
            send(c.optimistic(&[b"k"], &pipeline, |_| Ok((None, ())))).await.map(drop),
            send(c.ping()).await,
        ] {
            let error = result.unwrap_err();
            assert!(error.kind() == ErrorKind::Unavailable && error.message().contains(message), "{error}");
        }
        assert_eq!(send(c.eviction_policy()).await, None);
        c.close();
    }
}

#[tokio::test]
async fn calls_share_a_connection() {
    let (fake, url) = Fake::start().await;
    let connections = build(&url, |b| b);
    for _ in 0..2 {
        for result in join_all((0..50).map(|_| connections.ping())).await {
            result.unwrap();
        }
    }
    assert_eq!(fake.accepted(), 1);
}

#[tokio::test]
async fn the_first_call_may_be_dropped_while_others_wait() {
    let (fake, url) = Fake::start().await;
    let connections = build(&url, |b| b);
    let mut first = Box::pin(connections.ping());
    assert!((&mut first).now_or_never().is_none());
    let mut second = Box::pin(connections.ping());
    assert!((&mut second).now_or_never().is_none());
    drop(first);
    second.await.unwrap();
    assert_eq!(fake.accepted(), 1);
}

#[tokio::test]
async fn lost_connections_are_opened_again() {
    let (fake, url) = Fake::start().await;
    let connections = build(&url, |b| b);
    connections.ping().await.unwrap();
    fake.hangs_up.store(true, Ordering::SeqCst);
    connections.ping().await.unwrap();
    assert_eq!(fake.accepted(), 2);
    let without = build(&url, |b| b.max_retries(0));
    without.ping().await.unwrap();
    fake.hangs_up.store(true, Ordering::SeqCst);
    let error = without.ping().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.is_retryable(), "{error}");
}

#[tokio::test]
async fn silent_connections_are_given_up() {
    let (fake, url) = Fake::start().await;
    let connections = build(&url, |b| b.timeout(Duration::from_millis(200)));
    connections.ping().await.unwrap();
    fake.is_silent.store(true, Ordering::SeqCst);
    let error = connections.ping().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Timeout && error.is_retryable(), "{error}");
    fake.is_silent.store(false, Ordering::SeqCst);
    connections.ping().await.unwrap();
    assert_eq!(fake.accepted(), 2);
}

#[tokio::test]
async fn a_connection_of_its_own_is_kept_unless_its_call_was_dropped() {
    let (fake, url) = Fake::start().await;
    let connections = build(&url, |b| b);
    let read = reading();
    for _ in 0..3 {
        connections.optimistic(&[b"k"], &read, |_| Ok((None, ()))).await.unwrap();
    }
    assert_eq!(fake.accepted(), 1);
    // Dropped while the connection is watching.
    fake.is_silent.store(true, Ordering::SeqCst);
    let mut dropped = Box::pin(connections.optimistic(&[b"k"], &read, |_| Ok((None, ()))));
    assert!((&mut dropped).now_or_never().is_none());
    drop(dropped);
    fake.is_silent.store(false, Ordering::SeqCst);
    connections.optimistic(&[b"k"], &read, |_| Ok((None, ()))).await.unwrap();
    assert_eq!(fake.accepted(), 2);
}
