//! Failing embeddings: nothing is changed or lost.

use checkpoint_core::ErrorKind;
use checkpoint_core::store::{BaseStore, Distance, Op, SearchOp, StoreExt};

use super::items::{Numbers, all_keys, delete_op, get_op, indexed, keys, put_op, read, text, value};
use crate::StoreFacility;
use crate::fixture::{Done, expect_kind};
use crate::store_case::{StoreCtx, StoreNeed};

cases!(stores "store_embedding", [StoreNeed::Target(StoreFacility::Index)];
    a_failed_put_changes_nothing,
    a_failed_batch_changes_nothing,
    a_failed_query,
    a_failed_query_fails_its_batch,
    operations_without_vectors_work,
    an_index_of_wrong_dimensions,
);

/// Faults of embeddings, and the kind of error each causes.
const WRONG: [(&str, ErrorKind); 7] = [
    (Numbers::FAIL, ErrorKind::Unavailable),
    (Numbers::SHORT, ErrorKind::InvalidConfig),
    (Numbers::LONG, ErrorKind::InvalidConfig),
    (Numbers::NAN, ErrorKind::Backend),
    (Numbers::INFINITE, ErrorKind::Backend),
    (Numbers::FEWER, ErrorKind::Backend),
    (Numbers::MORE, ErrorKind::Backend),
];

async fn a_failed_put_changes_nothing(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.open(indexed(Distance::InnerProduct)).await?, ctx.root());
    store.put(&root, "old", text("1")).await?;
    let before = read(&store, &root, "old").await?;
    for (word, kind) in WRONG {
        expect_kind(store.put(&root, "old", text(word)).await, kind, &format!("an update with {word}"))?;
        expect_kind(store.put(&root, "new", text(word)).await, kind, &format!("a put with {word}"))?;
        ensure_eq!(value(&store, &root, "old").await?, text("1"), "value after {word}");
        let after = read(&store, &root, "old").await?;
        ensure_eq!(after.updated_at, before.updated_at, "updated_at after {word}");
        ensure_eq!(all_keys(&store, &root).await?, ["old"], "keys after {word}");
        let found = store.search(&root).query("1").await?;
        ensure_eq!(super::items::scores(&found), [("old", "1.00000".to_owned())], "scores after {word}");
    }
    Ok(())
}

async fn a_failed_batch_changes_nothing(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.open(indexed(Distance::InnerProduct)).await?, ctx.root());
    store.batch(vec![put_op(&root, "old", &text("1"))?, put_op(&root, "gone", &text("2"))?]).await?;
    for (word, kind) in WRONG {
        let ops = vec![
            put_op(&root, "first", &text("3"))?,
            delete_op(&root, "gone"),
            put_op(&root, "old", &text("4"))?,
            put_op(&root, "bad", &text(word))?,
            put_op(&root, "last", &text("5"))?,
        ];
        expect_kind(store.batch(ops).await, kind, &format!("a batch with {word}"))?;
        ensure_eq!(all_keys(&store, &root).await?, ["gone", "old"], "keys after {word}");
        let found = store.search(&root).query("1").await?;
        ensure_eq!(keys(&found), ["gone", "old"], "results of a query after {word}");
    }
    Ok(())
}

async fn a_failed_query(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.open(indexed(Distance::InnerProduct)).await?, ctx.root());
    store.put(&root, "k", text("1")).await?;
    for (word, kind) in WRONG {
        expect_kind(store.search(&root).query(word).await, kind, &format!("a query with {word}"))?;
    }
    ensure_eq!(keys(&store.search(&root).query("1").await?), ["k"], "keys afterwards");
    Ok(())
}

async fn a_failed_query_fails_its_batch(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.open(indexed(Distance::InnerProduct)).await?, ctx.root());
    store.put(&root, "k", text("1")).await?;
    let mut search = SearchOp::new(&root);
    search.query = Some(Numbers::FAIL.into());
    let ops = vec![
        put_op(&root, "new", &text("2"))?,
        delete_op(&root, "k"),
        get_op(&root, "k"),
        Op::Search(search),
    ];
    expect_kind(store.batch(ops).await, ErrorKind::Unavailable, "a batch with a query that fails")?;
    ensure_eq!(all_keys(&store, &root).await?, ["k"], "keys");
    Ok(())
}

async fn operations_without_vectors_work(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.open(indexed(Distance::InnerProduct)).await?, ctx.root());
    store.put(&root, "k", text(Numbers::FAIL)).no_index().await?;
    ensure_eq!(value(&store, &root, "k").await?, text(Numbers::FAIL), "value");
    store.put(&root, "other", serde_json::json!({"title": Numbers::FAIL})).await?;
    ensure_eq!(all_keys(&store, &root).await?, ["other", "k"], "keys");
    store.delete(&root, "k").await?;
    Ok(())
}

/// The embeddings return three numbers, regardless of the index.
async fn an_index_of_wrong_dimensions(ctx: StoreCtx) -> Done {
    let index = checkpoint_core::store::IndexConfig::new(4, Numbers::default()).fields(["text"]);
    let (store, root) = (ctx.open(crate::StoreOptions::new().index(index)).await?, ctx.root());
    expect_kind(store.put(&root, "k", text("1")).await, ErrorKind::InvalidConfig, "a put")?;
    expect_kind(store.search(&root).query("1").await, ErrorKind::InvalidConfig, "a query")?;
    ensure_eq!(all_keys(&store, &root).await?, Vec::<String>::new(), "keys");
    store.put(&root, "k", text("1")).no_index().await?;
    ensure_eq!(all_keys(&store, &root).await?, ["k"], "keys without an index");
    Ok(())
}
