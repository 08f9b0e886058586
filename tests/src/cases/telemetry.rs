//! Every call has a span with its arguments, and is counted.

use checkpoint_core::backend::telemetry::{BYTES_READ, BYTES_WRITTEN};
use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig, ErrorKind, ListQuery, SaverExt};

use super::operations::operations;
use crate::OpenOptions;
use crate::case::{Ctx, Need};
use crate::fixture::{Done, bytes, checkpoint, encode, expect_kind, list as numbers, put, write};
use crate::target::Facility;
use crate::telemetry::{Recording, Watch};

cases!("telemetry";
    every_call_has_a_span_with_its_arguments,
    failed_calls_are_marked_as_errors [Need::Target(Facility::Fresh)],
    invalid_arguments_are_marked_as_errors,
    each_page_of_a_listing_has_a_span,
    close_has_a_span [Need::Target(Facility::Fresh)],
    bytes_are_counted [Need::Durable],
);

async fn every_call_has_a_span_with_its_arguments(ctx: Ctx) -> Done {
    let watch = Watch::saver(ctx.saver());
    for operation in operations(ctx.saver(), &ctx.thread(), &ctx.thread()) {
        watch.of(operation.name, &operation.fields, operation.call).await??;
    }
    Ok(())
}

/// A saver that was closed refuses every call.
async fn failed_calls_are_marked_as_errors(ctx: Ctx) -> Done {
    let target = ctx.target().fresh().await?;
    let saver = target.open(OpenOptions::default()).await?;
    saver.close().await?;
    let watch = Watch::saver(&saver);
    for operation in operations(&saver, &ctx.thread(), &ctx.thread()) {
        let result = watch.of(operation.name, &operation.fields, operation.call).await?;
        expect_kind(result, ErrorKind::Unavailable, operation.name)?;
    }
    Ok(())
}

async fn invalid_arguments_are_marked_as_errors(ctx: Ctx) -> Done {
    let watch = Watch::saver(ctx.saver());
    let config = CheckpointConfig::new(ctx.thread());
    let key = || vec![("thread_id", config.thread_id().to_owned()), ("checkpoint_ns", String::new())];
    let mut made = checkpoint(&[("text", "a value".into())]);
    made.id = "no-uuid".into();
    let mut fields = key();
    fields.push(("checkpoint_id", "no-uuid".to_owned()));
    let result = watch.of("put", &fields, put(ctx.saver(), &config, &made)).await?;
    expect_kind(result, ErrorKind::InvalidArgument, "put")?;
    let mut fields = key();
    fields.push(("task_id", "task".to_owned()));
    let result =
        watch.of("put_writes", &fields, write(ctx.saver(), &config, "task", &[("ch", 1.into())])).await?;
    expect_kind(result, ErrorKind::InvalidArgument, "put_writes")
}

async fn each_page_of_a_listing_has_a_span(ctx: Ctx) -> Done {
    const CHECKPOINTS: usize = 300;
    let config = CheckpointConfig::new(ctx.thread());
    for _ in 0..CHECKPOINTS {
        put(ctx.saver(), &config, &checkpoint(&[])).await?;
    }
    let watch = Watch::saver(ctx.saver());
    let fields = vec![("thread_id", config.thread_id().to_owned())];
    let query = || ListQuery::thread(config.thread_id());
    let found = watch.of("list", &fields, ctx.saver().list_all(query())).await??;
    ensure_eq!(found.len(), CHECKPOINTS, "checkpoints");
    let recording = Recording::new();
    recording.of(ctx.saver().list_all(query())).await?;
    ensure!(recording.spans().len() > 1, "all checkpoints were on one page");
    Ok(())
}

async fn close_has_a_span(ctx: Ctx) -> Done {
    let target = ctx.target().fresh().await?;
    let saver = target.open(OpenOptions::default()).await?;
    for _ in 0..2 {
        Watch::saver(&saver).of("close", &Vec::new(), saver.close()).await??;
    }
    Ok(())
}

/// A large value is counted once where it is stored, and wherever it is read.
async fn bytes_are_counted(ctx: Ctx) -> Done {
    const LARGE: usize = 100_000;
    let expected = |bytes: u64| (LARGE as u64..LARGE as u64 * 3 / 2).contains(&bytes);
    // Nothing repeats itself, because a backend may store equal parts of a value once.
    let noise = |at: usize| u32::try_from(at).unwrap_or_default().wrapping_mul(2_654_435_761).to_be_bytes();
    let large = || bytes((0..LARGE / 4).flat_map(noise).collect::<Vec<_>>());
    let saver = ctx.saver();
    let config = CheckpointConfig::new(ctx.thread());

    let recording = Recording::new();
    let parent = recording.of(put(saver, &config, &checkpoint(&[("large", large())]))).await?;
    let written = recording.total(BYTES_WRITTEN);
    ensure!(expected(written), "put wrote {written} bytes");

    for call in ["get_tuple", "list", "get_delta_channel_history"] {
        let made = checkpoint(&[("numbers", encode(&numbers(&[1]))?)]);
        let child = put(saver, &parent, &made).await?;
        // A backend may remember what this handle stored.
        let saver = &ctx.target().open(OpenOptions::default()).await?;
        saver.ping().await?;
        let recording = Recording::new();
        match call {
            "get_tuple" => drop(recording.of(saver.get_tuple(&parent)).await?),
            "list" => drop(recording.of(saver.list_all(ListQuery::from_config(&parent))).await?),
            _ => drop(recording.of(saver.get_delta_channel_history(&child, &["large"])).await?),
        }
        let read = recording.total(BYTES_READ);
        ensure!(expected(read), "{call} read {read} bytes");
        ensure_eq!(recording.total(BYTES_WRITTEN), 0, "bytes written by {call}");
    }

    let config = put(saver, &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    let recording = Recording::new();
    recording.of(write(saver, &config, "task", &[("large", large())])).await?;
    let written = recording.total(BYTES_WRITTEN);
    ensure!(expected(written), "put_writes wrote {written} bytes");
    let recording = Recording::new();
    recording.of(saver.get_tuple(&config)).await?;
    let read = recording.total(BYTES_READ);
    ensure!(expected(read), "get_tuple read {read} bytes of writes");
    Ok(())
}
