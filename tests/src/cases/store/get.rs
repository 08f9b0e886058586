//! Reading single items.

use std::collections::BTreeMap;

use checkpoint_core::ErrorKind;
use checkpoint_core::store::{BaseStore, Namespace, StoreExt};
use serde_json::json;

use super::items::{below, n, read, value};
use crate::case::Failure;
use crate::fixture::Done;
use crate::store_case::{StoreCtx, StoreNeed};
use crate::{StoreFacility, StoreOptions};

cases!(stores "store_get";
    missing_is_none,
    has_all_fields,
    values_are_decoded,
    reads_only_its_namespace,
    reads_only_its_key,
    the_root_has_no_items,
    another_handle_sees_it,
    outlives_its_handle [StoreNeed::Durable],
    an_empty_store_has_nothing [StoreNeed::Target(StoreFacility::Fresh)],
);

async fn missing_is_none(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ensure!(ctx.store().get(&root, "k").await?.is_none(), "an item of an unknown namespace");
    ctx.store().put(&root, "k", n(1)).await?;
    ensure!(ctx.store().get(&root, "other").await?.is_none(), "an item of an unknown key");
    let listed = ctx.store().list_namespaces().prefix(below(&root, ["never"])).await?;
    ensure_eq!(listed, [], "namespaces created by reads");
    Ok(())
}

async fn has_all_fields(ctx: StoreCtx) -> Done {
    let namespace = below(&ctx.root(), ["a", "b"]);
    let stored = json!({"text": "x", "list": [1, {"deep": null}], "yes": true, "float": 1.5});
    ctx.store().put(&namespace, "key", &stored).await?;
    let item = read(ctx.store(), &namespace, "key").await?;
    ensure_eq!(item.namespace, namespace, "namespace");
    ensure_eq!(&*item.key, "key", "key");
    ensure_eq!(item.value.decode::<serde_json::Value>()?, stored, "value");
    ensure_eq!(item.created_at, item.updated_at, "times of a new item");
    Ok(())
}

async fn values_are_decoded(ctx: StoreCtx) -> Done {
    type Numbers = BTreeMap<String, i64>;
    let (store, root) = (ctx.store(), ctx.root());
    let stored = Numbers::from([("a".to_owned(), 1), ("b".to_owned(), -2)]);
    ensure_eq!(store.get_as::<Numbers>(&root, "k").await?, None, "an item that is missing");
    store.put(&root, "k", &stored).await?;
    ensure_eq!(store.get_as::<Numbers>(&root, "k").await?, Some(stored.clone()), "value");
    let found = store.search(&root).decode::<Numbers>().await?;
    let found: Vec<_> = found.into_iter().map(|found| (found.item.key.to_string(), found.value)).collect();
    ensure_eq!(found, [("k".to_owned(), stored)], "items found");

    store.put(&root, "text", json!({"a": "a stored text"})).await?;
    let errors = [
        store.get_as::<Numbers>(&root, "text").await.map(|_| ()),
        store.search(&root).decode::<Numbers>().await.map(|_| ()),
    ];
    for (called, operation) in errors.into_iter().zip(["get", "search"]) {
        let Err(error) = called else { return Err(Failure::new("a text was decoded as a number")) };
        let found = (error.kind(), error.backend(), error.operation());
        ensure_eq!(found, (ErrorKind::Codec, Some(store.backend()), Some(operation)), "error");
        let shown = error.to_string();
        ensure!(
            shown.contains(&root.to_text()) && shown.contains("\"text\""),
            "the error names no item: {shown}"
        );
        ensure!(!shown.contains("a stored text"), "the error shows a value: {shown}");
    }
    Ok(())
}

async fn reads_only_its_namespace(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let places = [root.clone(), below(&root, ["a"]), below(&root, ["a", "b"]), below(&root, ["b", "a"])];
    for (number, namespace) in (0..).zip(&places) {
        ctx.store().put(namespace, "k", n(number)).await?;
    }
    for (number, namespace) in (0..).zip(&places) {
        ensure_eq!(value(ctx.store(), namespace, "k").await?, n(number), "item of {namespace}");
    }
    ensure!(ctx.store().get(below(&root, ["b"]), "k").await?.is_none(), "an item of the namespace between");
    Ok(())
}

async fn reads_only_its_key(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let keys = ["key", "Key", "KEY", "key ", " key", "ke", "key.", "k%", "k_y"];
    for (number, key) in (0..).zip(keys) {
        ctx.store().put(&root, key, n(number)).await?;
    }
    for (number, key) in (0..).zip(keys) {
        ensure_eq!(value(ctx.store(), &root, key).await?, n(number), "item of {key:?}");
    }
    ensure!(ctx.store().get(&root, "k*").await?.is_none(), "an item of a pattern");
    Ok(())
}

async fn the_root_has_no_items(ctx: StoreCtx) -> Done {
    ensure!(ctx.store().get(Namespace::root(), "k").await?.is_none(), "an item of the root");
    Ok(())
}

async fn another_handle_sees_it(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "k", n(1)).await?;
    // A handle without setup works on a database that is set up.
    let other = ctx.target().open(StoreOptions::default()).await?;
    ensure_eq!(value(&other, &root, "k").await?, n(1), "value");
    ctx.store().delete(&root, "k").await?;
    ensure!(other.get(&root, "k").await?.is_none(), "the other handle still has the item");
    Ok(())
}

async fn outlives_its_handle(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    // Put through this handle, so that it is deleted at the end.
    ctx.store().put(&root, "k", n(1)).await?;
    let other = ctx.target().open(StoreOptions::default()).await?;
    other.put(&root, "k", n(2)).await?;
    drop(other);
    let later = ctx.target().open(StoreOptions::default()).await?;
    ensure_eq!(value(&later, &root, "k").await?, n(2), "value");
    Ok(())
}

async fn an_empty_store_has_nothing(ctx: StoreCtx) -> Done {
    let store = ctx.fresh().await?.open(StoreOptions::default()).await?;
    store.setup().await?;
    ensure!(store.get(["a"], "k").await?.is_none(), "an item");
    ensure_eq!(store.search(Namespace::root()).await?.len(), 0, "items");
    ensure_eq!(store.list_namespaces().await?, [], "namespaces");
    ensure_eq!(store.sweep_ttl().await?, 0, "items swept");
    store.delete(["a"], "k").await?;
    Ok(())
}
