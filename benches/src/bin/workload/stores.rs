//! Group store, on one store. Reads are checked outside the timed part.

use std::sync::Arc;

use checkpoint_benches::{ItemValue, Items, Mark, Phase, Recorder, StoreItem, StoreSearch};
use checkpoint_core::InMemoryStore;
use checkpoint_core::store::{
    BaseStore, GetOp, Item, ItemFilter, JsonObject, Op, OpResult, PutOp, SearchItem, StoreExt,
};
use serde_json::json;
use store_postgres::PostgresStore;

use crate::groups::check;
use crate::place::{Database, Place};
use crate::{Arguments, Implementation, Result, Run, floor_store};

/// The number of lists of namespaces.
pub(crate) const LISTS: usize = 50;

pub(crate) type Store = Arc<dyn BaseStore>;

/// Group store on the store of the arguments, or its baseline.
pub(crate) async fn run(arguments: &Arguments) -> Result<Run> {
    let items = Items::new();
    match arguments.r#impl {
        Implementation::Memory => store(Arc::new(InMemoryStore::new()), &items, &Place::Memory).await,
        Implementation::Postgres | Implementation::Floor => {
            let place = Place::Database(arguments.postgres.server.database(arguments.sync).await?);
            let run = run_in(arguments, &items, &place).await;
            if let Place::Database(database) = place {
                database.remove().await?;
            }
            run
        }
        Implementation::Sqlite | Implementation::Pgbench => {
            Err("the stores are in memory and on PostgreSQL, and their floor is the bare driver".into())
        }
    }
}

async fn run_in(arguments: &Arguments, items: &Items, place: &Place) -> Result<Run> {
    let Place::Database(database) = place else { return Err("this needs a database".into()) };
    let store = open(arguments, database).await?;
    if arguments.r#impl == Implementation::Floor {
        floor_store::store(items, place, database).await
    } else {
        self::store(store, items, place).await
    }
}

async fn open(arguments: &Arguments, database: &Database) -> Result<Store> {
    let mut builder = PostgresStore::builder(database.url()).filter_index(arguments.postgres.filter_index);
    if let Some(pool) = arguments.postgres.pool {
        builder = builder.max_connections(pool);
    }
    let store = builder.build()?;
    store.setup().await?;
    database.run("CHECKPOINT").await?;
    Ok(Arc::new(store))
}

fn put(item: &StoreItem) -> Result<Op> {
    Ok(Op::Put(PutOp::new(&item.namespace, item.key.clone(), JsonObject::new(&item.value)?)))
}

fn decode(found: &[SearchItem]) -> Result<Vec<ItemValue>> {
    Ok(found.iter().map(|found| found.item.value.decode()).collect::<checkpoint_core::Result<_>>()?)
}

fn is(found: &Item, wanted: &StoreItem) -> bool {
    found.namespace == wanted.namespace && found.key == wanted.key
}

async fn store(store: Store, items: &Items, place: &Place) -> Result<Run> {
    let mut recorder = Recorder::default();
    store.put(["warm"], "k", json!({"a": 1})).await?;
    store.get(["warm"], "k").await?;

    let phase = Phase::begin();
    for item in &items.puts {
        let begun = Mark::now();
        store.put(&item.namespace, item.key.clone(), &item.value).await?;
        recorder.record("put", begun);
    }
    recorder.end("put", phase);
    let disk = place.disk().await?;
    place.analyze().await?;

    let phase = Phase::begin();
    for item in items.read() {
        let begun = Mark::now();
        let found = store.get(&item.namespace, item.key.clone()).await?;
        recorder.record("get", begun);
        let found = found.ok_or("an item is gone")?;
        let value: ItemValue = found.value.decode()?;
        recorder.record("get_decoded", begun);
        check(is(&found, item) && value == item.value, "an item")?;
    }
    recorder.end("get", phase);
    let names = [("search_all", "search_all_decoded"), ("search_user", "search_user_decoded")];
    for (of_user, (call, decoded)) in [false, true].into_iter().zip(names) {
        let searches = items.searches(of_user);
        let phase = Phase::begin();
        for search in &searches {
            let filter = ItemFilter::new().eq("kind", search.kind.as_str());
            let begun = Mark::now();
            let found = store.search(&search.prefix).filter(filter).limit(10).await?;
            recorder.record(call, begun);
            let values = decode(&found)?;
            recorder.record(decoded, begun);
            check_found(search, &found, &values)?;
        }
        recorder.end(call, phase);
    }
    let phase = Phase::begin();
    for batch in &items.batches {
        let begun = Mark::now();
        let ops = batch.iter().map(put).collect::<Result<Vec<_>>>()?;
        let encoded = Mark::now();
        let done = store.batch(ops).await?;
        recorder.record("batch_100_encoded", encoded);
        recorder.record("batch_100", begun);
        check(done.len() == batch.len(), "the results of a batch")?;
    }
    recorder.end("batch_100", phase);
    let phase = Phase::begin();
    let namespaces = items.namespaces();
    for _ in 0..LISTS {
        let begun = Mark::now();
        let found = store.list_namespaces().prefix(Items::prefix()).limit(100).await?;
        recorder.record("list_namespaces", begun);
        check(found == namespaces, "the namespaces")?;
    }
    recorder.end("list_namespaces", phase);
    for batch in &items.batches {
        check_batch(&store, batch).await?;
    }
    Ok(Run { ops: recorder.finish(), level: None, disk })
}

/// Checks that the expected items were found, most recently put first.
fn check_found(search: &StoreSearch, found: &[SearchItem], values: &[ItemValue]) -> Result<()> {
    check(found.iter().map(|found| &found.item.key).eq(&search.keys), "what a search has to find")?;
    check(
        found.is_sorted_by(|one, next| one.item.updated_at >= next.item.updated_at),
        "the order of a search",
    )?;
    check(found.iter().all(|found| found.item.namespace.is_within(&search.prefix)), "a namespace")?;
    check(values.iter().all(|value| value.kind == search.kind), "what was filtered")
}

/// Checks that all items of a batch exist.
async fn check_batch(store: &Store, batch: &[StoreItem]) -> Result<()> {
    let gets = batch.iter().map(|item| Op::Get(GetOp::new(&item.namespace, item.key.clone()))).collect();
    let results = store.batch(gets).await?;
    check(results.len() == batch.len(), "the results of a batch")?;
    for (item, result) in batch.iter().zip(results) {
        let OpResult::Item(Some(found)) = result else { return Err("an item of a batch is gone".into()) };
        check(is(&found, item) && found.value.decode::<ItemValue>()? == item.value, "an item of a batch")?;
    }
    Ok(())
}
