//! Which parts of an item queries find.

use std::sync::atomic::Ordering;

use checkpoint_core::store::{
    BaseStore, Distance, IndexConfig, ItemFilter, ItemIndex, JsonObject, Namespace, Op, PutOp, SearchOp,
    StoreExt,
};
use serde_json::{Value as Json, json};

use super::items::{
    DIMS, Numbers, all_keys, below, delete_op, eventually, index, indexed, keys, object, put_all, put_op,
    scores, text, value,
};
use crate::fixture::Done;
use crate::store_case::{StoreCtx, StoreNeed};
use crate::{Store, StoreFacility, StoreOptions};

cases!(stores "store_index", [StoreNeed::Target(StoreFacility::Index)];
    declares_semantic_search,
    the_nearest_comes_first,
    items_without_a_vector_are_not_found,
    items_without_a_vector_are_found_without_a_query,
    fields_of_the_store,
    fields_of_an_item,
    an_item_excluded_from_the_index,
    the_best_of_several_texts_is_the_score,
    many_texts_of_one_item_do_not_displace_others,
    the_whole_value,
    an_update_replaces_vectors,
    removed_fields_leave_no_vectors,
    excluding_an_item_deletes_its_vectors,
    vectors_are_deleted_with_their_item,
    put_again_after_delete,
    the_last_put_of_a_batch_wins,
    queries_see_the_state_before_their_batch,
    with_filter,
    under_a_namespace,
    limit_and_offset,
    huge_limits_and_offsets,
    few_matches_among_many_nearer_items,
    several_queries_in_one_batch,
    each_text_is_embedded_once,
    embeddings_are_called_only_if_needed,
    two_handles,
    expired_items_are_not_found,
    unusual_paths,
    a_field_that_ends_like_a_number,
    a_key_that_stands_twice,
);

async fn open(ctx: &StoreCtx) -> checkpoint_core::Result<Store> {
    ctx.open(indexed(Distance::InnerProduct)).await
}

/// The keys that a query finds, the nearest first.
async fn near(store: &Store, namespace: &Namespace, query: &str) -> checkpoint_core::Result<Vec<String>> {
    let found = store.search(namespace).query(query).limit(100).await?;
    Ok(keys(&found).into_iter().map(str::to_owned).collect())
}

async fn declares_semantic_search(ctx: StoreCtx) -> Done {
    ensure!(
        open(&ctx).await?.capabilities().semantic_search,
        "a store with an index does not declare semantic search"
    );
    Ok(())
}

async fn the_nearest_comes_first(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    put_all(
        &store,
        &root,
        &[("a", text("1 0 0")), ("b", text("3 0 0")), ("c", text("2 0 0")), ("d", text("-1 9 9"))],
    )
    .await?;
    let found = store.search(&root).query("1 0 0").await?;
    let expected = [("b", "3.00000"), ("c", "2.00000"), ("a", "1.00000"), ("d", "-1.00000")];
    ensure_eq!(scores(&found), expected.map(|(key, score)| (key, score.to_owned())), "scores");
    ensure_eq!(found[0].item.value.decode::<Json>()?, text("3 0 0"), "value of the found item");
    ensure_eq!(found[0].item.namespace, root, "namespace of the found item");
    Ok(())
}

async fn items_without_a_vector_are_not_found(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    let items = [
        ("a", text("1 0 0")),
        ("null", json!({"text": null})),
        ("missing", json!({"other": "5 5 5"})),
        ("empty", json!({})),
        ("number", json!({"text": 7})),
        ("list", json!({"text": ["4 0 0"]})),
        ("no words", text("")),
    ];
    put_all(&store, &root, &items).await?;
    ensure_eq!(near(&store, &root, "1 0 0").await?, ["number", "list", "a", "no words"], "keys");
    Ok(())
}

async fn items_without_a_vector_are_found_without_a_query(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    put_all(&store, &root, &[("a", text("1 0 0")), ("b", json!({"other": 1}))]).await?;
    let found = store.search(&root).await?;
    ensure_eq!(keys(&found), ["a", "b"], "keys");
    ensure!(found.iter().all(|found| found.score.is_none()), "found {found:?}");
    Ok(())
}

async fn fields_of_the_store(ctx: StoreCtx) -> Done {
    let index = IndexConfig::new(DIMS, Numbers::default())
        .fields(["title", "parts[*].text", "meta.note", "{first,second.inner}", "tags[-1]"])
        .distance(Distance::InnerProduct);
    let store = ctx.open(StoreOptions::new().index(index)).await?;
    let root = ctx.root();
    let items = [
        ("title", json!({"title": "1", "text": "100"})),
        ("parts", json!({"parts": [{"text": "0"}, {"text": "2"}, {"no": "100"}, 5]})),
        ("meta", json!({"meta": {"note": "3", "other": "100"}})),
        ("first", json!({"first": "4", "third": "100"})),
        ("second", json!({"second": {"inner": "5", "outer": "100"}})),
        ("tags", json!({"tags": ["100", "6"]})),
        ("none", json!({"text": "100", "parts": "100", "meta": ["100"], "tags": []})),
    ];
    put_all(&store, &root, &items).await?;
    let expected = ["tags", "second", "first", "meta", "parts", "title"];
    ensure_eq!(near(&store, &root, "1").await?, expected, "keys");
    Ok(())
}

async fn fields_of_an_item(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    let item = json!({"text": "1", "title": "2", "tags": ["3", "4"]});
    store.put(&root, "default", &item).await?;
    store.put(&root, "title", &item).index(["title"]).await?;
    store.put(&root, "tags", &item).index(["text", "tags[*]"]).await?;
    store.put(&root, "missing", &item).index(["not there"]).await?;
    store.put(&root, "none", &item).index([] as [&str; 0]).await?;
    let found = store.search(&root).query("1").await?;
    let expected = [("tags", "4.00000"), ("title", "2.00000"), ("default", "1.00000")];
    ensure_eq!(scores(&found), expected.map(|(key, score)| (key, score.to_owned())), "scores");
    Ok(())
}

async fn an_item_excluded_from_the_index(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    store.put(&root, "on", text("1")).await?;
    store.put(&root, "off", text("2")).no_index().await?;
    ensure_eq!(near(&store, &root, "1").await?, ["on"], "keys");
    ensure_eq!(value(&store, &root, "off").await?, text("2"), "value");
    ensure_eq!(all_keys(&store, &root).await?, ["off", "on"], "keys without a query");
    Ok(())
}

async fn the_best_of_several_texts_is_the_score(ctx: StoreCtx) -> Done {
    let index = IndexConfig::new(DIMS, Numbers::default())
        .fields(["a", "b", "l[*]"])
        .distance(Distance::InnerProduct);
    let store = ctx.open(StoreOptions::new().index(index)).await?;
    let root = ctx.root();
    let items = [
        ("x", json!({"a": "1 0 0", "b": "0 5 0", "l": ["0 0 3", "-9 -9 -9"]})),
        ("y", json!({"a": "2 0 0", "l": ["0 0 2"]})),
        ("z", json!({"l": ["0 4 0"]})),
    ];
    put_all(&store, &root, &items).await?;
    for (query, expected) in [
        ("1 0 0", [("y", "2.00000"), ("x", "1.00000"), ("z", "0.00000")]),
        ("0 1 0", [("x", "5.00000"), ("z", "4.00000"), ("y", "0.00000")]),
        ("0 0 1", [("x", "3.00000"), ("y", "2.00000"), ("z", "0.00000")]),
    ] {
        let found = store.search(&root).query(query).await?;
        ensure_eq!(scores(&found), expected.map(|(key, score)| (key, score.to_owned())), "scores of {query}");
    }
    Ok(())
}

async fn many_texts_of_one_item_do_not_displace_others(ctx: StoreCtx) -> Done {
    let index = IndexConfig::new(DIMS, Numbers::default()).fields(["l[*]"]).distance(Distance::InnerProduct);
    let store = ctx.open(StoreOptions::new().index(index)).await?;
    let root = ctx.root();
    let near_ones: Vec<_> = (0..300).map(|at| format!("{}", 1000 + at)).collect();
    store.put(&root, "big", json!({ "l": near_ones })).await?;
    for number in 1..6 {
        store.put(&root, format!("small {number}"), json!({"l": [number.to_string()]})).await?;
    }
    let found = store.search(&root).query("1").limit(4).await?;
    ensure_eq!(keys(&found), ["big", "small 5", "small 4", "small 3"], "keys");
    let found = store.search(&root).query("1").limit(2).offset(4).await?;
    ensure_eq!(keys(&found), ["small 2", "small 1"], "keys of the second page");
    Ok(())
}

async fn the_whole_value(ctx: StoreCtx) -> Done {
    let index = IndexConfig::new(DIMS, Numbers::default()).distance(Distance::InnerProduct);
    let store = ctx.open(StoreOptions::new().index(index)).await?;
    let root = ctx.root();
    // The text of the whole value has sorted keys.
    put_all(
        &store,
        &root,
        &[("a", json!({"b": 2, "a": 1})), ("b", json!({"x": {"y": "5"}})), ("c", json!({"x": null}))],
    )
    .await?;
    let found = store.search(&root).query("1 10 0").await?;
    let expected = [("a", "21.00000"), ("b", "5.00000"), ("c", "0.00000")];
    ensure_eq!(scores(&found), expected.map(|(key, score)| (key, score.to_owned())), "scores");
    Ok(())
}

async fn an_update_replaces_vectors(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    put_all(&store, &root, &[("a", text("9 0 0")), ("b", text("5 0 0"))]).await?;
    store.put(&root, "a", text("1 0 0")).await?;
    let found = store.search(&root).query("1 0 0").await?;
    let expected = [("b", "5.00000"), ("a", "1.00000")];
    ensure_eq!(scores(&found), expected.map(|(key, score)| (key, score.to_owned())), "scores");
    Ok(())
}

async fn removed_fields_leave_no_vectors(ctx: StoreCtx) -> Done {
    let index =
        IndexConfig::new(DIMS, Numbers::default()).fields(["a", "l[*]"]).distance(Distance::InnerProduct);
    let store = ctx.open(StoreOptions::new().index(index)).await?;
    for (what, changed) in [
        ("an entry that is gone", json!({"l": ["1", "2"]})),
        ("an entry that is null", json!({"a": null, "l": ["1", "2"]})),
        ("a shorter list", json!({"a": "1", "l": ["2"]})),
        ("an empty list", json!({"a": "2", "l": []})),
    ] {
        let root = ctx.root();
        store.put(&root, "k", json!({"a": "8", "l": ["6", "7", "9"]})).await?;
        store.put(&root, "k", &changed).await?;
        let found = store.search(&root).query("1").await?;
        ensure_eq!(scores(&found), [("k", "2.00000".to_owned())], "score after {what}");
    }
    let root = ctx.root();
    store.put(&root, "k", json!({"a": "8", "l": ["9"]})).await?;
    store.put(&root, "k", json!({"other": 1})).await?;
    ensure_eq!(near(&store, &root, "1").await?, Vec::<String>::new(), "keys after no text is left");
    store.put(&root, "k", json!({"a": "8", "l": ["9"]})).await?;
    store.put(&root, "k", json!({"a": "8", "l": ["9"]})).index(["a"]).await?;
    let found = store.search(&root).query("1").await?;
    ensure_eq!(scores(&found), [("k", "8.00000".to_owned())], "score with fields of its own");
    Ok(())
}

async fn excluding_an_item_deletes_its_vectors(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    store.put(&root, "k", text("1")).await?;
    store.put(&root, "k", text("1")).no_index().await?;
    ensure_eq!(near(&store, &root, "1").await?, Vec::<String>::new(), "keys after it was switched off");
    store.put(&root, "k", text("1")).await?;
    ensure_eq!(near(&store, &root, "1").await?, ["k"], "keys after it was switched on");
    Ok(())
}

async fn vectors_are_deleted_with_their_item(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    put_all(&store, &root, &[("a", text("2")), ("b", text("1"))]).await?;
    store.delete(&root, "a").await?;
    ensure_eq!(near(&store, &root, "1").await?, ["b"], "keys");
    Ok(())
}

async fn put_again_after_delete(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    store.put(&root, "k", text("5")).await?;
    store.delete(&root, "k").await?;
    store.put(&root, "k", text("5")).no_index().await?;
    ensure_eq!(near(&store, &root, "1").await?, Vec::<String>::new(), "keys of an item without an index");
    store.put(&root, "k", text("2")).await?;
    let found = store.search(&root).query("1").await?;
    ensure_eq!(scores(&found), [("k", "2.00000".to_owned())], "score");
    Ok(())
}

async fn the_last_put_of_a_batch_wins(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    let mut off = PutOp::new(&root, "off", object(&text("9"))?);
    off.index = ItemIndex::Off;
    let ops = vec![
        put_op(&root, "twice", &text("9"))?,
        put_op(&root, "off", &text("9"))?,
        put_op(&root, "deleted", &text("9"))?,
        put_op(&root, "twice", &text("2"))?,
        Op::Put(off),
        delete_op(&root, "deleted"),
        delete_op(&root, "put"),
        put_op(&root, "put", &text("1"))?,
    ];
    store.batch(ops).await?;
    let found = store.search(&root).query("1").await?;
    let expected = [("twice", "2.00000"), ("put", "1.00000")];
    ensure_eq!(scores(&found), expected.map(|(key, score)| (key, score.to_owned())), "scores");
    Ok(())
}

async fn queries_see_the_state_before_their_batch(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    store.put(&root, "a", text("1")).await?;
    let mut search = SearchOp::new(&root);
    search.query = Some("1".into());
    let ops = vec![put_op(&root, "b", &text("2"))?, Op::Search(search), put_op(&root, "a", &text("3"))?];
    let results = store.batch(ops).await?;
    let found = super::items::found(&results[1])?;
    ensure_eq!(scores(found), [("a", "1.00000".to_owned())], "scores");
    ensure_eq!(near(&store, &root, "1").await?, ["a", "b"], "keys afterwards");
    Ok(())
}

async fn with_filter(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    for number in 0..20 {
        let kind = if number % 5 == 0 { "rare" } else { "common" };
        store
            .put(&root, number.to_string(), json!({"text": number.to_string(), "kind": kind, "n": number}))
            .await?;
    }
    let search = |filter: ItemFilter| store.search(&root).query("1").filter(filter);
    let found = search(ItemFilter::new().eq("kind", "rare")).await?;
    ensure_eq!(keys(&found), ["15", "10", "5", "0"], "keys by one condition");
    let found = search(ItemFilter::new().eq("kind", "rare").lt("n", 11)).limit(2).await?;
    ensure_eq!(keys(&found), ["10", "5"], "keys by two conditions");
    let found = search(ItemFilter::new().eq("kind", "rare")).limit(1).offset(3).await?;
    ensure_eq!(keys(&found), ["0"], "keys of the last page");
    ensure_eq!(
        search(ItemFilter::new().eq("kind", "none")).await?.len(),
        0,
        "items by a condition that none meets"
    );
    Ok(())
}

async fn under_a_namespace(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    for (key, labels) in [
        ("u", &["u"][..]),
        ("u1", &["u1"]),
        ("u/a", &["u", "a"]),
        ("u-a", &["u-a"]),
        ("u/a/b", &["u", "a", "b"]),
    ] {
        let namespace: Namespace =
            root.labels().iter().map(|label| &**label).chain(labels.iter().copied()).collect();
        store.put(namespace, key, text("1")).await?;
    }
    for (namespace, expected) in [
        (below(&root, ["u"]), &["u/a/b", "u/a", "u"][..]),
        (below(&root, ["u", "a"]), &["u/a/b", "u/a"]),
        (below(&root, ["u-a"]), &["u-a"]),
        (below(&root, ["a"]), &[]),
        (root.clone(), &["u/a/b", "u-a", "u/a", "u1", "u"]),
    ] {
        ensure_eq!(near(&store, &namespace, "1").await?, expected, "keys under {namespace}");
    }
    Ok(())
}

async fn limit_and_offset(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    for number in 0..25 {
        store.put(&root, number.to_string(), text(&number.to_string())).await?;
    }
    ensure_eq!(store.search(&root).query("1").await?.len(), 10, "items unless it says otherwise");
    for limit in [0, 1, 3, 10, 25, 26] {
        for offset in [0, 1, 7, 24, 25, 30] {
            let found = store.search(&root).query("1").limit(limit).offset(offset).await?;
            let expected: Vec<_> =
                (0..25).rev().map(|number| number.to_string()).skip(offset).take(limit).collect();
            ensure_eq!(keys(&found), expected, "keys with limit {limit} and offset {offset}");
        }
    }
    Ok(())
}

async fn huge_limits_and_offsets(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    put_all(&store, &root, &[("a", text("1")), ("b", text("2"))]).await?;
    for (limit, offset, expected) in
        [(usize::MAX, 0, 2), (usize::MAX, 1, 1), (1, usize::MAX, 0), (usize::MAX, usize::MAX, 0)]
    {
        let found = store.search(&root).query("1").limit(limit).offset(offset).await?;
        ensure_eq!(found.len(), expected, "items with limit {limit} and offset {offset}");
    }
    Ok(())
}

/// Items of other namespaces, and items that a filter excludes, are nearer than all matching ones.
async fn few_matches_among_many_nearer_items(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    let (mine, others) = (below(&root, ["mine"]), below(&root, ["others"]));
    let mut ops = Vec::new();
    for at in 0..600 {
        ops.push(put_op(
            &others,
            &at.to_string(),
            &json!({"text": format!("{}", 100 + at), "kind": "other"}),
        )?);
    }
    for at in 1..=12 {
        let kind = if at % 2 == 0 { "even" } else { "odd" };
        ops.push(put_op(&mine, &at.to_string(), &json!({"text": at.to_string(), "kind": kind}))?);
    }
    store.batch(ops).await?;
    let expected: Vec<_> = (1..=12).rev().map(|at| at.to_string()).collect();
    ensure_eq!(near(&store, &mine, "1").await?, expected, "keys of one namespace");
    let found = store.search(&root).query("1").filter(ItemFilter::new().eq("kind", "even")).await?;
    ensure_eq!(keys(&found), ["12", "10", "8", "6", "4", "2"], "keys by a filter");
    Ok(())
}

async fn several_queries_in_one_batch(ctx: StoreCtx) -> Done {
    let (store, first, second) = (open(&ctx).await?, ctx.root(), ctx.root());
    put_all(&store, &first, &[("x", text("5 0 0")), ("y", text("0 5 0"))]).await?;
    put_all(&store, &second, &[("z", text("1 1 1"))]).await?;
    let search = |namespace: &Namespace, query: Option<&str>, limit: usize| {
        let mut op = SearchOp::new(namespace);
        op.query = query.map(Into::into);
        op.limit = limit;
        Op::Search(op)
    };
    let ops = vec![
        search(&first, Some("1 0 0"), 10),
        search(&first, None, 10),
        search(&first, Some("0 1 0"), 1),
        search(&second, Some("1 0 0"), 10),
        search(&first, Some("1 0 0"), 0),
        search(&ctx.root(), Some("1 0 0"), 10),
    ];
    let results = store.batch(ops).await?;
    let expected: [&[(&str, &str)]; 6] = [
        &[("x", "5.00000"), ("y", "0.00000")],
        &[("x", "none"), ("y", "none")],
        &[("y", "5.00000")],
        &[("z", "1.00000")],
        &[],
        &[],
    ];
    for (at, (result, expected)) in results.iter().zip(expected).enumerate() {
        let expected: Vec<_> = expected.iter().map(|(key, score)| (*key, (*score).to_owned())).collect();
        ensure_eq!(scores(super::items::found(result)?), expected, "scores of search {at}");
    }
    Ok(())
}

async fn each_text_is_embedded_once(ctx: StoreCtx) -> Done {
    let numbers = Numbers::default();
    let index =
        IndexConfig::new(DIMS, numbers.clone()).fields(["text", "title"]).distance(Distance::InnerProduct);
    let (store, root) = (ctx.open(StoreOptions::new().index(index)).await?, ctx.root());
    let items = [
        ("a", json!({"text": "1", "title": "1"})),
        ("b", json!({"text": "1", "title": "2"})),
        ("c", json!({"text": "2"})),
    ];
    put_all(&store, &root, &items).await?;
    ensure_eq!(numbers.texts.load(Ordering::Relaxed), 2, "texts that were embedded");
    ensure_eq!(numbers.calls.load(Ordering::Relaxed), 1, "calls of the embeddings");
    ensure_eq!(near(&store, &root, "1").await?, ["b", "c", "a"], "keys");
    Ok(())
}

async fn embeddings_are_called_only_if_needed(ctx: StoreCtx) -> Done {
    let numbers = Numbers::default();
    let index = IndexConfig::new(DIMS, numbers.clone()).fields(["text"]).distance(Distance::InnerProduct);
    let (store, root) = (ctx.open(StoreOptions::new().index(index)).await?, ctx.root());
    store.put(&root, "off", text("1")).no_index().await?;
    store.put(&root, "no text", json!({"other": "1"})).await?;
    store.delete(&root, "off").await?;
    store.get(&root, "no text").await?;
    store.search(&root).await?;
    store.list_namespaces().prefix(&root).await?;
    ensure_eq!(numbers.calls.load(Ordering::Relaxed), 0, "calls of the embeddings");
    // Nor for a rejected batch.
    let ops = vec![put_op(&root, "k", &text("1"))?, put_op(&below(&root, ["a.b"]), "k", &text("1"))?];
    ensure!(store.batch(ops).await.is_err(), "an invalid namespace was accepted");
    ensure_eq!(numbers.calls.load(Ordering::Relaxed), 0, "calls of the embeddings for a rejected batch");
    Ok(())
}

async fn two_handles(ctx: StoreCtx) -> Done {
    let options = StoreOptions::new().index(index(Distance::InnerProduct));
    let (one, other) = (ctx.open(options.clone()).await?, ctx.open(options).await?);
    let root = ctx.root();
    one.put(&root, "k", text("1")).await?;
    ensure_eq!(near(&other, &root, "1").await?, ["k"], "keys by the other handle");
    other.delete(&root, "k").await?;
    ensure_eq!(
        near(&one, &root, "1").await?,
        Vec::<String>::new(),
        "keys after the other handle has deleted"
    );
    Ok(())
}

async fn expired_items_are_not_found(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    store.put(&root, "short", text("9")).ttl(std::time::Duration::from_millis(50)).await?;
    store.put(&root, "long", text("1")).await?;
    eventually("a query does not find expired items", || async {
        let found = store.search(&root).query("1").refresh_ttl(false).await?;
        Ok(keys(&found) == ["long"])
    })
    .await?;
    // Nor does it count towards the limit.
    let found = store.search(&root).query("1").limit(1).await?;
    ensure_eq!(keys(&found), ["long"], "the nearest one");
    store.put(&root, "short", text("2")).no_index().await?;
    ensure_eq!(near(&store, &root, "1").await?, ["long"], "keys after it was put without an index");
    Ok(())
}

async fn unusual_paths(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    let odd = [
        "a..b",
        "l[9]",
        "l[x]",
        "l[",
        "{a",
        "{}",
        "",
        "*",
        "l[-9]",
        "a'b",
        "a\"b",
        "%",
        "世界",
        "$.text",
        "a.b.c.d.e",
    ];
    let item = json!({"a": {"b": "3"}, "l": ["1", "2"], "a'b": "4", "a\"b": "5", "%": "6", "世界": "7", "text": "0"});
    for path in odd {
        store.put(&root, path, &item).index([path]).await?;
    }
    let found = store.search(&root).query("1").limit(100).await?;
    let nearness =
        |path: &str| found.iter().find(|found| &*found.item.key == path).and_then(|found| found.score);
    for (path, expected) in [
        ("a..b", Some(3.0)),
        ("l[9]", None),
        ("l[-9]", None),
        ("a'b", Some(4.0)),
        ("a\"b", Some(5.0)),
        ("%", Some(6.0)),
        ("世界", Some(7.0)),
        ("a.b.c.d.e", None),
    ] {
        ensure_eq!(nearness(path), expected, "score by the path {path:?}");
    }
    Ok(())
}

/// The names of an item's vectors must be unique.
async fn a_field_that_ends_like_a_number(ctx: StoreCtx) -> Done {
    let index = IndexConfig::new(DIMS, Numbers::default())
        .fields(["l[*]", "l[*].0", "m"])
        .distance(Distance::InnerProduct);
    let (store, root) = (ctx.open(StoreOptions::new().index(index)).await?, ctx.root());
    store.put(&root, "k", json!({"l": ["1", "2"], "m": "3"})).await?;
    let found = store.search(&root).query("1").await?;
    ensure_eq!(scores(&found), [("k", "3.00000".to_owned())], "scores");
    // Two paths with the same name: one of them wins, and the put is stored.
    store.put(&root, "k", json!({"l": ["1", "2"]})).index(["l[*]", "l[*]"]).await?;
    let found = store.search(&root).query("1").await?;
    ensure_eq!(scores(&found), [("k", "2.00000".to_owned())], "scores with a path twice");
    Ok(())
}

/// Its last entry counts, wherever a path meets it.
async fn a_key_that_stands_twice(ctx: StoreCtx) -> Done {
    let (store, root) = (open(&ctx).await?, ctx.root());
    let twice = JsonObject::from_text(r#"{"a": "9", "b": {"a": "9", "c": "2", "a": "1"}, "a": "3"}"#)?;
    for path in ["a", "b.a", "b.*", "*"] {
        store.put(&root, path, &twice).index([path]).await?;
    }
    let found = store.search(&root).query("1").await?;
    let expected = [("*", "3.00000"), ("a", "3.00000"), ("b.*", "2.00000"), ("b.a", "1.00000")];
    let found: std::collections::BTreeMap<_, _> = scores(&found).into_iter().collect();
    ensure_eq!(found, expected.map(|(path, score)| (path, score.to_owned())).into(), "scores by path");
    Ok(())
}
