//! Names: keys, fields and index members. See the crate's page for what they hold.
//!
//! A part of a name is escaped so that any text is possible and names sort as tuples of their parts: U+0000 becomes
//! `00 FF`, and `00` ends the part. UTF-8 has no byte FF.

use checkpoint_core::backend::ValueCodec;
use checkpoint_core::backend::records::WriteName;
use checkpoint_core::backend::segments::Address;
use checkpoint_core::{CheckpointConfig, Error, Result, Str};
use redis::Pipeline;
use xxhash_rust::xxh3::xxh3_64;

/// How many keys the directory of threads is spread over. Part of the format.
pub(crate) const SHARDS: u64 = 32;

/// The kinds of fields and members, which are their first byte.
pub(crate) mod kind {
    /// The number of calls that changed the thread since it was made.
    pub(crate) const GENERATION: &[u8] = b"g";
    /// A number that changes with each removal, from the first copy into the thread on.
    pub(crate) const REMOVALS: &[u8] = b"r";
    /// The lease.
    pub(crate) const LEASE: &[u8] = b"L";
    /// The metadata, parent and values of a checkpoint.
    pub(crate) const METADATA: u8 = b'm';
    /// A checkpoint without large values, and its place in its namespace.
    pub(crate) const CHECKPOINT: u8 = b'c';
    /// A checkpoint's place in its thread.
    pub(crate) const ALL: u8 = b'a';
    /// A value of a channel at a version.
    pub(crate) const BLOB: u8 = b'b';
    /// The addresses of a value's segments.
    pub(crate) const ADDRESSES: u8 = b'l';
    /// A segment.
    pub(crate) const SEGMENT: u8 = b's';
    /// A pending write.
    pub(crate) const WRITE: u8 = b'w';
    /// A checkpoint by parent and step key.
    pub(crate) const STEP: u8 = b'k';
}

/// Appends a part.
pub(crate) fn escape(out: &mut Vec<u8>, part: &str) {
    for byte in part.bytes() {
        out.push(byte);
        if byte == 0 {
            out.push(0xff);
        }
    }
    out.push(0);
}

/// Takes a part from the beginning of a name, and returns it with the rest.
pub(crate) fn unescape(name: &[u8]) -> Result<(Str, &[u8])> {
    let mut part = Vec::new();
    let mut rest = name;
    loop {
        match rest {
            [0, 0xff, after @ ..] => {
                part.push(0);
                rest = after;
            }
            [0, after @ ..] => {
                let part = String::from_utf8(part).map_err(|_| damaged(name))?;
                return Ok((part.into(), after));
            }
            [byte, after @ ..] => {
                part.push(*byte);
                rest = after;
            }
            [] => return Err(damaged(name)),
        }
    }
}

fn damaged(name: &[u8]) -> Error {
    Error::codec("a name in the thread is damaged").with("bytes", name.len())
}

/// A name of a kind.
pub(crate) fn name(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + parts.iter().map(|part| part.len()).sum::<usize>());
    out.push(kind);
    for part in parts {
        out.extend_from_slice(part);
    }
    out
}

/// The keys of one deployment: all of them have its prefix.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    prefix: String,
}

/// The two keys of a thread, which are in one slot.
#[derive(Debug, Clone)]
pub(crate) struct ThreadKeys {
    /// All data: a hash.
    pub(crate) hash: Vec<u8>,
    /// The order of checkpoints and writes: a sorted set.
    pub(crate) index: Vec<u8>,
}

impl ThreadKeys {
    /// Both, for commands and scripts.
    pub(crate) fn both(&self) -> [&[u8]; 2] {
        [&self.hash, &self.index]
    }

    /// Sets the time to live of the thread in milliseconds, unless it is 0.
    pub(crate) fn expire(&self, commands: &mut Pipeline, millis: u64) {
        if millis > 0 {
            for key in self.both() {
                commands.cmd("PEXPIRE").arg(key).arg(millis);
            }
        }
    }
}

impl Keys {
    pub(crate) fn new(prefix: String) -> Self {
        Self { prefix }
    }

    /// The keys of a thread.
    pub(crate) fn thread(&self, thread_id: &str) -> ThreadKeys {
        let mut stem = format!("{}:{{", self.prefix);
        // A tag that is empty or ends early would not be one.
        for char in thread_id.chars() {
            match char {
                '{' => stem.push_str("%7B"),
                '}' => stem.push_str("%7D"),
                '%' => stem.push_str("%25"),
                other => stem.push(other),
            }
        }
        if thread_id.is_empty() {
            stem.push('%');
        }
        ThreadKeys { hash: format!("{stem}}}:h").into(), index: format!("{stem}}}:i").into() }
    }

    /// The shard of the directory that names a thread.
    pub(crate) fn directory(&self, thread_id: &str) -> Vec<u8> {
        self.shard(xxh3_64(thread_id.as_bytes()) % SHARDS)
    }

    /// A shard of the directory.
    pub(crate) fn shard(&self, number: u64) -> Vec<u8> {
        // No thread has the tag of a shard: a percent sign is followed by two digits, or is alone.
        format!("{}:{{%t{number}}}", self.prefix).into()
    }

    /// The version of the format.
    pub(crate) fn format(&self) -> Vec<u8> {
        format!("{}:{{%f}}", self.prefix).into()
    }
}

/// The part of a name for a namespace.
pub(crate) fn namespace(checkpoint_ns: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(checkpoint_ns.len() + 1);
    escape(&mut out, checkpoint_ns);
    out
}

/// The part of a name for a checkpoint: its namespace and its id.
pub(crate) fn checkpoint(checkpoint_ns: &str, checkpoint_id: &str) -> Vec<u8> {
    let mut out = namespace(checkpoint_ns);
    escape(&mut out, checkpoint_id);
    out
}

/// The same of a config.
pub(crate) fn of(config: &CheckpointConfig, checkpoint_id: &str) -> Vec<u8> {
    checkpoint(config.checkpoint_ns(), checkpoint_id)
}

/// Reads the part for a checkpoint.
pub(crate) fn read_checkpoint(name: &[u8]) -> Result<(Str, Str)> {
    let (checkpoint_ns, rest) = unescape(name)?;
    let (checkpoint_id, _) = unescape(rest)?;
    Ok((checkpoint_ns, checkpoint_id))
}

/// The member for a checkpoint's place in its thread. Members of one id sort by namespace, the other way around: the
/// members are read backwards. An id is a UUID, so it has nothing to escape.
pub(crate) fn all(checkpoint_ns: &str, checkpoint_id: &str) -> Vec<u8> {
    let mut out = vec![kind::ALL];
    out.extend_from_slice(checkpoint_id.as_bytes());
    out.push(0);
    // Complemented, no end may be the beginning of another one: 00 01 is not that of an escaped 00 FF.
    out.extend(namespace(checkpoint_ns).into_iter().chain([1]).map(|byte| !byte));
    out
}

/// Reads the member for a checkpoint's place in its thread: namespace and id.
pub(crate) fn read_all(member: &[u8]) -> Result<(Str, Str)> {
    let rest = member.strip_prefix(&[kind::ALL]).ok_or_else(|| damaged(member))?;
    let end = rest.iter().position(|byte| *byte == 0).ok_or_else(|| damaged(member))?;
    let (checkpoint_id, rest) = rest.split_at(end);
    let checkpoint_id = std::str::from_utf8(checkpoint_id).map_err(|_| damaged(member))?;
    let namespace = rest.split_last().map(|(_, namespace)| namespace).unwrap_or_default();
    let (checkpoint_ns, _) = unescape(&namespace.iter().skip(1).map(|byte| !byte).collect::<Vec<_>>())?;
    Ok((checkpoint_ns, checkpoint_id.into()))
}

/// The part of a name for a task.
pub(crate) fn task(task_id: &str) -> Vec<u8> {
    namespace(task_id)
}

/// The part of a name for the index of a write. Negative ones sort first.
pub(crate) fn index(idx: i32) -> [u8; 4] {
    (idx.cast_unsigned() ^ (1 << 31)).to_be_bytes()
}

/// Reads the field of a write.
pub(crate) fn read_write(field: &[u8]) -> Result<WriteName> {
    let rest = field.strip_prefix(&[kind::WRITE]).ok_or_else(|| damaged(field))?;
    let (rest, idx) = rest.split_last_chunk().ok_or_else(|| damaged(field))?;
    let (checkpoint_ns, rest) = unescape(rest)?;
    let (checkpoint_id, rest) = unescape(rest)?;
    let (task_id, rest) = unescape(rest)?;
    if !rest.is_empty() {
        return Err(damaged(field));
    }
    let idx = (u32::from_be_bytes(*idx) ^ (1 << 31)).cast_signed();
    Ok(WriteName { checkpoint_ns, checkpoint_id, task_id, idx })
}

/// The part of a name for a value: channel and version, or, with a cipher, a pseudonym of both. Metadata refers to values
/// by it.
pub(crate) fn value(codec: &ValueCodec, channel: &str, version: &str) -> Vec<u8> {
    if let Some(pseudonym) = codec.pseudonym(&[b"value", channel.as_bytes(), version.as_bytes()]) {
        return pseudonym.to_vec();
    }
    let mut out = namespace(channel);
    out.extend_from_slice(version.as_bytes());
    out
}

/// The field that finds a checkpoint by its parent and its step key, of which it has a hash.
pub(crate) fn step(codec: &ValueCodec, config: &CheckpointConfig, step_key: &str) -> Vec<u8> {
    let parent = of(config, config.checkpoint_id().unwrap_or_default());
    let hash = codec.pseudonym(&[b"step", step_key.as_bytes()]).unwrap_or_else(|| sha(step_key));
    name(kind::STEP, &[&parent, &hash])
}

fn sha(text: &str) -> [u8; 24] {
    use sha2::{Digest, Sha256};
    let mut out = [0; 24];
    out.iter_mut().zip(Sha256::digest(text)).for_each(|(to, from)| *to = from);
    out
}

/// The field of a segment.
pub(crate) fn segment(address: Address) -> Vec<u8> {
    name(kind::SEGMENT, &[address.as_bytes()])
}

/// Reads the field of a segment.
pub(crate) fn read_segment(field: &[u8]) -> Result<Address> {
    let address = field.strip_prefix(&[kind::SEGMENT]).and_then(|rest| rest.try_into().ok());
    address.map(Address::new).ok_or_else(|| damaged(field))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [&str; 10] = ["", "a", "a\0", "a\0b", "\0", "\0\0", "ab", "a:b", "\u{e9}\u{1f600}", "{a}%"];

    #[test]
    fn parts_are_read_as_they_were_written_and_sort_like_tuples() {
        let mut names = Vec::new();
        for ns in TEXTS {
            for id in TEXTS {
                let name = checkpoint(ns, id);
                assert_eq!(read_checkpoint(&name).unwrap(), (ns.into(), id.into()));
                names.push(((ns, id), name));
                let uuid = id.replace('\0', "");
                assert_eq!(read_all(&all(ns, &uuid)).unwrap(), (ns.into(), (&*uuid).into()));
            }
        }
        names.sort_by_key(|(parts, _)| *parts);
        assert!(names.is_sorted_by(|(_, a), (_, b)| a < b));
        let mut members = Vec::new();
        for ns in TEXTS {
            members.extend(["", "a", "ab", "b"].map(|id| ((id, std::cmp::Reverse(ns)), all(ns, id))));
        }
        members.sort_by_key(|(parts, _)| *parts);
        assert!(members.is_sorted_by(|(_, a), (_, b)| a < b));
        assert!(unescape(b"a\0\xff").is_err());
    }

    #[test]
    fn writes_are_read_as_they_were_written() {
        for task_id in TEXTS {
            for idx in [i32::MIN, -4, -1, 0, 1, i32::MAX] {
                let name = name(kind::WRITE, &[&checkpoint("ns", "id"), &task(task_id), &index(idx)]);
                let expected = WriteName {
                    checkpoint_ns: "ns".into(),
                    checkpoint_id: "id".into(),
                    task_id: task_id.into(),
                    idx,
                };
                assert_eq!(read_write(&name).unwrap(), expected);
            }
        }
        assert!(index(-1) < index(0) && index(0) < index(1));
        assert!(read_write(b"w\0").is_err());
    }

    #[test]
    fn both_keys_of_a_thread_have_its_tag_and_no_other_thread_has() {
        let keys = Keys::new("p".into());
        let mut tags = Vec::new();
        for thread_id in TEXTS.into_iter().chain(["%", "%25", "}", "%t1", "%f"]) {
            let ThreadKeys { hash, index } = keys.thread(thread_id);
            let tag = |key: &[u8]| {
                let open = key.iter().position(|byte| *byte == b'{').unwrap();
                let len = key[open + 1..].iter().position(|byte| *byte == b'}').unwrap();
                assert!(len > 0);
                key[open + 1..][..len].to_vec()
            };
            assert_eq!(tag(&hash), tag(&index));
            tags.push(tag(&hash));
        }
        for key in (0..SHARDS).map(|shard| keys.shard(shard)).chain([keys.format()]) {
            assert!(tags.iter().all(|tag| !key.windows(tag.len() + 2).any(|part| {
                part[0] == b'{' && part[1..=tag.len()] == **tag && part[tag.len() + 1] == b'}'
            })));
        }
        tags.sort_unstable();
        assert!(tags.is_sorted_by(|a, b| a < b));
    }
}
