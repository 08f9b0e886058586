//! Ciphers: no plaintext is stored, keys rotate, rows that were moved do not decrypt.

use std::time::Duration;

use checkpoint_core::retention::{RetainSummary, Retention};
use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, CheckpointConfig, Cipher, ErrorKind, ListQuery, PruneStrategy, Result,
    RetainOptions, SaverExt, ThreadQuery, Value,
};
use futures_util::TryStreamExt;

use crate::case::{Case, Ctx, Need};
use crate::fixture::{
    Done, at_version, bytes, chain, checkpoint, encode, expect_kind, ids, list, map, prepared, put, read,
    snapshot, triples, value, write,
};
use crate::target::{Facility, OpenOptions, Saver};

const CIPHER: Need = Need::Target(Facility::Cipher);

cases!("encryption", [CIPHER];
    raw_bytes_contain_no_plaintext [Need::Target(Facility::Raw)],
    key_rotation,
    a_wrong_key_fails,
    ciphertext_without_a_cipher,
    a_cipher_reads_unencrypted_threads,
    a_thread_with_encrypted_and_unencrypted_values,
    rows_moved_between_threads_do_not_decrypt [Need::Target(Facility::MoveRows)],
    copies_are_reencrypted_for_their_row [Need::CopyThread],
    prune_and_history [Need::Prune],
    a_thread_that_cannot_be_opened_stops_no_retention_run [Need::Retain],
    metadata_filters_work,
    listing_many,
    keys_of_every_size,
);

const OLD: [u8; 32] = [1; 32];
const NEW: [u8; 32] = [2; 32];

fn aes() -> Result<Cipher> {
    Cipher::aes(&OLD)
}

fn aes_gcm() -> Result<Cipher> {
    Cipher::aes_gcm("2026-11", &OLD)
}

/// Both ciphers, each with its own key.
fn both() -> Result<[(&'static str, Cipher); 2]> {
    Ok([("aes", aes()?), ("aes_gcm", aes_gcm()?)])
}

async fn open(ctx: &Ctx, cipher: &Cipher) -> Result<Saver> {
    ctx.target().open(OpenOptions::with_cipher(cipher.clone())).await
}

/// Repeats the cases of other groups on handles with each cipher.
pub(super) fn on_ciphers(cases: &[Case]) -> Vec<Case> {
    let of = |group: &'static str, cipher: fn() -> Result<Cipher>| {
        cases.iter().map(move |case| case.encrypted(group, cipher))
    };
    of("encryption::aes", aes).chain(of("encryption::aes_gcm", aes_gcm)).collect()
}

async fn raw_bytes_contain_no_plaintext(ctx: Ctx) -> Done {
    // Searching an empty database is faster than searching one in use.
    let offers_fresh = ctx.target().offers(Facility::Fresh);
    let target = if offers_fresh { ctx.target().fresh().await? } else { ctx.target().clone() };
    for (name, cipher) in both()? {
        let saver = target.open(OpenOptions::with_cipher(cipher)).await?;
        saver.setup().await?;
        let canary = format!("canary-{}", crate::fixture::random());
        let text = || Value::from(canary.as_str());
        let values = [
            ("scalar", ChannelValue::from(canary.as_str())),
            ("blob", encode(&map(&[("nested", text())]))?),
            ("bytes", bytes(canary.clone().into_bytes())),
            ("snapshot", snapshot(&text())?),
        ];
        let mut made = checkpoint(&values);
        made.extra.insert("extra".into(), canary.as_str().into());
        let stored = put(&saver, &CheckpointConfig::new(ctx.thread()), &made).await?;
        let next = at_version(2, &values);
        let stored = put(&saver, &stored, &next).await?;
        write(&saver, &stored, "task", &values).await?;
        write(&saver, &stored, "task", &[("__error__", canary.as_str().into())]).await?;
        ensure_eq!(read(&saver, &stored).await?.checkpoint, next, "checkpoint");
        let raw = target.raw().await?;
        ensure!(!holds(&raw, canary.as_bytes()), "{name}: the canary is in the raw bytes");
        // Checks that the search itself works: metadata is not encrypted.
        let thread_id = stored.thread_id().as_bytes();
        ensure!(holds(&raw, thread_id), "{name}: the raw bytes lack the thread's id");
    }
    Ok(())
}

fn holds(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

async fn key_rotation(ctx: Ctx) -> Done {
    let rings: [(Cipher, Cipher, Cipher); 3] = [
        (Cipher::aes(&OLD)?, Cipher::aes(&NEW)?.with_aes_decryption_key(&OLD)?, Cipher::aes(&NEW)?),
        (
            Cipher::aes_gcm("old", &OLD)?,
            Cipher::aes_gcm("new", &NEW)?.with_aes_gcm_decryption_key("old", &OLD)?,
            Cipher::aes_gcm("new", &NEW)?,
        ),
        (
            Cipher::aes(&OLD)?,
            Cipher::aes_gcm("new", &NEW)?.with_aes_decryption_key(&OLD)?,
            Cipher::aes_gcm("new", &NEW)?,
        ),
    ];
    for (old, ring, new) in rings {
        let (old, ring, new) = (open(&ctx, &old).await?, open(&ctx, &ring).await?, open(&ctx, &new).await?);
        let config = CheckpointConfig::new(ctx.thread());
        let first = checkpoint(&[("a", encode(&list(&[1]))?), ("s", "old".into())]);
        let stored = put(&old, &config, &first).await?;
        write(&old, &stored, "task", &[("ch", "old".into())]).await?;
        ensure_eq!(read(&ring, &stored).await?.checkpoint, first, "the old checkpoint through the ring");
        ensure_eq!(read(&ring, &stored).await?.pending_writes.len(), 1, "the old write through the ring");
        let second = at_version(2, &[("a", encode(&list(&[2]))?), ("s", "new".into())]);
        let next = put(&ring, &stored, &second).await?;
        ensure_eq!(read(&new, &next).await?.checkpoint, second, "the new checkpoint with the new key alone");
        expect_kind(
            new.get_tuple(&stored).await,
            ErrorKind::Crypto,
            "the old checkpoint with the new key alone",
        )?;
        expect_kind(
            old.get_tuple(&next).await,
            ErrorKind::Crypto,
            "the new checkpoint with the old key alone",
        )?;
    }
    Ok(())
}

async fn a_wrong_key_fails(ctx: Ctx) -> Done {
    let wrong = [Cipher::aes(&NEW)?, Cipher::aes_gcm("2026-11", &NEW)?, Cipher::aes_gcm("other", &OLD)?];
    for (name, cipher) in both()? {
        let saver = open(&ctx, &cipher).await?;
        let thread_id = ctx.thread();
        let made = checkpoint(&[("a", encode(&list(&[1]))?), ("s", "scalar".into())]);
        let stored = put(&saver, &CheckpointConfig::new(thread_id.clone()), &made).await?;
        for wrong in &wrong {
            let wrong = open(&ctx, wrong).await?;
            expect_kind(wrong.get_tuple(&stored).await, ErrorKind::Crypto, name)?;
            let listed = wrong.list_all(ListQuery::thread(thread_id.clone())).await;
            expect_kind(listed, ErrorKind::Crypto, name)?;
        }
        ensure_eq!(read(&saver, &stored).await?.checkpoint, made, "with the right key");
    }
    Ok(())
}

async fn ciphertext_without_a_cipher(ctx: Ctx) -> Done {
    for (name, cipher) in both()? {
        let saver = open(&ctx, &cipher).await?;
        let stored =
            put(&saver, &CheckpointConfig::new(ctx.thread()), &checkpoint(&[("s", "scalar".into())])).await?;
        expect_kind(ctx.saver().get_tuple(&stored).await, ErrorKind::Crypto, name)?;
        // An encrypted write on an unencrypted checkpoint.
        let clear = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
        write(&saver, &clear, "task", &[("ch", 1.into())]).await?;
        expect_kind(ctx.saver().get_tuple(&clear).await, ErrorKind::Crypto, name)?;
        // Deleting needs no key.
        ctx.saver().delete_thread(stored.thread_id()).await?;
        ensure_eq!(saver.get_tuple(&stored).await?, None, "after delete_thread");
    }
    Ok(())
}

async fn a_cipher_reads_unencrypted_threads(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    for config in chain(ctx.saver(), &thread_id, "", 3).await? {
        write(ctx.saver(), &config, "task", &[("ch", encode(&list(&[1]))?)]).await?;
    }
    let expected = ctx.saver().list_all(ListQuery::thread(thread_id.clone())).await?;
    for (name, cipher) in both()? {
        let saver = open(&ctx, &cipher).await?;
        ensure_eq!(saver.list_all(ListQuery::thread(thread_id.clone())).await?, expected, "{name}");
    }
    Ok(())
}

async fn a_thread_with_encrypted_and_unencrypted_values(ctx: Ctx) -> Done {
    for (name, cipher) in both()? {
        let saver = open(&ctx, &cipher).await?;
        let first = checkpoint(&[("kept", encode(&list(&[1]))?)]);
        let clear = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &first).await?;
        // The row of the unchanged channel is kept, unencrypted.
        let second =
            checkpoint(&[("kept", encode(&list(&[1]))?)]).with_channel("new", encode(&list(&[2]))?, 2);
        let changed = checkpoint_core::ChannelVersions::from_iter([("new".into(), 2.into())]);
        let sealed = saver.put(&clear, &second, &crate::fixture::metadata(1), &changed).await?;
        write(&saver, &clear, "task", &[("ch", "sealed".into())]).await?;
        let found = saver.list_all(ListQuery::thread(clear.thread_id())).await?;
        let found: Vec<_> = found.into_iter().map(|tuple| tuple.checkpoint).collect();
        ensure_eq!(found, [second, first], "{name}: checkpoints");
        let tuple = read(&saver, &clear).await?;
        ensure_eq!(triples(&tuple.pending_writes), [("task", "ch", &"sealed".into())], "{name}: writes");
        expect_kind(
            ctx.saver().get_tuple(&sealed).await,
            ErrorKind::Crypto,
            "the sealed one without a cipher",
        )?;
    }
    Ok(())
}

async fn rows_moved_between_threads_do_not_decrypt(ctx: Ctx) -> Done {
    let saver = open(&ctx, &aes_gcm()?).await?;
    let (from, to) = (ctx.thread(), ctx.thread());
    let made = checkpoint(&[("a", encode(&list(&[1]))?), ("s", "scalar".into())]);
    let stored = put(&saver, &CheckpointConfig::new(from.clone()), &made).await?;
    ensure_eq!(read(&saver, &stored).await?.checkpoint, made, "in its place");
    ctx.target().move_rows(&from, &to).await?;
    ensure_eq!(saver.get_tuple(&stored).await?, None, "where it was");
    let moved = CheckpointConfig::new(to.clone());
    expect_kind(saver.get_tuple(&moved).await, ErrorKind::Crypto, "the moved checkpoint")?;
    expect_kind(saver.list_all(ListQuery::thread(to)).await, ErrorKind::Crypto, "its listing")?;
    // Only a write, moved onto a checkpoint that decrypts.
    let (from, to) = (ctx.thread(), ctx.thread());
    let made = checkpoint(&[]);
    let ahead = CheckpointConfig::new(from.clone()).with_checkpoint_id(made.id.clone());
    write(&saver, &ahead, "task", &[("ch", "sealed".into())]).await?;
    ctx.target().move_rows(&from, &to).await?;
    let stored = put(&saver, &CheckpointConfig::new(to), &made).await?;
    expect_kind(saver.get_tuple(&stored).await, ErrorKind::Crypto, "the moved write")
}

async fn copies_are_reencrypted_for_their_row(ctx: Ctx) -> Done {
    for (name, cipher) in both()? {
        let saver = open(&ctx, &cipher).await?;
        let (source, target) = (ctx.thread(), ctx.thread());
        let made = checkpoint(&[("a", encode(&list(&[1]))?), ("s", "scalar".into())]);
        let stored = put(&saver, &CheckpointConfig::new(source.clone()), &made).await?;
        write(&saver, &stored, "task", &[("ch", encode(&list(&[2]))?)]).await?;
        saver.copy_thread(&source, &target).await?;
        saver.delete_thread(&source).await?;
        let copy = read(&saver, &CheckpointConfig::new(target)).await?;
        ensure_eq!(copy.checkpoint, made, "{name}: the copy");
        ensure_eq!(
            triples(&copy.pending_writes),
            [("task", "ch", &encode(&list(&[2]))?)],
            "{name}: its writes"
        );
        expect_kind(
            ctx.saver().get_tuple(&copy.config).await,
            ErrorKind::Crypto,
            "the copy without a cipher",
        )?;
    }
    Ok(())
}

async fn prune_and_history(ctx: Ctx) -> Done {
    for (name, cipher) in both()? {
        let saver = open(&ctx, &cipher).await?;
        let thread_id = ctx.thread();
        let mut config = CheckpointConfig::new(thread_id.clone());
        for version in 1..=5_i64 {
            let mut made = at_version(version, &[("plain", "x".into())]);
            made.channel_versions.insert("log".into(), version.into());
            let mut metadata = crate::fixture::metadata(version);
            if version == 3 {
                made.channel_values.insert("log".into(), snapshot(&list(&[3]))?);
            } else {
                metadata.insert("counters_since_delta_snapshot", map(&[("log", list(&[1, 1]))]));
            }
            config = crate::fixture::put_with(&saver, &config, &made, &metadata).await?;
            write(&saver, &config, "task", &[("log", version.into())]).await?;
        }
        let before = saver.get_delta_channel_history(&config, &["log"]).await?;
        ensure_eq!(
            before.get("log").map(|history| history.writes.len()),
            Some(2),
            "{name}: number of writes"
        );
        saver.prune(&[&thread_id], PruneStrategy::KeepLatest).await?;
        ensure_eq!(saver.get_delta_channel_history(&config, &["log"]).await?, before, "{name}: history");
        ensure_eq!(ids(&saver, ListQuery::thread(thread_id)).await?.len(), 3, "{name}: checkpoints left");
    }
    Ok(())
}

/// Without its key, a thread is handled as with it, or fails as it is; the others are handled.
async fn a_thread_that_cannot_be_opened_stops_no_retention_run(ctx: Ctx) -> Done {
    let plain = ctx.target().open(OpenOptions::default()).await?;
    let sealing = open(&ctx, &aes_gcm()?).await?;
    let other = open(&ctx, &Cipher::aes_gcm("other", &NEW)?).await?;
    let last_two = Retention::new().keep_last(2);
    let whole = Retention::new().idle_for(Duration::from_millis(1)).include_waiting(true);
    for (stranger, policy, expected) in
        [(&plain, &last_two, 2), (&other, &last_two, 2), (&plain, &whole, 0), (&other, &whole, 0)]
    {
        let prefix = ctx.thread();
        let mut sealed = Vec::new();
        for number in 0..9 {
            let thread_id = ctx.use_thread(&format!("{prefix}-{number}"));
            // The stranger's own threads are before and behind each of them.
            let saver = if number % 2 == 1 { &sealing } else { stranger };
            let stored = chain(saver, &thread_id, "", 5).await?;
            write(saver, prepared(stored.last())?, "task", &[("ch", "value".into())]).await?;
            if number % 2 == 1 {
                let before = saver.list_all(ListQuery::thread(thread_id.clone())).await?;
                sealed.push((thread_id, before));
            }
        }
        // Everything has an age.
        tokio::time::sleep(Duration::from_millis(5)).await;
        for dry_run in [true, false] {
            let options = RetainOptions::default().dry_run(dry_run);
            let query = ThreadQuery::all().prefix(prefix.clone());
            let batches = stranger.retain_all(policy.clone(), options, query);
            let summary: RetainSummary = batches.try_collect().await?;
            ensure_eq!(summary.failures, summary.failed.len() as u64, "failures");
            ensure_eq!(summary.report.threads + summary.failures, 9, "threads");
            for (thread_id, error) in summary.failed {
                ensure!(sealed.iter().any(|(sealed, _)| *sealed == thread_id), "{thread_id} failed: {error}");
                ensure_eq!(error.kind(), ErrorKind::Crypto, "the error of {thread_id}: {error}");
                if !dry_run {
                    let before = sealed.iter().find(|(sealed, _)| *sealed == thread_id);
                    let found = sealing.list_all(ListQuery::thread(thread_id.clone())).await?;
                    ensure_eq!(Some(&found), before.map(|(_, before)| before), "a thread that failed");
                }
            }
        }
        // With the key, the rest is handled, too.
        let query = ThreadQuery::all().prefix(prefix.clone());
        let batches = sealing.retain_all(policy.clone(), RetainOptions::default(), query);
        let summary: RetainSummary = batches.try_collect().await?;
        ensure!(
            summary.failed.iter().all(|(failed, _)| sealed.iter().all(|(sealed, _)| sealed != failed)),
            "failed: {:?}",
            summary.failed
        );
        for (thread_id, before) in &sealed {
            let found = sealing.list_all(ListQuery::thread(thread_id.clone())).await?;
            ensure_eq!(Some(&*found), before.get(..expected), "what is left of {thread_id}");
        }
        for number in (0..9).step_by(2) {
            let count = stranger.list_all(ListQuery::thread(format!("{prefix}-{number}"))).await?.len();
            ensure_eq!(count, expected, "checkpoints of one that can be opened");
        }
    }
    Ok(())
}

async fn metadata_filters_work(ctx: Ctx) -> Done {
    for (name, cipher) in both()? {
        let saver = open(&ctx, &cipher).await?;
        let thread_id = ctx.thread();
        chain(&saver, &thread_id, "", 4).await?;
        let query = ListQuery::thread(thread_id).filter(checkpoint_core::Filter::new().eq("source", "input"));
        ensure_eq!(ids(&saver, query).await?.len(), 2, "{name}: matches");
    }
    Ok(())
}

async fn listing_many(ctx: Ctx) -> Done {
    for (name, cipher) in both()? {
        let saver = open(&ctx, &cipher).await?;
        let thread_id = ctx.thread();
        let expected = crate::fixture::newest_first(&chain(&saver, &thread_id, "", 200).await?);
        let found = saver.list_all(ListQuery::thread(thread_id)).await?;
        ensure!(found.iter().map(|tuple| &tuple.checkpoint.id).eq(expected.iter()), "{name}: the ids differ");
        for (tuple, step) in found.iter().zip((0..200_i64).rev()) {
            ensure_eq!(value(tuple, "step")?, step.into(), "{name}: value");
        }
    }
    Ok(())
}

async fn keys_of_every_size(ctx: Ctx) -> Done {
    for size in [16, 24, 32] {
        let saver = open(&ctx, &Cipher::aes(&vec![7; size])?).await?;
        let made = checkpoint(&[("a", bytes(vec![7; size]))]);
        let stored = put(&saver, &CheckpointConfig::new(ctx.thread()), &made).await?;
        ensure_eq!(read(&saver, &stored).await?.checkpoint, made, "with a key of {size} bytes");
    }
    Ok(())
}
