//! `BatchedStore` over the store: joint calls return the same as single ones.

use checkpoint_core::store::{BaseStore, BatchedStore, Distance, ItemFilter, StoreExt};
use checkpoint_core::{ErrorKind, Result};
use futures_util::future::join_all;

use super::items::{
    Numbers, all_keys, below, delete_op, found, get_op, got, indexed, keys, n, put_all, put_op, scores, text,
    value,
};
use crate::StoreFacility;
use crate::case::Failure;
use crate::fixture::{Done, expect_kind, poll_then_drop};
use crate::store_case::{StoreCtx, StoreNeed};

cases!(stores "store_batched";
    single_calls,
    concurrent_puts,
    concurrent_gets,
    concurrent_calls_of_every_kind,
    the_last_put_of_a_key_wins,
    read_after_write,
    an_invalid_call_fails_alone,
    embedding_errors_fail_only_their_callers [StoreNeed::Target(StoreFacility::Index)],
    concurrent_queries [StoreNeed::Target(StoreFacility::Index)],
    larger_batches_pass_through,
    dropped_calls_do_not_affect_others,
    on_many_tasks,
);

async fn single_calls(ctx: StoreCtx) -> Done {
    let (store, root) = (BatchedStore::new(ctx.store().clone()), ctx.root());
    ensure_eq!(store.backend(), ctx.store().backend(), "backend");
    ensure_eq!(store.capabilities(), ctx.store().capabilities(), "capabilities");
    store.setup().await?;
    store.put(&root, "k", n(1)).await?;
    ensure!(store.get(&root, "k").await?.is_some(), "the item is missing");
    ensure_eq!(keys(&store.search(&root).filter(ItemFilter::new().eq("n", 1)).await?), ["k"], "keys");
    ensure_eq!(store.list_namespaces().prefix(&root).await?, std::slice::from_ref(&root), "namespaces");
    store.delete(&root, "k").await?;
    ensure!(store.get(&root, "k").await?.is_none(), "the item is still there");
    Ok(())
}

async fn concurrent_puts(ctx: StoreCtx) -> Done {
    let (store, root) = (BatchedStore::new(ctx.store().clone()), ctx.root());
    let put = async |number: i64| store.put(&root, number.to_string(), n(number)).await;
    for done in join_all((0..300).map(put)).await {
        done?;
    }
    for number in 0..300 {
        ensure_eq!(value(ctx.store(), &root, &number.to_string()).await?, n(number), "value of {number}");
    }
    Ok(())
}

async fn concurrent_gets(ctx: StoreCtx) -> Done {
    let (store, root) = (BatchedStore::new(ctx.store().clone()), ctx.root());
    let ops = (0..50).map(|at| put_op(&root, &at.to_string(), &n(at))).collect::<Result<_>>()?;
    ctx.store().batch(ops).await?;
    let get = async |at: i64| store.get(&root, at.to_string()).await;
    // Each key twice, and as many missing keys.
    let results = join_all((0..200).map(|at| get(at % 100))).await;
    for (at, result) in (0..).zip(results) {
        let at = at % 100;
        let found = result?.map(|item| item.value.decode::<serde_json::Value>()).transpose()?;
        ensure_eq!(found, (at < 50).then(|| n(at)), "value of {at}");
    }
    Ok(())
}

async fn concurrent_calls_of_every_kind(ctx: StoreCtx) -> Done {
    let (store, root) = (BatchedStore::new(ctx.store().clone()), ctx.root());
    let (a, b) = (below(&root, ["a"]), below(&root, ["b"]));
    put_all(ctx.store(), &a, &[("x", n(1)), ("y", n(2))]).await?;
    put_all(ctx.store(), &b, &[("z", n(2))]).await?;
    let (x, missing, in_a, twos, names, cut, put, deleted) = tokio::join!(
        store.get(&a, "x").into_future(),
        store.get(&b, "x").into_future(),
        store.search(&a).into_future(),
        store.search(&root).filter(ItemFilter::new().eq("n", 2)).into_future(),
        store.list_namespaces().prefix(&root).into_future(),
        store.list_namespaces().prefix(&root).max_depth(1).into_future(),
        store.put(&b, "new", n(3)).into_future(),
        store.delete(&root, "never").into_future(),
    );
    ensure!(x?.is_some_and(|item| &*item.key == "x"), "the get of x found something else");
    ensure!(missing?.is_none(), "a get found what is not there");
    ensure_eq!(keys(&in_a?), ["x", "y"], "keys of a search");
    ensure_eq!(keys(&twos?), ["z", "y"], "keys of a search by a filter");
    ensure_eq!(names?, [a, b.clone()], "namespaces");
    ensure_eq!(cut?, [root], "namespaces that are cut");
    put?;
    deleted?;
    ensure_eq!(value(ctx.store(), &b, "new").await?, n(3), "value of what was put");
    Ok(())
}

async fn the_last_put_of_a_key_wins(ctx: StoreCtx) -> Done {
    let (store, root) = (BatchedStore::new(ctx.store().clone()), ctx.root());
    let put = async |number: i64| store.put(&root, "k", n(number)).await;
    for done in join_all((0..100).map(put)).await {
        done?;
    }
    // They were called in this order.
    ensure_eq!(value(ctx.store(), &root, "k").await?, n(99), "value");
    ensure_eq!(all_keys(ctx.store(), &root).await?, ["k"], "keys");
    Ok(())
}

async fn read_after_write(ctx: StoreCtx) -> Done {
    let (store, root) = (BatchedStore::new(ctx.store().clone()), ctx.root());
    let rounds = async |task: i64| {
        let key = task.to_string();
        for number in 0..10 {
            store.put(&root, &*key, n(number)).await?;
            let found = store.get(&root, &*key).await?.map(|item| item.value.decode::<serde_json::Value>());
            ensure_eq!(found.transpose()?, Some(n(number)), "value of {key} right after its put");
        }
        store.delete(&root, &*key).await?;
        ensure!(store.get(&root, &*key).await?.is_none(), "{key} is there right after it was deleted");
        Ok::<_, Failure>(())
    };
    for done in join_all((0..20).map(rounds)).await {
        done?;
    }
    Ok(())
}

async fn an_invalid_call_fails_alone(ctx: StoreCtx) -> Done {
    let (store, root) = (BatchedStore::new(ctx.store().clone()), ctx.root());
    let wrong = below(&root, ["a.b"]);
    let put = async |number: i64| {
        let namespace = if number % 10 == 3 { &wrong } else { &root };
        store.put(namespace, number.to_string(), n(number)).await
    };
    let results = join_all((0..50).map(put)).await;
    for (number, result) in results.into_iter().enumerate() {
        if number % 10 == 3 {
            expect_kind(result, ErrorKind::InvalidArgument, "a put with a wrong namespace")?;
        } else {
            result?;
        }
    }
    ensure_eq!(all_keys(ctx.store(), &root).await?.len(), 45, "items");
    let query = store.search(&root).query("x").into_future();
    let (query, others) = tokio::join!(query, store.search(&root).limit(100).into_future());
    expect_kind(query, ErrorKind::Unsupported, "a query without an index")?;
    ensure_eq!(others?.len(), 45, "items of another search");
    // Keys that only the database may reject.
    let odd = async |key: &'static str| store.put(&root, key, n(1)).await;
    let results = join_all(["good", "bad\0", "better"].map(odd)).await;
    for (key, result) in ["good", "bad\0", "better"].into_iter().zip(results) {
        match result {
            Ok(()) => ensure_eq!(value(ctx.store(), &root, key).await?, n(1), "value of {key:?}"),
            Err(error) => ensure!(
                key == "bad\0" && error.kind() == ErrorKind::InvalidArgument,
                "the put of {key:?} failed: {error}"
            ),
        }
    }
    Ok(())
}

async fn embedding_errors_fail_only_their_callers(ctx: StoreCtx) -> Done {
    let (store, root) = (BatchedStore::new(ctx.open(indexed(Distance::InnerProduct)).await?), ctx.root());
    let put = async |word: &'static str| store.put(&root, word, text(word)).await;
    let words = ["1", Numbers::NAN, "2", Numbers::INFINITE, "3"];
    for (word, result) in words.into_iter().zip(join_all(words.map(put)).await) {
        match word {
            Numbers::NAN | Numbers::INFINITE => {
                expect_kind(result, ErrorKind::Backend, &format!("a put whose vector has {word}"))?;
            }
            _ => result?,
        }
    }
    ensure_eq!(keys(&store.search(&root).query("1").await?), ["3", "2", "1"], "keys");
    // While the model is unreachable, operations without embeddings work.
    let (query, read) = tokio::join!(
        store.search(&root).query(Numbers::FAIL).into_future(),
        store.search(&root).into_future()
    );
    expect_kind(query, ErrorKind::Unavailable, "a query without a model")?;
    ensure_eq!(read?.len(), 3, "items of a search without a query");
    Ok(())
}

async fn concurrent_queries(ctx: StoreCtx) -> Done {
    let (store, root) = (BatchedStore::new(ctx.open(indexed(Distance::InnerProduct)).await?), ctx.root());
    put_all(&store_of(&store), &root, &[("x", text("1 0 0")), ("y", text("0 1 0")), ("z", text("0 0 1"))])
        .await?;
    let query =
        async |at: usize| store.search(&root).query(["1 0 0", "0 1 0", "0 0 1"][at % 3]).limit(1).await;
    for (at, found) in join_all((0..30).map(query)).await.into_iter().enumerate() {
        let expected = [(["x", "y", "z"][at % 3], "1.00000".to_owned())];
        ensure_eq!(scores(&found?), expected, "scores of query {at}");
    }
    Ok(())
}

fn store_of(store: &BatchedStore<crate::Store>) -> crate::Store {
    std::sync::Arc::new(store.clone())
}

async fn larger_batches_pass_through(ctx: StoreCtx) -> Done {
    let (store, root) = (BatchedStore::new(ctx.store().clone()), ctx.root());
    store.put(&root, "k", n(1)).await?;
    let ops = vec![
        put_op(&root, "k", &n(2))?,
        get_op(&root, "k"),
        super::items::all_op(&root),
        put_op(&root, "new", &n(3))?,
        delete_op(&root, "k"),
    ];
    let results = store.batch(ops).await?;
    ensure_eq!(results.len(), 5, "results");
    ensure_eq!(got(&results[1])?, Some(n(1)), "value before");
    ensure_eq!(keys(found(&results[2])?), ["k"], "keys before");
    ensure_eq!(all_keys(ctx.store(), &root).await?, ["new"], "keys afterwards");
    ensure_eq!(store.batch(Vec::new()).await?.len(), 0, "results of no operations");
    Ok(())
}

async fn dropped_calls_do_not_affect_others(ctx: StoreCtx) -> Done {
    let (store, root) = (BatchedStore::new(ctx.store().clone()), ctx.root());
    for polls in [0, 1, 2, 3, 5, 8, 20] {
        let dropped = async |at: usize| {
            let call = store.put(&root, format!("dropped {at}"), n(0)).into_future();
            poll_then_drop(call, polls).await.transpose()
        };
        let kept = async |at: usize| store.put(&root, format!("kept {polls} {at}"), n(1)).await;
        let (dropped, kept) = tokio::join!(join_all((0..10).map(dropped)), join_all((0..10).map(kept)));
        for result in kept {
            result?;
        }
        for result in dropped {
            result?;
        }
        for at in 0..10 {
            ensure_eq!(value(ctx.store(), &root, &format!("kept {polls} {at}")).await?, n(1), "value {at}");
        }
        store.put(&root, "after", n(2)).await?;
    }
    Ok(())
}

async fn on_many_tasks(ctx: StoreCtx) -> Done {
    let (store, root) = (BatchedStore::new(ctx.store().clone()), ctx.root());
    let tasks: Vec<_> = (0..16)
        .map(|task| {
            let (store, root) = (store.clone(), below(&root, [&format!("t{task}")]));
            tokio::spawn(async move {
                for number in 0..12 {
                    store.put(&root, number.to_string(), n(number)).await?;
                    let found = store.search(&root).limit(100).await?.len();
                    let expected = usize::try_from(number).unwrap_or_default() + 1;
                    ensure_eq!(found, expected, "items of task {task} after put {number}");
                }
                Ok::<_, Failure>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    ensure_eq!(all_keys(ctx.store(), &root).await?.len(), 16 * 12, "items");
    Ok(())
}
