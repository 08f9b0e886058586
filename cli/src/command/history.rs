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

/// How many names of changed channels stand on a line.
const NAMES: usize = 6;

/// What was asked for.
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
    // What was read before a row that cannot be read is shown all the same.
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
    run_by: Option<(Str, Str)>,
    step: Option<i64>,
    source: String,
    time: String,
    sealed: bool,
    updated: Option<Vec<Str>>,
    versions: ChannelVersions,
    /// By task, the channels written to.
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
            run_by: run_by.map(|id| (enclosing.into(), id.into())),
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

/// A task by its node where that is known, else by the beginning of its id.
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

type Location = (Str, Str);

struct Tree {
    /// The terminal's width, if it is one.
    width: Option<usize>,
    nodes: HashMap<Location, Node>,
    /// By place of the parent, the ids of its children, oldest first.
    children: HashMap<Location, BTreeSet<Str>>,
    /// By place of the checkpoint that ran them, the first checkpoints of subgraphs.
    subgraphs: HashMap<Location, BTreeSet<Location>>,
    /// What no other line leads to.
    roots: BTreeSet<Location>,
}

/// What is to be printed next, and what stands before it.
struct Next {
    place: Location,
    prefix: String,
    branch: &'static str,
    /// Whether to name the namespace above it.
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
            tree.nodes.insert((node.checkpoint_ns.clone(), node.id.clone()), node);
        }
        for (place, node) in &tree.nodes {
            let parent = node.parent.clone().map(|parent| (place.0.clone(), parent));
            let parent = parent.filter(|parent| tree.nodes.contains_key(parent) && parent != place);
            let run_by =
                node.run_by.clone().filter(|run_by| tree.nodes.contains_key(run_by) && run_by.0 != place.0);
            match (parent, run_by) {
                (Some(parent), _) => {
                    tree.children.entry(parent).or_default().insert(place.1.clone());
                }
                (None, Some(run_by)) => {
                    tree.subgraphs.entry(run_by).or_default().insert(place.clone());
                }
                (None, None) => {
                    tree.roots.insert(place.clone());
                }
            }
        }
        tree
    }

    fn print(&self, out: &mut impl Write, thread: &str) -> Result<()> {
        let namespaces: BTreeSet<_> = self.nodes.keys().map(|(checkpoint_ns, _)| checkpoint_ns).collect();
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
            let heading = !root.0.is_empty() && last_namespace != Some(&root.0);
            last_namespace = Some(&root.0);
            self.print_from(out, root, heading, &mut printed)?;
        }
        // Parents in a circle lead nowhere: damaged data, but shown.
        let mut rest: Vec<_> = self.nodes.keys().filter(|place| !printed.contains(*place)).cloned().collect();
        rest.sort_unstable();
        for place in rest {
            if !printed.contains(&place) {
                self.print_from(out, &place, true, &mut printed)?;
            }
        }
        Ok(())
    }

    /// Prints a line, on a terminal no longer than it is wide: a wrapped line would break the tree.
    fn put(&self, out: &mut impl Write, line: &str) -> Result<()> {
        match self.width {
            Some(width) => writeln!(out, "{}", fit(line, width))?,
            None => writeln!(out, "{line}")?,
        }
        Ok(())
    }

    /// Prints what a line leads to. A stack, not recursion: a history may be long.
    fn print_from(
        &self,
        out: &mut impl Write,
        root: &Location,
        heading: bool,
        printed: &mut BTreeSet<Location>,
    ) -> Result<()> {
        let mut stack = vec![Next { place: root.clone(), prefix: String::new(), branch: "", heading }];
        while let Some(Next { place, prefix, branch, heading }) = stack.pop() {
            let Some(node) = self.nodes.get(&place).filter(|_| printed.insert(place.clone())) else {
                continue;
            };
            if heading {
                let name = styled(NAME, namespace(&place.0));
                self.put(out, &format!("{prefix}{branch}{} {name}", styled(DIM, "subgraph")))?;
            }
            // Under the name of a subgraph, its own tree stands deeper.
            let (prefix, branch) = match (heading, branch) {
                (true, _) => (format!("{prefix}│  "), ""),
                (false, branch) => (prefix, branch),
            };
            self.put(out, &format!("{prefix}{branch}{}", self.line(node)))?;
            let own = if branch.is_empty() { prefix } else { format!("{prefix}│ ") };
            let children: Vec<_> = self.children.get(&place).into_iter().flatten().collect();
            let bar = if children.is_empty() { "  " } else { "│ " };
            for (task, channels) in &node.pending {
                let channels: Vec<_> = channels.iter().map(mark).collect();
                let wrote = format!("{} {} {}", styled(DIM, "wrote"), task, channels.join(", "));
                self.put(out, &format!("{own}{bar}     {wrote}"))?;
            }
            // The last child goes on in the same column, the others branch off; what is pushed last comes first.
            let (main, forks) =
                children.split_last().map_or((None, &[][..]), |(main, forks)| (Some(main), forks));
            if let Some(main) = main {
                let place = (place.0.clone(), (*main).clone());
                stack.push(Next { place, prefix: own.clone(), branch: "", heading: false });
            }
            for fork in forks.iter().rev() {
                let place = (place.0.clone(), (*fork).clone());
                stack.push(Next { place, prefix: own.clone(), branch: "├─", heading: false });
            }
            for subgraph in self.subgraphs.get(&place).into_iter().flatten().rev() {
                stack.push(Next {
                    place: subgraph.clone(),
                    prefix: own.clone(),
                    branch: "├─",
                    heading: true,
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

    /// The channels that the step changed: as it says itself, or else by comparing versions with the parent. `None` when
    /// that is pruned, or beyond the limit.
    fn changed(&self, node: &Node) -> Option<String> {
        let parent =
            node.parent.as_ref().and_then(|id| self.nodes.get(&(node.checkpoint_ns.clone(), id.clone())));
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
        let more = names.len().saturating_sub(NAMES);
        let mut shown: Vec<_> = names.iter().take(NAMES).map(|name| clean(name)).collect();
        if more > 0 {
            shown.push(format!("and {more} more").into());
        }
        Some(styled(NAME, shown.join(", ")))
    }
}

/// Errors and interrupts stand out.
fn mark(channel: &Str) -> String {
    match &**channel {
        "__error__" | "__interrupt__" => styled(BAD, channel),
        other => styled(NAME, clean(other)),
    }
}
