//! One future that many callers wait for, driven by any of them.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::BoxFuture;

use super::OpResult;
use crate::{Error, ErrorKind, Result};

// Nothing that can panic is done under the locks of this module, so a poisoned one is taken over.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs batch after batch. It lives as long as a caller does.
///
/// Each caller that is polled lets it run if it wants to, and when it wants to, all callers are woken: one of them may
/// be alive and yet not be polled any more, so none can be relied on.
pub(super) struct Engine {
    /// Taken out by the caller that lets it run, and gone when it has ended.
    work: Mutex<Option<BoxFuture<'static, ()>>>,
    /// Apart from the work, which may keep the waker that is made of it.
    alarm: Arc<Alarm>,
}

#[derive(Default)]
struct Alarm(Mutex<Watch>);

#[derive(Default)]
struct Watch {
    is_running: bool,
    wants_to_run: bool,
    callers: Vec<Weak<Slot>>,
}

impl Engine {
    pub(super) fn new(work: BoxFuture<'static, ()>) -> Self {
        let watch = Watch { wants_to_run: true, ..Watch::default() };
        Self { work: Mutex::new(Some(work)), alarm: Arc::new(Alarm(Mutex::new(watch))) }
    }

    pub(super) fn add(&self, caller: Weak<Slot>) {
        lock(&self.alarm.0).callers.push(caller);
    }

    fn can_run(&self) -> bool {
        let watch = lock(&self.alarm.0);
        watch.wants_to_run && !watch.is_running
    }

    /// Lets it run if it wants to and nobody else does. Returns whether it has ended.
    fn drive(&self) -> bool {
        let mut watch = lock(&self.alarm.0);
        if watch.is_running || !watch.wants_to_run {
            return false;
        }
        (watch.is_running, watch.wants_to_run) = (true, false);
        drop(watch);
        let _turn = Turn(self);
        let Some(mut work) = lock(&self.work).take() else { return true };
        let waker = Waker::from(Arc::clone(&self.alarm));
        match work.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(()) => true,
            Poll::Pending => {
                *lock(&self.work) = Some(work);
                false
            }
        }
    }
}

/// Makes way for the next one that lets the engine run, also after a panic.
struct Turn<'a>(&'a Engine);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let has_ended = lock(&self.0.work).is_none();
        let mut watch = lock(&self.0.alarm.0);
        watch.is_running = false;
        watch.wants_to_run |= has_ended;
        if watch.wants_to_run {
            wake_all(watch);
        }
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut watch = lock(&self.0);
        watch.wants_to_run = true;
        // Else the callers are woken at the end of the turn, with those that came during it.
        if !watch.is_running {
            wake_all(watch);
        }
    }
}

fn wake_all(mut watch: MutexGuard<'_, Watch>) {
    watch.callers.retain(|caller| caller.strong_count() > 0);
    let callers: Vec<_> = watch.callers.iter().filter_map(Weak::upgrade).collect();
    // A task may be polled, or dropped with its call, as soon as it is woken.
    drop(watch);
    for caller in callers {
        caller.wake();
    }
}

/// Where a caller finds its result.
#[derive(Default)]
pub(super) struct Slot(Mutex<Answer>);

#[derive(Default)]
struct Answer {
    result: Option<Result<OpResult>>,
    waker: Option<Waker>,
}

impl Slot {
    pub(super) fn fill(&self, result: Result<OpResult>) {
        lock(&self.0).result = Some(result);
        self.wake();
    }

    fn wake(&self) {
        let waker = lock(&self.0).waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The result, or else the task is woken when it is there.
    fn take(&self, task: &Context<'_>) -> Option<Result<OpResult>> {
        let waker = task.waker().clone();
        let mut answer = lock(&self.0);
        if answer.result.is_some() {
            return answer.result.take();
        }
        let earlier = answer.waker.replace(waker);
        drop(answer);
        drop(earlier);
        None
    }
}

/// A caller that waits for its result.
pub(super) struct Call {
    // Dropped before the engine, whose end takes out of the queue what belongs to nobody.
    slot: Arc<Slot>,
    engine: Arc<Engine>,
    /// Whether others have had their chance to join.
    has_waited: bool,
}

impl Call {
    pub(super) fn new(slot: Arc<Slot>, engine: Arc<Engine>) -> Self {
        Self { slot, engine, has_waited: false }
    }
}

impl Future for Call {
    type Output = Result<OpResult>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(result) = self.slot.take(task) {
            return Poll::Ready(result);
        }
        // Calls that are made at the same time, by other tasks or by this one, should find the batch still open.
        if !self.has_waited && self.engine.can_run() {
            self.has_waited = true;
            task.waker().wake_by_ref();
            return Poll::Pending;
        }
        let has_ended = self.engine.drive();
        match self.slot.take(task) {
            Some(result) => Poll::Ready(result),
            None if has_ended => {
                Poll::Ready(Err(Error::new(ErrorKind::Backend, "the joint batch ended without a result")))
            }
            None => Poll::Pending,
        }
    }
}

/// Lets go of the task once, so that those that were answered can make their next calls.
pub(super) async fn pause() {
    let mut has_paused = false;
    std::future::poll_fn(|task| {
        if has_paused {
            return Poll::Ready(());
        }
        has_paused = true;
        task.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
