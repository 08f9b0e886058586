//! What becomes of a saver's calls where its driver cannot work. Each backend opens the saver, and checks afterwards that it
//! is sound.

use checkpoint_core::{
    BaseCheckpointSaver, CheckpointConfig, Error, ListQuery, PruneStrategy, PutOptions, Result, ThreadQuery,
};
use futures_util::TryStreamExt;

use super::runtimes::expect_errors;
use super::writers::{metadata, step, writes};

fn error<T>(result: Result<T>) -> Option<Error> {
    result.err()
}

/// Every call fails without a runtime.
pub(crate) fn calls_without_a_runtime_fail(saver: &impl BaseCheckpointSaver) {
    let config = &CheckpointConfig::new("t");
    let of_checkpoint = &config.clone().with_checkpoint_id(checkpoint_core::id::uuid6(0));
    let (made, metadata, writes) = (&step(1), &metadata(), &writes(1));
    let versions = &made.channel_versions;
    let options = &PutOptions::default();

    expect_errors("setup", || async { error(saver.setup().await) });
    expect_errors("ping", || async { error(saver.ping().await) });
    expect_errors("check_schema", || async { error(saver.check_schema().await) });
    expect_errors("get_tuple", || async { error(saver.get_tuple(config).await) });
    expect_errors("list", || async { error(saver.list(ListQuery::all()).try_next().await) });
    expect_errors("list_threads", || async {
        error(saver.list_threads(ThreadQuery::all()).try_next().await)
    });
    expect_errors("put", || async { error(saver.put(config, made, metadata, versions).await) });
    expect_errors("put_with", || async {
        error(saver.put_with(config, made, metadata, versions, options).await)
    });
    expect_errors("put_writes", || async {
        error(saver.put_writes(of_checkpoint, writes, "task", "").await)
    });
    expect_errors("delete_thread", || async { error(saver.delete_thread("t").await) });
    expect_errors("get_delta_channel_history", || async {
        error(saver.get_delta_channel_history(config, &["a"]).await)
    });
    expect_errors("delete_for_runs", || async { error(saver.delete_for_runs(&["r"]).await) });
    expect_errors("copy_thread", || async { error(saver.copy_thread("t", "u").await) });
    for strategy in [PruneStrategy::KeepLatest, PruneStrategy::Delete] {
        expect_errors("prune", || async { error(saver.prune(&["t"], strategy).await) });
    }
}

/// The first call opens a connection, which later calls use.
pub(crate) async fn connections_of_another_runtime_do_not_help(saver: &impl BaseCheckpointSaver) {
    let config = &CheckpointConfig::new("t");
    assert!(saver.get_tuple(config).await.unwrap().is_none());
    std::thread::scope(|scope| {
        let outside = scope.spawn(|| futures_util::FutureExt::now_or_never(saver.get_tuple(config)).unwrap());
        let error = outside.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), checkpoint_core::ErrorKind::InvalidConfig, "{error}");
    });
    assert!(saver.get_tuple(config).await.unwrap().is_none());
    // Without a call under way, closing needs no runtime.
    std::thread::scope(|scope| {
        let outside = scope.spawn(|| futures_util::FutureExt::now_or_never(saver.close()).unwrap());
        outside.join().unwrap().unwrap();
    });
}
