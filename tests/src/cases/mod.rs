//! The cases, one file per group.

mod cancellation;
mod close;
mod concurrency;
mod conditions;
mod copy_thread;
mod delete_for_runs;
mod delete_thread;
mod delta;
mod delta_channel_history;
mod encryption;
mod fields;
mod filters;
mod forks;
mod get_tuple;
mod ids;
mod invalid;
mod keep_last;
mod leases;
mod list;
mod listing;
mod metadata;
#[cfg(feature = "model")]
mod model;
mod opaque;
mod operations;
mod prune;
mod put;
mod put_writes;
mod rekey;
mod retention;
mod round_trips;
mod setup;
mod store;
mod telemetry;
mod threads;
mod typed_thread;
mod values;
mod writes;

use crate::Case;

pub use store::store_cases;

/// Every case of a saver, in the order of the report.
pub fn saver_cases() -> Vec<Case> {
    // These are repeated with each cipher.
    let core = [
        put::cases,
        put_writes::cases,
        get_tuple::cases,
        list::cases,
        delete_thread::cases,
        delete_for_runs::cases,
        copy_thread::cases,
        prune::cases,
        retention::cases,
        delta_channel_history::cases,
        writes::cases,
        forks::cases,
        values::cases,
        fields::cases,
        delta::cases,
        conditions::cases,
        typed_thread::cases,
    ];
    let further = [
        ids::cases,
        filters::cases,
        listing::cases,
        metadata::cases,
        threads::cases,
        leases::cases,
        concurrency::cases,
        cancellation::cases,
        setup::cases,
        close::cases,
        telemetry::cases,
        round_trips::cases,
        invalid::cases,
        encryption::cases,
        rekey::cases,
        keep_last::cases,
        opaque::cases,
        #[cfg(feature = "model")]
        model::cases,
    ];
    let core: Vec<_> = core.into_iter().flat_map(|group| group()).collect();
    // Encrypting a hundred megabytes takes minutes in an unoptimized build.
    let sealable: Vec<_> = core.iter().filter(|case| !case.name().contains("megabytes")).cloned().collect();
    let further = further.into_iter().flat_map(|group| group());
    core.iter().cloned().chain(further).chain(encryption::on_ciphers(&sealable)).collect()
}
