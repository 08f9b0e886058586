//! The command line.

mod retain;
mod store;

use std::path::PathBuf;

use checkpoint_core::ThreadStatus;
use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use retain::{AskedUsage, Retain};
pub(crate) use store::{Ann, Distance, Index, NGRAMS, StoreCommand, VectorType};

use crate::failure::EXIT_CODES;

/// Inspect and manage the checkpoints and the memory of agents.
#[derive(Debug, Parser)]
#[command(name = "ckpt", version, max_term_width = 100, arg_required_else_help = true, after_help = "\
Examples:
  ckpt demo
  ckpt --url sqlite:agents.sqlite threads
  CKPT_URL=sqlite:agents.sqlite ckpt history my-thread", after_long_help = EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Options {
    /// The database: `sqlite:PATH`, `postgres://USER@HOST/DATABASE`, "host=HOST dbname=DATABASE",
    /// `mongodb://USER:PASSWORD@HOST/DATABASE`, or `redis://USER:PASSWORD@HOST/NUMBER`.
    ///
    /// Those of PostgreSQL take libpq's parameters, `schema=NAME` and `pgbouncer=true`; what they leave out comes from
    /// libpq's variables (`PGHOST`, `PGSSLMODE`, …).
    ///
    /// Those of MongoDB begin with `mongodb://HOST,HOST2` or `mongodb+srv://`. They take `collection=NAME` (`lg_checkpoints` by
    /// default; the database is `langgraph` unless the URL names one), `ttl=SECONDS` (how long a thread that is written is
    /// kept), `sharded=true` (for a sharded collection), and the driver's parameters, such as `replicaSet=NAME`.
    ///
    /// Those of Redis begin with `redis://`, `redis+cluster://HOST,HOST2`, `redis+sentinel://HOST,HOST2/SERVICE`, with TLS
    /// `rediss…`, or `redis+unix:///PATH`; `valkey` is the same as `redis`. They take `prefix=TEXT` (what all keys begin
    /// with; `ckpt` by default), `ttl=SECONDS` (how long a thread that is written is kept), `scripts=false` (for users that
    /// may not run scripts), and the parameters of the saver, such as `ssl_ca_certs=FILE`.
    ///
    /// Other users of the machine can see a command's arguments: set a password by `PGPASSWORD`, or the URL by the variable.
    // The value of the variable may contain a password.
    #[arg(long, env = "CKPT_URL", hide_env_values = true, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// A file with the AES key as raw bytes (16, 24 or 32), instead of `LANGGRAPH_AES_KEY`.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// A file with an AES-256-GCM key as raw bytes (32), and its key id in the database. May be repeated; the first one
    /// encrypts new values.
    #[arg(long, global = true, value_name = "ID=FILE")]
    pub(crate) gcm_key: Vec<String>,
    /// Print JSON, one object per line.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a small agent, kill it in the middle of a step, and resume it. Needs no database.
    #[command(after_help = "Examples:\n  ckpt demo\n  ckpt demo --dir /tmp/demo")]
    Demo {
        /// The folder of the database; a new temporary folder by default.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// The agent of `demo`, which runs in a separate process.
    #[command(hide = true)]
    DemoAgent(DemoAgent),
    /// Create or upgrade the tables, or prepare the key prefix. Idempotent, and safe to run from several processes concurrently.
    #[command(after_help = "Example:\n  ckpt --url sqlite:agents.sqlite setup")]
    Setup,
    /// Check that the database has the tables that this version needs. Changes nothing.
    #[command(after_help = "Example:\n  ckpt --url sqlite:agents.sqlite check")]
    Check,
    /// List the threads with their newest checkpoint.
    #[command(after_help = "\
Examples:
  ckpt threads
  ckpt threads --after user-100 --limit 50 --json
  ckpt threads --status running    # what a crash left unfinished
  ckpt threads --prefix user- --with-status")]
    Threads(Threads),
    /// Show the history of a thread: as a tree, or newest first with --json.
    #[command(after_help = "\
Examples:
  ckpt history my-thread
  ckpt history my-thread --ns '' --limit 20
  ckpt history my-thread --json | jq -r .checkpoint_id")]
    History {
        /// The thread.
        thread: String,
        /// Only this namespace (`''` is the root).
        #[arg(long, value_name = "NAMESPACE")]
        ns: Option<String>,
        /// Only this many of the newest checkpoints.
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
    /// Show the values of a checkpoint.
    #[command(after_help = "\
Examples:
  ckpt show my-thread
  ckpt show my-thread 1f1e4fbf-bea1-6f34-bfff-a8ab9f516d8b --channel messages
  ckpt show my-thread --json | jq .channels")]
    Show {
        /// The thread.
        thread: String,
        /// The checkpoint's id; the newest checkpoint by default.
        id: Option<String>,
        /// Only this channel.
        #[arg(long, value_name = "CHANNEL")]
        channel: Option<String>,
        /// The namespace; by default that of the checkpoint's id, or the root.
        #[arg(long, value_name = "NAMESPACE")]
        ns: Option<String>,
    },
    /// Copy a thread with its history and pending writes to another id.
    #[command(after_help = "Example:\n  ckpt copy-thread my-thread my-thread-backup")]
    CopyThread {
        /// The thread to copy.
        source: String,
        /// The id of the copy. If that thread exists, `ckpt` asks before it merges the two.
        target: String,
        #[command(flatten)]
        consent: Consent,
    },
    /// Copy threads with their whole history from one database to another.
    ///
    /// Copies all namespaces, parents, metadata and pending writes, the oldest checkpoint first and each one after its
    /// writes: until the newest is copied, the target has an earlier state of the thread. Checkpoints that the target
    /// already has are compared and not sent again, so an interrupted copy can be rerun, and a rerun copies only what is
    /// new. Nothing in the target is deleted or replaced: checkpoints that differ are reported, with exit code 1. Run
    /// `--dry-run` afterwards to check whether anything is missing.
    ///
    /// Stop the agent for the last run. Pending writes of a checkpoint that is not stored yet cannot be listed and are not
    /// copied.
    #[command(after_help = "\
Examples:
  ckpt --url postgres://localhost/agents setup
  ckpt copy --from sqlite:agents.sqlite --to postgres://localhost/agents
  ckpt copy --from sqlite:agents.sqlite --to sqlite:one.sqlite my-thread
  ckpt copy --from redis://localhost --to redis+cluster://node1,node2?prefix=agents
  ckpt copy --from sqlite:agents.sqlite --to mongodb://localhost/agents
  CKPT_TO=postgres://me:secret@db/agents ckpt copy --from sqlite:agents.sqlite --to-key-file new.key")]
    Copy(Copy),
    /// Delete a thread with all its checkpoints and writes.
    #[command(after_help = "Example:\n  ckpt delete-thread my-thread --yes")]
    DeleteThread {
        /// The thread.
        thread: String,
        #[command(flatten)]
        consent: Consent,
    },
    /// Delete old checkpoints.
    #[command(after_help = "\
Examples:
  ckpt prune my-thread other-thread
  ckpt prune --all --yes
  ckpt prune my-thread --strategy delete --yes")]
    Prune {
        /// The threads.
        #[arg(required_unless_present = "all")]
        threads: Vec<String>,
        /// Every thread of the database.
        #[arg(long, conflicts_with = "threads")]
        all: bool,
        /// What to keep.
        #[arg(long, value_enum, default_value_t = Strategy::KeepLatest)]
        strategy: Strategy,
        #[command(flatten)]
        consent: Consent,
    },
    /// Show how much the database holds: in all, the largest threads, by day, and what a policy would free.
    ///
    /// BYTES are those of values and metadata as they are stored, without keys and indexes. Reads the keys and sizes of all
    /// checkpoints, but no values.
    #[command(after_help = "\
Examples:
  ckpt usage
  ckpt usage --largest 3 --json
  ckpt usage --keep-last 20 --idle-for 90d    # what this policy would free")]
    Usage(AskedUsage),
    /// Remove what a retention policy no longer keeps: old checkpoints, and threads that nobody uses.
    ///
    /// --keep-last and --max-age each remove checkpoints, --idle-for removes whole threads. Always kept are the newest
    /// checkpoint of each namespace, what a kept checkpoint needs, and threads that wait for a person. The age of a checkpoint
    /// is the time in its id. Works in small batches: agents go on meanwhile, an interrupted run can be repeated, and several
    /// runs share the work. A thread that fails is reported, and the others are done.
    #[command(after_help = "\
Examples:
  ckpt retain --keep-last 20 --max-age 30d --idle-for 90d --dry-run
  ckpt retain --keep-last 20 --idle-for 90d --yes
  ckpt retain --max-age 7d --pin legal_hold=true --prefix user-")]
    Retain(Retain),
    /// Encrypt all values of threads again with the newest key, in place; also values that are not encrypted yet.
    ///
    /// The first --gcm-key (or --key-file, if there is none) encrypts, all keys decrypt. Prints how many values are encrypted
    /// with which key. Values of the newest key are left as they are, so an interrupted run can be repeated, and agents may
    /// go on meanwhile: switch them to the newest key first. A thread that fails is reported, with the missing key's id, and
    /// the others are done. Python can only read values of a --key-file.
    #[command(after_help = "\
Examples:
  ckpt rekey --dry-run
  ckpt rekey --gcm-key 2026-11=new.key --gcm-key 2025-11=old.key
  ckpt rekey --gcm-key 2026-11=new.key --key-file python.key my-thread
  ckpt rekey --key-file new.key --old-key-file old.key")]
    Rekey {
        /// The threads; all by default, also those with only pending writes.
        #[arg(value_name = "THREAD")]
        threads: Vec<String>,
        /// Change nothing; report which keys are in use. Needs no key.
        #[arg(long)]
        dry_run: bool,
        /// Like --key-file, a former AES key that only decrypts. May be repeated.
        #[arg(long, value_name = "FILE")]
        old_key_file: Vec<PathBuf>,
    },
    /// Long-term memory: put, get, delete and search items, and manage their store. Needs PostgreSQL.
    #[command(subcommand)]
    Store(StoreCommand),
    /// Run the conformance suite on the database, with its own threads.
    ///
    /// The threads are deleted afterwards. A SQLite file grows by about 200 MB and does not shrink: use a separate file.
    /// --store runs the suite of stores in temporary schemas, which are dropped afterwards. Ctrl-C stops after the current
    /// case. The cases with random operations are not included: they run in the project's own tests.
    #[command(after_help = "\
Examples:
  ckpt --url sqlite:/tmp/try.sqlite conformance
  ckpt conformance prune
  ckpt --url postgres://localhost/agents conformance --store")]
    Conformance {
        /// Only cases whose name contains this.
        filter: Option<String>,
        /// Run the suite of stores instead of that of checkpoints.
        #[arg(long)]
        store: bool,
    },
    /// Print completions for a shell.
    #[command(after_help = "Example:\n  ckpt completions bash > /etc/bash_completion.d/ckpt")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// The arguments of `copy`.
#[derive(Debug, Args)]
pub(crate) struct Copy {
    /// The database to read.
    #[arg(long, env = "CKPT_FROM", hide_env_values = true, value_name = "URL")]
    pub(crate) from: String,
    /// The database to write to; its tables must exist (`ckpt setup`).
    #[arg(long, env = "CKPT_TO", hide_env_values = true, value_name = "URL")]
    pub(crate) to: String,
    /// The threads; all by default.
    #[arg(value_name = "THREAD")]
    pub(crate) threads: Vec<String>,
    /// Write nothing; report what would be copied.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Like `--key-file`, for --from only. A side with its own keys ignores the common ones.
    #[arg(long, value_name = "FILE")]
    pub(crate) from_key_file: Option<PathBuf>,
    /// Like `--gcm-key`, for --from only.
    #[arg(long, value_name = "ID=FILE")]
    pub(crate) from_gcm_key: Vec<String>,
    /// Like `--key-file`, for --to only. A side with its own keys ignores the common ones.
    #[arg(long, value_name = "FILE")]
    pub(crate) to_key_file: Option<PathBuf>,
    /// Like `--gcm-key`, for --to only.
    #[arg(long, value_name = "ID=FILE")]
    pub(crate) to_gcm_key: Vec<String>,
}

/// Consent to an irreversible change.
#[derive(Debug, Args)]
pub(crate) struct Consent {
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// What `prune` keeps.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Strategy {
    /// The newest checkpoint of each namespace, and the ancestors that its delta channels need.
    KeepLatest,
    /// Nothing.
    Delete,
}

/// The arguments of the demo's agent.
#[derive(Debug, Args)]
pub(crate) struct DemoAgent {
    /// The folder of the demo.
    pub(crate) dir: PathBuf,
    /// Kill the process in the middle of the research.
    #[arg(long)]
    pub(crate) die: bool,
}

/// The threads to list.
#[derive(Debug, Args)]
pub(crate) struct Threads {
    /// Only threads whose id sorts after this one.
    #[arg(long, value_name = "THREAD")]
    pub(crate) after: Option<String>,
    /// Only threads whose id begins with this text.
    #[arg(long, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,
    /// Only threads with an unfinished step, that wait for a person, or that are done.
    #[arg(long)]
    pub(crate) status: Option<Status>,
    /// Show the status of each thread.
    #[arg(long)]
    pub(crate) with_status: bool,
    /// The maximum number of threads.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
}

/// What a thread was doing when its newest checkpoint was stored.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Status {
    /// A step is unfinished.
    Running,
    /// A task waits for the answer of a person.
    Waiting,
    /// Nothing is left to do.
    Done,
}

impl From<Status> for ThreadStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Running => Self::Running,
            Status::Waiting => Self::Waiting,
            Status::Done => Self::Done,
        }
    }
}
