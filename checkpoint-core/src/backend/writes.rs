//! The rows of one `put_writes`.

use super::{CheckpointKey, ValueCodec};
use crate::{ChannelValue, CheckpointConfig, Error, PutWritesOptions, Result, Str, TypedBytes, id, special};

/// One write as it is stored.
#[derive(Debug, Clone)]
pub struct WriteRow {
    /// Its position in the call, or the fixed index of a special channel.
    pub idx: i32,
    /// The channel.
    pub channel: Str,
    /// The value, encrypted where there is a cipher.
    pub value: TypedBytes,
}

/// The writes of one `put_writes` call, checked and encrypted.
#[derive(Debug, Clone)]
pub struct PreparedWrites {
    /// The thread.
    pub thread_id: Str,
    /// The namespace.
    pub checkpoint_ns: Str,
    /// The checkpoint, which need not be stored yet.
    pub checkpoint_id: Str,
    /// The task.
    pub task_id: Str,
    /// The task's path in the graph.
    pub task_path: Str,
    /// Whether rows with the same key are replaced; otherwise they stay.
    pub replace: bool,
    /// The rows, ordered by index; each index occurs once.
    pub rows: Vec<WriteRow>,
}

impl PreparedWrites {
    /// Indexes, checks and encrypts writes.
    ///
    /// A special channel has its fixed index, any other its position in the call (special ones take a position too). If
    /// all channels of the call are special, stored rows are replaced; otherwise all stored rows are kept. Of rows with
    /// the same index the last one wins if rows are replaced, otherwise the first.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) when the config names no checkpoint, the id is not a
    /// UUID, or there are more than 2^31 writes; else as [`ChannelValue::from_typed`], [`ChannelValue::to_typed`] and
    /// [`ValueCodec::seal`]. The error for a value names its channel.
    pub fn new(
        codec: &ValueCodec,
        config: &CheckpointConfig,
        writes: &[(Str, ChannelValue)],
        task_id: &str,
        task_path: &str,
    ) -> Result<Self> {
        let checkpoint_id = config.require_checkpoint_id()?;
        id::validate(checkpoint_id)?;
        let key = CheckpointKey::new(config.thread_id(), config.checkpoint_ns(), checkpoint_id);
        let row = |(position, (channel, value)): (usize, &(Str, ChannelValue))| {
            let idx = match special::index(channel) {
                Some(idx) => idx,
                None => i32::try_from(position)
                    .map_err(|_| Error::invalid_argument("too many writes in one call"))?,
            };
            let value = codec
                .seal_value(value, &key.write_data(task_id, idx, channel))
                .map_err(|error| error.with_missing("channel", channel))?;
            Ok(WriteRow { idx, channel: channel.clone(), value })
        };
        let mut rows = writes.iter().enumerate().map(row).collect::<Result<Vec<_>>>()?;
        let replace = writes.iter().all(|(channel, _)| special::index(channel).is_some());
        if replace {
            rows.reverse();
        }
        // Stable, and in the order of the table's key: concurrent calls lock rows in this order, which prevents deadlocks.
        rows.sort_by_key(|row| row.idx);
        rows.dedup_by_key(|row| row.idx);
        let (thread_id, checkpoint_ns) = config.shared_key();
        Ok(Self {
            thread_id,
            checkpoint_ns,
            checkpoint_id: checkpoint_id.into(),
            task_id: task_id.into(),
            task_path: task_path.into(),
            replace,
            rows,
        })
    }

    /// Checks that the options apply to these writes.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a special channel in a call that stores the first result
    /// of a task only, or the lease of another thread.
    pub fn with(self, options: &PutWritesOptions) -> Result<Self> {
        if let Some(lease) = &options.lease {
            lease.check_thread(&self.thread_id)?;
        }
        match self.rows.iter().find(|row| options.once && row.idx < 0) {
            Some(row) => Err(Error::invalid_argument(
                "a special channel cannot be part of a result that is stored once; write it in a call of its own",
            )
            .with("channel", &row.channel)),
            None => Ok(self),
        }
    }

    /// The approximate number of bytes that are sent.
    pub fn bytes(&self) -> usize {
        self.rows.iter().map(|row| row.channel.len() + row.value.data.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepare(channels: &[&str]) -> PreparedWrites {
        let writes: Vec<_> = channels
            .iter()
            .enumerate()
            .map(|(at, channel)| (Str::from(*channel), ChannelValue::Int(i64::try_from(at).unwrap())))
            .collect();
        let config = CheckpointConfig::new("t").with_checkpoint_id(id::uuid6(0));
        PreparedWrites::new(&ValueCodec::default(), &config, &writes, "task", "").unwrap()
    }

    fn rows(prepared: &PreparedWrites) -> Vec<(i32, u8)> {
        prepared.rows.iter().map(|row| (row.idx, row.value.data[0])).collect()
    }

    #[test]
    fn special_channels_have_fixed_indexes_and_take_a_position() {
        let mixed = prepare(&["a", special::ERROR, "b", special::ERROR]);
        assert_eq!((rows(&mixed), mixed.replace), (vec![(-1, 1), (0, 0), (2, 2)], false));
        let special = prepare(&[special::ERROR, special::RESUME, special::ERROR]);
        assert_eq!((rows(&special), special.replace), (vec![(-4, 1), (-1, 2)], true));
        assert!(prepare(&[]).rows.is_empty());
    }

    #[test]
    fn a_checkpoint_must_be_named_by_a_uuid() {
        for config in [CheckpointConfig::new("t"), CheckpointConfig::new("t").with_checkpoint_id("x")] {
            let error = PreparedWrites::new(&ValueCodec::default(), &config, &[], "task", "").unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidArgument);
        }
    }
}
