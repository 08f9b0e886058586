//! Metadata: merging, reserved keys and round trips.

use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig, CheckpointMetadata, ErrorKind, Value};

use crate::case::Ctx;
use crate::fixture::{Done, canonical_metadata, checkpoint, encode, list, map, put_with, read};

cases!("metadata";
    merges_scalars_of_the_config,
    omits_reserved_keys,
    own_entries_override_the_configs,
    keeps_unknown_keys_and_nesting,
    drops_nul_in_top_level_texts,
    nested_nul_is_kept_or_rejected,
    keeps_text_of_every_script,
    keeps_numbers,
    empty,
    large,
);

/// Stores metadata and reads it back.
async fn stored(
    ctx: &Ctx,
    config: &CheckpointConfig,
    metadata: &CheckpointMetadata,
) -> Result<CheckpointMetadata, crate::Failure> {
    let stored = put_with(ctx.saver(), config, &checkpoint(&[]), metadata).await?;
    Ok(canonical_metadata(&read(ctx.saver(), &stored).await?.metadata))
}

async fn merges_scalars_of_the_config(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread())
        .with_metadata("run_id", "run")
        .with_metadata("number", 7)
        .with_metadata("ratio", 0.5)
        .with_metadata("flag", true)
        .with_configurable("user_id", "u-1")
        .with_configurable("seat", 4);
    let found = stored(&ctx, &config, &CheckpointMetadata::new("loop", 1)).await?;
    let expected = CheckpointMetadata::new("loop", 1)
        .with("run_id", "run")
        .with("number", 7)
        .with("ratio", 0.5)
        .with("flag", true)
        .with("user_id", "u-1")
        .with("seat", 4);
    ensure_eq!(found, expected, "metadata");
    Ok(())
}

async fn omits_reserved_keys(ctx: Ctx) -> Done {
    let mut config = CheckpointConfig::new(ctx.thread())
        .with_metadata("null", Value::Nil)
        .with_metadata("list", list(&[1]))
        .with_metadata("map", map(&[]))
        .with_metadata("__start__", "x")
        .with_configurable("__pregel_task_id", "x");
    for key in [
        "thread_id",
        "checkpoint_id",
        "checkpoint_ns",
        "checkpoint_map",
        "langgraph_step",
        "langgraph_node",
        "langgraph_triggers",
        "langgraph_path",
        "langgraph_checkpoint_ns",
    ] {
        config = config.with_metadata(key, "x").with_configurable(key, "x");
    }
    let metadata = CheckpointMetadata::new("loop", 1);
    ensure_eq!(stored(&ctx, &config, &metadata).await?, metadata, "metadata");
    Ok(())
}

async fn own_entries_override_the_configs(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread())
        .with_metadata("source", "config")
        .with_metadata("both", "metadata")
        .with_configurable("both", "configurable")
        .with_configurable("own", "configurable");
    let metadata = CheckpointMetadata::new("loop", 1).with("own", "own");
    let found = stored(&ctx, &config, &metadata).await?;
    ensure_eq!(found, metadata.with("both", "metadata"), "metadata");
    Ok(())
}

async fn keeps_unknown_keys_and_nesting(ctx: Ctx) -> Done {
    let nested = map(&[
        ("list", Value::Array(vec![map(&[("deep", list(&[1, 2]))]), Value::Nil, true.into()])),
        ("", "an empty key".into()),
        ("a.b", map(&[("c:d|e", 1.into())])),
        ("null", Value::Nil),
    ]);
    let metadata = CheckpointMetadata::new("fork", 3)
        .with("unknown", nested.clone())
        .with("counters_since_delta_snapshot", map(&[("log", list(&[3, 4]))]))
        .with("parents", map(&[("", "1f1e4fbf-bea1-6f34-bfff-a8ab9f516d8b".into())]))
        .with("a.b", 1)
        .with("null", Value::Nil)
        .with("empty_map", map(&[]))
        .with("empty_list", list(&[]));
    let found = stored(&ctx, &CheckpointConfig::new(ctx.thread()), &metadata).await?;
    ensure_eq!(found, canonical_metadata(&metadata), "metadata");
    Ok(())
}

async fn drops_nul_in_top_level_texts(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread()).with_metadata("run_id", "r\0un\0");
    let metadata = CheckpointMetadata::new("lo\0op", 1).with("nul", "\0").with("text", "a\0b\0c");
    let found = stored(&ctx, &config, &metadata).await?;
    let expected =
        CheckpointMetadata::new("loop", 1).with("nul", "").with("text", "abc").with("run_id", "run");
    ensure_eq!(found, expected, "metadata");
    Ok(())
}

async fn nested_nul_is_kept_or_rejected(ctx: Ctx) -> Done {
    let inside = [
        CheckpointMetadata::new("loop", 1).with("map", map(&[("k", "a\0b".into())])),
        CheckpointMetadata::new("loop", 1).with("list", Value::Array(vec!["\0".into()])),
        CheckpointMetadata::new("loop", 1).with("map", map(&[("k\0", 1.into())])),
        CheckpointMetadata::new("loop", 1).with("k\0", 1),
    ];
    for metadata in inside {
        let config = CheckpointConfig::new(ctx.thread());
        let made = checkpoint(&[("items", encode(&list(&[1]))?)]);
        match put_with(ctx.saver(), &config, &made, &metadata).await {
            Ok(stored) => ensure_eq!(read(ctx.saver(), &stored).await?.metadata, metadata, "metadata"),
            Err(error) => {
                ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "kind of {error}");
                ensure_eq!(ctx.saver().get_tuple(&config).await?, None, "refused, but stored");
            }
        }
    }
    Ok(())
}

async fn keeps_text_of_every_script(ctx: Ctx) -> Done {
    let mut metadata = CheckpointMetadata::new("loop", 1);
    for text in [
        "世界",
        "🦀",
        "e\u{301}",
        "\u{202e}",
        "\"quoted\"",
        "back\\slash",
        "a\nb\tc\r",
        "\u{7f}\u{1}",
        "</x>",
        "\u{2028}",
    ] {
        metadata.insert(text, text);
    }
    let found = stored(&ctx, &CheckpointConfig::new(ctx.thread()), &metadata).await?;
    ensure_eq!(found, canonical_metadata(&metadata), "metadata");
    Ok(())
}

async fn keeps_numbers(ctx: Ctx) -> Done {
    let metadata = CheckpointMetadata::new("loop", -1)
        .with("max", i64::MAX)
        .with("min", i64::MIN)
        .with("float", 0.1)
        .with("small", 5e-324)
        .with("negative", -2.5)
        .with("whole", 1.0);
    let found = stored(&ctx, &CheckpointConfig::new(ctx.thread()), &metadata).await?;
    ensure_eq!(found, metadata, "metadata");
    Ok(())
}

async fn empty(ctx: Ctx) -> Done {
    let found = stored(&ctx, &CheckpointConfig::new(ctx.thread()), &CheckpointMetadata::default()).await?;
    ensure_eq!(found, CheckpointMetadata::default(), "metadata");
    Ok(())
}

async fn large(ctx: Ctx) -> Done {
    let mut metadata = CheckpointMetadata::new("loop", 1).with("long", "x".repeat(100_000));
    for at in 0..500 {
        metadata.insert(format!("key {at}"), at);
    }
    let found = stored(&ctx, &CheckpointConfig::new(ctx.thread()), &metadata).await?;
    ensure!(found == metadata, "the metadata differs");
    Ok(())
}
