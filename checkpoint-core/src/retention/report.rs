//! What a run found and did.

use crate::Str;

/// The rule by which something goes. Where several apply, the first one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// [`Retention::idle_for`](super::Retention::idle_for).
    IdleFor,
    /// [`Retention::keep_last`](super::Retention::keep_last).
    KeepLast,
    /// [`Retention::max_age`](super::Retention::max_age).
    MaxAge,
}

impl Rule {
    /// The name, such as `keep_last`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::IdleFor => "idle_for",
            Self::KeepLast => "keep_last",
            Self::MaxAge => "max_age",
        }
    }
}

/// What goes, or went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Freed {
    /// Threads that lose anything.
    pub threads: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Pending writes.
    pub writes: u64,
    /// Bytes of the values and the metadata as they are stored, without keys and indexes. Values that several rules free
    /// together count for the first of these rules.
    pub bytes: u64,
}

impl Freed {
    /// Adds the numbers of another one.
    pub fn add(&mut self, other: &Self) {
        let Self { threads, checkpoints, writes, bytes } = other;
        self.threads = self.threads.saturating_add(*threads);
        self.checkpoints = self.checkpoints.saturating_add(*checkpoints);
        self.writes = self.writes.saturating_add(*writes);
        self.bytes = self.bytes.saturating_add(*bytes);
    }
}

/// What [`retain`](crate::BaseCheckpointSaver::retain) found, and removed unless it was a dry run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetainReport {
    /// The threads of which anything was stored.
    pub threads: u64,
    /// The checkpoints that they had.
    pub checkpoints: u64,
    /// Of these threads, those that stay as they are because they wait for a person.
    pub waiting: u64,
    /// Of these threads, those that stay as they are because they are pinned.
    pub pinned: u64,
    /// What goes by [`Rule::IdleFor`]: whole threads.
    pub idle_for: Freed,
    /// What goes by [`Rule::KeepLast`].
    pub keep_last: Freed,
    /// What goes by [`Rule::MaxAge`].
    pub max_age: Freed,
    /// Threads that others were changing at that moment: nothing of them was removed, and they count nowhere else.
    pub busy: Vec<Str>,
    /// How many threads lose anything, by whatever rule.
    pub changed: u64,
}

impl RetainReport {
    /// What goes by a rule.
    pub fn by(&self, rule: Rule) -> &Freed {
        match rule {
            Rule::IdleFor => &self.idle_for,
            Rule::KeepLast => &self.keep_last,
            Rule::MaxAge => &self.max_age,
        }
    }

    /// What goes by a rule, to count. For implementers.
    pub fn by_mut(&mut self, rule: Rule) -> &mut Freed {
        match rule {
            Rule::IdleFor => &mut self.idle_for,
            Rule::KeepLast => &mut self.keep_last,
            Rule::MaxAge => &mut self.max_age,
        }
    }

    /// What goes by all rules. A thread that loses something by several rules counts once.
    pub fn total(&self) -> Freed {
        let mut total = Freed::default();
        for freed in [&self.idle_for, &self.keep_last, &self.max_age] {
            total.add(freed);
        }
        total.threads = self.changed;
        total
    }

    /// Adds the numbers of another report.
    pub fn add(&mut self, other: &Self) {
        self.threads += other.threads;
        self.checkpoints += other.checkpoints;
        self.waiting += other.waiting;
        self.pinned += other.pinned;
        self.changed += other.changed;
        for rule in [Rule::IdleFor, Rule::KeepLast, Rule::MaxAge] {
            self.by_mut(rule).add(other.by(rule));
        }
        self.busy.extend(other.busy.iter().cloned());
    }

    /// Adds what went of the same thread before, in a report on nothing but that. For implementers.
    pub fn add_earlier(&mut self, earlier: &Self) {
        self.add(earlier);
        self.threads = self.threads.min(1);
        self.changed = self.changed.min(1);
        for rule in [Rule::IdleFor, Rule::KeepLast, Rule::MaxAge] {
            let freed = self.by_mut(rule);
            freed.threads = freed.threads.min(1);
        }
    }
}
