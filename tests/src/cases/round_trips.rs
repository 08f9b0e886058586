//! The number of round trips and statements per call, once its statements are prepared, as documented by the backend.

use std::time::Duration;

use checkpoint_core::{
    BaseCheckpointSaver, ChannelVersions, CheckpointConfig, Cipher, ListQuery, PruneStrategy, PutCondition,
    PutOptions, PutWritesOptions, RekeyOptions, SaverExt, Str, ThreadQuery,
};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::case::{Ctx, Need};
use crate::fixture::{
    Done, at_version, chain, checkpoint, encode, id_of, list as numbers, metadata, put as store, put_with,
    random, write,
};
use crate::rounds::Rounds;
use crate::target::{Call, CountedSaver, Facility, OpenOptions, Saver};
use crate::wire::Cost;

cases!("round_trips", [Need::Target(Facility::RoundTrips)];
    put,
    put_with_unchanged_values,
    put_after_the_parent_was_deleted,
    put_with_conditions,
    put_with_keep_last [Need::Target(Facility::KeepLast)],
    put_writes,
    put_writes_with_conditions,
    leases [Need::Leases],
    get_tuple,
    list,
    list_threads,
    delete_thread,
    delta_channel_history,
    copy_thread [Need::CopyThread],
    copy_thread_of_sealed_values [Need::CopyThread, Need::Target(Facility::Cipher)],
    prune [Need::Prune],
    delete_for_runs [Need::DeleteForRuns],
    rekey [Need::Rekey, Need::Target(Facility::Cipher)],
    setup,
    probes,
);

/// Longer than a test takes.
const TTL: Duration = Duration::from_secs(3600);

async fn counted(ctx: &Ctx) -> checkpoint_core::Result<CountedSaver> {
    ctx.target().counted(OpenOptions::default()).await
}

fn rounds(counted: &CountedSaver, call: Call) -> Rounds<'_> {
    Rounds::new(&counted.proxy, format!("{call:?}"), (counted.cost)(call))
}

async fn put(ctx: Ctx) -> Done {
    let counted = counted(&ctx).await?;
    for values in [0, 1, 3, 20] {
        let mut rounds = rounds(&counted, Call::Put);
        while rounds.go_on()? {
            let thread_id = ctx.thread();
            let mut made = checkpoint(&[("text", "x".into())]);
            for value in 0..values {
                made = made.with_channel(format!("channel-{value}"), encode(&numbers(&[value]))?, 1);
            }
            rounds.call(store(&counted.handle, &CheckpointConfig::new(thread_id), &made)).await?;
        }
    }
    Ok(())
}

/// A step that changes one of two values.
struct Step {
    parent: CheckpointConfig,
    made: checkpoint_core::Checkpoint,
    new_versions: ChannelVersions,
}

impl Step {
    async fn new(ctx: &Ctx, saver: &Saver) -> checkpoint_core::Result<Self> {
        let kept = encode(&numbers(&[1, 2, 3]))?;
        let first = at_version(1, &[("kept", kept.clone()), ("own", kept.clone())]);
        let parent = store(saver, &CheckpointConfig::new(ctx.thread()), &first).await?;
        let made = at_version(1, &[("kept", kept.clone())]).with_channel("own", encode(&numbers(&[2]))?, 2);
        Ok(Self { parent, made, new_versions: [("own".into(), 2.into())].into_iter().collect() })
    }

    async fn put(&self, saver: &Saver) -> checkpoint_core::Result<CheckpointConfig> {
        saver.put(&self.parent, &self.made, &metadata(1), &self.new_versions).await
    }
}

async fn put_with_unchanged_values(ctx: Ctx) -> Done {
    let counted = counted(&ctx).await?;
    let mut rounds = rounds(&counted, Call::PutUnchanged);
    while rounds.go_on()? {
        let step = Step::new(&ctx, ctx.saver()).await?;
        rounds.call(step.put(&counted.handle)).await?;
    }
    Ok(())
}

async fn put_after_the_parent_was_deleted(ctx: Ctx) -> Done {
    let counted = counted(&ctx).await?;
    let mut rounds = rounds(&counted, Call::PutOrphaned);
    while rounds.go_on()? {
        let step = Step::new(&ctx, ctx.saver()).await?;
        ctx.saver().delete_thread(step.parent.thread_id()).await?;
        rounds.call(step.put(&counted.handle)).await?;
    }
    Ok(())
}

async fn put_with_conditions(ctx: Ctx) -> Done {
    let counted = counted(&ctx).await?;
    let onto_parent = PutOptions::default().condition(PutCondition::ParentStored);
    let onto_latest = PutOptions::default().condition(PutCondition::ParentIsLatest);
    let mut kinds = vec![
        (Call::PutOntoParent, onto_parent.clone(), false),
        (Call::PutConditional, onto_latest, false),
        (Call::PutConditional, PutOptions::default().step_key("step"), false),
    ];
    if counted.handle.capabilities().leases {
        kinds.push((Call::PutConditional, onto_parent, true));
    }
    for (call, options, leased) in kinds {
        let mut rounds = rounds(&counted, call);
        while rounds.go_on()? {
            let step = Step::new(&ctx, ctx.saver()).await?;
            let mut options = options.clone();
            if leased {
                options = options.lease(ctx.saver().acquire_lease(step.parent.thread_id(), TTL).await?);
            }
            let Step { parent, made, new_versions } = &step;
            rounds.call(counted.handle.put_with(parent, made, &metadata(1), new_versions, &options)).await?;
        }
    }
    Ok(())
}

/// Most puts cost the same as without it.
async fn put_with_keep_last(ctx: Ctx) -> Done {
    let open = |count| OpenOptions { keep_last: Some(count), ..OpenOptions::default() };
    let counted = ctx.target().counted(open(1000)).await?;
    let same = Cost::new((counted.cost)(Call::Put).round_trips, Cost::ANY);
    let mut idle = Rounds::new(&counted.proxy, "a put with nothing to prune".into(), same);
    while idle.go_on()? {
        idle.call(store(&counted.handle, &CheckpointConfig::new(ctx.thread()), &checkpoint(&[]))).await?;
    }
    let counted = ctx.target().counted(open(1)).await?;
    let mut pruning = rounds(&counted, Call::PutPruning);
    while pruning.go_on()? {
        let parent = store(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
        let stored = pruning.call(store(&counted.handle, &parent, &checkpoint(&[]))).await?;
        let left = ctx.saver().list_all(ListQuery::thread(stored.thread_id())).await?;
        ensure_eq!(left.len(), 1, "checkpoints are left");
    }
    Ok(())
}

async fn put_writes_with_conditions(ctx: Ctx) -> Done {
    let counted = counted(&ctx).await?;
    let stored = store(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    let mut options = vec![
        (PutWritesOptions::default().once().checkpoint_stored(), "a"),
        (PutWritesOptions::default().checkpoint_stored(), "a"),
        (PutWritesOptions::default().checkpoint_stored(), "__error__"),
    ];
    if counted.handle.capabilities().leases {
        let lease = ctx.saver().acquire_lease(stored.thread_id(), TTL).await?;
        options
            .extend(options.clone().into_iter().map(|(options, name)| (options.lease(lease.clone()), name)));
    }
    let value = encode(&numbers(&[1]))?;
    for (options, channel) in options {
        let mut rounds = rounds(&counted, Call::PutWritesConditional);
        let writes: Vec<_> = [channel, channel].map(|channel| (channel.into(), value.clone())).to_vec();
        while rounds.go_on()? {
            let task = random();
            rounds.call(counted.handle.put_writes_with(&stored, &writes, &task, "", &options)).await?;
        }
    }
    Ok(())
}

async fn leases(ctx: Ctx) -> Done {
    let counted = counted(&ctx).await?;
    let mut acquire = rounds(&counted, Call::AcquireLease);
    while acquire.go_on()? {
        acquire.call(counted.handle.acquire_lease(&ctx.thread(), TTL)).await?;
    }
    let mut renew = rounds(&counted, Call::Lease);
    while renew.go_on()? {
        let lease = ctx.saver().acquire_lease(&ctx.thread(), TTL).await?;
        renew.call(counted.handle.renew_lease(&lease)).await?;
    }
    let mut release = rounds(&counted, Call::Lease);
    while release.go_on()? {
        let lease = ctx.saver().acquire_lease(&ctx.thread(), TTL).await?;
        release.call(counted.handle.release_lease(&lease)).await?;
    }
    Ok(())
}

async fn put_writes(ctx: Ctx) -> Done {
    let counted = counted(&ctx).await?;
    let stored = store(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    // Writes to special channels replace stored ones.
    for channels in [&["a"][..], &["a", "b", "c"], &["__error__"], &["__interrupt__", "__resume__"]] {
        let mut rounds = rounds(&counted, Call::PutWrites);
        let value = encode(&numbers(&[1]))?;
        let writes: Vec<_> = channels.iter().map(|channel| (*channel, value.clone())).collect();
        while rounds.go_on()? {
            rounds.call(write(&counted.handle, &stored, &random(), &writes)).await?;
        }
    }
    Ok(())
}

async fn get_tuple(ctx: Ctx) -> Done {
    let counted = counted(&ctx).await?;
    let step = Step::new(&ctx, ctx.saver()).await?;
    let stored = step.put(ctx.saver()).await?;
    write(ctx.saver(), &stored, "task", &[("ch", 1.into())]).await?;
    let absent = CheckpointConfig::new(ctx.thread());
    for (config, id, call) in [
        (stored.clone(), Some(id_of(&stored)), Call::GetTuple),
        (stored.clone().latest(), Some(id_of(&stored)), Call::GetTuple),
        (absent, None, Call::GetNothing),
    ] {
        let mut rounds = rounds(&counted, call);
        while rounds.go_on()? {
            let found = rounds.call(counted.handle.get_tuple(&config)).await?;
            ensure_eq!(found.map(|tuple| tuple.checkpoint.id), id, "id");
        }
    }
    Ok(())
}

/// Puts a chain of checkpoints, many concurrently.
async fn put_chain(saver: &Saver, thread_id: &Str, count: usize) -> checkpoint_core::Result<Vec<Str>> {
    let steps: Vec<_> = (0..count).map(|_| at_version(1, &[("step", 1.into())])).collect();
    let ids: Vec<Str> = steps.iter().map(|made| made.id.clone()).collect();
    let root = CheckpointConfig::new(thread_id.clone());
    let parents =
        std::iter::once(root.clone()).chain(ids.iter().map(|id| root.clone().with_checkpoint_id(id.clone())));
    let puts: Vec<_> = parents
        .zip(&steps)
        .map(|(parent, made)| {
            let saver = saver.clone();
            let made = made.clone();
            async move { store(&saver, &parent, &made).await }
        })
        .collect();
    stream::iter(puts).buffer_unordered(8).try_collect::<Vec<_>>().await?;
    Ok(ids)
}

async fn list(ctx: Ctx) -> Done {
    let counted = counted(&ctx).await?;
    for checkpoints in [1, 10, 100, 300] {
        let thread_id = ctx.thread();
        put_chain(ctx.saver(), &thread_id, checkpoints).await?;
        let mut rounds = rounds(&counted, Call::List { checkpoints });
        while rounds.go_on()? {
            let query = ListQuery::thread(thread_id.clone()).checkpoint_ns("");
            let found = rounds.call(counted.handle.list_all(query)).await?;
            ensure_eq!(found.len(), checkpoints, "checkpoints");
        }
    }
    Ok(())
}

async fn list_threads(ctx: Ctx) -> Done {
    let counted = counted(&ctx).await?;
    let mut ids = Vec::new();
    for _ in 0..132 {
        let thread_id = ctx.thread();
        store(ctx.saver(), &CheckpointConfig::new(thread_id.clone()), &checkpoint(&[])).await?;
        ids.push(thread_id);
    }
    let before = ids.iter().min().cloned().unwrap_or_default();
    let all = ThreadQuery::all().after(before.clone());
    for (threads, query) in [1, 10, 130].into_iter().flat_map(|threads| {
        [(threads, all.clone().limit(threads)), (threads, all.clone().limit(threads).with_state())]
    }) {
        let mut rounds = rounds(&counted, Call::ListThreads { threads, with_state: query.needs_state() });
        while rounds.go_on()? {
            let query = query.clone();
            let found: Vec<_> = rounds.call(counted.handle.list_threads(query).try_collect()).await?;
            ensure_eq!(found.len(), threads, "threads");
        }
        let mut rounds = self::rounds(&counted, Call::ListThreadIds { threads });
        while rounds.go_on()? {
            let query = ThreadQuery::all().after(before.clone()).limit(threads);
            let found: Vec<_> = rounds.call(counted.handle.list_thread_ids(query).try_collect()).await?;
            ensure_eq!(found.len(), threads, "thread ids");
        }
    }
    Ok(())
}

/// A thread with blobs and writes in several namespaces.
async fn thread(ctx: &Ctx, saver: &Saver, namespaces: usize) -> checkpoint_core::Result<Str> {
    let thread_id = ctx.thread();
    for namespace in 0..namespaces {
        let mut config =
            CheckpointConfig::new(thread_id.clone()).with_checkpoint_ns(format!("namespace-{namespace}"));
        for step in 1..4 {
            config =
                store(saver, &config, &at_version(step, &[("items", encode(&numbers(&[step]))?)])).await?;
            write(saver, &config, "task", &[("ch", encode(&numbers(&[step]))?)]).await?;
        }
    }
    Ok(thread_id)
}

async fn delete_thread(ctx: Ctx) -> Done {
    let counted = counted(&ctx).await?;
    let mut rounds = rounds(&counted, Call::DeleteThread);
    while rounds.go_on()? {
        let thread_id = thread(&ctx, ctx.saver(), 2).await?;
        rounds.call(counted.handle.delete_thread(&thread_id)).await?;
        ensure!(ctx.saver().list_first(ListQuery::thread(thread_id)).await?.is_none(), "not deleted");
    }
    Ok(())
}

async fn delta_channel_history(ctx: Ctx) -> Done {
    let counted = counted(&ctx).await?;
    for ancestors in [3, 1030] {
        let thread_id = ctx.thread();
        put_chain(ctx.saver(), &thread_id, ancestors + 1).await?;
        let config = CheckpointConfig::new(thread_id);
        let mut rounds = rounds(&counted, Call::DeltaChannelHistory { ancestors });
        while rounds.go_on()? {
            // A channel that no checkpoint has, so that the walk reaches the root.
            rounds.call(counted.handle.get_delta_channel_history(&config, &["absent"])).await?;
        }
    }
    Ok(())
}

async fn copy_thread(ctx: Ctx) -> Done {
    let counted = counted(&ctx).await?;
    let source = thread(&ctx, ctx.saver(), 2).await?;
    let mut rounds = rounds(&counted, Call::CopyThread { bound_values: 0, bound_writes: 0 });
    while rounds.go_on()? {
        let target = ctx.thread();
        rounds.call(counted.handle.copy_thread(&source, &target)).await?;
        ensure_eq!(ctx.saver().list_all(ListQuery::thread(target)).await?.len(), 6, "copies");
    }
    Ok(())
}

async fn copy_thread_of_sealed_values(ctx: Ctx) -> Done {
    let cipher = || Cipher::aes_gcm("round-trips", &[7; 32]);
    let counted = ctx.target().counted(OpenOptions::with_cipher(cipher()?)).await?;
    let source = thread(&ctx, &ctx.target().open(OpenOptions::with_cipher(cipher()?)).await?, 1).await?;
    let mut rounds = rounds(&counted, Call::CopyThread { bound_values: 3, bound_writes: 3 });
    while rounds.go_on()? {
        let target = ctx.thread();
        rounds.call(counted.handle.copy_thread(&source, &target)).await?;
        ensure_eq!(counted.handle.list_all(ListQuery::thread(target)).await?.len(), 3, "copies");
    }
    Ok(())
}

async fn prune(ctx: Ctx) -> Done {
    let counted = counted(&ctx).await?;
    for (threads, namespaces) in [(1, 1), (1, 3), (2, 2)] {
        let keep_latest =
            (Call::PruneKeepLatest { threads, namespaces }, PruneStrategy::KeepLatest, namespaces);
        let delete = (Call::PruneDelete { threads }, PruneStrategy::Delete, 0);
        for (call, strategy, left) in [keep_latest, delete] {
            let mut rounds = rounds(&counted, call);
            while rounds.go_on()? {
                let mut thread_ids = Vec::new();
                for _ in 0..threads {
                    thread_ids.push(thread(&ctx, ctx.saver(), namespaces).await?);
                }
                let thread_ids: Vec<&str> = thread_ids.iter().map(|thread_id| &**thread_id).collect();
                rounds.call(counted.handle.prune(&thread_ids, strategy)).await?;
                for thread_id in thread_ids {
                    ensure_eq!(ctx.saver().list_all(ListQuery::thread(thread_id)).await?.len(), left, "left");
                }
            }
        }
    }
    Ok(())
}

async fn delete_for_runs(ctx: Ctx) -> Done {
    let counted = counted(&ctx).await?;
    // At least one thread is looked at.
    chain(ctx.saver(), &ctx.thread(), "", 2).await?;
    for threads in [0, 1, 3] {
        let mut rounds = rounds(&counted, Call::DeleteForRuns { threads });
        while rounds.go_on()? {
            let run_id = random();
            for _ in 0..threads {
                let config = chain(ctx.saver(), &ctx.thread(), "", 2).await?.remove(1);
                put_with(ctx.saver(), &config, &checkpoint(&[]), &metadata(2).with("run_id", &*run_id))
                    .await?;
            }
            rounds.call(counted.handle.delete_for_runs(&[&run_id])).await?;
        }
    }
    Ok(())
}

async fn rekey(ctx: Ctx) -> Done {
    let old = || Cipher::aes_gcm("old", &[7; 32]);
    let new = Cipher::aes_gcm("new", &[8; 32])?.with_aes_gcm_decryption_key("old", &[7; 32])?;
    let counted = ctx.target().counted(OpenOptions::with_cipher(new)).await?;
    let old = ctx.target().open(OpenOptions::with_cipher(old()?)).await?;
    for namespaces in [1, 2] {
        let mut rounds = rounds(&counted, Call::Rekey { values: 3 * namespaces, writes: 3 * namespaces });
        let mut last = Str::default();
        while rounds.go_on()? {
            last = thread(&ctx, &old, namespaces).await?;
            let before = old.rekey(&last, RekeyOptions::default().dry_run(true)).await?;
            let report = rounds.call(counted.handle.rekey(&last, RekeyOptions::default())).await?;
            let sealed = before.values.values().sum::<u64>();
            ensure!(sealed >= 6 * namespaces as u64, "only {sealed} values");
            ensure_eq!((report.resealed, report.remaining), (sealed, 0), "values");
        }
        for dry_run in [true, false] {
            let mut rounds = self::rounds(&counted, Call::RekeyNothing { dry_run });
            while rounds.go_on()? {
                let options = RekeyOptions::default().dry_run(dry_run);
                let report = rounds.call(counted.handle.rekey(&last, options)).await?;
                ensure_eq!((report.resealed, report.remaining), (0, 0), "values");
            }
        }
    }
    Ok(())
}

async fn probes(ctx: Ctx) -> Done {
    let counted = counted(&ctx).await?;
    let mut pings = rounds(&counted, Call::Ping);
    while pings.go_on()? {
        pings.call(counted.handle.ping()).await?;
    }
    let mut checks = rounds(&counted, Call::CheckSchema);
    while checks.go_on()? {
        checks.call(counted.handle.check_schema()).await?;
    }
    Ok(())
}

async fn setup(ctx: Ctx) -> Done {
    let counted = counted(&ctx).await?;
    let mut rounds = rounds(&counted, Call::Setup);
    while rounds.go_on()? {
        rounds.call(counted.handle.setup()).await?;
    }
    Ok(())
}
