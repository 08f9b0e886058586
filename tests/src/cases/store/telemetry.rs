//! Every call has a span with its arguments, and is counted.

use checkpoint_core::ErrorKind;
use checkpoint_core::backend::telemetry::{BYTES_READ, BYTES_WRITTEN};
use checkpoint_core::store::{BaseStore, GetOp, Op, PutOp, StoreExt};

use super::items::{n, object, text};
use super::operations::operations;
use crate::fixture::{Done, expect_kind};
use crate::store_case::{StoreCtx, StoreNeed};
use crate::telemetry::{Recording, Watch};
use crate::{StoreFacility, StoreOptions};

cases!(stores "store_telemetry";
    every_call_has_a_span_with_its_arguments,
    failed_calls_are_marked_as_errors [StoreNeed::Target(StoreFacility::Fresh)],
    invalid_arguments_are_marked_as_errors,
    close_has_a_span [StoreNeed::Target(StoreFacility::Fresh)],
    bytes_are_counted [StoreNeed::Durable],
);

async fn every_call_has_a_span_with_its_arguments(ctx: StoreCtx) -> Done {
    let watch = Watch::store(ctx.store());
    for operation in operations(ctx.store(), &ctx.root())? {
        watch.of(operation.name, &operation.fields, operation.call).await??;
    }
    Ok(())
}

/// A store that was closed refuses every call.
async fn failed_calls_are_marked_as_errors(ctx: StoreCtx) -> Done {
    let store = ctx.fresh().await?.open(StoreOptions::default()).await?;
    store.close().await?;
    let watch = Watch::store(&store);
    for operation in operations(&store, &ctx.root())? {
        let result = watch.of(operation.name, &operation.fields, operation.call).await?;
        expect_kind(result, ErrorKind::Unavailable, operation.name)?;
    }
    Ok(())
}

async fn invalid_arguments_are_marked_as_errors(ctx: StoreCtx) -> Done {
    let watch = Watch::store(ctx.store());
    // Python reserves it.
    let fields = vec![("namespace", "langgraph".to_owned()), ("key", "k".to_owned())];
    let put = Op::Put(PutOp::new(["langgraph"], "k", object(&n(1))?));
    let result = watch.of("put", &fields, ctx.store().batch(vec![put])).await?;
    expect_kind(result, ErrorKind::InvalidArgument, "put")
}

async fn close_has_a_span(ctx: StoreCtx) -> Done {
    let store = ctx.fresh().await?.open(StoreOptions::default()).await?;
    for _ in 0..2 {
        Watch::store(&store).of("close", &Vec::new(), store.close()).await??;
    }
    Ok(())
}

/// A large value is counted once where it is stored, and wherever it is read.
async fn bytes_are_counted(ctx: StoreCtx) -> Done {
    const LARGE: usize = 100_000;
    let expected = |bytes: u64| (LARGE as u64..LARGE as u64 * 3 / 2).contains(&bytes);
    let (store, root) = (ctx.store(), ctx.root());
    let recording = Recording::new();
    let put = Op::Put(PutOp::new(root.clone(), "large", object(&text(&"x".repeat(LARGE)))?));
    recording.of(store.batch(vec![put])).await?;
    let written = recording.total(BYTES_WRITTEN);
    ensure!(expected(written), "put wrote {written} bytes");
    for call in ["get", "batch", "search"] {
        let recording = Recording::new();
        match call {
            "get" => drop(recording.of(store.batch(vec![Op::Get(GetOp::new(root.clone(), "large"))])).await?),
            "batch" => {
                let gets = ["large", "absent"].map(|key| Op::Get(GetOp::new(root.clone(), key)));
                drop(recording.of(store.batch(gets.into())).await?);
            }
            _ => drop(recording.of(async { store.search(&root).await }).await?),
        }
        let read = recording.total(BYTES_READ);
        ensure!(expected(read), "{call} read {read} bytes");
        ensure_eq!(recording.total(BYTES_WRITTEN), 0, "bytes written by {call}");
    }
    Ok(())
}
