//! Values: any JSON object.

use checkpoint_core::ErrorKind;
use checkpoint_core::store::{BaseStore, ItemFilter, JsonObject, StoreExt};
use serde_json::{Value as Json, json};

use super::items::{all_keys, n, put_op, read, value};
use super::keys::TEXTS;
use crate::fixture::{Done, expect_kind};
use crate::store_case::StoreCtx;

cases!(stores "store_values";
    scalars,
    texts,
    keys,
    numbers,
    numbers_beyond_64_bits,
    nested,
    deeply_nested,
    of_a_megabyte,
    of_many_entries,
    escapes,
    with_nul,
    duplicate_keys,
    values_that_look_like_another_format,
);

async fn round_trip(ctx: &StoreCtx, stored: &Json, what: &str) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "k", stored).await?;
    ensure_eq!(value(ctx.store(), &root, "k").await?, *stored, "{what}");
    let found = ctx.store().search(&root).await?;
    let found = found.iter().map(|found| found.item.value.decode::<Json>()).collect::<Result<Vec<_>, _>>()?;
    ensure_eq!(found, std::slice::from_ref(stored), "{what}, in a search");
    Ok(())
}

async fn scalars(ctx: StoreCtx) -> Done {
    for scalar in [
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(""),
        json!("x"),
        json!([]),
        json!({}),
    ] {
        round_trip(&ctx, &json!({ "v": scalar }), &scalar.to_string()).await?;
    }
    round_trip(&ctx, &json!({}), "an empty object").await
}

async fn texts(ctx: StoreCtx) -> Done {
    for text in TEXTS {
        round_trip(&ctx, &json!({ "text": text }), &format!("{text:?}")).await?;
    }
    round_trip(&ctx, &json!({ "all": TEXTS.as_slice() }), "all texts").await
}

async fn keys(ctx: StoreCtx) -> Done {
    let all: serde_json::Map<_, _> = TEXTS.iter().map(|text| ((*text).to_owned(), json!(text))).collect();
    round_trip(&ctx, &Json::Object(all), "every text as a key").await
}

async fn numbers(ctx: StoreCtx) -> Done {
    let numbers = json!({
        "i": [0, 1, -1, i32::MAX, i64::MIN, i64::MAX, u64::MAX, 9_007_199_254_740_993_u64],
        "f": [0.5, -0.5, 0.1, 1.0 / 3.0, 1e-7, 1e21, 1e22, 123_456_789.123_456_79, f64::MAX, f64::MIN_POSITIVE, 5e-324],
    });
    let root = ctx.root();
    ctx.store().put(&root, "k", &numbers).await?;
    let found = value(ctx.store(), &root, "k").await?;
    ensure_eq!(found["i"], numbers["i"], "integers");
    // A database may return 1e21 as an integer.
    let floats = |json: &Json| -> Option<Vec<f64>> { json.as_array()?.iter().map(Json::as_f64).collect() };
    ensure_eq!(floats(&found["f"]), floats(&numbers["f"]), "floats");
    Ok(())
}

async fn numbers_beyond_64_bits(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let digits = "123456789012345678901234567890";
    let stored = JsonObject::from_text(format!("{{\"n\": {digits}, \"m\": [-{digits}]}}"))?;
    ctx.store().put(&root, "k", &stored).await?;
    for text in
        [read(ctx.store(), &root, "k").await?.value, ctx.store().search(&root).await?.remove(0).item.value]
    {
        let text = text.as_str();
        ensure!(text.contains(&format!(" {digits}")) || text.contains(&format!(":{digits}")), "found {text}");
        ensure!(text.contains(&format!("-{digits}")), "found {text}");
    }
    Ok(())
}

async fn nested(ctx: StoreCtx) -> Done {
    let nested = json!({
        "a": {"b": {"c": [1, [2, [3, {"d": null}]], {}]}, "": {"": []}},
        "list": [[], [[]], {"x": [{"y": "z"}]}, null, true],
    });
    round_trip(&ctx, &nested, "nested objects and lists").await
}

async fn deeply_nested(ctx: StoreCtx) -> Done {
    let lists = (0..100).fold(json!("deep"), |inner, _| json!([inner]));
    round_trip(&ctx, &json!({ "v": lists }), "a hundred lists").await?;
    let objects = (0..100).fold(json!("deep"), |inner, _| json!({ "v": inner }));
    round_trip(&ctx, &objects, "a hundred objects").await
}

async fn of_a_megabyte(ctx: StoreCtx) -> Done {
    // Incompressible text.
    let text: String =
        (0..350_000_u32).filter_map(|at| char::from_u32(0x4e00 + at * 7919 % 20_011)).collect();
    ensure!(text.len() >= 1 << 20, "the text has {} bytes", text.len());
    round_trip(&ctx, &json!({ "text": text, "after": 1 }), "a megabyte").await
}

async fn of_many_entries(ctx: StoreCtx) -> Done {
    let entries: serde_json::Map<_, _> = (0..20_000).map(|at| (format!("key {at}"), json!(at))).collect();
    round_trip(&ctx, &Json::Object(entries), "20,000 entries").await
}

async fn escapes(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let stored = JsonObject::from_text(r#"{"t": "\u00e9\u4e16\ud83e\udd80\/\b\f\n\r\t\"\\ \\u0041"}"#)?;
    ctx.store().put(&root, "k", &stored).await?;
    let expected = "é世🦀/\u{8}\u{c}\n\r\t\"\\ \\u0041";
    ensure_eq!(value(ctx.store(), &root, "k").await?, json!({ "t": expected }), "value");
    Ok(())
}

async fn with_nul(ctx: StoreCtx) -> Done {
    for wrong in [json!({"t": "a\0b"}), json!({"a\0b": 1}), json!({"deep": [{"x": ["\0"]}]})] {
        let root = ctx.root();
        ctx.store().put(&root, "k", n(1)).await?;
        let ops = vec![put_op(&root, "k", &wrong)?, put_op(&root, "other", &n(2))?];
        match ctx.store().batch(ops).await {
            Ok(_) => ensure_eq!(value(ctx.store(), &root, "k").await?, wrong, "value"),
            refused => {
                expect_kind(refused, ErrorKind::InvalidArgument, "a value with NUL")?;
                ensure_eq!(value(ctx.store(), &root, "k").await?, n(1), "the old value");
                ensure_eq!(all_keys(ctx.store(), &root).await?, ["k"], "keys");
            }
        }
    }
    // An escaped backslash makes it plain text.
    let root = ctx.root();
    let stored = JsonObject::from_text(r#"{"t": "\\u0000", "\\u0000": "\\\\u0000"}"#)?;
    ctx.store().put(&root, "k", &stored).await?;
    let expected = json!({"t": "\\u0000", "\\u0000": "\\\\u0000"});
    ensure_eq!(value(ctx.store(), &root, "k").await?, expected, "text that looks like NUL");
    Ok(())
}

async fn duplicate_keys(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let twice = r#"{"a": 1, "b": 2, "o": {"x": 1, "y": 2, "x": 3}, "l": [{"x": 1, "x": 2}], "a": 3}"#;
    ctx.store().put(&root, "k", &JsonObject::from_text(twice)?).await?;
    // Every reader uses the last one.
    let once = json!({"a": 3, "b": 2, "o": {"x": 3, "y": 2}, "l": [{"x": 2}]});
    ensure_eq!(value(ctx.store(), &root, "k").await?, once, "value");
    for (filter, expected) in [
        (json!({"a": 3}), 1),
        (json!({"a": 1}), 0),
        (json!({"a": {"$ne": 3}}), 0),
        (json!({"a": {"$lt": 3}}), 0),
        (json!({"o": {"x": 3}}), 1),
        (json!({"o": {"x": 1}}), 0),
        (json!({"o": {"$eq": {"x": 3, "y": 2}}}), 1),
        (json!({"o": {"$ne": {"x": 3, "y": 2}}}), 0),
        (json!({"l": {"$eq": [{"x": 2}]}}), 1),
        (json!({"l": {"$ne": [{"x": 2}]}}), 0),
    ] {
        let found = ctx.store().search(&root).filter(ItemFilter::from_json(&filter)?).await?;
        ensure_eq!(found.len(), expected, "items found by {filter}");
    }
    Ok(())
}

async fn values_that_look_like_another_format(ctx: StoreCtx) -> Done {
    let odd = json!({
        "number": "1", "yes": "true", "nothing": "null", "json": "{\"a\": 1}", "date": "2024-01-01T00:00:00Z",
        "lc": 2, "type": "constructor", "$eq": 1, "__proto__": {}, "__class__": "x", "\\x00": "\\x00",
    });
    round_trip(&ctx, &odd, "values that look like another format").await
}
