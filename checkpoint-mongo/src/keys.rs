//! The `_id`s of documents: texts whose order is that of what they name.
//!
//! | `_id` | document |
//! |---|---|
//! | `1!THREAD!NS!ID` | a checkpoint |
//! | `2!THREAD!NS!ID!TASK!INDEX` | a pending write; the index in 8 hexadecimal digits, negative ones first |
//! | `3!THREAD!NS!HASH` | a value, under a hash of channel and version |
//! | `4!THREAD!ADDRESS` | a segment |
//! | `5!THREAD!OWNER!NUMBER` | a chunk of a record that is too long for one document |
//! | `6!THREAD!…` | what decides races: step keys, conditions, leases; and notes of what is being removed |
//! | `!schema`, `!lock` | the version of the format, and the lock of `setup()` |
//!
//! Parts are escaped: a byte below `#` becomes `"` and two hexadecimal digits, one from `~` on becomes `~` and two digits. So
//! they are ASCII without `!`, and sort as their bytes do. An id that gets longer than [`LONGEST`] is cut, and ends with `~~`
//! and a hash, which no other id has.

use checkpoint_core::backend::ValueCodec;
use checkpoint_core::backend::segments::Address;
use checkpoint_core::{Error, Result, Str};
use sha2::{Digest, Sha256};

pub(crate) use checkpoint_core::backend::records::version_key as version;

/// The first character of an `_id`.
pub(crate) mod kind {
    pub(crate) const CHECKPOINT: char = '1';
    pub(crate) const WRITE: char = '2';
    pub(crate) const VALUE: char = '3';
    pub(crate) const SEGMENT: char = '4';
    pub(crate) const CHUNK: char = '5';
    pub(crate) const DECISION: char = '6';

    /// All kinds of a thread, checkpoints first: what they need is deleted after them.
    pub(crate) const ALL: [char; 6] = [CHECKPOINT, WRITE, VALUE, SEGMENT, CHUNK, DECISION];
}

/// The version of the format.
pub(crate) const SCHEMA: &str = "!schema";

/// The lock of `setup()`.
pub(crate) const LOCK: &str = "!lock";

/// The most characters of an escaped part, without its hash.
const LONGEST: usize = 120;

const HEX: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];

/// What follows the last `_id` with this beginning and a separator.
const END: char = '"';

fn push_hex(out: &mut String, byte: u8) {
    out.extend([byte >> 4, byte & 15].into_iter().filter_map(|digit| HEX.get(usize::from(digit))));
}

/// Bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        push_hex(&mut out, *byte);
    }
    out
}

/// The first 24 bytes of the SHA-256 of parts with their lengths.
pub(crate) fn sha(parts: &[&[u8]]) -> [u8; 24] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut out = [0; 24];
    out.iter_mut().zip(hash.finalize()).for_each(|(to, from)| *to = from);
    out
}

/// A hash of parts, keyed if there is a cipher.
pub(crate) fn name(codec: &ValueCodec, parts: &[&[u8]]) -> [u8; 24] {
    codec.pseudonym(parts).unwrap_or_else(|| sha(parts))
}

/// Escapes a part of an `_id`.
pub(crate) fn escape(part: &str) -> String {
    let mut out = String::with_capacity(part.len() + 8);
    for byte in part.bytes() {
        if out.len() > LONGEST {
            out.push_str("~~");
            out.push_str(&hex(&sha(&[part.as_bytes()])));
            return out;
        }
        match byte {
            0x23..=0x7d => out.push(char::from(byte)),
            low @ ..0x23 => {
                out.push('"');
                push_hex(&mut out, low);
            }
            high => {
                out.push('~');
                push_hex(&mut out, high);
            }
        }
    }
    out
}

/// Reads an escaped part. `None` if it was cut.
pub(crate) fn unescape(part: &str) -> Result<Option<Str>> {
    let damaged = || Error::codec("the _id of a document is damaged").with("part", part);
    let mut out = Vec::with_capacity(part.len());
    let mut bytes = part.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'"' && byte != b'~' {
            out.push(byte);
            continue;
        }
        let mut digit = || bytes.next().map(char::from);
        match digit().zip(digit()) {
            Some(('~', _)) => return Ok(None),
            Some((high, low)) => {
                let pair = high.to_digit(16).zip(low.to_digit(16)).ok_or_else(damaged)?;
                out.push(u8::try_from(pair.0 << 4 | pair.1).map_err(|_| damaged())?);
            }
            None => return Err(damaged()),
        }
    }
    String::from_utf8(out).map(|text| Some(text.into())).map_err(|_| damaged())
}

/// All `_id`s from one on, below another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) from: String,
    pub(crate) to: String,
}

impl Range {
    /// All `_id`s with this beginning and a separator.
    pub(crate) fn below(beginning: &str) -> Self {
        Self { from: format!("{beginning}!"), to: format!("{beginning}{END}") }
    }

    /// All `_id`s of a kind.
    pub(crate) fn kind(kind: char) -> Self {
        Self::below(&kind.to_string())
    }

    /// Without those up to this one.
    pub(crate) fn after(self, id: &str) -> Self {
        // No `_id` has U+0000.
        Self { from: self.from.max(format!("{id}\u{1}")), ..self }
    }

    /// Without this one and those behind it.
    pub(crate) fn before(self, id: &str) -> Self {
        let to = if *id < *self.to { id.to_owned() } else { self.to };
        Self { to, ..self }
    }
}

/// The `_id`s of a thread.
#[derive(Debug, Clone)]
pub(crate) struct ThreadKeys {
    thread: String,
}

impl ThreadKeys {
    pub(crate) fn new(thread_id: &str) -> Self {
        Self { thread: escape(thread_id) }
    }

    /// What all decisions begin with.
    pub(crate) fn decisions(&self) -> String {
        format!("{}!{}!", kind::DECISION, self.thread)
    }

    /// All of a kind.
    pub(crate) fn all(&self, kind: char) -> Range {
        Range::below(&format!("{kind}!{}", self.thread))
    }

    /// All of a kind in a namespace.
    pub(crate) fn of_namespace(&self, kind: char, checkpoint_ns: &str) -> Range {
        Range::below(&format!("{kind}!{}!{}", self.thread, escape(checkpoint_ns)))
    }

    pub(crate) fn checkpoint(&self, checkpoint_ns: &str, checkpoint_id: &str) -> String {
        let (ns, id) = (escape(checkpoint_ns), escape(checkpoint_id));
        format!("{}!{}!{ns}!{id}", kind::CHECKPOINT, self.thread)
    }

    /// The writes on a checkpoint.
    pub(crate) fn writes(&self, checkpoint_ns: &str, checkpoint_id: &str) -> Range {
        let (ns, id) = (escape(checkpoint_ns), escape(checkpoint_id));
        Range::below(&format!("{}!{}!{ns}!{id}", kind::WRITE, self.thread))
    }

    /// The writes of a task on a checkpoint with an index from 0 on.
    pub(crate) fn results(&self, checkpoint_ns: &str, checkpoint_id: &str, task_id: &str) -> Range {
        let first = self.write(checkpoint_ns, checkpoint_id, task_id, 0);
        let all = Range::below(first.rsplit_once('!').map_or("", |(task, _)| task));
        Range { from: first, ..all }
    }

    pub(crate) fn write(&self, checkpoint_ns: &str, checkpoint_id: &str, task_id: &str, idx: i32) -> String {
        let [ns, id, task] = [checkpoint_ns, checkpoint_id, task_id].map(escape);
        let idx = idx.cast_unsigned() ^ (1 << 31);
        format!("{}!{}!{ns}!{id}!{task}!{idx:08x}", kind::WRITE, self.thread)
    }

    pub(crate) fn value(&self, checkpoint_ns: &str, name: &[u8]) -> String {
        format!("{}!{}!{}!{}", kind::VALUE, self.thread, escape(checkpoint_ns), hex(name))
    }

    pub(crate) fn segment(&self, address: Address) -> String {
        format!("{}!{}!{address}", kind::SEGMENT, self.thread)
    }

    pub(crate) fn chunk(&self, owner: &str, number: usize) -> String {
        format!("{}!{}!{owner}!{number:06}", kind::CHUNK, self.thread)
    }

    /// What the chunks of a record begin with.
    pub(crate) fn owner(&self, owner: &str) -> String {
        format!("{}!{}!{owner}", kind::CHUNK, self.thread)
    }

    /// All chunks of a record.
    pub(crate) fn chunks(&self, owner: &str) -> Range {
        Range::below(&self.owner(owner))
    }

    /// The decision which child of a parent was stored under the condition that the parent is the newest.
    pub(crate) fn child(&self, checkpoint_ns: &str, parent: &str) -> String {
        format!("{}!{}!n!{}!{}", kind::DECISION, self.thread, escape(checkpoint_ns), escape(parent))
    }

    /// The decision which child of a parent was stored under a step key.
    pub(crate) fn step(
        &self,
        codec: &ValueCodec,
        checkpoint_ns: &str,
        parent: &str,
        step_key: &str,
    ) -> String {
        let hash = hex(&name(codec, &[b"step", step_key.as_bytes()]));
        format!("{}!{}!s!{}!{}!{hash}", kind::DECISION, self.thread, escape(checkpoint_ns), escape(parent))
    }

    /// The decision which result of a task is its only one.
    pub(crate) fn once(&self, checkpoint_ns: &str, checkpoint_id: &str, task_id: &str) -> String {
        let [ns, id, task] = [checkpoint_ns, checkpoint_id, task_id].map(escape);
        format!("{}!{}!o!{ns}!{id}!{task}", kind::DECISION, self.thread)
    }

    /// The writes on a checkpoint with this `_id`.
    pub(crate) fn writes_on(&self, checkpoint: &str) -> Range {
        let [_, ns, id] = parts(checkpoint).unwrap_or_default();
        Range::below(&format!("{}!{}!{ns}!{id}", kind::WRITE, self.thread))
    }

    /// The same, and the decisions about results on the checkpoint.
    pub(crate) fn on(&self, checkpoint: &str) -> [Range; 2] {
        let [_, ns, id] = parts(checkpoint).unwrap_or_default();
        let once = Range::below(&format!("{}!{}!o!{ns}!{id}", kind::DECISION, self.thread));
        [self.writes_on(checkpoint), once]
    }

    /// The notes of what is being removed.
    pub(crate) fn removals(&self) -> Range {
        Range::below(&format!("{}!{}!r", kind::DECISION, self.thread))
    }

    /// One of these notes.
    pub(crate) fn removal(&self, number: usize) -> String {
        format!("{}!{}!r!{number:06}", kind::DECISION, self.thread)
    }

    /// The acquisitions of the thread's lease.
    pub(crate) fn leases(&self) -> Range {
        Range::below(&format!("{}!{}!l", kind::DECISION, self.thread))
    }

    /// One acquisition.
    pub(crate) fn lease(&self, number: u64) -> String {
        format!("{}!{}!l!{number:016x}", kind::DECISION, self.thread)
    }
}

/// The parts of a checkpoint's `_id`, escaped: thread, namespace, id.
pub(crate) fn parts(id: &str) -> Option<[&str; 3]> {
    let mut parts = id.split('!').skip(1);
    Some([parts.next()?, parts.next()?, parts.next()?])
}

/// The name of a value: a hash of channel and version, keyed if there is a cipher.
pub(crate) fn value(codec: &ValueCodec, channel: &str, version: &str) -> [u8; 24] {
    name(codec, &[b"value", channel.as_bytes(), version.as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [&str; 16] = [
        "",
        " ",
        "!",
        "\"",
        "#",
        "$",
        "%",
        ".",
        "/",
        "a",
        "a!",
        "ab",
        "b\u{1}",
        "~",
        "~~",
        "\u{e9}\u{1f600}",
    ];

    #[test]
    fn escaped_parts_are_read_as_they_were_written_and_sort_as_their_bytes() {
        let mut all: Vec<_> = TEXTS.iter().map(|text| (*text, escape(text))).collect();
        for (text, escaped) in &all {
            assert!(escaped.is_ascii() && !escaped.contains('!'), "{escaped}");
            assert_eq!(unescape(escaped).unwrap().as_deref(), Some(*text));
        }
        all.sort_unstable();
        assert!(all.is_sorted_by(|(_, a), (_, b)| a < b));
        assert!(unescape("\"0").is_err() && unescape("~zz").is_err());
    }

    #[test]
    fn long_parts_are_cut_and_differ() {
        let long = "x".repeat(5000);
        let [a, b] = [escape(&long), escape(&format!("{long}y"))];
        assert!(a != b && a.len() < 200 && unescape(&a).unwrap().is_none());
        // The literal text is another one.
        assert_ne!(escape(&a), a);
        let exact = "x".repeat(LONGEST);
        assert_eq!(unescape(&escape(&exact)).unwrap().as_deref(), Some(&*exact));
    }

    #[test]
    fn ranges_have_what_begins_with_them_and_nothing_else() {
        for thread in TEXTS {
            let keys = ThreadKeys::new(thread);
            let range = keys.all(kind::CHECKPOINT);
            for other in TEXTS {
                let id = ThreadKeys::new(other).checkpoint("", "id");
                assert_eq!(range.from <= id && id < range.to, thread == other, "{thread:?} {other:?}");
            }
            for idx in [i32::MIN, -1, 0, 1, i32::MAX] {
                let id = keys.write("ns", "id", "task", idx);
                let results = keys.results("ns", "id", "task");
                assert_eq!(results.from <= id && id < results.to, idx >= 0);
            }
        }
    }
}
