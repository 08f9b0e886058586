//! Every operation of a saver once, for what all of them have in common.

use checkpoint_core::{
    BaseCheckpointSaver, CheckpointConfig, ListQuery, PruneStrategy, RekeyOptions, Result, SaverExt, Str,
    ThreadQuery,
};
use futures_util::TryStreamExt;
use futures_util::future::BoxFuture;

use crate::fixture::{at_version, bytes, put, random, write};
use crate::target::Saver;
use crate::telemetry::Fields;

/// A call that has not begun.
pub(super) struct Operation {
    /// Its name in errors and spans.
    pub(super) name: &'static str,
    /// The arguments that its span has.
    pub(super) fields: Fields,
    pub(super) call: BoxFuture<'static, Result<()>>,
}

/// Calls of every operation that a saver has, except `close`, to be run in this order. They use these two threads.
pub(super) fn operations(saver: &Saver, thread: &Str, copy: &Str) -> Vec<Operation> {
    let capabilities = saver.capabilities();
    let root = CheckpointConfig::new(thread.clone()).with_checkpoint_ns("inner");
    let parent = at_version(1, &[("text", "a stored value".into())]);
    let child = at_version(2, &[("text", "another one".into())]);
    let parent_config = root.clone().with_checkpoint_id(parent.id.clone());
    let child_config = root.clone().with_checkpoint_id(child.id.clone());
    let (parent_id, child_id, task_id) = (parent.id.clone(), child.id.clone(), random());
    let before = random();
    let key = [("thread_id", &**thread), ("checkpoint_ns", "inner")];
    let parent_key = [&key[..], &[("checkpoint_id", &parent_id)]].concat();
    let child_key = [&key[..], &[("checkpoint_id", &child_id)]].concat();

    let on = || saver.clone();
    let mut operations = Vec::new();
    let mut add = |name, fields: &[(&'static str, &str)], call: BoxFuture<'static, Result<()>>| {
        let fields = fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        operations.push(Operation { name, fields, call });
    };
    let saver = on();
    add("setup", &[], Box::pin(async move { saver.setup().await }));
    let saver = on();
    add("ping", &[], Box::pin(async move { saver.ping().await }));
    let saver = on();
    add("check_schema", &[], Box::pin(async move { saver.check_schema().await }));
    let (saver, config) = (on(), root.clone());
    add("put", &parent_key, Box::pin(async move { put(&saver, &config, &parent).await.map(|_| ()) }));
    let (saver, config) = (on(), parent_config.clone());
    add(
        "put",
        &[&child_key[..], &[("parent_checkpoint_id", &parent_id)]].concat(),
        Box::pin(async move { put(&saver, &config, &child).await.map(|_| ()) }),
    );
    let (saver, config, task) = (on(), child_config.clone(), task_id.clone());
    let writes = [("text", "a stored write".into()), ("bytes", bytes(&b"bytes of a write"[..]))];
    add(
        "put_writes",
        &[&child_key[..], &[("task_id", &task_id)]].concat(),
        Box::pin(async move { write(&saver, &config, &task, &writes).await }),
    );
    for (config, fields) in [(&child_config, &child_key[..]), (&root, &key[..])] {
        let (saver, config) = (on(), config.clone());
        add("get_tuple", fields, Box::pin(async move { saver.get_tuple(&config).await.map(|_| ()) }));
    }
    let in_namespace = ListQuery::thread(thread.clone()).checkpoint_ns("inner");
    for (query, fields) in [
        (ListQuery::all().limit(1), vec![("limit", "1")]),
        (ListQuery::from_config(&child_config), child_key.clone()),
        (
            in_namespace.before(before.clone()).limit(5),
            [&key[..], &[("before", &before), ("limit", "5")]].concat(),
        ),
    ] {
        let saver = on();
        add("list", &fields, Box::pin(async move { saver.list_all(query).await.map(|_| ()) }));
    }
    for (query, fields) in [
        (ThreadQuery::all().limit(1), vec![("limit", "1")]),
        (ThreadQuery::all().after(thread.clone()).limit(2), vec![("after", &**thread), ("limit", "2")]),
    ] {
        let saver = on();
        let call = async move { saver.list_threads(query).try_collect::<Vec<_>>().await.map(|_| ()) };
        add("list_threads", &fields, Box::pin(call));
    }
    let (saver, query) = (on(), ThreadQuery::all().after(thread.clone()).limit(2));
    let call = async move { saver.list_thread_ids(query).try_collect::<Vec<_>>().await.map(|_| ()) };
    add("list_thread_ids", &[("after", thread), ("limit", "2")], Box::pin(call));
    let (saver, config) = (on(), child_config);
    let history = async move { saver.get_delta_channel_history(&config, &["text"]).await.map(|_| ()) };
    add("get_delta_channel_history", &child_key, Box::pin(history));
    if capabilities.copy_thread {
        let (saver, source, target) = (on(), thread.clone(), copy.clone());
        let fields = [("source_thread_id", &**thread), ("target_thread_id", &**copy)];
        add("copy_thread", &fields, Box::pin(async move { saver.copy_thread(&source, &target).await }));
    }
    if capabilities.delete_for_runs {
        let saver = on();
        let call = async move { saver.delete_for_runs(&[&random(), &random()]).await };
        add("delete_for_runs", &[("runs", "2")], Box::pin(call));
    }
    if capabilities.prune {
        let (saver, first, second) = (on(), thread.clone(), copy.clone());
        let call = async move { saver.prune(&[&first, &second], PruneStrategy::KeepLatest).await };
        add("prune", &[("threads", "2")], Box::pin(call));
    }
    if capabilities.rekey {
        let (saver, thread_id) = (on(), thread.clone());
        let options = RekeyOptions::default().dry_run(true);
        let call = async move { saver.rekey(&thread_id, options).await.map(|_| ()) };
        add("rekey", &[("thread_id", &**thread), ("dry_run", "true")], Box::pin(call));
    }
    let (saver, thread_id) = (on(), copy.clone());
    let call = async move { saver.delete_thread(&thread_id).await };
    add("delete_thread", &[("thread_id", copy)], Box::pin(call));
    operations
}
