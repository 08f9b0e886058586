//! Searches without a query: namespaces, order and limits.

use checkpoint_core::store::{BaseStore, ItemFilter, Namespace, Op, SearchOp, StoreExt};
use checkpoint_core::{Error, ErrorKind};
use serde_json::json;

use super::items::{all_keys, below, found, keys, n, put_all, put_numbered, put_op};
use crate::fixture::{Done, expect_kind};
use crate::store_case::{StoreCtx, StoreNeed};
use crate::{StoreFacility, StoreOptions};

cases!(stores "store_search";
    the_newest_comes_first,
    an_update_moves_to_the_front,
    items_of_one_batch_are_ordered_by_namespace_and_key,
    the_default_limit_is_ten,
    limit_and_offset,
    pages_are_complete,
    pages_of_items_of_one_time,
    huge_limits_and_offsets,
    no_matching_items,
    results_have_no_score,
    the_root_has_everything [StoreNeed::Target(StoreFacility::Fresh)],
    filter_and_page,
    several_searches_in_one_batch,
    over_a_thousand_items,
    a_query_requires_an_index,
    the_empty_query_requires_an_index,
);

async fn the_newest_comes_first(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    for (label, key) in [("b", "1"), ("a", "2"), ("c", "3"), ("a", "0"), ("b", "9")] {
        ctx.store().put(below(&root, [label]), key, n(1)).await?;
    }
    ensure_eq!(all_keys(ctx.store(), &root).await?, ["9", "0", "3", "2", "1"], "keys");
    Ok(())
}

async fn an_update_moves_to_the_front(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    put_numbered(ctx.store(), &root, 4).await?;
    ctx.store().put(&root, "k1", n(9)).await?;
    ensure_eq!(all_keys(ctx.store(), &root).await?, ["k1", "k3", "k2", "k0"], "keys");
    // A read does not.
    ctx.store().get(&root, "k0").await?;
    ensure_eq!(all_keys(ctx.store(), &root).await?, ["k1", "k3", "k2", "k0"], "keys after a read");
    Ok(())
}

async fn items_of_one_batch_are_ordered_by_namespace_and_key(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let places = [
        (root.clone(), "a"),
        (root.clone(), "b"),
        (below(&root, ["a"]), "c"),
        (below(&root, ["a"]), "d"),
        (below(&root, ["a-b"]), "a"),
        (below(&root, ["a", "b"]), "Z"),
        (below(&root, ["a", "b"]), "a"),
        (below(&root, ["a0"]), "a"),
        (below(&root, ["é"]), "a"),
    ];
    let ops = places.iter().rev().map(|(namespace, key)| put_op(namespace, key, &n(1)));
    ctx.store().batch(ops.collect::<Result<_, _>>()?).await?;
    let found = ctx.store().search(&root).await?;
    let found: Vec<_> = found.iter().map(|found| (found.item.namespace.clone(), &*found.item.key)).collect();
    let mut expected = places.to_vec();
    expected.sort();
    ensure_eq!(found, expected, "items");
    // An older batch follows, regardless of its names.
    let older = ctx.root();
    ctx.store().batch(vec![put_op(&older, "a", &n(1))?, put_op(&older, "b", &n(1))?]).await?;
    ctx.store().batch(vec![put_op(&older, "z", &n(1))?, put_op(&older, "y", &n(1))?]).await?;
    ensure_eq!(all_keys(ctx.store(), &older).await?, ["y", "z", "a", "b"], "keys of two batches");
    Ok(())
}

async fn the_default_limit_is_ten(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    put_numbered(ctx.store(), &root, 12).await?;
    let found = ctx.store().search(&root).await?;
    ensure_eq!(keys(&found), ["k11", "k10", "k9", "k8", "k7", "k6", "k5", "k4", "k3", "k2"], "keys");
    Ok(())
}

async fn limit_and_offset(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    put_numbered(ctx.store(), &root, 5).await?;
    let all = ["k4", "k3", "k2", "k1", "k0"];
    for limit in 0..7 {
        for offset in 0..7 {
            let found = ctx.store().search(&root).limit(limit).offset(offset).await?;
            let expected: Vec<_> = all.into_iter().skip(offset).take(limit).collect();
            ensure_eq!(keys(&found), expected, "keys with limit {limit} and offset {offset}");
        }
    }
    Ok(())
}

async fn pages_are_complete(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    put_numbered(ctx.store(), &root, 53).await?;
    let whole = all_keys(ctx.store(), &root).await?;
    ensure_eq!(whole.len(), 53, "items");
    let mut paged = Vec::new();
    for page in 0.. {
        let found = ctx.store().search(&root).limit(7).offset(page * 7).await?;
        paged.extend(keys(&found).into_iter().map(str::to_owned));
        if found.len() < 7 {
            break;
        }
    }
    ensure_eq!(paged, whole, "keys of all pages");
    Ok(())
}

async fn pages_of_items_of_one_time(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let names: Vec<_> = (0..40).map(|at| format!("{at:02}")).collect();
    let ops = names.iter().rev().map(|key| put_op(&root, key, &n(1))).collect::<Result<_, _>>()?;
    ctx.store().batch(ops).await?;
    let mut paged = Vec::new();
    for page in 0..9 {
        let found = ctx.store().search(&root).limit(5).offset(page * 5).await?;
        paged.extend(keys(&found).into_iter().map(str::to_owned));
    }
    ensure_eq!(paged, names, "keys of all pages");
    Ok(())
}

async fn huge_limits_and_offsets(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    put_numbered(ctx.store(), &root, 3).await?;
    for (limit, offset, expected) in [
        (usize::MAX, 0, 3),
        (usize::MAX, 2, 1),
        (usize::MAX, usize::MAX, 0),
        (1, usize::MAX, 0),
        (usize::MAX >> 1, 1, 2),
        (1 << 40, 0, 3),
    ] {
        let found = ctx.store().search(&root).limit(limit).offset(offset).await?;
        ensure_eq!(found.len(), expected, "items with limit {limit} and offset {offset}");
    }
    Ok(())
}

async fn no_matching_items(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ensure_eq!(ctx.store().search(&root).await?.len(), 0, "items");
    put_numbered(ctx.store(), &root, 3).await?;
    ensure_eq!(ctx.store().search(below(&root, ["k0"])).await?.len(), 0, "items below a key");
    ensure_eq!(ctx.store().search(&root).limit(0).await?.len(), 0, "items with limit 0");
    Ok(())
}

async fn results_have_no_score(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    put_numbered(ctx.store(), &root, 3).await?;
    let found = ctx.store().search(&root).await?;
    ensure_eq!(found.len(), 3, "items");
    ensure!(found.iter().all(|found| found.score.is_none()), "found {found:?}");
    Ok(())
}

async fn the_root_has_everything(ctx: StoreCtx) -> Done {
    let store = ctx.fresh().await?.open(StoreOptions::default()).await?;
    store.setup().await?;
    for labels in [&["a"][..], &["a", "b"], &["a-b"], &["z"]] {
        store.put(labels, labels.concat(), n(1)).await?;
    }
    let found = store.search(Namespace::root()).await?;
    ensure_eq!(keys(&found), ["z", "a-b", "ab", "a"], "keys");
    let found = store.search(Namespace::root()).filter(ItemFilter::new().eq("n", 2)).await?;
    ensure_eq!(found.len(), 0, "items by a filter");
    Ok(())
}

async fn filter_and_page(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    for number in 0..30 {
        let value = json!({"n": number, "even": number % 2 == 0});
        ctx.store().put(&root, number.to_string(), value).await?;
    }
    let filter = ItemFilter::new().eq("even", true).gte("n", 4);
    let search = || ctx.store().search(&root).filter(filter.clone());
    let found = search().limit(100).await?;
    let expected: Vec<_> = (2..15).rev().map(|half| (half * 2).to_string()).collect();
    ensure_eq!(keys(&found), expected, "keys");
    let found = search().limit(3).offset(2).await?;
    ensure_eq!(keys(&found), ["24", "22", "20"], "keys of a page");
    ensure_eq!(search().limit(0).await?.len(), 0, "items with limit 0");
    Ok(())
}

async fn several_searches_in_one_batch(ctx: StoreCtx) -> Done {
    let (first, second) = (ctx.root(), ctx.root());
    put_numbered(ctx.store(), &first, 4).await?;
    put_all(ctx.store(), &second, &[("x", json!({"n": 2}))]).await?;
    let search = |namespace: &Namespace, set: fn(&mut SearchOp)| {
        let mut op = SearchOp::new(namespace);
        set(&mut op);
        Op::Search(op)
    };
    let ops = vec![
        search(&first, |_| ()),
        search(&second, |_| ()),
        search(&first, |op| op.limit = 1),
        search(&first, |op| op.offset = 3),
        search(&first, |op| op.filter = ItemFilter::new().eq("n", 2)),
        search(&second, |op| op.filter = ItemFilter::new().eq("n", 2)),
        search(&first, |op| op.limit = 0),
        search(&first, |_| ()),
    ];
    let results = ctx.store().batch(ops).await?;
    let expected: [&[&str]; 8] = [
        &["k3", "k2", "k1", "k0"],
        &["x"],
        &["k3"],
        &["k0"],
        &["k2"],
        &["x"],
        &[],
        &["k3", "k2", "k1", "k0"],
    ];
    ensure_eq!(results.len(), expected.len(), "results");
    for (at, (result, expected)) in results.iter().zip(expected).enumerate() {
        ensure_eq!(keys(found(result)?), expected, "keys of search {at}");
    }
    Ok(())
}

async fn over_a_thousand_items(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let ops = (0..1500).map(|at| put_op(&below(&root, [&format!("{}", at % 7)]), &at.to_string(), &n(at)));
    ctx.store().batch(ops.collect::<Result<_, Error>>()?).await?;
    ensure_eq!(ctx.store().search(&root).limit(10_000).await?.len(), 1500, "items");
    ensure_eq!(
        ctx.store().search(below(&root, ["3"])).limit(10_000).await?.len(),
        214,
        "items of one namespace"
    );
    let filter = ItemFilter::new().gte("n", 1490);
    ensure_eq!(ctx.store().search(&root).filter(filter).limit(100).await?.len(), 10, "items by a filter");
    Ok(())
}

async fn a_query_requires_an_index(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "k", n(1)).await?;
    ensure!(!ctx.store().capabilities().semantic_search, "a store without an index declares semantic search");
    let call = ctx.store().search(&root).query("text").await;
    expect_kind(call, ErrorKind::Unsupported, "a query without an index")?;
    let call = ctx.store().search(&root).query("text").limit(0).await;
    expect_kind(call, ErrorKind::Unsupported, "a query for nothing without an index")?;
    // The whole batch is rejected.
    let mut op = SearchOp::new(&root);
    op.query = Some("text".into());
    let call = ctx.store().batch(vec![put_op(&root, "new", &n(2))?, Op::Search(op)]).await;
    expect_kind(call, ErrorKind::Unsupported, "a batch with such a query")?;
    ensure_eq!(all_keys(ctx.store(), &root).await?, ["k"], "keys");
    Ok(())
}

async fn the_empty_query_requires_an_index(ctx: StoreCtx) -> Done {
    let call = ctx.store().search(ctx.root()).query("").await;
    expect_kind(call, ErrorKind::Unsupported, "an empty query without an index")
}
