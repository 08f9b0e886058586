//! A proxy that does to connections what networks do: it delays, dribbles, cuts, resets, and falls silent.

#![allow(dead_code, reason = "each binary uses its part of this")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use super::soak::Random;

/// What the proxy does to the replies of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// Each part comes up to this late.
    Delays(Duration),
    /// A few bytes at a time.
    Dribbles,
    /// The connection ends after up to this many bytes, in the middle of a reply.
    Cuts(u64),
    /// The same, with a reset instead of an end.
    Resets(u64),
    /// The connection stays open after up to this many bytes, and nothing more comes.
    FallsSilent(u64),
}

/// A TCP proxy on its own port. It stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Faulty {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    fault: Mutex<Fault>,
    /// How many connections were damaged.
    faults: AtomicU64,
}

impl Faulty {
    /// Starts a proxy to the server at an address.
    pub(crate) async fn start(server: &str, fault: Fault) -> Self {
        let server = tokio::net::lookup_host(server).await.unwrap().next().unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { fault: Mutex::new(fault), faults: AtomicU64::new(0) });
        let accepting = tokio::spawn({
            let shared = shared.clone();
            async move {
                let mut connections = JoinSet::new();
                let mut seed = 0;
                while let Ok((client, _)) = listener.accept().await {
                    seed += 1;
                    let shared = shared.clone();
                    connections.spawn(async move { connection(client, server, &shared, Random(seed)).await });
                    while connections.try_join_next().is_some() {}
                }
            }
        });
        Self { address, shared, accepting: accepting.abort_handle() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Applies to open connections, too.
    pub(crate) fn set(&self, fault: Fault) {
        *self.shared.fault.lock().unwrap() = fault;
    }

    /// How many connections were cut, reset or silenced.
    pub(crate) fn faults(&self) -> u64 {
        self.shared.faults.load(Ordering::Acquire)
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn connection(
    client: TcpStream,
    server: SocketAddr,
    shared: &Shared,
    random: Random,
) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let requests = async {
        tokio::io::copy(&mut from_client, &mut to_server).await?;
        to_server.shutdown().await
    };
    // Whatever ends first ends the connection.
    tokio::select! {
        ended = requests => ended,
        ended = replies(from_server, to_client, shared, random) => ended,
    }
}

async fn replies(
    mut server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    shared: &Shared,
    mut random: Random,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    let mut passed = 0;
    // When the connection is damaged, if it is, once the fault is known.
    let mut end = None;
    loop {
        let length = server.read(&mut buffer).await?;
        let mut bytes = &buffer[..length];
        if bytes.is_empty() {
            return client.shutdown().await;
        }
        let fault = *shared.fault.lock().unwrap();
        match fault {
            Fault::None => client.write_all(bytes).await?,
            Fault::Delays(longest) => {
                let micros = random.below(u64::try_from(longest.as_micros()).unwrap().max(1));
                tokio::time::sleep(Duration::from_micros(micros)).await;
                client.write_all(bytes).await?;
            }
            Fault::Dribbles => {
                while !bytes.is_empty() {
                    let length = usize::try_from(1 + random.below(7)).unwrap().min(bytes.len());
                    let (now, later) = bytes.split_at(length);
                    client.write_all(now).await?;
                    bytes = later;
                    tokio::task::yield_now().await;
                }
            }
            Fault::Cuts(most) | Fault::Resets(most) | Fault::FallsSilent(most) => {
                let end = *end.get_or_insert_with(|| passed + random.below(most));
                let rest = usize::try_from(end - passed.min(end)).unwrap();
                if bytes.len() <= rest {
                    client.write_all(bytes).await?;
                } else {
                    client.write_all(&bytes[..rest]).await?;
                    shared.faults.fetch_add(1, Ordering::AcqRel);
                    match fault {
                        Fault::Resets(_) => client.as_ref().set_zero_linger()?,
                        Fault::FallsSilent(_) => std::future::pending().await,
                        _ => {}
                    }
                    return Ok(());
                }
            }
        }
        passed += length as u64;
    }
}
