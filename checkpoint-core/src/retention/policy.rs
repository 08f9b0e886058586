//! The policy.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Error, Filter, Result, Str};

/// The longest duration of a policy: 36,525 days, a hundred years.
const LONGEST: Duration = Duration::from_secs(36_525 * 24 * 60 * 60);

/// The limits of a namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Limits {
    /// How many checkpoints stay.
    pub keep_last: Option<usize>,
    /// How old checkpoints may become.
    pub max_age: Option<Duration>,
}

impl Limits {
    /// Removes nothing.
    pub const fn new() -> Self {
        Self { keep_last: None, max_age: None }
    }

    /// Keeps the newest `count` checkpoints of each namespace.
    #[must_use]
    pub const fn keep_last(mut self, count: usize) -> Self {
        self.keep_last = Some(count);
        self
    }

    /// Removes checkpoints that are older.
    #[must_use]
    pub const fn max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age);
        self
    }

    fn validate(self) -> Result<()> {
        if self.keep_last == Some(0) {
            return Err(Error::invalid_argument(
                "keep_last must be at least 1; to delete whole threads, use idle_for or delete_thread",
            ));
        }
        check_duration("max_age", self.max_age)
    }
}

/// Which checkpoints stay; see the [module's page](super) for how the rules combine.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Retention {
    /// The limits of every namespace without limits of its own.
    pub limits: Limits,
    /// The limits of some namespaces, by name without task ids.
    pub namespaces: BTreeMap<Str, Limits>,
    /// How long threads may be idle before they are deleted.
    pub idle_for: Option<Duration>,
    /// The metadata by which threads are held.
    pub pinned: Option<Filter>,
    /// Whether checkpoints with several children, and these children, stay.
    pub keep_branch_points: bool,
    /// Whether threads that wait for a person are treated like all others.
    pub include_waiting: bool,
}

impl Retention {
    /// Removes nothing, and is refused as long as it has no limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the newest `count` checkpoints of each namespace, by id.
    #[must_use]
    pub fn keep_last(mut self, count: usize) -> Self {
        self.limits = self.limits.keep_last(count);
        self
    }

    /// Removes checkpoints that are older.
    #[must_use]
    pub fn max_age(mut self, age: Duration) -> Self {
        self.limits = self.limits.max_age(age);
        self
    }

    /// Deletes threads in which nothing was stored for this long, in no namespace, with their leases.
    #[must_use]
    pub fn idle_for(mut self, duration: Duration) -> Self {
        self.idle_for = Some(duration);
        self
    }

    /// Sets other limits for a namespace and those inside it, in place of the general ones. The name has no task ids:
    /// `researcher` stands for the namespace `researcher:6a1f…` and for `researcher:6a1f…|writer:0b55…`, unless
    /// `researcher|writer` has limits, too. An empty name stands for the root namespace alone.
    #[must_use]
    pub fn in_namespace(mut self, name: impl Into<Str>, limits: Limits) -> Self {
        self.namespaces.insert(name.into(), limits);
        self
    }

    /// Holds every thread that has a checkpoint whose metadata matches. Savers compare as in
    /// [`ListQuery::filter`](crate::ListQuery).
    #[must_use]
    pub fn pin(mut self, filter: Filter) -> Self {
        self.pinned = Some(filter);
        self
    }

    /// Keeps checkpoints with several children in their namespace, and these children: the points where branches fork. They
    /// do not hold an idle thread.
    #[must_use]
    pub fn keep_branch_points(mut self, keep: bool) -> Self {
        self.keep_branch_points = keep;
        self
    }

    /// Treats threads that wait for a person like all others.
    #[must_use]
    pub fn include_waiting(mut self, include: bool) -> Self {
        self.include_waiting = include;
        self
    }

    /// What [`PruneStrategy::KeepLatest`](crate::PruneStrategy) keeps. For implementers: `prune` is `retain` with this
    /// policy, except that it waits for threads that are busy, and takes their parents from checkpoints whose parents went.
    pub fn keep_latest() -> Self {
        Self::new().keep_last(1).include_waiting(true)
    }

    /// Checks the policy. Savers do it before they read anything.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) without any limit, for `keep_last(0)`, for a duration of zero
    /// or over a hundred years, and for a pin without conditions, which would hold every thread.
    pub fn validate(&self) -> Result<()> {
        let limits = || std::iter::once(&self.limits).chain(self.namespaces.values());
        if self.idle_for.is_none() && limits().all(|limits| *limits == Limits::new()) {
            return Err(Error::invalid_argument(
                "the retention policy has no limit; set keep_last, max_age or idle_for",
            ));
        }
        self.limits.validate()?;
        for (name, limits) in &self.namespaces {
            limits.validate().map_err(|error| error.with("checkpoint_ns", name))?;
        }
        check_duration("idle_for", self.idle_for)?;
        if self.pinned.as_ref().is_some_and(Filter::is_empty) {
            return Err(Error::invalid_argument("a pin without conditions would hold every thread"));
        }
        Ok(())
    }

    /// The limits of a namespace as it is stored, with task ids.
    pub(crate) fn limits_of(&self, checkpoint_ns: &str) -> Limits {
        if self.namespaces.is_empty() {
            return self.limits;
        }
        if checkpoint_ns.is_empty() {
            return self.namespaces.get("").copied().unwrap_or(self.limits);
        }
        let names: Vec<&str> = checkpoint_ns
            .split('|')
            .map(|part| part.split_once(':').map_or(part, |(name, _)| name))
            .collect();
        let longest = (1..=names.len()).rev().find_map(|length| {
            let name = names.get(..length)?.join("|");
            if name.is_empty() { None } else { self.namespaces.get(&*name).copied() }
        });
        longest.unwrap_or(self.limits)
    }
}

fn check_duration(name: &'static str, duration: Option<Duration>) -> Result<()> {
    match duration {
        Some(Duration::ZERO) => Err(Error::invalid_argument(format!("{name} must be longer than zero"))),
        Some(duration) if duration > LONGEST => {
            Err(Error::invalid_argument(format!("{name} must not be longer than 36,525 days (100 years)")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn bad_policies_are_refused() {
        let second = Duration::from_secs(1);
        for policy in [
            Retention::new(),
            Retention::new().keep_branch_points(true).include_waiting(true),
            Retention::new().in_namespace("a", Limits::new()),
            Retention::new().keep_last(0),
            Retention::new().keep_last(1).max_age(Duration::ZERO),
            Retention::new().max_age(Duration::MAX),
            Retention::new().idle_for(Duration::ZERO),
            Retention::new().idle_for(Duration::MAX),
            Retention::new().keep_last(1).in_namespace("a", Limits::new().keep_last(0)),
            Retention::new().keep_last(1).pin(Filter::new()),
        ] {
            assert_eq!(policy.validate().unwrap_err().kind(), ErrorKind::InvalidArgument, "{policy:?}");
        }
        for policy in [
            Retention::new().keep_last(1),
            Retention::new().max_age(LONGEST),
            Retention::new().idle_for(second),
            Retention::new().in_namespace("a", Limits::new().max_age(second)),
        ] {
            policy.validate().unwrap();
        }
    }

    #[test]
    fn the_longest_name_of_a_namespace_decides() {
        let limits = |count| Limits::new().keep_last(count);
        let policy = Retention::new()
            .keep_last(1)
            .in_namespace("", limits(2))
            .in_namespace("a", limits(3))
            .in_namespace("a|b", limits(4));
        for (checkpoint_ns, expected) in [
            ("", 2),
            ("a:1", 3),
            ("a", 3),
            ("a:1|c:2", 3),
            ("a:1|b:2", 4),
            ("a:1|b:2|c:3", 4),
            ("b:2", 1),
            ("ab:1", 1),
            (":1", 1),
        ] {
            assert_eq!(policy.limits_of(checkpoint_ns).keep_last, Some(expected), "{checkpoint_ns}");
        }
    }
}
