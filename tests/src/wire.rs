//! A proxy between a driver and its server that counts round trips and statements.
//!
//! A backend provides a [`Counted`] handle, whose driver connects to a [`Proxy`] instead of the server. The proxy is
//! independent of the wire protocol: a [`Protocol`] finds the ends of requests and responses, and the statements.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// The cost of a call once its connection is open and its statements are prepared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cost {
    /// How often the client waits for the server.
    pub round_trips: usize,
    /// The number of statements or commands that the client sends, including those that begin and end a transaction.
    pub statements: usize,
}

impl Cost {
    /// The number of statements where it is not compared, because it depends on what else is stored.
    pub const ANY: usize = usize::MAX;

    /// Makes a cost.
    pub const fn new(round_trips: usize, statements: usize) -> Self {
        Self { round_trips, statements }
    }
}

/// Splits the bytes of one connection into requests and responses.
pub trait Protocol: Debug + Send + 'static {
    /// Receives the next bytes of the client. Returns the requests that they complete.
    fn sent(&mut self, bytes: &[u8]) -> Sent;

    /// Receives the next bytes of the server. Returns the number of responses that they complete.
    fn answered(&mut self, bytes: &[u8]) -> usize;

    /// Whether a driver sends the requests of one round trip on several connections, because one connection takes a request
    /// only after it has answered the one before.
    fn spans_connections(&self) -> bool {
        false
    }
}

/// The requests of a client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sent {
    /// The number of complete requests. The server sends a response for each.
    pub requests: usize,
    /// The statements or commands, without their parameters.
    pub statements: Vec<String>,
}

/// The traffic since the last [`Proxy::take`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// How often the client sent a request after the server had responded to all earlier ones.
    pub round_trips: usize,
    /// How often each statement was sent.
    pub statements: BTreeMap<String, usize>,
}

impl Traffic {
    /// The number of round trips and of statements.
    pub fn cost(&self) -> Cost {
        Cost::new(self.round_trips, self.statements.values().sum())
    }
}

/// A TCP proxy on its own port. It stops when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

#[derive(Debug, Default)]
struct Shared {
    traffic: Mutex<Traffic>,
    quiet: Mutex<Duration>,
    /// Of all connections: the requests without an answer, and when the last one was sent.
    together: Mutex<(usize, Option<Instant>)>,
}

/// One connection.
struct Connection {
    shared: Arc<Shared>,
    state: Mutex<State>,
}

struct State {
    protocol: Box<dyn Protocol>,
    unanswered: usize,
    last_sent: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// Listens on a free port of this machine, and connects each client to the server. `protocol` is called for each
    /// connection.
    ///
    /// # Errors
    /// Any I/O error of the listener.
    ///
    /// # Cancellation
    /// A dropped call has started nothing.
    pub async fn start<P: Protocol>(server: SocketAddr, protocol: fn() -> P) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::<Shared>::default();
        let accepting = tokio::spawn({
            let shared = shared.clone();
            async move {
                // The connections end with this task.
                let mut connections = JoinSet::new();
                while let Ok((client, _)) = listener.accept().await {
                    let state =
                        State { protocol: Box::new(protocol()), unanswered: 0, last_sent: Instant::now() };
                    let connection = Connection { shared: shared.clone(), state: Mutex::new(state) };
                    connections.spawn(async move { connection.run(client, server).await });
                    while connections.try_join_next().is_some() {}
                }
            }
        });
        Ok(Self { address, shared, accepting: accepting.abort_handle() })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Delays the server's responses until the client has sent nothing for this long. A client that pipelines several
    /// requests has sent all of them by then, even on a busy machine.
    pub(crate) fn hold_answers(&self, quiet: Duration) {
        *lock(&self.shared.quiet) = quiet;
    }

    /// Returns the traffic and resets the counts.
    pub fn take(&self) -> Traffic {
        std::mem::take(&mut *lock(&self.shared.traffic))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Connection {
    async fn run(self, client: TcpStream, server: SocketAddr) -> io::Result<()> {
        let server = TcpStream::connect(server).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::try_join!(self.requests(from_client, to_server), self.answers(from_server, to_client))?;
        Ok(())
    }

    async fn requests(&self, mut client: OwnedReadHalf, mut server: OwnedWriteHalf) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let length = client.read(&mut buffer).await?;
            let bytes = buffer.get(..length).unwrap_or_default();
            if bytes.is_empty() {
                return server.shutdown().await;
            }
            self.count(bytes);
            server.write_all(bytes).await?;
        }
    }

    fn count(&self, bytes: &[u8]) {
        let mut state = lock(&self.state);
        state.last_sent = Instant::now();
        let sent = state.protocol.sent(bytes);
        let mut together = lock(&self.shared.together);
        let unanswered = if state.protocol.spans_connections() { together.0 } else { state.unanswered };
        let mut traffic = lock(&self.shared.traffic);
        if sent.requests > 0 && unanswered == 0 {
            traffic.round_trips += 1;
        }
        state.unanswered += sent.requests;
        together.0 += sent.requests;
        together.1 = Some(state.last_sent);
        for statement in sent.statements {
            *traffic.statements.entry(statement).or_default() += 1;
        }
    }

    fn since_last_request(&self) -> Duration {
        let state = lock(&self.state);
        let last = lock(&self.shared.together).1.filter(|_| state.protocol.spans_connections());
        last.unwrap_or(state.last_sent).elapsed()
    }

    async fn answers(&self, mut server: OwnedReadHalf, mut client: OwnedWriteHalf) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let length = server.read(&mut buffer).await?;
            let bytes = buffer.get(..length).unwrap_or_default();
            if bytes.is_empty() {
                return client.shutdown().await;
            }
            let quiet = *lock(&self.shared.quiet);
            loop {
                let since = self.since_last_request();
                let Some(rest) = quiet.checked_sub(since).filter(|rest| !rest.is_zero()) else { break };
                tokio::time::sleep(rest).await;
            }
            // Counted before the client can see the response.
            {
                let mut state = lock(&self.state);
                let answered = state.protocol.answered(bytes);
                state.unanswered = state.unanswered.saturating_sub(answered);
                let mut together = lock(&self.shared.together);
                together.0 = together.0.saturating_sub(answered);
            }
            client.write_all(bytes).await?;
        }
    }
}

/// A handle whose driver connects through a [`Proxy`], and the documented cost of its calls.
pub struct Counted<H, C> {
    /// The handle. Its database is set up.
    pub handle: H,
    /// The proxy of its connections.
    pub proxy: Proxy,
    /// The documented cost of each call.
    pub cost: Box<dyn Fn(C) -> Cost + Send + Sync>,
}

impl<H: Debug, C> Debug for Counted<H, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { handle, proxy, .. } = self;
        f.debug_struct("Counted").field("handle", handle).field("proxy", proxy).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests and responses are lines.
    #[derive(Debug, Default)]
    struct Lines(String);

    impl Protocol for Lines {
        fn sent(&mut self, bytes: &[u8]) -> Sent {
            self.0.push_str(&String::from_utf8_lossy(bytes));
            let mut sent = Sent::default();
            while let Some((line, rest)) = self.0.split_once('\n') {
                sent.requests += 1;
                sent.statements.push(line.to_owned());
                self.0 = rest.to_owned();
            }
            sent
        }

        fn answered(&mut self, bytes: &[u8]) -> usize {
            String::from_utf8_lossy(bytes).matches('\n').count()
        }
    }

    /// A server that responds to each line with `ok`.
    async fn server() -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut byte = [0];
                    while client.read_exact(&mut byte).await.is_ok() {
                        if byte == *b"\n" && client.write_all(b"ok\n").await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        address
    }

    async fn wait_for_answers(client: &mut TcpStream, count: usize) {
        let mut answers = vec![0; 3 * count];
        client.read_exact(&mut answers).await.unwrap();
        assert_eq!(answers, "ok\n".repeat(count).as_bytes());
    }

    #[tokio::test]
    async fn waiting_is_counted_and_pipelining_is_not() {
        let proxy = Proxy::start(server().await, Lines::default).await.unwrap();
        proxy.hold_answers(Duration::from_millis(300));
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.set_nodelay(true).unwrap();
        for part in ["a\nb", "\n", "b\n"] {
            client.write_all(part.as_bytes()).await.unwrap();
        }
        wait_for_answers(&mut client, 3).await;
        let traffic = proxy.take();
        assert_eq!(traffic.cost(), Cost::new(1, 3));
        assert_eq!(traffic.statements, [("a".to_owned(), 1), ("b".to_owned(), 2)].into());
        for _ in 0..3 {
            client.write_all(b"c\n").await.unwrap();
            wait_for_answers(&mut client, 1).await;
        }
        assert_eq!(proxy.take().cost(), Cost::new(3, 3));
        assert_eq!(proxy.take(), Traffic::default());
    }

    #[tokio::test]
    async fn connections_are_counted_separately_and_end_with_the_proxy() {
        let proxy = Proxy::start(server().await, Lines::default).await.unwrap();
        let mut clients = Vec::new();
        for _ in 0..2 {
            let mut client = TcpStream::connect(proxy.address()).await.unwrap();
            client.write_all(b"a\n").await.unwrap();
            clients.push(client);
        }
        for client in &mut clients {
            wait_for_answers(client, 1).await;
        }
        assert_eq!(proxy.take().cost(), Cost::new(2, 2));
        drop(proxy);
        for mut client in clients {
            // The end of the stream, or a reset.
            assert!(!matches!(client.read(&mut [0]).await, Ok(1..)));
        }
    }
}
