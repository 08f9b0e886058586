//! Values are sealed again with another key, in place: nothing is lost, whatever happens meanwhile.

mod rotation;

use checkpoint_core::{
    BaseCheckpointSaver, ChannelVersions, CheckpointConfig, CheckpointLayout, Cipher, ErrorKind, ListQuery,
    PruneStrategy, RekeyOptions, RekeyReport, SaverExt, SealedBy,
};
use futures_util::TryStreamExt;

use self::rotation::{
    NEW, OLD, Rotation, contents, dry_run, fill, gcm_ring, new_gcm, old_gcm, open, rekey, total,
};
use crate::case::{Ctx, Failure, Need};
use crate::fixture::{
    Cuts, Done, at_version, bytes, chain, checkpoint, encode, expect_kind, list, map, metadata, prepared,
    put, put_with, random, read, snapshot, triples, write,
};
use crate::target::{Facility, OpenOptions};

cases!("rekey", [Need::Rekey, Need::Target(Facility::Cipher)];
    every_value_is_readable_with_only_the_new_key,
    a_second_run_has_nothing_to_do,
    writes_without_a_checkpoint,
    plain_values_are_sealed [Need::Target(Facility::Raw), Need::Target(Facility::Fresh)],
    plain_values_of_a_thread_that_goes_on,
    snapshots_stay_snapshots [Need::Prune],
    a_dry_run_changes_nothing,
    a_missing_key,
    a_missing_cipher,
    a_value_that_does_not_open,
    threads_that_do_not_exist,
    large_and_many_values,
    interrupted_runs,
    concurrent_writers,
    concurrent_delete [Need::Prune],
    every_thread [Need::Target(Facility::Fresh)],
    opaque_values [Need::Target(Facility::OpaqueValues)],
);

async fn every_value_is_readable_with_only_the_new_key(ctx: Ctx) -> Done {
    for rotation in Rotation::all(&ctx).await? {
        let what = rotation.what();
        let thread_id = ctx.thread();
        fill(&rotation.old, &thread_id).await?;
        let expected = contents(&rotation.ring, &thread_id).await?;
        ensure_eq!(expected.0.len(), 8, "{what}: checkpoints");
        let before = dry_run(&rotation.ring, &thread_id).await?;
        let of_old: Vec<_> = before.values.keys().collect();
        ensure_eq!(of_old, [&rotation.sealed_before], "{what}: keys before");
        ensure_eq!(before.remaining, total(&before), "{what}: left before");

        let report = rekey(&rotation.ring, &thread_id).await?;
        ensure_eq!(report.resealed, total(&before), "{what}: values sealed");
        ensure_eq!(report.remaining, 0, "{what}: values left");
        let of_new: Vec<_> = report.values.keys().collect();
        ensure_eq!(of_new, [&rotation.sealed_by], "{what}: keys after");
        rotation.check(&thread_id, &expected).await?;
    }
    Ok(())
}

async fn a_second_run_has_nothing_to_do(ctx: Ctx) -> Done {
    for rotation in Rotation::all(&ctx).await? {
        let what = rotation.what();
        let thread_id = ctx.thread();
        fill(&rotation.old, &thread_id).await?;
        let first = rekey(&rotation.ring, &thread_id).await?;
        let expected = contents(&rotation.new, &thread_id).await?;
        let second = rekey(&rotation.ring, &thread_id).await?;
        ensure_eq!((second.resealed, second.remaining), (0, 0), "{what}: the second run");
        ensure_eq!(second.values, first.values, "{what}: values");
        // Without the old key, too.
        let third = rekey(&rotation.new, &thread_id).await?;
        ensure_eq!(third, second, "{what}: the third run");
        rotation.check(&thread_id, &expected).await?;
        // New values need nothing, old ones are found again.
        let config = CheckpointConfig::new(thread_id.clone());
        put(&rotation.ring, &config, &checkpoint(&[("new", encode(&list(&[1]))?)])).await?;
        ensure_eq!(rekey(&rotation.ring, &thread_id).await?.resealed, 0, "{what}: after a put");
        put(&rotation.old, &config, &checkpoint(&[("late", encode(&list(&[1]))?)])).await?;
        // A backend that seals the checkpoint, too, counts two.
        let late = dry_run(&rotation.ring, &thread_id).await?.remaining;
        ensure!((1..=2).contains(&late), "{what}: {late} late values");
        ensure_eq!(rekey(&rotation.ring, &thread_id).await?.resealed, late, "{what}: a late value");
    }
    Ok(())
}

async fn writes_without_a_checkpoint(ctx: Ctx) -> Done {
    for rotation in Rotation::all(&ctx).await? {
        let what = rotation.what();
        let thread_id = ctx.thread();
        let made = checkpoint(&[]);
        let ahead = CheckpointConfig::new(thread_id.clone()).with_checkpoint_id(made.id.clone());
        write(&rotation.old, &ahead, "task", &[("ch", "value".into()), ("items", encode(&list(&[1]))?)])
            .await?;
        let query = checkpoint_core::ThreadQuery::all().after(&thread_id[..thread_id.len() - 1]);
        let listed: Vec<_> = rotation.ring.list_thread_ids(query).try_collect().await?;
        ensure!(listed.contains(&thread_id), "{what}: the thread is not listed");
        let report = rekey(&rotation.ring, &thread_id).await?;
        ensure_eq!((report.resealed, report.remaining), (2, 0), "{what}: writes");
        let stored = put(&rotation.new, &CheckpointConfig::new(thread_id), &made).await?;
        let tuple = read(&rotation.new, &stored).await?;
        let items = encode(&list(&[1]))?;
        let expected = [("task", "ch", &"value".into()), ("task", "items", &items)];
        ensure_eq!(triples(&tuple.pending_writes), expected, "{what}: writes");
    }
    Ok(())
}

async fn plain_values_are_sealed(ctx: Ctx) -> Done {
    let canary = format!("canary-{}", random());
    for cipher in [new_gcm()?, Cipher::aes(&NEW)?] {
        let target = ctx.target().fresh().await?;
        let plain = target.open(OpenOptions::default()).await?;
        plain.setup().await?;
        let sealing = target.open(OpenOptions::with_cipher(cipher)).await?;
        let thread_id = ctx.thread();
        let mut config = CheckpointConfig::new(thread_id.clone());
        // More than one batch: later ones find the values of earlier ones.
        for step in 1..=40_i64 {
            let mut made = checkpoint(&[
                ("scalar", canary.as_str().into()),
                ("blob", encode(&map(&[("nested", canary.as_str().into())]))?),
                ("flag", true.into()),
                ("number", 0.5.into()),
            ])
            .with_channel("step", step, step);
            made.extra.insert("extra".into(), canary.as_str().into());
            made.extra.insert("nested".into(), encode(&map(&[("in", canary.as_str().into())]))?);
            config = put_with(&plain, &config, &made, &metadata(step)).await?;
            write(&plain, &config, "task", &[("ch", canary.as_str().into())]).await?;
        }
        let expected = contents(&plain, &thread_id).await?;
        ensure!(
            contains(&target.raw().await?, canary.as_bytes()),
            "the canary is not in the raw bytes at first"
        );
        let report = rekey(&sealing, &thread_id).await?;
        ensure!(report.resealed > 0 && report.remaining == 0, "{report:?}");
        if sealing.capabilities().layout != CheckpointLayout::Whole {
            // A file keeps replaced bytes for a while.
            let raw = target.raw().await?;
            ensure!(!contains(&raw, canary.as_bytes()), "the canary is still in the raw bytes");
            let has_flag = [&b"flag\": true"[..], b"flag\"\": true"].iter().any(|flag| contains(&raw, flag));
            ensure!(!has_flag, "a scalar is still in a document");
        }
        let tuples = contents(&sealing, &thread_id).await?;
        ensure_eq!(tuples, expected, "contents");
        expect_kind(plain.list_all(ListQuery::thread(thread_id.clone())).await, ErrorKind::Crypto, "plain")?;
        ensure_eq!(rekey(&sealing, &thread_id).await?.resealed, 0, "the second run");
        let (copy, fresh) = (ctx.thread(), dry_run(&sealing, &thread_id).await?);
        ensure_eq!(fresh.values.get(&SealedBy::Plain), None, "plain values");
        if sealing.capabilities().copy_thread {
            sealing.copy_thread(&thread_id, &copy).await?;
            ensure_eq!(dry_run(&sealing, &copy).await?.values, fresh.values, "values of a copy");
        }
    }
    Ok(())
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// Agents go on with a thread of which some values are sealed and some are not.
async fn plain_values_of_a_thread_that_goes_on(ctx: Ctx) -> Done {
    let sealing = ctx.target().open(OpenOptions::with_cipher(new_gcm()?)).await?;
    let thread_id = ctx.thread();
    let mut config = CheckpointConfig::new(thread_id.clone());
    for step in 1..=6_i64 {
        let made =
            checkpoint(&[("flag", true.into()), ("kept", "a text".into())]).with_channel("n", step, step);
        let mut changed: ChannelVersions = [("n".into(), step.into())].into_iter().collect();
        if step == 1 {
            changed.extend(["flag", "kept"].map(|channel| (channel.into(), 1.into())));
        }
        // In turns with and without the cipher: an unchanged value is inline here and a row there.
        let saver = if step % 2 == 0 { &sealing } else { ctx.saver() };
        config = saver.put(&config, &made, &metadata(step), &changed).await?;
        let expected = contents(&sealing, &thread_id).await?;
        if step % 3 == 0 {
            let report = rekey(&sealing, &thread_id).await?;
            ensure!(report.resealed > 0 && report.remaining == 0, "step {step}: {report:?}");
            ensure_eq!(report.values.get(&SealedBy::Plain), None, "step {step}: plain values");
        }
        ensure_eq!(contents(&sealing, &thread_id).await?, expected, "step {step}");
    }
    let first = prepared(contents(&sealing, &thread_id).await?.0.pop())?;
    ensure_eq!(crate::fixture::value(&first, "flag")?, true.into(), "the oldest value");
    Ok(())
}

/// Pruning keeps what delta channels need, so snapshots are recognized after they were sealed.
async fn snapshots_stay_snapshots(ctx: Ctx) -> Done {
    for rotation in Rotation::all(&ctx).await? {
        let what = rotation.what();
        let thread_id = ctx.thread();
        let mut config = CheckpointConfig::new(thread_id.clone());
        for version in 1..=5_i64 {
            let mut made = at_version(version, &[("plain", true.into())]);
            made.channel_versions.insert("log".into(), version.into());
            let mut metadata = metadata(version);
            if version == 3 {
                made.channel_values.insert("log".into(), snapshot(&list(&[3]))?);
            } else {
                metadata.insert("counters_since_delta_snapshot", map(&[("log", list(&[1, 1]))]));
            }
            config = put_with(&rotation.old, &config, &made, &metadata).await?;
            write(&rotation.old, &config, "task", &[("log", version.into())]).await?;
        }
        let before = rotation.ring.get_delta_channel_history(&config, &["log"]).await?;
        rekey(&rotation.ring, &thread_id).await?;
        ensure_eq!(
            rotation.new.get_delta_channel_history(&config, &["log"]).await?,
            before,
            "{what}: history"
        );
        rotation.new.prune(&[&thread_id], PruneStrategy::KeepLatest).await?;
        ensure_eq!(
            rotation.new.get_delta_channel_history(&config, &["log"]).await?,
            before,
            "{what}: history of the pruned thread"
        );
        let left = rotation.new.list_all(ListQuery::thread(thread_id)).await?;
        ensure_eq!(left.len(), 3, "{what}: checkpoints left");
    }
    Ok(())
}

async fn a_dry_run_changes_nothing(ctx: Ctx) -> Done {
    for rotation in Rotation::all(&ctx).await? {
        let what = rotation.what();
        let thread_id = ctx.thread();
        fill(&rotation.old, &thread_id).await?;
        let expected = contents(&rotation.old, &thread_id).await?;
        let counted = dry_run(&rotation.ring, &thread_id).await?;
        ensure!(counted.remaining > 0 && counted.resealed == 0, "{what}: {counted:?}");
        // Counting needs neither the key nor a cipher.
        for saver in [&rotation.new, ctx.saver()] {
            ensure_eq!(dry_run(saver, &thread_id).await?.values, counted.values, "{what}: without the key");
        }
        ensure_eq!(dry_run(&rotation.old, &thread_id).await?.remaining, 0, "{what}: left by the old key");
        ensure_eq!(contents(&rotation.old, &thread_id).await?, expected, "{what}: with the old key");
        ensure_eq!(rekey(&rotation.ring, &thread_id).await?.resealed, counted.remaining, "{what}: resealed");
        ensure_eq!(dry_run(&rotation.ring, &thread_id).await?.remaining, 0, "{what}: left");
    }
    Ok(())
}

async fn a_missing_key(ctx: Ctx) -> Done {
    for rotation in Rotation::all(&ctx).await? {
        if rotation.sealed_before == SealedBy::Plain {
            continue;
        }
        let what = rotation.what();
        let thread_id = ctx.thread();
        fill(&rotation.old, &thread_id).await?;
        let expected = contents(&rotation.old, &thread_id).await?;
        let counted = dry_run(&rotation.old, &thread_id).await?;
        let Err(error) = rekey(&rotation.new, &thread_id).await else {
            return Err(Failure::new(format!("{what}: succeeded without the old key")));
        };
        ensure_eq!(error.kind(), ErrorKind::Crypto, "{what}: kind");
        ensure_eq!(error.operation(), Some("rekey"), "{what}: operation");
        if let Some(key_id) = rotation.sealed_before.key_id() {
            ensure!(
                error.to_string().contains(&format!("key_id={key_id:?}")),
                "{what}: no key id in {error}"
            );
        }
        ensure_eq!(contents(&rotation.old, &thread_id).await?, expected, "{what}: with the old key");
        ensure_eq!(dry_run(&rotation.old, &thread_id).await?, counted, "{what}: values");
    }
    // A part of the thread has the key: nothing of it is changed.
    let rotation = Rotation::gcm(&ctx).await?;
    let other = open(ctx.target(), Cipher::aes_gcm("other", &[3; 32])?).await?;
    let thread_id = ctx.thread();
    fill(&rotation.old, &thread_id).await?;
    let config = CheckpointConfig::new(thread_id.clone()).with_checkpoint_id(random());
    write(&other, &config, "task", &[("ch", 1.into())]).await?;
    let counted = dry_run(ctx.saver(), &thread_id).await?;
    expect_kind(rekey(&rotation.ring, &thread_id).await, ErrorKind::Crypto, "one other key")?;
    ensure_eq!(dry_run(ctx.saver(), &thread_id).await?, counted, "values");
    Ok(())
}

async fn a_missing_cipher(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    fill(ctx.saver(), &thread_id).await?;
    let expected = contents(ctx.saver(), &thread_id).await?;
    expect_kind(rekey(ctx.saver(), &thread_id).await, ErrorKind::InvalidConfig, "plain values")?;
    let report = dry_run(ctx.saver(), &thread_id).await?;
    ensure_eq!((report.remaining, total(&report) > 0), (0, true), "plain values");
    ensure_eq!(contents(ctx.saver(), &thread_id).await?, expected, "contents");
    let sealed = ctx.thread();
    fill(&Rotation::gcm(&ctx).await?.old, &sealed).await?;
    expect_kind(rekey(ctx.saver(), &sealed).await, ErrorKind::InvalidConfig, "sealed values")?;
    let report = dry_run(ctx.saver(), &sealed).await?;
    ensure_eq!(report.remaining, total(&report), "sealed values");
    Ok(())
}

/// All other values are sealed, and it is as it was.
async fn a_value_that_does_not_open(ctx: Ctx) -> Done {
    let aes_ring = || new_gcm()?.with_aes_decryption_key(&OLD);
    let rotation = Rotation::open(&ctx, Some(Cipher::aes(&OLD)?), aes_ring()?, new_gcm()?).await?;
    let lost = open(ctx.target(), Cipher::aes(&[9; 32])?).await?;
    let thread_id = ctx.thread();
    fill(&rotation.old, &thread_id).await?;
    let expected = contents(&rotation.old, &thread_id).await?;
    let made = checkpoint(&[]);
    let ahead = CheckpointConfig::new(thread_id.clone()).with_checkpoint_id(made.id.clone());
    write(&lost, &ahead, "task", &[("ch", "lost".into()), ("other", "lost".into())]).await?;
    let values = total(&dry_run(&rotation.ring, &thread_id).await?);
    for _ in 0..2 {
        let Err(error) = rekey(&rotation.ring, &thread_id).await else {
            return Err(Failure::new("succeeded without a key"));
        };
        ensure_eq!(error.kind(), ErrorKind::Crypto, "kind");
        let shown = error.to_string();
        ensure!(
            shown.contains(&*thread_id) && shown.contains("failed"),
            "the error lacks its place: {shown}"
        );
        let report = dry_run(&rotation.ring, &thread_id).await?;
        ensure_eq!(report.values.get(&SealedBy::Aes), Some(&2), "values that do not open");
        ensure_eq!((report.remaining, total(&report)), (2, values), "values");
        rotation.check(&thread_id, &expected).await?;
    }
    // With its key, it is as it was.
    let stored = put(&lost, &CheckpointConfig::new(thread_id), &made).await?;
    let found = read(&lost, &stored).await?.pending_writes;
    let expected = [("task", "ch", &"lost".into()), ("task", "other", &"lost".into())];
    ensure_eq!(triples(&found), expected, "the lost writes");
    Ok(())
}

async fn threads_that_do_not_exist(ctx: Ctx) -> Done {
    let rotation = Rotation::gcm(&ctx).await?;
    for saver in [&rotation.ring, &rotation.new] {
        ensure_eq!(rekey(saver, &ctx.thread()).await?, RekeyReport::default(), "report");
        ensure_eq!(dry_run(saver, &ctx.thread()).await?, RekeyReport::default(), "dry run");
    }
    ensure_eq!(dry_run(ctx.saver(), &ctx.thread()).await?, RekeyReport::default(), "without a cipher");
    Ok(())
}

/// More values than one batch has, by their number and by their size.
async fn large_and_many_values(ctx: Ctx) -> Done {
    let rotation = Rotation::gcm(&ctx).await?;
    let thread_id = ctx.thread();
    let mut config = CheckpointConfig::new(thread_id.clone());
    for step in 1..=6_i64 {
        let made = at_version(step, &[("large", bytes(vec![7; 1_500_000])), ("n", step.into())]);
        config = put(&rotation.old, &config, &made).await?;
        let channels: Vec<_> = (0..60).map(|at| format!("channel-{at:02}")).collect();
        let writes: Vec<_> = channels.iter().map(|channel| (channel.as_str(), step.into())).collect();
        write(&rotation.old, &config, &format!("task-{step}"), &writes).await?;
    }
    chain(&rotation.old, &thread_id, "many", 300).await?;
    let expected = contents(&rotation.old, &thread_id).await?;
    let values = total(&dry_run(&rotation.ring, &thread_id).await?);
    ensure!(values >= 660, "only {values} values");
    let report = rekey(&rotation.ring, &thread_id).await?;
    ensure_eq!((report.resealed, report.remaining), (values, 0), "values");
    rotation.check(&thread_id, &expected).await
}

/// Dropped in the middle, at any point: every value is sealed by one of the keys, and the next run goes on.
async fn interrupted_runs(ctx: Ctx) -> Done {
    let mut cuts = Cuts::default();
    for rotation in [Rotation::gcm(&ctx).await?, Rotation::open(&ctx, None, new_gcm()?, new_gcm()?).await?] {
        let what = rotation.what();
        for polls in [1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 30, 40, 60] {
            let thread_id = ctx.thread();
            fill(&rotation.old, &thread_id).await?;
            let expected = contents(&rotation.ring, &thread_id).await?;
            cuts.run(rekey(&rotation.ring, &thread_id), polls).await.transpose()?;
            let found = contents(&rotation.ring, &thread_id).await?;
            ensure_eq!(found, expected, "{what}: with both keys after {polls} polls");
            let report = rekey(&rotation.ring, &thread_id).await?;
            ensure_eq!(report.remaining, 0, "{what}: left after {polls} polls");
            rotation.check(&thread_id, &expected).await?;
        }
    }
    // One that always finishes.
    cuts.run(rekey(&Rotation::gcm(&ctx).await?.ring, &ctx.thread()), 100_000).await.transpose()?;
    cuts.check(ctx.waits())
}

async fn concurrent_writers(ctx: Ctx) -> Done {
    for rotation in [Rotation::gcm(&ctx).await?, Rotation::open(&ctx, None, new_gcm()?, new_gcm()?).await?] {
        let what = rotation.what();
        let thread_id = ctx.thread();
        let mut writers = Vec::new();
        for (writer, saver) in [&rotation.old, &rotation.ring, &rotation.ring].into_iter().enumerate() {
            let (saver, thread_id) = (saver.clone(), thread_id.clone());
            writers.push(tokio::spawn(async move {
                let ns = format!("writer-{writer}");
                let mut config = CheckpointConfig::new(thread_id).with_checkpoint_ns(ns);
                let mut stored = Vec::new();
                for step in 1..=25_i64 {
                    let made = at_version(step, &[("n", step.into()), ("items", encode(&list(&[step]))?)]);
                    config = repeat!(put(&saver, &config, &made))?;
                    // Special channels replace what is stored.
                    for attempt in 1..=2_i64 {
                        let error = [("__error__", attempt.into())];
                        repeat!(write(&saver, &config, "task", &error))?;
                    }
                    stored.push((config.clone(), made));
                }
                Ok::<_, Failure>(stored)
            }));
        }
        let mut resealed = 0;
        while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
            let report = repeat!(rekey(&rotation.ring, &thread_id))?;
            resealed += report.resealed;
            tokio::task::yield_now().await;
        }
        let report = rekey(&rotation.ring, &thread_id).await?;
        resealed += report.resealed;
        ensure_eq!(report.remaining, 0, "{what}: left");
        ensure!(resealed >= 25 * 2, "{what}: only {resealed} values were sealed again");
        for writer in writers {
            for (config, made) in writer.await?? {
                let tuple = read(&rotation.new, &config).await?;
                ensure_eq!(tuple.checkpoint, made, "{what}: checkpoint");
                ensure_eq!(
                    triples(&tuple.pending_writes),
                    [("task", "__error__", &2.into())],
                    "{what}: writes"
                );
            }
        }
    }
    Ok(())
}

/// A deleted thread stays deleted, and a pruned one stays pruned.
async fn concurrent_delete(ctx: Ctx) -> Done {
    let rotation = Rotation::gcm(&ctx).await?;
    for strategy in [PruneStrategy::Delete, PruneStrategy::KeepLatest] {
        for _ in 0..8 {
            let thread_id = ctx.thread();
            fill(&rotation.old, &thread_id).await?;
            let running = {
                let (saver, thread_id) = (rotation.ring.clone(), thread_id.clone());
                tokio::spawn(async move { repeat!(rekey(&saver, &thread_id)) })
            };
            tokio::task::yield_now().await;
            repeat!(rotation.ring.prune(&[&thread_id], strategy))?;
            running.await??;
            let report = rekey(&rotation.ring, &thread_id).await?;
            ensure_eq!(report.remaining, 0, "{strategy:?}: left");
            let (tuples, _) = contents(&rotation.new, &thread_id).await?;
            if strategy == PruneStrategy::Delete {
                ensure_eq!(
                    (tuples.len(), total(&report)),
                    (0, 0),
                    "checkpoints and values of a deleted thread"
                );
            } else {
                ensure_eq!(tuples.len(), 3, "checkpoints of a pruned thread");
            }
        }
    }
    Ok(())
}

/// A thread that fails does not stop the others.
async fn every_thread(ctx: Ctx) -> Done {
    let target = ctx.target().fresh().await?;
    let [old, ring, new] = [old_gcm()?, gcm_ring()?, new_gcm()?].map(|cipher| open(&target, cipher));
    let (old, ring, new) = (old.await?, ring.await?, new.await?);
    old.setup().await?;
    let lost = open(&target, Cipher::aes_gcm("lost", &[9; 32])?).await?;
    for (thread_id, saver) in [("1", &old), ("2", &lost), ("3", &old), ("4", &new)] {
        put(saver, &CheckpointConfig::new(thread_id), &checkpoint(&[("items", encode(&list(&[1]))?)]))
            .await?;
    }
    // Only writes.
    let ahead = CheckpointConfig::new("5").with_checkpoint_id(random());
    write(&old, &ahead, "task", &[("ch", 1.into())]).await?;
    // A backend that seals the checkpoint, too, counts two for each.
    let each = new.rekey("4", RekeyOptions::default().dry_run(true)).await?.values.values().sum::<u64>();
    ensure!((1..=2).contains(&each), "{each} values");
    for dry_run in [true, false] {
        let options = RekeyOptions::default().dry_run(dry_run);
        let reports: Vec<_> = ring.rekey_all(options).try_collect().await?;
        let mut sum = RekeyReport::default();
        let mut failed = Vec::new();
        for (thread_id, report) in &reports {
            match report {
                Ok(report) => sum.add(report),
                Err(error) => failed.push((&**thread_id, error.kind())),
            }
        }
        ensure_eq!(reports.len(), 5, "threads");
        if dry_run {
            ensure_eq!(failed, [], "failed in a dry run");
            ensure_eq!((sum.resealed, sum.remaining), (0, 3 * each + 1), "values in a dry run");
            ensure_eq!(sum.values.len(), 3, "keys in a dry run");
        } else {
            ensure_eq!(failed, [("2", ErrorKind::Crypto)], "failed");
            ensure_eq!((sum.resealed, sum.remaining), (2 * each + 1, 0), "values");
            ensure_eq!(sum.values, [(SealedBy::AesGcm("new".into()), 3 * each + 1)].into(), "keys");
        }
    }
    for thread_id in ["1", "3", "4"] {
        read(&new, &CheckpointConfig::new(thread_id)).await?;
    }
    read(&lost, &CheckpointConfig::new("2")).await?;
    Ok(())
}

/// The values of another serializer are bytes like any other.
async fn opaque_values(ctx: Ctx) -> Done {
    let [old, ring, new] = [old_gcm()?, gcm_ring()?, new_gcm()?].map(|cipher| {
        ctx.target().open(OpenOptions { opaque_values: true, ..OpenOptions::with_cipher(cipher) })
    });
    let (old, ring, new) = (old.await?, ring.await?, new.await?);
    let value = || checkpoint_core::TypedBytes::new("own", &b"\xc1 of another serializer"[..]).into();
    let config = CheckpointConfig::new(ctx.thread()).with_checkpoint_id(random());
    write(&old, &config, "task", &[("ch", value()), ("n", true.into())]).await?;
    let report = rekey(&ring, config.thread_id()).await?;
    ensure_eq!((report.resealed, report.remaining), (2, 0), "values");
    // A checkpoint to read them by.
    let config = {
        let made = if ctx.target().offers(Facility::WholeCheckpoints) {
            checkpoint_core::opaque::checkpoint(config.checkpoint_id().unwrap_or_default(), prepared_blob())
        } else {
            let mut made = checkpoint(&[]);
            made.id = config.checkpoint_id().unwrap_or_default().into();
            made
        };
        new.put(&CheckpointConfig::new(config.thread_id()), &made, &metadata(0), &ChannelVersions::new())
            .await?
    };
    let tuple = read(&new, &config).await?;
    let found: Vec<_> = tuple.pending_writes.iter().map(|write| write.value.clone()).collect();
    let flag = checkpoint_core::TypedBytes::msgpack(&b"\xc3"[..]);
    ensure_eq!(found, [value(), flag.into()], "values");
    Ok(())
}

fn prepared_blob() -> checkpoint_core::TypedBytes {
    checkpoint_core::TypedBytes::new("own", &b"a whole checkpoint"[..])
}
