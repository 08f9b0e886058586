//! The command line.

mod store;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use store::{Ann, Distance, Index, NGRAMS, StoreCommand, VectorType};

use crate::failure::EXIT_CODES;

/// Look at the checkpoints and the memory of agents, and take care of them.
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

/// What every command takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Options {
    /// The database: `sqlite:PATH`, `postgres://USER@HOST/DATABASE`, or "host=HOST dbname=DATABASE". The last two take libpq's
    /// parameters, `schema=NAME` and `pgbouncer=true`; what they leave out comes from libpq's variables (`PGHOST`,
    /// `PGSSLMODE`, …). Others on the machine can see a command's arguments: give a password by `PGPASSWORD`, or the URL by
    /// the variable.
    // The value of the variable may have a password in it.
    #[arg(long, env = "CKPT_URL", hide_env_values = true, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// A file with the AES key as raw bytes (16, 24 or 32), in place of `LANGGRAPH_AES_KEY`.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// A file with an AES-256-GCM key as raw bytes (32), and the key id it has in the database. May be repeated; the
    /// first one seals what is written.
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
        /// Where to keep the database; a new temporary folder if not given.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// The agent of `demo`, in a process of its own.
    #[command(hide = true)]
    DemoAgent(DemoAgent),
    /// Create or upgrade the tables. Safe to repeat, and to run from several processes at once.
    #[command(after_help = "Example:\n  ckpt --url sqlite:agents.sqlite setup")]
    Setup,
    /// List the threads with their newest checkpoint.
    #[command(after_help = "Examples:\n  ckpt threads\n  ckpt threads --after user-100 --limit 50 --json")]
    Threads {
        /// Only threads whose id sorts after this one.
        #[arg(long, value_name = "THREAD")]
        after: Option<String>,
        /// The maximum number of threads.
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
    /// Show the history of a thread: as a tree, or newest first with --json.
    #[command(after_help = "\
Examples:
  ckpt history my-thread
  ckpt history my-thread --ns '' --limit 20
  ckpt history my-thread --json | jq -r .checkpoint_id")]
    History {
        /// The thread.
        thread: String,
        /// One namespace (`''` is the root) in place of all.
        #[arg(long, value_name = "NAMESPACE")]
        ns: Option<String>,
        /// Only the newest N checkpoints.
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
    /// Show the values of a checkpoint: the newest, or the one named.
    #[command(after_help = "\
Examples:
  ckpt show my-thread
  ckpt show my-thread 1f1e4fbf-bea1-6f34-bfff-a8ab9f516d8b --channel messages
  ckpt show my-thread --json | jq .channels")]
    Show {
        /// The thread.
        thread: String,
        /// The checkpoint's id; the newest if not given.
        id: Option<String>,
        /// Only this channel.
        #[arg(long, value_name = "CHANNEL")]
        channel: Option<String>,
        /// The namespace; the root if not given, or wherever the checkpoint named is.
        #[arg(long, value_name = "NAMESPACE")]
        ns: Option<String>,
    },
    /// Copy a thread, history and pending writes and all, to another id.
    #[command(after_help = "Example:\n  ckpt copy-thread my-thread my-thread-backup")]
    CopyThread {
        /// The thread to copy.
        source: String,
        /// The id of the copy. If there is such a thread, `ckpt` asks before it mixes the two.
        target: String,
        #[command(flatten)]
        consent: Consent,
    },
    /// Copy threads with their whole history from one database to another.
    ///
    /// Every namespace, parents, metadata and pending writes are copied, the oldest checkpoint first and each one after its
    /// writes: until the newest has arrived, the copy is an earlier state of the thread. What the target has already is
    /// compared and not sent again, so a copy that was interrupted is run again, and one of a thread that went on brings
    /// what is new. Nothing is deleted in the target, and no checkpoint there is replaced: those that differ are named,
    /// and the exit code is 1. `--dry-run` afterwards tells whether anything is missing.
    ///
    /// Stop the agent for the last run. Writes that wait for a checkpoint that is not stored yet cannot be listed and are
    /// not copied.
    #[command(after_help = "\
Examples:
  ckpt --url postgres://localhost/agents setup
  ckpt copy --from sqlite:agents.sqlite --to postgres://localhost/agents
  ckpt copy --from sqlite:agents.sqlite --to sqlite:one.sqlite my-thread
  CKPT_TO=postgres://me:secret@db/agents ckpt copy --from sqlite:agents.sqlite --to-key-file new.key")]
    Copy(Copy),
    /// Delete a thread with everything in it.
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
        /// What to leave.
        #[arg(long, value_enum, default_value_t = Strategy::KeepLatest)]
        strategy: Strategy,
        #[command(flatten)]
        consent: Consent,
    },
    /// Long-term memory: put, get, delete and find items, and take care of their store. It is on PostgreSQL.
    #[command(subcommand)]
    Store(StoreCommand),
    /// Run the conformance suite on the database, on threads of its own.
    ///
    /// The threads are deleted afterwards. A SQLite file grows by some 200 MB and stays so: use one of its own. With
    /// --store it is the suite of stores, in schemas of its own, which are dropped afterwards. Ctrl-C stops after the case
    /// that runs. The cases with random operations are not part of it: they run in the project's own tests.
    #[command(after_help = "\
Examples:
  ckpt --url sqlite:/tmp/try.sqlite conformance
  ckpt conformance prune
  ckpt --url postgres://localhost/agents conformance --store")]
    Conformance {
        /// Only cases whose name contains this.
        filter: Option<String>,
        /// The suite of stores, in place of that of checkpoints.
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

/// What to copy from where to where.
#[derive(Debug, Args)]
pub(crate) struct Copy {
    /// The database to read.
    #[arg(long, env = "CKPT_FROM", hide_env_values = true, value_name = "URL")]
    pub(crate) from: String,
    /// The database to write to; its tables are there already (`ckpt setup`).
    #[arg(long, env = "CKPT_TO", hide_env_values = true, value_name = "URL")]
    pub(crate) to: String,
    /// The threads; all of them if none is named.
    #[arg(value_name = "THREAD")]
    pub(crate) threads: Vec<String>,
    /// Write nothing; say what would be copied.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// As `--key-file`, for --from alone. A side with keys of its own takes no others.
    #[arg(long, value_name = "FILE")]
    pub(crate) from_key_file: Option<PathBuf>,
    /// As `--gcm-key`, for --from alone.
    #[arg(long, value_name = "ID=FILE")]
    pub(crate) from_gcm_key: Vec<String>,
    /// As `--key-file`, for --to alone. A side with keys of its own takes no others.
    #[arg(long, value_name = "FILE")]
    pub(crate) to_key_file: Option<PathBuf>,
    /// As `--gcm-key`, for --to alone.
    #[arg(long, value_name = "ID=FILE")]
    pub(crate) to_gcm_key: Vec<String>,
}

/// Consent to what cannot be undone.
#[derive(Debug, Args)]
pub(crate) struct Consent {
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// What `prune` leaves.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Strategy {
    /// The newest checkpoint of each namespace, and what its delta channels need.
    KeepLatest,
    /// Nothing.
    Delete,
}

/// The arguments of the demo's agent.
#[derive(Debug, Args)]
pub(crate) struct DemoAgent {
    /// The folder of the demo.
    pub(crate) dir: PathBuf,
    /// Die in the middle of the research.
    #[arg(long)]
    pub(crate) die: bool,
}
