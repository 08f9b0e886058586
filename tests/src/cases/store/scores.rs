//! Scores, exactly.

use checkpoint_core::store::{Distance, StoreExt};

use super::items::{indexed, keys, put_all, scores, text};
use crate::StoreFacility;
use crate::fixture::Done;
use crate::store_case::{StoreCtx, StoreNeed};

cases!(stores "store_scores", [StoreNeed::Target(StoreFacility::Index)];
    cosine,
    l2,
    inner_product,
    the_best_text_is_the_score,
    ties_are_ordered_by_time,
    ties_of_one_time_are_ordered_by_key,
    ties_at_the_limit,
    a_zero_vector,
    a_zero_query,
    large_and_small_numbers,
);

/// The vectors of the items, which are also their keys.
const VECTORS: [&str; 8] = ["1 0 0", "2 0 0", "0 1 0", "3 4 0", "-1 0 0", "-3 -4 0", "1 1 1", "0 0 0.5"];

async fn check(ctx: &StoreCtx, distance: Distance, table: &[(&str, &[(&str, &str)])]) -> Done {
    let (store, root) = (ctx.open(indexed(distance)).await?, ctx.root());
    let items = VECTORS.map(|vector| (vector, text(vector)));
    put_all(&store, &root, &items).await?;
    for (query, expected) in table {
        let found = store.search(&root).query(*query).limit(100).await?;
        // Put in one batch, so that equal scores are ordered by key.
        let expected: Vec<_> = expected.iter().map(|(key, score)| (*key, (*score).to_owned())).collect();
        ensure_eq!(scores(&found), expected, "scores of {query}");
        for limit in 1..4 {
            let some = store.search(&root).query(*query).limit(limit).await?;
            ensure_eq!(scores(&some), expected[..limit], "the first {limit} of {query}");
        }
    }
    Ok(())
}

async fn cosine(ctx: StoreCtx) -> Done {
    let table: [(&str, &[(&str, &str)]); 2] = [
        (
            "1 0 0",
            &[
                ("1 0 0", "1.00000"),
                ("2 0 0", "1.00000"),
                ("3 4 0", "0.60000"),
                ("1 1 1", "0.57735"),
                ("0 0 0.5", "0.00000"),
                ("0 1 0", "0.00000"),
                ("-3 -4 0", "-0.60000"),
                ("-1 0 0", "-1.00000"),
            ],
        ),
        (
            "0 10 0",
            &[
                ("0 1 0", "1.00000"),
                ("3 4 0", "0.80000"),
                ("1 1 1", "0.57735"),
                ("-1 0 0", "0.00000"),
                ("0 0 0.5", "0.00000"),
                ("1 0 0", "0.00000"),
                ("2 0 0", "0.00000"),
                ("-3 -4 0", "-0.80000"),
            ],
        ),
    ];
    check(&ctx, Distance::Cosine, &table).await
}

async fn l2(ctx: StoreCtx) -> Done {
    let table: [(&str, &[(&str, &str)]); 2] = [
        (
            "1 0 0",
            &[
                ("1 0 0", "0.00000"),
                ("2 0 0", "-1.00000"),
                ("0 0 0.5", "-1.11803"),
                ("0 1 0", "-1.41421"),
                ("1 1 1", "-1.41421"),
                ("-1 0 0", "-2.00000"),
                ("3 4 0", "-4.47214"),
                ("-3 -4 0", "-5.65685"),
            ],
        ),
        (
            "3 4 0",
            &[
                ("3 4 0", "0.00000"),
                ("1 1 1", "-3.74166"),
                ("2 0 0", "-4.12311"),
                ("0 1 0", "-4.24264"),
                ("1 0 0", "-4.47214"),
                ("0 0 0.5", "-5.02494"),
                ("-1 0 0", "-5.65685"),
                ("-3 -4 0", "-10.00000"),
            ],
        ),
    ];
    check(&ctx, Distance::L2, &table).await
}

async fn inner_product(ctx: StoreCtx) -> Done {
    let table: [(&str, &[(&str, &str)]); 2] = [
        (
            "1 2 3",
            &[
                ("3 4 0", "11.00000"),
                ("1 1 1", "6.00000"),
                ("0 1 0", "2.00000"),
                ("2 0 0", "2.00000"),
                ("0 0 0.5", "1.50000"),
                ("1 0 0", "1.00000"),
                ("-1 0 0", "-1.00000"),
                ("-3 -4 0", "-11.00000"),
            ],
        ),
        (
            "-1 0 0",
            &[
                ("-3 -4 0", "3.00000"),
                ("-1 0 0", "1.00000"),
                ("0 0 0.5", "0.00000"),
                ("0 1 0", "0.00000"),
                ("1 0 0", "-1.00000"),
                ("1 1 1", "-1.00000"),
                ("2 0 0", "-2.00000"),
                ("3 4 0", "-3.00000"),
            ],
        ),
    ];
    check(&ctx, Distance::InnerProduct, &table).await
}

async fn the_best_text_is_the_score(ctx: StoreCtx) -> Done {
    for (distance, score) in
        [(Distance::Cosine, "0.60000"), (Distance::L2, "-1.00000"), (Distance::InnerProduct, "9.00000")]
    {
        let (store, root) = (ctx.open(indexed(distance)).await?, ctx.root());
        let item = serde_json::json!({"l": ["0 1 0", "3 4 0", "2 0 0"], "far": "9 90 900"});
        let paths: &[&str] = match distance {
            Distance::Cosine => &["l[0]", "l[1]"],
            Distance::L2 => &["l[*]"],
            _ => &["l[*]", "far"],
        };
        store.put(&root, "k", item).index(paths.iter().copied()).await?;
        let found = store.search(&root).query("1 0 0").await?;
        ensure_eq!(scores(&found), [("k", score.to_owned())], "score by {distance:?}");
    }
    Ok(())
}

async fn ties_are_ordered_by_time(ctx: StoreCtx) -> Done {
    for distance in [Distance::Cosine, Distance::L2, Distance::InnerProduct] {
        let (store, root) = (ctx.open(indexed(distance)).await?, ctx.root());
        for key in ["b", "d", "a", "c"] {
            store.put(&root, key, text("1 0 0")).await?;
        }
        store.put(&root, "far", text("-1 0 0")).await?;
        store.put(&root, "d", text("1 0 0")).await?;
        let found = store.search(&root).query("1 0 0").await?;
        ensure_eq!(keys(&found), ["d", "c", "a", "b", "far"], "keys by {distance:?}");
    }
    Ok(())
}

async fn ties_of_one_time_are_ordered_by_key(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.open(indexed(Distance::InnerProduct)).await?, ctx.root());
    let near = || text("1 0 0");
    put_all(
        &store,
        &root,
        &[("b", near()), ("é", near()), ("a", near()), ("B", near()), ("a b", near()), ("", near())],
    )
    .await?;
    let found = store.search(&root).query("1 0 0").await?;
    ensure_eq!(keys(&found), ["", "B", "a", "a b", "b", "é"], "keys");
    Ok(())
}

/// Ties are broken in the same way for every limit.
async fn ties_at_the_limit(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.open(indexed(Distance::L2)).await?, ctx.root());
    for number in 0..30 {
        store.put(&root, format!("{number:02}"), text("1 1 0")).await?;
    }
    for limit in [1, 2, 5, 29] {
        for offset in [0, 1, 10] {
            let found = store.search(&root).query("1 0 0").limit(limit).offset(offset).await?;
            let expected: Vec<_> =
                (0..30).rev().map(|number| format!("{number:02}")).skip(offset).take(limit).collect();
            ensure_eq!(keys(&found), expected, "keys with limit {limit} and offset {offset}");
        }
    }
    Ok(())
}

/// It has no cosine similarity to any vector, so its item is not found by cosine.
async fn a_zero_vector(ctx: StoreCtx) -> Done {
    for distance in [Distance::Cosine, Distance::L2, Distance::InnerProduct] {
        let (store, root) = (ctx.open(indexed(distance)).await?, ctx.root());
        put_all(&store, &root, &[("zero", text("0 0 0")), ("far", text("-3 0 0")), ("near", text("1 0 0"))])
            .await?;
        let found = store.search(&root).query("1 0 0").await?;
        if distance == Distance::Cosine {
            ensure_eq!(keys(&found), ["near", "far"], "keys by {distance:?}");
        } else {
            ensure_eq!(keys(&found), ["near", "zero", "far"], "keys by {distance:?}");
        }
    }
    Ok(())
}

async fn a_zero_query(ctx: StoreCtx) -> Done {
    for (distance, expected) in [
        (Distance::L2, &[("a", "-1.00000"), ("b", "-2.00000")]),
        (Distance::InnerProduct, &[("a", "0.00000"), ("b", "0.00000")]),
    ] {
        let (store, root) = (ctx.open(indexed(distance)).await?, ctx.root());
        put_all(&store, &root, &[("b", text("0 2 0")), ("a", text("1 0 0"))]).await?;
        let found = store.search(&root).query("nothing").await?;
        let expected = expected.map(|(key, score)| (key, score.to_owned()));
        ensure_eq!(scores(&found), expected, "scores by {distance:?}");
    }
    let (store, root) = (ctx.open(indexed(Distance::Cosine)).await?, ctx.root());
    store.put(&root, "k", text("1 0 0")).await?;
    let found = store.search(&root).query("nothing").await?;
    ensure_eq!(keys(&found), Vec::<&str>::new(), "keys by an angle to nothing");
    // Another text of the same item is found.
    store.put(&root, "k", serde_json::json!({"l": ["0 0 0", "3 4 0"]})).index(["l[*]"]).await?;
    let found = store.search(&root).query("1 0 0").await?;
    ensure_eq!(scores(&found), [("k", "0.60000".to_owned())], "scores beside a text of zeros");
    Ok(())
}

async fn large_and_small_numbers(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.open(indexed(Distance::Cosine)).await?, ctx.root());
    let vectors = ["10000 0 0", "0.001 0.001 0", "0 1000 1000"];
    put_all(&store, &root, &vectors.map(|vector| (vector, text(vector)))).await?;
    let found = store.search(&root).query("0.5 0 0").await?;
    let expected = [("10000 0 0", "1.00000"), ("0.001 0.001 0", "0.70711"), ("0 1000 1000", "0.00000")];
    ensure_eq!(scores(&found), expected.map(|(key, score)| (key, score.to_owned())), "scores");
    Ok(())
}
