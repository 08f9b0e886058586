//! Runs the cases: as a test binary, or inside a program.

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Trial};
use tokio::runtime::Runtime;

use crate::{Case, Failure, OpenOptions, Saver, Target, saver_cases};

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The saver does what the case describes.
    Passed,
    /// The saver does something else.
    Failed(Failure),
    /// The case could not run, and why.
    Ignored(String),
}

/// How all cases ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Names of the cases that passed.
    pub passed: Vec<String>,
    /// Names of the cases that failed, and why.
    pub failed: Vec<(String, Failure)>,
    /// Names of the cases that could not run, and why.
    pub ignored: Vec<(String, String)>,
}

impl Report {
    /// Whether no case failed.
    pub fn is_success(&self) -> bool {
        self.failed.is_empty()
    }
}

async fn connect(target: &Arc<dyn Target>) -> checkpoint_core::Result<Saver> {
    let saver = target.open(OpenOptions::default()).await?;
    saver.setup().await?;
    Ok(saver)
}

/// Runs the cases that a filter chooses, one after the other, and tells the progress after each. The database is set
/// up first.
///
/// # Errors
/// A [`Failure`] when the database cannot be opened or set up; no case was run then.
///
/// # Cancellation
/// A dropped run may leave threads behind, whose ids begin with `conformance-`.
pub async fn run_cases(
    target: Arc<dyn Target>,
    mut filter: impl FnMut(&Case) -> bool + Send,
    mut progress: impl FnMut(&Case, &Outcome) + Send,
) -> Result<Report, Failure> {
    let saver = connect(&target).await?;
    let mut report = Report::default();
    for case in saver_cases().into_iter().filter(|case| filter(case)) {
        let name = case.name().to_owned();
        let outcome = match case.ignored(&*target, saver.capabilities()) {
            Some(reason) => Outcome::Ignored(reason),
            None => match case.run(target.clone(), saver.clone()).await {
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

/// Makes a test binary of the suite: reads the arguments of `cargo test`, runs the cases in parallel, prints as
/// `cargo test` does.
pub fn run(target: impl Target) -> ExitCode {
    run_all(vec![Ok(Arc::new(target))])
}

/// A target that is not to be had where the tests run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The target's name.
    pub name: String,
    /// Why it is missing; the report shows it with every case.
    pub reason: String,
}

/// Makes a test binary of the suite on several targets: every case runs on each, under the target's name. Where one is
/// missing its cases are shown as ignored.
pub fn run_all(targets: Vec<Result<Arc<dyn Target>, Missing>>) -> ExitCode {
    let arguments = Arguments::from_args();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => Arc::new(runtime),
        Err(error) => {
            eprintln!("the runtime does not start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut trials = Vec::new();
    // They go when every case is over.
    let mut opened = Vec::new();
    for target in targets {
        let target = match target {
            Ok(target) => target,
            Err(Missing { name, reason }) => {
                trials.extend(saver_cases().into_iter().map(|case| ignored(&case, &name, reason.clone())));
                continue;
            }
        };
        let saver = match runtime.block_on(connect(&target)) {
            Ok(saver) => saver,
            Err(error) => {
                eprintln!("{} cannot be opened: {}", target.name(), Failure::from(error));
                return ExitCode::FAILURE;
            }
        };
        trials.extend(saver_cases().into_iter().map(|case| trial(case, &runtime, &target, &saver)));
        opened.push(target);
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(opened);
    conclusion.exit_code()
}

fn trial(case: Case, runtime: &Arc<Runtime>, target: &Arc<dyn Target>, saver: &Saver) -> Trial {
    let (runtime, target, saver) = (runtime.clone(), target.clone(), saver.clone());
    let (name, kind) = (case.name().to_owned(), target.name().to_owned());
    let run = move || {
        if let Some(reason) = case.ignored(&*target, saver.capabilities()) {
            return Ok(Completion::ignored_with(reason));
        }
        runtime.block_on(case.run(target, saver))?;
        Ok(Completion::Completed)
    };
    Trial::ignorable_test(name, run).with_kind(kind)
}

fn ignored(case: &Case, kind: &str, reason: String) -> Trial {
    Trial::ignorable_test(case.name(), || Ok(Completion::ignored_with(reason))).with_kind(kind)
}
