//! What becomes of calls where the driver cannot work.

use checkpoint_core::BaseCheckpointSaver;

use super::load::is_sound;
use crate::shared::postgres::{Database, Server, Test, tests};
use crate::shared::saver_runtimes;

async fn calls_without_a_runtime_fail_and_harm_nothing(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = &database.builder().max_connections(2).max_retries(0).build().unwrap();
    saver_runtimes::calls_without_a_runtime_fail(saver);
    // The failed calls have taken nothing from the pool.
    is_sound(&database, saver).await;
    saver.close().await.unwrap();
}

async fn connections_of_another_runtime_do_not_help(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = &database.builder().build().unwrap();
    saver_runtimes::connections_of_another_runtime_do_not_help(saver).await;
}

pub(crate) fn tests() -> &'static [Test] {
    tests![calls_without_a_runtime_fail_and_harm_nothing, connections_of_another_runtime_do_not_help]
}
