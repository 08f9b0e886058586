//! Optimistic transactions, for servers without scripts.

use std::time::Duration;

use checkpoint_core::backend::{jitter, telemetry};
use checkpoint_core::{Error, ErrorKind, Result};
use redis::{Cmd, Pipeline, Value};
use tokio::time::{Instant, sleep};

use super::request::{self, Request};
use super::server::first_error;
use super::{Connections, Failure, all};
use crate::error::{SYSTEM, not_understood, of_server};
use crate::runtime;

/// How often a transaction is tried that others get ahead of.
const MAX_ATTEMPTS: u32 = 20;

/// The longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_millis(20);

impl Connections {
    /// Reads, lets a function decide by what was read, and writes only if none of the keys has changed meanwhile;
    /// otherwise it begins again. All keys are of one slot. Two round trips on a connection of its own.
    ///
    /// The function returns the commands to run in MULTI, or `None` to leave everything as it is; the replies are `None` then.
    pub(crate) async fn optimistic<T: Send>(
        &self,
        keys: &[&[u8]],
        read: &Pipeline,
        mut decide: impl FnMut(Vec<Value>) -> Result<(Option<Pipeline>, T)> + Send,
    ) -> Result<(Option<Vec<Value>>, T)> {
        let mut watch = Cmd::new();
        watch.arg("WATCH");
        for key in keys {
            watch.arg(*key);
        }
        Request::Pipeline(read).size()?;
        let key = keys.first().copied();
        // Boxed, as it is large.
        let attempts = Box::pin(self.optimistic_attempts(key, &watch, read, &mut decide));
        let done = runtime::guarded(attempts).await??;
        done.ok_or_else(|| {
            Error::new(ErrorKind::Conflict, "other calls changed the thread again and again; try again")
                .retryable(true)
        })
    }

    /// Tries until nobody gets ahead; `None` after too many times.
    async fn optimistic_attempts<T: Send>(
        &self,
        key: Option<&[u8]>,
        watch: &Cmd,
        read: &Pipeline,
        decide: &mut (impl FnMut(Vec<Value>) -> Result<(Option<Pipeline>, T)> + Send),
    ) -> Result<Option<(Option<Vec<Value>>, T)>> {
        let mut retry = self.retry(self.settings.max_retries);
        let mut conflicts = 0;
        while conflicts < MAX_ATTEMPTS {
            match self.watched(key, watch, read, decide, retry.deadline).await {
                Ok(Some(done)) => return Ok(Some(done)),
                Ok(None) => {
                    conflicts += 1;
                    let pause = MAX_PAUSE.mul_f64(jitter() * f64::from(conflicts) / f64::from(MAX_ATTEMPTS));
                    if Instant::now() + pause >= retry.deadline {
                        break;
                    }
                    sleep(pause).await;
                }
                Err(error) => retry.after(error).await?,
            }
        }
        Ok(None)
    }

    /// One attempt; `None` if a key has changed.
    async fn watched<T: Send>(
        &self,
        key: Option<&[u8]>,
        watch: &Cmd,
        read: &Pipeline,
        decide: &mut (impl FnMut(Vec<Value>) -> Result<(Option<Pipeline>, T)> + Send),
        deadline: Instant,
    ) -> Result<Option<(Option<Vec<Value>>, T)>> {
        let server = self.server_of(key, deadline).await?;
        let mut dedicated = server.dedicated(deadline).await?;
        let asked = dedicated.send_two(&Request::Command(watch), &Request::Pipeline(read), deadline).await;
        let (watching, read) = asked.map_err(|failure| self.failed(failure, &server))?;
        for replies in [&watching, &read] {
            if let Some(error) = first_error(replies.as_deref()) {
                // The map of the cluster follows; the next attempt goes there.
                return Err(self.refused_at(error, &server));
            }
        }
        let read = all(read)?;
        telemetry::bytes_read(SYSTEM, read.iter().map(request::bytes).sum());
        let (write, result) = match decide(read) {
            Ok((Some(write), result)) => (write, result),
            Ok((None, result)) => {
                self.unwatch(dedicated, deadline).await?;
                return Ok(Some((None, result)));
            }
            Err(error) => {
                self.unwatch(dedicated, deadline).await?;
                return Err(error);
            }
        };
        let mut write = write;
        write.atomic();
        let request = Request::Transaction(&write);
        request.size()?.count();
        let replies = match self.settings.durability {
            Some(durability) => dedicated.send_durably(&request, false, durability, deadline).await,
            None => dedicated.send(&request, deadline).await,
        };
        let replies = replies.map_err(|failure| self.failed(failure, &server))?;
        dedicated.keep();
        let Some(replies) = replies else { return Ok(None) };
        if let Some(error) = first_error(Some(&replies)) {
            return Err(self.refused_at(error, &server));
        }
        Ok(Some((Some(replies), result)))
    }

    async fn unwatch(&self, mut dedicated: super::server::Dedicated, deadline: Instant) -> Result<()> {
        let mut unwatch = Cmd::new();
        unwatch.arg("UNWATCH");
        let replies = dedicated.send(&Request::Command(&unwatch), deadline).await.map_err(Error::from)?;
        match all(replies)?.pop() {
            Some(Value::Okay) => dedicated.keep(),
            _ => return Err(not_understood()),
        }
        Ok(())
    }

    /// Converts what went wrong, and follows the cluster to another node for the next attempt.
    fn failed(&self, failure: Failure, server: &super::Server) -> Error {
        if let Failure::Driver(error) = &failure
            && let Some(error) = of_server(error)
        {
            return self.refused_at(&error, server);
        }
        self.refresh_later();
        failure.into()
    }

    fn refused_at(&self, error: &redis::ServerError, server: &super::Server) -> Error {
        // Of ASK, the map takes no note: the slot is being moved, and the next attempts wait for that.
        let is_followed = self.redirected(error, server).is_some();
        let converted = self.refused(error);
        if is_followed { converted.retryable(true) } else { converted }
    }
}
