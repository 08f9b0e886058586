//! Advisory locks, which prevent deadlocks among the calls on one thread.

use xxhash_rust::xxh3::xxh3_64;

/// The class of our advisory locks, which separates them from the application's: `ckpt`.
pub(crate) const CLASS: i32 = i32::from_be_bytes(*b"ckpt");

/// The advisory lock of a thread. Calls that change many of its rows take it exclusively, `put` and `put_writes` take it
/// shared. This prevents deadlocks, and that one call deletes a blob that another is about to name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lock(i32);

impl Lock {
    pub(crate) fn of(thread_id: &str) -> Self {
        Self(u32::try_from(xxh3_64(thread_id.as_bytes()) >> 32).unwrap_or_default().cast_signed())
    }

    pub(crate) fn key(&self) -> &i32 {
        &self.0
    }
}

/// Takes locks until the end of the transaction, always in the same order.
pub(crate) fn take(exclusive: &[Lock], shared: &[Lock]) -> String {
    let mut locks: Vec<(Lock, bool)> = exclusive.iter().map(|lock| (*lock, true)).collect();
    locks.extend(shared.iter().filter(|lock| !exclusive.contains(lock)).map(|lock| (*lock, false)));
    locks.sort_unstable();
    locks.dedup();
    let calls: Vec<String> = locks
        .iter()
        .map(|(lock, is_exclusive)| {
            let function =
                if *is_exclusive { "pg_advisory_xact_lock" } else { "pg_advisory_xact_lock_shared" };
            format!("{function}({CLASS}, {})", lock.0)
        })
        .collect();
    format!("SELECT {}", calls.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_one_order() {
        let (a, b) = (Lock::of("a"), Lock::of("b"));
        let [ab, ba] = [take(&[a], &[b]), take(&[b], &[a])];
        let keys = |sql: &str| sql.matches("1667985524, ").count();
        assert_eq!((keys(&ab), keys(&ba)), (2, 2));
        let first =
            |sql: &str| sql.split_once("1667985524, ").unwrap().1.split_once(')').unwrap().0.to_owned();
        assert_eq!(first(&ab), first(&ba));
        assert_eq!(take(&[a, a], &[a]), format!("SELECT pg_advisory_xact_lock(1667985524, {})", a.key()));
    }

    #[test]
    fn the_lock_of_a_thread_stays_what_it_is() {
        // Programs of different versions must use the same lock.
        assert_eq!(*Lock::of("thread-1").key(), 659_401_213);
    }
}
