//! Batches: reads see the state before the batch, puts are atomic.

use std::time::Duration;

use checkpoint_core::store::{
    BaseStore, ItemFilter, Namespace, Op, OpResult, PutOp, SearchOp, StoreExt, Ttl,
};
use checkpoint_core::{ErrorKind, Result};

use super::items::{
    all_keys, all_op, below, delete_op, found, get_op, got, keys, list_op, n, put_all, put_op, read, value,
};
use crate::fixture::{Done, expect_kind};
use crate::store_case::StoreCtx;

cases!(stores "store_batch";
    empty,
    results_have_the_order_of_their_operations,
    reads_come_before_puts,
    reads_come_before_deletes,
    the_last_put_wins,
    the_last_of_puts_and_deletes_wins,
    puts_of_one_batch_have_the_same_time,
    an_invalid_operation_rejects_the_batch,
    a_thousand_puts,
    a_thousand_gets,
    a_thousand_deletes,
    the_same_read_twice,
    puts_and_deletes_together,
    puts_with_and_without_ttl,
    five_thousand_mixed,
    created_at_of_an_update_among_inserts,
);

async fn empty(ctx: StoreCtx) -> Done {
    ensure_eq!(ctx.store().batch(Vec::new()).await?.len(), 0, "results");
    Ok(())
}

async fn results_have_the_order_of_their_operations(ctx: StoreCtx) -> Done {
    let (root, other) = (ctx.root(), ctx.root());
    put_all(ctx.store(), &root, &[("a", n(1)), ("b", n(2))]).await?;
    let ops = vec![
        put_op(&other, "x", &n(9))?,
        get_op(&root, "b"),
        list_op(&root),
        all_op(&root),
        get_op(&root, "missing"),
        delete_op(&other, "y"),
        get_op(&root, "a"),
        all_op(&other),
        list_op(&other),
        get_op(&other, "x"),
    ];
    let results = ctx.store().batch(ops).await?;
    ensure_eq!(results.len(), 10, "results");
    ensure!(matches!(results[0], OpResult::Done), "a put returned {:?}", results[0]);
    ensure_eq!(got(&results[1])?, Some(n(2)), "value of b");
    ensure!(
        matches!(&results[2], OpResult::Namespaces(names) if *names == std::slice::from_ref(&root)),
        "{:?}",
        results[2]
    );
    ensure_eq!(keys(found(&results[3])?), ["a", "b"], "keys");
    ensure_eq!(got(&results[4])?, None, "value of what is missing");
    ensure!(matches!(results[5], OpResult::Done), "a delete returned {:?}", results[5]);
    ensure_eq!(got(&results[6])?, Some(n(1)), "value of a");
    ensure_eq!(keys(found(&results[7])?), Vec::<&str>::new(), "keys of the other namespace");
    ensure!(matches!(&results[8], OpResult::Namespaces(names) if names.is_empty()), "{:?}", results[8]);
    ensure_eq!(got(&results[9])?, None, "value of what is put by the same batch");
    ensure_eq!(value(ctx.store(), &other, "x").await?, n(9), "value afterwards");
    Ok(())
}

async fn reads_come_before_puts(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "k", n(1)).await?;
    for number in 1..4 {
        let mut search = SearchOp::new(&root);
        search.filter = ItemFilter::new().eq("n", number + 1);
        let ops = vec![
            put_op(&root, "k", &n(number + 1))?,
            put_op(&below(&root, [&format!("new{number}")]), "k", &n(0))?,
            get_op(&root, "k"),
            Op::Search(search),
            list_op(&root),
        ];
        let results = ctx.store().batch(ops).await?;
        ensure_eq!(got(&results[2])?, Some(n(number)), "value before put {number}");
        ensure_eq!(found(&results[3])?.len(), 0, "items found by the new value");
        let before = usize::try_from(number).unwrap_or_default();
        ensure!(
            matches!(&results[4], OpResult::Namespaces(names) if names.len() == before),
            "{:?}",
            results[4]
        );
    }
    ensure_eq!(value(ctx.store(), &root, "k").await?, n(4), "value at the end");
    Ok(())
}

async fn reads_come_before_deletes(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "k", n(1)).await?;
    let ops = vec![delete_op(&root, "k"), get_op(&root, "k"), all_op(&root), list_op(&root)];
    let results = ctx.store().batch(ops).await?;
    ensure_eq!(got(&results[1])?, Some(n(1)), "value");
    ensure_eq!(keys(found(&results[2])?), ["k"], "keys");
    ensure!(matches!(&results[3], OpResult::Namespaces(names) if names.len() == 1), "{:?}", results[3]);
    ensure!(ctx.store().get(&root, "k").await?.is_none(), "the item is still there");
    Ok(())
}

async fn the_last_put_wins(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let ops = (0..5).map(|number| put_op(&root, "k", &n(number))).collect::<Result<_>>()?;
    ensure_eq!(ctx.store().batch(ops).await?.len(), 5, "results");
    ensure_eq!(value(ctx.store(), &root, "k").await?, n(4), "value");
    ensure_eq!(all_keys(ctx.store(), &root).await?, ["k"], "keys");
    // Also over an existing item, and between others.
    let ops = vec![
        put_op(&root, "k", &n(5))?,
        put_op(&root, "other", &n(0))?,
        put_op(&root, "k", &n(6))?,
        put_op(&below(&root, ["k"]), "k", &n(7))?,
    ];
    ctx.store().batch(ops).await?;
    ensure_eq!(value(ctx.store(), &root, "k").await?, n(6), "value");
    ensure_eq!(value(ctx.store(), &below(&root, ["k"]), "k").await?, n(7), "value of the namespace below");
    Ok(())
}

async fn the_last_of_puts_and_deletes_wins(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    for there in [false, true] {
        if there {
            put_all(ctx.store(), &root, &[("put", n(0)), ("delete", n(0)), ("thrice", n(0))]).await?;
        }
        let ops = vec![
            put_op(&root, "delete", &n(1))?,
            delete_op(&root, "put"),
            put_op(&root, "thrice", &n(1))?,
            delete_op(&root, "thrice"),
            delete_op(&root, "delete"),
            put_op(&root, "put", &n(2))?,
            put_op(&root, "thrice", &n(3))?,
        ];
        ctx.store().batch(ops).await?;
        ensure_eq!(value(ctx.store(), &root, "put").await?, n(2), "value that was put last");
        ensure_eq!(value(ctx.store(), &root, "thrice").await?, n(3), "value that was put, deleted and put");
        ensure!(ctx.store().get(&root, "delete").await?.is_none(), "what was deleted last is there");
    }
    Ok(())
}

async fn puts_of_one_batch_have_the_same_time(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    put_all(ctx.store(), &root, &[("a", n(1)), ("b", n(2)), ("c", n(3))]).await?;
    let first = read(ctx.store(), &root, "a").await?;
    for key in ["b", "c"] {
        let item = read(ctx.store(), &root, key).await?;
        ensure_eq!(
            (item.created_at, item.updated_at),
            (first.created_at, first.updated_at),
            "times of {key}"
        );
    }
    Ok(())
}

async fn an_invalid_operation_rejects_the_batch(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    put_all(ctx.store(), &root, &[("old", n(1)), ("gone", n(1))]).await?;
    let before = read(ctx.store(), &root, "old").await?;
    let bad = |ttl: f64| {
        let mut op = PutOp::delete(&root, "bad");
        op.ttl = Ttl::Minutes(ttl);
        Op::Put(op)
    };
    let wrong = [
        bad(-1.0),
        bad(f64::NAN),
        put_op(&Namespace::root(), "k", &n(1))?,
        put_op(&below(&root, ["a.b"]), "k", &n(1))?,
        get_op(&below(&root, [""]), "k"),
    ];
    for bad in wrong {
        for at in 0..=3 {
            let mut ops =
                vec![put_op(&root, "old", &n(2))?, put_op(&root, "new", &n(3))?, delete_op(&root, "gone")];
            ops.insert(at, bad.clone());
            let what = format!("{bad:?} at {at}");
            expect_kind(ctx.store().batch(ops).await, ErrorKind::InvalidArgument, &what)?;
            ensure_eq!(all_keys(ctx.store(), &root).await?, ["gone", "old"], "keys after {what}");
            let after = read(ctx.store(), &root, "old").await?;
            ensure_eq!(after.updated_at, before.updated_at, "updated_at after {what}");
        }
    }
    Ok(())
}

async fn a_thousand_puts(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let namespace = |at: i64| below(&root, [&format!("n{}", at % 10)]);
    let ops =
        (0..1000).map(|at| put_op(&namespace(at), &format!("{at:04}"), &n(at))).collect::<Result<_>>()?;
    let results = ctx.store().batch(ops).await?;
    ensure_eq!(results.len(), 1000, "results");
    let found = ctx.store().search(&root).limit(2000).await?;
    ensure_eq!(found.len(), 1000, "items");
    for found in &found {
        let number = found.item.value.decode::<serde_json::Value>()?["n"].as_i64().unwrap_or(-1);
        ensure_eq!(&*found.item.key, format!("{number:04}"), "key of item {number}");
        ensure_eq!(found.item.namespace, namespace(number), "namespace of item {number}");
    }
    // Updates all of them.
    let ops = (0..1000)
        .map(|at| put_op(&namespace(at), &format!("{at:04}"), &n(at + 5000)))
        .collect::<Result<_>>()?;
    ctx.store().batch(ops).await?;
    let filter = ItemFilter::new().gte("n", 5000);
    let found = ctx.store().search(&root).filter(filter).limit(2000).await?;
    ensure_eq!(found.len(), 1000, "items that were updated");
    Ok(())
}

async fn a_thousand_gets(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let ops = (0..100).map(|at| put_op(&root, &at.to_string(), &n(at))).collect::<Result<_>>()?;
    ctx.store().batch(ops).await?;
    let ops = (0..1000).map(|at| get_op(&root, &(at % 200).to_string())).collect();
    let results = ctx.store().batch(ops).await?;
    ensure_eq!(results.len(), 1000, "results");
    for (at, result) in (0..).zip(&results) {
        let at = at % 200;
        let expected = (at < 100).then(|| n(at));
        ensure_eq!(got(result)?, expected, "value of {at}");
    }
    Ok(())
}

async fn a_thousand_deletes(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let ops = (0..1000).map(|at| put_op(&root, &at.to_string(), &n(at))).collect::<Result<_>>()?;
    ctx.store().batch(ops).await?;
    let ops: Vec<_> =
        (0..1000).filter(|at| at % 10 != 0).map(|at| delete_op(&root, &at.to_string())).collect();
    ctx.store().batch(ops).await?;
    ensure_eq!(all_keys(ctx.store(), &root).await?.len(), 100, "items left");
    Ok(())
}

async fn the_same_read_twice(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    put_all(ctx.store(), &root, &[("a", n(1)), ("b", n(2))]).await?;
    let ops = vec![
        get_op(&root, "a"),
        all_op(&root),
        get_op(&root, "a"),
        all_op(&root),
        list_op(&root),
        list_op(&root),
    ];
    let results = ctx.store().batch(ops).await?;
    ensure_eq!(results.len(), 6, "results");
    for at in [0, 2] {
        ensure_eq!(got(&results[at])?, Some(n(1)), "value of get {at}");
    }
    for at in [1, 3] {
        ensure_eq!(keys(found(&results[at])?), ["a", "b"], "keys of search {at}");
    }
    for at in [4, 5] {
        ensure!(matches!(&results[at], OpResult::Namespaces(names) if names.len() == 1), "{:?}", results[at]);
    }
    Ok(())
}

async fn puts_and_deletes_together(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    put_all(ctx.store(), &root, &[("a", n(1)), ("b", n(2)), ("c", n(3))]).await?;
    let ops = vec![
        delete_op(&root, "a"),
        put_op(&root, "b", &n(20))?,
        put_op(&root, "d", &n(4))?,
        delete_op(&root, "never"),
    ];
    ctx.store().batch(ops).await?;
    ensure_eq!(all_keys(ctx.store(), &root).await?, ["b", "d", "c"], "keys");
    Ok(())
}

async fn puts_with_and_without_ttl(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let put = |key: &str, ttl: Ttl| -> Result<Op> {
        let mut op = PutOp::new(&root, key, super::items::object(&n(1))?);
        op.ttl = ttl;
        Ok(Op::Put(op))
    };
    let ops = vec![
        put("short", Duration::from_millis(50).into())?,
        put("long", Duration::from_secs(3600).into())?,
        put("default", Ttl::Default)?,
        put("never", Ttl::Never)?,
    ];
    ctx.store().batch(ops).await?;
    super::items::eventually("the one of a short life is gone", || async {
        Ok(ctx.store().get(&root, "short").refresh_ttl(false).await?.is_none())
    })
    .await?;
    ensure_eq!(all_keys(ctx.store(), &root).await?, ["default", "long", "never"], "keys");
    Ok(())
}

async fn five_thousand_mixed(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    put_all(ctx.store(), &root, &[("old", n(1))]).await?;
    let mut ops = Vec::new();
    for at in 0..1250 {
        ops.push(put_op(&root, &format!("{:03}", at % 500), &n(at))?);
        ops.push(get_op(&root, if at % 2 == 0 { "old" } else { "new" }));
        ops.push(delete_op(&root, &format!("{:03}", 500 + at % 100)));
        ops.push(get_op(&root, &at.to_string()));
    }
    let results = ctx.store().batch(ops).await?;
    ensure_eq!(results.len(), 5000, "results");
    let read = results.iter().filter(|result| matches!(result, OpResult::Item(Some(_)))).count();
    ensure_eq!(read, 625, "items read");
    ensure_eq!(all_keys(ctx.store(), &root).await?.len(), 501, "items");
    ensure_eq!(value(ctx.store(), &root, "249").await?, n(1249), "the last value of one");
    ensure_eq!(value(ctx.store(), &root, "250").await?, n(750), "the last value of another");
    Ok(())
}

async fn created_at_of_an_update_among_inserts(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "old", n(1)).await?;
    let before = read(ctx.store(), &root, "old").await?;
    tokio::time::sleep(Duration::from_millis(2)).await;
    put_all(ctx.store(), &root, &[("a", n(1)), ("old", n(2)), ("z", n(3))]).await?;
    let (old, new) = (read(ctx.store(), &root, "old").await?, read(ctx.store(), &root, "a").await?);
    ensure_eq!(old.created_at, before.created_at, "created_at of the old one");
    ensure_eq!(old.updated_at, new.updated_at, "updated_at");
    ensure_eq!(new.created_at, new.updated_at, "times of a new one");
    Ok(())
}
