//! Rust's and Python's stores set up one database: whoever comes first, the tables are the same.

use std::collections::BTreeSet;

use checkpoint_core::store::{BaseStore, Distance, StoreExt, TtlConfig};
use futures_util::future::join_all;
use serde_json::{Value as Json, json};
use store_postgres::{AnnIndex, PostgresStore, VectorType};

use crate::shared::meeting::{Case, Index, Meeting, both_get, cases};

/// Everything about the tables of stores.
const SCHEMA: &str = "
    SELECT table_name || '.' || column_name,
           concat_ws(' ', data_type, is_nullable, column_default, ordinal_position)
    FROM information_schema.columns WHERE table_schema = 'public'
    UNION ALL SELECT attrelid::regclass || '.' || attname, format_type(atttypid, atttypmod)
    FROM pg_attribute WHERE attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace
        AND relkind = 'r') AND attnum > 0
    UNION ALL SELECT indexdef, '' FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL SELECT conrelid::regclass || ' ' || conname, pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    UNION ALL SELECT extname, extversion FROM pg_extension
    UNION ALL SELECT 'version of items', v::text FROM store_migrations";

type Tables = BTreeSet<Vec<Option<String>>>;

async fn tables(meeting: &Meeting, index: Option<Index>) -> Tables {
    let mut rows = meeting.rows(SCHEMA).await;
    if index.is_some() {
        rows.extend(meeting.rows("SELECT 'version of vectors', v FROM vector_migrations").await);
    }
    rows.into_iter().collect()
}

async fn assert_tables(meeting: &Meeting, index: Option<Index>, wanted: &Tables, when: &str) {
    let found = tables(meeting, index).await;
    let [more, less] = [found.difference(wanted), wanted.difference(&found)].map(Vec::from_iter);
    assert!(more.is_empty() && less.is_empty(), "{when}: {index:?}: more {more:?}, less {less:?}");
}

/// Without vectors, and with those of every kind.
fn table_kinds() -> Vec<Option<Index>> {
    let l2 = Distance::L2;
    let half = VectorType::Halfvec;
    vec![
        None,
        Some(Index::default()),
        Some(Index { distance: l2, vector_type: half, ann: AnnIndex::hnsw().m(8).ef_construction(32) }),
        Some(Index {
            distance: Distance::InnerProduct,
            vector_type: VectorType::Vector,
            ann: AnnIndex::ivfflat(4),
        }),
        Some(Index { distance: Distance::Cosine, vector_type: half, ann: AnnIndex::Flat }),
    ]
}

/// Whether Python can set up: its asynchronous store cannot without an index of vectors.
fn python_can(meeting: &Meeting, index: Option<Index>) -> bool {
    !(meeting.asynchronous && index.is_some_and(|index| index.ann == AnnIndex::Flat))
}

/// Whoever comes first, and however often, the tables are the same.
async fn setup_in_both_orders(mut meeting: Meeting) {
    for index in table_kinds() {
        if !python_can(&meeting, index) {
            continue;
        }
        meeting.move_on().await;
        meeting.open(index, &Json::Null);
        meeting.python.run(&json!(["setup"]));
        let by_python = tables(&meeting, index).await;
        for _ in 0..2 {
            meeting.rust(index, TtlConfig::new()).setup().await.unwrap();
            assert_tables(&meeting, index, &by_python, "Python, then Rust").await;
            meeting.python.run(&json!(["setup"]));
            assert_tables(&meeting, index, &by_python, "Python again").await;
        }

        meeting.move_on().await;
        let store = meeting.rust(index, TtlConfig::new());
        meeting.open(index, &Json::Null);
        for _ in 0..2 {
            store.setup().await.unwrap();
            assert_tables(&meeting, index, &by_python, "Rust").await;
            meeting.python.run(&json!(["setup"]));
            assert_tables(&meeting, index, &by_python, "Rust, then Python").await;
        }
        store.put(["t"], "k", json!({"text": "rust"})).await.unwrap();
        both_get(&mut meeting, &store, &["t"], "k").await;
    }
}

/// First without vectors, then with, then with an index of them, by turns.
async fn setup_by_parts(mut meeting: Meeting) {
    let with = Some(Index::default());
    let flat = Some(Index { ann: AnnIndex::Flat, ..Index::default() });
    meeting.set_up_by_python(with).await;
    let wanted = tables(&meeting, with).await;
    for first in [0, 1] {
        meeting.move_on().await;
        for (at, index) in [None, flat, with].into_iter().enumerate() {
            if at % 2 == first && python_can(&meeting, index) {
                meeting.open(index, &Json::Null);
                meeting.python.run(&json!(["setup"]));
            } else {
                meeting.rust(index, TtlConfig::new()).setup().await.unwrap();
            }
        }
        assert_tables(&meeting, with, &wanted, "by turns").await;
        meeting.set_up_by_rust(with).await;
        assert_tables(&meeting, with, &wanted, "once more").await;
    }
}

/// The index for filters, which Rust adds on request, does not disturb Python.
async fn the_index_for_filters_is_added(mut meeting: Meeting) {
    let index = Some(Index::default());
    meeting.set_up_by_rust(index).await;
    let without = tables(&meeting, index).await;
    let store = PostgresStore::builder(meeting.database.url()).filter_index(true).build().unwrap();
    store.setup().await.unwrap();
    meeting.python.run(&json!(["setup"]));
    let with = tables(&meeting, index).await;
    let added: Vec<_> = with.difference(&without).collect();
    let definition = "CREATE INDEX store_value_idx ON public.store USING gin (value jsonb_path_ops)";
    assert_eq!(added, [&[Some(definition.to_owned()), Some(String::new())]]);
    meeting.python.run(&json!(["put", ["t"], "k", {"n": 1}]));
    assert_eq!(both_get(&mut meeting, &store, &["t"], "k").await["value"], json!({"n": 1}));
}

/// Several of ours and Python set up at the same time. Python takes no lock, so that it may fail when it meets somebody;
/// ours never does, and all agree in the end.
async fn setup_at_once(mut meeting: Meeting) {
    let index = Some(Index::default());
    meeting.set_up_by_python(index).await;
    let wanted = tables(&meeting, index).await;
    for _ in 0..4 {
        meeting.move_on().await;
        meeting.open(index, &Json::Null);
        let stores = [(); 3].map(|()| meeting.rust(index, TtlConfig::new()));
        meeting.python.tell(&json!(["setup"]));
        let setups = join_all(stores.iter().map(BaseStore::setup)).await;
        for setup in setups {
            setup.unwrap();
        }
        if let Err(error) = meeting.python.answer() {
            let met = [
                "UniqueViolation",
                "DuplicateTable",
                "DuplicateObject",
                "DuplicateColumn",
                "DeadlockDetected",
                "InternalError",
            ];
            assert!(met.iter().any(|class| error.starts_with(class)), "{error}");
        }
        meeting.python.run(&json!(["setup"]));
        stores[0].setup().await.unwrap();
        assert_tables(&meeting, index, &wanted, "at once").await;
    }
}

pub(crate) fn cases() -> &'static [Case] {
    cases![setup_in_both_orders, setup_by_parts, the_index_for_filters_is_added, setup_at_once]
}
