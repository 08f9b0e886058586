//! Namespaces: invalid ones are rejected, and no two collide.

use checkpoint_core::ErrorKind;
use checkpoint_core::store::{
    BaseStore, GetOp, ListNamespacesOp, MatchCondition, Namespace, Op, PutOp, SearchOp, StoreExt,
};

use super::items::{all_keys, below, get_op, keys, n, object, put_op, value};
use crate::fixture::{Done, expect_kind};
use crate::store_case::StoreCtx;

cases!(stores "store_namespaces";
    invalid_labels_are_rejected,
    put_requires_a_namespace,
    the_reserved_label_is_rejected,
    reserved_only_as_the_first_label,
    an_invalid_operation_rejects_the_batch,
    prefixes_match_whole_labels,
    metacharacters_are_text,
    labels_below_the_dot,
    any_label,
    deep_namespaces,
    case_matters,
    an_item_beside_namespaces,
);

/// Every kind of operation, in or under a namespace.
fn every_op(namespace: &Namespace) -> checkpoint_core::Result<Vec<(&'static str, Op)>> {
    let list = |condition| {
        let mut op = ListNamespacesOp::new();
        op.match_conditions.push(condition);
        Op::ListNamespaces(op)
    };
    Ok(vec![
        ("put", Op::Put(PutOp::new(namespace, "k", object(&n(1))?))),
        ("delete", Op::Put(PutOp::delete(namespace, "k"))),
        ("get", Op::Get(GetOp::new(namespace, "k"))),
        ("search", Op::Search(SearchOp::new(namespace))),
        ("list_namespaces by prefix", list(MatchCondition::Prefix(namespace.clone()))),
        ("list_namespaces by suffix", list(MatchCondition::Suffix(namespace.clone()))),
    ])
}

async fn invalid_labels_are_rejected(ctx: StoreCtx) -> Done {
    for label in ["", ".", "a.b", ".a", "a.", "\0", "a\0b"] {
        for namespace in
            [below(&ctx.root(), [label]), below(&ctx.root(), [label, "after"]), Namespace::from([label])]
        {
            for (name, op) in every_op(&namespace)? {
                let what = format!("{name} with {namespace:?}");
                expect_kind(ctx.store().batch(vec![op]).await, ErrorKind::InvalidArgument, &what)?;
            }
        }
    }
    Ok(())
}

async fn put_requires_a_namespace(ctx: StoreCtx) -> Done {
    let call = ctx.store().put(Namespace::root(), "k", n(1)).await;
    expect_kind(call, ErrorKind::InvalidArgument, "put without labels")
}

async fn the_reserved_label_is_rejected(ctx: StoreCtx) -> Done {
    for namespace in [Namespace::from(["langgraph"]), Namespace::from(["langgraph", "x"])] {
        let call = ctx.store().put(&namespace, "k", n(1)).await;
        expect_kind(call, ErrorKind::InvalidArgument, &format!("put with {namespace:?}"))?;
    }
    Ok(())
}

async fn reserved_only_as_the_first_label(ctx: StoreCtx) -> Done {
    for labels in ["langgraph", "langgraph2", "LangGraph", "*"] {
        let namespace = below(&ctx.root(), [labels]);
        ctx.store().put(&namespace, "k", n(1)).await?;
        ensure_eq!(value(ctx.store(), &namespace, "k").await?, n(1), "value in {namespace}");
    }
    Ok(())
}

async fn an_invalid_operation_rejects_the_batch(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "old", n(1)).await?;
    for (name, wrong) in every_op(&below(&root, ["a.b"]))? {
        for at in 0..3 {
            let mut ops = vec![put_op(&root, "new", &n(2))?, Op::Put(PutOp::delete(&root, "old"))];
            ops.insert(at, wrong.clone());
            let what = format!("a batch with {name} at {at}");
            expect_kind(ctx.store().batch(ops).await, ErrorKind::InvalidArgument, &what)?;
            ensure_eq!(all_keys(ctx.store(), &root).await?, ["old"], "keys after {what}");
        }
    }
    Ok(())
}

async fn prefixes_match_whole_labels(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    for (key, labels) in [
        ("u", &["u"][..]),
        ("u1", &["u1"]),
        ("u/a", &["u", "a"]),
        ("u/ab", &["u", "ab"]),
        ("u/a/b", &["u", "a", "b"]),
        ("ua", &["ua"]),
        ("U", &["U"]),
    ] {
        let namespace: Namespace =
            root.labels().iter().map(|label| &**label).chain(labels.iter().copied()).collect();
        ctx.store().put(&namespace, key, n(1)).await?;
    }
    for (prefix, expected) in [
        (root.clone(), &["U", "u", "u/a", "u/a/b", "u/ab", "u1", "ua"][..]),
        (below(&root, ["u"]), &["u", "u/a", "u/a/b", "u/ab"]),
        (below(&root, ["u1"]), &["u1"]),
        (below(&root, ["u", "a"]), &["u/a", "u/a/b"]),
        (below(&root, ["u", "a", "b"]), &["u/a/b"]),
        (below(&root, ["u", "a", "b", "c"]), &[]),
        (below(&root, ["a"]), &[]),
        (below(&root, ["U"]), &["U"]),
    ] {
        let mut found = all_keys(ctx.store(), &prefix).await?;
        found.sort();
        ensure_eq!(found, expected, "keys under {prefix}");
    }
    Ok(())
}

async fn metacharacters_are_text(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let labels = [
        "%", "_", "\\", "[", "]", "[a]", "*", "?", "%%", "a%", "a_", "a*", "a\\", "a", "ab", "'", "\"", "^",
        "$", "(", "+", "|",
    ];
    for label in labels {
        ctx.store().put(below(&root, [label, "x"]), label, n(1)).await?;
    }
    for label in labels {
        let namespace = below(&root, [label]);
        ensure_eq!(all_keys(ctx.store(), &namespace).await?, [label], "keys under {namespace}");
        if label != "*" {
            let listed = ctx.store().list_namespaces().prefix(&namespace).await?;
            ensure_eq!(listed, [below(&root, [label, "x"])], "namespaces under {namespace}");
        }
    }
    let listed = ctx.store().list_namespaces().prefix(below(&root, ["*"])).await?;
    ensure_eq!(listed.len(), labels.len(), "namespaces under the pattern of any label");
    Ok(())
}

/// Labels that continue with a character below the dot sort between a namespace and its children.
async fn labels_below_the_dot(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let beside = [
        "a ", "a!", "a\"", "a#", "a$", "a'", "a(", "a+", "a,", "a-", "a-b", "a/", "a0", "a\t", "a\n",
        "a\u{1}",
    ];
    ctx.store().put(below(&root, ["a"]), "self", n(0)).await?;
    ctx.store().put(below(&root, ["a", "b"]), "below", n(0)).await?;
    ctx.store().put(below(&root, ["a", " "]), "below", n(0)).await?;
    for label in beside {
        ctx.store().put(below(&root, [label]), "beside", n(0)).await?;
        ctx.store().put(below(&root, [label, "b"]), "beside", n(0)).await?;
    }
    let found = ctx.store().search(below(&root, ["a"])).limit(100).await?;
    ensure_eq!(keys(&found), ["below", "below", "self"], "keys under a");
    let listed = ctx.store().list_namespaces().prefix(below(&root, ["a"])).await?;
    let expected = [below(&root, ["a"]), below(&root, ["a", " "]), below(&root, ["a", "b"])];
    ensure_eq!(listed, expected, "namespaces under a");
    let mut expected: Vec<_> = expected.into_iter().collect();
    for label in beside {
        expected.extend([below(&root, [label]), below(&root, [label, "b"])]);
    }
    expected.sort();
    let listed = ctx.store().list_namespaces().prefix(&root).await?;
    ensure_eq!(listed, expected, "all namespaces, in order");
    Ok(())
}

async fn any_label(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let labels: Vec<_> =
        super::keys::TEXTS.into_iter().filter(|text| !text.is_empty() && !text.contains('.')).collect();
    for (number, label) in (0..).zip(&labels) {
        ctx.store().put(below(&root, [label]), "k", n(number)).await?;
    }
    for (number, label) in (0..).zip(&labels) {
        let namespace = below(&root, [label]);
        ensure_eq!(value(ctx.store(), &namespace, "k").await?, n(number), "value in {namespace:?}");
        let found = ctx.store().search(&namespace).await?;
        ensure_eq!(found.len(), 1, "items in {namespace:?}");
        ensure_eq!(found[0].item.namespace, namespace, "namespace of the found item");
    }
    let mut expected: Vec<_> = labels.iter().map(|label| below(&root, [label])).collect();
    expected.sort();
    ensure_eq!(ctx.store().list_namespaces().prefix(&root).await?, expected, "namespaces");
    Ok(())
}

async fn deep_namespaces(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let deep = |depth: usize| -> Namespace {
        root.labels().iter().cloned().chain((0..depth).map(|at| format!("level {at}").into())).collect()
    };
    for depth in 0..40 {
        ctx.store().put(deep(depth), format!("{depth:02}"), n(1)).await?;
    }
    for depth in [0, 1, 20, 39] {
        ensure_eq!(all_keys(ctx.store(), &deep(depth)).await?.len(), 40 - depth, "items below level {depth}");
    }
    let results = ctx.store().batch(vec![get_op(&deep(39), "39"), get_op(&deep(39), "38")]).await?;
    ensure!(super::items::got(&results[0])?.is_some(), "the deepest item is missing");
    ensure!(super::items::got(&results[1])?.is_none(), "an item of the level above");
    Ok(())
}

async fn case_matters(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    for label in ["a", "A", "é", "É", "e\u{301}"] {
        ctx.store().put(below(&root, [label]), label, n(1)).await?;
    }
    for label in ["a", "A", "é", "É", "e\u{301}"] {
        ensure_eq!(all_keys(ctx.store(), &below(&root, [label])).await?, [label], "keys under {label:?}");
    }
    Ok(())
}

/// Labels and keys are not confused with each other.
async fn an_item_beside_namespaces(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let places = [
        (root.clone(), "a.b.c"),
        (below(&root, ["a"]), "b.c"),
        (below(&root, ["a", "b"]), "c"),
        (below(&root, ["a", "b", "c"]), ""),
        (below(&root, ["a", "b"]), ""),
    ];
    for (number, (namespace, key)) in (0..).zip(&places) {
        ctx.store().put(namespace, *key, n(number)).await?;
    }
    for (number, (namespace, key)) in (0..).zip(&places) {
        ensure_eq!(value(ctx.store(), namespace, key).await?, n(number), "value of {key:?} in {namespace}");
    }
    Ok(())
}
