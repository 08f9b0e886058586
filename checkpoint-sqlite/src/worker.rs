//! The threads: one writer, several readers.
//!
//! Group commit: writes that wait at the same time are committed together, so that many agents share one disk sync. Each
//! has its own savepoint, and is acknowledged after the commit.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use checkpoint_core::backend::{Calls, telemetry};
use checkpoint_core::{Error, ErrorKind, Result, Str};
use crossbeam_channel::{Receiver, Sender};
use futures_channel::oneshot;
use futures_util::FutureExt;
use futures_util::future::Shared;

use crate::connection::{Config, Open, Slot};
use crate::error::{BACKEND, is_busy, spoils_connection};
use crate::{read, row, schema, sql, write};

/// At most this many writes are committed together.
const BATCH_JOBS: usize = 256;

/// At most about this many bytes are committed together.
const BATCH_BYTES: usize = 16 << 20;

/// A change, which runs in a transaction. It may run again if the transaction was rolled back.
pub(crate) type Change = Box<dyn FnMut(&Config, &Open) -> Result<()> + Send>;

type Read = Box<dyn FnOnce(&mut Slot) + Send>;

struct Write {
    change: Change,
    /// About how many bytes it writes; `None` for a change with its own transaction.
    bytes: Option<usize>,
    queued: Instant,
    done: oneshot::Sender<Result<()>>,
}

enum Order {
    SetUp(oneshot::Sender<Result<()>>),
    Write(Write),
}

/// The handle on the threads. They are started by the first call, and end when it is closed or dropped.
pub(crate) struct Workers {
    pub(crate) calls: Calls,
    config: Arc<Config>,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    /// A forked process has none of the threads.
    process: u32,
    writer: Option<Sender<Order>>,
    readers: Option<Sender<Read>>,
    /// Ready when their thread has ended.
    ended: Vec<Shared<oneshot::Receiver<()>>>,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

impl Workers {
    pub(crate) fn new(config: Config) -> Self {
        Self { calls: Calls::saver(BACKEND, BACKEND), config: Arc::new(config), queues: Mutex::default() }
    }

    /// The configuration, unless the file is read-only.
    pub(crate) fn to_write(&self) -> Result<&Config> {
        self.config.check_writable().map(|()| &*self.config)
    }

    /// Runs a read on the next reader that is free.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Config, &Open) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (done, answer) = oneshot::channel();
        let config = Arc::clone(&self.config);
        let job: Read = Box::new(move |slot| {
            if !done.is_canceled() {
                row::take_bytes_read();
                let result = slot.run(|open| read(&config, open));
                // The caller may have been dropped.
                let _ = done.send((result, row::take_bytes_read()));
            }
        });
        self.readers()?.send(job).map_err(|_| lost())?;
        let Ok((result, bytes)) = answer.await else { return Err(lost()) };
        // Here, since recorders may be local to the caller's thread.
        telemetry::bytes_read(BACKEND, bytes);
        result
    }

    /// Commits a change together with other waiting changes.
    pub(crate) async fn write(&self, bytes: usize, change: Change) -> Result<()> {
        telemetry::bytes_written(BACKEND, bytes);
        self.change(bytes, change).await
    }

    /// Commits a change together with other waiting changes, of which there are fewer the more it weighs, in bytes.
    async fn change(&self, bytes: usize, change: Change) -> Result<()> {
        self.order(|done| Order::Write(Write { change, bytes: Some(bytes), queued: Instant::now(), done }))
            .await
    }

    /// Commits a change together with other waiting changes, and returns the result of its last run.
    pub(crate) async fn write_returning<T: Send + 'static>(
        &self,
        bytes: usize,
        change: impl FnMut(&Config, &Open) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        telemetry::bytes_written(BACKEND, bytes);
        self.change_returning(bytes, change).await
    }

    /// Like [`write_returning`](Self::write_returning), for a change that removes.
    pub(crate) async fn change_returning<T: Send + 'static>(
        &self,
        weight: usize,
        mut change: impl FnMut(&Config, &Open) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let returned = Arc::new(Mutex::new(None));
        let result = Arc::clone(&returned);
        let change = move |config: &Config, open: &Open| {
            let value = change(config, open)?;
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
            Ok(())
        };
        self.change(weight, Box::new(change)).await?;
        let value = returned.lock().unwrap_or_else(PoisonError::into_inner).take();
        value.ok_or_else(lost)
    }

    /// Commits a change in its own transaction.
    pub(crate) async fn write_alone(&self, change: Change) -> Result<()> {
        self.order(|done| Order::Write(Write { change, bytes: None, queued: Instant::now(), done })).await
    }

    /// Deletes a thread together with other waiting changes.
    pub(crate) async fn delete_thread(&self, thread_id: &str) -> Result<()> {
        let thread_id = Str::from(thread_id);
        let change = move |_: &Config, open: &Open| write::delete_thread(open, &thread_id);
        self.write(0, Box::new(change)).await
    }

    pub(crate) async fn set_up(&self) -> Result<()> {
        self.order(Order::SetUp).await
    }

    /// Reads the file's header. A file that `setup()` has still to create can be reached.
    pub(crate) async fn ping(&self) -> Result<()> {
        match self.read(|_, open| read::query_one(open, sql::SCHEMA_VERSION, [], |_| Ok(()))).await {
            Err(error) if error.kind() != ErrorKind::Schema => Err(error),
            _ => Ok(()),
        }
    }

    async fn order(&self, order: impl FnOnce(oneshot::Sender<Result<()>>) -> Order) -> Result<()> {
        let (done, answer) = oneshot::channel();
        self.writer()?.send(order(done)).map_err(|_| lost())?;
        answer.await.unwrap_or_else(|oneshot::Canceled| Err(lost()))
    }

    fn writer(&self) -> Result<Sender<Order>> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.check_process()?;
        if let Some(queue) = &queues.writer {
            return Ok(queue.clone());
        }
        let (sender, receiver) = crossbeam_channel::unbounded();
        let config = Arc::clone(&self.config);
        queues.ended.push(spawn("checkpoint-sqlite-writer", move || serve_writes(config, receiver))?);
        Ok(queues.writer.insert(sender).clone())
    }

    fn readers(&self) -> Result<Sender<Read>> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.check_process()?;
        if let Some(queue) = &queues.readers {
            return Ok(queue.clone());
        }
        let (sender, receiver) = crossbeam_channel::unbounded();
        for started in 0..self.config.readers {
            let (config, receiver) = (Arc::clone(&self.config), receiver.clone());
            let thread = spawn("checkpoint-sqlite-reader", move || serve_reads(config, &receiver));
            match thread {
                // Fewer readers suffice.
                Err(_) if started > 0 => break,
                other => queues.ended.push(other?),
            }
        }
        Ok(queues.readers.insert(sender).clone())
    }

    /// Ends the threads and waits until they have closed the file: with its last connection SQLite folds the log into the
    /// database, which can then be copied as one file.
    pub(crate) async fn close(&self) -> Result<()> {
        let ended = {
            let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
            (queues.writer, queues.readers) = (None, None);
            // The threads of a process are not those of its fork.
            if queues.check_process().is_ok() { queues.ended.clone() } else { Vec::new() }
        };
        for thread in ended {
            // Its sender is dropped with the thread.
            let _ = thread.await;
        }
        Ok(())
    }
}

impl Queues {
    fn check_process(&mut self) -> Result<()> {
        let process = std::process::id();
        if self.process == 0 {
            self.process = process;
        }
        if self.process == process {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            "the saver was used before this process was forked off; build a new one in the child",
        ))
    }
}

/// Starts a thread. The returned future is ready when the thread has ended.
fn spawn(name: &str, serve: impl FnOnce() + Send + 'static) -> Result<Shared<oneshot::Receiver<()>>> {
    let (running, ended) = oneshot::channel();
    let serve = move || {
        let _running = running;
        serve();
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(serve).map_err(|source| {
        Error::new(ErrorKind::Unavailable, "the system could not start a thread for the database")
            .with_source(source)
    })?;
    Ok(ended.shared())
}

fn lost() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the call was broken off by a fault in its thread; whether it took effect is not known",
    )
}

fn serve_reads(config: Arc<Config>, jobs: &Receiver<Read>) {
    let mut slot = Slot::new(config, false);
    for job in jobs {
        // A panic ends one call, whose caller finds its channel closed, and the connection, but not the thread.
        if catch_unwind(AssertUnwindSafe(|| job(&mut slot))).is_err() {
            slot.close();
        }
    }
    close_in_turn(&mut slot);
}

/// Closes a connection while no other thread does: if two close concurrently, neither may see itself as the last one, and
/// the log would remain.
fn close_in_turn(slot: &mut Slot) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    slot.close();
}

/// The writer's queue.
struct Inbox {
    orders: Receiver<Order>,
    /// Received, but not processed yet.
    waiting: VecDeque<Order>,
}

impl Inbox {
    fn wait(&mut self) -> Option<Order> {
        self.waiting.pop_front().or_else(|| self.orders.recv().ok())
    }

    fn look(&mut self) -> Option<Order> {
        self.waiting.pop_front().or_else(|| self.orders.try_recv().ok())
    }

    /// The waiting changes that can be committed with the first.
    fn gather(&mut self, first: Write) -> Vec<Write> {
        let mut bytes = first.bytes.unwrap_or(BATCH_BYTES);
        let mut batch = vec![first];
        while batch.len() < BATCH_JOBS && bytes < BATCH_BYTES {
            match self.look() {
                Some(Order::Write(write)) if write.done.is_canceled() => {}
                Some(Order::Write(write)) if write.fits(bytes) => {
                    bytes += write.bytes.unwrap_or_default();
                    batch.push(write);
                }
                Some(other) => {
                    self.waiting.push_front(other);
                    break;
                }
                None => break,
            }
        }
        batch
    }

    /// Fails the changes that have waited for the busy timeout already. Otherwise each would wait for the whole timeout
    /// again, one after the other.
    fn give_up(&mut self, error: &Arc<Error>, config: &Config) {
        while let Ok(order) = self.orders.try_recv() {
            self.waiting.push_back(order);
        }
        for order in std::mem::take(&mut self.waiting) {
            match order {
                Order::Write(write) if write.queued.elapsed() >= config.busy_timeout => {
                    let _ = write.done.send(Err(Error::share(error)));
                }
                other => self.waiting.push_back(other),
            }
        }
    }
}

impl Write {
    fn fits(&self, bytes: usize) -> bool {
        self.bytes.is_some_and(|more| bytes.saturating_add(more) <= BATCH_BYTES)
    }
}

fn serve_writes(config: Arc<Config>, orders: Receiver<Order>) {
    let mut slot = Slot::new(config, true);
    let mut inbox = Inbox { orders, waiting: VecDeque::new() };
    while let Some(order) = inbox.wait() {
        let work = AssertUnwindSafe(|| match order {
            Order::SetUp(done) => {
                if !done.is_canceled() {
                    let _ = done.send(schema::set_up(slot.config()));
                }
            }
            Order::Write(first) => commit_with_those_waiting(&mut slot, first, &mut inbox),
        });
        if catch_unwind(work).is_err() {
            slot.close();
        }
    }
    close_in_turn(&mut slot);
}

/// Takes the write lock, then commits everything that is waiting by then.
fn commit_with_those_waiting(slot: &mut Slot, first: Write, inbox: &mut Inbox) {
    if first.done.is_canceled() {
        return;
    }
    if let Err(error) = slot.run(Open::begin_immediate) {
        if is_busy(&error) {
            let error = Arc::new(error);
            let _ = first.done.send(Err(Error::share(&error)));
            inbox.give_up(&error, slot.config());
        } else {
            let _ = first.done.send(Err(error));
        }
        return;
    }
    let undone = commit(slot, inbox.gather(first));
    // SQLite rolled back the whole transaction because of one change: the others get a transaction each.
    for write in undone {
        match slot.run(Open::begin_immediate) {
            Ok(()) => drop(commit(slot, vec![write])),
            Err(error) => drop(write.done.send(Err(error))),
        }
    }
}

/// Runs changes in the current transaction, commits it, and sends the results. If SQLite rolled back the transaction by
/// itself (as it does when the disk is full), returns the changes without a result.
///
/// Errors are sent after the commit, too: a conflict may be with a change of the same transaction, which its caller then
/// reads.
fn commit(slot: &mut Slot, batch: Vec<Write>) -> Vec<Write> {
    // Taken out of the slot while in use: a panic then closes the connection, which rolls back.
    let Some(open) = slot.take() else { return batch };
    let several = batch.len() > 1;
    let mut spoiled = false;
    let mut results = Vec::with_capacity(batch.len());
    let mut rest = batch.into_iter();
    while let Some(mut write) = rest.next() {
        let mut change = || (write.change)(slot.config(), &open);
        let result = if several { in_savepoint(&open, change) } else { change() };
        if let Err(error) = &result {
            spoiled |= spoils_connection(error);
            if open.connection.is_autocommit() {
                let _ = write.done.send(result);
                return results.into_iter().map(|(write, _)| write).chain(rest).collect();
            }
        }
        results.push((write, result));
    }
    let outcome = if results.iter().all(|(_, result)| result.is_err()) {
        open.rollback();
        Ok(())
    } else {
        open.commit().inspect_err(|_| open.rollback())
    };
    match outcome {
        Ok(()) => results.into_iter().for_each(|(write, result)| drop(write.done.send(result))),
        Err(error) => {
            spoiled |= spoils_connection(&error);
            let error = Arc::new(error.with("path", slot.config().path.display()));
            for (write, _) in results {
                let _ = write.done.send(Err(Error::share(&error)));
            }
        }
    }
    if !spoiled {
        slot.put_back(open);
    }
    Vec::new()
}

fn in_savepoint(open: &Open, change: impl FnOnce() -> Result<()>) -> Result<()> {
    open.execute(sql::SAVEPOINT, [])?;
    let result = change();
    if result.is_err() {
        if open.connection.is_autocommit() {
            return result;
        }
        if open.execute(sql::ROLLBACK_TO, []).is_err() {
            open.rollback();
            return result;
        }
    }
    // A failed change must not leave anything behind: the others then get a transaction each.
    open.execute(sql::RELEASE, []).inspect_err(|_| open.rollback())?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Synchronous;

    fn workers(directory: &tempfile::TempDir, synchronous: Synchronous) -> Workers {
        Workers::new(Config {
            path: directory.path().join("agent.db"),
            codec: checkpoint_core::backend::ValueCodec::default(),
            reader: None,
            busy_timeout: std::time::Duration::from_secs(5),
            synchronous,
            readers: 1,
            read_only: false,
            keep_last: None,
        })
    }

    async fn threads(workers: &Workers) -> Vec<String> {
        let all = checkpoint_core::ThreadQuery::all();
        let list =
            move |config: &Config, open: &Open| read::list_threads(config, open, &all, None, usize::MAX);
        let (found, _) = workers.read(list).await.unwrap();
        found.into_iter().map(|info| info.thread_id.to_string()).collect()
    }

    fn insert(thread_id: &'static str) -> Change {
        Box::new(move |_, open| {
            let sql = "INSERT INTO checkpoints (thread_id, checkpoint_id) VALUES (?1, 'c')";
            open.execute(sql, [thread_id]).map(|_| ())
        })
    }

    /// Commits changes in one batch, and returns which succeeded.
    async fn commit_together<const N: usize>(workers: &Workers, changes: [Change; N]) -> Vec<bool> {
        let other = rusqlite::Connection::open(&workers.config.path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut writes = changes.map(|change| Box::pin(workers.write(0, change)));
        for write in &mut writes {
            // The first poll puts it into the queue.
            assert!(FutureExt::now_or_never(write).is_none());
        }
        other.execute_batch("COMMIT").unwrap();
        futures_util::future::join_all(writes).await.iter().map(Result::is_ok).collect()
    }

    #[tokio::test]
    async fn a_fault_or_an_error_ends_one_call_and_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let workers = workers(&directory, Synchronous::Full);
        workers.set_up().await.unwrap();
        workers.write(0, insert("before")).await.unwrap();

        let mut half = insert("fault");
        let fault: Change = Box::new(move |config, open| {
            half(config, open)?;
            panic!("a fault that is meant to happen")
        });
        assert_eq!(workers.write(0, fault).await.unwrap_err().kind(), ErrorKind::Unavailable);
        let mut half = insert("error");
        let error: Change = Box::new(move |config, open| {
            half(config, open)?;
            Err(Error::codec("meant to happen"))
        });
        assert_eq!(workers.write_alone(error).await.unwrap_err().kind(), ErrorKind::Codec);
        let fault = |_: &Config, _: &Open| -> Result<()> { panic!("a fault that is meant to happen") };
        assert_eq!(workers.read(fault).await.unwrap_err().kind(), ErrorKind::Unavailable);

        workers.write(0, insert("after")).await.unwrap();
        assert_eq!(threads(&workers).await, ["after", "before"]);
    }

    #[tokio::test]
    async fn a_transaction_that_sqlite_breaks_off_costs_the_others_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let workers = workers(&directory, Synchronous::Full);
        workers.set_up().await.unwrap();
        let broken: Change = Box::new(|_, open| {
            let sql =
                "INSERT OR ROLLBACK INTO checkpoints (thread_id, checkpoint_id) VALUES ('broken', NULL)";
            open.execute(sql, []).map(|_| ())
        });
        assert_eq!(
            commit_together(&workers, [insert("one"), broken, insert("two")]).await,
            [true, false, true]
        );
        assert_eq!(threads(&workers).await, ["one", "two"]);
    }

    #[tokio::test]
    async fn a_change_that_runs_again_returns_its_last_result() {
        let directory = tempfile::tempdir().unwrap();
        let workers = workers(&directory, Synchronous::Full);
        workers.set_up().await.unwrap();
        let other = rusqlite::Connection::open(&workers.config.path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut runs = 0;
        let mut counted = Box::pin(workers.write_returning(0, move |_, _| {
            runs += 1;
            Ok(runs)
        }));
        assert!((&mut counted).now_or_never().is_none());
        let sql = "INSERT OR ROLLBACK INTO checkpoints (thread_id, checkpoint_id) VALUES ('broken', NULL)";
        let mut broken =
            Box::pin(workers.write(0, Box::new(move |_, open| open.execute(sql, []).map(|_| ()))));
        assert!((&mut broken).now_or_never().is_none());
        other.execute_batch("COMMIT").unwrap();
        assert!(broken.await.is_err());
        assert_eq!(counted.await.unwrap(), 2);
    }

    #[tokio::test]
    async fn an_error_is_sent_after_the_commit_of_the_others() {
        let directory = tempfile::tempdir().unwrap();
        let workers = workers(&directory, Synchronous::Full);
        workers.set_up().await.unwrap();
        let other = rusqlite::Connection::open(&workers.config.path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let (reached, is_reached) = crossbeam_channel::bounded(1);
        let (go, may_go) = crossbeam_channel::bounded::<()>(1);
        let conflict = || Err(Error::new(ErrorKind::Conflict, "meant to happen"));
        let mut stored = Box::pin(workers.write(0, insert("stored")));
        let mut refused = Box::pin(workers.write(0, Box::new(move |_, _| conflict())));
        let mut last = Box::pin(workers.write_returning(0, move |_, _| {
            let _ = (reached.send(()), may_go.recv());
            Ok(())
        }));
        assert!((&mut stored).now_or_never().is_none());
        assert!((&mut refused).now_or_never().is_none());
        assert!((&mut last).now_or_never().is_none());
        other.execute_batch("COMMIT").unwrap();
        is_reached.recv().unwrap();
        assert!((&mut refused).now_or_never().is_none(), "what it is in conflict with is not committed");
        drop(go);
        assert_eq!(refused.await.unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(threads(&workers).await, ["stored"]);
        stored.await.unwrap();
        last.await.unwrap();
    }

    #[tokio::test]
    async fn a_savepoint_that_cannot_be_ended_leaves_nothing_behind() {
        for succeeds in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let workers = workers(&directory, Synchronous::Full);
            workers.set_up().await.unwrap();
            let mut half = insert("half");
            let lost: Change = Box::new(move |config, open| {
                half(config, open)?;
                open.execute(sql::RELEASE, [])?;
                if succeeds { Ok(()) } else { Err(Error::codec("meant to happen")) }
            });
            assert_eq!(
                commit_together(&workers, [insert("one"), lost, insert("two")]).await,
                [true, false, true]
            );
            assert_eq!(threads(&workers).await, ["one", "two"]);
        }
    }

    #[tokio::test]
    async fn commits_sync_as_the_builder_says() {
        for (synchronous, wanted) in [(Synchronous::Full, 2_i64), (Synchronous::Normal, 1)] {
            let directory = tempfile::tempdir().unwrap();
            let workers = workers(&directory, synchronous);
            workers.set_up().await.unwrap();
            let check: Change = Box::new(move |_, open| {
                let mode = open.connection.pragma_query_value(None, "synchronous", |row| row.get(0));
                assert_eq!(mode, Ok(wanted));
                Ok(())
            });
            workers.write(0, check).await.unwrap();
        }
    }

    #[tokio::test]
    async fn the_threads_end_with_the_last_handle() {
        for closes in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let workers = workers(&directory, Synchronous::Full);
            workers.set_up().await.unwrap();
            assert!(threads(&workers).await.is_empty());
            let config = Arc::downgrade(&workers.config);
            if closes {
                workers.close().await.unwrap();
                assert_eq!(config.strong_count(), 1, "close waits for the threads");
                workers.close().await.unwrap();
            }
            drop(workers);
            while config.strong_count() > 0 {
                std::thread::yield_now();
            }
        }
    }

    #[tokio::test]
    async fn a_forked_process_is_told_to_build_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let workers = workers(&directory, Synchronous::Full);
        // As in a forked child: the queues belong to another process.
        workers.queues.lock().unwrap().process = u32::MAX;
        let error = workers.set_up().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("fork"), "{error}");
        let read = workers.read(|_, _| Ok(())).await;
        assert_eq!(read.unwrap_err().kind(), ErrorKind::Unavailable);
    }
}
