//! Runs the cases inside a program.

use std::sync::Arc;

use crate::{Case, Failure, Savers, StoreTarget, Stores, Suite, Target};

/// The outcome of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The backend behaves as the case describes.
    Passed,
    /// The backend behaves differently; the reason.
    Failed(Failure),
    /// The case could not run; the reason.
    Ignored(String),
}

/// The outcomes of all cases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Names of the cases that passed.
    pub passed: Vec<String>,
    /// Names of the cases that failed, with the reasons.
    pub failed: Vec<(String, Failure)>,
    /// Names of the cases that could not run, with the reasons.
    pub ignored: Vec<(String, String)>,
}

/// Sets up the database and runs the cases of savers that a filter selects, one after the other. `progress` is called
/// after each.
///
/// # Errors
/// A [`Failure`] if the database cannot be opened or set up; then no case was run.
///
/// # Cancellation
/// A dropped run may leave threads behind. Their ids begin with `conformance-`.
pub async fn run_cases(
    target: Arc<dyn Target>,
    filter: impl FnMut(&Case) -> bool + Send,
    progress: impl FnMut(&Case, &Outcome) + Send,
) -> Result<Report, Failure> {
    report::<Savers>(target, filter, progress).await
}

/// Runs the cases of stores, as [`run_cases`] does those of savers.
///
/// # Errors
/// A [`Failure`] if the database cannot be opened or set up; then no case was run.
///
/// # Cancellation
/// A dropped run may leave namespaces behind. Their first labels begin with `conformance-`.
pub async fn run_store_cases(
    target: Arc<dyn StoreTarget>,
    filter: impl FnMut(&Case<Stores>) -> bool + Send,
    progress: impl FnMut(&Case<Stores>, &Outcome) + Send,
) -> Result<Report, Failure> {
    report::<Stores>(target, filter, progress).await
}

async fn report<S: Suite>(
    target: Arc<S::Target>,
    mut filter: impl FnMut(&Case<S>) -> bool + Send,
    mut progress: impl FnMut(&Case<S>, &Outcome) + Send,
) -> Result<Report, Failure> {
    let handle = S::connect(&target).await?;
    let mut report = Report::default();
    for case in cases_on::<S>(&target).filter(|case| filter(case)) {
        let name = case.name().to_owned();
        let outcome = match case.ignored(&target, &handle) {
            Some(reason) => Outcome::Ignored(reason),
            None => match case.run(target.clone(), handle.clone()).await {
                Ok(()) => Outcome::Passed,
                Err(failure) => Outcome::Failed(failure),
            },
        };
        progress(&case, &outcome);
        match outcome {
            Outcome::Passed => report.passed.push(name),
            Outcome::Failed(failure) => report.failed.push((name, failure)),
            Outcome::Ignored(reason) => report.ignored.push((name, reason)),
        }
    }
    Ok(report)
}

/// The cases of the groups that run on a target.
pub(crate) fn cases_on<S: Suite>(target: &S::Target) -> impl Iterator<Item = Case<S>> {
    let group = |case: &Case<S>| case.name().split("::").next().unwrap_or_default().to_owned();
    S::cases().into_iter().filter(move |case| S::concerns(target, &group(case)))
}
