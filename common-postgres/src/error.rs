//! Converts errors of the server, the driver, TLS and the pool to ours, in one table.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use checkpoint_core::{Error, ErrorKind};
use deadpool_postgres::{HookError, PoolError, TimeoutType};
use rustls::CertificateError;
use tokio_postgres::error::{DbError, Severity};

use crate::tls;

/// The message for missing tables.
const RUN_SETUP: &str = "the database does not have the tables; run setup()";

/// The message for a write on a read-only server.
const READ_ONLY: &str = "the server is read-only (a replica, or default_transaction_read_only); \
                         connect to the primary, or add target_session_attrs=read-write";
const PGBOUNCER: &str = "a prepared statement is gone or not ours, as happens behind PgBouncer in transaction mode; \
                         set pgbouncer(true)";
const TOO_LARGE: &str = "PostgreSQL cannot store a value this large: an index entry holds about 2,700 bytes of ids, \
                         and a column at most 1 GB";
const BAD_PASSWORD: &str = "the server refused the password; check user and password";
const NO_DATABASE: &str = "the database does not exist; create it, or choose another one";
const OTHER_INDEX: &str =
    "the table of vectors was made for another index; configure that index, or use another schema";
const REFUSED: &str = "the server rejected the call";
const UNREACHABLE: &str = "the server cannot be reached; check host and port, and that it runs";
const LOST: &str = "the connection to the server was lost";

/// Kind, message with the remedy, and whether a retry may succeed.
pub(crate) type Description = (ErrorKind, &'static str, bool);

/// Converts an error of the driver.
///
/// The source is kept without the server's detail, hint and context, which may quote values.
pub fn convert(error: tokio_postgres::Error) -> Error {
    if let Some(db) = error.as_db_error() {
        let (kind, message, retryable) = describe(db);
        return Error::new(kind, message).retryable(retryable).with_source(ServerError::new(db));
    }
    let (kind, message, retryable) = describe_client(&error);
    Error::new(kind, message).retryable(retryable).with_source(error)
}

/// Converts an error of the pool.
pub fn convert_pool(error: PoolError) -> Error {
    use ErrorKind::{Backend, InvalidConfig, Timeout, Unavailable};
    let (kind, message, retryable) = match error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
            return convert(error);
        }
        PoolError::Timeout(TimeoutType::Wait) => (
            Timeout,
            "all connections of the pool are in use; raise max_connections or look for calls that hang",
            true,
        ),
        PoolError::Timeout(TimeoutType::Create) => (
            Unavailable,
            "no connection was established within connect_timeout; check host and port, and that the server runs",
            true,
        ),
        PoolError::Timeout(TimeoutType::Recycle) => (Unavailable, LOST, true),
        PoolError::Closed => (Unavailable, "the pool was closed", false),
        PoolError::NoRuntimeSpecified => {
            (InvalidConfig, "the pool has timeouts but no runtime; build it with Runtime::Tokio1", false)
        }
        PoolError::PostCreateHook(_) => {
            (Backend, "the pool's post_create hook rejected the connection", false)
        }
    };
    Error::new(kind, message).retryable(retryable).with_source(error)
}

/// Whether the server refused the connection, or TLS or authentication with it failed: an error of connecting, not of a
/// call or of an option.
pub fn is_refused_connection(error: &Error) -> bool {
    let Some(source) = error.source().filter(|_| error.kind() == ErrorKind::InvalidConfig) else {
        return false;
    };
    match source.downcast_ref::<ServerError>() {
        Some(server) => server.is_fatal,
        None => source.is::<tokio_postgres::Error>(),
    }
}

/// Whether a prepared statement has to be prepared again: the server lost it, or a table has changed since.
pub fn is_stale_statement(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|db| db.code().code() == "26000" || is_stale_plan(db))
}

/// The table of the server's errors by SQLSTATE.
fn describe(db: &DbError) -> Description {
    use ErrorKind::{
        Backend, Conflict, InvalidArgument, InvalidConfig, Schema, Timeout, Unavailable, Unsupported,
    };
    let fatal = is_fatal(db);
    let code = db.code().code();
    match code {
        "28P01" => (InvalidConfig, BAD_PASSWORD, false),
        "3D000" | "57P04" => (InvalidConfig, NO_DATABASE, false),
        "42501" => (
            InvalidConfig,
            "the role lacks a privilege on the database, the schema or a table; grant it",
            false,
        ),
        "3F000" | "42P01" | "42703" => (Schema, RUN_SETUP, false),
        "25006" => (Unsupported, READ_ONLY, false),
        // PgBouncer uses this code for nearly everything, PostgreSQL for protocol violations.
        "08P01" if db.message().contains("unsupported startup parameter") => {
            (InvalidConfig, "PgBouncer rejects a parameter of the startup packet; set pgbouncer(true)", false)
        }
        "08P01"
            if ["authentication failed", "no such user"].iter().any(|part| db.message().contains(part)) =>
        {
            (InvalidConfig, BAD_PASSWORD, false)
        }
        "08P01" if db.message().contains("no such database") => (InvalidConfig, NO_DATABASE, false),
        "08P01" if !fatal => (Backend, REFUSED, false),
        "57P01" | "57P02" | "57P03" => {
            (Unavailable, "the server is starting or shutting down; try again", true)
        }
        "25P03" | "57P05" => (Unavailable, "the server closed a connection that was idle for too long", true),
        "40003" => (Unavailable, LOST, true),
        "53300" => (
            Unavailable,
            "the server has no connection left; lower max_connections here or raise it there",
            true,
        ),
        "53100" => (Backend, "the server's disk is full; nothing was written", false),
        "53200" => (Backend, "the server ran out of memory", false),
        "57014" => (Timeout, "the statement took longer than statement_timeout, or was cancelled", false),
        "25P04" => (Timeout, "the transaction took longer than transaction_timeout", false),
        "55P03" => (Timeout, "another transaction held a lock for too long; try again", true),
        "40001" | "40P01" => (Conflict, "the transaction conflicted with another one; try again", true),
        // Python's setup takes no lock.
        "23505" | "42P06" | "42P07" | "42701" | "42710" => {
            (Conflict, "another process created the same object at the same time; try again", true)
        }
        "XX000" if db.message().contains("tuple concurrently updated") => {
            (Conflict, "another process changed the same table; try again", true)
        }
        "XX000" if db.message().contains("invalid memory alloc request size") => {
            (InvalidArgument, TOO_LARGE, false)
        }
        "XX001" | "XX002" => {
            (Backend, "the server found corrupted data; look at its log, and restore a backup", false)
        }
        "26000" => (Conflict, PGBOUNCER, true),
        "42P05" => (InvalidConfig, PGBOUNCER, false),
        "0A000" if is_stale_plan(db) => (Conflict, "the tables were changed meanwhile; try again", true),
        "0A000" => (Unsupported, "the server does not support this; it may be too old", false),
        "54001" => (InvalidArgument, "a value is nested too deeply for the server", false),
        "54000" => (InvalidArgument, TOO_LARGE, false),
        // pgvector's error.
        "22000" if db.message().contains("dimensions") => (Schema, OTHER_INDEX, false),
        "22P05" | "22021" => (
            InvalidArgument,
            "PostgreSQL cannot store text with NUL, or with characters that the database's encoding lacks",
            false,
        ),
        _ => match code.get(..2).unwrap_or_default() {
            "08" => (Unavailable, LOST, true),
            "22" => (InvalidArgument, "the server cannot store a value of this call", false),
            "28" => (
                InvalidConfig,
                "the server does not allow this role to connect; check user, sslmode, certificates, and the server's pg_hba.conf",
                false,
            ),
            _ => (Backend, REFUSED, false),
        },
    }
}

/// Whether the server closed the connection with this error.
fn is_fatal(db: &DbError) -> bool {
    // PgBouncer sends no untranslated severity field, but it never translates the other one.
    match db.parsed_severity() {
        Some(severity) => matches!(severity, Severity::Fatal | Severity::Panic),
        None => db.severity() == "FATAL",
    }
}

/// The table of the driver's own errors. Their kinds are private, but each has a constant text.
fn describe_client(error: &tokio_postgres::Error) -> Description {
    use ErrorKind::{Backend, Codec, InvalidArgument, InvalidConfig, Timeout, Unavailable};
    if error.is_closed() {
        return (Unavailable, LOST, true);
    }
    // With TLS 1.3 a server rejects our certificate only after the handshake.
    if let Some(tls) = source_of::<rustls::Error>(error) {
        return describe_tls(tls);
    }
    let text = error.to_string();
    let cause = error.source().map(ToString::to_string).unwrap_or_default();
    match text.as_str() {
        "error connecting to server" if cause.starts_with("database ") => {
            (Unavailable, "no server satisfies target_session_attrs", true)
        }
        "error connecting to server" => (Unavailable, UNREACHABLE, true),
        "error communicating with the server" => (Unavailable, LOST, true),
        "timeout waiting for server" => (Timeout, "the server did not answer in time", true),
        "error performing TLS handshake" if cause.contains("does not support TLS") => {
            (InvalidConfig, "the server does not support TLS; enable it there, or set sslmode=disable", false)
        }
        "error performing TLS handshake"
            if source_of::<io::Error>(error).is_some_and(|io| io.kind() != io::ErrorKind::InvalidInput) =>
        {
            (Unavailable, "the connection was lost in the TLS handshake", true)
        }
        "error performing TLS handshake" => (InvalidConfig, "TLS cannot be used with this host", false),
        "invalid configuration" if cause.contains("password") => {
            (InvalidConfig, "the server requires a password and none was given", false)
        }
        "authentication error" | "invalid configuration" | "invalid connection string" => (
            InvalidConfig,
            "the server and this client have no authentication method in common; check password and channel_binding",
            false,
        ),
        "error encoding message to server" => (InvalidArgument, TOO_LARGE, false),
        _ if text.starts_with("error serializing parameter") => {
            (InvalidArgument, "a value cannot be sent to the server", false)
        }
        _ if text.starts_with("error deserializing column") => {
            (Codec, "a stored row does not have LangGraph's column types", false)
        }
        _ => (Backend, "the server's response was not understood", false),
    }
}

pub(crate) fn describe_tls(error: &rustls::Error) -> Description {
    use CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet, NotValidYetContext,
        UnknownIssuer,
    };
    const UNSIGNED: &str = "the server's certificate is not signed by a trusted authority; check sslrootcert";
    let message = match error {
        rustls::Error::InvalidCertificate(UnknownIssuer) => UNSIGNED,
        rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
            "the server's certificate is for another name (its subjectAltName); \
             connect by that name, or set sslmode=verify-ca"
        }
        rustls::Error::InvalidCertificate(
            Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. },
        ) => "the server's certificate is expired or not valid yet; check the clocks too",
        error if tls::is_version_1(error) => {
            "the server's certificate is of X.509 version 1, which works with TLS 1.3 and sslmode=require only; \
             make one of version 3, with a subjectAltName (openssl x509 -req … -extfile)"
        }
        // Self-signed, and not in sslrootcert.
        error if tls::webpki_error(error) == Some(&webpki::Error::CaUsedAsEndEntity) => UNSIGNED,
        rustls::Error::InvalidCertificate(_) => "the server's certificate cannot be accepted",
        rustls::Error::AlertReceived(_) => {
            "the server rejected the TLS handshake; check sslcert and sslkey, and that it supports TLS 1.2 or 1.3"
        }
        _ => "the server's TLS cannot be used; it must support TLS 1.2 or 1.3",
    };
    (ErrorKind::InvalidConfig, message, false)
}

/// The first source of a type, also where an I/O error wraps it.
fn source_of<T: StdError + 'static>(error: &tokio_postgres::Error) -> Option<&T> {
    let mut next = error.source();
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    None
}

/// Whether a cached plan's columns changed because a table did. Servers with another locale translate the message, but
/// not the routine.
fn is_stale_plan(db: &DbError) -> bool {
    db.code().code() == "0A000"
        && (db.routine() == Some("RevalidateCachedQuery") || db.message().contains("cached plan"))
}

/// The server's error without the parts that may quote values.
struct ServerError {
    severity: String,
    code: String,
    message: String,
    is_fatal: bool,
}

impl ServerError {
    fn new(db: &DbError) -> Self {
        let code = db.code().code();
        // Data exceptions quote the value, and errors raised by triggers may contain anything.
        let quotes = code.starts_with("22") || code.starts_with("P0");
        let message = db.message();
        let end = if quotes { message.find(|c: char| !c.is_alphabetic() && c != ' ') } else { None };
        let message = match end.and_then(|end| message.get(..end)) {
            Some(start) => format!("{}…", start.trim_end()),
            None => message.to_owned(),
        };
        Self { severity: db.severity().to_owned(), code: code.to_owned(), message, is_fatal: is_fatal(db) }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (SQLSTATE {})", self.severity, self.message, self.code)
    }
}

impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerError({self})")
    }
}

impl StdError for ServerError {}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio_postgres::{Config, NoTls};

    use super::*;

    /// The driver's error for an error response with these fields.
    async fn server_error(fields: &[(u8, &str)]) -> tokio_postgres::Error {
        let mut body = Vec::new();
        for (field, text) in fields {
            body.push(*field);
            body.extend_from_slice(text.as_bytes());
            body.push(0);
        }
        body.push(0);
        let mut packet = vec![b'E'];
        packet.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        packet.extend_from_slice(&body);
        let (client, mut server) = tokio::io::duplex(1 << 16);
        server.write_all(&packet).await.unwrap();
        let mut config = Config::new();
        config.user("user").ssl_mode(tokio_postgres::config::SslMode::Disable);
        match config.connect_raw(client, NoTls).await {
            Ok(_) => panic!("an error response must not connect"),
            Err(error) => error,
        }
    }

    async fn short_server_error(severity: &str, code: &str, message: &str) -> tokio_postgres::Error {
        server_error(&[(b'S', severity), (b'V', severity), (b'C', code), (b'M', message)]).await
    }

    #[tokio::test]
    async fn codes_map_to_kinds() {
        use ErrorKind::{
            Backend, Conflict, InvalidArgument, InvalidConfig, Schema, Timeout, Unavailable, Unsupported,
        };
        let table = [
            ("FATAL", "28P01", "password authentication failed for user", InvalidConfig, false),
            ("FATAL", "28000", "no pg_hba.conf entry for host", InvalidConfig, false),
            ("FATAL", "3D000", "database does not exist", InvalidConfig, false),
            ("FATAL", "57P04", "database was dropped", InvalidConfig, false),
            ("ERROR", "42501", "permission denied for table checkpoints", InvalidConfig, false),
            ("FATAL", "08P01", "unsupported startup parameter: options", InvalidConfig, false),
            ("ERROR", "42P05", "prepared statement already exists", InvalidConfig, false),
            ("ERROR", "3F000", "schema does not exist", Schema, false),
            ("ERROR", "42P01", "relation does not exist", Schema, false),
            ("ERROR", "42703", "column does not exist", Schema, false),
            ("ERROR", "25006", "cannot execute INSERT in a read-only transaction", Unsupported, false),
            ("ERROR", "0A000", "not implemented", Unsupported, false),
            ("FATAL", "08P01", "SASL authentication failed", InvalidConfig, false),
            ("FATAL", "08P01", "no such user: u", InvalidConfig, false),
            ("FATAL", "08P01", "no such database: d", InvalidConfig, false),
            ("FATAL", "08P01", "query_wait_timeout", Unavailable, true),
            ("FATAL", "08006", "connection failure", Unavailable, true),
            ("ERROR", "08000", "connection exception", Unavailable, true),
            ("FATAL", "57P01", "terminating connection", Unavailable, true),
            ("FATAL", "57P02", "terminating connection because of crash", Unavailable, true),
            ("FATAL", "57P03", "the database system is starting up", Unavailable, true),
            ("FATAL", "57P05", "idle-session timeout", Unavailable, true),
            ("FATAL", "25P03", "idle-in-transaction timeout", Unavailable, true),
            ("FATAL", "53300", "too many connections", Unavailable, true),
            ("ERROR", "40003", "statement completion unknown", Unavailable, true),
            ("ERROR", "57014", "canceling statement due to statement timeout", Timeout, false),
            ("FATAL", "25P04", "transaction timeout", Timeout, false),
            ("ERROR", "55P03", "canceling statement due to lock timeout", Timeout, true),
            ("ERROR", "40001", "could not serialize access", Conflict, true),
            ("ERROR", "40P01", "deadlock detected", Conflict, true),
            ("ERROR", "23505", "duplicate key value violates unique constraint", Conflict, true),
            ("ERROR", "42P06", "schema already exists", Conflict, true),
            ("ERROR", "42P07", "relation already exists", Conflict, true),
            ("ERROR", "42701", "column already exists", Conflict, true),
            ("ERROR", "42710", "object already exists", Conflict, true),
            ("ERROR", "XX000", "tuple concurrently updated", Conflict, true),
            ("ERROR", "26000", "prepared statement does not exist", Conflict, true),
            ("ERROR", "0A000", "cached plan must not change result type", Conflict, true),
            ("ERROR", "54000", "index row size 2712 exceeds maximum", InvalidArgument, false),
            ("ERROR", "54001", "stack depth limit exceeded", InvalidArgument, false),
            ("ERROR", "XX000", "invalid memory alloc request size 1073741824", InvalidArgument, false),
            ("ERROR", "22021", "invalid byte sequence for encoding", InvalidArgument, false),
            ("ERROR", "22P05", "unsupported Unicode escape sequence", InvalidArgument, false),
            ("ERROR", "22P02", "invalid input syntax for type json", InvalidArgument, false),
            ("ERROR", "22023", "invalid parameter value", InvalidArgument, false),
            ("ERROR", "22000", "expected 64 dimensions, not 32", Schema, false),
            ("ERROR", "22000", "different vector dimensions 64 and 32", Schema, false),
            ("ERROR", "22000", "infinite value not allowed in vector", InvalidArgument, false),
            ("ERROR", "08P01", "bind message supplies 1 parameters", Backend, false),
            ("ERROR", "53100", "could not extend file", Backend, false),
            ("ERROR", "53200", "out of memory", Backend, false),
            ("ERROR", "XX001", "invalid page", Backend, false),
            ("ERROR", "XX000", "something else", Backend, false),
            ("ERROR", "42601", "syntax error", Backend, false),
            ("ERROR", "é", "no code at all", Backend, false),
        ];
        for (severity, code, message, kind, retryable) in table {
            let error = convert(short_server_error(severity, code, message).await);
            assert_eq!((error.kind(), error.is_retryable()), (kind, retryable), "{code} {message}");
            let refuses = kind == InvalidConfig && severity == "FATAL";
            assert_eq!(is_refused_connection(&error), refuses, "{code} {message}");
            let source = error.source().map(ToString::to_string);
            assert!(
                source.is_some_and(|source| source.contains(code)),
                "the server's message is kept: {code}"
            );
        }
    }

    #[tokio::test]
    async fn errors_do_not_contain_values() {
        let secret = "4711-visible";
        let quoted = format!("invalid input syntax for type integer: \"{secret}\"");
        let raised = format!("quota of {secret}");
        for (code, message, kept) in [
            ("22P02", quoted.as_str(), "invalid input syntax for type integer"),
            ("P0001", raised.as_str(), "quota of"),
            ("23505", "duplicate key value violates unique constraint \"x_pkey\"", "x_pkey"),
        ] {
            let fields = [
                (b'S', "ERROR"),
                (b'C', code),
                (b'M', message),
                (b'D', secret),
                (b'H', secret),
                (b'W', secret),
            ];
            let error = convert(server_error(&fields).await);
            let shown = format!("{error} {error:?} {:?} {}", error.source(), error.source().unwrap());
            assert!(!shown.contains(secret), "{shown}");
            assert!(shown.contains(kept), "{shown}");
        }
    }

    #[tokio::test]
    async fn pgbouncers_severity_is_read() {
        let fields = [(b'S', "FATAL"), (b'C', "08P01"), (b'M', "query_wait_timeout")];
        assert_eq!(convert(server_error(&fields).await).kind(), ErrorKind::Unavailable);
        let fields = [(b'S', "ERROR"), (b'C', "08P01"), (b'M', "insufficient data left in message")];
        assert_eq!(convert(server_error(&fields).await).kind(), ErrorKind::Backend);
    }

    #[tokio::test]
    async fn stale_statements_differ_from_missing_features() {
        assert!(is_stale_statement(&short_server_error("ERROR", "26000", "gone").await));
        assert!(!is_stale_statement(&short_server_error("ERROR", "0A000", "not implemented").await));
        assert!(!is_stale_statement(&short_server_error("ERROR", "42P01", "cached plan").await));
        // A server with German messages.
        let plan = "gecachter Plan darf den Ergebnistyp nicht ändern";
        let fields = [(b'S', "FEHLER"), (b'C', "0A000"), (b'M', plan), (b'R', "RevalidateCachedQuery")];
        assert!(is_stale_statement(&server_error(&fields).await));
    }

    #[tokio::test]
    async fn a_connection_that_ends_is_unavailable() {
        let (client, server) = tokio::io::duplex(64);
        drop(server);
        let mut config = Config::new();
        config.user("user").ssl_mode(tokio_postgres::config::SslMode::Disable);
        let Err(error) = config.connect_raw(client, NoTls).await else { panic!("there is no server") };
        let error = convert(error);
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{error:?}");
    }

    #[tokio::test]
    async fn pool_errors_map_to_kinds() {
        let table = [
            (PoolError::Timeout(TimeoutType::Wait), ErrorKind::Timeout, true, "max_connections"),
            (PoolError::Timeout(TimeoutType::Create), ErrorKind::Unavailable, true, "connect_timeout"),
            (PoolError::Timeout(TimeoutType::Recycle), ErrorKind::Unavailable, true, "lost"),
            (PoolError::Closed, ErrorKind::Unavailable, false, "closed"),
            (PoolError::NoRuntimeSpecified, ErrorKind::InvalidConfig, false, "runtime"),
            (PoolError::PostCreateHook(HookError::message("not today")), ErrorKind::Backend, false, "hook"),
            (
                PoolError::Backend(short_server_error("FATAL", "28P01", "no").await),
                ErrorKind::InvalidConfig,
                false,
                "password",
            ),
            (
                PoolError::PostCreateHook(HookError::Backend(
                    short_server_error("ERROR", "40001", "no").await,
                )),
                ErrorKind::Conflict,
                true,
                "try again",
            ),
        ];
        for (error, kind, retryable, words) in table {
            let error = convert_pool(error);
            assert_eq!((error.kind(), error.is_retryable()), (kind, retryable), "{error:?}");
            assert!(error.message().contains(words), "{error:?}");
            assert!(error.source().is_some());
        }
    }

    #[test]
    fn certificate_errors_say_what_to_do() {
        let table = [
            (CertificateError::UnknownIssuer, "sslrootcert"),
            (CertificateError::NotValidForName, "another name"),
            (CertificateError::Expired, "expired"),
            (CertificateError::NotValidYet, "expired or not valid yet"),
            (CertificateError::BadSignature, "cannot be accepted"),
        ];
        for (fault, words) in table {
            let (kind, message, retryable) = describe_tls(&rustls::Error::InvalidCertificate(fault));
            assert_eq!((kind, retryable), (ErrorKind::InvalidConfig, false));
            assert!(message.contains(words), "{message}");
        }
        let (_, message, _) =
            describe_tls(&rustls::Error::AlertReceived(rustls::AlertDescription::UnknownCA));
        assert!(message.contains("sslcert"), "{message}");
    }
}
