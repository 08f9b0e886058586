//! Storing, replacing and deleting items.

use std::time::Duration;

use checkpoint_core::store::{BaseStore, JsonObject, OpResult, StoreExt};
use checkpoint_core::{ErrorKind, Value};
use serde_json::json;

use super::items::{all_keys, below, delete_op, n, put_op, read, value};
use crate::fixture::{Done, expect_kind};
use crate::store_case::StoreCtx;

cases!(stores "store_put";
    replaces_the_whole_value,
    keeps_created_at,
    the_same_value_is_an_update,
    an_update_of_one_item_leaves_others,
    delete_removes,
    delete_of_a_missing_item,
    delete_removes_only_one_item,
    a_put_after_delete_is_a_new_item,
    returns_done,
    a_struct_is_a_value,
    values_other_than_objects_are_rejected,
    nan_is_rejected,
);

async fn replaces_the_whole_value(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "k", json!({"a": 1, "b": {"c": 2}})).await?;
    ctx.store().put(&root, "k", json!({"b": {"d": 3}})).await?;
    ensure_eq!(value(ctx.store(), &root, "k").await?, json!({"b": {"d": 3}}), "value");
    ctx.store().put(&root, "k", json!({})).await?;
    ensure_eq!(value(ctx.store(), &root, "k").await?, json!({}), "value");
    ensure_eq!(all_keys(ctx.store(), &root).await?, ["k"], "keys");
    Ok(())
}

async fn keeps_created_at(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "k", n(0)).await?;
    let first = read(ctx.store(), &root, "k").await?;
    let mut last = first.clone();
    for number in 1..4 {
        // Longer than the resolution of any clock.
        tokio::time::sleep(Duration::from_millis(2)).await;
        ctx.store().put(&root, "k", n(number)).await?;
        let item = read(ctx.store(), &root, "k").await?;
        ensure_eq!(item.created_at, first.created_at, "created_at after update {number}");
        ensure!(item.updated_at > last.updated_at, "updated_at stays {} at update {number}", item.updated_at);
        last = item;
    }
    let found = ctx.store().search(&root).await?;
    let [found] = &*found else { return Err(crate::Failure::new("a search finds something else")) };
    ensure_eq!(found.item.created_at, first.created_at, "created_at in a search");
    ensure_eq!(found.item.updated_at, last.updated_at, "updated_at in a search");
    Ok(())
}

async fn the_same_value_is_an_update(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "k", n(0)).await?;
    let first = read(ctx.store(), &root, "k").await?;
    tokio::time::sleep(Duration::from_millis(2)).await;
    ctx.store().put(&root, "k", n(0)).await?;
    let second = read(ctx.store(), &root, "k").await?;
    ensure_eq!(second.created_at, first.created_at, "created_at");
    ensure!(second.updated_at > first.updated_at, "updated_at stays {}", second.updated_at);
    Ok(())
}

async fn an_update_of_one_item_leaves_others(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "a", n(1)).await?;
    ctx.store().put(&root, "b", n(2)).await?;
    let before = read(ctx.store(), &root, "b").await?;
    ctx.store().put(&root, "a", n(3)).await?;
    let after = read(ctx.store(), &root, "b").await?;
    ensure_eq!(after.updated_at, before.updated_at, "updated_at of the other item");
    ensure_eq!(value(ctx.store(), &root, "b").await?, n(2), "value of the other item");
    Ok(())
}

async fn delete_removes(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "k", n(0)).await?;
    ctx.store().delete(&root, "k").await?;
    ensure!(ctx.store().get(&root, "k").await?.is_none(), "the item is still there");
    ensure_eq!(all_keys(ctx.store(), &root).await?, Vec::<String>::new(), "what a search finds");
    ensure_eq!(ctx.store().list_namespaces().prefix(&root).await?, [], "namespaces");
    Ok(())
}

async fn delete_of_a_missing_item(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().delete(&root, "k").await?;
    ctx.store().put(&root, "other", n(1)).await?;
    ctx.store().delete(&root, "k").await?;
    ctx.store().delete(&root, "k").await?;
    ensure_eq!(all_keys(ctx.store(), &root).await?, ["other"], "keys");
    Ok(())
}

async fn delete_removes_only_one_item(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let (inner, beside) = (below(&root, ["a"]), below(&root, ["a-"]));
    for namespace in [&root, &inner, &beside] {
        ctx.store().put(namespace, "k", n(1)).await?;
        ctx.store().put(namespace, "k2", n(2)).await?;
    }
    ctx.store().delete(&root, "k").await?;
    for namespace in [&inner, &beside] {
        ensure_eq!(value(ctx.store(), namespace, "k").await?, n(1), "the same key in {namespace}");
    }
    ensure_eq!(value(ctx.store(), &root, "k2").await?, n(2), "another key of the same namespace");
    Ok(())
}

async fn a_put_after_delete_is_a_new_item(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "k", n(0)).await?;
    let first = read(ctx.store(), &root, "k").await?;
    tokio::time::sleep(Duration::from_millis(2)).await;
    ctx.store().delete(&root, "k").await?;
    ctx.store().put(&root, "k", n(1)).await?;
    let second = read(ctx.store(), &root, "k").await?;
    ensure!(second.created_at > first.created_at, "created_at is still {}", second.created_at);
    ensure_eq!(second.created_at, second.updated_at, "times of a new item");
    Ok(())
}

async fn returns_done(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let ops = vec![put_op(&root, "a", &n(1))?, delete_op(&root, "b")];
    let results = ctx.store().batch(ops).await?;
    ensure!(matches!(&*results, [OpResult::Done, OpResult::Done]), "answered {results:?}");
    Ok(())
}

async fn a_struct_is_a_value(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let map = std::collections::BTreeMap::from([("a", 1.5), ("b", -2.0)]);
    ctx.store().put(&root, "k", &map).await?;
    let found: std::collections::BTreeMap<String, f64> =
        read(ctx.store(), &root, "k").await?.value.decode()?;
    ensure_eq!(found.len(), 2, "entries");
    ensure_eq!(found.get("a"), Some(&1.5), "entry a");
    // A value that was read can be put again.
    let item = read(ctx.store(), &root, "k").await?;
    ctx.store().put(&root, "copy", &item.value).await?;
    ensure_eq!(value(ctx.store(), &root, "copy").await?, json!({"a": 1.5, "b": -2.0}), "copy");
    Ok(())
}

async fn values_other_than_objects_are_rejected(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "k", n(1)).await?;
    for wrong in [json!([1]), json!("text"), json!(1), json!(null), json!(true)] {
        let call = ctx.store().put(&root, "k", &wrong).await;
        expect_kind(call, ErrorKind::InvalidArgument, &wrong.to_string())?;
    }
    expect_kind(JsonObject::from_text("{\"a\": 1"), ErrorKind::InvalidArgument, "half an object")?;
    ensure_eq!(value(ctx.store(), &root, "k").await?, n(1), "value");
    Ok(())
}

async fn nan_is_rejected(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let wrong = crate::fixture::map(&[("n", Value::Float(number))]);
        let call = ctx.store().put(&root, "k", wrong).await;
        expect_kind(call, ErrorKind::InvalidArgument, &number.to_string())?;
    }
    ensure_eq!(all_keys(ctx.store(), &root).await?, Vec::<String>::new(), "keys");
    Ok(())
}
