//! Random operations on the store under test, compared with the in-memory store.

use std::sync::Arc;

use checkpoint_core::store::{
    BaseStore, Distance, GetOp, Item, ItemFilter, ItemIndex, ListNamespacesOp, MatchCondition, Namespace, Op,
    OpResult, PutOp, SearchOp, StoreExt,
};
use checkpoint_core::{InMemoryStore, Result, Str};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::items::{delete_op, index, object};
use crate::case::Failure;
use crate::fixture::Done;
use crate::random::search;
use crate::store_case::{StoreCtx, StoreNeed};
use crate::{Store, StoreFacility, StoreOptions};

cases!(stores "store_model";
    random_operations,
    random_operations_with_an_index [StoreNeed::Target(StoreFacility::Index)],
);

const RUNS: usize = 60;

/// Namespaces whose order depends on the separator, below that of the run.
const PLACES: [&[&str]; 8] =
    [&[], &["a"], &["a", "b"], &["a", "b", "c"], &["a-b"], &["a b", "c"], &["b"], &["é", "b"]];
const KEYS: [&str; 5] = ["", "k", "K", "k.a", "é"];

/// One operation. Places, keys and values are small numbers, so that operations collide.
#[derive(Debug, Clone)]
enum Operation {
    Get { place: usize, key: usize },
    Put { place: usize, key: usize, value: usize, texts: [u8; 3], index: usize },
    Delete { place: usize, key: usize },
    Search { place: usize, filter: usize, query: Option<[u8; 3]>, limit: usize, offset: usize },
    List { conditions: Vec<(bool, usize)>, max_depth: Option<usize>, limit: usize, offset: usize },
}

/// The values of puts: numbers, texts, lists and objects, and optional entries.
fn values() -> Vec<Json> {
    vec![
        json!({}),
        json!({"v": 1}),
        json!({"v": 2.5, "w": null}),
        json!({"v": 10, "o": {"p": 1}}),
        json!({"v": "10"}),
        json!({"v": "b", "w": true}),
        json!({"v": [1, 2], "w": [1]}),
        json!({"v": {"p": 1, "q": "x"}}),
        json!({"v": null, "o": {"p": 2, "q": [3]}}),
        json!({"w": false, "o": {}}),
    ]
}

fn filters() -> Vec<Json> {
    vec![
        json!({"v": 1}),
        json!({"v": {"$gt": 1}}),
        json!({"v": {"$gte": 1, "$lt": 10}}),
        json!({"v": {"$ne": 10}}),
        json!({"v": "10"}),
        json!({"v": {"$gt": "1"}}),
        json!({"v": null}),
        json!({"w": {"$ne": null}}),
        json!({"v": [1, 2]}),
        json!({"v": [{"$gte": 1}, 2]}),
        json!({"v": {"p": 1}}),
        json!({"o": {"p": {"$gte": 1}}}),
        json!({"o": {}}),
        json!({"o": {"$eq": {}}}),
        json!({"v": {"$ne": 1}, "w": true}),
    ]
}

fn patterns() -> Vec<&'static [&'static str]> {
    vec![&[], &["a"], &["*"], &["*", "b"], &["b"], &["b", "c"], &["*", "*", "*"], &["c"], &["é"]]
}

fn operation(query: bool) -> impl Strategy<Value = Operation> {
    let place = 0..PLACES.len();
    let key = 0..KEYS.len();
    let texts = proptest::array::uniform3(0..5_u8);
    let query =
        if query { proptest::option::weighted(0.7, texts.clone()).boxed() } else { Just(None).boxed() };
    prop_oneof![
        3 => (place.clone(), key.clone()).prop_map(|(place, key)| Operation::Get { place, key }),
        8 => (place.clone(), key.clone(), 0..values().len(), texts, 0..5_usize)
            .prop_map(|(place, key, value, texts, index)| Operation::Put { place, key, value, texts, index }),
        2 => (place.clone(), key).prop_map(|(place, key)| Operation::Delete { place, key }),
        6 => (place, 0..filters().len() * 2, query, 0..8_usize, 0..3_usize).prop_map(
            |(place, filter, query, limit, offset)| Operation::Search { place, filter, query, limit, offset }
        ),
        3 => (
            proptest::collection::vec((any::<bool>(), 0..patterns().len()), 0..3),
            proptest::option::of(1..4_usize),
            0..8_usize,
            0..3_usize,
        )
            .prop_map(|(conditions, max_depth, limit, offset)| Operation::List {
                conditions,
                max_depth,
                limit,
                offset
            }),
    ]
}

fn batches() -> impl Strategy<Value = Vec<Vec<Operation>>> {
    proptest::collection::vec(proptest::collection::vec(operation(false), 1..5), 1..20)
}

fn batches_with_queries() -> impl Strategy<Value = Vec<Vec<Operation>>> {
    proptest::collection::vec(proptest::collection::vec(operation(true), 1..5), 1..20)
}

async fn random_operations(ctx: StoreCtx) -> Done {
    search(RUNS, batches, async move |batches| {
        let real = ctx.store().clone();
        run(ctx.root(), real, Arc::new(InMemoryStore::new()), batches).await
    })
    .await
}

async fn random_operations_with_an_index(ctx: StoreCtx) -> Done {
    // Scores are whole numbers, so that all stores compute the same.
    let index = index(Distance::InnerProduct).fields(["text", "more[*]"]);
    let real = ctx.open(StoreOptions::new().index(index.clone())).await?;
    search(RUNS, batches_with_queries, async move |batches| {
        let model = InMemoryStore::builder().index(index.clone()).build()?;
        run(ctx.root(), real.clone(), Arc::new(model), batches).await
    })
    .await
}

async fn run(root: Namespace, real: Store, model: Store, batches: Vec<Vec<Operation>>) -> Done {
    for (at, batch) in batches.iter().enumerate() {
        let ops = batch.iter().map(|operation| op(&root, operation)).collect::<Result<Vec<_>>>()?;
        let found = real.batch(ops.clone()).await?;
        let expected = model.batch(ops).await?;
        ensure_eq!(found.len(), expected.len(), "results of batch {at}");
        for (which, (found, expected)) in found.iter().zip(&expected).enumerate() {
            ensure_eq!(shown(found)?, shown(expected)?, "batch {at}, operation {which}");
        }
    }
    let everything = |store: Store| {
        let root = root.clone();
        async move { store.search(root).limit(1000).await.map(OpResult::Items) }
    };
    let left = everything(real.clone()).await?;
    ensure_eq!(shown(&left)?, shown(&everything(model).await?)?, "everything at the end");
    // Deletes everything before the next run.
    let OpResult::Items(left) = left else {
        return Err(Failure::new(format!("a search returned {left:?}")));
    };
    real.batch(left.iter().map(|found| delete_op(&found.item.namespace, &found.item.key)).collect()).await?;
    Ok(())
}

/// The parts of a result that must be equal in both stores: not the times, but whether an item was updated.
fn shown(result: &OpResult) -> std::result::Result<Vec<String>, Failure> {
    let item = |item: &Item| -> Result<String> {
        let value: Json = item.value.decode()?;
        let updated = if item.updated_at > item.created_at { "updated" } else { "new" };
        // The last part of the run's root would differ.
        Ok(format!("{:?} {:?} {value} {updated}", &item.namespace.labels()[1..], item.key))
    };
    Ok(match result {
        OpResult::Item(found) => found.iter().map(item).collect::<Result<_>>()?,
        OpResult::Items(found) => found
            .iter()
            .map(|found| Ok(format!("{:?} {}", found.score, item(&found.item)?)))
            .collect::<Result<_>>()?,
        OpResult::Namespaces(found) => found.iter().map(|namespace| format!("{namespace:?}")).collect(),
        other => vec![format!("{other:?}")],
    })
}

fn place(root: &Namespace, at: usize) -> Namespace {
    let labels = PLACES.get(at).copied().unwrap_or_default();
    root.labels().iter().cloned().chain(labels.iter().map(|label| Str::from(*label))).collect()
}

fn key(at: usize) -> Str {
    KEYS.get(at).copied().unwrap_or_default().into()
}

fn numbers(texts: [u8; 3]) -> String {
    texts.map(|number| number.to_string()).join(" ")
}

fn op(root: &Namespace, operation: &Operation) -> Result<Op> {
    Ok(match operation {
        Operation::Get { place: at, key: name } => Op::Get(GetOp::new(place(root, *at), key(*name))),
        Operation::Delete { place: at, key: name } => Op::Put(PutOp::delete(place(root, *at), key(*name))),
        Operation::Put { place: at, key: name, value, texts, index } => {
            let mut value = values().swap_remove(*value);
            if let Json::Object(entries) = &mut value {
                let [first, second, third] = *texts;
                if first > 0 {
                    entries.insert("text".into(), json!(numbers(*texts)));
                }
                if third > 1 {
                    entries.insert(
                        "more".into(),
                        json!([numbers([second, first, third]), numbers([third, 0, 1])]),
                    );
                }
            }
            let mut put = PutOp::new(place(root, *at), key(*name), object(&value)?);
            put.index = match index {
                0 => ItemIndex::Off,
                1 => ItemIndex::Fields(vec!["more[0]".into()]),
                _ => ItemIndex::Default,
            };
            Op::Put(put)
        }
        Operation::Search { place: at, filter, query, limit, offset } => {
            let mut search = SearchOp::new(place(root, *at));
            if let Some(filter) = filters().get(*filter) {
                search.filter = ItemFilter::from_json(filter)?;
            }
            search.query = query.map(|texts| numbers(texts).into());
            (search.limit, search.offset) = (*limit, *offset);
            Op::Search(search)
        }
        Operation::List { conditions, max_depth, limit, offset } => {
            let mut list = ListNamespacesOp::new();
            list.match_conditions.push(MatchCondition::Prefix(root.clone()));
            for (prefix, pattern) in conditions {
                let pattern = patterns().get(*pattern).copied().unwrap_or_default();
                list.match_conditions.push(if *prefix {
                    let labels = root.labels().iter().map(|label| &**label);
                    MatchCondition::Prefix(labels.chain(pattern.iter().copied()).collect())
                } else {
                    MatchCondition::Suffix(pattern.iter().copied().collect())
                });
            }
            (list.max_depth, list.limit, list.offset) = (*max_depth, *limit, *offset);
            Op::ListNamespaces(list)
        }
    })
}
