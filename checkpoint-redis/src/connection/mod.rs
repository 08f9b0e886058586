//! Calls on the server or the cluster: connections, retries, redirections.

mod cluster;
mod open;
mod request;
mod script;
mod server;
mod tls;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use checkpoint_core::backend::{Backoff, telemetry};
use checkpoint_core::{Error, ErrorKind, Result};
use futures_util::stream::{StreamExt, TryStreamExt, iter};
use redis::{Cmd, Pipeline, ServerError, Value};
use tokio::time::{Instant, sleep};

pub(crate) use self::open::Login;
pub(crate) use self::script::Script;
pub(crate) use self::tls::client_config;

use self::cluster::{Cluster, Redirect};
use self::request::{Replies, Request};
use self::server::{Endpoint, Failure, Server, Settings, first_error};
use crate::builder::Durability;
use crate::error::{SYSTEM, convert_server, not_understood, of_server};
use crate::runtime;
use crate::target::Servers;

/// How often one attempt follows the cluster to another node.
const MAX_REDIRECTS: u32 = 5;

/// How many nodes or single commands `each` asks at once.
const CONCURRENCY: usize = 16;

/// Whether a call writes: with [`Durability`], writes wait for replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Options of calls.
#[derive(Debug, Clone)]
pub(crate) struct CallOptions {
    pub(crate) timeout: Duration,
    pub(crate) max_retries: u32,
    pub(crate) durability: Option<Durability>,
}

#[derive(Debug)]
enum Topology {
    One(Arc<Server>),
    Cluster(Cluster),
}

/// The connections of a saver: one to each server that all calls share, opened by the first call and again after a loss.
/// What WATCH and WAIT need has connections of its own.
pub(crate) struct Connections {
    topology: Topology,
    settings: Arc<Settings>,
    shown: String,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections")
            .field("servers", &self.shown)
            .field("timeout", &self.settings.timeout)
            .field("max_retries", &self.settings.max_retries)
            .field("durability", &self.settings.durability)
            .finish_non_exhaustive()
    }
}

impl Connections {
    /// Opens nothing.
    pub(crate) fn new(servers: Servers, login: Login, sentinel_login: Login, options: &CallOptions) -> Self {
        let settings = Arc::new(Settings {
            login,
            sentinel_login,
            timeout: options.timeout,
            max_retries: options.max_retries,
            durability: options.durability,
            is_closed: AtomicBool::new(false),
        });
        let shown = format!("{servers:?}");
        let one = |endpoint| Topology::One(Server::new(endpoint, Arc::clone(&settings)));
        let topology = match servers {
            Servers::One(address) => one(Endpoint::Fixed(address)),
            Servers::Sentinel(sentinels, service) => one(Endpoint::Sentinel(sentinels, service)),
            Servers::Cluster(seeds) => Topology::Cluster(Cluster::new(seeds, Arc::clone(&settings))),
        };
        Self { topology, settings, shown }
    }

    /// Whether keys of different slots are on different servers.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    /// Runs one command, routed by its key.
    pub(crate) async fn command(&self, access: Access, command: &Cmd) -> Result<Value> {
        let key = request::key_of(command);
        one(self.call(access, key, Request::Command(command), self.settings.max_retries).await?)
    }

    /// Runs commands of one slot in one round trip, without MULTI.
    pub(crate) async fn pipeline(
        &self,
        access: Access,
        key: &[u8],
        commands: &Pipeline,
    ) -> Result<Vec<Value>> {
        if commands.is_transaction() {
            return Err(Error::new(ErrorKind::Backend, "an atomic pipeline is a transaction"));
        }
        let request = Request::Pipeline(commands);
        all(self.call(access, Some(key), request, self.settings.max_retries).await?)
    }

    /// Runs commands of one slot in MULTI and EXEC, in one round trip. A pipeline that is `atomic()` is not copied.
    pub(crate) async fn transaction(&self, key: &[u8], commands: &Pipeline) -> Result<Vec<Value>> {
        let atomic;
        let commands = if commands.is_transaction() {
            commands
        } else {
            let mut copy = commands.clone();
            copy.atomic();
            atomic = copy;
            &atomic
        };
        let request = Request::Transaction(commands);
        all(self.call(Access::Write, Some(key), request, self.settings.max_retries).await?)
    }

    /// Runs commands that do not depend on each other, each routed by its own key. The replies are in the commands' order.
    pub(crate) async fn each(&self, access: Access, commands: Vec<Cmd>) -> Result<Vec<Value>> {
        match &self.topology {
            Topology::One(_) => {
                let mut pipeline = Pipeline::with_capacity(commands.len());
                for command in commands {
                    pipeline.add_command(command);
                }
                self.pipeline(access, b"", &pipeline).await
            }
            Topology::Cluster(cluster) => {
                let deadline = Instant::now() + self.settings.timeout;
                let mut groups: Vec<(Arc<Server>, Vec<usize>, Pipeline)> = Vec::new();
                for (at, command) in commands.iter().enumerate() {
                    let slot = cluster::slot(request::key_of(command).unwrap_or_default());
                    let Ok(server) = cluster.primary(slot, deadline).await else { continue };
                    let known = groups.iter_mut().find(|(known, ..)| Arc::ptr_eq(known, &server));
                    if let Some((_, places, pipeline)) = known {
                        places.push(at);
                        pipeline.add_command(command.clone());
                    } else {
                        let mut pipeline = Pipeline::new();
                        pipeline.add_command(command.clone());
                        groups.push((server, vec![at], pipeline));
                    }
                }
                Box::pin(self.by_node(access, &commands, groups, deadline)).await
            }
        }
    }

    /// Sends each node its commands, and then one by one those that it did not answer.
    async fn by_node(
        &self,
        access: Access,
        commands: &[Cmd],
        groups: Vec<(Arc<Server>, Vec<usize>, Pipeline)>,
        deadline: Instant,
    ) -> Result<Vec<Value>> {
        let mut replies: Vec<Option<Value>> = vec![None; commands.len()];
        // Not `map`: closures over references make futures that are not `Send`.
        let mut sent = Vec::with_capacity(groups.len());
        for (server, places, pipeline) in groups {
            sent.push(send_group(server, access, places, pipeline, deadline));
        }
        let mut answers = iter(sent).buffer_unordered(CONCURRENCY);
        while let Some((places, answer)) = answers.try_next().await? {
            // An error is met again, and retried, by the command alone.
            let Ok(Some(answer)) = answer else { continue };
            for (at, reply) in places.into_iter().zip(answer) {
                if !matches!(reply, Value::ServerError(_)) {
                    telemetry::bytes_read(SYSTEM, request::bytes(&reply));
                    if let Some(place) = replies.get_mut(at) {
                        *place = Some(reply);
                    }
                }
            }
        }
        drop(answers);
        let mut complete = Vec::with_capacity(commands.len());
        for (reply, command) in replies.into_iter().zip(commands) {
            complete.push(self.reply_or_command(reply, access, command));
        }
        iter(complete).buffered(CONCURRENCY).try_collect().await
    }

    async fn reply_or_command(&self, reply: Option<Value>, access: Access, command: &Cmd) -> Result<Value> {
        match reply {
            Some(reply) => Ok(reply),
            None => self.command(access, command).await,
        }
    }

    /// Makes one round trip to the server, in a cluster to one node. It retries once only: the caller waits for the answer
    /// to decide what to do.
    pub(crate) async fn ping(&self) -> Result<()> {
        let mut ping = Cmd::new();
        ping.arg("PING");
        let retries = self.settings.max_retries.min(1);
        one(self.call(Access::Read, None, Request::Command(&ping), retries).await?).map(drop)
    }

    /// What the server does when it is out of memory, such as `noeviction`; `None` if it does not tell. In a cluster, the
    /// first other than `noeviction`.
    pub(crate) async fn eviction_policy(&self) -> Option<String> {
        let deadline = Instant::now() + self.settings.timeout;
        let servers = match &self.topology {
            Topology::One(server) => vec![Arc::clone(server)],
            Topology::Cluster(cluster) => {
                runtime::guarded(cluster.primaries(deadline)).await.and_then(|found| found).ok()?
            }
        };
        let mut found = None;
        for server in servers {
            let policy = match policy(&server, &["INFO", "memory"], deadline).await {
                None => policy(&server, &["CONFIG", "GET", "maxmemory-policy"], deadline).await,
                known => known,
            };
            if policy.is_some() && found.as_deref().is_none_or(|found| found == "noeviction") {
                found = policy;
            }
        }
        found
    }

    /// Closes the connections; calls that are under way end. Later calls fail.
    pub(crate) fn close(&self) {
        self.settings.is_closed.store(true, Ordering::Release);
        match &self.topology {
            Topology::One(server) => server.disconnect(),
            Topology::Cluster(cluster) => cluster.disconnect(),
        }
    }

    /// Sends a request, and again while it fails with a transient error. All requests of a saver may be repeated.
    async fn call(
        &self,
        access: Access,
        key: Option<&[u8]>,
        request: Request<'_>,
        max_retries: u32,
    ) -> Result<Replies> {
        let size = request.size()?;
        if access == Access::Write {
            size.count();
        }
        let attempts = Box::pin(self.attempts(access, key, &request, max_retries));
        let replies = runtime::guarded(attempts).await??;
        telemetry::bytes_read(SYSTEM, replies.iter().flatten().map(request::bytes).sum());
        Ok(replies)
    }

    async fn attempts(
        &self,
        access: Access,
        key: Option<&[u8]>,
        request: &Request<'_>,
        max_retries: u32,
    ) -> Result<Replies> {
        let mut retry = self.retry(max_retries);
        loop {
            match self.attempt(access, key, request, retry.deadline).await {
                Ok(replies) => return Ok(replies),
                Err(error) => retry.after(error).await?,
            }
        }
    }

    fn retry(&self, max_retries: u32) -> Retry {
        Retry { deadline: Instant::now() + self.settings.timeout, backoff: Backoff::new(max_retries) }
    }

    /// The server that has a key, or any.
    async fn server_of(&self, key: Option<&[u8]>, deadline: Instant) -> Result<Arc<Server>> {
        match &self.topology {
            Topology::One(server) => Ok(Arc::clone(server)),
            Topology::Cluster(cluster) => cluster.primary(key.map_or(0, cluster::slot), deadline).await,
        }
    }

    async fn attempt(
        &self,
        access: Access,
        key: Option<&[u8]>,
        request: &Request<'_>,
        deadline: Instant,
    ) -> Result<Replies> {
        let mut server = self.server_of(key, deadline).await?;
        let mut asking = false;
        let mut redirects = 0;
        loop {
            let sent = server.send(request, access == Access::Write, asking, deadline).await;
            let error = match &sent {
                Ok(replies) => first_error(replies.as_deref()).cloned(),
                Err(Failure::Driver(error)) => of_server(error),
                Err(Failure::Ours(_)) => None,
            };
            let Some(error) = error else {
                if sent.is_err() {
                    self.refresh_later();
                }
                return sent.map_err(Error::from);
            };
            match self.redirected(&error, &server) {
                Some((next, ask)) if redirects < MAX_REDIRECTS => {
                    (server, asking) = (next, ask);
                    redirects += 1;
                }
                _ => return Err(self.refused(&error)),
            }
        }
    }

    /// The node that a cluster's error names, and whether it wants ASKING.
    fn redirected(&self, error: &ServerError, from: &Server) -> Option<(Arc<Server>, bool)> {
        let Topology::Cluster(cluster) = &self.topology else { return None };
        match Redirect::of(error, from.address())? {
            Redirect::Moved(slot, address) => Some((cluster.moved(slot, address), false)),
            Redirect::Ask(address) => Some((cluster.node(address), true)),
        }
    }

    /// Converts an error of the server.
    fn refused(&self, error: &ServerError) -> Error {
        let is_redirect = matches!(error.code(), "MOVED" | "ASK");
        if is_redirect || matches!(error.code(), "CLUSTERDOWN" | "READONLY" | "MASTERDOWN" | "LOADING") {
            self.refresh_later();
        }
        if is_redirect && self.is_cluster() {
            return Error::new(
                ErrorKind::Unavailable,
                "the cluster is moving slots to other nodes; try again",
            )
            .retryable(true);
        }
        convert_server(error)
    }

    fn refresh_later(&self) {
        if let Topology::Cluster(cluster) = &self.topology {
            cluster.refresh_later();
        }
    }
}

/// The retries of a request, all within the timeout.
struct Retry {
    deadline: Instant,
    backoff: Backoff,
}

impl Retry {
    /// Waits for the next attempt, or fails with the error of the last one.
    async fn after(&mut self, error: Error) -> Result<()> {
        let Some(pause) = self.backoff.after(&error) else { return Err(error) };
        telemetry::retry(SYSTEM, error.kind());
        if Instant::now() + pause >= self.deadline {
            return Err(error);
        }
        if !pause.is_zero() {
            sleep(pause).await;
        }
        Ok(())
    }
}

/// Sends a node its commands. The result of it is in the result of counting them.
async fn send_group(
    server: Arc<Server>,
    access: Access,
    places: Vec<usize>,
    pipeline: Pipeline,
    deadline: Instant,
) -> Result<(Vec<usize>, Result<Replies, Failure>)> {
    let request = Request::Pipeline(&pipeline);
    let size = request.size()?;
    if access == Access::Write {
        size.count();
    }
    let sent = runtime::guarded(server.send(&request, access == Access::Write, false, deadline)).await?;
    Ok((places, sent))
}

/// The only reply.
fn one(replies: Replies) -> Result<Value> {
    all(replies)?.pop().ok_or_else(not_understood)
}

/// The replies, none of which is an error.
fn all(replies: Replies) -> Result<Vec<Value>> {
    replies.ok_or_else(not_understood)
}

/// The eviction policy in the answer to a question, if the server answers it.
async fn policy(server: &Arc<Server>, question: &[&str], deadline: Instant) -> Option<String> {
    let mut command = Cmd::new();
    command.arg(question);
    let sent = runtime::guarded(server.send(&Request::Command(&command), false, false, deadline)).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let reply = sent.ok()?.ok()??.pop()?;
    match reply {
        Value::BulkString(info) => find_policy(&text(&info)),
        Value::VerbatimString { text, .. } => find_policy(&text),
        Value::Array(pair) => match pair.as_slice() {
            [_, Value::BulkString(policy)] => Some(text(policy)),
            _ => None,
        },
        Value::Map(pairs) => match pairs.as_slice() {
            [(_, Value::BulkString(policy))] => Some(text(policy)),
            _ => None,
        },
        _ => None,
    }
}

fn find_policy(info: &str) -> Option<String> {
    info.lines()
        .find_map(|line| line.strip_prefix("maxmemory_policy:"))
        .map(|policy| policy.trim().to_owned())
}

#[cfg(test)]
mod tests;
