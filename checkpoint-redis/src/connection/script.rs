//! Lua scripts.

use std::sync::OnceLock;

use checkpoint_core::backend::telemetry;
use checkpoint_core::{Error, Result};
use redis::{Cmd, Value};

use super::request::{self, Replies, Request};
use super::{Access, Connections, one};
use crate::error::{SYSTEM, has_code};
use crate::runtime;

/// A Lua script. Its SHA-1 is computed once.
#[derive(Debug)]
pub(crate) struct Script {
    body: &'static str,
    hash: OnceLock<String>,
}

impl Script {
    pub(crate) const fn new(body: &'static str) -> Self {
        Self { body, hash: OnceLock::new() }
    }

    fn hash(&self) -> &str {
        self.hash.get_or_init(|| redis::Script::new(self.body).get_hash().to_owned())
    }

    fn command<A: AsRef<[u8]>>(&self, by_hash: bool, keys: &[&[u8]], args: &[A]) -> Cmd {
        let (name, script) = if by_hash { ("EVALSHA", self.hash()) } else { ("EVAL", self.body) };
        let size =
            keys.iter().map(|key| key.len()).chain(args.iter().map(|arg| arg.as_ref().len())).sum::<usize>();
        let mut command = Cmd::with_capacity(keys.len() + args.len() + 3, size + script.len() + 24);
        command.arg(name).arg(script).arg(keys.len());
        for key in keys {
            command.arg(*key);
        }
        for arg in args {
            command.arg(arg.as_ref());
        }
        command
    }
}

impl Connections {
    /// Runs a script by its hash, and by its text where the server does not have it, which makes the server keep it. The
    /// keys are of one slot.
    pub(crate) async fn script<A: AsRef<[u8]> + Sync>(
        &self,
        access: Access,
        script: &Script,
        keys: &[&[u8]],
        args: &[A],
    ) -> Result<Value> {
        let by_hash = script.command(true, keys, args);
        let request = Request::Command(&by_hash);
        let size = request.size()?;
        if access == Access::Write {
            size.count();
        }
        let replies =
            runtime::guarded(Box::pin(self.script_attempts(access, script, keys, args, &request))).await??;
        let reply = one(replies)?;
        telemetry::bytes_read(SYSTEM, request::bytes(&reply));
        Ok(reply)
    }

    async fn script_attempts<A: AsRef<[u8]> + Sync>(
        &self,
        access: Access,
        script: &Script,
        keys: &[&[u8]],
        args: &[A],
        by_hash: &Request<'_>,
    ) -> Result<Replies> {
        let key = keys.first().copied();
        let mut retry = self.retry(self.settings.max_retries);
        loop {
            let mut replies = self.attempt(access, key, by_hash, retry.deadline).await;
            if replies.as_ref().is_err_and(is_unknown_script) {
                // For this attempt only: the next one may meet another server, which has the script.
                let by_text = script.command(false, keys, args);
                replies = self.attempt(access, key, &Request::Command(&by_text), retry.deadline).await;
            }
            match replies {
                Ok(replies) => return Ok(replies),
                Err(error) => retry.after(error).await?,
            }
        }
    }
}

fn is_unknown_script(error: &Error) -> bool {
    has_code(error, &["NOSCRIPT"])
}
