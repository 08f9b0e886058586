//! Conditions on metadata.

use checkpoint_core::{
    CheckpointConfig, CheckpointMetadata, ErrorKind, Filter, FilterSemantics, ListQuery, SaverExt, Str, Value,
};

use crate::case::{Ctx, Need};
use crate::fixture::{Done, chain, checkpoint, ids, list, map, prepared, put_with};

cases!("filters";
    scalars,
    numbers_compare_by_value,
    nested_maps_and_lists,
    explicit_null,
    several_conditions,
    empty_matches_everything,
    merged_keys_match,
    text_is_compared_whole,
    any_text_as_key_and_value,
    by_equality [Need::Filter(FilterSemantics::Equality)],
    by_containment [Need::Filter(FilterSemantics::Containment)],
    over_all_threads,
    with_before_and_limit,
);

fn stored_metadata() -> CheckpointMetadata {
    CheckpointMetadata::new("loop", 1)
        .with("text", "Text")
        .with("empty", "")
        .with("int", 7)
        .with("big", i64::MAX)
        .with("negative", -3)
        .with("float", 1.5)
        .with("whole", 2.0)
        .with("yes", true)
        .with("no", false)
        .with("one", 1)
        .with("null", Value::Nil)
        .with("map", map(&[("a", 1.into()), ("b", map(&[("c", "d".into())]))]))
        .with("list", list(&[1, 2]))
        .with("empty_list", list(&[]))
        .with("世界", "🦀")
}

/// A thread with a checkpoint with the metadata above, and one with other metadata.
async fn stored(ctx: &Ctx) -> checkpoint_core::Result<ListQuery> {
    let thread_id = ctx.thread();
    let config = CheckpointConfig::new(thread_id.clone());
    put_with(ctx.saver(), &config, &checkpoint(&[]), &stored_metadata()).await?;
    let other = CheckpointMetadata::new("other", 99).with("null", "not null").with("missing", "here");
    put_with(ctx.saver(), &config, &checkpoint(&[]), &other).await?;
    Ok(ListQuery::thread(thread_id))
}

/// Fails unless each condition matches the checkpoint as expected.
async fn check(ctx: &Ctx, table: &[(&str, Value, bool)]) -> Done {
    let query = stored(ctx).await?;
    for (key, wanted, expected) in table {
        let filter = Filter::new().eq(*key, wanted.clone());
        let found = ctx.saver().list_all(query.clone().filter(filter)).await?;
        let found = found.iter().any(|tuple| tuple.metadata.source() == Some("loop"));
        ensure_eq!(found, *expected, "whether {key} = {wanted:?} matches");
    }
    Ok(())
}

async fn scalars(ctx: Ctx) -> Done {
    let table = [
        ("text", "Text".into(), true),
        ("text", "text".into(), false),
        ("text", "Tex".into(), false),
        ("text", Value::Nil, false),
        ("empty", "".into(), true),
        ("empty", " ".into(), false),
        ("int", 7.into(), true),
        ("int", 8.into(), false),
        ("int", "7".into(), false),
        ("big", i64::MAX.into(), true),
        ("negative", (-3).into(), true),
        ("negative", 3.into(), false),
        ("yes", true.into(), true),
        ("yes", false.into(), false),
        ("no", false.into(), true),
        ("missing", "here".into(), false),
        ("nowhere", "x".into(), false),
        ("世界", "🦀".into(), true),
        ("世界", "?".into(), false),
    ];
    check(&ctx, &table).await
}

async fn numbers_compare_by_value(ctx: Ctx) -> Done {
    let table = [
        ("int", 7.0.into(), true),
        ("int", 7.5.into(), false),
        ("float", 1.5.into(), true),
        ("float", 1.into(), false),
        ("whole", 2.into(), true),
        ("whole", 2.0.into(), true),
        ("one", 1.0.into(), true),
    ];
    check(&ctx, &table).await
}

async fn nested_maps_and_lists(ctx: Ctx) -> Done {
    let inner = map(&[("c", "d".into())]);
    let table = [
        ("map", map(&[("a", 1.into()), ("b", inner.clone())]), true),
        ("map", map(&[("b", inner), ("a", 1.into())]), true),
        ("map", map(&[("a", 2.into())]), false),
        ("map", map(&[("a", 1.into()), ("b", map(&[("c", "e".into())]))]), false),
        ("map", list(&[1]), false),
        ("list", list(&[1, 2]), true),
        ("list", list(&[3]), false),
        ("list", list(&[1, 2, 3]), false),
        ("empty_list", list(&[]), true),
        ("empty_list", list(&[1]), false),
        ("parents", map(&[]), true),
    ];
    check(&ctx, &table).await
}

async fn explicit_null(ctx: Ctx) -> Done {
    check(
        &ctx,
        &[("null", Value::Nil, true), ("null", "not null".into(), false), ("null", false.into(), false)],
    )
    .await
}

async fn several_conditions(ctx: Ctx) -> Done {
    let query = stored(&ctx).await?;
    for (filter, expected) in [
        (Filter::new().eq("text", "Text").eq("int", 7).eq("yes", true), 1),
        (Filter::new().eq("text", "Text").eq("int", 8), 0),
        (Filter::new().eq("text", "Text").eq("missing", "here"), 0),
        (Filter::new().eq("int", 7).eq("int", 8), 0),
        (Filter::new().eq("parents", map(&[])), 2),
    ] {
        let found = ids(ctx.saver(), query.clone().filter(filter.clone())).await?;
        ensure_eq!(found.len(), expected, "matches of {filter:?}");
    }
    Ok(())
}

async fn empty_matches_everything(ctx: Ctx) -> Done {
    let query = stored(&ctx).await?;
    ensure_eq!(ids(ctx.saver(), query.filter(Filter::new())).await?.len(), 2, "matches");
    Ok(())
}

async fn merged_keys_match(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let config =
        CheckpointConfig::new(thread_id.clone()).with_metadata("tenant", "acme").with_configurable("seat", 4);
    put_with(ctx.saver(), &config, &checkpoint(&[]), &CheckpointMetadata::new("loop", 0)).await?;
    let query = ListQuery::thread(thread_id);
    let both = Filter::new().eq("tenant", "acme").eq("seat", 4);
    ensure_eq!(ids(ctx.saver(), query.clone().filter(both)).await?.len(), 1, "matches");
    let other = Filter::new().eq("tenant", "other");
    ensure_eq!(ids(ctx.saver(), query.filter(other)).await?.len(), 0, "matches of another tenant");
    Ok(())
}

async fn text_is_compared_whole(ctx: Ctx) -> Done {
    let table = [
        ("text", "%"),
        ("text", "T*"),
        ("text", "____"),
        ("text", "Text "),
        ("text", "Text' OR '1'='1"),
        ("%", "Text"),
        ("tex_", "Text"),
    ];
    let query = stored(&ctx).await?;
    for (key, wanted) in table {
        // A key that the database cannot express as a path may be rejected.
        match ids(ctx.saver(), query.clone().filter(Filter::new().eq(key, wanted))).await {
            Ok(found) => ensure_eq!(found.len(), 0, "matches of {key}"),
            Err(error) => ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "error for {key}"),
        }
    }
    Ok(())
}

async fn any_text_as_key_and_value(ctx: Ctx) -> Done {
    let texts = [
        "a b", "a'b", "a\"b", "a\\b", "$", "$.a", "a[0]", "[0]", "#", "a:b", "{a}", "é", "世界", "🦀", "\n",
        "a/b", "--", "", "?", "@>", "a.b", ".", "..", "a..b",
    ];
    for text in texts {
        let thread_id = ctx.thread();
        let config = CheckpointConfig::new(thread_id.clone());
        let metadata = CheckpointMetadata::new("loop", 0).with(text, text);
        put_with(ctx.saver(), &config, &checkpoint(&[]), &metadata).await?;
        let query = ListQuery::thread(thread_id);
        for (wanted, expected) in [(text, 1), ("something else", 0)] {
            match ids(ctx.saver(), query.clone().filter(Filter::new().eq(text, wanted))).await {
                Ok(found) => ensure_eq!(found.len(), expected, "matches of {text:?} = {wanted:?}"),
                Err(error) => ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "error for {text:?}"),
            }
        }
    }
    Ok(())
}

async fn by_equality(ctx: Ctx) -> Done {
    let table = [
        ("nowhere", Value::Nil, true),
        ("missing", Value::Nil, true),
        ("yes", 1.into(), true),
        ("no", 0.into(), true),
        ("one", true.into(), true),
        ("int", true.into(), false),
        ("map.a", 1.into(), true),
        ("map.b.c", "d".into(), true),
        ("map.b.c", "e".into(), false),
        ("map.nowhere", Value::Nil, true),
        ("map.b", map(&[("c", "d".into())]), true),
        ("map", map(&[("a", 1.into())]), false),
        ("map", map(&[]), false),
        ("list", list(&[1]), false),
        ("list", list(&[2, 1]), false),
        ("list", list(&[]), false),
    ];
    check(&ctx, &table).await
}

async fn by_containment(ctx: Ctx) -> Done {
    let table = [
        ("nowhere", Value::Nil, false),
        ("missing", Value::Nil, false),
        ("yes", 1.into(), false),
        ("one", true.into(), false),
        ("map.a", 1.into(), false),
        ("map", map(&[("a", 1.into())]), true),
        ("map", map(&[("b", map(&[]))]), true),
        ("map", map(&[]), true),
        ("list", list(&[1]), true),
        ("list", list(&[2, 1]), true),
        ("list", list(&[]), true),
        ("text", map(&[]), false),
    ];
    check(&ctx, &table).await
}

async fn over_all_threads(ctx: Ctx) -> Done {
    let tag = crate::fixture::random();
    let mut expected = Vec::new();
    for checkpoint_ns in ["", "child"] {
        let config = CheckpointConfig::new(ctx.thread()).with_checkpoint_ns(checkpoint_ns);
        let metadata = CheckpointMetadata::new("loop", 0).with("tag", &*tag);
        expected.push(put_with(ctx.saver(), &config, &checkpoint(&[]), &metadata).await?);
    }
    chain(ctx.saver(), &ctx.thread(), "", 3).await?;
    expected.reverse();
    let query = ListQuery::all().filter(Filter::new().eq("tag", &*tag));
    let found: Vec<_> =
        ctx.saver().list_all(query.clone()).await?.into_iter().map(|tuple| tuple.config).collect();
    ensure_eq!(found, expected, "configs");
    let found: Vec<Str> = ids(ctx.saver(), query.checkpoint_ns("child")).await?;
    ensure_eq!(found.len(), 1, "checkpoints in one namespace of all threads");
    Ok(())
}

async fn with_before_and_limit(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = crate::fixture::newest_first(&chain(ctx.saver(), &thread_id, "", 40).await?);
    let query = ListQuery::thread(thread_id).filter(Filter::new().eq("source", "input"));
    // Steps with the source `input` are even: newest first, they are at positions 1, 3, 5 and so on.
    let matching: Vec<_> = stored.iter().skip(1).step_by(2).cloned().collect();
    ensure_eq!(ids(ctx.saver(), query.clone()).await?, matching, "all matches");
    ensure_eq!(ids(ctx.saver(), query.clone().limit(5)).await?, matching[..5], "five matches");
    let cursor = prepared(matching.get(4))?;
    ensure_eq!(
        ids(ctx.saver(), query.before(cursor.clone()).limit(5)).await?,
        matching[5..10],
        "the next five"
    );
    Ok(())
}
