//! Remembers segments.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::Address;
use crate::cipher::AddressKeyName;

/// What a segment takes beside its bytes, about.
const OVERHEAD: usize = 160;

/// A segment whose bytes were checked against its address.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    pub(super) address: Address,
    /// The key of its address.
    pub(super) key: Option<AddressKeyName>,
    pub(super) bytes: Bytes,
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

    /// The addresses of segments with these bytes: one for each, if it is remembered.
    pub(super) fn find_bytes(
        &self,
        thread_id: &str,
        key: Option<AddressKeyName>,
        pieces: &[Bytes],
    ) -> Vec<Option<Address>> {
        let hashes: Vec<u64> = pieces.iter().map(|piece| xxh3_64(piece)).collect();
        let candidates = self.look_up(thread_id, |thread| {
            let candidate = |hash| thread.by_address.get(thread.by_content.get(hash)?).cloned();
            hashes.iter().map(candidate).collect()
        });
        // Outside of the lock.
        let same = |(found, piece): (Option<Checked>, &Bytes)| {
            found.filter(|found| found.key == key && found.bytes == *piece).map(|found| found.address)
        };
        let mut found: Vec<_> = candidates.into_iter().zip(pieces).map(same).collect();
        found.resize(pieces.len(), None);
        found
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
                    continue;
                }
                // The bytes may be a part of a whole value, which would be kept with them.
                segment.bytes = Bytes::copy_from_slice(&segment.bytes);
                let len = segment.bytes.len() + OVERHEAD;
                thread.by_content.insert(xxh3_64(&segment.bytes), segment.address);
                thread.by_address.insert(segment.address, segment);
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
        Checked { address: Address::new([number; Address::LEN]), key: None, bytes: vec![number; len].into() }
    }

    #[test]
    fn segments_are_found_by_address_and_by_content() {
        let cache = SegmentCache::new(1 << 20);
        cache.add("t", [checked(1, 10), checked(2, 10)]);
        assert_eq!(cache.find("t", &[checked(2, 0).address, checked(3, 0).address]).len(), 1);
        let pieces = [checked(2, 10).bytes, checked(2, 11).bytes];
        assert_eq!(cache.find_bytes("t", None, &pieces), [Some(checked(2, 0).address), None]);
        let key = Some(AddressKeyName { id: [0; 4], salt: [0; 16] });
        assert_eq!(cache.find_bytes("t", key, &pieces), [None, None]);
        assert_eq!(cache.find_bytes("u", None, &pieces), [None, None]);
        cache.forget("t");
        assert!(cache.find("t", &[checked(1, 0).address]).is_empty());
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
