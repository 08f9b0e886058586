//! Filters: many filters on many items.

use checkpoint_core::store::{Comparison, Condition, ItemFilter, Namespace, StoreExt};
use serde_json::{Value as Json, json};

use super::items::{keys, object, put_all};
use crate::fixture::Done;
use crate::store_case::StoreCtx;

cases!(stores "store_filters";
    equal,
    not_equal,
    numbers_in_order,
    texts_in_order,
    different_types_do_not_compare,
    big_numbers,
    null_and_missing,
    several_operators,
    several_keys,
    nested_objects,
    exact_objects,
    lists,
    empty_lists_and_objects,
    odd_keys,
    odd_texts,
    operators_in_nested_values,
    every_condition_on_every_value,
);

/// Items by their keys.
type Items = Vec<(&'static str, Json)>;

/// A filter, and the keys of the items that match, separated by spaces.
type Row = (Json, &'static str);

/// Fails unless each filter finds the expected items, which must also match by `ItemFilter::matches`.
async fn check(ctx: &StoreCtx, items: Items, table: &[Row]) -> Done {
    let root = ctx.root();
    put_all(ctx.store(), &root, &items).await?;
    for (json, expected) in table {
        let filter = ItemFilter::from_json(json)?;
        let found = ctx.store().search(&root).filter(filter).limit(100).await?;
        let mut expected: Vec<_> = expected.split_whitespace().collect();
        expected.sort_unstable();
        ensure_eq!(keys(&found), expected, "items by {json}");
    }
    Ok(())
}

fn items() -> Items {
    vec![
        ("i1", json!({"v": 1})),
        ("i3", json!({"v": 3})),
        ("i10", json!({"v": 10})),
        ("neg", json!({"v": -2})),
        ("f15", json!({"v": 1.5})),
        ("f1", json!({"v": 1.0})),
        ("s1", json!({"v": "1"})),
        ("s10", json!({"v": "10"})),
        ("sa", json!({"v": "a"})),
        ("sB", json!({"v": "B"})),
        ("se", json!({"v": ""})),
        ("yes", json!({"v": true})),
        ("no", json!({"v": false})),
        ("null", json!({"v": null})),
        ("list", json!({"v": [1]})),
        ("obj", json!({"v": {"a": 1}})),
        ("none", json!({"w": 1})),
    ]
}

async fn equal(ctx: StoreCtx) -> Done {
    let table = [
        (json!({"v": 1}), "i1 f1"),
        (json!({"v": 1.0}), "i1 f1"),
        (json!({"v": {"$eq": 1}}), "i1 f1"),
        (json!({"v": 1.5}), "f15"),
        (json!({"v": "1"}), "s1"),
        (json!({"v": "a"}), "sa"),
        (json!({"v": "A"}), ""),
        (json!({"v": ""}), "se"),
        (json!({"v": true}), "yes"),
        (json!({"v": false}), "no"),
        (json!({"v": "true"}), ""),
        (json!({"v": 0}), ""),
        (json!({"v": 2}), ""),
        (json!({"w": 1}), "none"),
        (json!({"w": "1"}), ""),
        (json!({"nowhere": 1}), ""),
    ];
    check(&ctx, items(), &table).await
}

async fn not_equal(ctx: StoreCtx) -> Done {
    let table = [
        (json!({"v": {"$ne": 1}}), "i3 i10 neg f15 s1 s10 sa sB se yes no null list obj"),
        (json!({"v": {"$ne": "1"}}), "i1 i3 i10 neg f15 f1 s10 sa sB se yes no null list obj"),
        (json!({"v": {"$ne": null}}), "i1 i3 i10 neg f15 f1 s1 s10 sa sB se yes no list obj"),
        (json!({"v": {"$ne": true}}), "i1 i3 i10 neg f15 f1 s1 s10 sa sB se no null list obj"),
        (json!({"v": {"$ne": [1]}}), "i1 i3 i10 neg f15 f1 s1 s10 sa sB se yes no null obj"),
        (json!({"v": {"$ne": {"a": 1.0}}}), "i1 i3 i10 neg f15 f1 s1 s10 sa sB se yes no null list"),
        (json!({"w": {"$ne": 2}}), "none"),
        (json!({"w": {"$ne": 1}}), ""),
        (json!({"nowhere": {"$ne": 1}}), ""),
    ];
    check(&ctx, items(), &table).await
}

async fn numbers_in_order(ctx: StoreCtx) -> Done {
    let table = [
        (json!({"v": {"$gt": 1}}), "i3 i10 f15"),
        (json!({"v": {"$gt": 3}}), "i10"),
        (json!({"v": {"$gte": 3}}), "i3 i10"),
        (json!({"v": {"$gt": 2.5}}), "i3 i10"),
        (json!({"v": {"$lt": 3}}), "i1 neg f15 f1"),
        (json!({"v": {"$lte": 3}}), "i1 i3 neg f15 f1"),
        (json!({"v": {"$lt": 1.5}}), "i1 neg f1"),
        (json!({"v": {"$lte": 1.5}}), "i1 neg f15 f1"),
        (json!({"v": {"$lt": 0}}), "neg"),
        (json!({"v": {"$gte": -2.0}}), "i1 i3 i10 neg f15 f1"),
        (json!({"v": {"$gt": 1e300}}), ""),
        (json!({"v": {"$gt": -1e300}}), "i1 i3 i10 neg f15 f1"),
    ];
    check(&ctx, items(), &table).await
}

async fn texts_in_order(ctx: StoreCtx) -> Done {
    let mut items = items();
    items.extend([
        ("te", json!({"v": "é"})),
        ("tw", json!({"v": "世"})),
        ("tf", json!({"v": "\u{fffd}"})),
        ("tc", json!({"v": "🦀"})),
        ("tab", json!({"v": "a b"})),
        ("tamb", json!({"v": "a-b"})),
        ("tb", json!({"v": "ab"})),
    ]);
    let table = [
        (json!({"v": {"$gt": "1"}}), "s10 sa sB te tw tf tc tab tamb tb"),
        (json!({"v": {"$gte": "1"}}), "s1 s10 sa sB te tw tf tc tab tamb tb"),
        (json!({"v": {"$lt": "9"}}), "s1 s10 se"),
        (json!({"v": {"$gt": "Z"}}), "sa te tw tf tc tab tamb tb"),
        (json!({"v": {"$gt": "a"}}), "te tw tf tc tab tamb tb"),
        (json!({"v": {"$gt": "a b"}}), "te tw tf tc tamb tb"),
        (json!({"v": {"$gt": "z"}}), "te tw tf tc"),
        (json!({"v": {"$gt": "世"}}), "tf tc"),
        (json!({"v": {"$gt": "\u{fffd}"}}), "tc"),
        (json!({"v": {"$lte": ""}}), "se"),
        (json!({"v": {"$gte": ""}}), "s1 s10 sa sB se te tw tf tc tab tamb tb"),
    ];
    check(&ctx, items, &table).await
}

/// Neither `"10" > 3` nor `3 > "10"` is true, nor any other comparison of different types.
async fn different_types_do_not_compare(ctx: StoreCtx) -> Done {
    let numbers = "i1 i3 i10 neg f15 f1";
    let texts = "s1 s10 sa sB se";
    let table = [
        (json!({"v": {"$gte": -1e9}}), numbers),
        (json!({"v": {"$lte": 1e9}}), numbers),
        (json!({"v": {"$gte": ""}}), texts),
        (json!({"v": {"$lte": "zzz"}}), texts),
        (json!({"v": {"$gt": "2"}}), "sa sB"),
        (json!({"v": {"$lt": "2"}}), "s1 s10 se"),
    ];
    check(&ctx, items(), &table).await
}

async fn big_numbers(ctx: StoreCtx) -> Done {
    let items = vec![
        ("max", json!({"v": u64::MAX})),
        ("imax", json!({"v": i64::MAX})),
        ("imin", json!({"v": i64::MIN})),
        ("odd", json!({"v": 9_007_199_254_740_993_u64})),
        ("even", json!({"v": 9_007_199_254_740_992_u64})),
        ("feven", json!({"v": 9_007_199_254_740_992.0})),
        ("huge", json!({"v": 1e300})),
        ("tiny", json!({"v": 1e-300})),
        ("zero", json!({"v": 0})),
        ("mzero", json!({"v": -0.0})),
        ("tenth", json!({"v": 0.1})),
    ];
    let table = [
        (json!({"v": u64::MAX}), "max"),
        (json!({"v": i64::MAX}), "imax"),
        (json!({"v": {"$gt": i64::MAX}}), "max huge"),
        (json!({"v": {"$lt": i64::MIN + 1}}), "imin"),
        (json!({"v": 9_007_199_254_740_993_u64}), "odd"),
        (json!({"v": 9_007_199_254_740_992_u64}), "even feven"),
        (json!({"v": 9_007_199_254_740_992.0}), "even feven"),
        (json!({"v": {"$gt": 9_007_199_254_740_992.0}}), "odd imax max huge"),
        (json!({"v": {"$gte": 1e300}}), "huge"),
        (json!({"v": {"$gt": 0, "$lt": 1e-200}}), "tiny"),
        (json!({"v": 0}), "zero mzero"),
        (json!({"v": 0.0}), "zero mzero"),
        (json!({"v": -0.0}), "zero mzero"),
        (json!({"v": {"$gte": 0, "$lte": 0}}), "zero mzero"),
        (json!({"v": 0.1}), "tenth"),
        (json!({"v": {"$gt": 0.1}}), "max imax odd even feven huge"),
        (json!({"v": {"$lt": 0.100_000_000_000_000_02, "$gt": 0.09}}), "tenth"),
    ];
    check(&ctx, items, &table).await
}

async fn null_and_missing(ctx: StoreCtx) -> Done {
    let table = [
        (json!({"v": null}), "null"),
        (json!({"v": {"$eq": null}}), "null"),
        (json!({"w": null}), ""),
        (json!({"w": {"$ne": null}}), "none"),
        (json!({"nowhere": null}), ""),
        (json!({"nowhere": {"$ne": null}}), ""),
        (json!({"v": {"$ne": 1}, "w": {"$ne": 2}}), ""),
    ];
    check(&ctx, items(), &table).await
}

async fn several_operators(ctx: StoreCtx) -> Done {
    let table = [
        (json!({"v": {"$gt": 1, "$lt": 10}}), "i3 f15"),
        (json!({"v": {"$gte": 1, "$lte": 10, "$ne": 3}}), "i1 i10 f15 f1"),
        (json!({"v": {"$gt": 3, "$lt": 3}}), ""),
        (json!({"v": {"$eq": 3, "$ne": 4}}), "i3"),
        (json!({"v": {"$eq": 3, "$ne": 3}}), ""),
        (json!({"v": {"$gt": 1, "$gt": 3}}), "i10"),
        (json!({"v": {"$gt": 1, "$lt": "z"}}), ""),
    ];
    check(&ctx, items(), &table).await
}

async fn several_keys(ctx: StoreCtx) -> Done {
    let items = vec![
        ("a", json!({"kind": "x", "n": 1, "tag": null})),
        ("b", json!({"kind": "x", "n": 2})),
        ("c", json!({"kind": "y", "n": 2, "tag": "t"})),
        ("d", json!({"kind": ["x"], "n": "2"})),
    ];
    let table = [
        (json!({}), "a b c d"),
        (json!({"kind": "x"}), "a b"),
        (json!({"kind": "x", "n": 2}), "b"),
        (json!({"kind": "x", "n": {"$gte": 1}}), "a b"),
        (json!({"n": 2, "tag": {"$ne": "u"}}), "c"),
        (json!({"kind": "x", "n": 2, "tag": null}), ""),
        (json!({"kind": "y", "n": "2"}), ""),
    ];
    check(&ctx, items, &table).await?;
    // The same key more than once.
    let root = ctx.root();
    let numbers = [("1", json!({"n": 1})), ("2", json!({"n": 2})), ("3", json!({"n": 3}))];
    put_all(ctx.store(), &root, &numbers).await?;
    let filter = ItemFilter::new().gt("n", 1).lt("n", 3).ne("n", 7);
    ensure_eq!(keys(&ctx.store().search(&root).filter(filter).await?), ["2"], "items between");
    Ok(())
}

fn objects() -> Items {
    vec![
        ("p", json!({"o": {"p": 1}})),
        ("pq", json!({"o": {"p": 1, "q": "r"}})),
        ("p2", json!({"o": {"p": 2}})),
        ("deep", json!({"o": {"p": {"x": {"y": 5}}, "q": [1, {"z": 2}]}})),
        ("list", json!({"o": [{"p": 1}]})),
        ("null", json!({"o": null})),
        ("pnull", json!({"o": {"p": null}})),
        ("empty", json!({"o": {}})),
        ("text", json!({"o": "{\"p\": 1}"})),
        ("flat", json!({"o.p": 1, "p": 1})),
    ]
}

async fn nested_objects(ctx: StoreCtx) -> Done {
    let table = [
        (json!({"o": {"p": 1}}), "p pq"),
        (json!({"o": {"p": 1.0}}), "p pq"),
        (json!({"o": {"p": {"$gt": 0}}}), "p pq p2"),
        (json!({"o": {"p": {"$gt": 1}}}), "p2"),
        (json!({"o": {"p": {"$ne": 1}}}), "p2 deep pnull"),
        (json!({"o": {"p": null}}), "pnull"),
        (json!({"o": {"p": 1, "q": "r"}}), "pq"),
        (json!({"o": {"q": "r", "p": {"$lt": 5}}}), "pq"),
        (json!({"o": {"p": {"x": {"y": 5}}}}), "deep"),
        (json!({"o": {"p": {"x": {"y": {"$gte": 5, "$lt": 6}}}}}), "deep"),
        (json!({"o": {"p": {"x": {"y": 6}}}}), ""),
        (json!({"o": {"p": {"x": {}}}}), "deep"),
        (json!({"o": {"q": [1, {"z": 2}]}}), "deep"),
        (json!({"o": {"q": [1, {"z": {"$gt": 1}}]}}), "deep"),
        (json!({"o": {"r": 1}}), ""),
        (json!({"o": {"r": {"$ne": 1}}}), ""),
    ];
    check(&ctx, objects(), &table).await
}

async fn exact_objects(ctx: StoreCtx) -> Done {
    let table = [
        (json!({"o": {"$eq": {"p": 1}}}), "p"),
        (json!({"o": {"$eq": {"p": 1.0}}}), "p"),
        (json!({"o": {"$eq": {"q": "r", "p": 1}}}), "pq"),
        (json!({"o": {"$eq": {}}}), "empty"),
        (json!({"o": {"$eq": [{"p": 1}]}}), "list"),
        (json!({"o": {"$ne": {"p": 1}}}), "pq p2 deep list null pnull empty text"),
        (json!({"o": {"$eq": null}}), "null"),
        (json!({"o": {"$eq": {"p": {"$gt": 0}}}}), ""),
    ];
    check(&ctx, objects(), &table).await
}

async fn lists(ctx: StoreCtx) -> Done {
    let items = vec![
        ("12", json!({"l": [1, 2]})),
        ("21", json!({"l": [2, 1]})),
        ("1", json!({"l": [1]})),
        ("123", json!({"l": [1, 2, 3]})),
        ("s", json!({"l": ["1", "2"]})),
        ("n", json!({"l": [[1], [2]]})),
        ("o", json!({"l": [{"a": 1, "b": 2}, 7]})),
        ("e", json!({"l": []})),
        ("x", json!({"l": 1})),
        ("null", json!({"l": [null]})),
    ];
    let table = [
        (json!({"l": [1, 2]}), "12"),
        (json!({"l": [1.0, 2.0]}), "12"),
        (json!({"l": [2, 1]}), "21"),
        (json!({"l": [1]}), "1"),
        (json!({"l": 1}), "x"),
        (json!({"l": []}), "e"),
        (json!({"l": [null]}), "null"),
        (json!({"l": [[1], [2]]}), "n"),
        (json!({"l": [{"$gte": 1}, {"$gte": 1}]}), "12 21"),
        (json!({"l": [{"$ne": 1}, 1]}), "21"),
        (json!({"l": [{"a": 1}, 7]}), "o"),
        (json!({"l": [{"a": 1}, {"$gt": 7}]}), ""),
        (json!({"l": {"$eq": [1, 2]}}), "12"),
        (json!({"l": {"$eq": [{"a": 1}, 7]}}), ""),
        (json!({"l": {"$eq": [{"b": 2, "a": 1}, 7]}}), "o"),
        (json!({"l": {"$ne": [1, 2]}}), "21 1 123 s n o e x null"),
        (json!({"l": {"0": 1}}), ""),
    ];
    check(&ctx, items, &table).await
}

async fn empty_lists_and_objects(ctx: StoreCtx) -> Done {
    let items = vec![
        ("o", json!({"v": {}})),
        ("oa", json!({"v": {"a": 1}})),
        ("l", json!({"v": []})),
        ("s", json!({"v": ""})),
        ("n", json!({"v": null})),
        ("none", json!({})),
    ];
    let table = [
        (json!({}), "o oa l s n none"),
        (json!({"v": {}}), "o oa"),
        (json!({"v": {"$eq": {}}}), "o"),
        (json!({"v": []}), "l"),
        (json!({"v": ""}), "s"),
        (json!({"v": null}), "n"),
        (json!({"v": {"$ne": {}}}), "oa l s n"),
        (json!({"v": [{}]}), ""),
    ];
    check(&ctx, items, &table).await
}

async fn odd_keys(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let texts = super::keys::TEXTS;
    for text in texts {
        let value = Json::Object([(text.to_owned(), json!(1))].into_iter().collect());
        ctx.store().put(&root, text, &value).await?;
    }
    for text in texts {
        let by = |filter: ItemFilter| ctx.store().search(&root).filter(filter).limit(100);
        ensure_eq!(keys(&by(ItemFilter::new().eq(text, 1)).await?), [text], "items whose {text:?} is 1");
        ensure_eq!(
            keys(&by(ItemFilter::new().gte(text, 0.5)).await?),
            [text],
            "items whose {text:?} is at least 0.5"
        );
        ensure_eq!(keys(&by(ItemFilter::new().ne(text, 2)).await?), [text], "items whose {text:?} is not 2");
        ensure_eq!(by(ItemFilter::new().eq(text, 2)).await?.len(), 0, "items whose {text:?} is 2");
        let below = Condition::Entries(vec![(text.into(), Condition::Compare(Comparison::Eq, 1.into()))]);
        ensure_eq!(by(ItemFilter::new().and(text, below)).await?.len(), 0, "items with {text:?} in {text:?}");
    }
    let nested = ctx.root();
    for text in texts {
        let value = Json::Object([(text.to_owned(), json!("x"))].into_iter().collect());
        ctx.store().put(&nested, text, json!({ "o": value })).await?;
    }
    for text in texts {
        let below = Condition::Entries(vec![(text.into(), Condition::Compare(Comparison::Eq, "x".into()))]);
        let found = ctx.store().search(&nested).filter(ItemFilter::new().and("o", below)).limit(100).await?;
        ensure_eq!(keys(&found), [text], "items with {text:?} in an entry");
    }
    Ok(())
}

async fn odd_texts(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let mut texts = super::keys::TEXTS.to_vec();
    for text in &texts {
        ctx.store().put(&root, *text, json!({ "v": text, "l": [text] })).await?;
    }
    for text in &texts {
        let by = |filter: ItemFilter| ctx.store().search(&root).filter(filter).limit(100);
        ensure_eq!(keys(&by(ItemFilter::new().eq("v", *text)).await?), [*text], "items that are {text:?}");
        let json = json!({ "l": [text] });
        ensure_eq!(keys(&by(ItemFilter::from_json(&json)?).await?), [*text], "items by {json}");
        let json = json!({ "v": {"$gte": text, "$lte": text} });
        ensure_eq!(keys(&by(ItemFilter::from_json(&json)?).await?), [*text], "items by {json}");
    }
    texts.sort_unstable();
    for (at, text) in texts.iter().enumerate() {
        let found = ctx.store().search(&root).filter(ItemFilter::new().gt("v", *text)).limit(100).await?;
        ensure_eq!(found.len(), texts.len() - at - 1, "items greater than {text:?}");
    }
    Ok(())
}

/// In a value that is compared as a whole, operators are plain keys.
async fn operators_in_nested_values(ctx: StoreCtx) -> Done {
    let items = vec![
        ("a", json!({"v": {"$gt": 1}})),
        ("b", json!({"v": {"$eq": {"$ne": 2}}})),
        ("c", json!({"$eq": 1})),
        ("d", json!({"v": 2})),
    ];
    let table = [
        (json!({"v": {"$eq": {"$gt": 1}}}), "a"),
        (json!({"v": {"$eq": {"$eq": {"$ne": 2}}}}), "b"),
        (json!({"v": {"$gt": 1}}), "d"),
        (json!({"$eq": 1}), "c"),
        (json!({"$eq": {"$gt": 0}}), "c"),
    ];
    check(&ctx, items, &table).await
}

/// Every condition on every value, compared with `ItemFilter::matches`.
async fn every_condition_on_every_value(ctx: StoreCtx) -> Done {
    let values = [
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(-1),
        json!(2),
        json!(1.0),
        json!(1.5),
        json!(-0.5),
        json!(10),
        json!(100),
        json!(1e20),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("0"),
        json!("1"),
        json!("10"),
        json!("2"),
        json!("a"),
        json!("A"),
        json!("true"),
        json!("null"),
        json!("é"),
        json!("🦀"),
        json!([]),
        json!([1]),
        json!(["1"]),
        json!([1, 2]),
        json!([[1]]),
        json!([null]),
        json!([{"a": 1}]),
        json!({}),
        json!({"a": 1}),
        json!({"a": 1.0, "b": null}),
        json!({"a": "1"}),
        json!({"a": {"b": 1}}),
        json!({"b": 1}),
        json!({"a": [1]}),
    ];
    let root = ctx.root();
    let names: Vec<_> = (0..values.len()).map(|at| format!("{at:02}")).collect();
    let items: Vec<_> =
        names.iter().zip(&values).map(|(name, value)| (&**name, json!({ "v": value }))).collect();
    put_all(ctx.store(), &root, &items).await?;
    let mut filters: Vec<Json> = values.iter().map(|value| json!({ "v": value })).collect();
    for value in &values {
        for operator in ["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"] {
            filters.push(json!({ "v": {operator: value} }));
            filters.push(json!({ "v": {"a": {operator: value}} }));
        }
    }
    let mut compared = 0;
    for json in filters {
        // Invalid filters have their own cases.
        let Ok(filter) = ItemFilter::from_json(&json) else { continue };
        compare(&ctx, &root, &items, &json, filter).await?;
        compared += 1;
    }
    ensure!(compared > 300, "only {compared} filters were compared");
    Ok(())
}

async fn compare(
    ctx: &StoreCtx,
    root: &Namespace,
    items: &[(&str, Json)],
    json: &Json,
    filter: ItemFilter,
) -> Done {
    let mut expected = Vec::new();
    for (name, item) in items {
        if filter.matches(&object(item)?.to_value()?) {
            expected.push(*name);
        }
    }
    let found = ctx.store().search(root).filter(filter).limit(1000).await?;
    ensure_eq!(keys(&found), expected, "items by {json}");
    Ok(())
}
