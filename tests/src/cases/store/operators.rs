//! Invalid filters.

use checkpoint_core::store::{BaseStore, Comparison, Condition, ItemFilter, Op, SearchOp, StoreExt};
use checkpoint_core::{Bytes, ErrorKind, Value};
use serde_json::json;

use super::items::{all_keys, n, put_op};
use crate::fixture::{Done, expect_kind, map};
use crate::store_case::StoreCtx;

cases!(stores "store_operators";
    unknown_operators,
    operators_beside_keys,
    comparisons_without_an_order,
    filters_that_are_not_objects,
    values_that_json_lacks,
    too_deep,
    the_maximum_depth,
    an_invalid_filter_rejects_the_batch,
);

async fn unknown_operators(_ctx: StoreCtx) -> Done {
    for operator in ["$in", "$or", "$and", "$not", "$regex", "$exists", "$", "$EQ", "$eq ", "$gt$"] {
        for filter in [
            json!({"v": {operator: 1}}),
            json!({"v": {"$gt": 1, operator: 1}}),
            json!({"v": {"deep": {operator: 1}}}),
            json!({"v": [{operator: 1}]}),
        ] {
            expect_kind(ItemFilter::from_json(&filter), ErrorKind::InvalidArgument, &filter.to_string())?;
        }
    }
    Ok(())
}

async fn operators_beside_keys(_ctx: StoreCtx) -> Done {
    for filter in [
        json!({"v": {"$eq": 1, "k": 2}}),
        json!({"v": {"k": 2, "$gt": 1}}),
        json!({"v": {"o": {"$ne": 1, "": 2}}}),
    ] {
        expect_kind(ItemFilter::from_json(&filter), ErrorKind::InvalidArgument, &filter.to_string())?;
    }
    Ok(())
}

/// A store rejects it, too, if it was not parsed from JSON.
async fn refused(ctx: &StoreCtx, filter: ItemFilter) -> Done {
    let what = format!("{filter:?}");
    let root = ctx.root();
    let call = ctx.store().search(&root).filter(filter.clone()).await;
    expect_kind(call, ErrorKind::InvalidArgument, &what)?;
    let call = ctx.store().search(&root).filter(filter).limit(0).await;
    expect_kind(call, ErrorKind::InvalidArgument, &format!("{what} with limit 0"))
}

async fn comparisons_without_an_order(ctx: StoreCtx) -> Done {
    for value in [Value::Bool(true), Value::Nil, Value::Array(vec![1.into()]), map(&[("a", 1.into())])] {
        for filter in [
            ItemFilter::new().gt("v", value.clone()),
            ItemFilter::new().gte("v", value.clone()),
            ItemFilter::new().lt("v", value.clone()),
            ItemFilter::new().lte("v", value.clone()),
            ItemFilter::new()
                .eq("v", 1)
                .and("w", Condition::Items(vec![Condition::Compare(Comparison::Gt, value.clone())])),
        ] {
            refused(&ctx, filter).await?;
        }
    }
    Ok(())
}

async fn filters_that_are_not_objects(_ctx: StoreCtx) -> Done {
    for filter in [json!([1]), json!("v"), json!(null), json!(1)] {
        expect_kind(ItemFilter::from_json(&filter), ErrorKind::InvalidArgument, &filter.to_string())?;
    }
    Ok(())
}

async fn values_that_json_lacks(ctx: StoreCtx) -> Done {
    for value in [
        Value::Float(f64::NAN),
        Value::Float(f64::INFINITY),
        Value::Float(f64::NEG_INFINITY),
        Value::Bin(Bytes::from_static(b"x")),
        Value::Ext(1, Bytes::from_static(b"x")),
        Value::Str("a\0b".into()),
        Value::Array(vec![Value::Float(f64::NAN)]),
        map(&[("a", Value::Float(f64::NAN))]),
        map(&[("a\0", 1.into())]),
    ] {
        refused(&ctx, ItemFilter::new().eq("v", value.clone())).await?;
        refused(&ctx, ItemFilter::new().ne("v", value)).await?;
    }
    refused(&ctx, ItemFilter::new().gt("v", f64::NAN)).await?;
    refused(&ctx, ItemFilter::new().eq("a\0", 1)).await?;
    let entries = Condition::Entries(vec![("a\0".into(), Condition::Compare(Comparison::Eq, 1.into()))]);
    refused(&ctx, ItemFilter::new().and("v", entries)).await
}

async fn too_deep(ctx: StoreCtx) -> Done {
    let lists = (0..60).fold(Value::from(1), |inner, _| Value::Array(vec![inner]));
    refused(&ctx, ItemFilter::new().eq("v", lists)).await?;
    let deep = |wrap: fn(Condition) -> Condition| {
        (0..60).fold(Condition::Compare(Comparison::Eq, 1.into()), |inner, _| wrap(inner))
    };
    for wrap in [
        (|inner| Condition::All(vec![inner])) as fn(Condition) -> Condition,
        |inner| Condition::Items(vec![inner]),
        |inner| Condition::Entries(vec![("a".into(), inner)]),
    ] {
        refused(&ctx, ItemFilter::new().and("v", deep(wrap))).await?;
    }
    Ok(())
}

async fn the_maximum_depth(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let value = (0..28).fold(json!(1), |inner, _| json!({ "a": inner }));
    ctx.store().put(&root, "deep", &value).await?;
    ctx.store().put(&root, "flat", json!({"a": 1})).await?;
    let filter = ItemFilter::from_json(&value)?;
    ensure_eq!(ctx.store().search(&root).filter(filter).await?.len(), 1, "items by 28 objects");
    let lists = (0..28).fold(json!(1), |inner, _| json!([inner]));
    ctx.store().put(&root, "lists", json!({ "v": lists })).await?;
    let filter = ItemFilter::from_json(&json!({ "v": lists }))?;
    ensure_eq!(ctx.store().search(&root).filter(filter).await?.len(), 1, "items by 28 lists");
    let wide = ItemFilter::from_json(&json!({ "v": (0..500).collect::<Vec<_>>() }))?;
    ensure_eq!(ctx.store().search(&root).filter(wide).await?.len(), 0, "items by a list of 500");
    let many = (0..300).fold(ItemFilter::new(), |filter, at| filter.ne("a", at + 10));
    ensure_eq!(ctx.store().search(&root).filter(many).await?.len(), 2, "items by 300 conditions");
    Ok(())
}

async fn an_invalid_filter_rejects_the_batch(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let mut search = SearchOp::new(&root);
    search.filter = ItemFilter::new().gt("v", true);
    let call = ctx.store().batch(vec![put_op(&root, "k", &n(1))?, Op::Search(search)]).await;
    expect_kind(call, ErrorKind::InvalidArgument, "a batch with an invalid filter")?;
    ensure_eq!(all_keys(ctx.store(), &root).await?, Vec::<String>::new(), "keys");
    Ok(())
}
