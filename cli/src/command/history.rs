//! `ckpt history`: a tree for people, lines for programs.

use std::collections::{BTreeSet, HashMap};
use std::io::Write;

use checkpoint_core::{ChannelVersions, CheckpointTuple, ListQuery, Str};
use futures_util::TryStreamExt;
use serde_json::{Value as Json, json};

use super::{describe, nothing_in};
use crate::failure::Result;
use crate::open::Saver;
use crate::output::{
    self, BAD, BOLD, DIM, GOOD, ID, NAME, clean, fit, json_line, namespace, progress, stdout, styled, time,
    width,
};

/// The most names of changed channels on a line.
const MAX_NAMES: usize = 6;

/// The arguments of `history`.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) thread: String,
    pub(crate) ns: Option<String>,
    pub(crate) limit: Option<usize>,
}

pub(crate) async fn run(saver: &Saver, asked: Asked, json: bool) -> Result<()> {
    let mut query = ListQuery::thread(asked.thread.as_str());
    query.checkpoint_ns = asked.ns.as_deref().map(Into::into);
    query.limit = asked.limit;
    let mut tuples = saver.list(query);
    let mut out = stdout();
    let mut nodes = Vec::new();
    let mut found = false;
    let bar = if json { indicatif::ProgressBar::hidden() } else { progress(None, "checkpoints read:") };
    // Checkpoints that were read before an error are printed nevertheless.
    let mut ended = Ok(());
    while let Some(tuple) = tuples.try_next().await.unwrap_or_else(|error| {
        ended = Err(error);
        None
    }) {
        found = true;
        bar.inc(1);
        if json {
            json_line(&mut out, &line(&tuple))?;
        } else {
            nodes.push(Node::from(&tuple));
        }
    }
    bar.finish_and_clear();
    if !found && ended.is_ok() && asked.limit != Some(0) {
        return Err(nothing_in(saver, &asked.thread, asked.ns.as_deref()).await);
    }
    if !json && (found || ended.is_ok()) {
        Tree::new(nodes).print(&mut out, &asked.thread)?;
    }
    out.flush()?;
    Ok(ended?)
}

fn line(tuple: &CheckpointTuple) -> Json {
    let names = |names: &[Str]| names.iter().map(|name| Json::from(&**name)).collect::<Json>();
    let mut line = describe(tuple, |_| None);
    line.insert("updated_channels".into(), json!(tuple.checkpoint.updated_channels.as_deref().map(names)));
    Json::Object(line)
}

/// A checkpoint as a line of the tree.
struct Node {
    checkpoint_ns: Str,
    id: Str,
    parent: Option<Str>,
    /// The checkpoint of the enclosing namespace that ran this one's subgraph.
    run_by: Option<Key>,
    step: Option<i64>,
    source: String,
    time: String,
    sealed: bool,
    updated: Option<Vec<Str>>,
    versions: ChannelVersions,
    /// The channels written to, by task.
    pending: Vec<(String, Vec<Str>)>,
}

impl From<&CheckpointTuple> for Node {
    fn from(tuple: &CheckpointTuple) -> Self {
        let checkpoint_ns = Str::from(tuple.config.checkpoint_ns());
        let enclosing = checkpoint_ns.rsplit_once('|').map_or("", |(enclosing, _)| enclosing);
        let run_by = tuple.metadata.parent_in(enclosing).filter(|_| !checkpoint_ns.is_empty());
        let mut pending: Vec<(String, Vec<Str>)> = Vec::new();
        for write in &tuple.pending_writes {
            let task = task(&write.task_path, &write.task_id);
            match pending.last_mut().filter(|(last, _)| *last == task) {
                Some((_, channels)) => channels.push(write.channel.clone()),
                None => pending.push((task, vec![write.channel.clone()])),
            }
        }
        Self {
            run_by: run_by.map(|id| Key { ns: enclosing.into(), id: id.into() }),
            id: tuple.checkpoint.id.clone(),
            parent: tuple.parent_checkpoint_id().map(Str::from),
            step: tuple.metadata.step(),
            source: clean(tuple.metadata.source().unwrap_or("-")).into_owned(),
            time: time(&tuple.checkpoint.ts, &tuple.checkpoint.id),
            sealed: tuple.checkpoint.is_sealed(),
            updated: tuple.checkpoint.updated_channels.clone(),
            versions: tuple.checkpoint.channel_versions.clone(),
            checkpoint_ns,
            pending,
        }
    }
}

/// The name of a task: its node if that is known, else the beginning of its id.
pub(super) fn task(task_path: &str, task_id: &str) -> String {
    const NULL_TASK: &str = "00000000-0000-0000-0000-000000000000";
    let short = |id: &str| id.chars().take(8).collect::<String>();
    let name = match task_path.rsplit_once("__pregel_pull, ") {
        _ if task_id == NULL_TASK => "input".to_owned(),
        Some((_, node)) if !node.contains(',') => node.to_owned(),
        _ if task_path.contains("__pregel_push") => format!("send {}", short(task_id)),
        _ => format!("task {}", short(task_id)),
    };
    clean(&name).into_owned()
}

/// Identifies a checkpoint of the thread.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    ns: Str,
    id: Str,
}

struct Tree {
    /// The terminal's width, if standard output is one.
    width: Option<usize>,
    nodes: HashMap<Key, Node>,
    /// The ids of the children of a checkpoint, oldest first.
    children: HashMap<Key, BTreeSet<Str>>,
    /// The first checkpoints of the subgraphs that a checkpoint ran.
    subgraphs: HashMap<Key, BTreeSet<Key>>,
    /// The checkpoints without a parent.
    roots: BTreeSet<Key>,
}

/// A node to print, and the text before it.
struct Next {
    key: Key,
    prefix: String,
    branch: &'static str,
    /// Whether to print the name of its namespace above it.
    heading: bool,
}

impl Tree {
    fn new(nodes: Vec<Node>) -> Self {
        let mut tree = Self {
            width: width(),
            nodes: HashMap::new(),
            children: HashMap::new(),
            subgraphs: HashMap::new(),
            roots: BTreeSet::new(),
        };
        for node in nodes {
            tree.nodes.insert(Key { ns: node.checkpoint_ns.clone(), id: node.id.clone() }, node);
        }
        for (key, node) in &tree.nodes {
            let parent = node.parent.clone().map(|id| Key { ns: key.ns.clone(), id });
            let parent = parent.filter(|parent| tree.nodes.contains_key(parent) && parent != key);
            let run_by =
                node.run_by.clone().filter(|run_by| tree.nodes.contains_key(run_by) && run_by.ns != key.ns);
            match (parent, run_by) {
                (Some(parent), _) => {
                    tree.children.entry(parent).or_default().insert(key.id.clone());
                }
                (None, Some(run_by)) => {
                    tree.subgraphs.entry(run_by).or_default().insert(key.clone());
                }
                (None, None) => {
                    tree.roots.insert(key.clone());
                }
            }
        }
        tree
    }

    fn print(&self, out: &mut impl Write, thread: &str) -> Result<()> {
        let namespaces: BTreeSet<_> = self.nodes.keys().map(|key| &key.ns).collect();
        let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        writeln!(
            out,
            "{} {}",
            styled(BOLD, output::thread(thread)),
            styled(
                DIM,
                format!(
                    "{} in {}",
                    count(self.nodes.len(), "checkpoint"),
                    count(namespaces.len(), "namespace")
                )
            )
        )?;
        let mut printed = BTreeSet::new();
        let mut last_namespace = None;
        for root in &self.roots {
            let heading = !root.ns.is_empty() && last_namespace != Some(&root.ns);
            last_namespace = Some(&root.ns);
            self.print_from(out, root, heading, &mut printed)?;
        }
        // Corrupted data may have cycles of parents, which no root leads to; they are printed too.
        let mut rest: Vec<_> = self.nodes.keys().filter(|key| !printed.contains(*key)).cloned().collect();
        rest.sort_unstable();
        for key in rest {
            if !printed.contains(&key) {
                self.print_from(out, &key, true, &mut printed)?;
            }
        }
        Ok(())
    }

    /// Prints a line, truncated to the terminal's width: a wrapped line would break the tree.
    fn put(&self, out: &mut impl Write, line: &str) -> Result<()> {
        match self.width {
            Some(width) => writeln!(out, "{}", fit(line, width))?,
            None => writeln!(out, "{line}")?,
        }
        Ok(())
    }

    /// Prints a subtree. It uses a stack instead of recursion, because a history may be long.
    fn print_from(
        &self,
        out: &mut impl Write,
        root: &Key,
        heading: bool,
        printed: &mut BTreeSet<Key>,
    ) -> Result<()> {
        let mut stack = vec![Next { key: root.clone(), prefix: String::new(), branch: "", heading }];
        while let Some(Next { key, prefix, branch, heading }) = stack.pop() {
            let Some(node) = self.nodes.get(&key).filter(|_| printed.insert(key.clone())) else {
                continue;
            };
            if heading {
                let name = styled(NAME, namespace(&key.ns));
                self.put(out, &format!("{prefix}{branch}{} {name}", styled(DIM, "subgraph")))?;
            }
            // The tree of a subgraph is indented below its name.
            let (prefix, branch) = match (heading, branch) {
                (true, _) => (format!("{prefix}│  "), ""),
                (false, branch) => (prefix, branch),
            };
            self.put(out, &format!("{prefix}{branch}{}", self.line(node)))?;
            let own = if branch.is_empty() { prefix } else { format!("{prefix}│ ") };
            let children: Vec<_> = self.children.get(&key).into_iter().flatten().collect();
            let bar = if children.is_empty() { "  " } else { "│ " };
            for (task, channels) in &node.pending {
                let channels: Vec<_> = channels.iter().map(mark).collect();
                let wrote = format!("{} {} {}", styled(DIM, "wrote"), task, channels.join(", "));
                self.put(out, &format!("{own}{bar}     {wrote}"))?;
            }
            // The last child continues in the same column, the others branch off. The stack is last in, first out.
            let (main, forks) =
                children.split_last().map_or((None, &[][..]), |(main, forks)| (Some(main), forks));
            if let Some(main) = main {
                let key = Key { ns: key.ns.clone(), id: (*main).clone() };
                stack.push(Next { key, prefix: own.clone(), branch: "", heading: false });
            }
            for fork in forks.iter().rev() {
                let key = Key { ns: key.ns.clone(), id: (*fork).clone() };
                stack.push(Next { key, prefix: own.clone(), branch: "├─", heading: false });
            }
            for subgraph in self.subgraphs.get(&key).into_iter().flatten().rev() {
                stack.push(Next {
                    key: subgraph.clone(), prefix: own.clone(), branch: "├─", heading: true
                });
            }
        }
        Ok(())
    }

    fn line(&self, node: &Node) -> String {
        let mark = match node.source.as_str() {
            "input" => "▶",
            "fork" | "update" => "◆",
            _ => "●",
        };
        let step = node.step.map_or_else(|| "-".to_owned(), |step| step.to_string());
        let changed = match (node.sealed, self.changed(node)) {
            (true, _) => styled(BAD, "encrypted, no key opens it"),
            (false, Some(changed)) => changed,
            (false, None) => styled(DIM, "(parent not shown)"),
        };
        format!(
            "{mark} {step:>3} {} {} {} {changed}",
            styled(GOOD, format!("{:<6}", node.source)),
            styled(ID, clean(&node.id)),
            styled(DIM, &node.time),
        )
    }

    /// The channels that the step changed: as recorded, or else by comparing versions with the parent. `None` if the
    /// parent is pruned or beyond the limit.
    fn changed(&self, node: &Node) -> Option<String> {
        let key = |id: &Str| Key { ns: node.checkpoint_ns.clone(), id: id.clone() };
        let parent = node.parent.as_ref().and_then(|id| self.nodes.get(&key(id)));
        let by_version = || {
            let old = parent.map(|parent| &parent.versions);
            let changed = node
                .versions
                .iter()
                .filter(|(channel, version)| old.is_none_or(|old| old.get(*channel) != Some(version)));
            changed.map(|(channel, _)| channel.clone()).collect()
        };
        if node.updated.is_none() && node.parent.is_some() && parent.is_none() {
            return None;
        }
        let mut names: Vec<Str> = node.updated.clone().unwrap_or_else(by_version);
        names.sort_unstable();
        let more = names.len().saturating_sub(MAX_NAMES);
        let mut shown: Vec<_> = names.iter().take(MAX_NAMES).map(|name| clean(name)).collect();
        if more > 0 {
            shown.push(format!("and {more} more").into());
        }
        Some(styled(NAME, shown.join(", ")))
    }
}

/// The channel's name, with errors and interrupts highlighted.
fn mark(channel: &Str) -> String {
    match &**channel {
        "__error__" | "__interrupt__" => styled(BAD, channel),
        other => styled(NAME, clean(other)),
    }
}
