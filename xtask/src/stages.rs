//! Stages of the tests, run concurrently: each writes to its own log, and is reported when it has ended.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::ops::AddAssign;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::run::{Result, Running};
use crate::target;

/// A stage: programs that run one after the other.
pub(crate) struct Stage {
    name: String,
    /// Prepares the programs when the stage starts.
    prepare: Box<dyn FnOnce() -> Result<Vec<Command>> + Send>,
}

impl Stage {
    /// A stage whose programs are prepared when it starts.
    pub(crate) fn new(
        name: impl Into<String>,
        prepare: impl FnOnce() -> Result<Vec<Command>> + Send + 'static,
    ) -> Self {
        Self { name: name.into(), prepare: Box::new(prepare) }
    }

    /// A stage of these programs.
    pub(crate) fn of(name: impl Into<String>, commands: Vec<Command>) -> Self {
        Self::new(name, move || Ok(commands))
    }
}

/// The number of tests by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
    filtered: u64,
}

impl Counts {
    fn total(self) -> u64 {
        self.passed + self.failed + self.ignored
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.filtered += other.filtered;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} ignored", self.passed, self.failed, self.ignored)?;
        if self.filtered > 0 {
            write!(f, ", {} filtered out", self.filtered)?;
        }
        Ok(())
    }
}

/// The counts in a summary line of libtest or pytest; `None` for other lines.
fn summary(line: &str) -> Option<Counts> {
    let text = if let Some(rest) = line.strip_prefix("test result: ") {
        let counts = rest.split_once(". ")?.1;
        counts.split_once("; finished in ").map_or(counts, |(counts, _)| counts)
    } else {
        // Such as `1623 passed, 1 warning in 147.45s (0:02:27)`.
        let (counts, time) = line.trim_matches(['=', ' ']).rsplit_once(" in ")?;
        time.starts_with(|c: char| c.is_ascii_digit()).then_some(counts)?
    };
    let mut counts = Counts::default();
    for part in text.split([';', ',']) {
        let (number, what) = part.trim().split_once(' ')?;
        let number = number.parse::<u64>().ok()?;
        match what {
            "passed" => counts.passed += number,
            "failed" | "error" | "errors" => counts.failed += number,
            "ignored" | "skipped" | "xfailed" => counts.ignored += number,
            "filtered out" | "deselected" => counts.filtered += number,
            _ => {}
        }
    }
    Some(counts)
}

/// The result of a stage.
struct Ended {
    name: String,
    counts: Counts,
    took: Duration,
    log: PathBuf,
    /// The reason of the failure.
    failure: Option<String>,
}

impl Ended {
    fn line(&self) -> String {
        let verdict = if self.failure.is_some() { "FAILED" } else { "ok" };
        format!("{verdict:<6} {:<34} {:>4} s  {}", self.name, self.took.as_secs(), self.counts)
    }
}

/// Runs stages in their order, up to `lanes` concurrently. Reports each when it has ended, and a summary at the end.
pub(crate) fn run(stages: Vec<Stage>, lanes: usize) -> Result<()> {
    let folder = target().join("test-logs");
    std::fs::create_dir_all(&folder)
        .map_err(|error| format!("{} cannot be made: {error}", folder.display()))?;
    let begun = Instant::now();
    let count = stages.len();
    let waiting = Mutex::new(VecDeque::from(stages));
    let ended = Mutex::new(Vec::with_capacity(count));
    let lane = || {
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(stage) = next else { break };
            let log = folder.join(format!("{}.log", file_name(&stage.name)));
            let done = one(stage, log);
            // Locked while printing, so that reports do not interleave.
            let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
            report(&done);
            ended.push(done);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..lanes.max(1) {
            scope.spawn(lane);
        }
    });
    let ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    conclude(&ended, count, begun.elapsed())
}

fn file_name(stage: &str) -> String {
    stage.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}

fn one(stage: Stage, log: PathBuf) -> Ended {
    let begun = Instant::now();
    let result = (stage.prepare)().and_then(|commands| run_all(commands, &log));
    let said = std::fs::read(&log).unwrap_or_default();
    let mut counts = Counts::default();
    for found in String::from_utf8_lossy(&said).lines().filter_map(summary) {
        counts += found;
    }
    let failure = match result {
        Err(error) => Some(error.to_string()),
        Ok(()) if counts.failed > 0 => Some("tests failed".to_owned()),
        Ok(()) if counts.total() == 0 => Some("it ran no tests".to_owned()),
        Ok(()) => None,
    };
    Ended { name: stage.name, counts, took: begun.elapsed(), log, failure }
}

/// Runs all programs, even after one has failed.
fn run_all(commands: Vec<Command>, log: &PathBuf) -> Result<()> {
    let cannot = |error| format!("{} cannot be written: {error}", log.display());
    let file = File::create(log).map_err(cannot)?;
    let mut failed = Vec::new();
    for mut command in commands {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdout(file.try_clone().map_err(cannot)?).stderr(file.try_clone().map_err(cannot)?);
        let mut running = Running::start(&mut command)?;
        let id = running.id();
        let status = running.wait()?;
        if !status.success() {
            failed.push(format!("{name} failed ({status})"));
            if status.code().is_none() {
                // A test binary that was killed could not remove its containers.
                crate::servers::remove_private_of(id);
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ").into()) }
}

fn report(ended: &Ended) {
    println!("{}", ended.line());
    let Some(failure) = &ended.failure else { return };
    println!("       {failure}");
    let said = std::fs::read(&ended.log).unwrap_or_default();
    for line in String::from_utf8_lossy(&said).lines() {
        if !is_uneventful(line) {
            println!("  | {line}");
        }
    }
    println!("  The whole log is {}", ended.log.display());
}

/// Whether a line only reports that a test passed or was ignored.
fn is_uneventful(line: &str) -> bool {
    let is_test = line.starts_with("test ") && !line.starts_with("test result");
    (is_test && (line.ends_with(" ok") || line.contains(" ... ignored"))) || line.trim().is_empty()
}

fn conclude(ended: &[Ended], count: usize, took: Duration) -> Result<()> {
    let mut counts = Counts::default();
    println!("\n== summary");
    for one in ended {
        println!("{}", one.line());
        counts += one.counts;
    }
    let failed: Vec<_> = ended.iter().filter(|one| one.failure.is_some()).map(|one| &*one.name).collect();
    println!("== {count} stages, {} tests: {counts}, in {} s", counts.total(), took.as_secs());
    if ended.len() < count {
        return Err("not all stages were run".into());
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: u64, failed: u64, ignored: u64, filtered: u64) -> Counts {
        Counts { passed, failed, ignored, filtered }
    }

    #[test]
    fn summaries_of_libtest_and_pytest() {
        let libtest = "test result: ok. 1826 passed; 0 failed; 18 ignored; 0 measured; 5 filtered out; finished in 90.07s";
        assert_eq!(summary(libtest), Some(counts(1826, 0, 18, 5)));
        let failed = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.0s";
        assert_eq!(summary(failed), Some(counts(1, 2, 0, 0)));
        assert_eq!(summary("1623 passed, 1 warning in 147.45s (0:02:27)"), Some(counts(1623, 0, 0, 0)));
        assert_eq!(
            summary("=== 1 failed, 2 passed, 3 skipped, 4 deselected, 1 error in 0.5s ==="),
            Some(counts(2, 2, 3, 4))
        );
        assert_eq!(summary("test put::stores ... ok"), None);
        assert_eq!(summary("the server was gone in 3 tries"), None);
    }

    #[test]
    fn passed_tests_are_not_shown() {
        assert!(is_uneventful("test put::stores ... ok"));
        assert!(is_uneventful("test put::stores ... ignored (no server)"));
        assert!(!is_uneventful("test put::stores ... FAILED"));
        assert!(!is_uneventful("test result: FAILED. 1 passed; 2 failed"));
    }

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    fn ended(script: &str) -> Ended {
        let name = format!("own test {}", file_name(script));
        let log = std::env::temp_dir().join(format!("{}-{}.log", std::process::id(), file_name(script)));
        let ended = one(Stage::of(name, vec![shell(script)]), log);
        std::fs::remove_file(&ended.log).unwrap();
        ended
    }

    #[test]
    fn a_stage_fails_by_its_status_by_a_failed_test_and_without_any_test() {
        const PASSED: &str = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'";
        const FAILED: &str = "echo 'test result: ok. 2 passed; 1 failed; 0 ignored'";
        let passed = ended(PASSED);
        assert_eq!((passed.failure, passed.counts), (None, counts(2, 0, 0, 0)));
        assert!(ended(FAILED).failure.is_some());
        assert!(ended(&format!("{PASSED}; exit 1")).failure.is_some());
        assert!(ended("true").failure.is_some());
        assert!(ended("echo 'test result: ok. 0 passed; 0 failed; 0 ignored'").failure.is_some());
    }
}
