//! Concurrent calls. None of them may fail because of another.

use checkpoint_core::Result;
use checkpoint_core::store::{BaseStore, Distance, Op, StoreExt, TtlConfig};
use serde_json::{Value as Json, json};

use super::items::{
    all_keys, below, delete_op, get_op, indexed, keys, n, put_all, put_op, read, text, value,
};
use crate::case::Failure;
use crate::fixture::Done;
use crate::store_case::{StoreCtx, StoreNeed};
use crate::{StoreFacility, StoreOptions};

cases!(stores "store_concurrency";
    concurrent_puts_of_one_key,
    concurrent_puts_of_many_keys,
    batches_in_opposite_order,
    batches_are_atomic_for_readers,
    concurrent_puts_and_deletes,
    concurrent_deletes_of_the_same_items,
    updates_keep_created_at,
    concurrent_reads_and_puts,
    concurrent_refreshes_of_the_same_items,
    refreshes_and_puts_in_opposite_order,
    two_handles_in_opposite_order,
    concurrent_sweeps_and_puts [StoreNeed::Target(StoreFacility::Fresh)],
    vectors_of_one_key [StoreNeed::Target(StoreFacility::Index)],
    concurrent_setup_and_calls,
);

/// Waits for calls, each of which must succeed, and counts them.
async fn all(calls: Vec<tokio::task::JoinHandle<Result<()>>>) -> std::result::Result<usize, Failure> {
    let mut succeeded = 0;
    for call in calls {
        call.await??;
        succeeded += 1;
    }
    Ok(succeeded)
}

async fn concurrent_puts_of_one_key(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let calls = (0..64).map(|number| {
        let (store, root) = (ctx.store().clone(), root.clone());
        tokio::spawn(async move { store.put(root, "k", n(number)).await })
    });
    ensure_eq!(all(calls.collect()).await?, 64, "puts that succeeded");
    let found = value(ctx.store(), &root, "k").await?["n"].as_i64().unwrap_or(-1);
    ensure!((0..64).contains(&found), "found {found}");
    ensure_eq!(all_keys(ctx.store(), &root).await?, ["k"], "keys");
    Ok(())
}

async fn concurrent_puts_of_many_keys(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let calls = (0..200).map(|number| {
        let (store, root) = (ctx.store().clone(), below(&root, [&format!("{}", number % 7)]));
        tokio::spawn(async move { store.put(root, number.to_string(), n(number)).await })
    });
    ensure_eq!(all(calls.collect()).await?, 200, "puts that succeeded");
    for number in 0..200 {
        let namespace = below(&root, [&format!("{}", number % 7)]);
        ensure_eq!(
            value(ctx.store(), &namespace, &number.to_string()).await?,
            n(number),
            "value of {number}"
        );
    }
    Ok(())
}

/// Batches of the same keys, half of them in reverse order, some with deletes: if each locked its rows in the order of
/// its operations, they would deadlock.
async fn batches_in_opposite_order(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let calls = (0..40).map(|number| {
        let (store, root) = (ctx.store().clone(), root.clone());
        tokio::spawn(async move {
            let mut ops = (0..30)
                .map(|key| match (number % 4, key % 5) {
                    (3, 0) => Ok(delete_op(&root, &key.to_string())),
                    _ => put_op(&root, &key.to_string(), &n(number)),
                })
                .collect::<Result<Vec<Op>>>()?;
            if number % 2 == 0 {
                ops.reverse();
            }
            store.batch(ops).await.map(drop)
        })
    });
    ensure_eq!(all(calls.collect()).await?, 40, "batches that succeeded");
    let found = ctx.store().search(&root).limit(100).await?;
    ensure!((24..=30).contains(&found.len()), "{} of 30 items are there", found.len());
    let numbers = found.iter().map(|found| found.item.value.decode::<Json>()).collect::<Result<Vec<_>>>()?;
    ensure!(numbers.windows(2).all(|two| two[0] == two[1]), "the last batch is incomplete: {numbers:?}");
    Ok(())
}

async fn batches_are_atomic_for_readers(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    put_all(ctx.store(), &root, &[("a", n(0)), ("b", n(0)), ("c", n(0))]).await?;
    let writer = {
        let (store, root) = (ctx.store().clone(), root.clone());
        tokio::spawn(async move {
            for number in 1..60 {
                put_all(&store, &root, &[("a", n(number)), ("b", n(number)), ("c", n(number))]).await?;
            }
            Ok(())
        })
    };
    let mut last = 0;
    let mut rounds = 0;
    while !writer.is_finished() || rounds == 0 {
        rounds += 1;
        let found = ctx.store().search(&root).await?;
        let numbers =
            found.iter().map(|found| found.item.value.decode::<Json>()).collect::<Result<Vec<_>>>()?;
        let number = numbers.first().and_then(|value| value["n"].as_i64()).unwrap_or(-1);
        ensure!(
            numbers.len() == 3 && numbers.iter().all(|value| *value == n(number)),
            "a search sees {numbers:?}"
        );
        ensure!(number >= last, "went backwards from {last} to {number}");
        last = number;
        tokio::task::yield_now().await;
    }
    ensure_eq!(all(vec![writer]).await?, 1, "writers that succeeded");
    Ok(())
}

async fn concurrent_puts_and_deletes(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let calls = (0..60).map(|number| {
        let (store, root) = (ctx.store().clone(), root.clone());
        tokio::spawn(async move {
            if number % 2 == 0 {
                store.put(root, "k", n(number)).await
            } else {
                store.delete(root, "k").await
            }
        })
    });
    ensure_eq!(all(calls.collect()).await?, 60, "calls that succeeded");
    ensure!(all_keys(ctx.store(), &root).await?.len() <= 1, "the key exists twice");
    ctx.store().put(&root, "k", n(100)).await?;
    ensure_eq!(value(ctx.store(), &root, "k").await?, n(100), "value");
    Ok(())
}

async fn concurrent_deletes_of_the_same_items(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let ops = (0..50).map(|at| put_op(&root, &at.to_string(), &n(at))).collect::<Result<_>>()?;
    ctx.store().batch(ops).await?;
    let calls = (0..20).map(|number| {
        let (store, root) = (ctx.store().clone(), root.clone());
        tokio::spawn(async move {
            let mut ops: Vec<_> = (0..50).map(|at| delete_op(&root, &at.to_string())).collect();
            if number % 2 == 0 {
                ops.reverse();
            }
            store.batch(ops).await.map(drop)
        })
    });
    ensure_eq!(all(calls.collect()).await?, 20, "batches that succeeded");
    ensure_eq!(all_keys(ctx.store(), &root).await?.len(), 0, "items left");
    Ok(())
}

async fn updates_keep_created_at(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "k", n(0)).await?;
    let created_at = read(ctx.store(), &root, "k").await?.created_at;
    let calls = (1..40).map(|number| {
        let (store, root) = (ctx.store().clone(), root.clone());
        tokio::spawn(async move { store.put(root, "k", n(number)).await })
    });
    ensure_eq!(all(calls.collect()).await?, 39, "puts that succeeded");
    let item = read(ctx.store(), &root, "k").await?;
    ensure_eq!(item.created_at, created_at, "created_at");
    ensure!(item.updated_at >= created_at, "updated_at is {}", item.updated_at);
    Ok(())
}

async fn concurrent_reads_and_puts(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    put_all(ctx.store(), &root, &[("a", n(0)), ("b", n(0))]).await?;
    let calls = (0..80).map(|number| {
        let (store, root) = (ctx.store().clone(), root.clone());
        tokio::spawn(async move {
            match number % 4 {
                0 => store.put(&root, "a", n(number)).await,
                1 => store.search(&root).await.map(drop),
                2 => store.list_namespaces().prefix(&root).await.map(drop),
                _ => {
                    let ops = vec![get_op(&root, "b"), put_op(&root, "b", &n(number))?, get_op(&root, "a")];
                    store.batch(ops).await.map(drop)
                }
            }
        })
    });
    ensure_eq!(all(calls.collect()).await?, 80, "calls that succeeded");
    ensure_eq!(all_keys(ctx.store(), &root).await?.len(), 2, "items");
    Ok(())
}

async fn concurrent_refreshes_of_the_same_items(ctx: StoreCtx) -> Done {
    let store = ctx.open(StoreOptions::new().ttl(TtlConfig::new().default_ttl(HOUR))).await?;
    let root = ctx.root();
    let ops = (0..40).map(|at| put_op(&root, &at.to_string(), &n(at))).collect::<Result<_>>()?;
    store.batch(ops).await?;
    let calls = (0..40).map(|number| {
        let (store, root) = (store.clone(), root.clone());
        tokio::spawn(async move {
            let mut ops: Vec<_> = (0..40).map(|at| get_op(&root, &at.to_string())).collect();
            if number % 2 == 0 {
                ops.reverse();
            }
            if number % 3 == 0 {
                store.search(&root).limit(100).await.map(drop)
            } else {
                store.batch(ops).await.map(drop)
            }
        })
    });
    ensure_eq!(all(calls.collect()).await?, 40, "reads that succeeded");
    Ok(())
}

const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);

async fn refreshes_and_puts_in_opposite_order(ctx: StoreCtx) -> Done {
    let store = ctx.open(StoreOptions::new().ttl(TtlConfig::new().default_ttl(HOUR))).await?;
    let root = ctx.root();
    let ops = (0..30).map(|at| put_op(&root, &at.to_string(), &n(at))).collect::<Result<_>>()?;
    store.batch(ops).await?;
    let calls = (0..60).map(|number| {
        let (store, root) = (store.clone(), root.clone());
        tokio::spawn(async move {
            let keys: Vec<String> = match number % 2 {
                0 => (0..30).map(|at| at.to_string()).collect(),
                _ => (0..30).rev().map(|at| at.to_string()).collect(),
            };
            match number % 3 {
                0 => store.batch(keys.iter().map(|key| get_op(&root, key)).collect()).await.map(drop),
                1 => {
                    let ops = keys.iter().map(|key| put_op(&root, key, &n(number)));
                    store.batch(ops.collect::<Result<_>>()?).await.map(drop)
                }
                // Reads and writes in one batch.
                _ => {
                    let gets = keys.iter().map(|key| Ok(get_op(&root, key)));
                    let puts = keys.iter().rev().map(|key| put_op(&root, key, &n(number)));
                    store.batch(gets.chain(puts).collect::<Result<_>>()?).await.map(drop)
                }
            }
        })
    });
    ensure_eq!(all(calls.collect()).await?, 60, "batches that succeeded");
    ensure_eq!(all_keys(&store, &root).await?.len(), 30, "items");
    Ok(())
}

async fn two_handles_in_opposite_order(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let other = ctx.open(StoreOptions::default()).await?;
    let calls = (0..40).map(|number| {
        let store = if number % 2 == 0 { ctx.store().clone() } else { other.clone() };
        let root = root.clone();
        tokio::spawn(async move {
            let mut ops =
                (0..40).map(|at| put_op(&root, &at.to_string(), &n(number))).collect::<Result<Vec<_>>>()?;
            if number % 2 == 0 {
                ops.reverse();
            }
            store.batch(ops).await.map(drop)
        })
    });
    ensure_eq!(all(calls.collect()).await?, 40, "batches that succeeded");
    ensure_eq!(all_keys(&other, &root).await?.len(), 40, "items");
    Ok(())
}

async fn concurrent_sweeps_and_puts(ctx: StoreCtx) -> Done {
    let target = ctx.fresh().await?;
    let store = target.open(StoreOptions::default()).await?;
    store.setup().await?;
    let calls = (0..80).map(|number| {
        let store = store.clone();
        tokio::spawn(async move {
            match number % 4 {
                0 => store.sweep_ttl().await.map(drop),
                1 => {
                    let ops = (0..20).rev().map(|at| put_op(&["a"].into(), &at.to_string(), &n(number)));
                    store.batch(ops.collect::<Result<_>>()?).await.map(drop)
                }
                _ => {
                    let short = std::time::Duration::from_millis(1);
                    store.put(["a"], (number % 20).to_string(), n(number)).ttl(short).await
                }
            }
        })
    });
    ensure_eq!(all(calls.collect()).await?, 80, "calls that succeeded");
    let ops = (0..20).map(|at| put_op(&["a"].into(), &at.to_string(), &n(-1))).collect::<Result<_>>()?;
    store.batch(ops).await?;
    store.sweep_ttl().await?;
    ensure_eq!(all_keys(&store, &["a"].into()).await?.len(), 20, "items");
    Ok(())
}

async fn vectors_of_one_key(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.open(indexed(Distance::InnerProduct)).await?, ctx.root());
    // The last call may be a deletion, or a put without vectors: then nothing is found.
    let mut compared = 0;
    for _ in 0..20 {
        let calls = (0..40).map(|number| {
            let (store, root) = (store.clone(), root.clone());
            tokio::spawn(async move {
                let value = json!({"text": number.to_string(), "more": [number.to_string(), "0"]});
                match number % 5 {
                    0 => store.delete(&root, "k").await,
                    1 => store.put(&root, "k", value).no_index().await,
                    2 => store.put(&root, "k", value).index(["more[*]", "text"]).await,
                    _ => store.put(&root, "k", value).await,
                }
            })
        });
        ensure_eq!(all(calls.collect()).await?, 40, "calls that succeeded");
        // The vectors belong to the stored item.
        let found = store.search(&root).query("1").await?;
        ensure!(found.len() <= 1, "found {found:?}");
        for found in found {
            let text = found.item.value.decode::<Json>()?["text"].as_str().unwrap_or_default().to_owned();
            ensure_eq!(found.score.map(|score| score.to_string()), Some(text), "score");
            compared += 1;
        }
        if compared > 0 {
            break;
        }
    }
    ensure!(compared > 0, "no round left an item with vectors");
    store.put(&root, "k", text("7")).await?;
    ensure_eq!(keys(&store.search(&root).query("1").await?), ["k"], "keys");
    Ok(())
}

async fn concurrent_setup_and_calls(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let calls = (0..24).map(|number| {
        let (store, root) = (ctx.store().clone(), root.clone());
        tokio::spawn(async move {
            if number % 6 == 0 {
                store.setup().await
            } else {
                store.put(root, number.to_string(), n(number)).await
            }
        })
    });
    ensure_eq!(all(calls.collect()).await?, 24, "calls that succeeded");
    ensure_eq!(all_keys(ctx.store(), &root).await?.len(), 20, "items");
    Ok(())
}
