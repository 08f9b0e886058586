//! What becomes of calls where the driver cannot work.

use checkpoint_core::BaseCheckpointSaver;

use super::load::{Own, builder, is_sound};
use crate::shared::mongo::{Server, Test, tests};
use crate::shared::saver_runtimes;

async fn calls_without_a_runtime_fail_and_harm_nothing(server: &Server) {
    let own = Own::set_up(server).await;
    let saver = &builder(&own.database.url()).max_retries(0).build().unwrap();
    saver_runtimes::calls_without_a_runtime_fail(saver);
    // The failed calls have left nothing behind.
    is_sound(&own).await;
    saver.close().await.unwrap();
}

async fn connections_of_another_runtime_do_not_help(server: &Server) {
    let own = Own::set_up(server).await;
    let saver = &builder(&own.database.url()).build().unwrap();
    saver_runtimes::connections_of_another_runtime_do_not_help(saver).await;
}

pub(crate) fn tests() -> &'static [Test] {
    tests![calls_without_a_runtime_fail_and_harm_nothing, connections_of_another_runtime_do_not_help]
}
