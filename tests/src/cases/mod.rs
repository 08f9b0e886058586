//! The cases, a file for each group.

mod copy_thread;
mod delete_for_runs;
mod delete_thread;
mod delta_channel_history;
mod get_tuple;
mod list;
mod prune;
mod put;
mod put_writes;

use crate::Case;

/// Every case, in the order in which a report shows them.
pub fn saver_cases() -> Vec<Case> {
    let groups = [
        put::cases,
        put_writes::cases,
        get_tuple::cases,
        list::cases,
        delete_thread::cases,
        delete_for_runs::cases,
        copy_thread::cases,
        prune::cases,
        delta_channel_history::cases,
    ];
    groups.into_iter().flat_map(|group| group()).collect()
}
