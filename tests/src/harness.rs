//! Runs the cases as a test binary.

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tokio::runtime::Runtime;

use crate::runner::cases_on;
use crate::{Case, Failure, Savers, StoreTarget, Stores, Suite, Target};

/// Runs the suite as a test binary: reads the arguments of `cargo test`, runs the cases in parallel, and prints as
/// `cargo test` does.
pub fn run(target: impl Target) -> ExitCode {
    run_all(vec![Ok(Arc::new(target))])
}

/// The environment variable that lists requirements, separated by commas. A test whose requirement is missing fails if the
/// list has it, and is ignored otherwise.
const REQUIRE: &str = "CHECKPOINT_TEST_REQUIRE";

/// A requirement of tests that is missing on this machine, such as a server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Missing {
    /// Its name.
    pub name: String,
    /// Why it is missing; the report shows it with every test.
    pub reason: String,
    /// Whether `CHECKPOINT_TEST_REQUIRE` names it, so that tests without it have failed.
    pub required: bool,
}

impl Missing {
    /// Names the requirement and why it is missing. `names` are those by which `CHECKPOINT_TEST_REQUIRE` may list it.
    pub fn new(name: impl Into<String>, reason: impl Into<String>, names: &[&str]) -> Self {
        let list = std::env::var(REQUIRE).unwrap_or_default();
        Self { name: name.into(), reason: reason.into(), required: names_one(&list, names) }
    }

    /// The result of a test without it: ignored, with the reason in the report.
    ///
    /// # Errors
    /// The reason, when it is required.
    pub fn end(&self) -> Result<Completion, Failed> {
        if self.required {
            return Err(format!("{} is required here: {}", self.name, self.reason).into());
        }
        Ok(Completion::ignored_with(self.reason.clone()))
    }
}

fn names_one(list: &str, names: &[&str]) -> bool {
    list.split(',').any(|wanted| names.contains(&wanted.trim()))
}

/// Runs the suite on several targets as a test binary: every case runs on each, under the target's name. The cases of a
/// missing target are shown as ignored, or fail if it is required.
pub fn run_all(targets: Vec<Result<Arc<dyn Target>, Missing>>) -> ExitCode {
    binary::<Savers>(targets)
}

/// Runs the suite of stores as a test binary, as [`run_all`] does that of savers.
pub fn run_stores(targets: Vec<Result<Arc<dyn StoreTarget>, Missing>>) -> ExitCode {
    binary::<Stores>(targets)
}

fn binary<S: Suite>(targets: Vec<Result<Arc<S::Target>, Missing>>) -> ExitCode {
    let arguments = Arguments::from_args();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => Arc::new(runtime),
        Err(error) => {
            eprintln!("the runtime does not start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut trials = Vec::new();
    // Kept until every case has ended.
    let mut opened = Vec::new();
    for target in targets {
        let target = match target {
            Ok(target) => target,
            Err(missing) => {
                trials.extend(S::cases().iter().map(|case| without(case, missing.clone())));
                continue;
            }
        };
        let handle = match runtime.block_on(S::connect(&target)) {
            Ok(handle) => handle,
            Err(error) => {
                eprintln!("{} cannot be opened: {}", S::name(&target), Failure::from(error));
                return ExitCode::FAILURE;
            }
        };
        trials.extend(cases_on::<S>(&target).map(|case| trial(case, &runtime, &target, &handle)));
        opened.push(target);
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(opened);
    conclusion.exit_code()
}

fn trial<S: Suite>(
    case: Case<S>,
    runtime: &Arc<Runtime>,
    target: &Arc<S::Target>,
    handle: &S::Handle,
) -> Trial {
    let (runtime, target, handle) = (runtime.clone(), target.clone(), handle.clone());
    let (name, kind) = (case.name().to_owned(), S::name(&target).to_owned());
    let run = move || {
        if let Some(reason) = case.ignored(&target, &handle) {
            return Ok(Completion::ignored_with(reason));
        }
        runtime.block_on(case.run(target, handle))?;
        Ok(Completion::Completed)
    };
    Trial::ignorable_test(name, run).with_kind(kind)
}

fn without<S: Suite>(case: &Case<S>, missing: Missing) -> Trial {
    let kind = missing.name.clone();
    Trial::ignorable_test(case.name(), move || missing.end()).with_kind(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_requirements() {
        assert!(names_one("python, postgres", &["postgres-15", "postgres"]));
        assert!(!names_one("postgres-15", &["postgres"]));
        assert!(!names_one("", &["postgres"]));
    }

    #[test]
    fn what_is_missing_fails_only_where_it_is_required() {
        let missing = |required| Missing { name: "postgres".into(), reason: "no server".into(), required };
        assert!(
            matches!(missing(false).end(), Ok(Completion::Ignored { reason: Some(reason) }) if reason == "no server")
        );
        assert!(
            matches!(missing(true).end(), Err(failed) if failed.message().is_some_and(|text| text.contains("no server")))
        );
    }
}
