//! Remembers segments.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::Address;
use super::cut::{FoundRun, Piece, Run, Runs};
use crate::cipher::AddressKeyName;

/// What a segment takes beside its bytes, about.
const OVERHEAD: usize = 220;

/// How many bytes at its beginning find a run.
const START: usize = 64;

/// A segment whose bytes were checked against its address.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    pub(super) address: Address,
    /// The key of its address.
    pub(super) key: Option<AddressKeyName>,
    pub(super) bytes: Bytes,
    /// Where it is in the value that it was cut from, if it is a run.
    pub(super) place: Option<Place>,
}

/// A run, and the segment before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) run: Run,
    pub(super) previous: Option<Address>,
}

impl Place {
    /// A hash by which it is found.
    fn hash(previous: Option<Address>, values: usize, bytes: &[u8]) -> u64 {
        let start = bytes.get(..START.min(bytes.len())).unwrap_or_default();
        let previous = previous.as_ref().map_or(&[][..], |address| address.as_bytes());
        xxh3_64(previous) ^ xxh3_64(start).rotate_left(1) ^ values as u64
    }
}

/// The segments of one thread, under one key.
#[derive(Debug)]
pub(super) struct RunsOf<'a> {
    pub(super) cache: &'a SegmentCache,
    pub(super) thread_id: &'a str,
    pub(super) key: Option<AddressKeyName>,
}

impl Runs for RunsOf<'_> {
    fn find(&self, previous: Option<Address>, values: usize, bytes: &[u8]) -> Option<FoundRun> {
        let hash = Place::hash(previous, values, bytes);
        let find = |thread: &Thread| {
            let (address, run) = *thread.by_place.get(&hash)?;
            Some((run, thread.by_address.get(&address)?.clone()))
        };
        let found = self.cache.look_up(self.thread_id, |thread| find(thread).into_iter().collect()).pop();
        // Outside of the lock.
        let (run, segment) = found.filter(|(run, segment)| {
            run.values == values && segment.key == self.key && bytes.starts_with(&segment.bytes)
        })?;
        Some(FoundRun { address: segment.address, run, len: segment.bytes.len() })
    }
}

/// Segments that this process has made or checked lately, by thread: their bytes need not be hashed again, and a backend
/// need not send or read them again.
#[derive(Debug)]
pub(super) struct SegmentCache {
    max_bytes: usize,
    threads: Mutex<Threads>,
}

#[derive(Debug, Default)]
struct Threads {
    by_id: HashMap<Box<str>, Thread>,
    bytes: usize,
    clock: u64,
}

#[derive(Debug, Default)]
struct Thread {
    by_address: HashMap<Address, Checked>,
    /// By a hash of the bytes, which are then compared.
    by_content: HashMap<u64, Address>,
    /// By [`Place::hash`].
    by_place: HashMap<u64, (Address, Run)>,
    bytes: usize,
    used: u64,
}

impl SegmentCache {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, threads: Mutex::default() }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Threads) -> T) -> T {
        // Nothing panics while the lock is held.
        act(&mut self.threads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks up something of a thread, which counts as a use of it.
    fn look_up<T>(&self, thread_id: &str, find: impl Fn(&Thread) -> Vec<T>) -> Vec<T> {
        self.with(|threads| {
            threads.clock += 1;
            let clock = threads.clock;
            threads.by_id.get_mut(thread_id).map_or_else(Vec::new, |thread| {
                thread.used = clock;
                find(thread)
            })
        })
    }

    /// Those of these segments that are remembered.
    pub(super) fn find(&self, thread_id: &str, addresses: &[Address]) -> Vec<Checked> {
        self.look_up(thread_id, |thread| {
            addresses.iter().filter_map(|address| thread.by_address.get(address).cloned()).collect()
        })
    }

    /// Sets the addresses of the pieces that are remembered.
    pub(super) fn find_bytes(&self, thread_id: &str, key: Option<AddressKeyName>, pieces: &mut [Piece]) {
        let mut pieces: Vec<_> = pieces.iter_mut().filter(|piece| piece.address.is_none()).collect();
        if pieces.is_empty() {
            return;
        }
        let hashes: Vec<u64> = pieces.iter().map(|piece| xxh3_64(&piece.bytes)).collect();
        let candidates = self.look_up(thread_id, |thread| {
            let candidate = |hash| thread.by_address.get(thread.by_content.get(hash)?).cloned();
            hashes.iter().map(candidate).collect()
        });
        // Outside of the lock.
        for (found, piece) in candidates.into_iter().zip(&mut pieces) {
            piece.address = found
                .filter(|found: &Checked| found.key == key && found.bytes == piece.bytes)
                .map(|found| found.address);
        }
    }

    /// Remembers where segments are that are remembered already.
    pub(super) fn place(&self, thread_id: &str, places: impl IntoIterator<Item = (Address, Place)>) {
        self.with(|threads| {
            let Some(thread) = threads.by_id.get_mut(thread_id) else { return };
            for (address, place) in places {
                thread.place(address, place);
            }
        });
    }

    /// Remembers segments of a thread. A thread with too many begins anew with these.
    pub(super) fn add(&self, thread_id: &str, segments: impl IntoIterator<Item = Checked>) {
        let most = self.max_bytes / 4;
        let segments: Vec<_> = segments.into_iter().collect();
        let added: usize = segments.iter().map(|segment| segment.bytes.len() + OVERHEAD).sum();
        if segments.is_empty() || added > most {
            return;
        }
        self.with(|threads| {
            threads.clock += 1;
            let used = threads.clock;
            if threads.by_id.get(thread_id).is_some_and(|thread| thread.bytes + added > most) {
                threads.remove(thread_id);
            }
            let thread = threads.by_id.entry(thread_id.into()).or_default();
            thread.used = used;
            for mut segment in segments {
                if thread.by_address.contains_key(&segment.address) {
                    if let Some(place) = segment.place {
                        thread.place(segment.address, place);
                    }
                    continue;
                }
                // The bytes may be a part of a whole value, which would be kept with them.
                segment.bytes = Bytes::copy_from_slice(&segment.bytes);
                let len = segment.bytes.len() + OVERHEAD;
                thread.by_content.insert(xxh3_64(&segment.bytes), segment.address);
                let (address, place) = (segment.address, segment.place);
                thread.by_address.insert(address, segment);
                if let Some(place) = place {
                    thread.place(address, place);
                }
                thread.bytes += len;
                threads.bytes += len;
            }
            threads.trim(self.max_bytes);
        });
    }

    pub(super) fn forget(&self, thread_id: &str) {
        self.with(|threads| threads.remove(thread_id));
    }

    pub(super) fn forget_all(&self) {
        self.with(|threads| *threads = Threads::default());
    }
}

impl Thread {
    /// One segment can follow several others: there is room for about one place of each.
    fn place(&mut self, address: Address, Place { run, previous }: Place) {
        let Some(segment) = self.by_address.get(&address) else { return };
        if self.by_place.len() >= 2 * self.by_address.len() {
            self.by_place.clear();
        }
        self.by_place.insert(Place::hash(previous, run.values, &segment.bytes), (address, run));
    }
}

impl Threads {
    fn remove(&mut self, thread_id: &str) {
        if let Some(thread) = self.by_id.remove(thread_id) {
            self.bytes -= thread.bytes;
        }
    }

    /// Forgets the threads that were not used for the longest time, down to three quarters of the limit.
    fn trim(&mut self, max_bytes: usize) {
        if self.bytes <= max_bytes {
            return;
        }
        let mut by_age: Vec<_> = self.by_id.iter().map(|(id, thread)| (thread.used, id.clone())).collect();
        by_age.sort_unstable();
        for (_, id) in by_age {
            if self.bytes <= max_bytes / 4 * 3 {
                return;
            }
            self.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(number: u8, len: usize) -> Checked {
        Checked {
            address: Address::new([number; Address::LEN]),
            key: None,
            bytes: vec![number; len].into(),
            place: None,
        }
    }

    #[test]
    fn segments_are_found_by_address_and_by_content() {
        let cache = SegmentCache::new(1 << 20);
        cache.add("t", [checked(1, 10), checked(2, 10)]);
        assert_eq!(cache.find("t", &[checked(2, 0).address, checked(3, 0).address]).len(), 1);
        let find = |thread, key| {
            let piece = |len| Piece { bytes: checked(2, len).bytes, run: None, address: None };
            let mut pieces = [piece(10), piece(11)];
            cache.find_bytes(thread, key, &mut pieces);
            pieces.map(|piece| piece.address)
        };
        assert_eq!(find("t", None), [Some(checked(2, 0).address), None]);
        let key = Some(AddressKeyName { id: [0; 4], salt: [0; 16] });
        assert_eq!(find("t", key), [None, None]);
        assert_eq!(find("u", None), [None, None]);
        cache.forget("t");
        assert!(cache.find("t", &[checked(1, 0).address]).is_empty());
    }

    #[test]
    fn runs_are_found_by_the_segment_before_them_and_their_bytes() {
        let cache = SegmentCache::new(1 << 20);
        let run = Run { values: 1, elements: 7 };
        let place = |previous| Some(Place { run, previous });
        let [first, second] = [checked(1, 100), checked(2, 100)];
        let before = Some(first.address);
        cache.add("t", [Checked { place: place(None), ..first }, second.clone()]);
        let find = |previous, values, bytes: &[u8]| {
            RunsOf { cache: &cache, thread_id: "t", key: None }
                .find(previous, values, bytes)
                .map(|found| (found.address, found.run, found.len))
        };
        assert_eq!(find(None, 1, &[1; 150]), Some((checked(1, 0).address, run, 100)));
        assert_eq!(find(None, 2, &[1; 150]), None, "entries of a map");
        assert_eq!(find(None, 1, &[1; 99]), None, "too few bytes");
        assert_eq!(find(before, 1, &[2; 100]), None, "its place is not known yet");
        cache.place("t", [(second.address, Place { run, previous: before })]);
        assert_eq!(find(before, 1, &[2; 100]), Some((second.address, run, 100)));
        assert_eq!(find(None, 1, &[2; 100]), None, "after another segment");
    }

    #[test]
    fn threads_that_were_not_used_are_forgotten_first() {
        let cache = SegmentCache::new(40_000);
        for thread in 0..10 {
            cache.add(&format!("t{thread}"), [checked(1, 5000)]);
            cache.find("t0", &[]);
        }
        let is_known = |thread: u8| !cache.find(&format!("t{thread}"), &[checked(1, 0).address]).is_empty();
        assert!(is_known(0) && is_known(9) && !is_known(1));
        // Nothing of a thread that has too much.
        cache.add("large", [checked(1, 20_000)]);
        assert!(cache.find("large", &[checked(1, 0).address]).is_empty());
    }
}
