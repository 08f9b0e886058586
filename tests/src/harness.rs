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
    TestBinary::new().savers(vec![Ok(Arc::new(target))]).run()
}

/// The environment variable with the requirements of tests, separated by commas. Tests with a missing requirement fail
/// if it is listed, otherwise they are ignored.
const REQUIRE: &str = "CHECKPOINT_TEST_REQUIRE";

/// A requirement of tests that is not available.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Missing {
    /// Its name.
    pub name: String,
    /// The reason, which the report shows with every test.
    pub reason: String,
    /// Whether `CHECKPOINT_TEST_REQUIRE` names it, so that tests without it fail.
    pub required: bool,
}

impl Missing {
    /// Takes the name and the reason, and the names by which `CHECKPOINT_TEST_REQUIRE` may require it.
    pub fn new(name: impl Into<String>, reason: impl Into<String>, names: &[&str]) -> Self {
        let list = std::env::var(REQUIRE).unwrap_or_default();
        Self { name: name.into(), reason: reason.into(), required: names_one(&list, names) }
    }

    /// The result of a test without it: ignored, with the reason.
    ///
    /// # Errors
    /// The reason, if it is required.
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

/// A test binary: the suite on any number of targets, and other tests.
///
/// Every case runs on each target, under the target's name. If a target is missing, its cases are shown as ignored, or
/// fail if it is required.
#[derive(Debug, Default)]
pub struct TestBinary {
    savers: Vec<Result<Arc<dyn Target>, Missing>>,
    stores: Vec<Result<Arc<dyn StoreTarget>, Missing>>,
    others: Vec<Trial>,
    ignored: Option<fn(&str, &str) -> bool>,
}

impl TestBinary {
    /// A binary without tests.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the suite of savers on these targets.
    #[must_use]
    pub fn savers(mut self, targets: Vec<Result<Arc<dyn Target>, Missing>>) -> Self {
        self.savers.extend(targets);
        self
    }

    /// Adds the suite of stores on these targets.
    #[must_use]
    pub fn stores(mut self, targets: Vec<Result<Arc<dyn StoreTarget>, Missing>>) -> Self {
        self.stores.extend(targets);
        self
    }

    /// Adds other tests.
    #[must_use]
    pub fn tests(mut self, tests: impl IntoIterator<Item = Trial>) -> Self {
        self.others.extend(tests);
        self
    }

    /// Ignores the tests for which this is true of the target's name and of their own. `--include-ignored` runs them.
    #[must_use]
    pub fn ignoring(mut self, is_ignored: fn(&str, &str) -> bool) -> Self {
        self.ignored = Some(is_ignored);
        self
    }

    /// Reads the arguments of `cargo test`, runs the tests in parallel, prints as `cargo test` does.
    pub fn run(self) -> ExitCode {
        let arguments = Arguments::from_args();
        let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => Arc::new(runtime),
            Err(error) => {
                eprintln!("the runtime cannot be started: {error}");
                return ExitCode::FAILURE;
            }
        };
        let opened = trials::<Savers>(&runtime, &self.savers)
            .and_then(|savers| Ok((savers, trials::<Stores>(&runtime, &self.stores)?)));
        let (mut all, stores) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        };
        all.extend(stores);
        all.extend(self.others);
        if let Some(is_ignored) = self.ignored {
            let mark = |trial: Trial| {
                let is_ignored = is_ignored(trial.kind(), trial.name());
                trial.with_ignored_flag(is_ignored)
            };
            all = all.into_iter().map(mark).collect();
        }
        // The targets, which `self` holds, are dropped after the last case.
        libtest_mimic::run(&arguments, all).exit_code()
    }
}

/// Every case on every target. Opens the targets; the error names the one that cannot be opened.
fn trials<S: Suite>(
    runtime: &Arc<Runtime>,
    targets: &[Result<Arc<S::Target>, Missing>],
) -> Result<Vec<Trial>, String> {
    let mut trials = Vec::new();
    for target in targets {
        let target = match target {
            Ok(target) => target,
            Err(missing) => {
                trials.extend(S::cases().iter().map(|case| without(case, missing.clone())));
                continue;
            }
        };
        let handle = runtime
            .block_on(S::connect(target))
            .map_err(|error| format!("{} cannot be opened: {}", S::name(target), Failure::from(error)))?;
        trials.extend(cases_on::<S>(target).map(|case| trial(case, runtime, target, &handle)));
    }
    Ok(trials)
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
    fn requirements_are_parsed() {
        assert!(names_one("python, postgres", &["postgres-15", "postgres"]));
        assert!(!names_one("postgres-15", &["postgres"]));
        assert!(!names_one("", &["postgres"]));
    }

    #[test]
    fn missing_requirements_fail_only_if_required() {
        let missing = |required| Missing { name: "postgres".into(), reason: "no server".into(), required };
        assert!(
            matches!(missing(false).end(), Ok(Completion::Ignored { reason: Some(reason) }) if reason == "no server")
        );
        assert!(
            matches!(missing(true).end(), Err(failed) if failed.message().is_some_and(|text| text.contains("no server")))
        );
    }
}
