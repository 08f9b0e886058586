//! The connections to one server: a shared one, and some of their own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use checkpoint_core::backend::telemetry;
use checkpoint_core::{Error, ErrorKind, Result};
use futures_util::FutureExt;
use futures_util::future::{Shared, join};
use redis::{Cmd, RedisError, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use super::open::{self, Login, Open};
use super::request::{Replies, Request};
use crate::builder::Durability;
use crate::error::{SYSTEM, closed, convert, convert_server, lost, not_understood, of_server};
use crate::runtime;
use crate::target::Address;

/// How many connections of their own calls may have to one server at once.
const MAX_DEDICATED: usize = 32;

/// How many of them are kept while nobody uses them.
const MAX_IDLE: usize = 8;

/// What all servers of a saver share.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) login: Login,
    /// How sentinels are logged in to.
    pub(super) sentinel_login: Login,
    pub(super) timeout: Duration,
    pub(super) max_retries: u32,
    pub(super) durability: Option<Durability>,
    pub(super) is_closed: AtomicBool,
}

/// Where the server is.
#[derive(Debug)]
pub(super) enum Endpoint {
    Fixed(Address),
    /// Asked again for every new connection.
    Sentinel(Vec<Address>, String),
}

/// Why nothing, or no usable reply, came back.
#[derive(Debug)]
pub(super) enum Failure {
    /// Not of the driver: no connection, closed, no answer in time.
    Ours(Error),
    Driver(RedisError),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

type Opening = Shared<oneshot::Receiver<Result<Open, Arc<Error>>>>;

#[derive(Debug, Default)]
struct State {
    open: Option<Open>,
    /// The attempt that is under way, with its number; everybody waits for the same one.
    opening: Option<(u64, Opening)>,
    idle: Vec<Open>,
}

#[derive(Debug)]
pub(super) struct Server {
    endpoint: Endpoint,
    settings: Arc<Settings>,
    // Held for moments only, never while something is waited for.
    state: Mutex<State>,
    dedicated: Arc<Semaphore>,
    ids: AtomicU64,
}

impl Server {
    pub(super) fn new(endpoint: Endpoint, settings: Arc<Settings>) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            settings,
            state: Mutex::default(),
            dedicated: Arc::new(Semaphore::new(MAX_DEDICATED)),
            ids: AtomicU64::new(1),
        })
    }

    /// Where it is, if that does not change.
    pub(super) fn address(&self) -> Option<&Address> {
        match &self.endpoint {
            Endpoint::Fixed(address) => Some(address),
            Endpoint::Sentinel(..) => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops all connections. Those in use are closed after their calls.
    pub(super) fn disconnect(&self) {
        let state = std::mem::take(&mut *self.state());
        drop(state);
    }

    /// Sends a request, and waits for replicas if it is a write that has to reach them.
    pub(super) async fn send(
        self: &Arc<Self>,
        request: &Request<'_>,
        needs_replicas: bool,
        asking: bool,
        deadline: Instant,
    ) -> Result<Replies, Failure> {
        if let Some(durability) = self.settings.durability.filter(|_| needs_replicas) {
            return Box::pin(self.send_durably(request, asking, durability, deadline)).await;
        }
        let open = self.connection(deadline).await?;
        let mut connection = open.connection.clone();
        let sent = async {
            if asking {
                Box::pin(request.send_asking(&mut connection)).await
            } else {
                request.send(&mut connection).await
            }
        };
        let result = answered(&open, deadline, sent).await;
        if is_unusable(&result) {
            self.discard(open.id);
        }
        result
    }

    /// Sends a request on a connection of its own, since WAIT blocks it.
    async fn send_durably(
        self: &Arc<Self>,
        request: &Request<'_>,
        asking: bool,
        durability: Durability,
        deadline: Instant,
    ) -> Result<Replies, Failure> {
        let mut dedicated = self.dedicated(deadline).await?;
        let result = dedicated.send_durably(request, asking, durability, deadline).await;
        if result.is_ok() && !is_unusable(&result) {
            dedicated.keep();
        }
        result
    }

    /// Forgets a connection. Others' calls on it go on.
    fn discard(&self, id: u64) {
        let mut state = self.state();
        if state.open.as_ref().is_some_and(|open| open.id == id) {
            state.open = None;
        }
        // They are no younger, and lead to the same server.
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        drop(idle);
    }

    /// The shared connection.
    async fn connection(self: &Arc<Self>, deadline: Instant) -> Result<Open> {
        // The first attempt may be one that ended together with the runtime of the call that began it.
        match self.open_or_join(deadline).await? {
            Some(open) => Ok(open),
            None => self.open_or_join(deadline).await?.ok_or_else(lost),
        }
    }

    /// The shared connection, opened by this call or by another one; `None` if that was cut off.
    async fn open_or_join(self: &Arc<Self>, deadline: Instant) -> Result<Option<Open>> {
        let (number, opening) = {
            let mut state = self.state();
            if self.settings.is_closed.load(Ordering::Acquire) {
                return Err(closed());
            }
            if let Some(open) = state.open.as_ref().filter(|open| !open.is_lost()) {
                return Ok(Some(open.clone()));
            }
            state.open = None;
            if let Some(opening) = &state.opening {
                opening.clone()
            } else {
                let opening = self.begin_opening();
                state.opening = Some(opening.clone());
                opening
            }
        };
        Box::pin(self.opened(number, opening, deadline)).await
    }

    /// Waits for an attempt.
    async fn opened(&self, number: u64, opening: Opening, deadline: Instant) -> Result<Option<Open>> {
        // Its task belongs to the runtime of the call that began it, which may have ended or stand still.
        let patience = self.settings.login.connect_timeout * 2 + Duration::from_secs(1);
        match timeout_at(deadline.min(Instant::now() + patience), opening).await {
            Ok(Ok(Ok(open))) => Ok(Some(open)),
            Ok(Ok(Err(error))) => Err(Error::share(&error)),
            Ok(Err(_)) => {
                self.end_opening(number, None);
                Ok(None)
            }
            Err(_) => {
                self.end_opening(number, None);
                Err(lost())
            }
        }
    }

    /// Opens a connection in a task, which goes on when the call that began it is dropped.
    fn begin_opening(self: &Arc<Self>) -> (u64, Opening) {
        let (sender, receiver) = oneshot::channel();
        let id = self.next_id();
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let result = runtime::guarded(this.open(id)).await.and_then(|opened| opened);
            this.end_opening(id, result.as_ref().ok());
            let _ = sender.send(result.map_err(Arc::new));
        });
        (id, receiver.shared())
    }

    fn end_opening(&self, number: u64, opened: Option<&Open>) {
        let mut state = self.state();
        if state.opening.as_ref().is_some_and(|(of, _)| *of == number) {
            state.opening = None;
            if !self.settings.is_closed.load(Ordering::Acquire) {
                state.open = opened.cloned();
            }
        }
    }

    fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    async fn open(&self, id: u64) -> Result<Open> {
        let settings = &*self.settings;
        match &self.endpoint {
            Endpoint::Fixed(address) => open::open(address, &settings.login, id).await,
            Endpoint::Sentinel(sentinels, service) => {
                let address = open::find_primary(sentinels, service, &settings.sentinel_login).await?;
                let opened = open::open(&address, &settings.login, id).await?;
                open::check_primary(&opened, &settings.login)
                    .await
                    .map_err(|error| error.with("server", &address))?;
                Ok(opened)
            }
        }
    }

    /// A connection for one call alone.
    pub(super) async fn dedicated(self: &Arc<Self>, deadline: Instant) -> Result<Dedicated> {
        let begun = Instant::now();
        let permit = match timeout_at(deadline, Arc::clone(&self.dedicated).acquire_owned()).await {
            Ok(permit) => permit.map_err(|_| closed())?,
            Err(_) => return Err(too_late()),
        };
        telemetry::pool_wait(SYSTEM, begun.elapsed());
        if self.settings.is_closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        let idle = loop {
            match self.state().idle.pop() {
                Some(open) if open.is_lost() => {}
                other => break other,
            }
        };
        let open = match idle {
            Some(open) => open,
            None => {
                timeout_at(deadline, Box::pin(self.open(self.next_id()))).await.map_err(|_| too_late())??
            }
        };
        Ok(Dedicated { server: Arc::clone(self), open: Some(open), is_clean: false, _permit: permit })
    }
}

/// A connection that no other call uses. It is closed when it is dropped, unless it was returned by `keep`: a call that was
/// dropped in the middle may have left it in a transaction or with replies to come.
#[derive(Debug)]
pub(super) struct Dedicated {
    server: Arc<Server>,
    open: Option<Open>,
    is_clean: bool,
    _permit: OwnedSemaphorePermit,
}

impl Dedicated {
    /// Returns it for others: it is in no transaction, watches nothing, and has sent all replies.
    pub(super) fn keep(mut self) {
        self.is_clean = true;
    }

    /// Sends requests in one go and waits for the replies of both.
    pub(super) async fn send_two(
        &mut self,
        first: &Request<'_>,
        second: &Request<'_>,
        deadline: Instant,
    ) -> Result<(Replies, Replies), Failure> {
        let Some(open) = &self.open else { return Err(lost().into()) };
        let (mut one, mut two) = (open.connection.clone(), open.connection.clone());
        // The first is polled first, and each poll puts its request into the queue.
        let both = async { Ok(join(first.send(&mut one), second.send(&mut two)).await) };
        let (first, second) = answered(open, deadline, both).await?;
        Ok((self.noted(first.map_err(Failure::Driver))?, self.noted(second.map_err(Failure::Driver))?))
    }

    pub(super) async fn send(
        &mut self,
        request: &Request<'_>,
        deadline: Instant,
    ) -> Result<Replies, Failure> {
        let Some(open) = &self.open else { return Err(lost().into()) };
        let mut connection = open.connection.clone();
        let result = answered(open, deadline, request.send(&mut connection)).await;
        self.noted(result)
    }

    /// Sends a request and WAIT in one go.
    pub(super) async fn send_durably(
        &mut self,
        request: &Request<'_>,
        asking: bool,
        durability: Durability,
        deadline: Instant,
    ) -> Result<Replies, Failure> {
        let wait = durability.command();
        let Some(open) = &self.open else { return Err(lost().into()) };
        let (mut one, mut two) = (open.connection.clone(), open.connection.clone());
        let write = async {
            if asking { Box::pin(request.send_asking(&mut one)).await } else { request.send(&mut one).await }
        };
        let both = async { Ok(join(write, Request::Command(&wait).send(&mut two)).await) };
        let (written, waited) = answered(open, deadline, both).await?;
        let written = self.noted(written.map_err(Failure::Driver))?;
        let waited = self.noted(waited.map_err(Failure::Driver))?;
        // Without a write there is nothing to wait for, and its error is the one that counts.
        if written.is_some() && first_error(written.as_deref()).is_none() {
            let waited = waited.and_then(|mut waited| waited.pop()).ok_or_else(not_understood)?;
            durability.check(&waited)?;
        }
        Ok(written)
    }

    /// Drops the idle connections too if this one turned out to be unusable.
    fn noted(&self, result: Result<Replies, Failure>) -> Result<Replies, Failure> {
        if is_unusable(&result) {
            let idle = std::mem::take(&mut self.server.state().idle);
            drop(idle);
        }
        result
    }
}

impl Drop for Dedicated {
    fn drop(&mut self) {
        let Some(open) = self.open.take().filter(|open| self.is_clean && !open.is_lost()) else { return };
        let mut state = self.server.state();
        if state.idle.len() < MAX_IDLE && !self.server.settings.is_closed.load(Ordering::Acquire) {
            state.idle.push(open);
        }
    }
}

impl Durability {
    fn command(&self) -> Cmd {
        let milliseconds = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut command = Cmd::new();
        if self.aof {
            command.arg("WAITAOF").arg(1).arg(self.replicas).arg(milliseconds);
        } else {
            command.arg("WAIT").arg(self.replicas).arg(milliseconds);
        }
        command
    }

    fn check(&self, reply: &Value) -> Result<()> {
        let reached = |value: &Value| match value {
            Value::Int(count) => Ok(*count),
            _ => Err(not_understood()),
        };
        let (local, replicas) = match reply {
            Value::ServerError(error) => return Err(convert_server(error)),
            Value::Array(counts) => match counts.as_slice() {
                [local, replicas] => (reached(local)?, reached(replicas)?),
                _ => return Err(not_understood()),
            },
            count => (1, reached(count)?),
        };
        if replicas >= i64::from(self.replicas) && local >= 1 {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Timeout,
            "the data was written, but too few copies confirmed it in time (durability); it may be stored or not, and the \
             call can be repeated",
        )
        .retryable(true)
        .with("replicas", replicas)
        .with("wanted", self.replicas))
    }
}

/// The first error among replies.
pub(super) fn first_error(replies: Option<&[Value]>) -> Option<&redis::ServerError> {
    replies.unwrap_or_default().iter().find_map(|reply| match reply {
        Value::ServerError(error) => Some(error),
        _ => None,
    })
}

async fn answered<T>(
    open: &Open,
    deadline: Instant,
    sent: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, Failure> {
    match timeout_at(deadline, open.or_lost(sent)).await {
        Ok(Ok(replies)) => Ok(replies),
        Ok(Err(error)) => Err(Failure::Driver(error)),
        Err(_) => Err(too_late().into()),
    }
}

pub(super) fn too_late() -> Error {
    Error::new(
        ErrorKind::Timeout,
        "the server did not answer within the timeout; a write may have been stored or not, and the call can be repeated",
    )
    .retryable(true)
}

fn is_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.is_unrecoverable_error()
}

/// Whether a connection has to be opened anew: it was lost, is silent, or leads to a server that is no longer the
/// primary.
fn is_unusable(result: &Result<Replies, Failure>) -> bool {
    match result {
        Ok(replies) => first_error(replies.as_deref()).is_some_and(|error| error.code() == "READONLY"),
        Err(Failure::Driver(error)) => is_lost(error) || is_read_only(error),
        Err(Failure::Ours(error)) => error.kind() == ErrorKind::Timeout,
    }
}

fn is_read_only(error: &RedisError) -> bool {
    of_server(error).is_some_and(|error| error.code() == "READONLY")
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Ours(error) => error,
            Failure::Driver(error) => convert(error),
        }
    }
}
