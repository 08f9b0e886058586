//! Pending writes: replacement, indexes and order.

use checkpoint_core::{BaseCheckpointSaver, ChannelValue, CheckpointConfig, PendingWrite, Str, special};

use crate::case::Ctx;
use crate::fixture::{
    Done, checkpoint, encode, expect_kind, list, prepared, put, random, read, triples, write, write_at,
};

cases!("writes";
    before_put,
    before_put_are_invisible,
    the_first_write_wins,
    a_call_of_special_channels_replaces,
    a_mixed_call_keeps_stored_writes,
    special_channels_have_fixed_indexes_and_take_a_position,
    ordered_by_path_task_and_index,
    path_and_index_round_trip,
    the_path_of_a_replaced_write,
    an_empty_call_is_a_no_op,
    tasks_do_not_share_indexes,
    the_same_channel_twice,
    survive_a_second_put,
    on_an_older_checkpoint,
    many_in_one_call,
);

async fn stored(ctx: &Ctx) -> checkpoint_core::Result<CheckpointConfig> {
    put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await
}

async fn before_put(ctx: Ctx) -> Done {
    let made = checkpoint(&[]);
    let config = CheckpointConfig::new(ctx.thread());
    let ahead = config.clone().with_checkpoint_id(made.id.clone());
    write(ctx.saver(), &ahead, "task", &[("ch", encode(&list(&[1]))?)]).await?;
    put(ctx.saver(), &config, &made).await?;
    let tuple = read(ctx.saver(), &ahead).await?;
    ensure_eq!(triples(&tuple.pending_writes), [("task", "ch", &encode(&list(&[1]))?)], "writes");
    Ok(())
}

async fn before_put_are_invisible(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let config = CheckpointConfig::new(thread_id.clone()).with_checkpoint_id(random());
    write(ctx.saver(), &config, "task", &[("ch", 1.into())]).await?;
    ensure_eq!(ctx.saver().get_tuple(&config).await?, None, "a checkpoint with writes only");
    ensure_eq!(
        ctx.saver().get_tuple(&config.latest()).await?,
        None,
        "the newest of a thread with writes only"
    );
    let found = crate::fixture::ids(ctx.saver(), checkpoint_core::ListQuery::thread(thread_id)).await?;
    ensure_eq!(found.len(), 0, "listing");
    Ok(())
}

async fn the_first_write_wins(ctx: Ctx) -> Done {
    let config = stored(&ctx).await?;
    write(ctx.saver(), &config, "task", &[("a", "first".into())]).await?;
    write(ctx.saver(), &config, "task", &[("b", "second".into()), ("c", "new".into())]).await?;
    let tuple = read(ctx.saver(), &config).await?;
    let expected = [("task", "a", &"first".into()), ("task", "c", &"new".into())];
    ensure_eq!(triples(&tuple.pending_writes), expected, "writes");
    Ok(())
}

async fn a_call_of_special_channels_replaces(ctx: Ctx) -> Done {
    let config = stored(&ctx).await?;
    for round in ["first", "second"] {
        let blob = encode(&vec![round].into())?;
        let writes = [(special::INTERRUPT, blob), (special::RESUME, round.into())];
        write(ctx.saver(), &config, "task", &writes).await?;
    }
    let tuple = read(ctx.saver(), &config).await?;
    let blob = encode(&vec!["second"].into())?;
    let expected = [("task", special::RESUME, &"second".into()), ("task", special::INTERRUPT, &blob)];
    ensure_eq!(triples(&tuple.pending_writes), expected, "writes, by index");
    Ok(())
}

async fn a_mixed_call_keeps_stored_writes(ctx: Ctx) -> Done {
    let config = stored(&ctx).await?;
    write(ctx.saver(), &config, "task", &[(special::RESUME, "first".into())]).await?;
    let mixed = [(special::RESUME, "second".into()), ("x", "new".into()), (special::ERROR, "error".into())];
    write(ctx.saver(), &config, "task", &mixed).await?;
    let tuple = read(ctx.saver(), &config).await?;
    let expected = [
        ("task", special::RESUME, &"first".into()),
        ("task", special::ERROR, &"error".into()),
        ("task", "x", &"new".into()),
    ];
    ensure_eq!(triples(&tuple.pending_writes), expected, "writes, by index");
    Ok(())
}

async fn special_channels_have_fixed_indexes_and_take_a_position(ctx: Ctx) -> Done {
    let config = stored(&ctx).await?;
    write(ctx.saver(), &config, "t1", &[(special::RESUME, 1.into()), ("x", 2.into())]).await?;
    let specials = [special::INTERRUPT, special::RESUME, special::SCHEDULED, special::ERROR];
    write(ctx.saver(), &config, "t2", &specials.map(|channel| (channel, channel.into()))).await?;
    let tuple = read(ctx.saver(), &config).await?;
    let found: Vec<_> =
        tuple.pending_writes.iter().map(|write| (&*write.task_id, &*write.channel, write.idx)).collect();
    let expected = [
        ("t1", special::RESUME, -4),
        ("t1", "x", 1),
        ("t2", special::RESUME, -4),
        ("t2", special::INTERRUPT, -3),
        ("t2", special::SCHEDULED, -2),
        ("t2", special::ERROR, -1),
    ];
    ensure_eq!(found, expected, "tasks, channels and indexes");
    Ok(())
}

/// Paths and tasks in their order: by code point, not by a language's collation.
const ORDER: [(&str, &str); 9] = [
    ("", "0"),
    ("", "B"),
    ("", "a"),
    ("", "é"),
    ("~", "4"),
    ("~__pregel_pull, Z", "3"),
    ("~__pregel_pull, plan", "2"),
    ("~__pregel_push, 0000000000, 0000000000", "9"),
    ("~__pregel_push, 0000000001, 0000000000", "1"),
];

async fn ordered_by_path_task_and_index(ctx: Ctx) -> Done {
    let config = stored(&ctx).await?;
    for at in [4, 0, 8, 2, 6, 1, 7, 3, 5] {
        let (path, task) = prepared(ORDER.get(at))?;
        write_at(ctx.saver(), &config, task, path, &[("a", 0.into()), ("b", 1.into())]).await?;
    }
    let tuple = read(ctx.saver(), &config).await?;
    let found: Vec<_> = tuple.pending_writes.iter().map(PendingWrite::sort_key).collect();
    let expected: Vec<_> =
        ORDER.iter().flat_map(|(path, task)| [(*path, *task, 0), (*path, *task, 1)]).collect();
    ensure_eq!(found, expected, "order");
    let listed =
        checkpoint_core::SaverExt::list_all(ctx.saver(), checkpoint_core::ListQuery::from_config(&config));
    let listed = listed.await?;
    let listed: Vec<_> =
        listed.iter().flat_map(|tuple| &tuple.pending_writes).map(PendingWrite::sort_key).collect();
    ensure_eq!(listed, expected, "order in a listing");
    Ok(())
}

async fn path_and_index_round_trip(ctx: Ctx) -> Done {
    let config = stored(&ctx).await?;
    let path = "~__pregel_push, 0000000000, 0000000001";
    write_at(ctx.saver(), &config, "task", path, &[("a", 0.into()), ("b", 1.into())]).await?;
    for (at, write) in (0_i32..).zip(read(ctx.saver(), &config).await?.pending_writes) {
        ensure_eq!((&*write.task_path, write.idx), (path, at), "path and index");
    }
    Ok(())
}

async fn the_path_of_a_replaced_write(ctx: Ctx) -> Done {
    // Databases differ in whether the old path is kept; the write must have one of the two.
    let config = stored(&ctx).await?;
    for path in ["~first", "~second"] {
        write_at(ctx.saver(), &config, "task", path, &[(special::RESUME, path.into())]).await?;
    }
    let tuple = read(ctx.saver(), &config).await?;
    ensure_eq!(triples(&tuple.pending_writes), [("task", special::RESUME, &"~second".into())], "writes");
    let paths: Vec<_> = tuple.pending_writes.iter().map(|write| &*write.task_path).collect();
    ensure!(paths == ["~first"] || paths == ["~second"], "path: {paths:?}");
    Ok(())
}

async fn an_empty_call_is_a_no_op(ctx: Ctx) -> Done {
    let config = stored(&ctx).await?;
    write(ctx.saver(), &config, "task", &[]).await?;
    ensure_eq!(read(ctx.saver(), &config).await?.pending_writes, [], "writes");
    let unnamed =
        ctx.saver().put_writes(&config.clone().latest(), &[("ch".into(), 1.into())], "task", "").await;
    expect_kind(unnamed, checkpoint_core::ErrorKind::InvalidArgument, "put_writes without a checkpoint id")?;
    ensure_eq!(read(ctx.saver(), &config).await?.pending_writes, [], "writes after the rejected call");
    Ok(())
}

async fn tasks_do_not_share_indexes(ctx: Ctx) -> Done {
    let config = stored(&ctx).await?;
    let look_alike = [("a:1", "x"), ("a", "1:x"), ("a:1:x", ""), ("", "a:1:x")];
    for (task, path) in look_alike {
        write_at(ctx.saver(), &config, task, path, &[("ch", task.into())]).await?;
    }
    let writes = read(ctx.saver(), &config).await?.pending_writes;
    ensure_eq!(writes.len(), look_alike.len(), "number of writes");
    for write in writes {
        ensure_eq!(write.value, (&*write.task_id).into(), "value");
    }
    Ok(())
}

async fn the_same_channel_twice(ctx: Ctx) -> Done {
    let config = stored(&ctx).await?;
    write(ctx.saver(), &config, "task", &[("log", 1.into()), ("log", 2.into()), ("log", 2.into())]).await?;
    let tuple = read(ctx.saver(), &config).await?;
    let expected = [("task", "log", &1.into()), ("task", "log", &2.into()), ("task", "log", &2.into())];
    ensure_eq!(triples(&tuple.pending_writes), expected, "writes");
    // Two special ones in one call have the same index: the last one wins, since each replaces.
    write(ctx.saver(), &config, "other", &[(special::RESUME, 1.into()), (special::RESUME, 2.into())]).await?;
    let tuple = read(ctx.saver(), &config).await?;
    let other: Vec<_> =
        triples(&tuple.pending_writes).into_iter().filter(|(task, ..)| *task == "other").collect();
    ensure_eq!(other, [("other", special::RESUME, &2.into())], "special writes");
    // In a mixed call none replaces: the first one wins.
    write(
        ctx.saver(),
        &config,
        "third",
        &[(special::RESUME, 1.into()), (special::RESUME, 2.into()), ("x", 3.into())],
    )
    .await?;
    let tuple = read(ctx.saver(), &config).await?;
    let third: Vec<_> =
        triples(&tuple.pending_writes).into_iter().filter(|(task, ..)| *task == "third").collect();
    ensure_eq!(
        third,
        [("third", special::RESUME, &1.into()), ("third", "x", &3.into())],
        "writes of a mixed call"
    );
    Ok(())
}

async fn survive_a_second_put(ctx: Ctx) -> Done {
    let made = checkpoint(&[("a", 1.into())]);
    let config = CheckpointConfig::new(ctx.thread());
    let stored = put(ctx.saver(), &config, &made).await?;
    write(ctx.saver(), &stored, "task", &[("ch", 1.into())]).await?;
    put(ctx.saver(), &config, &made).await?;
    ensure_eq!(read(ctx.saver(), &stored).await?.pending_writes.len(), 1, "number of writes");
    Ok(())
}

async fn on_an_older_checkpoint(ctx: Ctx) -> Done {
    let older = stored(&ctx).await?;
    let newer = put(ctx.saver(), &older, &checkpoint(&[])).await?;
    write(ctx.saver(), &older, "task", &[("ch", "late".into())]).await?;
    let tuple = read(ctx.saver(), &older).await?;
    ensure_eq!(triples(&tuple.pending_writes), [("task", "ch", &"late".into())], "writes of the older");
    ensure_eq!(read(ctx.saver(), &newer).await?.pending_writes, [], "writes of the newer");
    Ok(())
}

async fn many_in_one_call(ctx: Ctx) -> Done {
    let config = stored(&ctx).await?;
    let writes: Vec<(Str, ChannelValue)> =
        (0..3000_i64).map(|at| (Str::from(format!("ch{}", at % 7)), at.into())).collect();
    ctx.saver().put_writes(&config, &writes, "task", "").await?;
    let found: Vec<_> = read(ctx.saver(), &config)
        .await?
        .pending_writes
        .into_iter()
        .map(|write| (write.channel, write.value))
        .collect();
    ensure_eq!(found.len(), writes.len(), "number of writes");
    ensure!(found == writes, "the writes are not in the order of the call");
    Ok(())
}
