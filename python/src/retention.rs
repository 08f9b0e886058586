//! Retention policies from Python, and the reports of runs.

use std::time::Duration;

use checkpoint_core::retention::{Freed, Limits, RetainOptions, RetainSummary, Retention, Rule};
use checkpoint_core::{BaseCheckpointSaver, Result, SaverExt, Str, ThreadQuery};
use futures_util::TryStreamExt;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDelta, PyDict};

use crate::convert::{for_each_entry, to_filter, to_str, type_name};
use crate::error::raise;

/// The arguments of `retain` that make the policy.
pub(crate) struct Policy<'a, 'py> {
    pub(crate) keep_last: Option<&'a Bound<'py, PyAny>>,
    pub(crate) max_age: Option<&'a Bound<'py, PyAny>>,
    pub(crate) idle_for: Option<&'a Bound<'py, PyAny>>,
    pub(crate) namespaces: Option<&'a Bound<'py, PyAny>>,
    pub(crate) pin: Option<&'a Bound<'py, PyAny>>,
    pub(crate) keep_branch_points: bool,
    pub(crate) include_waiting: bool,
}

impl Policy<'_, '_> {
    pub(crate) fn read(&self) -> PyResult<Retention> {
        let mut policy = Retention::new()
            .keep_branch_points(self.keep_branch_points)
            .include_waiting(self.include_waiting);
        policy.limits.keep_last = count(self.keep_last)?;
        policy.limits.max_age = duration("max_age", self.max_age)?;
        policy.idle_for = duration("idle_for", self.idle_for)?;
        if let Some(namespaces) = self.namespaces {
            for_each_entry(namespaces, |name, limits| {
                let name = to_str(&name, "a namespace")?;
                policy.namespaces.insert(name, read_limits(&limits)?);
                Ok(())
            })?;
        }
        if let Some(pin) = self.pin {
            policy = policy.pin(to_filter(pin)?);
        }
        Ok(policy)
    }
}

fn read_limits(map: &Bound<'_, PyAny>) -> PyResult<Limits> {
    let mut limits = Limits::new();
    for_each_entry(map, |key, value| {
        let value = Some(&value).filter(|value| !value.is_none());
        match &*to_str(&key, "a limit of a namespace")? {
            "keep_last" => limits.keep_last = count(value)?,
            "max_age" => limits.max_age = duration("max_age", value)?,
            other => {
                let message = format!("a namespace has the limits keep_last and max_age, not {other:?}");
                return Err(PyValueError::new_err(message));
            }
        }
        Ok(())
    })?;
    Ok(limits)
}

fn count(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<usize>> {
    let Some(value) = value else { return Ok(None) };
    let wrong = |_| PyValueError::new_err("keep_last must be a number from 1 on");
    if value.is_instance_of::<PyBool>() || value.extract::<i128>().is_err() {
        return Err(PyTypeError::new_err(format!("keep_last must be an int, not {}", type_name(value))));
    }
    value.extract().map(Some).map_err(wrong)
}

fn duration(name: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Duration>> {
    let Some(value) = value else { return Ok(None) };
    if value.cast::<PyDelta>().is_err() {
        return Err(PyTypeError::new_err(format!("{name} must be a timedelta, not {}", type_name(value))));
    }
    value.extract().map(Some).map_err(|_| PyValueError::new_err(format!("{name} must not be negative")))
}

/// Applies a policy to some threads, or all.
pub(crate) async fn retain(
    saver: &dyn BaseCheckpointSaver,
    policy: Retention,
    thread_ids: Option<Vec<String>>,
    options: RetainOptions,
) -> Result<RetainSummary> {
    match thread_ids {
        None => saver.retain_all(policy, options, ThreadQuery::all()).try_collect().await,
        Some(thread_ids) => {
            let thread_ids = thread_ids.into_iter().map(Str::from).collect();
            saver.retain_threads(thread_ids, policy, options).try_collect().await
        }
    }
}

/// The report as the arguments of Python's.
pub(crate) fn from_summary(py: Python<'_>, summary: &RetainSummary, dry_run: bool) -> PyResult<Py<PyAny>> {
    let freed = |freed: &Freed| (freed.threads, freed.checkpoints, freed.writes, freed.bytes);
    let report = &summary.report;
    let by_rule = PyDict::new(py);
    for rule in [Rule::IdleFor, Rule::KeepLast, Rule::MaxAge] {
        by_rule.set_item(rule.as_str(), freed(report.by(rule)))?;
    }
    let failed = PyDict::new(py);
    for (thread_id, error) in &summary.failed {
        failed.set_item(&**thread_id, raise(py, error).into_value(py))?;
    }
    let found = PyDict::new(py);
    found.set_item("dry_run", dry_run)?;
    found.set_item("threads", report.threads)?;
    found.set_item("checkpoints", report.checkpoints)?;
    found.set_item("waiting", report.waiting)?;
    found.set_item("pinned", report.pinned)?;
    found.set_item("removed", freed(&report.total()))?;
    found.set_item("by_rule", by_rule)?;
    found.set_item("busy", report.busy.iter().map(|name| &**name).collect::<Vec<_>>())?;
    found.set_item("failed", failed)?;
    Ok(found.into_any().unbind())
}
