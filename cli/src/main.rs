//! `ckpt`: looks at the checkpoints of agents and takes care of them.

mod demo;
mod failure;
mod history;
mod manage;
mod open;
mod show;
mod text;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};

use crate::failure::{Exit, Failure};

const EXIT_CODES: &str = "Exit codes:
  0  done
  1  failed
  2  usage or invalid argument
  3  no such thread, namespace, checkpoint or channel
  4  the database needs setup, or is newer than this program
  5  unavailable, timeout or conflict: try again
  6  a key is missing, wrong or of a wrong size

Examples:
  ckpt --url sqlite:agents.sqlite threads
  CKPT_URL=sqlite:agents.sqlite ckpt history my-thread
  ckpt --url sqlite:agents.sqlite --json history my-thread | head -1";

/// Looks at the checkpoints of agents and takes care of them.
#[derive(Debug, Parser)]
#[command(name = "ckpt", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, clap::Args)]
struct Global {
    /// The database: `sqlite:PATH`
    #[arg(long, global = true, env = "CKPT_URL")]
    url: Option<String>,
    /// File with the raw bytes of an AES key (16, 24 or 32); else `LANGGRAPH_AES_KEY` is used
    #[arg(long, global = true, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// An AES-256-GCM key that opens values sealed under its id: file with 32 raw bytes; may be repeated
    #[arg(long, global = true, value_name = "ID=FILE")]
    gcm_key: Vec<String>,
    /// Prints one JSON object per line, for programs
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a small workflow that is killed, resumed and forked; needs no server
    #[command(after_help = "Examples:\n  ckpt demo\n  ckpt demo --dir ./demo")]
    Demo {
        /// Where the file goes; else a new temporary directory
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// One process of the demo
    #[command(hide = true)]
    DemoWork {
        dir: PathBuf,
        #[arg(long)]
        crash: bool,
    },
    /// Creates or upgrades the tables
    #[command(after_help = "Example:\n  ckpt --url sqlite:agents.sqlite setup")]
    Setup,
    /// Lists the threads
    #[command(after_help = "Example:\n  ckpt --url sqlite:agents.sqlite threads")]
    Threads,
    /// Shows every checkpoint of a thread as a tree
    #[command(
        after_help = "Examples:\n  ckpt history my-thread\n  ckpt history my-thread --ns ''\n  ckpt --json history my-thread | head -1"
    )]
    History {
        /// The thread
        thread: String,
        /// One namespace; '' is the root
        #[arg(long)]
        ns: Option<String>,
    },
    /// Shows the state at a checkpoint: channels, pending writes, metadata
    #[command(
        after_help = "Examples:\n  ckpt show my-thread\n  ckpt show my-thread --channel messages\n  ckpt show my-thread 1f1e4fbf-bea1-6f34-bfff-a8ab9f516d8b"
    )]
    Show {
        /// The thread
        thread: String,
        /// The checkpoint; else the newest
        id: Option<String>,
        /// One channel alone
        #[arg(long)]
        channel: Option<String>,
        /// The namespace; else the root, or wherever the checkpoint is
        #[arg(long)]
        ns: Option<String>,
    },
    /// Copies a thread with all its checkpoints
    #[command(after_help = "Example:\n  ckpt copy-thread my-thread backup-of-my-thread")]
    CopyThread {
        /// The thread to copy
        source: String,
        /// The thread to copy into
        target: String,
    },
    /// Deletes everything of a thread
    #[command(after_help = "Example:\n  ckpt delete-thread my-thread --yes")]
    DeleteThread {
        /// The thread
        thread: String,
        /// Does not ask
        #[arg(long)]
        yes: bool,
    },
    /// Deletes old checkpoints of threads
    #[command(
        after_help = "Examples:\n  ckpt prune my-thread --yes\n  ckpt prune --all --strategy delete --yes"
    )]
    Prune {
        /// The threads
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        threads: Vec<String>,
        /// Every thread
        #[arg(long)]
        all: bool,
        /// What stays: the newest checkpoint of every namespace, or nothing
        #[arg(long, value_enum, default_value_t = Strategy::KeepLatest)]
        strategy: Strategy,
        /// Confirms
        #[arg(long)]
        yes: bool,
    },
    /// Prints completions for a shell
    #[command(
        after_help = "Example:\n  ckpt completions bash > ~/.local/share/bash-completion/completions/ckpt"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Strategy {
    KeepLatest,
    Delete,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime.block_on(run(cli)),
        Err(error) => Err(Failure::from(error)),
    };
    match result {
        Ok(()) | Err(Failure::Closed) => ExitCode::SUCCESS,
        Err(Failure::Said(exit, message)) => {
            // Nothing can be done when stderr is gone.
            let _ = writeln!(anstream::stderr(), "ckpt: {}", text::line(&message));
            ExitCode::from(exit as u8)
        }
    }
}

async fn run(cli: Cli) -> Result<(), Failure> {
    let Cli { global, command } = cli;
    if let Command::Completions { shell } = command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "ckpt", &mut script);
        return Ok(std::io::stdout().write_all(&script)?);
    }
    match command {
        Command::Demo { dir } => return demo::run(dir, global.json).await,
        Command::DemoWork { dir, crash } => return demo::work(&dir, crash).await,
        _ => {}
    }
    let saver = open::saver(&global)?;
    let json = global.json;
    match command {
        Command::Setup => manage::setup(&saver, json).await,
        Command::Threads => manage::threads(&saver, json).await,
        Command::History { thread, ns } => history::run(&saver, &thread, ns.as_deref(), json).await,
        Command::Show { thread, id, channel, ns } => {
            show::run(&saver, &thread, id.as_deref(), ns.as_deref(), channel.as_deref(), json).await
        }
        Command::CopyThread { source, target } => manage::copy(&saver, &source, &target, json).await,
        Command::DeleteThread { thread, yes } => manage::delete(&saver, &thread, yes, json).await,
        Command::Prune { threads, all, strategy, yes } => {
            if !yes {
                return Err(Failure::new(Exit::Usage, "prune deletes checkpoints; confirm with --yes"));
            }
            manage::prune(&saver, threads, all, strategy, json).await
        }
        Command::Demo { .. } | Command::DemoWork { .. } | Command::Completions { .. } => Ok(()),
    }
}
