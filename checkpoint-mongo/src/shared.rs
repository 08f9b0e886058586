//! What the clones of a saver share.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use checkpoint_core::backend::segments::{Addresses, SegmentCodec};
use checkpoint_core::backend::{Calls, KeepLast, Operation, ValueCodec};
use checkpoint_core::{Result, Str};
use futures_util::future::BoxFuture;
use mongodb::bson::{DateTime, Document, doc};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::builder::Options;
use crate::client::Mongo;
use crate::error::{BACKEND, SYSTEM};
use crate::keys::{ThreadKeys, kind};
use crate::prune::{LINGER, Removal};
use crate::row::Name;
use crate::{load, runtime, schema};

/// The most bytes of segments that a saver remembers.
const REMEMBERED_BYTES: usize = 64 << 20;

/// The most threads of which a saver remembers the newest checkpoints, and when their time to live was raised.
const REMEMBERED: usize = 10_000;

/// How long a call waits for earlier ones that were dropped.
const SETTLING: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) calls: Calls,
    pub(crate) mongo: Mongo,
    pub(crate) codec: SegmentCodec,
    pub(crate) ttl: Option<Duration>,
    pub(crate) refresh_on_read: bool,
    /// Whether the version of the format was checked.
    is_checked: AtomicBool,
    /// By thread and namespace: the newest checkpoint that this process has stored or read.
    newest: Mutex<HashMap<Str, HashMap<Str, Arc<Known>>>>,
    /// When the time to live of a thread was raised.
    raised: Mutex<HashMap<Str, Instant>>,
    pub(crate) keep_last: Option<KeepLast>,
    /// By thread: the removal that was begun and is not finished, and since when.
    begun: Mutex<HashMap<Str, (Removal, Instant)>>,
    dropped: Dropped,
}

/// What is known of a checkpoint that was stored or read.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) checkpoint_id: Str,
    /// The values that it refers to, with their segments.
    pub(crate) values: HashMap<Name, Addresses>,
}

/// The calls that go on although their callers were dropped.
#[derive(Debug, Default)]
struct Dropped {
    count: Mutex<usize>,
    ended: Notify,
}

/// A call that goes on in a task of its own if its caller is dropped after it has begun.
struct Unbroken<T: Send + 'static> {
    shared: Arc<Shared>,
    runtime: Handle,
    call: Option<BoxFuture<'static, Result<T>>>,
    has_begun: bool,
}

impl<T: Send + 'static> Future for Unbroken<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        self.has_begun = true;
        let Some(call) = &mut self.call else { return Poll::Pending };
        let polled = call.as_mut().poll(context);
        if polled.is_ready() {
            self.call = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Unbroken<T> {
    fn drop(&mut self) {
        let Some(call) = self.call.take().filter(|_| self.has_begun) else { return };
        self.shared.dropped.begin();
        let task = DroppedCall(Arc::clone(&self.shared));
        self.runtime.spawn(async move {
            let _task = task;
            _ = call.await;
        });
    }
}

/// Ends with the task of a dropped call.
struct DroppedCall(Arc<Shared>);

impl Drop for DroppedCall {
    fn drop(&mut self) {
        self.0.dropped.end();
    }
}

impl Dropped {
    fn count(&self) -> usize {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    fn end(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_sub(1);
        drop(count);
        self.ended.notify_waiters();
    }
}

impl Shared {
    pub(crate) fn new(mongo: Mongo, options: Options) -> Self {
        let Options { ttl, refresh_on_read, codec, compression, keep_last } = options;
        let codec = SegmentCodec::new(codec).remembering(REMEMBERED_BYTES);
        #[cfg(feature = "zstd")]
        let codec = match compression {
            Some(level) => codec.with_zstd(level),
            None => codec,
        };
        #[cfg(not(feature = "zstd"))]
        let _ = compression;
        Self {
            calls: Calls::saver(BACKEND, SYSTEM),
            mongo,
            codec,
            ttl,
            refresh_on_read,
            is_checked: AtomicBool::new(false),
            newest: Mutex::default(),
            raised: Mutex::default(),
            keep_last,
            begun: Mutex::default(),
            dropped: Dropped::default(),
        }
    }

    pub(crate) fn values(&self) -> &ValueCodec {
        self.codec.values()
    }

    /// Runs a call that writes: once begun, it goes on to its end, even if its caller is dropped. Later calls wait for it, so
    /// that it has had its effect, or none.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        operation: Operation<'_>,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let call: BoxFuture<'static, Result<T>> = Box::pin(call);
        let run = async {
            self.settle().await;
            let runtime = runtime::current()?;
            Unbroken { shared: Arc::clone(self), runtime, call: Some(call), has_begun: false }.await
        };
        self.calls.run(operation, run).await
    }

    /// Runs a call that reads.
    pub(crate) async fn read<T>(
        &self,
        operation: Operation<'_>,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let run = async {
            self.settle().await;
            call.await
        };
        self.calls.run(operation, Box::pin(run)).await
    }

    /// Waits until dropped calls have ended, but not for ever.
    async fn settle(&self) {
        if self.dropped.count() == 0 || runtime::current().is_err() {
            return;
        }
        let all = async {
            loop {
                let ended = self.dropped.ended.notified();
                if self.dropped.count() == 0 {
                    return;
                }
                ended.await;
            }
        };
        if tokio::time::timeout(SETTLING, all).await.is_err() {
            tracing::debug!("calls whose futures were dropped are still running");
        }
    }

    /// Checks the version of the format, once.
    pub(crate) async fn ready(&self) -> Result<()> {
        if self.is_checked.load(Ordering::Acquire) {
            return Ok(());
        }
        schema::check(self).await?;
        self.set_checked();
        Ok(())
    }

    pub(crate) fn set_checked(&self) {
        self.is_checked.store(true, Ordering::Release);
    }

    /// What is known of a checkpoint.
    pub(crate) fn known(
        &self,
        thread_id: &str,
        checkpoint_ns: &str,
        checkpoint_id: &str,
    ) -> Option<Arc<Known>> {
        self.newest(thread_id, checkpoint_ns).filter(|known| *known.checkpoint_id == *checkpoint_id)
    }

    /// What is known of the newest checkpoint of a namespace that this process has stored or read. Another process may have
    /// stored a newer one.
    pub(crate) fn newest(&self, thread_id: &str, checkpoint_ns: &str) -> Option<Arc<Known>> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.get(thread_id)?.get(checkpoint_ns).map(Arc::clone)
    }

    /// Remembers a checkpoint, if it is not older than the one that is known.
    pub(crate) fn remember(&self, thread_id: &str, checkpoint_ns: &str, known: Known) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if newest.len() >= REMEMBERED {
            newest.clear();
        }
        let of_thread = newest.entry(thread_id.into()).or_default();
        match of_thread.get(checkpoint_ns) {
            Some(other) if other.checkpoint_id > known.checkpoint_id => {}
            _ => _ = of_thread.insert(checkpoint_ns.into(), Arc::new(known)),
        }
    }

    /// Forgets what is known of a thread: a part of it may be stored no more.
    pub(crate) fn forget(&self, thread_id: &str) {
        self.codec.forget(thread_id);
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).remove(thread_id);
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).remove(thread_id);
    }

    /// What was begun to be removed from a thread and is not finished, for one call alone.
    pub(crate) fn take_begun(&self, thread_id: &str) -> Option<Removal> {
        self.begun
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(thread_id)
            .map(|(removal, _)| removal)
    }

    /// Finishes a removal in a task of its own, when it is time. If that does not come about, another run does: it is noted.
    pub(crate) fn finish_later(self: &Arc<Self>, removal: Removal) -> Result<()> {
        let thread_id = removal.thread_id().clone();
        self.begun
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(thread_id.clone(), (removal, Instant::now()));
        let shared = Arc::downgrade(self);
        runtime::current()?.spawn(async move {
            tokio::time::sleep(LINGER).await;
            let Some(shared) = shared.upgrade() else { return };
            let begun = {
                let mut all = shared.begun.lock().unwrap_or_else(PoisonError::into_inner);
                // A later call may have taken it over.
                let is_time = all.get(&thread_id).is_some_and(|(_, since)| since.elapsed() >= LINGER);
                if is_time { all.remove(&thread_id) } else { None }
            };
            let Some((removal, _)) = begun else { return };
            shared.finish(&removal).await;
        });
        Ok(())
    }

    /// Finishes all removals.
    async fn finish_begun(&self) {
        let all = std::mem::take(&mut *self.begun.lock().unwrap_or_else(PoisonError::into_inner));
        for (removal, since) in all.into_values() {
            tokio::time::sleep(LINGER.saturating_sub(since.elapsed())).await;
            self.finish(&removal).await;
        }
    }

    async fn finish(&self, removal: &Removal) {
        if let Err(error) = removal.finish(self).await {
            tracing::warn!(%error, "values of removed checkpoints were not removed; a later run tries again");
        }
    }

    /// When a document expires that is stored now.
    pub(crate) fn expiry(&self, is_data: bool) -> Option<DateTime> {
        let ttl = self.ttl?;
        // What checkpoints need outlives them.
        let ttl = if is_data { ttl + ttl / 8 } else { ttl };
        SystemTime::now().checked_add(ttl).map(DateTime::from_system_time)
    }

    /// Raises the time to live of a thread, if that was not done lately.
    pub(crate) async fn raise(&self, thread_id: &str) -> Result<()> {
        let Some(ttl) = self.ttl else { return Ok(()) };
        {
            let mut raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner);
            if raised.get(thread_id).is_some_and(|at| at.elapsed() < ttl / 8) {
                return Ok(());
            }
            if raised.len() >= REMEMBERED {
                raised.clear();
            }
            raised.insert(thread_id.into(), Instant::now());
        }
        let keys = ThreadKeys::new(thread_id);
        let now = DateTime::now();
        for (kinds, is_data) in [(&kind::ALL[1..], true), (&kind::ALL[..1], false)] {
            let ranges: Vec<_> = kinds.iter().map(|kind| keys.all(*kind)).collect();
            let mut filter = self.mongo.in_ranges(thread_id, &ranges);
            // What has expired stays so. What was stored without a time to live gets one.
            filter.insert("x", doc! { "$not": { "$lt": now } });
            let change = doc! { "$set": { "x": self.expiry(is_data) } };
            self.mongo.update(filter, change).await?;
        }
        Ok(())
    }

    /// Stamps a document that is complete otherwise with the time, the bytes of its records, and its expiry.
    pub(crate) fn stamp(&self, document: &mut Document, is_data: bool) {
        document.insert("ct", DateTime::now());
        load::add_size(document);
        if let Some(expiry) = self.expiry(is_data) {
            document.insert("x", expiry);
        }
    }

    /// Finishes what was begun, and closes the connections.
    pub(crate) async fn release(&self) {
        if runtime::current().is_ok() {
            self.finish_begun().await;
        }
        self.mongo.close();
        self.codec.forget_all();
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Whether a document has expired.
pub(crate) fn is_expired(document: &Document) -> bool {
    document.get_datetime("x").is_ok_and(|expiry| *expiry < DateTime::now())
}
