//! The associated data that binds a stored value to its row.

use super::segments::Address;

/// The identity of a stored value, authenticated by AES-256-GCM: a value that is moved to another row does not decrypt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AssociatedData<'a> {
    /// A whole checkpoint.
    Checkpoint {
        /// The thread.
        thread_id: &'a str,
        /// The namespace.
        checkpoint_ns: &'a str,
        /// The checkpoint.
        checkpoint_id: &'a str,
    },
    /// The value of a channel at a version.
    Blob {
        /// The thread.
        thread_id: &'a str,
        /// The namespace.
        checkpoint_ns: &'a str,
        /// The channel.
        channel: &'a str,
        /// The version, as text.
        version: &'a str,
    },
    /// A pending write.
    Write {
        /// The thread.
        thread_id: &'a str,
        /// The namespace.
        checkpoint_ns: &'a str,
        /// The checkpoint.
        checkpoint_id: &'a str,
        /// The task.
        task_id: &'a str,
        /// The write's index in the task.
        idx: i32,
        /// The channel written to.
        channel: &'a str,
    },
    /// A segment, which the values of a thread share.
    Segment {
        /// The thread.
        thread_id: &'a str,
        /// The segment's address.
        address: Address,
    },
    /// The metadata of a checkpoint, where it is stored separately and encrypted.
    Metadata {
        /// The thread.
        thread_id: &'a str,
        /// The namespace.
        checkpoint_ns: &'a str,
        /// The checkpoint.
        checkpoint_id: &'a str,
    },
    /// The channel and the path of a pending write, where they are encrypted.
    WriteHeader {
        /// The thread.
        thread_id: &'a str,
        /// The namespace.
        checkpoint_ns: &'a str,
        /// The checkpoint.
        checkpoint_id: &'a str,
        /// The task.
        task_id: &'a str,
        /// The write's index in the task.
        idx: i32,
    },
}

impl<'a> AssociatedData<'a> {
    /// The thread.
    pub const fn thread_id(&self) -> &'a str {
        match self {
            Self::Checkpoint { thread_id, .. }
            | Self::Blob { thread_id, .. }
            | Self::Write { thread_id, .. }
            | Self::Segment { thread_id, .. }
            | Self::Metadata { thread_id, .. }
            | Self::WriteHeader { thread_id, .. } => thread_id,
        }
    }
}

#[cfg(feature = "encryption")]
impl AssociatedData<'_> {
    /// Appends an unambiguous encoding: the kind, then each part with a length prefix.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        let mut parts = |kind: u8, parts: &[&[u8]]| {
            out.push(kind);
            for part in parts {
                out.extend_from_slice(&(part.len() as u64).to_be_bytes());
                out.extend_from_slice(part);
            }
        };
        match self {
            Self::Checkpoint { thread_id, checkpoint_ns, checkpoint_id } => {
                parts(1, &[thread_id.as_bytes(), checkpoint_ns.as_bytes(), checkpoint_id.as_bytes()]);
            }
            Self::Blob { thread_id, checkpoint_ns, channel, version } => {
                parts(
                    2,
                    &[thread_id.as_bytes(), checkpoint_ns.as_bytes(), channel.as_bytes(), version.as_bytes()],
                );
            }
            Self::Write { thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel } => parts(
                3,
                &[
                    thread_id.as_bytes(),
                    checkpoint_ns.as_bytes(),
                    checkpoint_id.as_bytes(),
                    task_id.as_bytes(),
                    &idx.to_be_bytes(),
                    channel.as_bytes(),
                ],
            ),
            Self::Segment { thread_id, address } => parts(4, &[thread_id.as_bytes(), address.as_bytes()]),
            Self::Metadata { thread_id, checkpoint_ns, checkpoint_id } => {
                parts(5, &[thread_id.as_bytes(), checkpoint_ns.as_bytes(), checkpoint_id.as_bytes()]);
            }
            Self::WriteHeader { thread_id, checkpoint_ns, checkpoint_id, task_id, idx } => parts(
                6,
                &[
                    thread_id.as_bytes(),
                    checkpoint_ns.as_bytes(),
                    checkpoint_id.as_bytes(),
                    task_id.as_bytes(),
                    &idx.to_be_bytes(),
                ],
            ),
        }
    }
}
