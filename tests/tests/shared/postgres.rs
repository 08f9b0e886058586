//! PostgreSQL for tests: databases and schemas of their own, and what their tables hold.

#![allow(dead_code, unused_macros, unused_imports, reason = "each binary uses its part of this")]

use std::process::ExitCode;
use std::sync::Arc;

use checkpoint_conformance::wire::{Cost, Counted};
use checkpoint_conformance::{Call, CountedSaver, Facility, Missing, OpenOptions, Saver, Target};
use checkpoint_core::{BaseCheckpointSaver, Error, ErrorKind, Result, async_trait};
use checkpoint_postgres::{PostgresSaver, PostgresSaverBuilder};
use libtest_mimic::{Arguments, Trial};
use tokio_postgres::{Client, NoTls};

use self::wire::proxy;
use super::server;
pub(crate) use super::trials::{Ended, in_runtime, tests, unique_name};

#[path = "postgres_wire.rs"]
pub(crate) mod wire;

/// The servers that the tests want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Postgres17,
    Postgres15,
    /// PostgreSQL 17 behind PgBouncer in transaction mode.
    PgBouncer,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Postgres17, Self::Postgres15, Self::PgBouncer];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres17 => "postgres 17",
            Self::Postgres15 => "postgres 15",
            Self::PgBouncer => "pgbouncer",
        }
    }

    fn entry(self) -> &'static checkpoint_servers::Server {
        match self {
            Self::Postgres17 => &checkpoint_servers::POSTGRES,
            Self::Postgres15 => &checkpoint_servers::POSTGRES_15,
            Self::PgBouncer => &checkpoint_servers::PGBOUNCER,
        }
    }
}

/// A server that is there.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    kind: Kind,
    /// What savers use.
    url: String,
    /// What tests use past the savers.
    direct: String,
}

impl Server {
    /// Finds a server, or says why there is none.
    pub(crate) fn find(kind: Kind) -> Result<Self, Missing> {
        let find = |kind: Kind| {
            server::url(kind.entry()).map_err(|mut missing| {
                kind.name().clone_into(&mut missing.name);
                missing
            })
        };
        let url = find(kind)?;
        let direct = if kind == Kind::PgBouncer { find(Kind::Postgres17)? } else { url.clone() };
        Ok(Self { kind, url, direct })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// What tests use past a pooler.
    pub(crate) fn direct(&self) -> &str {
        &self.direct
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kind.name()
    }
}

/// One test that works with a server.
pub(crate) type Test = super::trials::Test<Server>;

/// Tests on PostgreSQL 17; where it is missing they are shown as ignored, or fail where it is required.
fn trials_of(tests: &[Test], name: impl Fn(&str) -> String) -> Vec<Trial> {
    super::trials::trials(tests, name, Kind::Postgres17.name(), || Server::find(Kind::Postgres17))
}

/// The tests of a module, named after it.
pub(crate) fn trials(module: &str, tests: &[Test]) -> Vec<Trial> {
    trials_of(tests, |name| format!("{module}::{name}"))
}

/// Makes a test binary of nothing but these tests.
pub(crate) fn run(tests: &[Test]) -> ExitCode {
    let trials = trials_of(tests, str::to_owned);
    server::with_servers(|| libtest_mimic::run(&Arguments::from_args(), trials).exit_code())
}

/// Connects past the saver.
pub(crate) async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// What a test made on a server, which goes with this handle.
#[derive(Debug)]
pub(crate) struct Scratch {
    url: String,
    drop: String,
}

impl Scratch {
    /// Has a statement run at the end.
    pub(crate) fn new(url: &str, drop: &str) -> Self {
        Self { url: url.to_owned(), drop: drop.to_owned() }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let (url, drop) = (self.url.clone(), self.drop.clone());
        // Tests drop inside of a runtime, where another one cannot be started.
        let dropping =
            std::thread::spawn(move || in_runtime(async { connect(&url).await?.batch_execute(&drop).await }));
        if !matches!(dropping.join(), Ok(Ok(()))) {
            eprintln!("not cleaned up: {}", self.drop);
        }
    }
}

/// The same server, another database.
fn in_database(server: &str, name: &str) -> String {
    let (address, parameters) =
        server.split_once('?').map_or((server, ""), |(address, rest)| (address, rest));
    let authority = address.find("//").map_or(0, |at| at + 2);
    let end = address[authority..].find('/').map_or(address.len(), |at| authority + at);
    let separator = if parameters.is_empty() { "" } else { "?" };
    format!("{}/{name}{separator}{parameters}", &address[..end])
}

/// An empty database.
#[derive(Debug)]
pub(crate) struct Database {
    name: String,
    url: String,
    _scratch: Scratch,
}

impl Database {
    pub(crate) async fn create(server: &str) -> Self {
        let name = unique_name();
        connect(server).await.unwrap().batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let scratch = Scratch::new(server, &format!("DROP DATABASE {name} WITH (FORCE)"));
        Self { url: in_database(server, &name), name, _scratch: scratch }
    }

    /// One with our tables.
    pub(crate) async fn set_up(server: &str) -> Self {
        let database = Self::create(server).await;
        database.builder().build().unwrap().setup().await.unwrap();
        database
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Host and port of its server.
    pub(crate) fn address(&self) -> &str {
        let (_, rest) = self.url.split_once("//").unwrap();
        let authority = rest.split(['/', '?']).next().unwrap();
        authority.rsplit('@').next().unwrap()
    }

    /// Its address by way of another server.
    pub(crate) fn through(&self, server: &str) -> String {
        in_database(server, &self.name)
    }

    pub(crate) fn builder(&self) -> PostgresSaverBuilder {
        PostgresSaver::builder(&self.url)
    }

    pub(crate) async fn client(&self) -> Client {
        connect(&self.url).await.unwrap()
    }
}

/// Rows as text, their columns after one another; bytes in hex.
pub(crate) async fn rows(client: &Client, query: &str) -> Vec<Vec<Option<String>>> {
    let statement = client.prepare(query).await.unwrap();
    let columns: Vec<_> = (1..=statement.columns().len()).map(|at| format!("c{at}::text")).collect();
    let names: Vec<_> = (1..=columns.len()).map(|at| format!("c{at}")).collect();
    let query = format!("SELECT {} FROM ({query}) AS t({})", columns.join(", "), names.join(", "));
    let rows = client.query(&query, &[]).await.unwrap();
    rows.iter().map(|row| (0..row.len()).map(|at| row.get(at)).collect()).collect()
}

/// One number.
pub(crate) async fn count(client: &Client, query: &str) -> i64 {
    client.query_one(query, &[]).await.unwrap().get(0)
}

/// Everything in the tables, as the server holds it once it is decompressed.
pub(crate) async fn dump(client: &Client, schema: &str) -> Result<Vec<u8>, tokio_postgres::Error> {
    let mut all = Vec::new();
    for table in ["checkpoints", "checkpoint_blobs", "checkpoint_writes"] {
        for row in client.query(&format!("SELECT t::text FROM {schema}.{table} AS t"), &[]).await? {
            all.extend(row.get::<_, String>(0).into_bytes());
        }
    }
    // The text above has bytes in hex.
    for table in ["checkpoint_blobs", "checkpoint_writes"] {
        let query = format!("SELECT blob FROM {schema}.{table} WHERE blob IS NOT NULL");
        for row in client.query(&query, &[]).await? {
            all.extend(row.get::<_, Vec<u8>>(0));
        }
    }
    Ok(all)
}

/// The suite's target: a schema of its own.
#[derive(Debug)]
pub(crate) struct Postgres {
    name: &'static str,
    server: Server,
    /// What savers connect to: the server, or what is before it.
    url: String,
    schema: String,
    _scratch: Scratch,
}

fn broken(source: tokio_postgres::Error) -> Error {
    Error::new(ErrorKind::Backend, "the test cannot reach its database").with_source(source)
}

impl Postgres {
    pub(crate) async fn new(server: Server) -> Result<Self> {
        let url = server.url().to_owned();
        Self::through(server, url).await
    }

    /// One whose savers reach the server by another URL.
    pub(crate) async fn through(server: Server, url: String) -> Result<Self> {
        let schema = unique_name();
        let client = connect(&server.direct).await.map_err(broken)?;
        client.batch_execute(&format!("CREATE SCHEMA {schema}")).await.map_err(broken)?;
        let drop = format!("SET client_min_messages = warning; DROP SCHEMA {schema} CASCADE");
        let scratch = Scratch::new(&server.direct, &drop);
        Ok(Self { name: server.kind.name(), server, url, schema, _scratch: scratch })
    }

    /// The name of the schema, which is in every statement on its tables.
    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    async fn client(&self) -> Result<Client> {
        connect(&self.server.direct).await.map_err(broken)
    }

    pub(crate) fn builder(&self, url: &str, options: OpenOptions) -> PostgresSaverBuilder {
        let mut builder = PostgresSaver::builder(url)
            .schema(self.schema.as_str())
            .pgbouncer(self.server.kind == Kind::PgBouncer)
            .opaque_values(options.opaque_values);
        if let Some(count) = options.keep_last {
            builder = builder.keep_last(count);
        }
        match options.cipher {
            Some(cipher) => builder.cipher(cipher),
            None => builder,
        }
    }
}

/// What the page of `checkpoint-postgres` says under "What a call costs".
fn cost(call: Call) -> Cost {
    let each = |round_trips| Cost::new(round_trips, round_trips);
    match call {
        Call::Put
        | Call::PutUnchanged
        | Call::PutOntoParent
        | Call::PutWrites
        | Call::PutWritesConditional
        | Call::AcquireLease
        | Call::Lease
        | Call::GetTuple
        | Call::GetNothing
        | Call::Ping
        | Call::CheckSchema => each(1),
        Call::PutOrphaned => Cost::new(2, 4),
        Call::PutPruning => Cost::new(6, Cost::ANY),
        Call::List { checkpoints } => each(1 + checkpoints.checked_sub(16).map_or(0, |more| 1 + more / 128)),
        Call::ListThreads { threads, .. } | Call::ListThreadIds { threads } => each(threads.div_ceil(128)),
        Call::PutConditional | Call::DeleteThread => Cost::new(1, 3),
        Call::DeltaChannelHistory { ancestors } => each(ancestors.div_ceil(1024)),
        Call::CopyThread { bound_values, bound_writes } => {
            each([bound_values, bound_writes].iter().fold(7, |sum, bound| sum + bound + bound.div_ceil(32)))
        }
        Call::PruneKeepLatest { threads, .. } => Cost::new(5 * threads, 8 * threads),
        Call::PruneDelete { threads } => Cost::new(threads, 3 * threads),
        Call::DeleteForRuns { threads: 0 } => each(3),
        Call::DeleteForRuns { .. } => each(6),
        // Values and writes are read, and stored in a transaction with BEGIN and COMMIT.
        Call::Rekey { values, writes } => Cost::new(7, 5 + (values + 2) + (writes + 2)),
        Call::RekeyNothing { dry_run } => each(if dry_run { 1 } else { 4 }),
        Call::Setup => each(5),
    }
}

#[async_trait]
impl Target for Postgres {
    fn name(&self) -> &str {
        self.name
    }

    async fn open(&self, options: OpenOptions) -> Result<Saver> {
        Ok(Arc::new(self.builder(&self.url, options).build()?))
    }

    fn offers(&self, facility: Facility) -> bool {
        facility != Facility::WholeCheckpoints
    }

    async fn fresh(&self) -> Result<Arc<dyn Target>> {
        Ok(Arc::new(Self::new(self.server.clone()).await?))
    }

    async fn raw(&self) -> Result<Vec<u8>> {
        dump(&self.client().await?, &self.schema).await.map_err(broken)
    }

    async fn move_rows(&self, from_thread_id: &str, to_thread_id: &str) -> Result<()> {
        let client = self.client().await?;
        for table in ["checkpoints", "checkpoint_blobs", "checkpoint_writes"] {
            let statement = format!("UPDATE {}.{table} SET thread_id = $2 WHERE thread_id = $1", self.schema);
            client.execute(&statement, &[&from_thread_id, &to_thread_id]).await.map_err(broken)?;
        }
        Ok(())
    }

    async fn corrupt(&self, thread_id: &str) -> Result<()> {
        // The server takes nothing but JSON, so that half of a checkpoint is a text to it.
        let statement = format!(
            "UPDATE {}.checkpoints SET checkpoint = to_jsonb(left(checkpoint::text, length(checkpoint::text) / 2)) \
             WHERE thread_id = $1",
            self.schema
        );
        self.client().await?.execute(&statement, &[&thread_id]).await.map_err(broken)?;
        Ok(())
    }

    async fn counted(&self, options: OpenOptions) -> Result<CountedSaver> {
        let (proxy, url) = proxy(self.server.url()).await?;
        let saver = self.builder(&url, options).build()?;
        saver.setup().await?;
        Ok(Counted { handle: Arc::new(saver), proxy, cost: Box::new(cost) })
    }
}
