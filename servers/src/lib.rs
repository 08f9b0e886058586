//! The servers that the tests run against. Each server is defined by its entry below: image, packages, start script,
//! port, variable, account. `cargo xtask servers` and the test binaries both read it.
//!
//! Each server uses its official image if a registry is reachable, otherwise an equivalent image that
//! `cargo xtask servers up` builds from Debian's packages. The entry's script starts the server in both, so that it
//! behaves the same.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// One server.
#[derive(Debug)]
#[non_exhaustive]
pub struct Server {
    /// The name on the command line: `cargo xtask servers up NAME`.
    pub name: &'static str,
    /// The family that `CHECKPOINT_TEST_REQUIRE` may name instead.
    pub family: &'static str,
    /// The environment variable of its URL.
    pub variable: &'static str,
    /// The official image. If `None`, the image from Debian's packages is always used.
    pub official: Option<&'static str>,
    /// Debian's release that has this version.
    pub suite: &'static str,
    /// The packages of that release.
    pub packages: &'static [&'static str],
    /// The shell script that starts the server.
    pub script: &'static str,
    /// The script's variables, in addition to those of the account.
    pub variables: &'static [(&'static str, &'static str)],
    /// The shell command that checks whether the server responds.
    pub probe: &'static str,
    /// The signal for a clean shutdown that does not wait for clients.
    pub stop_signal: &'static str,
    /// The port in the container.
    pub port: u16,
    /// The port on the host that `cargo xtask servers up` prefers.
    pub host_port: u16,
    /// How programs on this machine connect to it.
    pub network: Network,
    /// The scheme of its URLs.
    pub scheme: &'static str,
    /// The superuser, if the server has one.
    pub account: Option<Account>,
    /// The server that this one is a proxy for; the script reads its host from `SERVER_UPSTREAM`.
    pub before: Option<&'static Self>,
    /// The environment variable of the folder with its certificates, if it has any.
    pub certificates: Option<&'static str>,
}

/// How programs on this machine connect to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Network {
    /// Through a port that the container engine publishes. Its user-space proxy copies every byte.
    Published,
    /// On the host's own network, for measurements: there is no proxy in between. The server listens on loopback only,
    /// on the host's port.
    Host,
}

/// A user that may log in.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Account {
    /// The user's name.
    pub user: &'static str,
    /// The password.
    pub password: &'static str,
    /// The database that exists from the start.
    pub database: &'static str,
}

const POSTGRES_ACCOUNT: Account = Account { user: "postgres", password: "postgres", database: "postgres" };

const POSTGRES_PROBE: &str = "PGPASSWORD=$SERVER_PASSWORD /usr/lib/postgresql/*/bin/psql --host 127.0.0.1 \
    --port $SERVER_PORT --username $SERVER_USER --dbname $SERVER_DATABASE --no-psqlrc --command 'SELECT 1'";

macro_rules! servers {
    ($($(#[$attribute:meta])* $name:ident = $server:expr;)+) => {
        $($(#[$attribute])* pub static $name: Server = $server;)+

        /// Every server; a proxy comes after its upstream.
        pub static ALL: &[&Server] = &[$(&$name),+];
    };
}

servers! {
    /// PostgreSQL 17 with pgvector and TLS.
    POSTGRES = Server {
        name: "postgres",
        family: "postgres",
        variable: "CHECKPOINT_TEST_POSTGRES_URL",
        official: Some("pgvector/pgvector:pg17"),
        suite: "trixie",
        packages: &["postgresql-17", "postgresql-17-pgvector"],
        script: include_str!("../scripts/postgres.sh"),
        variables: &[("SERVER_LOCALE", "--locale=C.UTF-8")],
        probe: POSTGRES_PROBE,
        stop_signal: "INT",
        port: 5432,
        host_port: 25_432,
        network: Network::Published,
        scheme: "postgres",
        account: Some(POSTGRES_ACCOUNT),
        before: None,
        certificates: Some("CHECKPOINT_TEST_POSTGRES_CERTS"),
    };

    /// PostgreSQL 17 for benchmarks.
    BENCH_POSTGRES = Server {
        name: "bench-postgres",
        family: "bench",
        variable: "BENCH_PG_URL",
        official: Some("pgvector/pgvector:pg17"),
        suite: "trixie",
        packages: &["postgresql-17", "postgresql-17-pgvector"],
        script: include_str!("../scripts/postgres.sh"),
        // The server reads its port from PGPORT unless its configuration sets one.
        variables: &[("SERVER_LOCALE", "--locale=C.UTF-8"), ("PGPORT", "25499")],
        probe: POSTGRES_PROBE,
        stop_signal: "INT",
        port: 25_499,
        host_port: 25_499,
        network: Network::Host,
        scheme: "postgres",
        account: Some(POSTGRES_ACCOUNT),
        before: None,
        certificates: None,
    };

    /// PostgreSQL 15. It sorts text by a language's collation instead of by bytes, as many databases do.
    POSTGRES_15 = Server {
        name: "postgres-15",
        family: "postgres",
        variable: "CHECKPOINT_TEST_POSTGRES_15_URL",
        official: Some("pgvector/pgvector:pg15"),
        suite: "bookworm",
        // This release has no pgvector.
        packages: &["postgresql-15"],
        script: include_str!("../scripts/postgres.sh"),
        variables: &[("SERVER_LOCALE", "--locale=C.UTF-8 --locale-provider=icu --icu-locale=en-US")],
        probe: POSTGRES_PROBE,
        stop_signal: "INT",
        port: 5432,
        host_port: 25_415,
        network: Network::Published,
        scheme: "postgres",
        account: Some(POSTGRES_ACCOUNT),
        before: None,
        certificates: None,
    };

    /// PgBouncer in transaction mode in front of PostgreSQL 17. It has no official image, so Debian's package is used.
    PGBOUNCER = Server {
        name: "pgbouncer",
        family: "postgres",
        variable: "CHECKPOINT_TEST_PGBOUNCER_URL",
        official: None,
        suite: "trixie",
        packages: &["pgbouncer", "postgresql-client-17"],
        script: include_str!("../scripts/pgbouncer.sh"),
        variables: &[],
        probe: POSTGRES_PROBE,
        stop_signal: "QUIT",
        port: 6432,
        host_port: 26_432,
        network: Network::Published,
        scheme: "postgres",
        account: Some(POSTGRES_ACCOUNT),
        before: Some(&POSTGRES),
        certificates: None,
    };

    /// Redis 8.
    REDIS = Server {
        name: "redis",
        family: "redis",
        variable: "CHECKPOINT_TEST_REDIS_URL",
        official: Some("redis:8"),
        suite: "trixie",
        packages: &["redis-server"],
        script: include_str!("../scripts/redis.sh"),
        variables: &[("SERVER_PROGRAM", "redis-server")],
        probe: "redis-cli ping | grep PONG",
        stop_signal: "TERM",
        port: 6379,
        host_port: 26_379,
        network: Network::Published,
        scheme: "redis",
        account: None,
        before: None,
        certificates: None,
    };

    /// Valkey 8, with Redis's protocol.
    VALKEY = Server {
        name: "valkey",
        family: "redis",
        variable: "CHECKPOINT_TEST_VALKEY_URL",
        official: Some("valkey/valkey:8"),
        suite: "trixie",
        packages: &["valkey-server"],
        script: include_str!("../scripts/redis.sh"),
        variables: &[("SERVER_PROGRAM", "valkey-server")],
        probe: "valkey-cli ping | grep PONG",
        stop_signal: "TERM",
        port: 6379,
        host_port: 26_380,
        network: Network::Published,
        scheme: "redis",
        account: None,
        before: None,
        certificates: None,
    };
}

/// The listen address in a container's own network, and on the host's network.
const EVERYWHERE: &str = "listen_addresses = '*'";
const LOOPBACK: &str = "listen_addresses = '127.0.0.1'";

/// A container's shared memory in bytes: Docker's 64 MB are too small for PostgreSQL.
pub const SHARED_MEMORY: u64 = 1 << 30;

/// The server with this name.
pub fn find(name: &str) -> Option<&'static Server> {
    ALL.iter().find(|server| server.name == name).copied()
}

impl Server {
    /// The URL of the server on this port of this machine.
    pub fn url(&self, port: u16) -> String {
        let scheme = self.scheme;
        match self.account {
            Some(Account { user, password, database }) => {
                format!("{scheme}://{user}:{password}@127.0.0.1:{port}/{database}")
            }
            None => format!("{scheme}://127.0.0.1:{port}"),
        }
    }

    /// The variables of script and probe. `upstream` is the host name of the upstream server.
    pub fn environment(&self, upstream: Option<&str>) -> Vec<(&'static str, String)> {
        let mut all = vec![("SERVER_PORT", self.port.to_string())];
        if let Some(Account { user, password, database }) = self.account {
            all.push(("SERVER_USER", user.into()));
            all.push(("SERVER_PASSWORD", password.into()));
            all.push(("SERVER_DATABASE", database.into()));
        }
        if let Some(upstream) = upstream {
            all.push(("SERVER_UPSTREAM", upstream.into()));
        }
        all.extend(self.variables.iter().map(|(name, value)| (*name, (*value).to_owned())));
        all
    }

    /// The name of the image from Debian's packages. It changes with the image's contents. Its registry is this machine, so
    /// that no foreign image can be pulled under that name.
    pub fn stand_in(&self) -> String {
        format!("localhost/checkpoint-servers-{}:{}", self.suite, hash(&dockerfile(self.suite)))
    }

    /// The script that the container runs. On the host's network the server listens on loopback only.
    pub fn start(&self) -> String {
        match self.network {
            Network::Published => self.script.to_owned(),
            Network::Host => self.script.replace(EVERYWHERE, LOOPBACK),
        }
    }

    /// A fingerprint that changes when a container of this server must be recreated.
    pub fn fingerprint(&self) -> String {
        hash(&format!("{}\0{:?}\0{}", self.start(), self.environment(None), self.stop_signal))
    }
}

/// The Dockerfile of a release's image, which contains every server of that release. `BASE` is an image of the bare
/// release; `host-apt.conf` in the build's folder has the host's settings for reaching Debian's packages.
pub fn dockerfile(suite: &str) -> String {
    let mut packages: Vec<_> = ALL
        .iter()
        .filter(|server| server.suite == suite)
        .flat_map(|server| server.packages)
        .copied()
        .collect();
    packages.sort_unstable();
    packages.dedup();
    let packages = packages.join(" ");
    format!(
        "ARG BASE\n\
         FROM $BASE\n\
         COPY host-apt.conf /etc/apt/apt.conf.d/90host\n\
         RUN mkdir -p /etc/postgresql-common \\\n \
         && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf \\\n \
         && echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/unsafe-io \\\n \
         && apt-get update \\\n \
         && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \\\n    \
         -o Dpkg::Options::=--force-confold {packages} \\\n \
         && rm -rf /var/lib/apt/lists/* /etc/apt/apt.conf.d/90host\n"
    )
}

/// A free port of this machine: the preferred one, or else another.
///
/// It is below the ephemeral range: otherwise a client could get the port of a stopped server as its own, and block the
/// server's restart.
///
/// # Errors
/// When none is free.
pub fn free_port(preferred: Option<u16>) -> std::io::Result<u16> {
    // A port that was returned is not in use yet, so the next caller searches after it.
    static GIVEN: Mutex<Option<u16>> = Mutex::new(None);
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    // A starting point that differs between processes, since several may search at the same time.
    let first = given.map_or_else(
        || {
            let offset = std::process::id() % u32::from(PORTS.end - PORTS.start);
            PORTS.start + u16::try_from(offset).unwrap_or_default()
        },
        |given| given + 1,
    );
    let mut failure = ErrorKind::AddrInUse.into();
    for port in preferred.into_iter().chain(first..PORTS.end).chain(PORTS.start..first) {
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(_) => {
                if PORTS.contains(&port) {
                    *given = Some(port);
                }
                return Ok(port);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// The range that is searched for free ports.
const PORTS: Range<u16> = 27_000..32_000;

fn hash(text: &str) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_ports_and_variables_are_unique() {
        let distinct =
            |of: fn(&Server) -> String| ALL.iter().map(|server| of(server)).collect::<HashSet<_>>().len();
        assert_eq!(distinct(|server| server.name.to_owned()), ALL.len());
        assert_eq!(distinct(|server| server.variable.to_owned()), ALL.len());
        assert_eq!(distinct(|server| server.host_port.to_string()), ALL.len());
    }

    #[test]
    fn a_proxy_comes_after_its_upstream() {
        for (at, server) in ALL.iter().enumerate() {
            if let Some(upstream) = server.before {
                assert!(ALL[..at].iter().any(|earlier| earlier.name == upstream.name), "{}", server.name);
            }
        }
    }

    #[test]
    fn the_dockerfile_has_only_the_packages_of_its_release() {
        let text = dockerfile("trixie");
        for server in ALL {
            for package in server.packages {
                assert_eq!(text.contains(package), server.suite == "trixie", "{package}");
            }
        }
        assert_ne!(POSTGRES.stand_in(), POSTGRES_15.stand_in());
        assert_eq!(POSTGRES.stand_in(), PGBOUNCER.stand_in());
    }

    #[test]
    fn the_fingerprint_changes_with_the_entry() {
        assert_ne!(POSTGRES.fingerprint(), POSTGRES_15.fingerprint());
        assert_eq!(POSTGRES.fingerprint(), POSTGRES.fingerprint());
    }

    #[test]
    fn a_server_on_the_hosts_network_listens_on_loopback_and_its_port() {
        for server in ALL.iter().filter(|server| server.network == Network::Host) {
            let start = server.start();
            assert!(start.contains(LOOPBACK) && !start.contains(EVERYWHERE), "{}", server.name);
            assert_eq!(server.port, server.host_port, "{}", server.name);
            let port = server.port.to_string();
            assert!(server.variables.iter().any(|(_, value)| *value == port), "{}", server.name);
        }
        assert!(POSTGRES.start().contains(EVERYWHERE));
    }

    #[test]
    fn urls_with_and_without_an_account() {
        assert_eq!(POSTGRES.url(7), "postgres://postgres:postgres@127.0.0.1:7/postgres");
        assert_eq!(REDIS.url(7), "redis://127.0.0.1:7");
    }

    #[test]
    fn a_port_in_use_is_not_returned() {
        let port = free_port(None).unwrap();
        let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
        assert_ne!(free_port(Some(port)).unwrap(), port);
    }
}
