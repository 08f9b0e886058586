//! Streams over pages.

use std::sync::Arc;

use futures_util::stream::{self, BoxStream, StreamExt};

use crate::{
    CheckpointConfig, CheckpointTuple, Error, FilterSemantics, ListQuery, Result, Str, ThreadInfo,
    ThreadQuery,
};

/// The items of one page, and the cursor of the next page, if there is one. A page may be empty without being the last.
pub type Page<T, C> = (Vec<T>, Option<C>);

/// Streams the items of pages. The next page is read after all items before it were consumed; the stream ends after
/// its first error.
pub fn pages<T, C, F>(
    first: Option<C>,
    read: impl Fn(C) -> F + Send + 'static,
) -> BoxStream<'static, Result<T>>
where
    T: Send + 'static,
    C: Send + 'static,
    F: Future<Output = Result<Page<T, C>>> + Send + 'static,
{
    let pages = stream::unfold((first, read), |(cursor, read)| async {
        let (items, next): (Vec<Result<T>>, _) = match read(cursor?).await {
            Ok((items, next)) => (items.into_iter().map(Ok).collect(), next),
            Err(error) => (vec![Err(error)], None),
        };
        Some((stream::iter(items), (next, read)))
    });
    pages.flatten().boxed()
}

/// Streams the threads that match a query, from a function that reads threads with their state where the query needs it:
/// up to a number of threads after an id, of which it may leave out those that do not have the prefix. It returns the
/// threads, and the id after which the next page begins, if there may be one.
pub fn thread_pages<F>(
    query: ThreadQuery,
    semantics: FilterSemantics,
    page_size: usize,
    read: impl Fn(Arc<ThreadQuery>, Option<Str>, usize) -> F + Send + 'static,
) -> BoxStream<'static, Result<ThreadInfo>>
where
    F: Future<Output = Result<Page<ThreadInfo, Str>>> + Send + 'static,
{
    let (after, left) = (query.after.clone(), query.limit.unwrap_or(usize::MAX));
    // Pages of a selective query would have few threads each.
    let is_selective = query.prefix.is_some()
        || query.active_since.is_some()
        || query.idle_since.is_some()
        || query.status.is_some()
        || !query.filter.is_empty();
    let query = Arc::new(query);
    pages((left > 0).then_some((after, left)), move |(after, left)| {
        let count = if is_selective { page_size } else { left.min(page_size) };
        let page = read(Arc::clone(&query), after, count);
        let query = Arc::clone(&query);
        async move {
            let (mut threads, next) = page.await?;
            threads.retain(|thread| query.matches(thread, semantics));
            threads.truncate(left);
            let left = left.saturating_sub(threads.len());
            Ok((threads, next.filter(|_| left > 0).map(|next| (Some(next), left))))
        }
    })
}

/// Streams the thread ids that match a query, from a function that takes a thread id and a limit, and reads the ids after
/// that one. An id has no state and no time.
pub fn thread_id_pages<F>(
    query: ThreadQuery,
    page_size: usize,
    read: impl Fn(Option<Str>, usize) -> F + Send + 'static,
) -> BoxStream<'static, Result<Str>>
where
    F: Future<Output = Result<Vec<Str>>> + Send + 'static,
{
    if query.needs_state() || query.active_since.is_some() || query.idle_since.is_some() {
        let message = "thread ids can be listed by prefix only; use list_threads";
        return stream::once(std::future::ready(Err(Error::invalid_argument(message)))).boxed();
    }
    let left = query.limit.unwrap_or(usize::MAX);
    let prefix = query.prefix;
    pages((left > 0).then_some((query.after, left)), move |(after, left)| {
        let count = if prefix.is_some() { page_size } else { left.min(page_size) };
        let (page, prefix) = (read(after, count), prefix.clone());
        async move {
            let mut page = page.await?;
            let last = page.last().filter(|_| page.len() == count).cloned();
            page.retain(|id| prefix.as_ref().is_none_or(|prefix| id.starts_with(&**prefix)));
            page.truncate(left);
            let left = left.saturating_sub(page.len());
            Ok((page, last.filter(|_| left > 0).map(|last| (Some(last), left))))
        }
    })
}

/// The position in a listing of checkpoints.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ListCursor {
    /// What to list.
    pub query: ListQuery,
    /// The last checkpoint that was read, if any.
    pub last: Option<CheckpointConfig>,
    /// How many checkpoints are still wanted.
    pub left: usize,
}

impl ListCursor {
    /// Begins a listing, unless its limit is 0.
    pub fn begin(mut query: ListQuery) -> Option<Self> {
        query.checkpoint_id = query.checkpoint_id.filter(|id| !id.is_empty());
        let left = query.limit.unwrap_or(usize::MAX);
        (left > 0).then_some(Self { query, last: None, left })
    }

    /// Moves behind a page that had room for so many checkpoints. `None` if it was the last one.
    pub fn after(self, page: &[CheckpointTuple], count: usize) -> Option<Self> {
        let left = self.left.saturating_sub(page.len());
        let last = page.last().filter(|_| page.len() >= count && left > 0)?;
        Some(Self { last: Some(last.config.clone()), left, ..self })
    }
}

/// Which conditions the statement for a page of a listing has.
#[expect(clippy::struct_excessive_bools, reason = "each condition is there or not, independently")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListConditions {
    /// One thread.
    pub thread_id: bool,
    /// One namespace.
    pub checkpoint_ns: bool,
    /// One checkpoint id.
    pub checkpoint_id: bool,
    /// Ids below another.
    pub before: bool,
    /// A filter on the metadata.
    pub filter: bool,
    /// A cursor.
    pub after: bool,
}

impl ListConditions {
    /// The conditions of a query, of whose listing a part may have been read already.
    pub fn new(query: &ListQuery, after: bool) -> Self {
        Self {
            thread_id: query.thread_id.is_some(),
            checkpoint_ns: query.checkpoint_ns.is_some(),
            checkpoint_id: query.checkpoint_id.is_some(),
            before: query.before.is_some(),
            filter: !query.filter.is_empty(),
            after,
        }
    }

    /// Every combination, for tests of all statements.
    pub fn all() -> impl Iterator<Item = Self> {
        (0_u8..64).map(|bits| {
            let [thread_id, checkpoint_ns, checkpoint_id, before, filter, after] =
                [0, 1, 2, 3, 4, 5].map(|bit| bits & (1 << bit) != 0);
            Self { thread_id, checkpoint_ns, checkpoint_id, before, filter, after }
        })
    }

    /// Whether the listing is one of a single namespace, where the id alone is the cursor and the primary key gives the
    /// order.
    pub fn is_one_namespace(self) -> bool {
        self.thread_id && self.checkpoint_ns
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use futures_util::TryStreamExt;

    use super::*;

    #[tokio::test]
    async fn pages_are_read_lazily_and_end_after_an_error() {
        let read = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&read);
        let mut stream = pages(Some(0), move |page: u32| {
            seen.lock().unwrap().push(page);
            async move {
                match page {
                    0 => Ok((vec!["a", "b"], Some(1))),
                    1 => Ok((vec![], Some(2))),
                    _ => Err(Error::codec("broken")),
                }
            }
        });
        assert_eq!(stream.next().await.unwrap().unwrap(), "a");
        assert_eq!(stream.next().await.unwrap().unwrap(), "b");
        assert_eq!(*read.lock().unwrap(), [0]);
        stream.next().await.unwrap().unwrap_err();
        assert!(stream.next().await.is_none());
    }

    #[tokio::test]
    async fn threads_end_at_the_limit_or_with_the_last_page() {
        let all = ["a1", "a2", "b1", "b2"];
        let cases = [
            (ThreadQuery::all(), 4, 2),
            (ThreadQuery::all().limit(3), 3, 2),
            (ThreadQuery::all().limit(0), 0, 0),
            (ThreadQuery::all().after("a2"), 2, 1),
            (ThreadQuery::all().prefix("b").limit(1), 1, 2),
        ];
        for (query, expected, reads) in cases {
            let count = Arc::new(Mutex::new(0));
            let counted = Arc::clone(&count);
            let stream = thread_pages(query.clone(), FilterSemantics::Equality, 2, move |_, after, most| {
                *counted.lock().unwrap() += 1;
                let rest = all.iter().filter(move |id| after.as_deref().is_none_or(|after| **id > after));
                let page: Vec<_> = rest.take(most).map(|id| ThreadInfo::new(*id, "x")).collect();
                let last = page.last().map(|last| last.thread_id.clone());
                async move { Ok((page, last.filter(|last| &**last != "b2"))) }
            });
            let found: Vec<_> = stream.try_collect().await.unwrap();
            assert_eq!((found.len(), *count.lock().unwrap()), (expected, reads), "{query:?}");
        }
    }
}
