//! The servers that the tests run against. Everything about a server stands in its one entry below: image, packages,
//! start, port, variable, account. `cargo xtask servers` and the test binaries both read it.
//!
//! Each server comes from its official image where a registry answers, else from an image of the same kind that
//! `cargo xtask servers up` builds from Debian's packages. In both, the entry's own script starts the server, so that
//! it behaves the same whichever image it is.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// One server.
#[derive(Debug)]
#[non_exhaustive]
pub struct Server {
    /// What people call it: `cargo xtask servers up NAME`.
    pub name: &'static str,
    /// The family that `CHECKPOINT_TEST_REQUIRE` may name instead.
    pub family: &'static str,
    /// The environment variable of its URL.
    pub variable: &'static str,
    /// The official image; without one, the image from Debian's packages is always used.
    pub official: Option<&'static str>,
    /// Debian's release that has this version.
    pub suite: &'static str,
    /// The packages of that release.
    pub packages: &'static [&'static str],
    /// What the shell of the container runs.
    pub script: &'static str,
    /// The script's variables, besides those of the account.
    pub variables: &'static [(&'static str, &'static str)],
    /// What the shell of the container runs to find out whether the server answers.
    pub probe: &'static str,
    /// The signal that stops the server in an orderly way, without waiting for its clients.
    pub stop_signal: &'static str,
    /// The port in the container.
    pub port: u16,
    /// The port on the host that `cargo xtask servers up` prefers.
    pub host_port: u16,
    /// How programs on this machine reach it.
    pub network: Network,
    /// How its URLs begin.
    pub scheme: &'static str,
    /// The superuser, where the server has one.
    pub account: Option<Account>,
    /// The server that this one stands before; the script finds its host in `SERVER_UPSTREAM`.
    pub before: Option<&'static Self>,
    /// The environment variable of the folder with its certificates, where it has some.
    pub certificates: Option<&'static str>,
}

/// How programs on this machine reach a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Network {
    /// By a port that the container engine publishes. Its user-space proxy copies every byte.
    Published,
    /// On the host's own network, for measurements: nothing is between a program and the server. The server listens on
    /// loopback only, on the port of the host.
    Host,
}

/// Who may log in.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Account {
    /// The user's name.
    pub user: &'static str,
    /// The password.
    pub password: &'static str,
    /// The database that is there from the start.
    pub database: &'static str,
}

const POSTGRES_ACCOUNT: Account = Account { user: "postgres", password: "postgres", database: "postgres" };

const POSTGRES_PROBE: &str = "PGPASSWORD=$SERVER_PASSWORD /usr/lib/postgresql/*/bin/psql --host 127.0.0.1 \
    --port $SERVER_PORT --username $SERVER_USER --dbname $SERVER_DATABASE --no-psqlrc --command 'SELECT 1'";

macro_rules! servers {
    ($($(#[$attribute:meta])* $name:ident = $server:expr;)+) => {
        $($(#[$attribute])* pub static $name: Server = $server;)+

        /// Every server; one that stands before another comes after it.
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
        // The server reads its port from PGPORT, where no configuration names one.
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

    /// PostgreSQL 15. Its text is sorted as people sort it, not by bytes, which is what many databases do.
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

    /// PgBouncer in transaction mode before PostgreSQL 17. The project has no official image: Debian's package it is.
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

    /// Valkey 8, which speaks Redis's protocol.
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

/// Where a server listens in a container of its own, and on the host's network.
const EVERYWHERE: &str = "listen_addresses = '*'";
const LOOPBACK: &str = "listen_addresses = '127.0.0.1'";

/// How much shared memory a container gets, in bytes: Docker's 64 MB are too few for PostgreSQL.
pub const SHARED_MEMORY: u64 = 1 << 30;

/// The server of a name.
pub fn find(name: &str) -> Option<&'static Server> {
    ALL.iter().find(|server| server.name == name).copied()
}

impl Server {
    /// Its URL when it listens on a port of this machine.
    pub fn url(&self, port: u16) -> String {
        let scheme = self.scheme;
        match self.account {
            Some(Account { user, password, database }) => {
                format!("{scheme}://{user}:{password}@127.0.0.1:{port}/{database}")
            }
            None => format!("{scheme}://127.0.0.1:{port}"),
        }
    }

    /// The variables of script and probe. The upstream is the host name of the server that it stands before.
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

    /// The name of the image from Debian's packages. It changes with what is in it, and the registry in it is this
    /// machine, so that nobody else's image can be pulled by that name.
    pub fn stand_in(&self) -> String {
        format!("localhost/checkpoint-servers-{}:{}", self.suite, hash(&dockerfile(self.suite)))
    }

    /// What the shell of its container runs: the script, which on the host's network listens on loopback only.
    pub fn start(&self) -> String {
        match self.network {
            Network::Published => self.script.to_owned(),
            Network::Host => self.script.replace(EVERYWHERE, LOOPBACK),
        }
    }

    /// What changes when a container of this server has to be made anew.
    pub fn fingerprint(&self) -> String {
        hash(&format!("{}\0{:?}\0{}", self.start(), self.environment(None), self.stop_signal))
    }
}

/// The text of the Dockerfile of a release's image, which has every server of that release. `BASE` is an image of the
/// bare release, `host-apt.conf` in the build's folder says how the host reaches Debian's packages.
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

/// A port of this machine that nobody listens on: the preferred one, or else another.
///
/// It is below those that clients get: a client of a server that is stopped could get that server's own port, and keep
/// it.
///
/// # Errors
/// When none is free.
pub fn free_port(preferred: Option<u16>) -> std::io::Result<u16> {
    // A port that was given out is not in use yet: the next caller looks behind it.
    static GIVEN: Mutex<Option<u16>> = Mutex::new(None);
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    // Not where other processes begin to look, who may be at it too.
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

/// Where free ports are looked for.
const PORTS: Range<u16> = 27_000..32_000;

fn hash(text: &str) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn entries_do_not_clash() {
        let distinct =
            |of: fn(&Server) -> String| ALL.iter().map(|server| of(server)).collect::<HashSet<_>>().len();
        assert_eq!(distinct(|server| server.name.to_owned()), ALL.len());
        assert_eq!(distinct(|server| server.variable.to_owned()), ALL.len());
        assert_eq!(distinct(|server| server.host_port.to_string()), ALL.len());
    }

    #[test]
    fn a_server_comes_after_the_one_it_stands_before() {
        for (at, server) in ALL.iter().enumerate() {
            if let Some(upstream) = server.before {
                assert!(ALL[..at].iter().any(|earlier| earlier.name == upstream.name), "{}", server.name);
            }
        }
    }

    #[test]
    fn the_dockerfile_has_the_packages_of_its_release_only() {
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
    fn the_fingerprint_follows_the_entry() {
        assert_ne!(POSTGRES.fingerprint(), POSTGRES_15.fingerprint());
        assert_eq!(POSTGRES.fingerprint(), POSTGRES.fingerprint());
    }

    #[test]
    fn a_server_on_the_hosts_network_listens_on_loopback_and_on_its_port() {
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
    fn a_port_that_is_taken_is_not_given() {
        let port = free_port(None).unwrap();
        let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
        assert_ne!(free_port(Some(port)).unwrap(), port);
    }
}
