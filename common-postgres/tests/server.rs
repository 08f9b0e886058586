//! Connections to a real server: TLS in every mode, valid and invalid certificates, and the mapping of the server's
//! errors.
//!
//! `CHECKPOINT_TEST_POSTGRES_URL` names a superuser of a server on this machine; `CHECKPOINT_TEST_POSTGRES_CERTS` the
//! folder with `ca.crt`, `wrong-ca.crt`, `client.crt` and `client.key`, where the server has TLS for `localhost` and
//! `127.0.0.1` and lets `cert_user` in by certificate only; `CHECKPOINT_TEST_PGBOUNCER_URL` a PgBouncer.

use std::error::Error as StdError;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use checkpoint_core::{Error, ErrorKind};
use common_postgres::deadpool_postgres::Client;
use common_postgres::{PostgresConfig, SslMode, convert, convert_pool, is_stale_statement, tokio_postgres};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use secrecy::SecretString;

const POSTGRES: &str = "CHECKPOINT_TEST_POSTGRES_URL";
const PGBOUNCER: &str = "CHECKPOINT_TEST_PGBOUNCER_URL";

type Test = Result<(), Failed>;

struct Server {
    port: u16,
    user: String,
    password: SecretString,
    database: String,
}

impl Server {
    /// The server of a variable, if it is set.
    fn from_env(variable: &str) -> Result<Option<Self>, Failed> {
        let Some(url) = std::env::var(variable).ok().filter(|url| !url.is_empty()) else {
            return Ok(None);
        };
        // Parsed by the driver, so that the test does not depend on our own parser.
        let url: tokio_postgres::Config =
            url.parse().map_err(|error| format!("{variable} cannot be read: {error}"))?;
        let password = url.get_password().unwrap_or_default();
        Ok(Some(Self {
            port: url.get_ports().first().copied().unwrap_or(5432),
            user: url.get_user().unwrap_or("postgres").to_owned(),
            password: String::from_utf8_lossy(password).into_owned().into(),
            database: url.get_dbname().unwrap_or("postgres").to_owned(),
        }))
    }

    fn config(&self, host: &str) -> PostgresConfig {
        PostgresConfig::new(host, self.user.clone(), self.database.clone())
            .port(self.port)
            .password(self.password.clone())
    }

    /// The server under a name that its certificate does not have.
    fn misnamed(&self) -> Result<PostgresConfig, Failed> {
        let (port, user, database) = (self.port, &self.user, &self.database);
        let url = format!("postgres://{user}@other.example:{port}/{database}?hostaddr=127.0.0.1");
        Ok(PostgresConfig::from_conn_string(&url).map_err(report)?.password(self.password.clone()))
    }
}

/// The server and the folder with the certificates.
struct Tls(Server, PathBuf);

impl Tls {
    fn file(&self, name: &str) -> PathBuf {
        self.1.join(name)
    }
}

async fn connect(config: &PostgresConfig) -> Result<Client, Error> {
    config.pool()?.get().await.map_err(convert_pool)
}

async fn uses_tls(config: &PostgresConfig) -> Result<bool, Failed> {
    let client = connect(config).await.map_err(report)?;
    let row = client
        .query_one("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", &[])
        .await
        .map_err(|error| report(convert(error)))?;
    Ok(row.get(0))
}

#[expect(clippy::needless_pass_by_value, reason = "it is passed to map_err")]
fn report(error: Error) -> Failed {
    format!("{error}: {error:?}").into()
}

async fn refused(config: &PostgresConfig, kind: ErrorKind, words: &str) -> Result<Error, Failed> {
    let Err(error) = connect(config).await else { return Err("the connection was made".into()) };
    let shown = format!("{error} {error:?}");
    if error.kind() != kind || !error.message().contains(words) {
        return Err(format!("expected {kind} with {words:?}: {shown}").into());
    }
    Ok(error)
}

fn check(holds: bool, what: &str) -> Test {
    if holds { Ok(()) } else { Err(what.into()) }
}

async fn modes_without_verification(Tls(server, _): &Tls) -> Test {
    for host in ["localhost", "127.0.0.1"] {
        let config = server.config(host);
        check(!uses_tls(&config.clone().ssl_mode(SslMode::Disable)).await?, "disable used TLS")?;
        check(uses_tls(&config.clone().ssl_mode(SslMode::Prefer)).await?, "prefer used no TLS")?;
        check(uses_tls(&config.clone().ssl_mode(SslMode::Require)).await?, "require used no TLS")?;
        check(uses_tls(&config).await?, "prefer is not the default")?;
    }
    // The server is not verified, so any name works.
    check(uses_tls(&server.misnamed()?.ssl_mode(SslMode::Require)).await?, "require checked the name")
}

async fn right_authority(tls: &Tls) -> Test {
    let ca = tls.file("ca.crt");
    for mode in [SslMode::Prefer, SslMode::Require, SslMode::VerifyCa, SslMode::VerifyFull] {
        for host in ["localhost", "127.0.0.1"] {
            let config = tls.0.config(host).ssl_mode(mode).ssl_root_cert(&ca);
            check(uses_tls(&config).await?, mode.as_str())?;
        }
    }
    Ok(())
}

async fn wrong_authority(tls: &Tls) -> Test {
    let ca = tls.file("wrong-ca.crt");
    for mode in [SslMode::Prefer, SslMode::Require, SslMode::VerifyCa, SslMode::VerifyFull] {
        let config = tls.0.config("localhost").ssl_mode(mode).ssl_root_cert(&ca);
        refused(&config, ErrorKind::InvalidConfig, "not signed by").await?;
    }
    // The system does not trust it either.
    refused(&tls.0.config("localhost").ssl_mode(SslMode::VerifyFull), ErrorKind::InvalidConfig, "").await?;
    Ok(())
}

async fn wrong_host_name(tls: &Tls) -> Test {
    let config = tls.0.misnamed()?.ssl_root_cert(tls.file("ca.crt"));
    check(uses_tls(&config.clone().ssl_mode(SslMode::VerifyCa)).await?, "verify-ca checked the name")?;
    refused(&config.ssl_mode(SslMode::VerifyFull), ErrorKind::InvalidConfig, "another name").await?;
    Ok(())
}

async fn client_certificate(tls: &Tls) -> Test {
    let admin = connect(&tls.0.config("localhost")).await.map_err(report)?;
    // Another run may have created it.
    let _ = admin.batch_execute("CREATE ROLE cert_user LOGIN").await;
    let config = PostgresConfig::new("localhost", "cert_user", tls.0.database.clone())
        .port(tls.0.port)
        .ssl_mode(SslMode::VerifyFull)
        .ssl_root_cert(tls.file("ca.crt"));
    let with = config.clone().ssl_client_cert(tls.file("client.crt"), tls.file("client.key"));
    check(uses_tls(&with).await?, "no TLS")?;
    refused(&config, ErrorKind::InvalidConfig, "does not allow this role to connect").await?;
    // A key that does not match the certificate.
    let mixed = config.ssl_client_cert(tls.file("ca.crt"), tls.file("client.key"));
    refused(&mixed, ErrorKind::InvalidConfig, "do not match").await?;
    Ok(())
}

async fn startup_settings(server: &Server) -> Test {
    let (port, user, database) = (server.port, &server.user, &server.database);
    let url = format!(
        "postgresql://{user}@127.0.0.1:{port}/{database}\
         ?options=-c%20work_mem=5MB%20-c%20statement_timeout=1s&statement_timeout=90s&application_name=a%20b"
    );
    let config = PostgresConfig::from_conn_string(&url).map_err(report)?.password(server.password.clone());
    let expected = [
        ("plan_cache_mode", "force_generic_plan"),
        ("work_mem", "5MB"),
        ("statement_timeout", "90s"),
        ("application_name", "a b"),
    ];
    settings(&config, &expected).await.map_err(|error| format!("direct: {error:?}"))?;
    let behind = PostgresConfig::new("127.0.0.1", user, database)
        .port(port)
        .password(server.password.clone())
        .pgbouncer(true);
    let expected = [("plan_cache_mode", "auto"), ("application_name", "checkpoint-postgres")];
    settings(&behind, &expected).await.map_err(|error| format!("pgbouncer: {error:?}"))?;
    Ok(())
}

async fn settings(config: &PostgresConfig, expected: &[(&str, &str)]) -> Test {
    let client = connect(config).await.map_err(report)?;
    for (name, value) in expected {
        let row = client
            .query_one("SELECT current_setting($1)", &[name])
            .await
            .map_err(|error| report(convert(error)))?;
        let found: String = row.get(0);
        check(found == *value, &format!("{name} is {found}"))?;
    }
    Ok(())
}

async fn odd_password(server: &Server) -> Test {
    let admin = connect(&server.config("127.0.0.1")).await.map_err(report)?;
    let password = "a@b:c/d?e%f#g[h]i é";
    let statement =
        format!("DROP ROLE IF EXISTS common_odd; CREATE ROLE common_odd LOGIN PASSWORD '{password}'");
    admin.batch_execute(&statement).await.map_err(|error| report(convert(error)))?;
    let (port, database) = (server.port, &server.database);
    let url = format!(
        "postgres://common_odd:a%40b%3ac%2Fd%3Fe%25f%23g%5Bh%5Di%20%C3%A9@127.0.0.1:{port}/{database}"
    );
    let result = connect(&PostgresConfig::from_conn_string(&url).map_err(report)?).await;
    admin.batch_execute("DROP ROLE common_odd").await.map_err(|error| report(convert(error)))?;
    result.map(drop).map_err(report)
}

async fn failed_logins(server: &Server) -> Test {
    let config = server.config("127.0.0.1");
    let wrong = "hunter2-is-wrong";
    let error =
        refused(&config.clone().password(wrong.to_owned().into()), ErrorKind::InvalidConfig, "password")
            .await?;
    let shown = format!("{error} {error:?} {}", error.source().map(ToString::to_string).unwrap_or_default());
    check(!shown.contains(wrong) && !shown.contains("hunter2"), "the password is shown")?;
    let none =
        PostgresConfig::new("127.0.0.1", server.user.clone(), server.database.clone()).port(server.port);
    refused(&none, ErrorKind::InvalidConfig, "none was given").await?;
    let elsewhere = PostgresConfig::new("127.0.0.1", server.user.clone(), "no_such_database")
        .port(server.port)
        .password(server.password.clone());
    refused(&elsewhere, ErrorKind::InvalidConfig, "database does not exist").await?;
    let nobody = server.config("127.0.0.1").port(1);
    let error = refused(&nobody, ErrorKind::Unavailable, "cannot be reached").await?;
    check(error.is_retryable(), "a server that is down may come back")?;
    let error = refused(&server.config("/nowhere"), ErrorKind::Unavailable, "cannot be reached").await?;
    check(error.is_retryable(), "a socket that is missing may come back")?;
    // The first host is down, the second is up.
    let two = format!("postgres://{}@127.0.0.1:1,127.0.0.1:{}/{}", server.user, server.port, server.database);
    let two = PostgresConfig::from_conn_string(&two).map_err(report)?.password(server.password.clone());
    connect(&two).await.map(drop).map_err(report)
}

async fn server_errors(server: &Server) -> Test {
    let config = server.config("127.0.0.1").statement_timeout(Duration::from_secs(1));
    let client = connect(&config).await.map_err(report)?;
    let secret = "visible-value-4711";
    // Incompressible, so that it is too long for an index.
    let long: Vec<String> =
        (0..3_000_u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_string()).collect();
    let long = long.concat();
    client
        .batch_execute("CREATE TEMP TABLE words (name text PRIMARY KEY, body jsonb)")
        .await
        .map_err(|error| report(convert(error)))?;
    let table = [
        ("SELECT 1 FROM no_such_table".to_owned(), ErrorKind::Schema, false),
        ("SELECT no_such_column FROM pg_class".to_owned(), ErrorKind::Schema, false),
        ("SELECT 1 FROM no_such_schema.t".to_owned(), ErrorKind::Schema, false),
        ("SELECT pg_sleep(60)".to_owned(), ErrorKind::Timeout, false),
        (format!("SELECT '{secret}'::int"), ErrorKind::InvalidArgument, false),
        (format!("SELECT '{{\"a\": {secret}}}'::jsonb"), ErrorKind::InvalidArgument, false),
        (format!("SELECT '{{\"{secret}\": \"\\u0000\"}}'::jsonb"), ErrorKind::InvalidArgument, false),
        (format!("DO $$ BEGIN RAISE 'quota of \"{secret}\"'; END $$"), ErrorKind::Backend, false),
        (format!("INSERT INTO words VALUES ('{secret}', '1'), ('{secret}', '1')"), ErrorKind::Conflict, true),
        (format!("INSERT INTO words VALUES ('{secret}{long}', '1')"), ErrorKind::InvalidArgument, false),
        ("EXECUTE no_such_statement".to_owned(), ErrorKind::Conflict, true),
        (
            "BEGIN; SET LOCAL default_transaction_read_only = on; SET TRANSACTION READ ONLY; \
             CREATE TABLE no_such (a int)"
                .to_owned(),
            ErrorKind::Unsupported,
            false,
        ),
        ("SELEKT".to_owned(), ErrorKind::Backend, false),
    ];
    for (statement, kind, retryable) in table {
        let Err(error) = client.batch_execute(&statement).await else {
            return Err(format!("{statement:.60} was executed").into());
        };
        let stale = is_stale_statement(&error);
        check(stale == statement.starts_with("EXECUTE"), &format!("{statement:.60} stale={stale}"))?;
        let error = convert(error);
        let source = error.source().map(ToString::to_string).unwrap_or_default();
        let shown = format!("{error} {error:?} {source}");
        let found = (error.kind(), error.is_retryable());
        check(found == (kind, retryable), &format!("{statement:.60} is {found:?}: {shown}"))?;
        check(source.contains("SQLSTATE"), &format!("{statement:.60} lost the server's message: {shown}"))?;
        check(!shown.contains(secret), &format!("{statement:.60} shows the value: {shown}"))?;
        client.batch_execute("ROLLBACK").await.map_err(|error| report(convert(error)))?;
    }
    Ok(())
}

async fn changed_table(server: &Server) -> Test {
    let client = connect(&server.config("127.0.0.1")).await.map_err(report)?;
    let run = |sql: &'static str| client.batch_execute(sql);
    run("CREATE TEMP TABLE changing (a int)").await.map_err(|error| report(convert(error)))?;
    let statement = client.prepare("SELECT * FROM changing").await.map_err(|error| report(convert(error)))?;
    client.query(&statement, &[]).await.map_err(|error| report(convert(error)))?;
    // In any language of the server's messages.
    run("ALTER TABLE changing ADD b int").await.map_err(|error| report(convert(error)))?;
    let Err(error) = client.query(&statement, &[]).await else { return Err("the old plan was used".into()) };
    check(is_stale_statement(&error), "not seen as stale")?;
    let error = convert(error);
    check(error.kind() == ErrorKind::Conflict && error.is_retryable(), &format!("{error:?}"))
}

async fn cut_connection(server: &Server) -> Test {
    let pool = server.config("127.0.0.1").max_connections(2).pool().map_err(report)?;
    let client = pool.get().await.map_err(|error| report(convert_pool(error)))?;
    let row =
        client.query_one("SELECT pg_backend_pid()", &[]).await.map_err(|error| report(convert(error)))?;
    let pid: i32 = row.get(0);
    let admin = connect(&server.config("127.0.0.1")).await.map_err(report)?;
    admin
        .execute("SELECT pg_terminate_backend($1, 10000)", &[&pid])
        .await
        .map_err(|error| report(convert(error)))?;
    // Either the driver already knows that it was closed, or it gets the server's final message.
    let Err(error) = client.query_one("SELECT 1", &[]).await else { return Err("it is still there".into()) };
    let error = convert(error);
    check(error.kind() == ErrorKind::Unavailable && error.is_retryable(), &format!("{error:?}"))?;
    drop(client);
    // The pool does not hand out a connection that it knows is closed.
    let client = pool.get().await.map_err(|error| report(convert_pool(error)))?;
    client.query_one("SELECT 1", &[]).await.map(drop).map_err(|error| report(convert(error)))
}

async fn exhausted_pool(server: &Server) -> Test {
    let config = server.config("127.0.0.1").max_connections(2).acquire_timeout(Duration::from_millis(50));
    let pool = config.pool().map_err(report)?;
    let first = pool.get().await.map_err(|error| report(convert_pool(error)))?;
    let _second = pool.get().await.map_err(|error| report(convert_pool(error)))?;
    let Err(error) = pool.get().await else { return Err("a third connection of two".into()) };
    let error = convert_pool(error);
    check(error.kind() == ErrorKind::Timeout && error.is_retryable(), &format!("{error:?}"))?;
    check(error.message().contains("max_connections"), error.message())?;
    drop(first);
    pool.get().await.map(drop).map_err(|error| report(convert_pool(error)))?;
    pool.close();
    let Err(error) = pool.get().await else { return Err("a closed pool gave a connection".into()) };
    let error = convert_pool(error);
    check(error.kind() == ErrorKind::Unavailable && !error.is_retryable(), &format!("{error:?}"))
}

async fn through_pgbouncer(server: &Server) -> Test {
    let config = server.config("127.0.0.1");
    // It rejects the startup parameters that a direct server accepts.
    refused(&config, ErrorKind::InvalidConfig, "pgbouncer(true)").await?;
    let config = config.pgbouncer(true);
    let client = connect(&config).await.map_err(report)?;
    let rows = client.query_typed("SELECT 1", &[]).await.map_err(|error| report(convert(error)))?;
    check(rows.len() == 1, "no row")?;
    refused(&config.clone().password("wrong".to_owned().into()), ErrorKind::InvalidConfig, "password")
        .await?;
    Ok(())
}

/// A test that runs if its server is available, and is otherwise ignored, or failed if the server is required.
fn trial<S, F>(name: &'static str, on: Option<&Arc<S>>, missing: &'static str, test: F) -> Trial
where
    S: Send + Sync + 'static,
    F: for<'a> AsyncFnOnce(&'a S) -> Test + Send + 'static,
{
    let Some(server) = on.map(Arc::clone) else {
        return Trial::ignorable_test(name, move || {
            let required = std::env::var("CHECKPOINT_TEST_REQUIRE").unwrap_or_default();
            if required.split(',').any(|server| server.trim() == "postgres") {
                return Err(format!("CHECKPOINT_TEST_REQUIRE has postgres, but {missing}").into());
            }
            Ok(Completion::ignored_with(missing))
        });
    };
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(test(&server))
    })
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    match trials() {
        Ok(trials) => libtest_mimic::run(&arguments, trials).exit_code(),
        Err(failed) => {
            eprintln!("{}", failed.message().unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

fn trials() -> Result<Vec<Trial>, Failed> {
    let server = Server::from_env(POSTGRES)?.map(Arc::new);
    let bouncer = Server::from_env(PGBOUNCER)?.map(Arc::new);
    let certs = std::env::var_os("CHECKPOINT_TEST_POSTGRES_CERTS").filter(|folder| !folder.is_empty());
    let tls =
        Server::from_env(POSTGRES)?.zip(certs).map(|(server, certs)| Arc::new(Tls(server, certs.into())));
    let (on, no_server) = (server.as_ref(), "CHECKPOINT_TEST_POSTGRES_URL is not set");
    let (on_tls, no_certs) =
        (tls.as_ref(), "CHECKPOINT_TEST_POSTGRES_URL or CHECKPOINT_TEST_POSTGRES_CERTS is not set");
    Ok(vec![
        trial("tls::modes_without_verification", on_tls, no_certs, modes_without_verification),
        trial("tls::right_authority", on_tls, no_certs, right_authority),
        trial("tls::wrong_authority", on_tls, no_certs, wrong_authority),
        trial("tls::wrong_host_name", on_tls, no_certs, wrong_host_name),
        trial("tls::client_certificate", on_tls, no_certs, client_certificate),
        trial("startup_settings", on, no_server, startup_settings),
        trial("odd_password", on, no_server, odd_password),
        trial("failed_logins", on, no_server, failed_logins),
        trial("server_errors", on, no_server, server_errors),
        trial("changed_table", on, no_server, changed_table),
        trial("cut_connection", on, no_server, cut_connection),
        trial("exhausted_pool", on, no_server, exhausted_pool),
        trial(
            "through_pgbouncer",
            bouncer.as_ref(),
            "CHECKPOINT_TEST_PGBOUNCER_URL is not set",
            through_pgbouncer,
        ),
    ])
}
