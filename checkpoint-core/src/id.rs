//! Checkpoint ids: UUID version 6, as in Python LangGraph.
//!
//! The 60-bit time of an id counts 100 ns since 1582-10-15 and is strictly increasing within a process: when the clock
//! stalls, the next id is one tick later. The clock sequence is the step (`step & 0x3FFF`, so step -1 gives the group
//! `bfff`), the node is random. As text, ids sort by time. Version 7 must not be used: its text sorts below version 6, so
//! Python's checkpoint would always be the newest of a shared thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::{Error, Result, Str};

/// 100 ns intervals from 1582-10-15 to 1970-01-01.
const GREGORIAN_TO_UNIX: u64 = 0x01b2_1dd2_1381_4000;

/// The time has 60 bits.
const MAX_TICK: u64 = (1 << 60) - 1;

static LAST_TICK: AtomicU64 = AtomicU64::new(0);

/// Creates the id of a checkpoint at a step, greater than every id that this process created before.
///
/// ```
/// let input = checkpoint_core::id::uuid6(-1);
/// let next = checkpoint_core::id::uuid6(0);
/// assert!(input.contains("-bfff-") && next.contains("-8000-") && input < next);
/// ```
pub fn uuid6(step: i64) -> Str {
    with_tick(next_tick(), step)
}

/// Creates the id of the checkpoint that follows another, as [`uuid6`] does. It is greater than the other one even if a
/// machine whose clock is ahead created that: the successor is the newest. Other ids of this process are not affected.
///
/// ```
/// use checkpoint_core::id;
/// let ahead = "2f1e4fbf-bea1-6f34-bfff-a8ab9f516d8b";
/// assert!(&*id::uuid6_after(ahead, 0) > ahead && &*id::uuid6(0) < ahead);
/// ```
pub fn uuid6_after(checkpoint_id: &str, step: i64) -> Str {
    let after = tick_of(checkpoint_id).map_or(0, |tick| tick.saturating_add(1));
    with_tick(next_tick().max(after).min(MAX_TICK), step)
}

/// The current time, or one tick after the last one that this process used.
fn next_tick() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now =
        u64::try_from(since_epoch.as_nanos() / 100).unwrap_or(u64::MAX).saturating_add(GREGORIAN_TO_UNIX);
    let last = LAST_TICK
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(now.max(last.saturating_add(1))));
    now.max(last.unwrap_or_default().saturating_add(1)) & MAX_TICK
}

fn with_tick(tick: u64, step: i64) -> Str {
    let mut node = [0_u8; 8];
    random_bytes(&mut node);
    Str::from(compose(tick, step, u64::from_be_bytes(node)).hyphenated().to_string())
}

fn compose(tick: u64, step: i64, node: u64) -> Uuid {
    let sequence = step.cast_unsigned() & 0x3FFF;
    let high = ((tick >> 12) << 16) | 0x6000 | (tick & 0xFFF);
    let low = (0b10 << 62) | (sequence << 48) | (node & 0xFFFF_FFFF_FFFF);
    Uuid::from_u64_pair(high, low)
}

/// Fills a buffer from the operating system's generator. If that fails, which no supported platform does after boot, it
/// falls back to the clock and a counter: an id must be unique, not secret.
pub(crate) fn random_bytes(buffer: &mut [u8]) {
    if getrandom::fill(buffer).is_ok() {
        return;
    }
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let count = LAST_TICK.fetch_add(1, Ordering::AcqRel);
    let mix = xxhash_rust::xxh3::xxh3_128_with_seed(&seed.to_le_bytes(), count).to_le_bytes();
    buffer.iter_mut().zip(mix.iter().cycle()).for_each(|(out, byte)| *out = *byte);
}

/// Checks that an id is the text of a UUID, as LangGraph requires (task ids hash its 16 bytes): 32 hex digits, with or
/// without dashes.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument), naming the id.
pub fn validate(checkpoint_id: &str) -> Result<Uuid> {
    let invalid = || {
        Error::invalid_argument("the checkpoint id is no UUID; create ids with checkpoint_core::id::uuid6")
            .with("checkpoint_id", checkpoint_id)
    };
    // The parser also accepts braces and `urn:uuid:`; LangGraph does not, and such ids would sort after all others.
    if !checkpoint_id.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit()) {
        return Err(invalid());
    }
    Uuid::try_parse(checkpoint_id).map_err(|source| invalid().with_source(source))
}

/// The time in a version 6 id.
fn tick_of(checkpoint_id: &str) -> Option<u64> {
    let (high, _) = Uuid::try_parse(checkpoint_id).ok()?.as_u64_pair();
    ((high >> 12) & 0xF == 6).then_some((high >> 16 << 12) | (high & 0xFFF))
}

/// The time in a version 6 id, in microseconds since 1970, or `None` for another version.
pub fn unix_micros(checkpoint_id: &str) -> Option<i64> {
    Some((tick_of(checkpoint_id)?.cast_signed() - GREGORIAN_TO_UNIX.cast_signed()) / 10)
}

/// The step in a version 6 id, from -8192 to 8191 (the id has 14 bits of it).
pub fn step(checkpoint_id: &str) -> Option<i64> {
    let (high, low) = Uuid::try_parse(checkpoint_id).ok()?.as_u64_pair();
    let sequence = ((low >> 48) & 0x3FFF).cast_signed();
    ((high >> 12) & 0xF == 6).then_some(if sequence >= 0x2000 { sequence - 0x4000 } else { sequence })
}

/// Formats microseconds since 1970 as Python's `datetime.isoformat()` does in UTC.
///
/// ```
/// assert_eq!(checkpoint_core::id::isoformat(0), "1970-01-01T00:00:00+00:00");
/// assert_eq!(checkpoint_core::id::isoformat(1_767_323_045_678_901), "2026-01-02T03:04:05.678901+00:00");
/// ```
pub fn isoformat(unix_micros: i64) -> String {
    let time = DateTime::<Utc>::from_timestamp_micros(unix_micros).unwrap_or_default();
    let format =
        if unix_micros % 1_000_000 == 0 { "%Y-%m-%dT%H:%M:%S+00:00" } else { "%Y-%m-%dT%H:%M:%S%.6f+00:00" };
    time.format(format).to_string()
}

/// The current time as a checkpoint's `ts`: UTC, ISO 8601, microseconds.
pub fn now() -> Str {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Str::from(isoformat(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_pythons_layout() {
        // 2026-11-20T16:03:53.922... of the golden thread's first id, step -1.
        let id = "1f1e4fbf-bea1-6f34-bfff-a8ab9f516d8b";
        assert_eq!(step(id), Some(-1));
        assert!(isoformat(unix_micros(id).unwrap()).starts_with("2026-11-20T16:03:53"));
        let (high, low) = Uuid::try_parse(id).unwrap().as_u64_pair();
        assert_eq!(compose((high >> 16 << 12) | (high & 0xFFF), -1, low).hyphenated().to_string(), id);
    }

    #[test]
    fn ids_increase_under_contention() {
        let threads: Vec<_> =
            (0..4).map(|_| std::thread::spawn(|| (0..2000).map(uuid6).collect::<Vec<_>>())).collect();
        let mut all = Vec::new();
        for thread in threads {
            let ids = thread.join().unwrap();
            assert!(ids.is_sorted());
            all.extend(ids.into_iter().map(|id| unix_tick(&id)));
        }
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 8000, "every id has a tick of its own");
    }

    fn unix_tick(id: &str) -> u64 {
        let (high, _) = Uuid::try_parse(id).unwrap().as_u64_pair();
        (high >> 16 << 12) | (high & 0xFFF)
    }
}
