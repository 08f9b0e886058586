//! Records the spans, warnings and metrics of calls.
//!
//! A [`Recording`] sets its subscriber and its recorder on whichever thread polls the call, so that concurrent cases do
//! not see each other's, and a global subscriber or recorder is left alone.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use checkpoint_core::backend::telemetry;
use checkpoint_core::store::BaseStore;
use checkpoint_core::{BaseCheckpointSaver, Error, Result};
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use tracing::field::{Field, Visit};
use tracing::instrument::WithSubscriber;
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Subscriber};

use crate::case::Failure;
use crate::{Saver, Store};

/// The spans, warnings and metrics of calls.
#[derive(Debug)]
pub struct Recording {
    dispatch: Dispatch,
    spans: Arc<Spans>,
    metrics: Metrics,
}

/// The fields of one span that have a value, as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedSpan {
    /// The span's name.
    pub name: &'static str,
    /// The values by name.
    pub fields: BTreeMap<&'static str, String>,
}

impl Default for Recording {
    fn default() -> Self {
        Self::new()
    }
}

impl Recording {
    /// Starts without spans and metrics.
    pub fn new() -> Self {
        let spans = Arc::<Spans>::default();
        let dispatch = Dispatch::new(SpanRecorder(Arc::clone(&spans)));
        Self { dispatch, spans, metrics: Metrics::default() }
    }

    /// Runs a call and records it.
    ///
    /// # Cancellation
    /// Drops the call.
    pub async fn of<F: Future>(&self, call: F) -> F::Output {
        let mut call = pin!(call.with_subscriber(self.dispatch.clone()));
        poll_fn(|context| with_local_recorder(&self.metrics, || call.as_mut().poll(context))).await
    }

    /// Returns the spans of database operations, in the order in which they began.
    pub fn spans(&self) -> Vec<RecordedSpan> {
        self.spans.lock().clone()
    }

    /// Returns the fields of events at level WARN or ERROR, in their order. The text is the field `message`.
    pub fn warnings(&self) -> Vec<BTreeMap<&'static str, String>> {
        lock(&self.spans.warnings).clone()
    }

    /// Returns the value of a counter with exactly these labels.
    pub fn counter(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let counters = lock(&self.metrics.counters);
        counters.get(&metric(name, labels)).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    /// Returns the sum of a counter over all labels.
    pub fn total(&self, name: &str) -> u64 {
        let counters = lock(&self.metrics.counters);
        let named = counters.iter().filter(|((of, _), _)| of == name);
        named.map(|(_, counter)| counter.load(Ordering::Relaxed)).sum()
    }

    /// Returns the values of a histogram with exactly these labels.
    pub fn histogram(&self, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        let histograms = lock(&self.metrics.histograms);
        histograms.get(&metric(name, labels)).map_or_else(Vec::new, |values| lock(&values.0).clone())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
struct Spans {
    spans: Mutex<Vec<RecordedSpan>>,
    warnings: Mutex<Vec<BTreeMap<&'static str, String>>>,
}

impl Spans {
    fn lock(&self) -> MutexGuard<'_, Vec<RecordedSpan>> {
        lock(&self.spans)
    }
}

/// A subscriber for the spans of database operations, and for warnings.
#[derive(Debug)]
struct SpanRecorder(Arc<Spans>);

impl Subscriber for SpanRecorder {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        let is_span = metadata.is_span() && metadata.fields().field("db.operation.name").is_some();
        is_span || (metadata.is_event() && *metadata.level() <= Level::WARN)
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut span = RecordedSpan { name: attributes.metadata().name(), ..RecordedSpan::default() };
        attributes.record(&mut span);
        let mut spans = self.0.lock();
        spans.push(span);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        // Ids begin with 1.
        let at = usize::try_from(id.into_u64() - 1).unwrap_or(usize::MAX);
        if let Some(span) = self.0.lock().get_mut(at) {
            values.record(span);
        }
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = RecordedSpan::default();
        event.record(&mut fields);
        lock(&self.0.warnings).push(fields.fields);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for RecordedSpan {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

/// A metric's name and labels.
type Metric = (String, BTreeMap<String, String>);

fn metric(name: &str, labels: &[(&str, &str)]) -> Metric {
    (name.to_owned(), labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
}

#[derive(Debug, Default)]
struct Values(Mutex<Vec<f64>>);

impl HistogramFn for Values {
    fn record(&self, value: f64) {
        lock(&self.0).push(value);
    }
}

#[derive(Debug, Default)]
struct Metrics {
    counters: Mutex<BTreeMap<Metric, Arc<AtomicU64>>>,
    histograms: Mutex<BTreeMap<Metric, Arc<Values>>>,
}

fn of_key(key: &Key) -> Metric {
    let labels = key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
    (key.name().to_owned(), labels)
}

impl Recorder for Metrics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::clone(lock(&self.counters).entry(of_key(key)).or_default()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::clone(lock(&self.histograms).entry(of_key(key)).or_default()))
    }
}

/// What the spans and metrics of a handle have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watch {
    component: &'static str,
    system: &'static str,
}

/// The arguments of a call that its span has.
pub(crate) type Fields = Vec<(&'static str, String)>;

impl Watch {
    pub(crate) fn saver(saver: &Saver) -> Self {
        Self { component: "saver", system: system(saver.backend()) }
    }

    pub(crate) fn store(store: &Store) -> Self {
        Self { component: "store", system: system(store.backend()) }
    }

    /// Runs a call and checks every field of its spans, and its metrics. Returns what it ended with.
    pub(crate) async fn of<T>(
        &self,
        operation: &'static str,
        arguments: &Fields,
        call: impl Future<Output = Result<T>> + Send,
    ) -> std::result::Result<Result<T>, Failure> {
        let recording = Recording::new();
        let result = recording.of(call).await;
        let kind = result.as_ref().err().map(Error::kind);
        let Self { component, system } = *self;
        let labels = [
            ("checkpoint.component", component),
            ("db.system.name", system),
            ("db.operation.name", operation),
        ];
        let mut fields: BTreeMap<_, _> = arguments.iter().cloned().collect();
        fields.extend(labels.map(|(name, value)| (name, value.to_owned())));
        fields.insert("otel.kind", "client".to_owned());
        let mut failed_labels = labels.to_vec();
        if let Some(kind) = kind {
            fields.insert("otel.status_code", "ERROR".to_owned());
            fields.insert("error.type", kind.as_str().to_owned());
            failed_labels.push(("error.type", kind.as_str()));
        }
        // Exactly these: no field lacks its value, and none has what should not be there.
        let expected = RecordedSpan { name: operation, fields };
        let spans = recording.spans();
        ensure_eq!(spans, vec![expected; spans.len().max(1)], "spans");

        let calls = spans.len() as u64;
        ensure_eq!(recording.counter(telemetry::CALLS, &labels), calls, "calls of {operation}");
        ensure_eq!(recording.total(telemetry::CALLS), calls, "calls during {operation}");
        let durations = recording.histogram(telemetry::OPERATION_DURATION, &failed_labels);
        ensure_eq!(durations.len() as u64, calls, "durations of {operation}");
        ensure!(durations.iter().all(|seconds| *seconds >= 0.0), "durations of {operation}: {durations:?}");
        let errors = recording.counter(telemetry::ERRORS, &failed_labels);
        ensure_eq!(errors, u64::from(kind.is_some()), "errors of {operation}");
        ensure_eq!(recording.total(telemetry::ERRORS), errors, "errors during {operation}");
        Ok(result)
    }
}

/// OpenTelemetry's name of a backend's database system.
fn system(backend: &'static str) -> &'static str {
    match backend {
        "postgres" => "postgresql",
        "mongo" => "mongodb",
        other => other,
    }
}
