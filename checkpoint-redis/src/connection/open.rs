//! Opens one connection: socket, TLS, login.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use checkpoint_core::{Error, ErrorKind, Result};
use futures_util::FutureExt;
use futures_util::future::{Either, join_all, select};
use futures_util::stream::{StreamExt, iter};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, RedisError, ServerError, Value, cmd};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use secrecy::ExposeSecret;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::error::{convert, convert_io, convert_server, lost, not_understood};
use crate::target::{Address, Credentials};

/// After this idle time the system asks whether the other side is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// How many sentinels are asked at the same time.
const ASKED_AT_ONCE: usize = 3;

const NOT_IN_TIME: &str =
    "no connection was established within connect_timeout; check host and port, and that the server runs";
const NOT_IN_TIME_TLS: &str = "no connection was established within connect_timeout; check host and port, that the \
                               server runs, and that it speaks TLS on this port";

/// How to open connections.
#[derive(Debug, Clone)]
pub(crate) struct Login {
    pub(crate) credentials: Credentials,
    pub(crate) database: u32,
    pub(crate) resp3: bool,
    pub(crate) client_name: Option<String>,
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) connect_timeout: Duration,
}

/// An open connection. Its clones share it; the socket is closed when the last one is dropped.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub(super) id: u64,
    pub(super) connection: MultiplexedConnection,
    driver: Arc<Driver>,
}

/// The task that writes to the socket and reads from it.
#[derive(Debug)]
struct Driver {
    task: AbortHandle,
    end: Arc<End>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It would wait for the replies that are still due.
        self.task.abort();
    }
}

/// Whether the task has ended.
#[derive(Debug, Default)]
struct End {
    has_come: AtomicBool,
    waiting: Notify,
}

/// Tells the end of the task, also if it was aborted.
struct Ending(Arc<End>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.has_come.store(true, Ordering::Release);
        self.0.waiting.notify_waiters();
    }
}

impl Open {
    pub(super) fn is_lost(&self) -> bool {
        self.driver.end.has_come.load(Ordering::Acquire)
    }

    /// Sends a command while connecting.
    async fn ask(&self, command: &Cmd, login: &Login) -> Result<Value> {
        let reply =
            timeout(login.connect_timeout, self.or_lost(send(self.connection.clone(), command))).await;
        reply.map_err(|_| lost())?.map_err(convert)
    }

    /// Waits for a reply or the end of the connection.
    ///
    /// The driver alone is not enough: a request that is put into its queue in the moment in which it ends gets no reply
    /// and no error, ever.
    pub(super) async fn or_lost<T>(
        &self,
        reply: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        // In this order: it notices an end from now on.
        let end = pin!(self.driver.end.waiting.notified());
        if self.is_lost() {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        }
        match select(pin!(reply), end).await {
            Either::Left((reply, _)) => reply,
            // It may have come just before.
            Either::Right(((), reply)) => match reply.now_or_never() {
                Some(reply) => reply,
                None => Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
            },
        }
    }
}

/// Opens a connection and logs in, within the connect timeout.
pub(super) async fn open(address: &Address, login: &Login, id: u64) -> Result<Open> {
    let opened = timeout(login.connect_timeout, connect(address, login, id)).await;
    opened
        .unwrap_or_else(|_| {
            let message = match login.tls {
                None => NOT_IN_TIME,
                Some(_) => NOT_IN_TIME_TLS,
            };
            Err(Error::new(ErrorKind::Unavailable, message).retryable(true))
        })
        .map_err(|error| error.with("server", address))
}

async fn connect(address: &Address, login: &Login, id: u64) -> Result<Open> {
    match address {
        Address::Tcp(host, port) => {
            let socket = TcpStream::connect((host.as_str(), *port)).await.map_err(convert_io)?;
            socket.set_nodelay(true).map_err(convert_io)?;
            let keepalive = socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3);
            // Without it, a dead peer is noticed later.
            let _ = socket2::SockRef::from(&socket).set_tcp_keepalive(&keepalive);
            match &login.tls {
                None => start(socket, login, id).await,
                Some(config) => {
                    let name = ServerName::try_from(host.clone()).map_err(|error| {
                        Error::invalid_config("TLS cannot be used with this host name").with_source(error)
                    })?;
                    let connector = TlsConnector::from(Arc::clone(config));
                    start(connector.connect(name, socket).await.map_err(convert_io)?, login, id).await
                }
            }
        }
        #[cfg(unix)]
        Address::Unix(path) => {
            start(tokio::net::UnixStream::connect(path).await.map_err(convert_io)?, login, id).await
        }
        #[cfg(not(unix))]
        Address::Unix(_) => Err(Error::invalid_config("this system has no Unix sockets")),
    }
}

async fn start<S>(socket: S, login: &Login, id: u64) -> Result<Open>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // The driver would log in by itself, but calls every error that AUTH meets one of the password, and makes an
    // application's default provider of TLS a condition. Its timeouts are off: a call has one over everything.
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let nobody = RedisConnectionInfo::default().set_skip_set_lib_name();
    let (connection, driver) =
        MultiplexedConnection::new_with_config(&nobody, socket, config).await.map_err(convert)?;
    let end = Arc::new(End::default());
    let ending = Ending(Arc::clone(&end));
    let task = tokio::spawn(async move {
        // Moved in here, so that it is dropped last.
        let _ending = ending;
        driver.await;
    });
    let driver = Arc::new(Driver { task: task.abort_handle(), end });
    let open = Open { id, connection, driver };
    log_in(&open, login).await?;
    Ok(open)
}

/// Sends everything in one round trip.
async fn log_in(open: &Open, login: &Login) -> Result<()> {
    let mut commands = Vec::new();
    let password = login.credentials.password.as_ref().map(ExposeSecret::expose_secret);
    if login.resp3 {
        let mut hello = cmd("HELLO");
        hello.arg(3);
        if let Some(password) = password {
            let username = login.credentials.username.as_deref().unwrap_or("default");
            hello.arg("AUTH").arg(username).arg(password);
        }
        commands.push(hello);
    } else if let Some(password) = password {
        let mut auth = cmd("AUTH");
        auth.arg(login.credentials.username.as_deref()).arg(password);
        commands.push(auth);
    }
    if login.database != 0 {
        let mut select = cmd("SELECT");
        select.arg(login.database);
        commands.push(select);
    }
    let needed = commands.len();
    // What the server may refuse: old ones do not know it, and a user may lack the permission.
    let mut about = vec![
        ["SETINFO", "LIB-NAME", env!("CARGO_PKG_NAME")].as_slice(),
        &["SETINFO", "LIB-VER", env!("CARGO_PKG_VERSION")],
    ];
    let name = login.client_name.as_deref().map(|name| ["SETNAME", name]);
    about.extend(name.as_ref().map(<[_; 2]>::as_slice));
    for args in about {
        let mut client = cmd("CLIENT");
        client.arg(args);
        commands.push(client);
    }
    // Not one pipeline: with it, the driver drops the error of the socket, which TLS may explain.
    let mut sent = Vec::with_capacity(commands.len());
    for command in &commands {
        sent.push(open.or_lost(send(open.connection.clone(), command)));
    }
    for (at, reply) in join_all(sent).await.into_iter().enumerate() {
        match reply.map_err(|error| not_let_in(error, login))? {
            Value::ServerError(error) if at < needed || is_hang_up(&error) => {
                return Err(convert_server(&error));
            }
            _ => {}
        }
    }
    Ok(())
}

async fn send(mut connection: MultiplexedConnection, command: &Cmd) -> Result<Value, RedisError> {
    connection.send_packed_command(command).await
}

/// Whether the server says that it has no room and hangs up, whatever it was asked.
fn is_hang_up(error: &ServerError) -> bool {
    error.code() == "DENIED" || error.details().is_some_and(|text| text.contains("max number of clients"))
}

/// The error of a connection that is lost before the first reply.
fn not_let_in(error: RedisError, login: &Login) -> Error {
    let error = convert(error);
    if error.kind() != ErrorKind::Unavailable || login.tls.is_some() {
        return error;
    }
    Error::new(
        ErrorKind::Unavailable,
        "the server closed the connection at once; it may be stopping, have no connection left (maxclients), or speak \
         TLS on this port (then begin the URL with rediss://)",
    )
    .retryable(true)
    .with_source(error)
}

/// Asks sentinels where the primary of a service is: a few at once, for some may be down. The first answer counts; the
/// server that it names has to confirm it.
pub(super) async fn find_primary(sentinels: &[Address], service: &str, login: &Login) -> Result<Address> {
    let mut question = cmd("SENTINEL");
    question.arg("get-master-addr-by-name").arg(service);
    let mut asked = Vec::with_capacity(sentinels.len());
    for sentinel in sentinels {
        asked.push(ask(sentinel, &question, login));
    }
    let mut answers = iter(asked).buffer_unordered(ASKED_AT_ONCE);
    let mut failed = None;
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(Some(address)) => return Ok(address),
            // Another one may know it.
            Ok(None) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed.unwrap_or_else(|| {
        Error::invalid_config("the sentinels do not know the service that the URL names")
            .with("service", service)
    }))
}

async fn ask(sentinel: &Address, question: &Cmd, login: &Login) -> Result<Option<Address>> {
    let open = open(sentinel, login, 0).await?;
    let reply = open.ask(question, login).await.map_err(|error| error.with("server", sentinel))?;
    match reply {
        Value::Nil => Ok(None),
        Value::ServerError(error) => Err(convert_server(&error).with("server", sentinel)),
        Value::Array(parts) => match parts.as_slice() {
            [Value::BulkString(host), Value::BulkString(port)] => {
                let host = String::from_utf8(host.clone()).map_err(|_| not_understood())?;
                let port = std::str::from_utf8(port).ok().and_then(|port| port.parse().ok());
                Ok(Some(Address::Tcp(host, port.ok_or_else(not_understood)?)))
            }
            _ => Err(not_understood()),
        },
        _ => Err(not_understood()),
    }
}

/// Fails if a server says that it is not a primary. During a failover, sentinels still name the old one.
pub(super) async fn check_primary(open: &Open, login: &Login) -> Result<()> {
    let reply = open.ask(&cmd("ROLE"), login).await?;
    match reply {
        Value::Array(parts) if !matches!(parts.first(), Some(Value::BulkString(role)) if role == b"master") => {
            Err(Error::new(
                ErrorKind::Unavailable,
                "the server that the sentinels name is not the primary yet; try again",
            )
            .retryable(true))
        }
        // A user without permission gets an error, and READONLY later.
        _ => Ok(()),
    }
}
