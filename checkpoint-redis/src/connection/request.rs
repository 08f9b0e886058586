//! What is sent at once, and its replies.

use checkpoint_core::backend::telemetry;
use checkpoint_core::{Error, Result};
use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, Pipeline, RedisError, Value};

use crate::error::SYSTEM;

/// The longest argument that a server accepts with its default `proto-max-bulk-len`.
const MAX_ARGUMENT: usize = 512 * 1024 * 1024;

/// A server drops connections whose request is longer (`client-query-buffer-limit`).
const MAX_REQUEST: usize = 1024 * 1024 * 1024;

/// What a command has beside its arguments' bytes, for each of them.
const OVERHEAD: usize = 16;

/// Sums up the sizes of what is to be sent, and refuses what the server would.
#[derive(Debug, Default)]
pub(crate) struct Size {
    request: usize,
    bytes: usize,
}

impl Size {
    /// Adds an argument of this length.
    ///
    /// # Errors
    /// [`InvalidArgument`](checkpoint_core::ErrorKind::InvalidArgument) for one of 512 MiB or more, and once the sum
    /// is over 1 GiB.
    pub(crate) fn add(&mut self, length: usize) -> Result<()> {
        self.bytes = self.bytes.saturating_add(length);
        self.request = self.request.saturating_add(length).saturating_add(OVERHEAD);
        if length >= MAX_ARGUMENT {
            return Err(Error::invalid_argument(
                "a value is too large for Redis, which holds less than 512 MiB",
            )
            .with("bytes", length));
        }
        if self.request > MAX_REQUEST {
            return Err(Error::invalid_argument(
                "the call is too large for Redis, which takes at most 1 GiB at once",
            )
            .with("bytes", self.bytes));
        }
        Ok(())
    }

    pub(super) fn add_command(&mut self, command: &Cmd) -> Result<()> {
        command.args_iter().try_for_each(|arg| match arg {
            Arg::Simple(bytes) => self.add(bytes.len()),
            _ => Ok(()),
        })
    }

    /// Counts what was summed up as written.
    pub(super) fn count(&self) {
        telemetry::bytes_written(SYSTEM, self.bytes);
    }
}

/// One command, or several in one round trip.
#[derive(Debug, Clone, Copy)]
pub(super) enum Request<'a> {
    Command(&'a Cmd),
    /// Without MULTI.
    Pipeline(&'a Pipeline),
    /// In MULTI and EXEC; the pipeline is atomic.
    Transaction(&'a Pipeline),
}

/// The replies of the commands, errors of the server among them; `None` if EXEC did nothing because a watched key changed.
pub(super) type Replies = Option<Vec<Value>>;

impl Request<'_> {
    pub(super) fn size(&self) -> Result<Size> {
        let mut size = Size::default();
        match self {
            Self::Command(command) => size.add_command(command)?,
            Self::Pipeline(commands) | Self::Transaction(commands) => {
                commands.cmd_iter().try_for_each(|command| size.add_command(command))?;
            }
        }
        Ok(size)
    }

    /// Sends it and waits for the replies. Dropped, it is still sent or not at all, and its replies are ignored.
    pub(super) async fn send(&self, connection: &mut MultiplexedConnection) -> Result<Replies, RedisError> {
        match self {
            Self::Command(command) => {
                connection.send_packed_command(command).await.map(|reply| Some(vec![reply]))
            }
            Self::Pipeline(commands) if commands.is_empty() => Ok(Some(Vec::new())),
            Self::Pipeline(commands) => {
                connection.send_packed_commands(commands, 0, commands.len()).await.map(Some)
            }
            Self::Transaction(commands) => {
                // All replies, those of MULTI and of queueing too: the driver's own way of skipping them panics in its task
                // when MULTI is refused, and so ends everybody's connection.
                let replies = connection.send_packed_commands(commands, 0, commands.len() + 2).await?;
                executed(replies)
            }
        }
    }

    /// Sends it to a node to which its slot is being moved, which accepts it only after ASKING.
    pub(super) async fn send_asking(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Replies, RedisError> {
        // In one pipeline of its own: on a shared connection, another call's command could come between.
        let mut pipeline = Pipeline::new();
        match self {
            Self::Command(command) => {
                pipeline.cmd("ASKING").add_command((*command).clone());
            }
            Self::Pipeline(commands) => {
                for command in commands.cmd_iter() {
                    pipeline.cmd("ASKING").add_command(command.clone());
                }
            }
            Self::Transaction(commands) => {
                pipeline.cmd("ASKING").cmd("MULTI");
                for command in commands.cmd_iter() {
                    pipeline.add_command(command.clone());
                }
                pipeline.cmd("EXEC");
            }
        }
        let replies = connection.send_packed_commands(&pipeline, 0, pipeline.len()).await?;
        if let Self::Transaction(_) = self {
            return executed(replies);
        }
        Ok(Some(replies.into_iter().skip(1).step_by(2).collect()))
    }
}

/// The replies in that of EXEC, which is the last one. An error in another one is why nothing was done.
fn executed(mut replies: Vec<Value>) -> Result<Replies, RedisError> {
    let last = replies.pop();
    let refused = replies.into_iter().find(|reply| matches!(reply, Value::ServerError(_)));
    match refused.or(last) {
        Some(Value::Array(replies)) => Ok(Some(replies)),
        Some(Value::Nil) => Ok(None),
        Some(Value::ServerError(error)) => Err(error.into()),
        _ => Err((redis::ErrorKind::UnexpectedReturnType, "the reply of EXEC is not an array").into()),
    }
}

/// The number of bytes that the server sent.
pub(super) fn bytes(reply: &Value) -> usize {
    match reply {
        Value::BulkString(bytes) => bytes.len(),
        Value::SimpleString(text) => text.len(),
        Value::Array(items) | Value::Set(items) => items.iter().map(bytes).sum(),
        Value::Map(pairs) => pairs.iter().map(|(key, value)| bytes(key) + bytes(value)).sum(),
        _ => 0,
    }
}

/// The key that routes a command.
pub(super) fn key_of(command: &Cmd) -> Option<&[u8]> {
    let mut args = command.args_iter();
    let at = match args.next()? {
        Arg::Simple(b"EVAL" | b"EVALSHA") => 2,
        Arg::Simple(b"OBJECT" | b"MEMORY") => 1,
        _ => 0,
    };
    match args.nth(at)? {
        Arg::Simple(key) => Some(key),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use checkpoint_core::ErrorKind;
    use redis::parse_redis_value;

    use super::*;

    #[test]
    fn sizes_over_the_limits_of_the_server_are_refused() {
        let mut size = Size::default();
        size.add(MAX_ARGUMENT - 1).unwrap();
        assert_eq!(Size::default().add(MAX_ARGUMENT).unwrap_err().kind(), ErrorKind::InvalidArgument);
        size.add(MAX_ARGUMENT - 1 - 2 * OVERHEAD).unwrap();
        let error = size.add(3).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains("1 GiB"), "{error}");
    }

    #[test]
    fn commands_are_routed_by_their_key() {
        let key = |args: &[&str]| {
            let mut command = Cmd::new();
            command.arg(args);
            key_of(&command).map(|key| String::from_utf8_lossy(key).into_owned())
        };
        assert_eq!(key(&["HSET", "k", "f", "v"]).as_deref(), Some("k"));
        assert_eq!(key(&["EVALSHA", "hash", "2", "k", "l", "a"]).as_deref(), Some("k"));
        assert_eq!(key(&["PING"]), None);
    }

    #[test]
    fn a_transaction_has_the_replies_of_exec_or_the_first_error() {
        let read = |replies: &[&str]| {
            executed(replies.iter().map(|reply| parse_redis_value(reply.as_bytes()).unwrap()).collect())
        };
        let done = read(&["+OK\r\n", "+QUEUED\r\n", "*1\r\n:1\r\n"]).unwrap();
        assert_eq!(done, Some(vec![Value::Int(1)]));
        assert_eq!(read(&["+OK\r\n", "+QUEUED\r\n", "*-1\r\n"]).unwrap(), None);
        let aborted = read(&["+OK\r\n", "-MOVED 1 a:1\r\n", "-EXECABORT Transaction discarded\r\n"]);
        assert_eq!(aborted.unwrap_err().code(), Some("MOVED"));
        let refused =
            read(&["-NOAUTH Authentication required.\r\n", ":1\r\n", "-ERR EXEC without MULTI\r\n"]);
        assert_eq!(refused.unwrap_err().code(), Some("NOAUTH"));
        read(&[]).unwrap_err();
        read(&["+OK\r\n", "+OK\r\n"]).unwrap_err();
    }
}
