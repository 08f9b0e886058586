//! The fields of a checkpoint.

use checkpoint_core::{
    ChannelValue, ChannelVersion, ChannelVersions, Checkpoint, CheckpointConfig, Str, Value,
};

use crate::case::Ctx;
use crate::fixture::{Done, checkpoint, encode, list, map, put, read};

cases!("fields";
    unknown_fields_are_kept,
    updated_channels,
    updated_channels_survive_a_read_and_a_put,
    versions_of_every_kind,
    versions_seen,
    versions_without_values,
    the_version_and_time_of_the_checkpoint,
    next_versions,
);

/// Stores a checkpoint, reads it, and compares.
async fn check(ctx: &Ctx, made: &Checkpoint) -> Done {
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), made).await?;
    ensure_eq!(&read(ctx.saver(), &stored).await?.checkpoint, made, "checkpoint");
    Ok(())
}

async fn unknown_fields_are_kept(ctx: Ctx) -> Done {
    let mut made = checkpoint(&[("a", 1.into())]);
    made.extra.insert("current_tasks".into(), encode(&map(&[]))?);
    made.extra.insert("flag".into(), true.into());
    made.extra.insert("nothing".into(), ChannelValue::Null);
    made.extra.insert("future field".into(), encode(&map(&[("k", list(&[1, 2]))]))?);
    check(&ctx, &made).await
}

async fn updated_channels(ctx: Ctx) -> Done {
    for updated in [None, Some(vec![]), Some(vec!["a".into(), "世界".into()])] {
        let mut made = checkpoint(&[("a", 1.into())]);
        made.updated_channels = updated;
        check(&ctx, &made).await?;
    }
    Ok(())
}

/// An absent list stays absent, and a null stays null.
async fn updated_channels_survive_a_read_and_a_put(ctx: Ctx) -> Done {
    const FIELD: &str = "updated_channels";
    for updated in [None, Some(None), Some(Some(vec![])), Some(Some(vec!["a".into(), "世界".into()]))] {
        let mut made = checkpoint(&[("a", 1.into())]);
        match updated.clone() {
            None => {}
            Some(None) => drop(made.extra.insert(FIELD.into(), ChannelValue::Null)),
            Some(channels) => made.updated_channels = channels,
        }
        let mut config = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &made).await?;
        for time in ["first", "second"] {
            let found = read(ctx.saver(), &config).await?.checkpoint;
            ensure_eq!(found.updated_channels, updated.clone().flatten(), "list in the {time} read");
            let null = matches!(updated, Some(None)).then_some(&ChannelValue::Null);
            ensure_eq!(found.extra.get(FIELD), null, "null in the {time} read");
            ensure_eq!(found, made, "checkpoint in the {time} read");
            config = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &found).await?;
        }
    }
    Ok(())
}

async fn versions_of_every_kind(ctx: Ctx) -> Done {
    let versions: [ChannelVersion; 8] = [
        1.into(),
        i64::MAX.into(),
        0.into(),
        2.5.into(),
        "00000000000000000000000000000003.0.456735525831512".into(),
        "00000000000000000000000000000002.".into(),
        "".into(),
        "odd: {}|%".into(),
    ];
    for (wrap, version) in
        versions.into_iter().flat_map(|version| [(false, version.clone()), (true, version)])
    {
        let value = if wrap { encode(&list(&[1]))? } else { 1.into() };
        let mut made = checkpoint(&[]).with_channel("a", value, version.clone());
        made.versions_seen.insert("node".into(), ChannelVersions::from_iter([("a".into(), version)]));
        check(&ctx, &made).await?;
    }
    Ok(())
}

async fn versions_seen(ctx: Ctx) -> Done {
    let mut made = checkpoint(&[]);
    let seen = |entries: &[(&str, &str)]| -> ChannelVersions {
        entries
            .iter()
            .map(|(channel, version)| (Str::from(*channel), ChannelVersion::from(*version)))
            .collect()
    };
    made.versions_seen.insert("__input__".into(), seen(&[]));
    made.versions_seen.insert("__interrupt__".into(), seen(&[("a", "1.5"), ("b", "2.5")]));
    made.versions_seen.insert("node: 世界".into(), seen(&[("branch:to:x", "3.5")]));
    made.versions_seen
        .insert("__snapshot_bumps__".into(), seen(&[("node|channel", "1.5"), ("node:channel", "2")]));
    check(&ctx, &made).await
}

async fn versions_without_values(ctx: Ctx) -> Done {
    let mut made = checkpoint(&[("kept", encode(&list(&[1]))?)]);
    made.channel_versions.insert("consumed".into(), "2.5".into());
    check(&ctx, &made).await
}

async fn the_version_and_time_of_the_checkpoint(ctx: Ctx) -> Done {
    for v in [1, 2, 3, 4, 5] {
        let mut made = checkpoint(&[("a", 1.into())]);
        (made.v, made.ts) = (v, "2026-11-20T16:03:53+00:00".into());
        check(&ctx, &made).await?;
    }
    let mut made = checkpoint(&[("a", encode(&Value::Array(vec![]))?)]);
    made.ts = Str::default();
    check(&ctx, &made).await
}

async fn next_versions(ctx: Ctx) -> Done {
    let mut version = None;
    for major in 1..=20 {
        let next = ctx.saver().get_next_version(version.as_ref());
        ensure_eq!(next.major(), major, "whole part of {next}");
        if let Some(version) = &version {
            ensure!(next.is_newer_than(version), "{next} is not newer than {version}");
        }
        version = Some(next);
    }
    Ok(())
}
