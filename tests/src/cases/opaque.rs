//! Values of another serializer, which a saver does not decode.

use std::sync::Arc;

use checkpoint_core::serde::document;
use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, CheckpointTuple,
    Cipher, DeltaChannelHistory, ErrorKind, ListQuery, PruneStrategy, PutOptions, SaverExt, Str, ThreadQuery,
    TypedBytes, opaque,
};
use futures_util::TryStreamExt;

use crate::case::{Ctx, Failure, Need};
use crate::fixture::{
    Done, at_version, checkpoint, encode, expect_kind, id_of, ids, list, map, metadata, prepared, put,
    random, read, snapshot, triples, write, write_at,
};
use crate::foreign::Foreign;
use crate::target::{Facility, OpenOptions, Saver};

const WHOLE: Need = Need::Target(Facility::WholeCheckpoints);

cases!("opaque", [Need::Target(Facility::OpaqueValues)];
    values_are_returned_unchanged [Need::Target(Facility::SeparateValues)],
    scalars_stay_readable [Need::Target(Facility::SeparateValues)],
    a_checkpoint_that_is_one_value_is_rejected [Need::Target(Facility::SeparateValues)],
    whole_checkpoints_are_returned_unchanged [WHOLE],
    a_whole_checkpoint_with_channels_is_rejected [WHOLE],
    plain_savers_reject_whole_checkpoints,
    pending_writes,
    histories,
    encrypted_values_are_not_encrypted_again [Need::Target(Facility::Cipher)],
    raw_bytes_contain_no_plaintext [Need::Target(Facility::Cipher), Need::Target(Facility::Raw)],
    moved_rows_do_not_decrypt [Need::Target(Facility::Cipher), Need::Target(Facility::MoveRows)],
    copies [Need::CopyThread],
    delete_for_runs [Need::DeleteForRuns],
    prune_without_deltas [Need::Prune],
    prune_with_counted_deltas [Need::Prune],
    prune_recognizes_declared_snapshots [Need::Prune],
    without_a_reader [WHOLE, Need::Prune, Need::CopyThread, Need::DeleteForRuns],
    a_reader_that_fails [WHOLE, Need::Prune],
    messagepack_needs_no_reader [WHOLE, Need::Prune],
    a_thread_of_plain_and_opaque_savers [Need::Durable],
);

/// Tags that do not match the bytes, both plain and as if encrypted by the serializer.
const TAGS: [&str; 4] = ["msgpack", "own", "msgpack+aes", "own+aes256gcm"];

/// A saver with `opaque_values`, and the serializer of the values.
struct Handle {
    saver: Saver,
    foreign: Foreign,
    is_whole: bool,
}

impl Handle {
    async fn open(ctx: &Ctx, tag: &'static str, cipher: Option<Cipher>) -> checkpoint_core::Result<Self> {
        let foreign = Foreign { tag };
        let is_whole = ctx.target().offers(Facility::WholeCheckpoints);
        let options = OpenOptions {
            cipher,
            opaque_values: true,
            reader: is_whole.then(|| Arc::new(foreign) as Arc<_>),
            ..OpenOptions::default()
        };
        Ok(Self { saver: ctx.target().open(options).await?, foreign, is_whole })
    }

    /// A handle for each tag, and one for each of our ciphers.
    async fn all(ctx: &Ctx) -> checkpoint_core::Result<Vec<Self>> {
        let mut all = Vec::new();
        for tag in TAGS {
            all.push(Self::open(ctx, tag, None).await?);
        }
        if ctx.target().offers(Facility::Cipher) {
            for cipher in ciphers()? {
                all.push(Self::open(ctx, "msgpack", Some(cipher)).await?);
            }
        }
        Ok(all)
    }

    /// A checkpoint in the form that this saver accepts and returns.
    fn form(&self, made: &Checkpoint) -> Checkpoint {
        if self.is_whole {
            opaque::checkpoint(made.id.clone(), self.foreign.dumps(made))
        } else {
            made.clone()
        }
    }

    async fn put(
        &self,
        config: &CheckpointConfig,
        made: &Checkpoint,
        metadata: &CheckpointMetadata,
    ) -> checkpoint_core::Result<CheckpointConfig> {
        let snapshots = made.channel_values.iter().filter(|(_, value)| self.foreign.is_snapshot(value));
        let options = PutOptions::default().delta_snapshots(snapshots.map(|(channel, _)| channel.clone()));
        self.saver.put_with(config, &self.form(made), metadata, &made.channel_versions, &options).await
    }

    /// A chain of steps with a delta channel `log`: some have a snapshot, the others only a version; two writes on each.
    async fn chain(
        &self,
        thread_id: &Str,
        steps: i64,
        snapshots: &[i64],
        counted: bool,
    ) -> checkpoint_core::Result<Vec<(CheckpointConfig, Checkpoint)>> {
        let mut config = CheckpointConfig::new(thread_id.clone());
        let mut stored = Vec::new();
        for step in 1..=steps {
            let mut made = at_version(step, &[("plain", self.foreign.value(step))]);
            made.channel_versions.insert("log".into(), step.into());
            made.channel_versions.insert("trigger".into(), step.into());
            if step == 1 {
                // A consumed trigger, not a delta channel.
                made.channel_values.insert("trigger".into(), self.foreign.value(0));
            }
            let mut metadata = metadata(step);
            if snapshots.contains(&step) {
                made.channel_values.insert("log".into(), self.foreign.snapshot(step));
            } else if counted {
                metadata.insert("counters_since_delta_snapshot", map(&[("log", list(&[step, step]))]));
            }
            config = self.put(&config, &made, &metadata).await?;
            let writes = [("log", self.foreign.value(step)), ("log", self.foreign.value(-step))];
            write(&self.saver, &config, "task", &writes).await?;
            stored.push((config.clone(), self.form(&made)));
        }
        Ok(stored)
    }

    async fn history(
        &self,
        config: &CheckpointConfig,
        channel: &str,
    ) -> Result<DeltaChannelHistory, Failure> {
        let mut found = self.saver.get_delta_channel_history(config, &[channel]).await?;
        found.remove(channel).ok_or_else(|| Failure::new("the channel is missing"))
    }

    async fn listed(&self, thread_id: &Str) -> checkpoint_core::Result<Vec<CheckpointTuple>> {
        self.saver.list_all(ListQuery::thread(thread_id.clone())).await
    }

    async fn keep_latest(&self, thread_id: &Str) -> checkpoint_core::Result<()> {
        self.saver.prune(&[thread_id], PruneStrategy::KeepLatest).await
    }
}

fn ciphers() -> checkpoint_core::Result<[Cipher; 2]> {
    Ok([Cipher::aes(&[1; 32])?, Cipher::aes_gcm("key", &[1; 32])?])
}

/// Bytes that a saver could mistake for a known format.
fn odd_values() -> Vec<TypedBytes> {
    let table: [(&'static str, &'static [u8]); 18] = [
        ("own", b"\xff\x00"),
        ("own", b""),
        ("", b"no tag"),
        ("msgpack", b"\x05"),
        ("msgpack", b"\xc0"),
        ("msgpack", b"\xa4text"),
        ("msgpack", b""),
        ("msgpack", b"\xc1 no MessagePack"),
        ("msgpack", b"\xdc\xff\xff\x01"),
        ("msgpack", b"\x90 and more"),
        ("null", b""),
        ("null", b"not at all"),
        ("bytes", b"\x01"),
        ("json", b"5"),
        ("json", b"9223372036854775807"),
        ("json", b"123456789012345678901234567890"),
        ("json", b"{no JSON"),
        ("pickle", b"\x80"),
    ];
    table.map(|(tag, data)| TypedBytes::new(tag, data)).into()
}

fn encrypted_values() -> Vec<TypedBytes> {
    ["msgpack+aes", "own+aes", "own+aes256gcm", "own+rot13", "a+b+c", "+"]
        .map(|tag| TypedBytes::new(tag, &b"ciphertext"[..]))
        .into()
}

async fn values_are_returned_unchanged(ctx: Ctx) -> Done {
    for (at, handle) in Handle::all(&ctx).await?.into_iter().enumerate() {
        let mut values = odd_values();
        if at < TAGS.len() {
            values.extend(encrypted_values());
        }
        let mut made = Checkpoint::new(0);
        let mut options = PutOptions::default();
        let mut writes = Vec::new();
        for (at, typed) in values.into_iter().enumerate() {
            made = made.with_channel(format!("{at}"), typed.clone(), 1).with_channel(
                format!("snapshot {at}"),
                typed.clone(),
                1,
            );
            options = options.delta_snapshots([format!("snapshot {at}")]);
            writes.push((Str::from(format!("{at}")), ChannelValue::Blob(typed)));
        }
        let thread_id = ctx.thread();
        let config = CheckpointConfig::new(thread_id.clone());
        let versions = &made.channel_versions;
        let stored = handle.saver.put_with(&config, &made, &metadata(0), versions, &options).await?;
        handle.saver.put_writes(&stored, &writes, "task", "").await?;
        let tuple = read(&handle.saver, &stored).await?;
        for (channel, value) in &made.channel_values {
            ensure_eq!(tuple.checkpoint.channel_values.get(channel), Some(value), "channel {channel:?}");
        }
        ensure_eq!(tuple.checkpoint, made, "checkpoint");
        let found: Vec<_> =
            tuple.pending_writes.iter().map(|write| (write.channel.clone(), write.value.clone())).collect();
        ensure_eq!(found, writes, "writes");
        ensure_eq!(handle.listed(&thread_id).await?, [tuple], "listing");
    }
    Ok(())
}

async fn scalars_stay_readable(ctx: Ctx) -> Done {
    let plain = [
        ("null", ChannelValue::Null),
        ("true", true.into()),
        ("int", i64::MIN.into()),
        ("float", 0.5.into()),
        ("text", "text".into()),
    ];
    let hard = [("minus zero", (-0.0).into()), ("large", 1e300.into()), ("nul", "a\0b".into())];
    for (at, handle) in Handle::all(&ctx).await?.into_iter().enumerate() {
        let made = checkpoint(&[&plain[..], &hard[..]].concat());
        let stored = put(&handle.saver, &CheckpointConfig::new(ctx.thread()), &made).await?;
        write(&handle.saver, &stored, "task", &plain).await?;
        let tuple = read(&handle.saver, &stored).await?;
        for (channel, value) in &made.channel_values {
            let found = tuple.checkpoint.channel_values.get(channel);
            let found = found.ok_or_else(|| Failure::new(format!("channel {channel:?} has no value")))?;
            ensure_eq!(found.to_msgpack()?, value.to_msgpack()?, "channel {channel:?}");
            if at < TAGS.len() && plain.iter().any(|(name, _)| **name == **channel) {
                ensure_eq!(found, value, "channel {channel:?}");
            }
        }
        for (write, (channel, value)) in tuple.pending_writes.iter().zip(&plain) {
            ensure_eq!(write.value, ChannelValue::Blob(value.to_typed()?), "write to {channel:?}");
        }
    }
    Ok(())
}

async fn a_checkpoint_that_is_one_value_is_rejected(ctx: Ctx) -> Done {
    for handle in Handle::all(&ctx).await? {
        let config = CheckpointConfig::new(ctx.thread());
        let made = opaque::checkpoint(random(), handle.foreign.dumps(&checkpoint(&[])));
        let kind = if made.is_sealed() { ErrorKind::Crypto } else { ErrorKind::InvalidArgument };
        expect_kind(put(&handle.saver, &config, &made).await, kind, handle.foreign.tag)?;
        ensure_eq!(handle.saver.get_tuple(&config).await?, None, "refused, but stored");
    }
    Ok(())
}

async fn whole_checkpoints_are_returned_unchanged(ctx: Ctx) -> Done {
    for (at, handle) in Handle::all(&ctx).await?.into_iter().enumerate() {
        let mut values = odd_values();
        if at < TAGS.len() {
            values.extend(encrypted_values());
        }
        let thread_id = ctx.thread();
        let mut config = CheckpointConfig::new(thread_id.clone());
        let mut made = Vec::new();
        for typed in values {
            let checkpoint = opaque::checkpoint(random(), typed);
            config = put(&handle.saver, &config, &checkpoint).await?;
            ensure_eq!(read(&handle.saver, &config).await?.checkpoint, checkpoint, "checkpoint");
            made.insert(0, checkpoint);
        }
        let listed = handle.listed(&thread_id).await?;
        ensure!(listed.iter().map(|tuple| &tuple.checkpoint).eq(&made), "the listing differs");
        // A second put of the same id.
        let again = opaque::checkpoint(id_of(&config), TypedBytes::new("own", &b"again"[..]));
        put(&handle.saver, &config, &again).await?;
        ensure_eq!(read(&handle.saver, &config).await?.checkpoint, again, "the second put");
    }
    Ok(())
}

async fn a_whole_checkpoint_with_channels_is_rejected(ctx: Ctx) -> Done {
    for handle in Handle::all(&ctx).await? {
        let config = CheckpointConfig::new(ctx.thread());
        let made = handle.form(&checkpoint(&[])).with_channel("besides", 1, 1);
        expect_kind(
            put(&handle.saver, &config, &made).await,
            ErrorKind::InvalidArgument,
            "channels besides",
        )?;
        ensure_eq!(handle.saver.get_tuple(&config).await?, None, "refused, but stored");
    }
    Ok(())
}

async fn plain_savers_reject_whole_checkpoints(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread());
    for (tag, kind) in [
        ("msgpack", ErrorKind::InvalidArgument),
        ("own", ErrorKind::InvalidArgument),
        ("msgpack+aes", ErrorKind::Crypto),
    ] {
        let made = opaque::checkpoint(random(), Foreign { tag }.dumps(&checkpoint(&[])));
        expect_kind(put(ctx.saver(), &config, &made).await, kind, tag)?;
    }
    ensure_eq!(ctx.saver().get_tuple(&config).await?, None, "refused, but stored");
    Ok(())
}

async fn pending_writes(ctx: Ctx) -> Done {
    for handle in Handle::all(&ctx).await? {
        let (saver, value) = (&handle.saver, |number| handle.foreign.value(number));
        let stored = handle.put(&CheckpointConfig::new(ctx.thread()), &checkpoint(&[]), &metadata(0)).await?;
        write_at(saver, &stored, "2", "~b", &[("ch", value(1)), ("ch", value(2))]).await?;
        write_at(saver, &stored, "1", "~c", &[("ch", value(3))]).await?;
        write_at(saver, &stored, "3", "~a", &[("__resume__", value(4))]).await?;
        // The first of these is replaced, the others are kept.
        write_at(saver, &stored, "3", "~a", &[("__resume__", value(5))]).await?;
        write_at(saver, &stored, "1", "~c", &[("ch", value(6)), ("ch", value(7))]).await?;
        let tuple = read(saver, &stored).await?;
        let expected = [
            ("3", "__resume__", value(5)),
            ("2", "ch", value(1)),
            ("2", "ch", value(2)),
            ("1", "ch", value(3)),
            ("1", "ch", value(7)),
        ];
        let expected: Vec<_> =
            expected.iter().map(|(task, channel, value)| (*task, *channel, value)).collect();
        ensure_eq!(triples(&tuple.pending_writes), expected, "writes");
    }
    Ok(())
}

async fn histories(ctx: Ctx) -> Done {
    for handle in Handle::all(&ctx).await? {
        let stored = handle.chain(&ctx.thread(), 6, &[2, 4], true).await?;
        for (at, seed) in [(6, Some(4)), (4, Some(2)), (2, None)] {
            let (target, _) = prepared(stored.get(at - 1))?;
            let found = handle.history(target, "log").await?;
            ensure_eq!(found.seed, seed.map(|seed| handle.foreign.snapshot(seed)), "seed at {at}");
            let until = i64::try_from(at).unwrap_or_default();
            let expected: Vec<_> = (seed.unwrap_or(1)..until)
                .flat_map(|step| [handle.foreign.value(step), handle.foreign.value(-step)])
                .collect();
            let found: Vec<_> = found.writes.into_iter().map(|write| write.value).collect();
            ensure_eq!(found, expected, "writes at {at}");
            let plain = handle.history(target, "plain").await?;
            ensure_eq!(plain.seed, Some(handle.foreign.value(until - 1)), "plain seed at {at}");
        }
    }
    Ok(())
}

async fn encrypted_values_are_not_encrypted_again(ctx: Ctx) -> Done {
    for cipher in ciphers()? {
        let handle = Handle::open(&ctx, "msgpack+aes", Some(cipher)).await?;
        let config = CheckpointConfig::new(ctx.thread());
        let made = checkpoint(&[("a", handle.foreign.value(1))]);
        expect_kind(handle.put(&config, &made, &metadata(0)).await, ErrorKind::Crypto, "put")?;
        let ahead = config.clone().with_checkpoint_id(made.id);
        let refused = write(&handle.saver, &ahead, "task", &[("a", handle.foreign.value(1))]).await;
        expect_kind(refused, ErrorKind::Crypto, "put_writes")?;
        ensure_eq!(handle.saver.get_tuple(&config).await?, None, "refused, but stored");
    }
    Ok(())
}

async fn raw_bytes_contain_no_plaintext(ctx: Ctx) -> Done {
    let target =
        if ctx.target().offers(Facility::Fresh) { ctx.target().fresh().await? } else { ctx.target().clone() };
    let is_whole = target.offers(Facility::WholeCheckpoints);
    for cipher in ciphers()? {
        let options = OpenOptions { opaque_values: true, ..OpenOptions::with_cipher(cipher) };
        let saver = target.open(options).await?;
        saver.setup().await?;
        let canary = format!("canary-{}", random());
        let typed = TypedBytes::new("own", canary.clone().into_bytes());
        let made = if is_whole {
            opaque::checkpoint(random(), typed.clone())
        } else {
            checkpoint(&[
                ("blob", typed.clone().into()),
                ("snapshot", typed.clone().into()),
                ("scalar", canary.as_str().into()),
            ])
        };
        let config = CheckpointConfig::new(ctx.thread());
        let options = PutOptions::default().delta_snapshots(["snapshot"]);
        let stored = saver.put_with(&config, &made, &metadata(0), &made.channel_versions, &options).await?;
        write(&saver, &stored, "task", &[("blob", typed.into())]).await?;
        read(&saver, &stored).await?;
        let raw = target.raw().await?;
        let holds = |needle: &[u8]| raw.windows(needle.len()).any(|window| window == needle);
        ensure!(!holds(canary.as_bytes()), "the canary is in the raw bytes");
        ensure!(holds(stored.thread_id().as_bytes()), "the raw bytes lack the thread's id");
    }
    Ok(())
}

async fn moved_rows_do_not_decrypt(ctx: Ctx) -> Done {
    let [_, gcm] = ciphers()?;
    let handle = Handle::open(&ctx, "own", Some(gcm)).await?;
    let (from, to) = (ctx.thread(), ctx.thread());
    let made = checkpoint(&[("a", handle.foreign.value(1))]);
    let stored = handle.put(&CheckpointConfig::new(from.clone()), &made, &metadata(0)).await?;
    ensure_eq!(read(&handle.saver, &stored).await?.checkpoint, handle.form(&made), "in its place");
    ctx.target().move_rows(&from, &to).await?;
    let moved = handle.saver.get_tuple(&CheckpointConfig::new(to)).await;
    expect_kind(moved, ErrorKind::Crypto, "the moved checkpoint")
}

async fn copies(ctx: Ctx) -> Done {
    for handle in Handle::all(&ctx).await? {
        let (source, target) = (ctx.thread(), ctx.thread());
        handle.chain(&source, 4, &[2], true).await?;
        let expected = handle.listed(&source).await?;
        let history = handle.history(&CheckpointConfig::new(source.clone()), "log").await?;
        handle.saver.copy_thread(&source, &target).await?;
        handle.saver.delete_thread(&source).await?;
        ensure_eq!(handle.listed(&source).await?, [], "the source");
        let found = handle.listed(&target).await?;
        ensure_eq!(found.len(), expected.len(), "number of checkpoints");
        for (found, expected) in found.iter().zip(&expected) {
            ensure_eq!(found.checkpoint, expected.checkpoint, "checkpoint");
            ensure_eq!(found.pending_writes, expected.pending_writes, "writes");
            ensure_eq!(found.parent_checkpoint_id(), expected.parent_checkpoint_id(), "parent");
        }
        ensure_eq!(handle.history(&CheckpointConfig::new(target), "log").await?, history, "history");
    }
    Ok(())
}

async fn delete_for_runs(ctx: Ctx) -> Done {
    for handle in Handle::all(&ctx).await? {
        let (thread_id, run) = (ctx.thread(), random());
        let mut config = CheckpointConfig::new(thread_id.clone());
        let mut kept = Vec::new();
        for step in 0..4 {
            let made = at_version(step, &[("plain", handle.foreign.value(step))]);
            let run_id = if step % 2 == 0 { run.clone() } else { random() };
            config = handle.put(&config, &made, &metadata(step).with("run_id", &*run_id)).await?;
            write(&handle.saver, &config, "task", &[("ch", handle.foreign.value(step))]).await?;
            if step % 2 == 1 {
                kept.insert(0, handle.form(&made));
            }
        }
        handle.saver.delete_for_runs(&[&run]).await?;
        let listed = handle.listed(&thread_id).await?;
        ensure!(listed.iter().map(|tuple| &tuple.checkpoint).eq(&kept), "what is left differs");
        ensure!(listed.iter().all(|tuple| tuple.pending_writes.len() == 1), "the writes differ");
    }
    Ok(())
}

/// Prunes a chain, and checks the number of remaining checkpoints and that the newest is unchanged.
async fn prune(ctx: &Ctx, handle: &Handle, snapshots: &[i64], counted: bool, left: usize) -> Done {
    let thread_id = ctx.thread();
    let stored = handle.chain(&thread_id, 6, snapshots, counted).await?;
    let (newest, made) = prepared(stored.last())?;
    let before = handle.history(newest, "log").await?;
    let writes = read(&handle.saver, newest).await?.pending_writes;
    for time in ["first", "second"] {
        handle.keep_latest(&thread_id).await?;
        let found = ids(&handle.saver, ListQuery::thread(thread_id.clone())).await?;
        let expected: Vec<_> = stored.iter().rev().take(left).map(|(config, _)| id_of(config)).collect();
        ensure_eq!(found, expected, "what the {time} prune left");
        let tuple = read(&handle.saver, newest).await?;
        ensure_eq!(&tuple.checkpoint, made, "the newest after the {time} prune");
        ensure_eq!(tuple.pending_writes, writes, "its writes after the {time} prune");
        if left > 1 {
            ensure_eq!(handle.history(newest, "log").await?, before, "history after the {time} prune");
        }
    }
    Ok(())
}

async fn prune_without_deltas(ctx: Ctx) -> Done {
    for handle in Handle::all(&ctx).await? {
        prune(&ctx, &handle, &[], false, 1).await?;
    }
    Ok(())
}

async fn prune_with_counted_deltas(ctx: Ctx) -> Done {
    for handle in Handle::all(&ctx).await? {
        prune(&ctx, &handle, &[3], true, 4).await?;
        prune(&ctx, &handle, &[], true, 6).await?;
        prune(&ctx, &handle, &[6], true, 1).await?;
    }
    Ok(())
}

async fn prune_recognizes_declared_snapshots(ctx: Ctx) -> Done {
    for handle in Handle::all(&ctx).await? {
        prune(&ctx, &handle, &[2, 4], false, 3).await?;
    }
    Ok(())
}

async fn without_a_reader(ctx: Ctx) -> Done {
    let options = OpenOptions { opaque_values: true, ..OpenOptions::default() };
    let blind = ctx.target().open(options).await?;
    for tag in TAGS {
        let handle = Handle::open(&ctx, tag, None).await?;
        let (thread_id, copy) = (ctx.thread(), ctx.thread());
        let stored = handle.chain(&thread_id, 3, &[2], true).await?;
        let (newest, _) = prepared(stored.last())?;
        let expected = handle.listed(&thread_id).await?;
        expect_kind(
            blind.prune(&[&thread_id], PruneStrategy::KeepLatest).await,
            ErrorKind::Unsupported,
            "prune",
        )?;
        let history = blind.get_delta_channel_history(newest, &["log"]).await;
        expect_kind(history, ErrorKind::Unsupported, "history")?;
        ensure_eq!(blind.list_all(ListQuery::thread(thread_id.clone())).await?, expected, "after prune");
        blind.copy_thread(&thread_id, &copy).await?;
        ensure_eq!(handle.listed(&copy).await?.len(), 3, "number of checkpoints in the copy");
        let threads: Vec<_> = blind.list_threads(ThreadQuery::all()).try_collect().await?;
        ensure!(threads.iter().any(|info| info.thread_id == copy), "the copy is not listed");
        blind.delete_for_runs(&[&random()]).await?;
        blind.prune(&[&thread_id], PruneStrategy::Delete).await?;
        ensure_eq!(handle.listed(&thread_id).await?, [], "after prune with Delete");
    }
    Ok(())
}

async fn a_reader_that_fails(ctx: Ctx) -> Done {
    let handle = Handle::open(&ctx, "own", None).await?;
    let thread_id = ctx.thread();
    let stored = handle.chain(&thread_id, 3, &[2], true).await?;
    let (newest, _) = prepared(stored.last())?;
    let expected = handle.listed(&thread_id).await?;
    let other = Handle::open(&ctx, "another", None).await?;
    expect_kind(other.keep_latest(&thread_id).await, ErrorKind::Codec, "prune")?;
    let history = other.saver.get_delta_channel_history(newest, &["log"]).await;
    expect_kind(history, ErrorKind::Codec, "history")?;
    ensure_eq!(handle.listed(&thread_id).await?, expected, "after prune");
    Ok(())
}

async fn messagepack_needs_no_reader(ctx: Ctx) -> Done {
    let options = OpenOptions { opaque_values: true, ..OpenOptions::default() };
    let saver = ctx.target().open(options).await?;
    let thread_id = ctx.thread();
    let mut config = CheckpointConfig::new(thread_id.clone());
    for step in 1..=5 {
        let mut made = checkpoint(&[]);
        made.channel_versions.insert("log".into(), step.into());
        if step == 3 {
            made.channel_values.insert("log".into(), snapshot(&list(&[step]))?);
        }
        let typed = TypedBytes::msgpack(document::encode_checkpoint(&made)?);
        config = put(&saver, &config, &opaque::checkpoint(made.id, typed)).await?;
    }
    saver.prune(&[&thread_id], PruneStrategy::KeepLatest).await?;
    ensure_eq!(ids(&saver, ListQuery::thread(thread_id)).await?.len(), 3, "number of checkpoints left");
    let history = saver.get_delta_channel_history(&config, &["log"]).await?;
    let seed = history.get("log").and_then(|history| history.seed.clone());
    ensure_eq!(seed, Some(snapshot(&list(&[3]))?), "seed");
    Ok(())
}

async fn a_thread_of_plain_and_opaque_savers(ctx: Ctx) -> Done {
    let handle = Handle::open(&ctx, "own", None).await?;
    let values = [("list", encode(&list(&[1]))?), ("text", "text".into()), ("int", 5.into())];
    let form = |made: &Checkpoint| {
        if !handle.is_whole {
            return Ok(made.clone());
        }
        let typed = TypedBytes::msgpack(document::encode_checkpoint(made)?);
        Ok::<_, checkpoint_core::Error>(opaque::checkpoint(made.id.clone(), typed))
    };
    let first = checkpoint(&values);
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &first).await?;
    write(ctx.saver(), &stored, "task", &values).await?;
    let tuple = read(&handle.saver, &stored).await?;
    ensure_eq!(tuple.checkpoint, form(&first)?, "the plain saver's checkpoint, opaque");
    for (write, (channel, value)) in tuple.pending_writes.iter().zip(&values) {
        ensure_eq!(write.value.to_typed()?, value.to_typed()?, "the plain saver's write to {channel:?}");
    }
    let second = at_version(2, &values);
    let versions = second.channel_versions.clone();
    let next = handle.saver.put(&stored, &form(&second)?, &metadata(1), &versions).await?;
    let typed: Vec<_> = values
        .iter()
        .map(|(channel, value)| Ok((*channel, ChannelValue::Blob(value.to_typed()?))))
        .collect::<checkpoint_core::Result<_>>()?;
    write(&handle.saver, &next, "task", &typed).await?;
    let tuple = read(ctx.saver(), &next).await?;
    ensure_eq!(tuple.checkpoint, second, "the opaque saver's checkpoint, plain");
    let expected: Vec<_> = values.iter().map(|(channel, value)| ("task", *channel, value)).collect();
    ensure_eq!(triples(&tuple.pending_writes), expected, "the opaque saver's writes, plain");
    Ok(())
}
