//! Converts errors of the server, the driver and TLS to ours, in one table.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use checkpoint_core::{Error, ErrorKind};
use redis::{RedisError, ServerError};
use rustls::CertificateError;

/// The backend's name in errors.
pub(crate) const BACKEND: &str = "redis";

/// The system's name in spans and metrics.
pub(crate) const SYSTEM: &str = "redis";

const LOST: &str = "the connection to the server was lost";
const UNREACHABLE: &str = "the server cannot be reached; check host and port, and that it runs";
const BAD_PASSWORD: &str = "the server refused the password; check user and password";
const NO_SCRIPTS: &str =
    "the server does not run scripts for this user; grant +@scripting, or set scripts(false)";
const NO_PERMISSION: &str =
    "the user lacks a permission on a command, or on keys with this prefix; grant it with ACL SETUSER";
const READ_ONLY: &str =
    "the server is a read-only replica; connect to the primary, or use redis+sentinel://, which follows it";
const OUT_OF_MEMORY: &str = "the server is out of memory (maxmemory); nothing was written";
const USE_CLUSTER: &str = "the server is a node of a cluster; use redis+cluster:// (with TLS rediss+cluster://) as the URL's scheme";
const NO_CLUSTER: &str =
    "the server is not in a cluster; use redis:// (with TLS rediss://) as the URL's scheme";
const NO_SENTINEL: &str = "the server is not a sentinel; name the sentinels in the URL, or use redis:// (with TLS rediss://) as its scheme";
const WRONG_TYPE: &str =
    "a key under the prefix has another type, so another program writes it; choose another key_prefix";
const TOO_LARGE: &str = "the server refused the size of a value or of the call; the limits are proto-max-bulk-len and \
                         client-query-buffer-limit";
const NOT_UNDERSTOOD: &str = "the server's response was not understood; check that it is Redis or Valkey";
const CLOSED: &str = "the saver was closed";

/// Before the arguments of a command that the server does not know.
const QUOTED: &str = ", with args beginning with";

/// Kind, message with the remedy, and whether a retry may succeed.
pub(crate) type Description = (ErrorKind, &'static str, bool);

/// The error of a call after `close()`.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, CLOSED)
}

/// The error of a reply of another shape than the command's.
pub(crate) fn not_understood() -> Error {
    Error::new(ErrorKind::Backend, NOT_UNDERSTOOD)
}

/// The error of a connection that ended while it was waited for.
pub(crate) fn lost() -> Error {
    Error::new(ErrorKind::Unavailable, LOST).retryable(true)
}

/// Converts an error of the driver.
pub(crate) fn convert(error: RedisError) -> Error {
    if let Some(error) = of_server(&error) {
        return convert_server(&error);
    }
    let (kind, message, retryable) = describe_driver(&error);
    Error::new(kind, message).retryable(retryable).with_source(error)
}

/// Converts an error of the server. The source is kept without the arguments that some messages quote.
pub(crate) fn convert_server(error: &ServerError) -> Error {
    let detail = error.details().unwrap_or_default();
    let (code, detail) = (error.code(), detail.split(QUOTED).next().unwrap_or_default());
    let (kind, message, retryable) = describe(code, detail);
    Error::new(kind, message).retryable(retryable).with_source(Refusal::new(code, detail))
}

/// The server's error in one of the driver.
pub(crate) fn of_server(error: &RedisError) -> Option<ServerError> {
    ServerError::try_from(error.clone()).ok()
}

/// Converts an error of a socket or of TLS on it, while connecting.
pub(crate) fn convert_io(error: io::Error) -> Error {
    if let Some(tls) = tls_error(&error) {
        let (kind, message, retryable) = describe_tls(tls);
        return Error::new(kind, message).retryable(retryable).with_source(error);
    }
    Error::new(ErrorKind::Unavailable, UNREACHABLE).retryable(true).with_source(error)
}

/// The table of the server's errors.
fn describe(code: &str, detail: &str) -> Description {
    use ErrorKind::{Backend, InvalidArgument, InvalidConfig, Schema, Unavailable, Unsupported};
    match code {
        "LOADING" => (Unavailable, "the server is loading its data; try again", true),
        "BUSY" => (Unavailable, "a script has been running on the server for too long; try again", true),
        "MASTERDOWN" => (Unavailable, "the server is a replica that has lost its primary; try again", true),
        "READONLY" => (Unavailable, READ_ONLY, true),
        "TRYAGAIN" => (Unavailable, "the cluster is moving the thread to another node; try again", true),
        "CLUSTERDOWN" => (Unavailable, "the cluster does not serve the thread's slot; try again", true),
        "NOREPLICAS" => {
            (Unavailable, "the server has too few replicas to accept writes (min-replicas-to-write)", true)
        }
        // The latter where a transaction has keys of several slots, which only those on one server have.
        "MOVED" | "ASK" | "CROSSSLOT" => (InvalidConfig, USE_CLUSTER, false),
        "OOM" => (Backend, OUT_OF_MEMORY, false),
        "MISCONF" => (
            Backend,
            "the server cannot save its data and refuses writes; look at its log and its disk",
            false,
        ),
        "WRONGTYPE" => (Schema, WRONG_TYPE, false),
        "NOPERM" if names_script(detail) => (InvalidConfig, NO_SCRIPTS, false),
        "NOPERM" => (InvalidConfig, NO_PERMISSION, false),
        "NOAUTH" => (InvalidConfig, "the server requires a password and none was given", false),
        "WRONGPASS" => (InvalidConfig, BAD_PASSWORD, false),
        "DENIED" => (
            InvalidConfig,
            "the server is in protected mode; set a password there, or connect from its host",
            false,
        ),
        "NOPROTO" => (InvalidConfig, "the server does not speak RESP3; set resp3(false)", false),
        "NOSCRIPT" => (Unavailable, "the server lost a script during the call; try again", true),
        _ => {
            let has = |part: &str| detail.contains(part);
            if let Some(inner) = code_in_script(detail) {
                return describe(inner, "");
            }
            if has("max number of clients") {
                return (Unavailable, "the server has no connection left (maxclients); try again", true);
            }
            if has("unknown command") && names_script(detail) {
                return (InvalidConfig, NO_SCRIPTS, false);
            }
            if has("unknown command") && has("SENTINEL") {
                return (InvalidConfig, NO_SENTINEL, false);
            }
            if has("unknown command") && has("HELLO") {
                return (InvalidConfig, "the server does not speak RESP3; set resp3(false)", false);
            }
            if has("WAITAOF") {
                return (
                    InvalidConfig,
                    "durability with aof needs a server of version 7.2 with appendonly on; turn it on, or set aof to false",
                    false,
                );
            }
            if has("unknown command") {
                return (
                    Unsupported,
                    "the server does not know a command; Redis 6.2, Valkey or a newer one is needed",
                    false,
                );
            }
            if has("cluster support disabled") {
                return (InvalidConfig, NO_CLUSTER, false);
            }
            if has("SELECT is not allowed in cluster mode") {
                return (InvalidConfig, USE_CLUSTER, false);
            }
            if has("DB index is out of range") || has("invalid DB index") {
                return (
                    InvalidConfig,
                    "the server has no database of this number; choose another one",
                    false,
                );
            }
            if has("without any password configured") {
                return (
                    InvalidConfig,
                    "the server has no password for this user; leave it out of the URL",
                    false,
                );
            }
            if has("invalid password") || has("for 'auth' command") {
                return (InvalidConfig, BAD_PASSWORD, false);
            }
            if has("No such master") {
                return (InvalidConfig, "the sentinels do not know the service that the URL names", false);
            }
            if has("invalid bulk length")
                || has("invalid multibulk length")
                || has("exceeds maximum allowed size")
            {
                return (InvalidArgument, TOO_LARGE, false);
            }
            (Backend, "the server rejected the call", false)
        }
    }
}

/// Whether the server's text is about a command that runs scripts.
fn names_script(detail: &str) -> bool {
    let mut words = detail.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.any(|word| ["EVAL", "EVALSHA"].iter().any(|name| word.eq_ignore_ascii_case(name)))
}

/// The code of the error that stopped a script. Before version 7, servers put it into the text of a general one.
fn code_in_script(detail: &str) -> Option<&str> {
    const CODES: [&str; 9] = [
        "OOM",
        "READONLY",
        "WRONGTYPE",
        "NOPERM",
        "MISCONF",
        "TRYAGAIN",
        "CLUSTERDOWN",
        "NOREPLICAS",
        "LOADING",
    ];
    let (_, inner) = detail.strip_prefix("Error running script")?.split_once("user_script")?;
    inner.split(|c: char| !c.is_ascii_alphabetic()).find(|word| CODES.contains(word))
}

/// The table of the driver's own errors.
fn describe_driver(error: &RedisError) -> Description {
    use redis::ErrorKind as Driver;
    // With TLS 1.3 a server rejects our certificate only after the handshake.
    if let Some(tls) = io_error(error).and_then(tls_error) {
        return describe_tls(tls);
    }
    match error.kind() {
        Driver::Io => (ErrorKind::Unavailable, LOST, true),
        // The connection ended within a reply.
        Driver::Parse if error.to_string().contains("Unexpected end of input") => {
            (ErrorKind::Unavailable, LOST, true)
        }
        Driver::Parse | Driver::UnexpectedReturnType => (ErrorKind::Backend, NOT_UNDERSTOOD, false),
        _ => (ErrorKind::Backend, "the driver refused the call", false),
    }
}

fn describe_tls(error: &rustls::Error) -> Description {
    use CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet, NotValidYetContext,
        UnknownIssuer,
    };
    let message = match error {
        rustls::Error::InvalidCertificate(UnknownIssuer) => {
            "the server's certificate is not signed by a trusted authority; check tls_root_certificates"
        }
        rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
            "the server's certificate is for another name (its subjectAltName); connect by that name"
        }
        rustls::Error::InvalidCertificate(
            Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. },
        ) => "the server's certificate is expired or not valid yet; check the clocks too",
        rustls::Error::InvalidCertificate(_) => "the server's certificate cannot be accepted",
        rustls::Error::InvalidMessage(_) => {
            "the server does not speak TLS on this port; check the port, or use redis://"
        }
        rustls::Error::AlertReceived(_) => {
            "the server rejected the TLS handshake; check tls_client_certificate, and that it supports TLS 1.2 or 1.3"
        }
        _ => "the server's TLS cannot be used; it must support TLS 1.2 or 1.3",
    };
    (ErrorKind::InvalidConfig, message, false)
}

fn io_error(error: &RedisError) -> Option<&io::Error> {
    let shared = error.source()?.downcast_ref::<Arc<dyn StdError + Send + Sync>>()?;
    shared.downcast_ref()
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// The server's error without the arguments that it may quote.
struct Refusal {
    code: String,
    detail: String,
}

impl Refusal {
    fn new(code: &str, detail: &str) -> Self {
        const LONGEST: usize = 200;
        let detail = detail.chars().take(LONGEST).collect();
        Self { code: code.to_owned(), detail }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.detail)
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refusal({self})")
    }
}

impl StdError for Refusal {}

/// Whether an error is the server's of one of these codes.
pub(crate) fn has_code(error: &Error, codes: &[&str]) -> bool {
    error.source_as::<Refusal>().is_some_and(|refusal| codes.contains(&&*refusal.code))
}

#[cfg(test)]
mod tests {
    use redis::parse_redis_value;

    use super::*;

    fn refused(line: &str) -> Error {
        let reply = parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        convert(reply.extract_error().unwrap_err())
    }

    #[test]
    fn errors_of_the_server_have_a_kind_and_a_remedy() {
        use ErrorKind::{Backend, InvalidArgument, InvalidConfig, Schema, Unavailable, Unsupported};
        for (line, kind, is_retryable, part) in [
            ("LOADING Redis is loading the dataset in memory", Unavailable, true, "loading"),
            ("BUSY Redis is busy running a script.", Unavailable, true, "script"),
            ("MASTERDOWN Link with MASTER is down", Unavailable, true, "lost its primary"),
            ("READONLY You can't write against a read only replica.", Unavailable, true, "redis+sentinel://"),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Unavailable, true, "try again"),
            ("CLUSTERDOWN Hash slot not served", Unavailable, true, "slot"),
            ("NOREPLICAS Not enough good replicas to write.", Unavailable, true, "replicas"),
            ("MOVED 3999 127.0.0.1:6381", InvalidConfig, false, "redis+cluster://"),
            ("ERR This instance has cluster support disabled", InvalidConfig, false, "not in a cluster"),
            (
                "CROSSSLOT Keys in request don't hash to the same slot",
                InvalidConfig,
                false,
                "redis+cluster://",
            ),
            ("ERR unknown command 'SENTINEL'", InvalidConfig, false, "sentinel"),
            ("OOM command not allowed when used memory > 'maxmemory'.", Backend, false, "out of memory"),
            ("MISCONF Redis is configured to save RDB snapshots", Backend, false, "disk"),
            ("WRONGTYPE Operation against a key", Schema, false, "key_prefix"),
            (
                "NOPERM this user has no permissions to run the 'evalsha' command",
                InvalidConfig,
                false,
                "scripts(false)",
            ),
            (
                "NOPERM User u has no permissions to run the 'eval' command",
                InvalidConfig,
                false,
                "scripts(false)",
            ),
            ("NOPERM No permissions to access a key", InvalidConfig, false, "ACL SETUSER"),
            (
                "ERR unknown command `EVALSHA`, with args beginning with: `x`",
                InvalidConfig,
                false,
                "scripts(false)",
            ),
            ("ERR unknown command 'HSET', with args beginning with: 'k' 'EVAL'", Unsupported, false, "6.2"),
            ("ERR unknown command 'WAITAOF', with args beginning with: ", InvalidConfig, false, "aof"),
            ("ERR unknown command 'HELLO', with args beginning with: ", InvalidConfig, false, "RESP3"),
            ("NOAUTH Authentication required.", InvalidConfig, false, "password"),
            ("WRONGPASS invalid username-password pair", InvalidConfig, false, "password"),
            ("ERR invalid password", InvalidConfig, false, "password"),
            ("ERR DB index is out of range", InvalidConfig, false, "database"),
            ("ERR max number of clients reached", Unavailable, true, "maxclients"),
            ("ERR Protocol error: invalid bulk length", InvalidArgument, false, "proto-max-bulk-len"),
            (
                "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -OOM command not allowed",
                Backend,
                false,
                "out of memory",
            ),
            ("ERR something else", Backend, false, "rejected"),
        ] {
            let error = refused(line);
            assert_eq!((error.kind(), error.is_retryable()), (kind, is_retryable), "{line}");
            assert!(error.message().contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn what_the_server_quotes_is_not_shown() {
        let error = refused("ERR unknown command 'NOSUCH', with args beginning with: 'key' 'SECRET' ");
        let source = error.source().map(ToString::to_string).unwrap_or_default();
        assert_eq!(source, "ERR unknown command 'NOSUCH'");
        assert!(!format!("{error:?}").contains("SECRET"));
    }

    #[test]
    fn lost_connections_are_retried_and_refused_certificates_are_not() {
        let lost = convert(io::Error::from(io::ErrorKind::BrokenPipe).into());
        assert_eq!((lost.kind(), lost.is_retryable()), (ErrorKind::Unavailable, true));
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired);
        for error in [
            convert(io::Error::new(io::ErrorKind::InvalidData, alert.clone()).into()),
            convert_io(io::Error::new(io::ErrorKind::InvalidData, alert)),
        ] {
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::InvalidConfig, false));
            assert!(error.message().contains("tls_client_certificate"), "{error}");
        }
        let parsed = convert(RedisError::from((redis::ErrorKind::Parse, "no RESP")));
        assert_eq!((parsed.kind(), parsed.is_retryable()), (ErrorKind::Backend, false));
    }
}
