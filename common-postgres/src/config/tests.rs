use std::collections::HashMap;
use std::error::Error as _;

use checkpoint_core::ErrorKind;
use tokio_postgres::config::{Host, SslMode as DriverMode, TargetSessionAttrs};

use super::*;

/// A connection string with an empty environment.
fn alone(text: &str) -> Result<PostgresConfig> {
    PostgresConfig::from_conn_string_and(text, |_| None)
}

fn read(url: &str) -> Config {
    alone(url).unwrap().driver_config().unwrap()
}

fn tcp(name: &str) -> Host {
    Host::Tcp(name.to_owned())
}

fn refused(url: &str) -> Error {
    let error = match alone(url).and_then(|config| config.pool().map(drop)) {
        Ok(()) => panic!("{url} was accepted"),
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
    assert!(!error.is_retryable());
    error
}

#[test]
fn a_url_is_read_as_libpq_reads_it() {
    type Expected<'a> = (&'a str, Vec<Host>, &'a [u16], Option<&'a str>, Option<&'a str>, Option<&'a str>);
    let table: Vec<Expected<'_>> = vec![
        ("postgres://", vec![tcp("localhost")], &[], None, None, None),
        ("postgresql://h", vec![tcp("h")], &[], None, None, None),
        ("postgres://:1", vec![tcp("localhost")], &[1], None, None, None),
        ("postgres:///db", vec![tcp("localhost")], &[], None, None, Some("db")),
        ("postgres://u@h/", vec![tcp("h")], &[], Some("u"), None, None),
        ("postgres://u:@h:1/db", vec![tcp("h")], &[1], Some("u"), None, Some("db")),
        ("postgres://u:p@h:1/db", vec![tcp("h")], &[1], Some("u"), Some("p"), Some("db")),
        ("postgres://u:p:q@h", vec![tcp("h")], &[], Some("u"), Some("p:q"), None),
        ("postgres://u:p?#q@h", vec![tcp("h")], &[], Some("u"), Some("p?#q"), None),
        (
            "postgres://us%40er:%40%3A%2f%25%3F%20%C3%A9+@h/d%2Fb",
            vec![tcp("h")],
            &[],
            Some("us@er"),
            Some("@:/%? é+"),
            Some("d/b"),
        ),
        ("postgres://[::1]:7/db", vec![tcp("::1")], &[7], None, None, Some("db")),
        ("postgres://[::1]", vec![tcp("::1")], &[], None, None, None),
        (
            "postgres://a:1,b,[::1]:3/db",
            vec![tcp("a"), tcp("b"), tcp("::1")],
            &[1, 5432, 3],
            None,
            None,
            Some("db"),
        ),
        ("postgres://%2Frun%2Fpg/db", vec![Host::Unix("/run/pg".into())], &[], None, None, Some("db")),
        (
            "postgres:///db?host=/run/pg&port=7",
            vec![Host::Unix("/run/pg".into())],
            &[7],
            None,
            None,
            Some("db"),
        ),
        (
            "postgres://?host=a,b&port=1,&user=u&password=p%26q%3D&dbname=d",
            vec![tcp("a"), tcp("b")],
            &[1, 5432],
            Some("u"),
            Some("p&q="),
            Some("d"),
        ),
        ("postgres://?hostaddr=127.0.0.1", vec![tcp("127.0.0.1")], &[], None, None, None),
        ("postgres://h?sslmode=&pool_size=&", vec![tcp("h")], &[], None, None, None),
    ];
    for (url, hosts, ports, user, password, database) in table {
        let config = read(url);
        assert_eq!(config.get_hosts(), hosts, "{url}");
        assert_eq!(config.get_ports(), ports, "{url}");
        assert_eq!(config.get_user(), user, "{url}");
        assert_eq!(config.get_password(), password.map(str::as_bytes), "{url}");
        assert_eq!(config.get_dbname(), database, "{url}");
    }
}

#[test]
fn parameters_are_applied() {
    let url = "postgres://h/d?application_name=a%20b&connect_timeout=3&target_session_attrs=read-write&keepalives_idle=9\
               &keepalives_interval=8&keepalives_count=7&tcp_user_timeout=1500&load_balance_hosts=random&options=-c%20a=b\
               &channel_binding=disable&pool_size=7&acquire_timeout=250ms&statement_timeout=90s";
    let config = alone(url).unwrap();
    assert_eq!(config.max_connections, 7);
    assert_eq!(config.acquire_timeout, Duration::from_millis(250));
    assert_eq!(config.statement_timeout, Some(Duration::from_secs(90)));
    let driver = config.driver_config().unwrap();
    assert_eq!(driver.get_application_name(), Some("a b"));
    assert_eq!(driver.get_connect_timeout(), Some(&Duration::from_secs(3)));
    assert_eq!(driver.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
    assert_eq!(driver.get_keepalives_idle(), Duration::from_secs(9));
    assert_eq!(driver.get_keepalives_interval(), Some(Duration::from_secs(8)));
    assert_eq!(driver.get_keepalives_retries(), Some(7));
    assert_eq!(driver.get_tcp_user_timeout(), Some(&Duration::from_millis(1500)));
    assert_eq!(
        driver.get_options(),
        Some(
            "-c plan_cache_mode=force_generic_plan -c enable_sort=off -c jit=off -c a=b -c statement_timeout=90000"
        )
    );
}

#[test]
fn defaults_match_the_documentation() {
    let config = PostgresConfig::new("h", "u", "d");
    assert_eq!(config.effective_ssl_mode(), SslMode::Prefer);
    assert!(!config.uses_pgbouncer());
    let driver = config.driver_config().unwrap();
    assert_eq!(driver.get_connect_timeout(), Some(&Duration::from_secs(10)));
    assert_eq!(driver.get_application_name(), Some("checkpoint-postgres"));
    assert_eq!(
        driver.get_options(),
        Some("-c plan_cache_mode=force_generic_plan -c enable_sort=off -c jit=off")
    );
    assert!(driver.get_keepalives());
    assert_eq!(driver.get_keepalives_idle(), Duration::from_secs(60));
    assert_eq!(driver.get_tcp_user_timeout(), Some(&Duration::from_secs(30)));
    let pool = config.pool().unwrap();
    assert_eq!(pool.status().max_size, 10);
    assert_eq!(pool.timeouts().wait, Some(Duration::from_secs(30)));
    assert_eq!(pool.timeouts().create, Some(Duration::from_secs(10)));
    let three =
        PostgresConfig::new("a,b,c", "u", "d").connect_timeout(Duration::from_secs(2)).pool().unwrap();
    assert_eq!(three.timeouts().create, Some(Duration::from_secs(6)), "each host has its own timeout");
    let endless = alone("postgres://h?connect_timeout=0").unwrap();
    assert_eq!(endless.driver_config().unwrap().get_connect_timeout(), None);
    assert_eq!(endless.pool().unwrap().timeouts().create, None);
}

#[test]
fn durations_have_units() {
    let table = [
        ("statement_timeout", "1500", Some(1_500_000)),
        ("statement_timeout", "0", None),
        ("statement_timeout", "500us", Some(500)),
        ("statement_timeout", "2min", Some(120_000_000)),
        ("statement_timeout", "1 h", Some(3_600_000_000)),
        ("statement_timeout", "1d", Some(86_400_000_000)),
        ("connect_timeout", "7", Some(7_000_000)),
        ("connect_timeout", "200ms", Some(200_000)),
        ("connect_timeout", "0", None),
    ];
    for (key, value, micros) in table {
        let mut config = PostgresConfig::empty();
        config.set(key, value).unwrap();
        let found = if key == "connect_timeout" { config.connect_timeout } else { config.statement_timeout };
        assert_eq!(found, micros.map(Duration::from_micros), "{key}={value}");
    }
    for value in ["-1", "s", "1.5s", "1w", "99999999999999999999", "99999999999999d", "soon"] {
        assert_eq!(
            PostgresConfig::empty().set("acquire_timeout", value).unwrap_err().kind(),
            ErrorKind::InvalidConfig
        );
    }
    let least = PostgresConfig::new("h", "u", "d").statement_timeout(Duration::from_nanos(1));
    assert!(
        least.startup_options().unwrap().ends_with("statement_timeout=1"),
        "zero would disable the timeout"
    );
}

#[test]
fn invalid_parameters_are_rejected_by_name() {
    let table = [
        ("mysql://h/d", "begin with postgres://"),
        ("postgres://h/d?colour=red", "colour"),
        ("postgres://h/d?sslmode=allow", "allow"),
        ("postgres://h/d?sslmode=on", "sslmode"),
        ("postgres://h/d?sslmode", "no ="),
        ("postgres://h/d?pool_size=1", "at least 2"),
        ("postgres://h/d?pool_size=many", "pool_size"),
        ("postgres://h/d?pgbouncer=maybe", "pgbouncer"),
        ("postgres://h/d?pgbouncer=true&statement_timeout=5s", "ALTER ROLE"),
        ("postgres://h/d?statement_timeout=25d", "24 days"),
        ("postgres://h/d?connect_timeout=soon", "connect_timeout"),
        ("postgres://h/d?target_session_attrs=primary", "target_session_attrs"),
        ("postgres://h/d?channel_binding=no", "channel_binding"),
        ("postgres://h/d?load_balance_hosts=yes", "load_balance_hosts"),
        ("postgres://h/d?keepalives_count=x", "keepalives_count"),
        ("postgres://h/d?hostaddr=h", "hostaddr"),
        ("postgres://a,b/d?hostaddr=127.0.0.1", "hostaddr"),
        ("postgres://a,b/d?port=1,2,3", "one for each host"),
        ("postgres://h/d?port=0", "port"),
        ("postgres://h:99999/d", "port"),
        ("postgres://h:0/d", "port"),
        ("postgres://h:x/d", "port"),
        ("postgres://[::1/d", "closing ]"),
        ("postgres://[::1]x/d", "only a port"),
        ("postgres://h/d%00", "%00"),
        ("postgres://h/d%2", "hexadecimal"),
        ("postgres://h/d%zz", "hexadecimal"),
        ("postgres://h/d%ff", "UTF-8"),
        ("postgres://h/d\0", "NUL"),
        ("postgres://u@h@i/d", "an @"),
        ("postgres://h/d@e", "an @"),
        ("postgres://h/d?sslnegotiation=direct", "sslnegotiation=direct"),
        ("postgres://h/d?sslrootcert=system&sslmode=require", "verify-full"),
        ("postgres://h/d?sslmode=verify-ca", "sslrootcert"),
        ("postgres://h/d?sslcert=/c", "sslkey"),
        ("postgres://h/d?sslkey=/k", "sslcert"),
        ("postgres://%2Frun,h/d?sslmode=require", "Unix socket"),
    ];
    for (url, words) in table {
        let error = refused(url);
        assert!(error.to_string().contains(words), "{url}: {error}");
    }
    for config in [
        PostgresConfig::new("h", "u\0", "d"),
        PostgresConfig::new("h", "u", "d\0"),
        PostgresConfig::new("h\0", "u", "d"),
        PostgresConfig::new("h", "u", "d").application_name("\0"),
        PostgresConfig::new("h", "u", "d").password("\0".to_owned().into()),
        PostgresConfig::new("h", "u", "d").port(0),
        PostgresConfig::new("h", "u", "d").max_connections(1),
    ] {
        assert_eq!(
            config.pool().err().map(|error| error.kind()),
            Some(ErrorKind::InvalidConfig),
            "{config:?}"
        );
    }
}

#[test]
fn an_empty_value_means_not_set_for_every_parameter() {
    for key in parameters::KNOWN.into_iter().filter(|key| *key != "ssl") {
        let mut config = PostgresConfig::empty();
        config.set(key, "").unwrap();
        if let Err(error) = config.set(key, "?") {
            assert!(error.to_string().starts_with(&format!("`{key}` must be")), "{key}: {error}");
        }
    }
    assert!(PostgresConfig::empty().set("colour", "").unwrap_err().to_string().contains("is unknown"));
}

#[test]
fn pgbouncer_gets_only_the_users_own_options() {
    let config = alone("postgres://h/d?pgbouncer=true").unwrap();
    assert!(config.uses_pgbouncer());
    assert_eq!(config.driver_config().unwrap().get_options(), None);
    let config = alone("postgres://h/d?pgbouncer=on&options=-c%20a=b").unwrap();
    assert_eq!(config.driver_config().unwrap().get_options(), Some("-c a=b"));
}

#[test]
fn tls_modes() {
    let table = [
        ("postgres://h", SslMode::Prefer, DriverMode::Prefer),
        ("postgres://h?ssl=true", SslMode::Require, DriverMode::Require),
        ("postgres://h?sslmode=disable", SslMode::Disable, DriverMode::Disable),
        ("postgres://h?sslmode=prefer", SslMode::Prefer, DriverMode::Prefer),
        ("postgres://h?sslmode=require", SslMode::Require, DriverMode::Require),
        ("postgres://h?sslmode=verify-ca", SslMode::VerifyCa, DriverMode::Require),
        ("postgres://h?sslmode=verify-full", SslMode::VerifyFull, DriverMode::Require),
        ("postgres://h?sslrootcert=system", SslMode::VerifyFull, DriverMode::Require),
        ("postgres://h?sslrootcert=/ca.crt", SslMode::Prefer, DriverMode::Prefer),
        // Unix sockets never use TLS, regardless of the mode.
        ("postgres://%2Frun?sslmode=verify-full", SslMode::Disable, DriverMode::Disable),
    ];
    for (url, mode, driver) in table {
        let config = alone(url).unwrap();
        assert_eq!(config.effective_ssl_mode(), mode, "{url}");
        assert_eq!(config.driver_config().unwrap().get_ssl_mode(), driver, "{url}");
    }
    // Unneeded files are not read.
    alone("postgres://h?sslmode=disable&sslrootcert=/no/such/file").unwrap().pool().unwrap();
}

#[test]
fn the_environment_is_read_under_libpqs_names() {
    let variables: HashMap<&str, &str> = HashMap::from([
        ("PGHOST", "a,/run"),
        ("PGPORT", "1,2"),
        ("PGUSER", "u"),
        ("PGPASSWORD", "p@:/%41"),
        ("PGDATABASE", "d"),
        ("PGAPPNAME", "app"),
        ("PGCONNECT_TIMEOUT", "4"),
        ("PGOPTIONS", "-c a=b"),
        ("PGSSLMODE", ""),
        ("PGTARGETSESSIONATTRS", "read-only"),
    ]);
    let config = PostgresConfig::from_variables(|name| variables.get(name).map(Into::into)).unwrap();
    let driver = config.driver_config().unwrap();
    assert_eq!(driver.get_hosts(), [tcp("a"), Host::Unix("/run".into())]);
    assert_eq!(driver.get_ports(), [1, 2]);
    assert_eq!(driver.get_user(), Some("u"));
    assert_eq!(driver.get_password(), Some(&b"p@:/%41"[..]), "variables are not percent-encoded");
    assert_eq!(driver.get_dbname(), Some("d"));
    assert_eq!(driver.get_application_name(), Some("app"));
    assert_eq!(driver.get_connect_timeout(), Some(&Duration::from_secs(4)));
    assert_eq!(
        driver.get_options(),
        Some("-c plan_cache_mode=force_generic_plan -c enable_sort=off -c jit=off -c a=b")
    );
    assert_eq!(driver.get_target_session_attrs(), TargetSessionAttrs::ReadOnly);

    for (name, value) in
        [("PGPORT", "x"), ("PGSSLMODE", "allow"), ("PGSERVICE", "s"), ("PGREQUIREAUTH", "none")]
    {
        let error =
            PostgresConfig::from_variables(|asked| (asked == name).then(|| value.into())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn a_connection_string_overrides_the_environment() {
    let variables: HashMap<&str, &str> = HashMap::from([
        ("PGHOST", "e"),
        ("PGPORT", "9"),
        ("PGUSER", "eu"),
        ("PGPASSWORD", "ep"),
        ("PGDATABASE", "ed"),
        ("PGAPPNAME", "ea"),
        ("PGGSSENCMODE", "prefer"),
        ("PGCLIENTENCODING", "UTF8"),
    ]);
    let read = |text: &str| {
        let lookup = |name: &'static str| variables.get(name).map(Into::into);
        PostgresConfig::from_conn_string_and(text, lookup).unwrap().driver_config().unwrap()
    };
    let table = [
        ("", "e", 9, "eu", "ep", "ed"),
        ("postgres://", "e", 9, "eu", "ep", "ed"),
        ("postgresql://h", "h", 9, "eu", "ep", "ed"),
        ("postgresql://:7", "e", 7, "eu", "ep", "ed"),
        ("postgresql://u@h:7/d", "h", 7, "u", "ep", "d"),
        ("postgresql://u:p@h:7/d?gssencmode=disable&sslcompression=0", "h", 7, "u", "p", "d"),
        ("host=h", "h", 9, "eu", "ep", "ed"),
        ("  host = h  port=7\tuser=u\npassword=p dbname=d ", "h", 7, "u", "p", "d"),
        ("host='' user='u v' password='it\\'s \\\\ = ' dbname=", "e", 9, "u v", "it's \\ = ", "ed"),
        ("password=a\\ b\\'c dbname=x=y user='u'port=7", "e", 7, "u", "a b'c", "x=y"),
        ("password=postgres://x host=h", "h", 9, "eu", "postgres://x", "ed"),
        ("password=p\\", "e", 9, "eu", "p", "ed"),
    ];
    for (text, host, port, user, password, database) in table {
        let config = read(text);
        assert_eq!(config.get_hosts(), [tcp(host)], "{text}");
        assert_eq!(config.get_ports(), [port], "{text}");
        assert_eq!(config.get_user(), Some(user), "{text}");
        assert_eq!(config.get_password(), Some(password.as_bytes()), "{text}");
        assert_eq!(config.get_dbname(), Some(database), "{text}");
        assert_eq!(config.get_application_name(), Some("ea"), "{text}");
    }
    let names = |text: &str| alone(text).map(|config| config.application_name).unwrap();
    assert_eq!(names("fallback_application_name=f"), "f");
    assert_eq!(names("fallback_application_name=f application_name=a"), "a");
    assert_eq!(names("application_name=a fallback_application_name=f"), "a");
    let refused = [
        ("host", "no ="),
        ("host h", "no ="),
        ("host='h", "no closing quote"),
        ("colour=red", "colour"),
        ("host=h\0", "NUL"),
        ("mysql://u:hunter2@h/d", "postgres://"),
        ("gssencmode=require", "gssencmode"),
        ("postgres://h?gssencmode=require", "gssencmode"),
        ("client_encoding=latin1", "UTF8"),
        ("ssl_min_protocol_version=TLSv1.3", "TLSv1.2"),
        // No part of a password is shown.
        ("password=correct hunter2=horse", "is unknown"),
        ("password=correct hunter2", "no ="),
        ("password=correct 'hunter2", "no ="),
        ("password='hunter2", "no closing quote"),
    ];
    for (text, words) in refused {
        let error = alone(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{text}");
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(words) && !shown.contains("hunter2"), "{text}: {shown}");
    }
}

#[test]
fn different_names_of_one_database_are_recognized() {
    let same = |one: &str, other: &str| {
        let (one, other) = (alone(one).unwrap(), alone(other).unwrap());
        assert_eq!(one.is_same_database(&other), other.is_same_database(&one));
        one.is_same_database(&other)
    };
    let one = "postgres://me:pw@localhost/agents";
    for other in [
        one,
        "postgresql://you@127.0.0.1:5432/agents?sslmode=disable",
        "postgres://[::1]/agents",
        "postgres://agents@LOCALHOST",
        "postgres:///agents",
        "dbname=agents",
        "host=localhost dbname=agents port=5432 pgbouncer=true",
        "host=db hostaddr=127.0.0.1 dbname=agents",
        "postgres://standby,localhost:5432/agents",
    ] {
        assert!(same(one, other), "{other}");
    }
    for other in [
        "postgres://localhost:5433/agents",
        "postgres://localhost/agents?schema=s",
        "postgres://localhost/other",
        "postgres://db/agents",
        "host=/run/postgresql dbname=agents",
        "postgres://localhost:5433,db:5432/agents",
    ] {
        assert!(!same(one, other), "{other}");
    }
    assert!(same("postgres://h/d?schema=%C3%A4%25", "host=h dbname=d schema=ä%"));
    let variables = HashMap::from([("PGHOST", "h"), ("PGPORT", "7"), ("PGDATABASE", "d")]);
    let lookup = |name: &'static str| variables.get(name).map(Into::into);
    let from_env = PostgresConfig::from_conn_string_and("", lookup).unwrap();
    assert!(from_env.is_same_database(&alone("postgres://h:7/d").unwrap()));
}

#[test]
fn connection_strings_are_recognized() {
    for text in [
        "postgres://",
        "postgresql://u@h/d",
        "host=h",
        "  dbname = 'a b' host=h",
        "sslmode=require",
        "schema=s",
    ] {
        assert!(PostgresConfig::is_conn_string(text), "{text}");
    }
    for text in
        ["", "host", "sqlite:agents", "sqlite:host=h", "postgres:agents", "colour=red", "=", "redis://h"]
    {
        assert!(!PostgresConfig::is_conn_string(text), "{text}");
    }
}

#[test]
fn the_schema_is_set_by_url_by_pairs_and_by_setter() {
    for text in ["postgres://h/d?schema=a%20b", "host=h schema='a b'", "host=h schema=x schema='a b'"] {
        assert_eq!(alone(text).unwrap().schema.as_deref(), Some("a b"), "{text}");
    }
    assert_eq!(alone("postgres://h/d?schema=").unwrap().schema, None);
    assert_eq!(alone("host=h").unwrap().schema("s").schema.as_deref(), Some("s"));
    for wrong in ["postgres://h/d?schema=%", "postgres://h/d?schema=%zz", "postgres://h/d?schema=%ff"] {
        assert_eq!(alone(wrong).unwrap_err().kind(), ErrorKind::InvalidConfig, "{wrong}");
    }
}

#[test]
fn the_password_is_never_shown() {
    let secret = "hunter2";
    let config = alone("postgres://u:hunter2@h/d").unwrap();
    let pool = config.pool().unwrap();
    for shown in
        [format!("{config:?}"), format!("{config:#?}"), format!("{pool:?}"), format!("{:?}", pool.manager())]
    {
        assert!(!shown.contains(secret), "{shown}");
    }
    assert!(format!("{config:?}").contains("redacted"));
    // A password that was not encoded may end up in any part of the URL.
    for url in [
        "postgre://u:hunter2@h/d",
        "postgres://u:hunter2/x@h/d",
        "postgres://u:5432/hunter2@h/d",
        "postgres://u:x/hunter2?x@h/d",
        "postgres://u:5432/x?hunter2@h/d",
        "postgres://u:5432/x?hunter2=1@h/d",
        "postgres://u:x@hunter2@h/d",
        "postgres://u:hunter2%@h/d",
        "postgres://u:hunter2%zz@h/d",
        "postgres://u:hunter2%00@h/d",
        "postgres://u:hunter2%ff@h/d",
        "postgres://u:hunter2\0@h/d",
        "postgres://u:hunter2@h:x/d",
        "postgres://u:hunter2@h/d?colour=red",
        "postgres://u:hunter2@h/d?sslmode=allow",
        "postgres://u:x/y[hunter2@h/d",
        "postgres://[hunter2/d",
        "postgres://u:hunter2@h/d?pool_size=1",
        "postgres://u:hunter2@h/d?sslrootcert=/no/such/file",
        "postgres://h/d?password=hunter2%00",
        "postgres://h:hunter2/d",
    ] {
        let error = refused(url);
        let shown = format!("{error} {error:?} {:?}", error.source());
        assert!(!shown.contains(secret), "{url}: {shown}");
    }
}

#[test]
fn servers_are_shown_without_anything_else() {
    for (text, expected) in [
        ("postgres://", &["localhost:5432"][..]),
        ("postgres://u:PASSWORD@Db.example:1/d", &["Db.example:1"]),
        ("postgres://u:PASSWORD@a:1,b:2,c/d", &["a:1", "b:2", "c:5432"]),
        ("host=a,,c port=7 password=PASSWORD", &["a:7", "localhost:7", "c:7"]),
        ("host=/run/postgresql/ port=7", &["/run/postgresql/.s.PGSQL.7"]),
        ("host=a,b hostaddr=10.0.0.1,::1", &["a:5432 at 10.0.0.1", "b:5432 at ::1"]),
        ("hostaddr=::1", &["[::1]:5432"]),
        ("postgres://[::1]:6", &["[::1]:6"]),
    ] {
        assert_eq!(alone(text).unwrap().shown_servers(), expected, "{text}");
    }
}
