//! The commands, one file per kind.

mod conformance;
mod copy;
mod demo;
mod failures;
mod history;
mod manage;
mod rekey;
mod retain;
mod show;
mod store;
mod threads;

use std::io::Write;

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, CheckpointTuple, ListQuery, PendingWrite, SaverExt, python,
};
use clap::CommandFactory;
use futures_util::TryStreamExt;
use serde_json::{Map, Value as Json, json};

use crate::arguments::{Arguments, Command, Options};
use crate::failure::{Failure, Result};
use crate::open::{Saver, Sealed, saver, saver_with_old_keys};
use crate::output::{self, namespace, stdout};

pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let Arguments { options, command } = arguments;
    match command {
        Command::Demo { dir } => demo::run(dir, options.json).await,
        Command::DemoAgent(agent) => demo::agent(&agent).await,
        Command::Setup => {
            on(&options, Sealed::Refuse, async |saver| manage::setup(saver, options.json).await).await
        }
        Command::Check => {
            on(&options, Sealed::Keep, async |saver| manage::check(saver, options.json).await).await
        }
        Command::Threads(asked) => {
            on(&options, Sealed::Keep, async |saver| threads::run(saver, asked, options.json).await).await
        }
        Command::History { thread, ns, limit } => {
            let asked = history::Asked { thread, ns, limit };
            on(&options, Sealed::Keep, async |saver| history::run(saver, asked, options.json).await).await
        }
        Command::Show { thread, id, channel, ns } => {
            let asked = show::Asked { thread, id, channel, ns };
            let run = async |saver: &Saver| show::run(saver, &asked, options.json).await;
            on(&options, Sealed::KeepWithoutKey, run).await
        }
        Command::CopyThread { source, target, consent } => {
            let run = async |saver: &Saver| {
                manage::copy_thread(saver, &source, &target, consent.yes, options.json).await
            };
            on(&options, Sealed::Refuse, run).await
        }
        Command::Copy(asked) => copy::run(&options, &asked).await,
        Command::DeleteThread { thread, consent } => {
            let run =
                async |saver: &Saver| manage::delete_thread(saver, &thread, consent.yes, options.json).await;
            on(&options, Sealed::Refuse, run).await
        }
        Command::Prune { threads, all, strategy, consent } => {
            let threads = (!all).then_some(threads);
            let run = async |saver: &Saver| {
                manage::prune(saver, threads, strategy, consent.yes, options.json).await
            };
            on(&options, Sealed::Refuse, run).await
        }
        Command::Retain(asked) => {
            on(&options, Sealed::Refuse, async |saver| retain::run(saver, &asked, options.json).await).await
        }
        Command::Rekey { threads, dry_run, old_key_file } => {
            let (saver, cipher) = saver_with_old_keys(&options, &old_key_file)?;
            let sealed_by = cipher.map(|cipher| cipher.sealed_by());
            let result = rekey::run(&saver, &threads, dry_run, sealed_by, options.json).await;
            let closed = saver.close().await.map_err(Failure::from);
            result.and(closed)
        }
        Command::Store(command) => store::run(&options, command).await,
        Command::Conformance { filter, store } => conformance::run(&options, filter, store).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            // Some shells' scripts would complete hidden commands.
            let all = Arguments::command();
            let visible = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
            let mut ckpt = clap::Command::new("ckpt")
                .version(env!("CARGO_PKG_VERSION"))
                .args(all.get_arguments().cloned())
                .subcommands(visible);
            clap_complete::generate(shell, &mut ckpt, "ckpt", &mut script);
            let mut out = stdout();
            out.write_all(&script)?;
            Ok(out.flush()?)
        }
    }
}

/// Runs a command on the database that the options name, and closes it.
async fn on(options: &Options, sealed: Sealed, run: impl AsyncFnOnce(&Saver) -> Result<()>) -> Result<()> {
    let saver = saver(options, sealed)?;
    let result = run(&saver).await;
    let closed = saver.close().await.map_err(Failure::from);
    result.and(closed)
}

/// A checkpoint as JSON: the fields that `history` and `show` have in common, with a value for each pending write if
/// `value` returns one.
fn describe(tuple: &CheckpointTuple, value: impl Fn(&PendingWrite) -> Option<Json>) -> Map<String, Json> {
    let write = |write: &PendingWrite| {
        let mut line = json!({
            "task_id": &*write.task_id,
            "task_path": &*write.task_path,
            "idx": write.idx,
            "channel": &*write.channel,
        });
        if let Some(value) = value(write) {
            line["value"] = value;
        }
        line
    };
    let metadata = tuple.metadata.iter().map(|(key, value)| (key.to_string(), python::to_json(value)));
    let entries = [
        ("thread_id", json!(tuple.config.thread_id())),
        ("checkpoint_ns", json!(tuple.config.checkpoint_ns())),
        ("checkpoint_id", json!(&*tuple.checkpoint.id)),
        ("parent_checkpoint_id", json!(tuple.parent_checkpoint_id())),
        ("ts", json!(&*tuple.checkpoint.ts)),
        ("step", json!(tuple.metadata.step())),
        ("source", json!(tuple.metadata.source())),
        ("metadata", Json::Object(metadata.collect())),
        ("encrypted", json!(is_sealed(tuple))),
        ("pending_writes", tuple.pending_writes.iter().map(write).collect()),
    ];
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Whether some value of the checkpoint could not be decrypted; all of them, if the backend stores them as one.
fn is_sealed(tuple: &CheckpointTuple) -> bool {
    let sealed = |value: &ChannelValue| matches!(value, ChannelValue::Blob(blob) if blob.is_sealed());
    tuple.checkpoint.is_sealed() || tuple.checkpoint.channel_values.values().any(sealed)
}

/// The failure for a thread or namespace without checkpoints; it lists what exists.
async fn nothing_in(saver: &Saver, thread: &str, ns: Option<&str>) -> Failure {
    let mut namespaces = std::collections::BTreeSet::new();
    let mut tuples = saver.list(ListQuery::thread(thread));
    // The newest ones are enough for a hint.
    for _ in 0..1000 {
        match tuples.try_next().await {
            Ok(Some(tuple)) => {
                namespaces.insert(namespace(tuple.config.checkpoint_ns()).into_owned());
            }
            Ok(None) => break,
            Err(error) => return error.into(),
        }
    }
    let namespaces: Vec<_> = namespaces.into_iter().collect();
    match ns {
        Some(ns) if !namespaces.is_empty() => Failure::not_found(format!(
            "thread {} has no namespace {}; it has: {}",
            output::thread(thread),
            namespace(ns),
            namespaces.join(", ")
        )),
        _ => Failure::not_found(format!(
            "there is no thread {}; `ckpt threads` lists the existing ones",
            output::thread(thread)
        )),
    }
}

/// Fails unless the thread has a checkpoint.
async fn require_thread(saver: &Saver, thread: &str) -> Result<()> {
    if has_thread(saver, thread).await? { Ok(()) } else { Err(nothing_in(saver, thread, None).await) }
}

/// Whether the thread has a checkpoint.
async fn has_thread(saver: &Saver, thread: &str) -> Result<bool> {
    match saver.list_first(ListQuery::thread(thread)).await {
        Ok(found) => Ok(found.is_some()),
        // A value that cannot be decrypted proves that a checkpoint exists.
        Err(error) if error.kind() == checkpoint_core::ErrorKind::Crypto => Ok(true),
        Err(error) => Err(error.into()),
    }
}
