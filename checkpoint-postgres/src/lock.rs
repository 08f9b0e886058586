//! Advisory locks, which prevent deadlocks among the calls on one thread.
//!
//! Every call takes locks in this order, and each of them only once:
//!
//! 1. the thread's lock: shared by `put` and `put_writes`, exclusive by calls that change many rows (`delete_thread`,
//!    `prune`, `copy_thread`, `delete_for_runs`); several threads in the order of their keys;
//! 2. the thread's lock among conditional puts, which only those take (exclusive), while they hold the first one shared;
//! 3. the row of the thread's lease, which `acquire_lease`, `renew_lease` and `release_lease` lock alone;
//! 4. rows of checkpoints: a conditional call keeps its parent or target from being deleted (`FOR KEY SHARE`), then it
//!    stores its own;
//! 5. rows of blobs or writes.
//!
//! So no two of our calls wait for each other. Python's writers take only the last two, in the same order. A plain `put`
//! does not wait for the first lock or for its parent's row: where it cannot have them, it stores nothing and runs again in
//! a transaction that waits.

use xxhash_rust::xxh3::xxh3_64;

/// The class of our advisory locks, which separates them from the application's: `ckpt`.
pub(crate) const CLASS: i32 = i32::from_be_bytes(*b"ckpt");

/// The class of the locks among conditional puts: `cput`.
const CONDITIONAL_CLASS: i32 = i32::from_be_bytes(*b"cput");

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

/// Takes a thread's shared lock and its lock among conditional puts, until the end of the transaction. The next statement
/// sees what earlier conditional puts have stored.
pub(crate) fn conditional(lock: Lock) -> String {
    format!("{}, pg_advisory_xact_lock({CONDITIONAL_CLASS}, {})", take(&[], &[lock]), lock.0)
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
