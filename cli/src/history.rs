//! `ckpt history`: every checkpoint of a thread, as a tree.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write as _;

use anstyle::{AnsiColor, Style};
use checkpoint_core::{CheckpointTuple, ListQuery, SaverExt as _};
use futures_util::TryStreamExt as _;
use serde_json::{Value as Json, json};

use crate::failure::{Exit, Failure};
use crate::manage;
use crate::open::Saver;
use crate::text;

pub(crate) async fn run(saver: &Saver, thread: &str, ns: Option<&str>, as_json: bool) -> Result<(), Failure> {
    let mut query = ListQuery::thread(thread);
    if let Some(ns) = ns {
        query = query.checkpoint_ns(ns);
        require_namespace(saver, thread, ns).await?;
    } else {
        manage::require(saver, thread).await?;
    }
    let mut out = anstream::stdout();
    if as_json {
        let mut stream = saver.list(query);
        while let Some(tuple) = stream.try_next().await? {
            writeln!(out, "{}", record(&tuple))?;
        }
        return Ok(());
    }
    let mut tuples = saver.list_all(query).await?;
    tuples.reverse();
    print(&mut out, &tuples)
}

/// Fails with the namespaces that are there when one is not.
pub(crate) async fn require_namespace(saver: &Saver, thread: &str, ns: &str) -> Result<(), Failure> {
    manage::require(saver, thread).await?;
    if saver.list_first(ListQuery::thread(thread).checkpoint_ns(ns)).await?.is_some() {
        return Ok(());
    }
    let mut known = BTreeSet::new();
    let mut stream = saver.list(ListQuery::thread(thread));
    while let Some(tuple) = stream.try_next().await? {
        known.insert(format!("{:?}", text::short(tuple.config.checkpoint_ns(), 80)));
    }
    let known: Vec<_> = known.into_iter().take(8).collect();
    let ns = text::short(ns, 80);
    Err(Failure::new(
        Exit::NotFound,
        format!("no namespace {ns:?} in this thread; there are: {}", known.join(", ")),
    ))
}

/// One checkpoint without its values, for programs.
pub(crate) fn record(tuple: &CheckpointTuple) -> Json {
    let writes: Vec<_> = tuple
        .pending_writes
        .iter()
        .map(|write| {
            json!({"task_id": &*write.task_id, "task_path": &*write.task_path, "idx": write.idx,
                   "channel": &*write.channel, "value": text::project(&write.value)})
        })
        .collect();
    json!({
        "thread_id": &**tuple.config.thread_id(),
        "checkpoint_ns": &**tuple.config.checkpoint_ns(),
        "checkpoint_id": &*tuple.checkpoint.id,
        "parent_checkpoint_id": tuple.parent_checkpoint_id().map(|id| &**id),
        "ts": &*tuple.checkpoint.ts,
        "step": tuple.metadata.step(),
        "source": tuple.metadata.source(),
        "sealed": tuple.checkpoint.is_sealed(),
        "updated_channels": tuple.checkpoint.updated_channels.as_ref()
            .map(|channels| channels.iter().map(|channel| &**channel).collect::<Vec<_>>()),
        "pending_writes": writes,
    })
}

type Key<'a> = (&'a str, &'a str);

/// Prints oldest first. Within a namespace, the last child goes on in the same column and the others are branches.
fn print(out: &mut impl std::io::Write, tuples: &[CheckpointTuple]) -> Result<(), Failure> {
    let known: HashMap<Key<'_>, &CheckpointTuple> = tuples.iter().map(|tuple| (key(tuple), tuple)).collect();
    let mut children: BTreeMap<Key<'_>, Vec<&CheckpointTuple>> = BTreeMap::new();
    let mut roots = Vec::new();
    for tuple in tuples {
        let ns = &**tuple.config.checkpoint_ns();
        let parent = tuple.parent_checkpoint_id().map(|id| (ns, &**id));
        // The first checkpoint of a subgraph hangs below the step that ran it.
        let caller = tuple.metadata.get("parents").and_then(|parents| parents.as_map()).and_then(|parents| {
            parents
                .iter()
                .filter_map(|(ns, id)| Some((ns.as_str()?, id.as_str()?)))
                .max_by_key(|(ns, _)| ns.len())
        });
        match parent.or(caller).filter(|above| known.contains_key(above) && *above != key(tuple)) {
            Some(above) => children.entry(above).or_default().push(tuple),
            None => roots.push(tuple),
        }
    }
    // A stack, not recursion: a history may be very long.
    let mut stack: Vec<(&CheckpointTuple, usize, bool)> =
        roots.into_iter().rev().map(|root| (root, 0, false)).collect();
    while let Some((tuple, depth, branches)) = stack.pop() {
        entry(out, tuple, known.get(&parent_key(tuple)).copied(), depth, branches)?;
        let below = children.remove(&key(tuple)).unwrap_or_default();
        let (same, subgraphs): (Vec<_>, Vec<_>) =
            below.into_iter().partition(|child| child.config.checkpoint_ns() == tuple.config.checkpoint_ns());
        // Popped in reverse: subgraphs of this step, then branches, then the branch that goes on here.
        let forks = same.len() > 1;
        if let Some((first, others)) = same.split_first() {
            stack.push((first, depth, false));
            stack.extend(others.iter().rev().map(|child| (*child, depth + 1, forks)));
        }
        stack.extend(subgraphs.into_iter().rev().map(|child| (child, depth + 1, false)));
    }
    Ok(())
}

fn key(tuple: &CheckpointTuple) -> Key<'_> {
    (tuple.config.checkpoint_ns(), &tuple.checkpoint.id)
}

fn parent_key(tuple: &CheckpointTuple) -> Key<'_> {
    (tuple.config.checkpoint_ns(), tuple.parent_checkpoint_id().map_or("", |id| id))
}

fn entry(
    out: &mut impl std::io::Write,
    tuple: &CheckpointTuple,
    parent: Option<&CheckpointTuple>,
    depth: usize,
    branch: bool,
) -> Result<(), Failure> {
    let bold = Style::new().bold();
    let dim = Style::new().dimmed();
    let fork = AnsiColor::Yellow.on_default();
    let indent = "│ ".repeat(depth.min(20));
    let ns = tuple.config.checkpoint_ns();
    if !ns.is_empty() && tuple.parent_config.is_none() {
        writeln!(out, "{indent}{dim}in {}{dim:#}", text::line(ns))?;
    }
    if branch {
        writeln!(out, "{indent}{fork}fork of {}{fork:#}", text::line(parent_key(tuple).1))?;
    }
    let step = tuple.metadata.step().map_or_else(|| "?".into(), |step| step.to_string());
    let source = text::line(tuple.metadata.source().unwrap_or("?"));
    let (id, ts) = (text::line(&tuple.checkpoint.id), text::line(&tuple.checkpoint.ts));
    writeln!(out, "{indent}● {bold}step {step}{bold:#} {source}  {id}  {dim}{ts}{dim:#}")?;
    if tuple.checkpoint.is_sealed() {
        writeln!(out, "{indent}│   encrypted, no key")?;
    } else {
        let changed: Vec<_> = tuple
            .checkpoint
            .channel_versions
            .iter()
            .filter(|(name, version)| {
                parent.is_none_or(|parent| parent.checkpoint.channel_versions.get(*name) != Some(version))
            })
            .map(|(name, _)| text::line(name))
            .collect();
        if !changed.is_empty() {
            writeln!(out, "{indent}│   changed: {}", changed.join(", "))?;
        }
    }
    let mut tasks: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for write in &tuple.pending_writes {
        tasks.entry((&write.task_path, &write.task_id)).or_default().push(text::line(&write.channel));
    }
    for ((_, task), channels) in tasks {
        writeln!(out, "{indent}│   task {}: {}", text::short(task, 8), channels.join(", "))?;
    }
    Ok(())
}
