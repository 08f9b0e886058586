//! Repeated puts, forks, and unchanged channels.

use checkpoint_core::{
    BaseCheckpointSaver, ChannelVersion, ChannelVersions, CheckpointConfig, CheckpointMetadata, ErrorKind,
    ListQuery, PruneStrategy, PutOptions, Result, SaverExt, Str,
};

use crate::case::{Ctx, Failure, Need};
use crate::fixture::{
    Done, at_version, chain, checkpoint, encode, id_of, ids, list, map, metadata, prepared, put, put_with,
    random, read, value,
};
use crate::target::Facility;

cases!("forks";
    a_second_put_replaces_checkpoint_and_metadata,
    putting_the_same_checkpoint_twice_is_idempotent,
    branches_from_one_parent,
    the_newest_is_by_id_not_by_time_of_writing,
    a_parent_need_not_exist,
    fork_of_a_fork,
    a_long_chain_of_unchanged_channels,
    branches_share_unchanged_values,
    the_same_version_in_two_namespaces,
    carried_over_values_survive_deletion_of_the_parent,
    a_copy_of_a_deleted_step_keeps_its_values [Need::DeleteForRuns],
    unchanged_values_are_carried_over_from_the_parent,
    unchanged_values_missing_in_the_parent_are_a_conflict,
);

async fn a_second_put_replaces_checkpoint_and_metadata(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread());
    let first = at_version(1, &[("a", "one".into()), ("gone", encode(&list(&[1]))?)]);
    put_with(ctx.saver(), &config, &first, &metadata(1).with("only_first", true)).await?;
    let mut second = at_version(2, &[("a", encode(&list(&[2]))?), ("b", 2.into())]);
    second.id = first.id.clone();
    second.updated_channels = Some(vec!["a".into()]);
    let stored = put_with(ctx.saver(), &config, &second, &CheckpointMetadata::new("update", 2)).await?;
    let tuple = read(ctx.saver(), &stored).await?;
    ensure_eq!(tuple.checkpoint, second, "checkpoint");
    ensure_eq!(tuple.metadata, CheckpointMetadata::new("update", 2), "metadata");
    let query = ListQuery::thread(config.thread_id());
    ensure_eq!(ids(ctx.saver(), query).await?, [first.id], "ids");
    Ok(())
}

async fn putting_the_same_checkpoint_twice_is_idempotent(ctx: Ctx) -> Done {
    let parent = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    let made = checkpoint(&[("a", encode(&list(&[1]))?)]);
    let mut tuples = Vec::new();
    for _ in 0..2 {
        let stored = put(ctx.saver(), &parent, &made).await?;
        tuples.push(read(ctx.saver(), &stored).await?);
    }
    ensure_eq!(tuples.first(), tuples.last(), "after the second put");
    ensure_eq!(tuples.last().and_then(|tuple| tuple.parent_config.clone()), Some(parent), "parent");
    Ok(())
}

async fn branches_from_one_parent(ctx: Ctx) -> Done {
    let root = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    let mut branches = Vec::new();
    // Two writers never create the same version: it has a random part.
    for (version, text) in [(1, "left"), (2, "right")] {
        let made = at_version(version, &[("side", text.into())]);
        branches.push((put(ctx.saver(), &root, &made).await?, text));
    }
    for (config, text) in &branches {
        let tuple = read(ctx.saver(), config).await?;
        ensure_eq!(tuple.parent_config.as_ref(), Some(&root), "parent");
        ensure_eq!(value(&tuple, "side")?, (*text).into(), "value");
    }
    ensure_eq!(value(&read(ctx.saver(), &root.latest()).await?, "side")?, "right".into(), "the newest");
    Ok(())
}

async fn the_newest_is_by_id_not_by_time_of_writing(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread());
    let made: Vec<_> = (0..3_i64).map(|at| checkpoint(&[("at", at.into())])).collect();
    for at in [2, 0, 1] {
        put(ctx.saver(), &config, prepared(made.get(at))?).await?;
    }
    ensure_eq!(value(&read(ctx.saver(), &config).await?, "at")?, 2.into(), "the newest");
    let expected: Vec<_> = made.iter().rev().map(|checkpoint| checkpoint.id.clone()).collect();
    ensure_eq!(ids(ctx.saver(), ListQuery::from_config(&config)).await?, expected, "ids");
    Ok(())
}

async fn a_parent_need_not_exist(ctx: Ctx) -> Done {
    let parent = CheckpointConfig::new(ctx.thread()).with_checkpoint_id(random());
    let stored = put(ctx.saver(), &parent, &checkpoint(&[])).await?;
    ensure_eq!(read(ctx.saver(), &stored).await?.parent_config, Some(parent.clone()), "parent");
    ensure_eq!(ctx.saver().get_tuple(&parent).await?, None, "the parent");
    Ok(())
}

async fn fork_of_a_fork(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let main = chain(ctx.saver(), &thread_id, "", 4).await?;
    let start = prepared(main.get(1))?;
    let fork = put_with(ctx.saver(), start, &checkpoint(&[]), &CheckpointMetadata::new("fork", 2)).await?;
    let again = put_with(ctx.saver(), &fork, &checkpoint(&[]), &CheckpointMetadata::new("fork", 3)).await?;
    let mut line = vec![id_of(&again)];
    let mut next = read(ctx.saver(), &again).await?.parent_config;
    while let Some(config) = next {
        line.push(id_of(&config));
        next = read(ctx.saver(), &config).await?.parent_config;
    }
    let mut expected = vec![id_of(&again), id_of(&fork), id_of(start)];
    expected.extend(main.first().map(id_of));
    ensure_eq!(line, expected, "line of parents");
    let all = ctx.saver().list_all(ListQuery::thread(thread_id)).await?;
    ensure_eq!(all.len(), 6, "number of checkpoints");
    Ok(())
}

async fn a_long_chain_of_unchanged_channels(ctx: Ctx) -> Done {
    let steady = encode(&map(&[("big", "x".repeat(2000).into())]))?;
    let mut config = CheckpointConfig::new(ctx.thread());
    let mut expected = Vec::new();
    for step in 1..=30_i64 {
        let mut made = at_version(step, &[("count", step.into()), ("items", encode(&list(&[step]))?)]);
        let mut changed = made.channel_versions.clone();
        made = made.with_channel("steady", steady.clone(), 1);
        if step == 1 {
            changed.insert("steady".into(), 1.into());
        }
        config = ctx.saver().put(&config, &made, &metadata(step), &changed).await?;
        expected.push((config.clone(), made));
    }
    for (config, made) in expected {
        ensure_eq!(read(ctx.saver(), &config).await?.checkpoint, made, "checkpoint");
    }
    Ok(())
}

async fn branches_share_unchanged_values(ctx: Ctx) -> Done {
    let shared = encode(&list(&[1, 2, 3]))?;
    let root =
        put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[("shared", shared.clone())]))
            .await?;
    for text in ["left", "right"] {
        let version = Str::from(format!("2.{text}"));
        let made = checkpoint(&[("shared", shared.clone())]).with_channel(
            "own",
            encode(&vec![text].into())?,
            &*version,
        );
        let changed = ChannelVersions::from_iter([("own".into(), (&*version).into())]);
        let stored = ctx.saver().put(&root, &made, &metadata(1), &changed).await?;
        ensure_eq!(read(ctx.saver(), &stored).await?.checkpoint, made, "branch {text}");
    }
    Ok(())
}

/// The values of channels named as unchanged may be omitted.
async fn unchanged_values_are_carried_over_from_the_parent(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread());
    let big = encode(&list(&[1, 2, 3]))?;
    let mut at =
        put(ctx.saver(), &config, &at_version(1, &[("kept", big.clone()), ("own", big.clone())])).await?;
    for step in 2..4 {
        let own = encode(&list(&[step]))?;
        let mut made = at_version(1, &[("kept", big.clone())]).with_channel("own", own, step);
        let whole = made.clone();
        made.channel_values.shift_remove("kept");
        let options = PutOptions::default().unchanged(["kept"]);
        let new_versions = [(Str::from("own"), ChannelVersion::from(step))].into_iter().collect();
        let put = ctx.saver().put_with(&at, &made, &metadata(step), &new_versions, &options).await;
        // A saver that stores channel values separately uses those of the parent.
        let separate = ctx.target().offers(Facility::SeparateValues);
        if !separate && matches!(&put, Err(error) if error.kind() == ErrorKind::Unsupported) {
            ensure_eq!(ids(ctx.saver(), ListQuery::thread(config.thread_id())).await?.len(), 1, "stored");
            return Ok(());
        }
        at = put?;
        ensure_eq!(read(ctx.saver(), &at).await?.checkpoint, whole, "step {step}");
    }
    Ok(())
}

/// If the parent lacks a value that is named as unchanged, nothing is stored.
async fn unchanged_values_missing_in_the_parent_are_a_conflict(ctx: Ctx) -> Done {
    let big = || encode(&list(&[1, 2, 3]));
    let made = |version: i64| -> Result<_> {
        let mut made = at_version(version, &[("kept", big()?)]).with_channel("new", big()?, 9);
        let whole = made.clone();
        made.channel_values.shift_remove("kept");
        Ok((made, whole))
    };
    let new_versions: ChannelVersions = [(Str::from("new"), ChannelVersion::from(9))].into_iter().collect();
    let options = PutOptions::default().unchanged(["kept"]);
    for way in ["deleted", "another version", "never there", "no parent"] {
        let config = CheckpointConfig::new(ctx.thread());
        let mut parent = put(ctx.saver(), &config, &at_version(1, &[("kept", big()?)])).await?;
        let mut version = 1;
        match way {
            "deleted" => ctx.saver().delete_thread(config.thread_id()).await?,
            "another version" => version = 2,
            "never there" => parent = put(ctx.saver(), &parent, &checkpoint(&[])).await?,
            _ => parent = config.clone(),
        }
        let before = ids(ctx.saver(), ListQuery::thread(config.thread_id())).await?;
        let (part, whole) = made(version)?;
        let Err(error) = ctx.saver().put_with(&parent, &part, &metadata(1), &new_versions, &options).await
        else {
            return Err(Failure::new(format!("{way}: the checkpoint was stored")));
        };
        ensure!(matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Unsupported), "{way}: {error}");
        ensure_eq!(ids(ctx.saver(), ListQuery::thread(config.thread_id())).await?, before, "{way}: ids");
        let stored = ctx.saver().put(&parent, &whole, &metadata(1), &new_versions).await?;
        ensure_eq!(read(ctx.saver(), &stored).await?.checkpoint, whole, "{way}");
    }
    let unversioned = checkpoint(&[]);
    let parent = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    let versions = ChannelVersions::new();
    let refused = ctx.saver().put_with(&parent, &unversioned, &metadata(1), &versions, &options).await;
    ensure!(refused.is_err(), "a channel without a version was stored");
    Ok(())
}

async fn the_same_version_in_two_namespaces(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    for checkpoint_ns in ["", "a", "b"] {
        let config = CheckpointConfig::new(thread_id.clone()).with_checkpoint_ns(checkpoint_ns);
        let blob = encode(&vec![checkpoint_ns].into())?;
        put(ctx.saver(), &config, &checkpoint(&[("x", blob)])).await?;
    }
    for checkpoint_ns in ["", "a", "b"] {
        let config = CheckpointConfig::new(thread_id.clone()).with_checkpoint_ns(checkpoint_ns);
        let blob = encode(&vec![checkpoint_ns].into())?;
        ensure_eq!(value(&read(ctx.saver(), &config).await?, "x")?, blob, "value in {checkpoint_ns:?}");
    }
    Ok(())
}

/// A step keeps a carried-over value even if the checkpoints that had it are deleted.
async fn carried_over_values_survive_deletion_of_the_parent(ctx: Ctx) -> Done {
    let big = || encode(&list(&[1, 2, 3]));
    for prunes in [false, true] {
        let config = CheckpointConfig::new(ctx.thread());
        let first = put(ctx.saver(), &config, &at_version(1, &[("kept", big()?)])).await?;
        if prunes && ctx.saver().capabilities().prune {
            put(ctx.saver(), &first, &at_version(2, &[("kept", big()?)])).await?;
            ctx.saver().prune(&[config.thread_id()], PruneStrategy::KeepLatest).await?;
        } else {
            ctx.saver().delete_thread(config.thread_id()).await?;
        }
        let mut next = at_version(1, &[("kept", big()?)]);
        next = next.with_channel("new", encode(&list(&[4]))?, 3);
        let new_versions = [(Str::from("new"), ChannelVersion::from(3))].into_iter().collect();
        let stored = ctx.saver().put(&first, &next, &metadata(1), &new_versions).await?;
        ensure_eq!(read(ctx.saver(), &stored).await?.checkpoint, next, "checkpoint");
    }
    Ok(())
}

/// A copy of a deleted step, put on that step's parent, has values with versions that the parent does not have.
async fn a_copy_of_a_deleted_step_keeps_its_values(ctx: Ctx) -> Done {
    let big = |number| encode(&list(&[number]));
    let config = CheckpointConfig::new(ctx.thread());
    let parent = put(ctx.saver(), &config, &at_version(1, &[("x", big(1)?)])).await?;
    let run_id = random();
    let copied = at_version(2, &[("x", big(2)?)]);
    put_with(ctx.saver(), &parent, &copied, &metadata(1).with("run_id", &*run_id)).await?;
    ctx.saver().delete_for_runs(&[&run_id]).await?;
    let copy = at_version(2, &[("x", big(2)?)]);
    let stored = ctx.saver().put(&parent, &copy, &metadata(1), &ChannelVersions::new()).await?;
    ensure_eq!(read(ctx.saver(), &stored).await?.checkpoint, copy, "checkpoint");
    Ok(())
}
