//! The cases of stores, one file per group.

mod batch;
mod batched;
mod cancellation;
mod close;
mod concurrency;
mod conditions;
mod embedding;
mod filters;
mod get;
mod index;
mod items;
mod keys;
mod list;
#[cfg(feature = "model")]
mod model;
mod namespaces;
mod operations;
mod operators;
mod put;
mod round_trips;
mod scores;
mod search;
mod setup;
mod telemetry;
mod ttl;
mod values;

use crate::{Case, Stores};

/// Every case of a store, in the order of the report.
pub fn store_cases() -> Vec<Case<Stores>> {
    let groups = [
        get::cases,
        put::cases,
        keys::cases,
        values::cases,
        namespaces::cases,
        search::cases,
        filters::cases,
        operators::cases,
        list::cases,
        batch::cases,
        index::cases,
        scores::cases,
        embedding::cases,
        ttl::cases,
        concurrency::cases,
        conditions::cases,
        cancellation::cases,
        setup::cases,
        close::cases,
        telemetry::cases,
        round_trips::cases,
        batched::cases,
        #[cfg(feature = "model")]
        model::cases,
    ];
    groups.into_iter().flat_map(|group| group()).collect()
}
