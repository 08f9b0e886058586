//! Keys: any text is stored or rejected.

use checkpoint_core::ErrorKind;
use checkpoint_core::store::{BaseStore, Namespace, StoreExt};

use super::items::{all_keys, keys, n, put_op, read, value};
use crate::fixture::{Done, expect_kind};
use crate::store_case::StoreCtx;

cases!(stores "store_keys";
    any_text,
    similar_texts_are_different_keys,
    long_texts,
    with_nul,
    order_is_by_code_point,
);

/// Texts that are special to a layer between the API and the disk.
pub(super) const TEXTS: [&str; 46] = [
    "",
    " ",
    "  ",
    ".",
    "..",
    "a.b",
    ".a",
    "a.",
    "'",
    "''",
    "\"",
    "\\",
    "\\\\",
    "\\'",
    "a\\",
    "%",
    "_",
    "%_%",
    "a%b",
    "a_b",
    "*",
    "?",
    "[a]",
    "[",
    "]",
    "{a,b}",
    "$",
    "$1",
    "$eq",
    ":name",
    "/",
    "//",
    "a/b",
    "--",
    ";",
    "x'; DROP TABLE store; --",
    "\n",
    "a\nb",
    "\r\n",
    "\t",
    "é",
    "世界",
    "🦀",
    "👩‍👩‍👧",
    "null",
    "\u{fffd}",
];

async fn any_text(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    for (number, key) in (0..).zip(TEXTS) {
        ctx.store().put(&root, key, n(number)).await?;
    }
    for (number, key) in (0..).zip(TEXTS) {
        let item = read(ctx.store(), &root, key).await?;
        ensure_eq!(&*item.key, key, "key");
        ensure_eq!(value(ctx.store(), &root, key).await?, n(number), "value of {key:?}");
    }
    let mut found = all_keys(ctx.store(), &root).await?;
    found.reverse();
    ensure_eq!(found, TEXTS, "keys in the order of their puts");
    for key in TEXTS {
        ctx.store().delete(&root, key).await?;
        ensure!(ctx.store().get(&root, key).await?.is_none(), "{key:?} is still there");
    }
    ensure_eq!(all_keys(ctx.store(), &root).await?.len(), 0, "items left");
    Ok(())
}

async fn similar_texts_are_different_keys(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let alike = [
        "e\u{301}",
        "\u{e9}",
        "E\u{301}",
        "\u{c9}",
        "ss",
        "ß",
        "ẞ",
        "i",
        "ı",
        "İ",
        "a\u{200b}",
        "a",
        "ａ",
        "K",
        "\u{212a}",
    ];
    for (number, key) in (0..).zip(alike) {
        ctx.store().put(&root, key, n(number)).await?;
    }
    for (number, key) in (0..).zip(alike) {
        ensure_eq!(value(ctx.store(), &root, key).await?, n(number), "value of {key:?}");
    }
    Ok(())
}

/// Fails unless an item is either stored and read, or rejected and not stored.
async fn kept_or_refused(ctx: &StoreCtx, namespace: &Namespace, key: &str, what: &str) -> Done {
    match ctx.store().put(namespace, key, n(1)).await {
        Ok(()) => {
            let item = read(ctx.store(), namespace, key).await?;
            ensure!(&*item.key == key, "{what} has changed");
            ensure_eq!(all_keys(ctx.store(), namespace).await?.len(), 1, "items of {what}");
            ctx.store().delete(namespace, key).await?;
        }
        Err(error) => ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "kind of error for {what}"),
    }
    match ctx.store().get(namespace, key).await {
        Ok(item) => ensure!(item.is_none(), "{what} is there"),
        Err(error) => ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "kind of error of reading {what}"),
    }
    ensure_eq!(all_keys(ctx.store(), namespace).await?.len(), 0, "items left of {what}");
    Ok(())
}

async fn long_texts(ctx: StoreCtx) -> Done {
    // Incompressible text.
    let odd = |length: u32| -> String {
        (0..length).filter_map(|at| char::from_u32(0x4e00 + at * 7919 % 20_011)).collect()
    };
    for (key, what) in [
        ("k".repeat(255), "255 bytes"),
        (odd(200), "200 characters"),
        ("k".repeat(5_000), "5,000 bytes"),
        (odd(5_000), "5,000 characters"),
        ("k".repeat(1_000_000), "a million bytes"),
        (odd(100_000), "100,000 characters"),
    ] {
        kept_or_refused(&ctx, &ctx.root(), &key, what).await?;
        let namespace: Namespace = ctx.root().labels().iter().cloned().chain([key.into()]).collect();
        kept_or_refused(&ctx, &namespace, "k", &format!("a label of {what}")).await?;
    }
    // Every database can store this key.
    let root = ctx.root();
    ctx.store().put(&root, odd(300), n(1)).await?;
    ensure_eq!(value(ctx.store(), &root, &odd(300)).await?, n(1), "value under a key of 300 characters");
    Ok(())
}

async fn with_nul(ctx: StoreCtx) -> Done {
    for key in ["\0", "a\0", "\0a", "a\0b"] {
        kept_or_refused(&ctx, &ctx.root(), key, &format!("{key:?}")).await?;
    }
    // The other items of its batch are not stored either.
    let root = ctx.root();
    let ops = vec![put_op(&root, "a", &n(1))?, put_op(&root, "b\0", &n(2))?];
    let stored = match ctx.store().batch(ops).await {
        Ok(_) => 2,
        refused => {
            expect_kind(refused, ErrorKind::InvalidArgument, "a key with NUL")?;
            0
        }
    };
    ensure_eq!(all_keys(ctx.store(), &root).await?.len(), stored, "items");
    Ok(())
}

async fn order_is_by_code_point(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let mut expected = vec![
        "", " ", "-", ".", "0", "10", "9", "A", "B", "Z", "_", "a", "a b", "a-b", "a.b", "aB", "ab", "b",
        "z", "~", "é", "世", "\u{fffd}", "🦀",
    ];
    let shuffled =
        expected.iter().rev().step_by(2).chain(expected.iter().skip(expected.len() % 2).step_by(2));
    let ops = shuffled.map(|key| put_op(&root, key, &n(1))).collect::<Result<Vec<_>, _>>()?;
    ensure_eq!(ops.len(), expected.len(), "items that are put at once");
    ctx.store().batch(ops).await?;
    expected.sort_unstable();
    let found = ctx.store().search(&root).limit(100).await?;
    ensure_eq!(keys(&found), expected, "keys of one time");
    Ok(())
}
