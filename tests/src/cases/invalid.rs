//! Invalid input is rejected before anything is stored; capabilities are declared correctly.

use std::sync::Arc;

use checkpoint_core::retention::UsageOptions;
use checkpoint_core::{
    BaseCheckpointSaver, Bytes, ChannelValue, CheckpointConfig, CheckpointMetadata, ErrorKind, ListQuery,
    PruneStrategy, RekeyOptions, Result, RetainOptions, Retention, SaverExt, TypedBytes, Value,
};

use crate::case::{Ctx, Failure, Need};
use crate::fixture::{
    Done, at_version, chain, checkpoint, expect_kind, id_of, ids, metadata, newest_first, put, put_with,
    random, read, write,
};
use crate::lacking::Lacking;
use crate::target::{Facility, Saver};

cases!("invalid";
    put_of_an_id_that_is_not_a_uuid,
    put_writes_without_a_checkpoint_id,
    put_writes_on_an_id_that_is_not_a_uuid,
    metadata_that_json_cannot_represent,
    invalid_values,
    errors_name_what_was_to_be_stored,
    errors_do_not_show_values,
    missing_operations_are_unsupported,
    a_damaged_row_is_an_error [Need::Target(Facility::Corrupt)],
);

async fn put_of_an_id_that_is_not_a_uuid(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = chain(ctx.saver(), &thread_id, "", 2).await?;
    for id in [
        "",
        "1",
        "not-a-uuid",
        "1f1e4fbf-bea1-6f34-bfff-a8ab9f516d8",
        "1f1e4fbf-bea1-6f34-bfff-a8ab9f516d8g",
        // UUIDs to some parsers, but Python LangGraph cannot resume from them.
        "{1f1e4fbf-bea1-6f34-bfff-a8ab9f516d8b}",
        "urn:uuid:1f1e4fbf-bea1-6f34-bfff-a8ab9f516d8b",
    ] {
        let mut made = checkpoint(&[("a", 1.into())]);
        made.id = id.into();
        let config = CheckpointConfig::new(thread_id.clone());
        expect_kind(put(ctx.saver(), &config, &made).await, ErrorKind::InvalidArgument, "put")?;
    }
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(thread_id)).await?, newest_first(&stored), "ids");
    Ok(())
}

async fn put_writes_without_a_checkpoint_id(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread());
    put(ctx.saver(), &config, &checkpoint(&[])).await?;
    let call = write(ctx.saver(), &config, "task", &[("ch", 1.into())]).await;
    expect_kind(call, ErrorKind::InvalidArgument, "put_writes")?;
    ensure_eq!(read(ctx.saver(), &config).await?.pending_writes, [], "writes");
    Ok(())
}

async fn put_writes_on_an_id_that_is_not_a_uuid(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread()).with_checkpoint_id("not-a-uuid");
    let call = write(ctx.saver(), &config, "task", &[("ch", 1.into())]).await;
    expect_kind(call, ErrorKind::InvalidArgument, "put_writes")
}

async fn metadata_that_json_cannot_represent(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread());
    let values = [
        Value::Bin(Bytes::from_static(b"bytes")),
        Value::Ext(1, Bytes::from_static(b"ext")),
        Value::Array(vec![Value::Bin(Bytes::from_static(b"inside"))]),
        Value::Map(vec![(Value::Array(vec![]), 1.into())]),
    ];
    for value in values {
        let metadata = CheckpointMetadata::new("loop", 0).with("odd", value);
        let call = put_with(ctx.saver(), &config, &checkpoint(&[("a", 1.into())]), &metadata).await;
        expect_kind(call, ErrorKind::InvalidArgument, "put")?;
    }
    ensure_eq!(ctx.saver().get_tuple(&config).await?, None, "refused, but stored");
    Ok(())
}

async fn invalid_values(ctx: Ctx) -> Done {
    let blobs = [
        ("ciphertext", TypedBytes::new("msgpack+aes", &b"0123456789abcdef0123456789abcdef"[..])),
        ("empty", TypedBytes::msgpack(Bytes::new())),
        ("cut", TypedBytes::msgpack(&b"\x93\x01"[..])),
        ("a false length", TypedBytes::msgpack(&b"\xc6\xff\xff\xff\xff"[..])),
        ("an unknown tag", TypedBytes::new("unknown", &b"x"[..])),
        ("pickle", TypedBytes::new("pickle", &b"x"[..])),
    ];
    let thread_id = ctx.thread();
    let good =
        put(ctx.saver(), &CheckpointConfig::new(thread_id.clone()), &checkpoint(&[("a", 1.into())])).await?;
    for (version, (name, blob)) in (2..).zip(blobs) {
        let value = ChannelValue::Blob(blob);
        let made = at_version(version, &[("a", value.clone()), ("b", 1.into())]);
        // A backend that stores blobs separately may store them without decoding; then it returns the same.
        match put(ctx.saver(), &good, &made).await {
            Ok(stored) => {
                let tuple = read(ctx.saver(), &stored).await?;
                ensure_eq!(crate::fixture::value(&tuple, "a")?, value, "{name}");
            }
            Err(error) => {
                let kinds = [ErrorKind::Codec, ErrorKind::Crypto, ErrorKind::InvalidArgument];
                ensure!(kinds.contains(&error.kind()), "{name}: {:?}", error.kind());
            }
        }
    }
    for tuple in ctx.saver().list_all(ListQuery::thread(thread_id)).await? {
        ensure!(tuple.checkpoint.channel_values.contains_key("a"), "a rejected checkpoint is stored in part");
    }
    Ok(())
}

/// The error of a value names its channel, and every error the thread, the checkpoint and the task.
async fn errors_name_what_was_to_be_stored(ctx: Ctx) -> Done {
    fn names<T>(called: Result<T>, parts: &[(&str, &str)]) -> Done {
        let Err(error) = called else { return Err(Failure::new("an invalid value was stored")) };
        for (key, value) in parts {
            let expected = format!("{key}={value:?}");
            ensure_eq!(error.to_string().matches(&expected).count(), 1, "{expected} in {error}");
        }
        Ok(())
    }
    let config = CheckpointConfig::new(ctx.thread()).with_checkpoint_ns("inner");
    let stored = put(ctx.saver(), &config, &checkpoint(&[("a", 1.into())])).await?;
    let thread = [("thread_id", config.thread_id()), ("checkpoint_ns", "inner")];
    let (task, stored_id) = (random(), id_of(&stored).clone());
    for value in [
        TypedBytes::new("msgpack+aes", &b"0123456789abcdef0123456789abcdef"[..]),
        TypedBytes::msgpack(Bytes::new()),
    ] {
        let writes = [("good", 1.into()), ("bad", ChannelValue::Blob(value.clone()))];
        let parts = [&thread[..], &[("checkpoint_id", &*stored_id), ("task_id", &*task), ("channel", "bad")]];
        names(write(ctx.saver(), &stored, &task, &writes).await, &parts.concat())?;

        let made = checkpoint(&writes);
        let called = put(ctx.saver(), &stored, &made).await;
        // Kept for the reader if the saver does not decode it.
        if called.is_err() || value.is_sealed() {
            names(called, &[&thread[..], &[("checkpoint_id", &*made.id), ("channel", "bad")]].concat())?;
        }
    }
    let invalid = config.clone().with_checkpoint_id("not-a-uuid");
    let called = write(ctx.saver(), &invalid, &task, &[("ch", 1.into())]).await;
    names(called, &[&thread[..], &[("checkpoint_id", "not-a-uuid"), ("task_id", &*task)]].concat())?;
    Ok(())
}

async fn errors_do_not_show_values(ctx: Ctx) -> Done {
    let canary = "canary-of-a-secret";
    let mut made = checkpoint(&[("a", canary.into())]);
    made.id = "not-a-uuid".into();
    let metadata = CheckpointMetadata::new("loop", 0).with("secret", canary);
    match put_with(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &made, &metadata).await {
        Ok(_) => Err(Failure::new("an id that is not a UUID was stored")),
        Err(error) => {
            ensure!(!format!("{error} {error:?}").contains(canary), "the error shows a value");
            Ok(())
        }
    }
}

/// Fails unless a call was rejected with the names of the backend and of the operation.
fn is_unsupported(called: Result<()>, backend: &str, operation: &str) -> Done {
    let Err(error) = called else {
        return Err(Failure::new(format!("{operation} is not supported, but succeeded")));
    };
    ensure_eq!(error.kind(), ErrorKind::Unsupported, "kind of the error of {operation}");
    ensure_eq!(error.backend(), Some(backend), "backend in the error of {operation}");
    ensure_eq!(error.operation(), Some(operation), "operation in the error of {operation}");
    Ok(())
}

/// On the saver, and on a wrapper without any optional operation.
async fn missing_operations_are_unsupported(ctx: Ctx) -> Done {
    let (thread_id, other) = (ctx.thread(), ctx.thread());
    let run_id = random();
    let config = CheckpointConfig::new(thread_id.clone());
    put_with(ctx.saver(), &config, &checkpoint(&[]), &metadata(0).with("run_id", &*run_id)).await?;
    chain(ctx.saver(), &thread_id, "", 2).await?;
    let expected = ids(ctx.saver(), ListQuery::thread(thread_id.clone())).await?;
    let lacking: Saver = Arc::new(Lacking(ctx.saver().clone()));
    let backend = ctx.saver().backend();
    for saver in [&lacking, ctx.saver()] {
        let capabilities = saver.capabilities();
        if !capabilities.delete_for_runs {
            is_unsupported(saver.delete_for_runs(&[&run_id]).await, backend, "delete_for_runs")?;
        }
        if !capabilities.copy_thread {
            is_unsupported(saver.copy_thread(&thread_id, &other).await, backend, "copy_thread")?;
        }
        if !capabilities.prune {
            for strategy in [PruneStrategy::KeepLatest, PruneStrategy::Delete] {
                is_unsupported(saver.prune(&[&thread_id], strategy).await, backend, "prune")?;
            }
        }
        if !capabilities.retain {
            let (policy, options) = (Retention::new().keep_last(1), RetainOptions::default());
            let done = saver.retain(&[&thread_id], &policy, &options).await.map(|_| ());
            is_unsupported(done, backend, "retain")?;
        }
        if !capabilities.usage {
            let done = saver.usage(&UsageOptions::default()).await.map(|_| ());
            is_unsupported(done, backend, "usage")?;
        }
    }
    for saver in [&lacking, ctx.saver()] {
        if !saver.capabilities().rekey {
            for dry_run in [true, false] {
                let options = RekeyOptions::default().dry_run(dry_run);
                is_unsupported(saver.rekey(&thread_id, options).await.map(|_| ()), backend, "rekey")?;
            }
        }
    }
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(thread_id)).await?, expected, "ids");
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(other)).await?.len(), 0, "checkpoints of the other thread");
    Ok(())
}

async fn a_damaged_row_is_an_error(ctx: Ctx) -> Done {
    let (damaged, healthy) = (ctx.thread(), ctx.thread());
    for thread_id in [&damaged, &healthy] {
        chain(ctx.saver(), thread_id, "", 2).await?;
    }
    ctx.target().corrupt(&damaged).await?;
    let config = CheckpointConfig::new(damaged.clone());
    expect_kind(ctx.saver().get_tuple(&config).await, ErrorKind::Codec, "get_tuple")?;
    expect_kind(ctx.saver().list_all(ListQuery::thread(damaged)).await, ErrorKind::Codec, "list")?;
    ensure_eq!(
        ids(ctx.saver(), ListQuery::thread(healthy)).await?.len(),
        2,
        "checkpoints of the other thread"
    );
    Ok(())
}
