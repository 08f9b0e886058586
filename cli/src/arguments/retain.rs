//! The arguments of `retain`, and the policy that they make.

use std::time::Duration;

use checkpoint_core::retention::Retention;
use checkpoint_core::{Filter, Value};
use clap::Args;

use super::Consent;
use crate::failure::{Failure, Result};

/// Which checkpoints stay.
#[derive(Debug, Args)]
pub(crate) struct Policy {
    /// Keep the newest N checkpoints of each namespace, and what they need.
    #[arg(long, value_name = "N")]
    keep_last: Option<usize>,
    /// Remove checkpoints that are older, such as `30d` or `12h`.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    max_age: Option<Duration>,
    /// Delete threads in which nothing was stored for this long.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    idle_for: Option<Duration>,
    /// Another --keep-last for a namespace and those inside it, by name without task ids (an empty name is the root). May be
    /// repeated.
    #[arg(long, value_name = "NAMESPACE=N")]
    ns_keep_last: Vec<String>,
    /// Another --max-age for a namespace, in the same way.
    #[arg(long, value_name = "NAMESPACE=DURATION")]
    ns_max_age: Vec<String>,
    /// Hold threads that have a checkpoint with this metadata; the value is JSON, or text. May be repeated: all must match.
    #[arg(long, value_name = "KEY=VALUE")]
    pin: Vec<String>,
    /// Keep the checkpoints at which branches fork.
    #[arg(long)]
    keep_branch_points: bool,
    /// Treat threads that wait for a person like all others.
    #[arg(long)]
    include_waiting: bool,
}

/// The arguments of `retain`.
#[derive(Debug, Args)]
pub(crate) struct Retain {
    #[command(flatten)]
    pub(crate) policy: Policy,
    /// Only this thread. May be repeated.
    #[arg(long, value_name = "THREAD", conflicts_with = "prefix")]
    pub(crate) thread: Vec<String>,
    /// Only threads whose id begins with this text.
    #[arg(long, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,
    /// Remove nothing; report what would go.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

impl Policy {
    /// Whether any rule is given.
    pub(crate) fn is_given(&self) -> bool {
        self.keep_last.is_some()
            || self.max_age.is_some()
            || self.idle_for.is_some()
            || !self.ns_keep_last.is_empty()
            || !self.ns_max_age.is_empty()
    }

    /// The policy, checked.
    pub(crate) fn retention(&self) -> Result<Retention> {
        if !self.is_given() {
            return Err(Failure::usage("give at least one of --keep-last, --max-age and --idle-for"));
        }
        let mut policy = Retention::new()
            .keep_branch_points(self.keep_branch_points)
            .include_waiting(self.include_waiting);
        policy.limits.keep_last = self.keep_last;
        policy.limits.max_age = self.max_age;
        policy.idle_for = self.idle_for;
        for text in &self.ns_keep_last {
            let (name, count) = pair("--ns-keep-last", text)?;
            let count = count.parse().map_err(|_| {
                Failure::usage(format!("--ns-keep-last {text}: {count} is not a number of checkpoints"))
            })?;
            // Limits of a namespace replace the general ones.
            policy.namespaces.entry(name.into()).or_insert(policy.limits).keep_last = Some(count);
        }
        for text in &self.ns_max_age {
            let (name, age) = pair("--ns-max-age", text)?;
            let age = humantime::parse_duration(age)
                .map_err(|error| Failure::usage(format!("--ns-max-age {text}: {error}")))?;
            policy.namespaces.entry(name.into()).or_insert(policy.limits).max_age = Some(age);
        }
        if !self.pin.is_empty() {
            let mut filter = Filter::new();
            for text in &self.pin {
                let (key, value) = pair("--pin", text)?;
                let value = match serde_json::from_str::<serde_json::Value>(value) {
                    Ok(value) => Value::from(value),
                    Err(_) => Value::from(value),
                };
                filter = filter.eq(key, value);
            }
            policy = policy.pin(filter);
        }
        policy.validate()?;
        Ok(policy)
    }
}

/// The name and the value of `NAME=VALUE`.
fn pair<'a>(option: &str, text: &'a str) -> Result<(&'a str, &'a str)> {
    text.split_once('=').ok_or_else(|| Failure::usage(format!("{option} {text}: it must be NAME=VALUE")))
}
