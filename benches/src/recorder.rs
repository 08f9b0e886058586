//! Latencies and processor time per operation.

use std::time::{Duration, Instant};

use indexmap::IndexMap;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Records the duration of each operation, in the order of their first occurrence.
#[derive(Debug, Clone, Default)]
pub struct Recorder(IndexMap<&'static str, Record>);

#[derive(Debug, Clone, Default)]
struct Record {
    walls: Vec<Duration>,
    processor: Duration,
    server: Option<Duration>,
}

/// The start of an operation.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    processor: Duration,
    wall: Instant,
}

impl Mark {
    /// Starts an operation now.
    pub fn now() -> Self {
        Self { processor: processor_time(), wall: Instant::now() }
    }
}

/// The start of a phase of a run, for the CPU time of a database server.
#[derive(Debug, Clone, Copy)]
pub struct Phase(Option<Duration>);

impl Phase {
    /// Starts now.
    pub fn begin() -> Self {
        Self(server_time())
    }
}

/// The server's CPU time so far, from the file in `BENCH_PG_CGROUP`: `cpuacct.usage` of cgroups v1 or `cpu.stat` of v2.
fn server_time() -> Option<Duration> {
    let counted = std::fs::read_to_string(std::env::var_os("BENCH_PG_CGROUP")?).ok()?;
    let mut words = counted.split_ascii_whitespace();
    match words.next()? {
        "usage_usec" => words.next()?.parse().ok().map(Duration::from_micros),
        nanoseconds => nanoseconds.parse().ok().map(Duration::from_nanos),
    }
}

/// The user and system time of all threads of this process so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), nanoseconds)
}

impl Recorder {
    /// Records an operation that started at a mark.
    pub fn record(&mut self, operation: &'static str, since: Mark) {
        let wall = since.wall.elapsed();
        let processor = processor_time().saturating_sub(since.processor);
        let record = self.0.entry(operation).or_default();
        record.walls.push(wall);
        record.processor += processor;
    }

    /// Records the latencies of an operation that several tasks ran concurrently, and their total CPU time.
    pub fn record_many(&mut self, operation: &'static str, walls: Vec<Duration>, since: Mark) {
        let processor = processor_time().saturating_sub(since.processor);
        self.0.insert(operation, Record { walls, processor, server: None });
    }

    /// Ends a phase, and attributes the server's CPU time to this operation.
    pub fn end(&mut self, operation: &'static str, since: Phase) {
        if let (Some(record), Some(before), Some(now)) = (self.0.get_mut(operation), since.0, server_time()) {
            record.server = Some(now.saturating_sub(before));
        }
    }

    /// Summarizes each operation.
    pub fn finish(self) -> IndexMap<&'static str, Latencies> {
        let sum = |(operation, record): (_, Record)| Some((operation, Latencies::of(record)?));
        self.0.into_iter().filter_map(sum).collect()
    }
}

/// The latencies of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latencies {
    /// The number of runs.
    pub n: usize,
    /// The mean.
    pub mean_ms: f64,
    /// The median (percentiles are by nearest rank).
    pub p50_ms: f64,
    /// The 95th percentile.
    pub p95_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The maximum.
    pub max_ms: f64,
    /// Sequential operations per second.
    pub ops_s: f64,
    /// The CPU time per operation, of all threads.
    pub client_cpu_ms: f64,
    /// The server's CPU time per operation, including background work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_ms: Option<f64>,
    /// Steps per second of all tasks together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_s: Option<f64>,
}

impl Latencies {
    /// Summarizes an operation; `None` if it never ran.
    fn of(Record { mut walls, processor, server }: Record) -> Option<Self> {
        walls.sort_unstable();
        // Rounded to a tenth of a microsecond, the precision of clocks.
        let rounded = |value: f64| (value * 10_000.0).round() / 10_000.0;
        let milliseconds = |wall: &Duration| wall.as_secs_f64() * 1000.0;
        let percentile =
            |percent: usize| walls.get(walls.len() * percent / 100).map(|wall| rounded(milliseconds(wall)));
        #[expect(clippy::cast_precision_loss, reason = "a run has far fewer than 2^52 operations")]
        let n = walls.len() as f64;
        let mean_ms = walls.iter().map(milliseconds).sum::<f64>() / n;
        Some(Self {
            n: walls.len(),
            mean_ms: rounded(mean_ms),
            p50_ms: percentile(50)?,
            p95_ms: percentile(95)?,
            p99_ms: percentile(99)?,
            max_ms: walls.last().map(|wall| rounded(milliseconds(wall)))?,
            ops_s: rounded(1000.0 / mean_ms),
            client_cpu_ms: rounded(milliseconds(&processor) / n),
            server_cpu_ms: server.map(|server| rounded(milliseconds(&server) / n)),
            steps_s: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let walls = (1..=200).rev().map(Duration::from_millis).collect();
        let mut recorder = Recorder::default();
        recorder.record_many("put", walls, Mark::now());
        let put = recorder.finish()["put"];
        assert_eq!(
            (put.n, put.p50_ms, put.p95_ms, put.p99_ms, put.max_ms),
            (200, 101.0, 191.0, 199.0, 200.0)
        );
        assert!((put.mean_ms - 100.5).abs() < 1e-9 && (put.ops_s - 1000.0 / 100.5).abs() < 1e-4);
    }

    #[test]
    fn operations_that_never_ran_are_omitted() {
        let mut recorder = Recorder::default();
        recorder.record_many("put", Vec::new(), Mark::now());
        recorder.record("get", Mark::now());
        assert_eq!(recorder.finish().keys().collect::<Vec<_>>(), [&"get"]);
    }
}
