//! The servers that the tests run against. Each server is defined by its entry below: image, packages, start script,
//! port, variable, account. `cargo xtask servers` and the test binaries both read it.
//!
//! Each server uses its official image if a registry is reachable, otherwise an equivalent image that
//! `cargo xtask servers up` builds from Debian's packages, with a program of its own where Debian has none. The entry's
//! script starts the server in both, so that it behaves the same.

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
    /// The program of the image from Debian's packages, if no package has it.
    pub program: Option<Program>,
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
    /// The nodes, if the container runs several that announce their addresses to clients.
    pub group: Option<Group>,
}

/// A program that is built on this machine, and copied to `/opt/checkpoint` of an image.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Program {
    /// The name of the compiler.
    pub compiler: &'static str,
    /// What to install for it, for a message.
    pub needs: &'static str,
    /// The source: each file's path and content.
    pub source: &'static [(&'static str, &'static str)],
    /// The shell command that builds it, in a folder with the source. `OUT` is the folder for what the image gets.
    pub build: &'static str,
}

/// Nodes in one container, on consecutive ports. They announce the ports of this machine, so they listen on the same
/// numbers in the container.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Group {
    /// The number of ports.
    pub ports: u16,
    /// The number of nodes that the URL names: the first ones.
    pub contacts: u16,
    /// The path of the URL.
    pub path: &'static str,
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

/// Whether the port is open. No image has a client of every server.
const LISTENS: &str = "bash -c ': < /dev/tcp/127.0.0.1/$SERVER_PORT'";

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
        program: None,
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
        group: None,
    };

    /// PostgreSQL 17 for benchmarks.
    BENCH_POSTGRES = Server {
        name: "bench-postgres",
        family: "bench",
        variable: "BENCH_PG_URL",
        official: Some("pgvector/pgvector:pg17"),
        suite: "trixie",
        packages: &["postgresql-17", "postgresql-17-pgvector"],
        program: None,
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
        group: None,
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
        program: None,
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
        group: None,
    };

    /// PgBouncer in transaction mode in front of PostgreSQL 17. It has no official image, so Debian's package is used.
    PGBOUNCER = Server {
        name: "pgbouncer",
        family: "postgres",
        variable: "CHECKPOINT_TEST_PGBOUNCER_URL",
        official: None,
        suite: "trixie",
        packages: &["pgbouncer", "postgresql-client-17"],
        program: None,
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
        group: None,
    };

    /// Redis 8.
    REDIS = Server {
        name: "redis",
        family: "redis",
        variable: "CHECKPOINT_TEST_REDIS_URL",
        official: Some("redis:8"),
        suite: "trixie",
        packages: &["redis-server"],
        program: None,
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
        group: None,
    };

    /// Redis 8 for benchmarks. It saves nothing to disk, as Redis does unless it is told to.
    BENCH_REDIS = Server {
        name: "bench-redis",
        family: "bench",
        variable: "BENCH_REDIS_URL",
        official: Some("redis:8"),
        suite: "trixie",
        packages: &["redis-server"],
        program: None,
        script: include_str!("../scripts/redis.sh"),
        variables: &[
            ("SERVER_PROGRAM", "redis-server"),
            ("SERVER_APPENDONLY", "no"),
        ],
        probe: "redis-cli -p $SERVER_PORT ping | grep PONG",
        stop_signal: "TERM",
        port: 26_499,
        host_port: 26_499,
        network: Network::Host,
        scheme: "redis",
        account: None,
        before: None,
        certificates: None,
        group: None,
    };

    /// Valkey 8, with Redis's protocol.
    VALKEY = Server {
        name: "valkey",
        family: "redis",
        variable: "CHECKPOINT_TEST_VALKEY_URL",
        official: Some("valkey/valkey:8"),
        suite: "trixie",
        packages: &["valkey-server"],
        program: None,
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
        group: None,
    };

    /// A Redis 8 cluster: three primaries, each with a replica.
    REDIS_CLUSTER = Server {
        name: "redis-cluster",
        family: "redis",
        variable: "CHECKPOINT_TEST_REDIS_CLUSTER_URL",
        official: Some("redis:8"),
        suite: "trixie",
        packages: &["redis-server"],
        program: None,
        script: include_str!("../scripts/redis-cluster.sh"),
        variables: &[],
        // Every node serves every slot, and each primary has its replica.
        probe: "cd /srv/redis-cluster && test -e made && for port in [0-9]*; do \
            redis-cli -p $port cluster info | grep -q cluster_state:ok \
            && redis-cli -p $port info replication | grep -Eq '^slave0:.*state=online|^master_link_status:up' \
            || exit 1; done",
        stop_signal: "TERM",
        port: 26_400,
        host_port: 26_400,
        network: Network::Published,
        scheme: "redis+cluster",
        account: None,
        before: None,
        certificates: None,
        group: Some(Group { ports: 6, contacts: 6, path: "" }),
    };

    /// A primary and a replica of Redis 8, watched by three sentinels.
    REDIS_SENTINEL = Server {
        name: "redis-sentinel",
        family: "redis",
        variable: "CHECKPOINT_TEST_REDIS_SENTINEL_URL",
        official: Some("redis:8"),
        suite: "trixie",
        packages: &["redis-server"],
        program: None,
        script: include_str!("../scripts/redis-sentinel.sh"),
        variables: &[],
        // Each sentinel knows the two others and a replica that has the primary's data.
        probe: "cd /srv/redis-sentinel && for file in */sentinel; do \
            redis-cli -p ${file%/sentinel} sentinel masters | tr '\\n' ' ' \
            | grep -q ' flags master .* num-slaves 1 num-other-sentinels 2 ' || exit 1; done \
            && for folder in [0-9]*; do test -e $folder/sentinel \
            || redis-cli -p $folder info replication | grep -Eq '^slave0:.*state=online|^master_link_status:up' \
            || exit 1; done",
        stop_signal: "TERM",
        port: 26_420,
        host_port: 26_420,
        network: Network::Published,
        scheme: "redis+sentinel",
        account: None,
        before: None,
        certificates: None,
        group: Some(Group { ports: 5, contacts: 3, path: "/checkpoint/0" }),
    };

    /// MongoDB 8. The stand-in is FerretDB 1.24, which Debian does not have, with SQLite inside.
    MONGO = Server {
        name: "mongo",
        family: "mongo",
        variable: "CHECKPOINT_TEST_MONGO_URL",
        official: Some("mongo:8"),
        suite: "trixie",
        packages: &[],
        program: Some(Program {
            compiler: "go",
            needs: "Go 1.24 or newer",
            source: &[
                ("main.go", include_str!("../ferretdb/main.go")),
                ("go.mod", include_str!("../ferretdb/go.mod")),
                ("go.sum", include_str!("../ferretdb/go.sum")),
            ],
            // Without a C library of this machine.
            build: "CGO_ENABLED=0 GOOS=linux go build -trimpath -ldflags '-s -w' -o \"$OUT/ferretdb\" .",
        }),
        script: include_str!("../scripts/mongo.sh"),
        variables: &[],
        probe: LISTENS,
        stop_signal: "TERM",
        port: 27_017,
        host_port: 26_017,
        network: Network::Published,
        scheme: "mongodb",
        account: None,
        before: None,
        certificates: None,
        group: None,
    };

    /// Another server with MongoDB's protocol: mongo-java-server 1.47, in memory.
    MONGO_JAVA = Server {
        name: "mongo-java",
        family: "mongo",
        variable: "CHECKPOINT_TEST_MONGO_JAVA_URL",
        official: None,
        suite: "bookworm",
        packages: &["openjdk-17-jre-headless"],
        program: Some(Program {
            compiler: "mvn",
            needs: "Maven with Java 17 or newer",
            source: &[
                ("pom.xml", include_str!("../mongo-java/pom.xml")),
                (
                    "src/main/java/MongoJava.java",
                    include_str!("../mongo-java/src/main/java/MongoJava.java"),
                ),
            ],
            build: "mvn --quiet --batch-mode compile dependency:copy-dependencies -DoutputDirectory=\"$OUT\" \
                && cp -r target/classes/. \"$OUT\"",
        }),
        script: include_str!("../scripts/mongo-java.sh"),
        variables: &[],
        probe: LISTENS,
        stop_signal: "TERM",
        port: 27_017,
        host_port: 26_018,
        network: Network::Published,
        scheme: "mongodb",
        account: None,
        before: None,
        certificates: None,
        group: None,
    };
}

/// The listen address in a container's own network, and on the host's network.
const EVERYWHERE: [&str; 2] = ["listen_addresses = '*'", "--bind 0.0.0.0"];
const LOOPBACK: [&str; 2] = ["listen_addresses = '127.0.0.1'", "--bind 127.0.0.1"];

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
        if let Some(Account { user, password, database }) = self.account {
            return format!("{scheme}://{user}:{password}@127.0.0.1:{port}/{database}");
        }
        let Group { contacts, path, .. } = self.group.unwrap_or(Group { ports: 1, contacts: 1, path: "" });
        let nodes: Vec<_> = (port..port + contacts).map(|port| format!("127.0.0.1:{port}")).collect();
        format!("{scheme}://{}{path}", nodes.join(","))
    }

    /// The ports of a container: each of this machine, beginning with `port`, and the one in the container.
    pub fn ports(&self, port: u16) -> Vec<(u16, u16)> {
        match self.group {
            Some(group) => (port..port + group.ports).map(|port| (port, port)).collect(),
            None => vec![(port, self.port)],
        }
    }

    /// The variables of script and probe. `port` is the first port of this machine, `upstream` the host name of the
    /// upstream server.
    pub fn environment(&self, port: u16, upstream: Option<&str>) -> Vec<(&'static str, String)> {
        let inside = if self.group.is_some() { port } else { self.port };
        let mut all = vec![("SERVER_PORT", inside.to_string())];
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
        let dockerfile = self.dockerfile();
        match self.program {
            Some(program) => {
                let contents = format!("{dockerfile}\0{}\0{:?}", program.build, program.source);
                format!("localhost/checkpoint-servers-{}:{}", self.name, hash(&contents))
            }
            None => format!("localhost/checkpoint-servers-{}:{}", self.suite, hash(&dockerfile)),
        }
    }

    /// The Dockerfile of the image from Debian's packages. `BASE` is an image of the bare release; `host-apt.conf` in the
    /// build's folder has the host's settings for reaching Debian's packages, and `program` what was built.
    ///
    /// A release has one image for all of its servers without a program of their own.
    pub fn dockerfile(&self) -> String {
        if self.program.is_none() {
            let of_release = |server: &&&Self| server.suite == self.suite && server.program.is_none();
            return dockerfile(ALL.iter().filter(of_release).flat_map(|server| server.packages));
        }
        let program = "COPY program /opt/checkpoint\n";
        if self.packages.is_empty() {
            return format!("ARG BASE\nFROM $BASE\n{program}");
        }
        dockerfile(self.packages) + program
    }

    /// The script that the container runs. On the host's network the server listens on loopback only.
    pub fn start(&self) -> String {
        match self.network {
            Network::Published => self.script.to_owned(),
            Network::Host => {
                let replace = |script: String, (from, to)| script.replace::<&str>(from, to);
                EVERYWHERE.into_iter().zip(LOOPBACK).fold(self.script.to_owned(), replace)
            }
        }
    }

    /// A fingerprint that changes when a container of this server must be recreated.
    pub fn fingerprint(&self) -> String {
        hash(&format!("{}\0{:?}\0{}", self.start(), self.environment(self.port, None), self.stop_signal))
    }
}

/// A Dockerfile that installs packages.
fn dockerfile<'a>(packages: impl IntoIterator<Item = &'a &'static str>) -> String {
    let mut packages: Vec<_> = packages.into_iter().copied().collect();
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

/// The first of a server's consecutive free ports of this machine: the preferred one, or else another.
///
/// They are below the ephemeral range: otherwise a client could get the port of a stopped server as its own, and block the
/// server's restart.
///
/// # Errors
/// When none are free.
pub fn free_port(server: &Server, preferred: Option<u16>) -> std::io::Result<u16> {
    // A port that was returned is not in use yet, so the next caller searches after it.
    static GIVEN: Mutex<Option<u16>> = Mutex::new(None);
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let ports = server.ports(0).len();
    let wanted = u16::try_from(ports).unwrap_or(u16::MAX);
    // A starting point that differs between processes, since several may search at the same time.
    let first = given.unwrap_or_else(|| {
        let offset = std::process::id() % u32::from(PORTS.end - PORTS.start);
        PORTS.start + u16::try_from(offset).unwrap_or_default()
    });
    let mut failure = ErrorKind::AddrInUse.into();
    for port in preferred.into_iter().chain(first..PORTS.end).chain(PORTS.start..first) {
        // All at once: they have to be free together.
        let bound: std::io::Result<Vec<_>> =
            (port..port + wanted).map(|port| TcpListener::bind(("127.0.0.1", port))).collect();
        match bound {
            Ok(_) => {
                if PORTS.contains(&port) {
                    *given = Some(port + wanted);
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
        let ports: Vec<_> = ALL.iter().flat_map(|server| server.ports(server.host_port)).collect();
        assert_eq!(ports.iter().map(|(outside, _)| outside).collect::<HashSet<_>>().len(), ports.len());
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
    fn the_dockerfile_of_a_release_has_only_its_packages() {
        let text = POSTGRES.dockerfile();
        for server in ALL {
            for package in server.packages {
                let belongs = server.suite == "trixie" && server.program.is_none();
                assert_eq!(text.contains(package), belongs, "{package}");
            }
        }
        assert_ne!(POSTGRES.stand_in(), POSTGRES_15.stand_in());
        assert_eq!(POSTGRES.stand_in(), PGBOUNCER.stand_in());
    }

    #[test]
    fn a_server_with_a_program_has_an_image_of_its_own() {
        for server in ALL.iter().filter(|server| server.program.is_some()) {
            let text = server.dockerfile();
            assert!(text.ends_with("COPY program /opt/checkpoint\n"), "{text}");
            assert!(server.packages.iter().all(|package| text.contains(package)), "{text}");
            assert!(ALL.iter().filter(|other| other.stand_in() == server.stand_in()).count() == 1);
        }
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
            assert!(LOOPBACK.iter().any(|loopback| start.contains(loopback)), "{}", server.name);
            assert!(EVERYWHERE.iter().all(|everywhere| !start.contains(everywhere)), "{}", server.name);
            assert_eq!(server.port, server.host_port, "{}", server.name);
            let port = server.port.to_string();
            let of_server = start.contains("$SERVER_PORT");
            assert!(of_server || server.variables.iter().any(|(_, value)| *value == port), "{}", server.name);
        }
        for (server, everywhere) in [&POSTGRES, &REDIS].into_iter().zip(EVERYWHERE) {
            assert!(server.start().contains(everywhere), "{}", server.name);
        }
    }

    #[test]
    fn urls_with_and_without_an_account() {
        assert_eq!(POSTGRES.url(7), "postgres://postgres:postgres@127.0.0.1:7/postgres");
        assert_eq!(REDIS.url(7), "redis://127.0.0.1:7");
        assert_eq!(
            REDIS_SENTINEL.url(7),
            "redis+sentinel://127.0.0.1:7,127.0.0.1:8,127.0.0.1:9/checkpoint/0"
        );
    }

    #[test]
    fn a_port_in_use_is_not_returned() {
        let port = free_port(&REDIS, None).unwrap();
        let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
        assert_ne!(free_port(&REDIS, Some(port)).unwrap(), port);
    }

    #[test]
    fn the_ports_of_a_group_are_free_together() {
        let first = free_port(&REDIS_CLUSTER, None).unwrap();
        let _taken = TcpListener::bind(("127.0.0.1", first + 5)).unwrap();
        let other = free_port(&REDIS_CLUSTER, Some(first)).unwrap();
        assert!(!(other..other + 6).contains(&(first + 5)), "{other} is too close to {first}");
    }

    #[test]
    fn a_group_has_the_same_ports_inside_and_outside() {
        assert_eq!(REDIS.ports(7), [(7, 6379)]);
        assert_eq!(REDIS_SENTINEL.ports(7), [(7, 7), (8, 8), (9, 9), (10, 10), (11, 11)]);
        let port = |server: &Server| server.environment(7, None)[0].1.clone();
        assert_eq!((port(&REDIS), port(&REDIS_CLUSTER)), ("6379".to_owned(), "7".to_owned()));
    }
}
