//! Conditional `put` and `put_writes`, and step keys.

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, ErrorKind, ListQuery, PruneStrategy,
    PutCondition, PutOptions, PutWritesOptions, Result, SaverExt, Str,
};

use crate::case::{Ctx, Failure, Need};
use crate::fixture::{
    Done, at_version, bytes, checkpoint, encode, expect_conflict, expect_kind, id_of, ids, list, metadata,
    put, random, read, triples, value, write,
};
use crate::target::{OpenOptions, Saver};

cases!("conditions";
    a_parent_that_is_not_stored_is_a_conflict,
    a_deleted_thread_does_not_come_back,
    only_the_newest_has_a_successor,
    the_first_checkpoint_of_a_namespace,
    a_repeated_call_meets_every_condition,
    unchanged_values_are_carried_over,
    one_of_many_writers_succeeds,
    increments_of_many_writers_form_one_chain,
    a_step_key_is_stored_once,
    step_keys_belong_to_their_parent,
    a_step_key_is_stored_once_by_many_writers,
    a_step_key_must_be_text,
    the_first_result_of_a_task_is_kept_whole,
    one_of_many_results_is_kept_whole,
    interrupts_are_no_results,
    special_channels_are_no_result,
    writes_on_a_checkpoint_that_is_not_stored,
    a_pruned_parent_is_a_conflict [Need::Prune],
);

fn parent_stored() -> PutOptions {
    PutOptions::default().condition(PutCondition::ParentStored)
}

fn latest() -> PutOptions {
    PutOptions::default().condition(PutCondition::ParentIsLatest)
}

async fn put_on(
    saver: &Saver,
    config: &CheckpointConfig,
    checkpoint: &Checkpoint,
    options: &PutOptions,
) -> Result<CheckpointConfig> {
    saver.put_with(config, checkpoint, &metadata(0), &checkpoint.channel_versions, options).await
}

async fn write_on(
    saver: &Saver,
    config: &CheckpointConfig,
    task_id: &str,
    writes: &[(&str, ChannelValue)],
    options: PutWritesOptions,
) -> Result<()> {
    let writes: Vec<_> = writes.iter().map(|(channel, value)| (Str::from(*channel), value.clone())).collect();
    saver.put_writes_with(config, &writes, task_id, "", &options).await
}

async fn a_parent_that_is_not_stored_is_a_conflict(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread()).with_checkpoint_id(random());
    let made = checkpoint(&[("a", encode(&list(&[1]))?)]);
    for options in [parent_stored(), latest()] {
        expect_conflict(put_on(ctx.saver(), &config, &made, &options).await, "put")?;
    }
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(config.thread_id())).await?, [] as [Str; 0], "ids");
    put(ctx.saver(), &config, &made).await?;
    let root = CheckpointConfig::new(ctx.thread());
    put_on(ctx.saver(), &root, &made, &parent_stored()).await?;
    Ok(())
}

async fn a_deleted_thread_does_not_come_back(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let first = at_version(1, &[("kept", encode(&list(&[1]))?), ("at", 1.into())]);
    let parent = put(ctx.saver(), &CheckpointConfig::new(thread_id.clone()), &first).await?;
    ctx.saver().delete_thread(&thread_id).await?;
    let mut next = first.clone().with_channel("at", 2, "2");
    next.id = random();
    let changed = [("at".into(), "2".into())].into_iter().collect();
    for options in [parent_stored(), latest(), parent_stored().step_key("k")] {
        let result = ctx.saver().put_with(&parent, &next, &metadata(1), &changed, &options).await;
        expect_conflict(result, "put")?;
    }
    let options = PutWritesOptions::default().checkpoint_stored();
    expect_conflict(write_on(ctx.saver(), &parent, "task", &[("a", 1.into())], options).await, "put_writes")?;
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(thread_id)).await?, [] as [Str; 0], "ids");
    put(ctx.saver(), &parent.clone().latest(), &first).await?;
    ensure!(read(ctx.saver(), &parent).await?.pending_writes.is_empty(), "a write came back");
    Ok(())
}

async fn only_the_newest_has_a_successor(ctx: Ctx) -> Done {
    let root = CheckpointConfig::new(ctx.thread());
    let first = put(ctx.saver(), &root, &checkpoint(&[])).await?;
    let second = put_on(ctx.saver(), &first, &at_version(2, &[("a", 2.into())]), &latest()).await?;
    let late = put_on(ctx.saver(), &first, &at_version(2, &[("a", 3.into())]), &latest()).await;
    let message = expect_conflict(late, "a put on an older checkpoint")?;
    ensure!(message.contains(&*id_of(&second)), "the newest is not named: {message}");
    let other_branch =
        put_on(ctx.saver(), &first, &at_version(2, &[("a", 4.into())]), &parent_stored()).await?;
    expect_conflict(put_on(ctx.saver(), &second, &checkpoint(&[]), &latest()).await, "after a branch")?;
    let third = put_on(ctx.saver(), &other_branch, &at_version(3, &[("a", 5.into())]), &latest()).await?;
    // Another namespace has its own newest.
    let inner = root.clone().with_checkpoint_ns("child:1");
    put(ctx.saver(), &inner, &checkpoint(&[])).await?;
    let fourth = put_on(ctx.saver(), &third, &at_version(4, &[("a", 6.into())]), &latest()).await?;
    let stored = [&fourth, &third, &other_branch, &second, &first].map(id_of);
    ensure_eq!(ids(ctx.saver(), ListQuery::from_config(&root)).await?, stored, "ids");
    Ok(())
}

async fn the_first_checkpoint_of_a_namespace(ctx: Ctx) -> Done {
    let root = CheckpointConfig::new(ctx.thread());
    let first = put_on(ctx.saver(), &root, &checkpoint(&[]), &latest()).await?;
    let second = put_on(ctx.saver(), &root, &checkpoint(&[]), &latest()).await;
    let message = expect_conflict(second, "a second first checkpoint")?;
    ensure!(message.contains(&*id_of(&first)), "the newest is not named: {message}");
    put_on(ctx.saver(), &root.clone().with_checkpoint_ns("child:1"), &checkpoint(&[]), &latest()).await?;
    Ok(())
}

async fn a_repeated_call_meets_every_condition(ctx: Ctx) -> Done {
    let root = CheckpointConfig::new(ctx.thread());
    let first = put(ctx.saver(), &root, &checkpoint(&[])).await?;
    let made = at_version(2, &[("a", encode(&list(&[2]))?)]);
    put_on(ctx.saver(), &first, &made, &latest()).await?;
    let stored = put_on(ctx.saver(), &first, &made, &latest()).await?;
    let third = put(ctx.saver(), &stored, &at_version(3, &[("a", 3.into())])).await?;
    for options in [latest(), parent_stored()] {
        ensure_eq!(put_on(ctx.saver(), &first, &made, &options).await?, stored, "stored config");
    }
    let tuple = read(ctx.saver(), &stored).await?;
    ensure_eq!(tuple.parent_config, Some(first.clone()), "parent");
    ensure_eq!(value(&tuple, "a")?, encode(&list(&[2]))?, "value");
    ensure_eq!(id_of(&read(ctx.saver(), &root).await?.config), id_of(&third), "newest");
    Ok(())
}

async fn unchanged_values_are_carried_over(ctx: Ctx) -> Done {
    let root = CheckpointConfig::new(ctx.thread());
    let kept = bytes(vec![7_u8; 3000]);
    let mut made = at_version(1, &[("kept", kept.clone()), ("at", encode(&list(&[1]))?)]);
    let mut parent = put(ctx.saver(), &root, &made).await?;
    let many: Vec<_> = (0..40).map(|at| format!("channel {at}")).collect();
    for version in 2..=4_i64 {
        made.id = random();
        made = made.with_channel("at", encode(&list(&[version]))?, version);
        let mut changed =
            [("at".into(), version.into())].into_iter().collect::<checkpoint_core::ChannelVersions>();
        if version == 3 {
            for channel in &many {
                made = made.with_channel(channel.as_str(), bytes(vec![3_u8; 40]), version);
                changed.insert(channel.as_str().into(), version.into());
            }
        }
        for options in [latest(), latest()] {
            let result = ctx.saver().put_with(&parent, &made, &metadata(version), &changed, &options).await?;
            ensure_eq!(id_of(&result), made.id, "stored id");
        }
        parent = parent.for_checkpoint(made.id.clone());
        let tuple = read(ctx.saver(), &parent).await?;
        ensure_eq!(value(&tuple, "kept")?, kept, "unchanged value");
        ensure_eq!(value(&tuple, "at")?, encode(&list(&[version]))?, "changed value");
        ensure_eq!(tuple.checkpoint.channel_values.len(), made.channel_values.len(), "number of values");
    }
    Ok(())
}

async fn one_of_many_writers_succeeds(ctx: Ctx) -> Done {
    let root = CheckpointConfig::new(ctx.thread());
    let first = put(ctx.saver(), &root, &checkpoint(&[])).await?;
    let other = ctx.target().open(OpenOptions::default()).await?;
    let writers: Vec<_> = (0..16_i64)
        .map(|at| {
            let saver = if at % 2 == 0 { ctx.saver() } else { &other };
            let (saver, first) = (saver.clone(), first.clone());
            tokio::spawn(async move {
                let made = at_version(2, &[("by", at.into())]);
                put_on(&saver, &first, &made, &latest()).await
            })
        })
        .collect();
    let mut stored = Vec::new();
    for writer in writers {
        match writer.await? {
            Ok(config) => stored.push(id_of(&config)),
            conflict => drop(expect_conflict(conflict, "a later writer")?),
        }
    }
    ensure_eq!(stored.len(), 1, "number of writers that succeeded");
    stored.push(id_of(&first));
    ensure_eq!(ids(ctx.saver(), ListQuery::from_config(&root)).await?, stored, "ids");
    Ok(())
}

async fn increments_of_many_writers_form_one_chain(ctx: Ctx) -> Done {
    const WRITERS: i64 = 8;
    const INCREMENTS: i64 = 4;
    let root = CheckpointConfig::new(ctx.thread());
    put(ctx.saver(), &root, &at_version(1, &[("count", 0.into())])).await?;
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let (saver, root) = (ctx.saver().clone(), root.clone());
            tokio::spawn(async move {
                let mut left = INCREMENTS;
                while left > 0 {
                    let tuple = read(&saver, &root).await?;
                    let ChannelValue::Int(count) = value(&tuple, "count")? else {
                        return Err(Failure::new("the count is no integer"));
                    };
                    let made = at_version(count + 2, &[("count", (count + 1).into())]);
                    match put_on(&saver, &tuple.config, &made, &latest()).await {
                        Ok(_) => left -= 1,
                        conflict => drop(expect_conflict(conflict, "a late increment")?),
                    }
                }
                Ok(())
            })
        })
        .collect();
    for writer in writers {
        writer.await??;
    }
    let tuples = ctx.saver().list_all(ListQuery::from_config(&root)).await?;
    let mut counts = Vec::new();
    for pair in tuples.windows(2) {
        ensure_eq!(pair[0].parent_config, Some(pair[1].config.clone()), "parent");
    }
    for tuple in tuples.iter().rev() {
        counts.push(value(tuple, "count")?);
    }
    let expected: Vec<ChannelValue> = (0..=WRITERS * INCREMENTS).map(ChannelValue::from).collect();
    ensure_eq!(counts, expected, "counts");
    Ok(())
}

async fn a_step_key_is_stored_once(ctx: Ctx) -> Done {
    let root = CheckpointConfig::new(ctx.thread());
    for options in [PutOptions::default(), parent_stored(), latest()] {
        let options = options.step_key("the first input");
        let stored = put_on(ctx.saver(), &root, &at_version(1, &[("a", 1.into())]), &options).await?;
        let tuple = read(ctx.saver(), &stored).await?;
        ensure_eq!(
            tuple.metadata.get("step_key").and_then(|key| key.as_str()),
            Some("the first input"),
            "key"
        );
        ensure_eq!(ids(ctx.saver(), ListQuery::from_config(&root)).await?.len(), 1, "number of checkpoints");
    }
    let parent = read(ctx.saver(), &root).await?.config;
    let key = latest().step_key("naïve \"key\" 世界");
    let second = put_on(ctx.saver(), &parent, &at_version(2, &[("a", 2.into())]), &key).await?;
    put(ctx.saver(), &second, &at_version(3, &[("a", 3.into())])).await?;
    let again = put_on(ctx.saver(), &parent, &at_version(2, &[("a", 2.into())]), &key).await?;
    ensure_eq!(again, second, "config of the repeated step");
    ensure_eq!(ids(ctx.saver(), ListQuery::from_config(&root)).await?.len(), 3, "number of checkpoints");
    Ok(())
}

async fn step_keys_belong_to_their_parent(ctx: Ctx) -> Done {
    let root = CheckpointConfig::new(ctx.thread());
    let key = PutOptions::default().step_key("k");
    let mut parent = root.clone();
    for version in 1..=3 {
        let stored =
            put_on(ctx.saver(), &parent, &at_version(version, &[("a", version.into())]), &key).await?;
        ensure!(parent.checkpoint_id() != stored.checkpoint_id(), "the key of another step was found");
        parent = stored;
    }
    let inner = root.clone().with_checkpoint_ns("child:1");
    put_on(ctx.saver(), &inner, &at_version(1, &[("a", 1.into())]), &key).await?;
    let other_key = PutOptions::default().step_key("k2");
    put_on(ctx.saver(), &root, &at_version(1, &[("a", 9.into())]), &other_key).await?;
    ensure_eq!(
        ids(ctx.saver(), ListQuery::thread(root.thread_id())).await?.len(),
        5,
        "number of checkpoints"
    );
    Ok(())
}

async fn a_step_key_is_stored_once_by_many_writers(ctx: Ctx) -> Done {
    let root = CheckpointConfig::new(ctx.thread());
    let parent = put(ctx.saver(), &root, &checkpoint(&[])).await?;
    let writers: Vec<_> = (0..12)
        .map(|_| {
            let (saver, parent) = (ctx.saver().clone(), parent.clone());
            tokio::spawn(async move {
                let made = at_version(2, &[("a", encode(&list(&[2]))?)]);
                put_on(&saver, &parent, &made, &parent_stored().step_key("k")).await
            })
        })
        .collect();
    let mut stored = Vec::new();
    for writer in writers {
        stored.push(writer.await??);
    }
    stored.dedup();
    ensure_eq!(stored.len(), 1, "number of different results");
    ensure_eq!(ids(ctx.saver(), ListQuery::from_config(&root)).await?.len(), 2, "number of checkpoints");
    Ok(())
}

async fn a_step_key_must_be_text(ctx: Ctx) -> Done {
    let root = CheckpointConfig::new(ctx.thread());
    for key in ["", "a\0b"] {
        let options = PutOptions::default().step_key(key);
        let result = put_on(ctx.saver(), &root, &checkpoint(&[]), &options).await;
        expect_kind(result, ErrorKind::InvalidArgument, "put")?;
    }
    ensure_eq!(ids(ctx.saver(), ListQuery::from_config(&root)).await?, [] as [Str; 0], "ids");
    Ok(())
}

async fn the_first_result_of_a_task_is_kept_whole(ctx: Ctx) -> Done {
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    let once = PutWritesOptions::default().once();
    write_on(ctx.saver(), &stored, "task", &[("x", 1.into())], once.clone()).await?;
    for writes in [&[("b", 2.into()), ("x", 3.into())][..], &[("x", 1.into())]] {
        let message = expect_conflict(
            write_on(ctx.saver(), &stored, "task", writes, once.clone()).await,
            "a second result",
        )?;
        ensure!(message.contains("task"), "the task is not named: {message}");
    }
    write_on(ctx.saver(), &stored, "other", &[("b", 2.into()), ("x", 3.into())], once.clone()).await?;
    write_on(ctx.saver(), &stored, "task", &[], once).await?;
    let writes = read(ctx.saver(), &stored).await?.pending_writes;
    let expected = [("other", "b", &2.into()), ("other", "x", &3.into()), ("task", "x", &1.into())];
    ensure_eq!(triples(&writes), expected, "writes");
    Ok(())
}

async fn one_of_many_results_is_kept_whole(ctx: Ctx) -> Done {
    for round in 0..4 {
        let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
        let calls: Vec<_> = (0..12_i64)
            .map(|at| {
                let (saver, config) = (ctx.saver().clone(), stored.clone());
                tokio::spawn(async move {
                    // Results of different lengths.
                    let channels: Vec<_> = (0..=at % 4).map(|channel| format!("c{channel}")).collect();
                    let writes: Vec<_> =
                        channels.iter().map(|channel| (channel.as_str(), ChannelValue::from(at))).collect();
                    let once = PutWritesOptions::default().once().checkpoint_stored();
                    (at, write_on(&saver, &config, "task", &writes, once).await)
                })
            })
            .collect();
        let mut winners = Vec::new();
        for call in calls {
            match call.await? {
                (at, Ok(())) => winners.push(at),
                (_, conflict) => drop(expect_conflict(conflict, "a later result")?),
            }
        }
        let [winner] = winners[..] else {
            return Err(Failure::new(format!("round {round}: {} results were accepted", winners.len())));
        };
        let writes = read(ctx.saver(), &stored).await?.pending_writes;
        ensure_eq!(i64::try_from(writes.len()), Ok(winner % 4 + 1), "number of writes");
        ensure!(writes.iter().all(|write| write.value == winner.into()), "writes of two results: {writes:?}");
    }
    Ok(())
}

async fn interrupts_are_no_results(ctx: Ctx) -> Done {
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    write(ctx.saver(), &stored, "task", &[("__interrupt__", "wait".into())]).await?;
    let once = PutWritesOptions::default().once().checkpoint_stored();
    write_on(ctx.saver(), &stored, "task", &[("x", 1.into())], once).await?;
    ensure_eq!(read(ctx.saver(), &stored).await?.pending_writes.len(), 2, "number of writes");
    Ok(())
}

async fn special_channels_are_no_result(ctx: Ctx) -> Done {
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    let once = PutWritesOptions::default().once();
    for writes in [&[("__error__", 1.into())][..], &[("x", 1.into()), ("__resume__", 2.into())]] {
        let result = write_on(ctx.saver(), &stored, "task", writes, once.clone()).await;
        expect_kind(result, ErrorKind::InvalidArgument, "put_writes")?;
    }
    ensure!(read(ctx.saver(), &stored).await?.pending_writes.is_empty(), "something was stored");
    Ok(())
}

async fn writes_on_a_checkpoint_that_is_not_stored(ctx: Ctx) -> Done {
    let made = checkpoint(&[]);
    let config = CheckpointConfig::new(ctx.thread()).with_checkpoint_id(made.id.clone());
    let required = PutWritesOptions::default().checkpoint_stored();
    let writes = [("a", bytes(&b"value"[..]))];
    expect_conflict(
        write_on(ctx.saver(), &config, "task", &writes, required.clone()).await,
        "writes without a checkpoint",
    )?;
    write_on(ctx.saver(), &config, "early", &writes, PutWritesOptions::default().once()).await?;
    put(ctx.saver(), &config.clone().latest(), &made).await?;
    write_on(ctx.saver(), &config, "task", &writes, required.clone()).await?;
    write_on(ctx.saver(), &config, "task", &[("__error__", "boom".into())], required).await?;
    let stored = read(ctx.saver(), &config).await?.pending_writes;
    let boom = "boom".into();
    let expected = [("early", "a", &writes[0].1), ("task", "__error__", &boom), ("task", "a", &writes[0].1)];
    ensure_eq!(triples(&stored), expected, "writes");
    Ok(())
}

async fn a_pruned_parent_is_a_conflict(ctx: Ctx) -> Done {
    let root = CheckpointConfig::new(ctx.thread());
    let first = put(ctx.saver(), &root, &at_version(1, &[("a", encode(&list(&[1]))?)])).await?;
    let second = put(ctx.saver(), &first, &at_version(2, &[("a", encode(&list(&[2]))?)])).await?;
    ctx.saver().prune(&[root.thread_id()], PruneStrategy::KeepLatest).await?;
    let next = at_version(3, &[("a", encode(&list(&[3]))?)]);
    for options in [parent_stored(), latest()] {
        expect_conflict(put_on(ctx.saver(), &first, &next, &options).await, "on the pruned parent")?;
    }
    put_on(ctx.saver(), &second, &next, &latest()).await?;
    Ok(())
}
