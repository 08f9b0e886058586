//! Listings of namespaces.

use checkpoint_core::ErrorKind;
use checkpoint_core::store::{
    BaseStore, ListNamespacesOp, MatchCondition, Namespace, Op, OpResult, StoreExt,
};

use super::items::{below, list_op, n, put_op};
use crate::case::Failure;
use crate::fixture::{Done, expect_kind};
use crate::store_case::{StoreCtx, StoreNeed};
use crate::{StoreFacility, StoreOptions};

cases!(stores "store_list_namespaces";
    in_order,
    every_namespace_once,
    by_prefix,
    by_suffix,
    wildcards,
    conditions_all_hold,
    max_depth,
    max_depth_after_conditions,
    truncated_duplicates_that_are_not_adjacent,
    max_depth_of_none,
    limit_and_offset,
    limit_after_truncation,
    the_default_limit_is_a_hundred,
    huge_limits_and_offsets,
    deleting_the_last_item_removes_its_namespace,
    a_prefix_longer_than_the_namespaces,
    without_conditions [StoreNeed::Target(StoreFacility::Fresh)],
    several_listings_in_one_batch,
    many_items_in_few_namespaces,
    many_namespaces,
);

/// Namespaces whose order depends on the separator: the dot that joins labels sorts above some characters.
const NAMES: [&str; 17] = [
    "a", "a b", "a-b", "a-b.c", "a.b", "a.b.c", "a.b.d", "a.c", "a0", "b", "b.a", "b.a.c", "b.b.c", "b.c",
    "c.b", "é.x", "世",
];

async fn fill(ctx: &StoreCtx, root: &Namespace, names: &[&str]) -> Done {
    let ops = names.iter().rev().map(|name| put_op(&named(root, name), "k", &n(1)));
    ctx.store().batch(ops.collect::<Result<_, _>>()?).await?;
    Ok(())
}

fn named(root: &Namespace, name: &str) -> Namespace {
    root.labels().iter().cloned().chain(Namespace::from_text(name).labels().iter().cloned()).collect()
}

/// The listed namespaces without the label of the root.
fn names(listed: &[Namespace]) -> Vec<String> {
    listed.iter().map(|namespace| namespace.labels()[1..].join(".")).collect()
}

async fn check(
    ctx: &StoreCtx,
    root: &Namespace,
    set: impl Fn(&mut ListNamespacesOp),
    expected: &[&str],
) -> Done {
    let mut op = ListNamespacesOp::new();
    op.match_conditions.push(MatchCondition::Prefix(root.clone()));
    set(&mut op);
    let what = format!("{op:?}");
    match &*ctx.store().batch(vec![Op::ListNamespaces(op)]).await? {
        [OpResult::Namespaces(listed)] => ensure_eq!(names(listed), expected, "{what}"),
        other => return Err(Failure::new(format!("a listing returned {other:?}"))),
    }
    Ok(())
}

async fn in_order(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    fill(&ctx, &root, &NAMES).await?;
    check(&ctx, &root, |_| (), &NAMES).await
}

async fn every_namespace_once(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    for key in ["k1", "k2", "k3", ""] {
        ctx.store().put(named(&root, "a"), key, n(1)).await?;
        ctx.store().put(named(&root, "a.b"), key, n(1)).await?;
    }
    check(&ctx, &root, |_| (), &["a", "a.b"]).await
}

async fn by_prefix(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    fill(&ctx, &root, &NAMES).await?;
    for (prefix, expected) in [
        ("a", &["a", "a.b", "a.b.c", "a.b.d", "a.c"][..]),
        ("a.b", &["a.b", "a.b.c", "a.b.d"]),
        ("a-b", &["a-b", "a-b.c"]),
        ("b.a", &["b.a", "b.a.c"]),
        ("c", &["c.b"]),
        ("d", &[]),
        ("A", &[]),
        ("é", &["é.x"]),
    ] {
        let condition = MatchCondition::Prefix(named(&root, prefix));
        check(&ctx, &root, |op| op.match_conditions.push(condition.clone()), expected).await?;
        let listed = ctx.store().list_namespaces().prefix(named(&root, prefix)).await?;
        ensure_eq!(names(&listed), expected, "namespaces under {prefix}");
    }
    Ok(())
}

async fn by_suffix(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    fill(&ctx, &root, &NAMES).await?;
    for (suffix, expected) in [
        ("c", &["a-b.c", "a.b.c", "a.c", "b.a.c", "b.b.c", "b.c"][..]),
        ("b.c", &["a.b.c", "b.b.c", "b.c"]),
        ("b", &["a.b", "b", "c.b"]),
        ("-b", &[]),
        ("世", &["世"]),
        ("x", &["é.x"]),
        ("a.b.c.d.e", &[]),
    ] {
        let condition = MatchCondition::Suffix(Namespace::from_text(suffix));
        check(&ctx, &root, |op| op.match_conditions.push(condition.clone()), expected).await?;
    }
    Ok(())
}

async fn wildcards(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    fill(&ctx, &root, &NAMES).await?;
    for (prefix, expected) in [
        ("*.c", &["a-b.c", "a.c", "b.c"][..]),
        ("*.*.c", &["a.b.c", "b.a.c", "b.b.c"]),
        ("b.*.c", &["b.a.c", "b.b.c"]),
        ("b.*", &["b.a", "b.a.c", "b.b.c", "b.c"]),
        ("*.b.*", &["a.b.c", "a.b.d", "b.b.c"]),
        ("*.*.*", &["a.b.c", "a.b.d", "b.a.c", "b.b.c"]),
        ("*.*.*.*", &[]),
        ("a*", &[]),
    ] {
        let condition = MatchCondition::Prefix(named(&root, prefix));
        check(&ctx, &root, |op| op.match_conditions.push(condition.clone()), expected).await?;
    }
    for (suffix, expected) in [
        ("*.c", &["a-b.c", "a.b.c", "a.c", "b.a.c", "b.b.c", "b.c"][..]),
        ("b.*", &["a.b.c", "a.b.d", "b.a", "b.b.c", "b.c"]),
        ("a.*.c", &["a.b.c"]),
        ("b.a.*", &["b.a.c"]),
    ] {
        let condition = MatchCondition::Suffix(Namespace::from_text(suffix));
        check(&ctx, &root, |op| op.match_conditions.push(condition.clone()), expected).await?;
    }
    // A label that is a star matches itself and any pattern.
    fill(&ctx, &root, &["*", "*.x"]).await?;
    let condition = MatchCondition::Prefix(named(&root, "*.x"));
    check(&ctx, &root, |op| op.match_conditions.push(condition.clone()), &["*.x", "é.x"]).await
}

async fn conditions_all_hold(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    fill(&ctx, &root, &NAMES).await?;
    let prefix = |text: &str| MatchCondition::Prefix(named(&root, text));
    let suffix = |text: &str| MatchCondition::Suffix(Namespace::from_text(text));
    for (conditions, expected) in [
        (vec![prefix("a"), suffix("c")], &["a.b.c", "a.c"][..]),
        (vec![suffix("c"), prefix("*.b")], &["a.b.c", "b.b.c"]),
        (vec![prefix("a.b"), suffix("a.b")], &["a.b"]),
        (vec![prefix("a"), prefix("b")], &[]),
        (vec![prefix("a"), prefix("a.b"), suffix("d"), suffix("b.d")], &["a.b.d"]),
        (vec![prefix("a"), prefix("*.b"), prefix("*.*.c")], &["a.b.c"]),
        (vec![MatchCondition::Prefix(Namespace::root()), suffix("d")], &["a.b.d"]),
        (vec![MatchCondition::Suffix(Namespace::root()), suffix("d")], &["a.b.d"]),
    ] {
        check(&ctx, &root, |op| op.match_conditions.extend(conditions.clone()), expected).await?;
    }
    Ok(())
}

async fn max_depth(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    fill(&ctx, &root, &NAMES).await?;
    // The case's root counts as a label.
    check(&ctx, &root, |op| op.max_depth = Some(1), &[""]).await?;
    check(&ctx, &root, |op| op.max_depth = Some(2), &["a", "a b", "a-b", "a0", "b", "c", "é", "世"]).await?;
    let of_two =
        ["a", "a b", "a-b", "a-b.c", "a.b", "a.c", "a0", "b", "b.a", "b.b", "b.c", "c.b", "é.x", "世"];
    check(&ctx, &root, |op| op.max_depth = Some(3), &of_two).await?;
    check(&ctx, &root, |op| op.max_depth = Some(4), &NAMES).await?;
    check(&ctx, &root, |op| op.max_depth = Some(1000), &NAMES).await?;
    check(&ctx, &root, |op| op.max_depth = Some(usize::MAX), &NAMES).await
}

/// Conditions apply to the whole namespace, not to the truncated one.
async fn max_depth_after_conditions(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    fill(&ctx, &root, &NAMES).await?;
    let suffix = MatchCondition::Suffix(Namespace::from(["c"]));
    let set = |op: &mut ListNamespacesOp| {
        op.match_conditions.push(suffix.clone());
        op.max_depth = Some(2);
    };
    check(&ctx, &root, set, &["a", "a-b", "b"]).await?;
    let prefix = MatchCondition::Prefix(named(&root, "a.b.c"));
    let set = |op: &mut ListNamespacesOp| {
        op.match_conditions.push(prefix.clone());
        op.max_depth = Some(2);
    };
    check(&ctx, &root, set, &["a"]).await
}

/// Namespaces that are truncated to the same one need not be adjacent.
async fn truncated_duplicates_that_are_not_adjacent(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    fill(&ctx, &root, &["a", "a b", "a!.x", "a-b", "a-b.x", "a,", "a.b", "a.c", "a.c.d", "a/", "a0"]).await?;
    let expected = ["a", "a b", "a!", "a,", "a-b", "a/", "a0"];
    check(&ctx, &root, |op| op.max_depth = Some(2), &expected).await?;
    for offset in 0..8 {
        for limit in 0..8 {
            let set =
                |op: &mut ListNamespacesOp| (op.max_depth, op.limit, op.offset) = (Some(2), limit, offset);
            let expected: Vec<_> = expected.into_iter().skip(offset).take(limit).collect();
            check(&ctx, &root, set, &expected).await?;
        }
    }
    // Without `a` itself.
    ctx.store().delete(named(&root, "a"), "k").await?;
    let expected = ["a", "a b", "a!", "a,", "a-b", "a/", "a0"];
    check(&ctx, &root, |op| op.max_depth = Some(2), &expected).await
}

async fn max_depth_of_none(ctx: StoreCtx) -> Done {
    let call = ctx.store().list_namespaces().prefix(ctx.root()).max_depth(0).await;
    expect_kind(call, ErrorKind::InvalidArgument, "max_depth 0")
}

async fn limit_and_offset(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let all = ["a", "b", "c", "d", "e"];
    fill(&ctx, &root, &all).await?;
    for limit in 0..7 {
        for offset in 0..7 {
            let set = |op: &mut ListNamespacesOp| (op.limit, op.offset) = (limit, offset);
            let expected: Vec<_> = all.into_iter().skip(offset).take(limit).collect();
            check(&ctx, &root, set, &expected).await?;
        }
    }
    Ok(())
}

async fn limit_after_truncation(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    for label in ["a", "b", "c"] {
        for inner in 0..30 {
            ctx.store().put(below(&root, [label, &inner.to_string()]), "k", n(1)).await?;
        }
    }
    let set = |op: &mut ListNamespacesOp| (op.max_depth, op.limit) = (Some(2), 3);
    check(&ctx, &root, set, &["a", "b", "c"]).await?;
    let set = |op: &mut ListNamespacesOp| (op.max_depth, op.limit, op.offset) = (Some(2), 1, 1);
    check(&ctx, &root, set, &["b"]).await?;
    let set = |op: &mut ListNamespacesOp| (op.limit, op.offset) = (3, 59);
    check(&ctx, &root, set, &["b.9", "c.0", "c.1"]).await
}

async fn the_default_limit_is_a_hundred(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let names: Vec<_> = (0..120).map(|at| format!("{at:03}")).collect();
    fill(&ctx, &root, &names.iter().map(|name| &**name).collect::<Vec<_>>()).await?;
    let listed = ctx.store().list_namespaces().prefix(&root).await?;
    ensure_eq!(self::names(&listed), names[..100], "namespaces");
    Ok(())
}

async fn huge_limits_and_offsets(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    fill(&ctx, &root, &["a", "b"]).await?;
    for (limit, offset, expected) in [
        (usize::MAX, 0, &["a", "b"][..]),
        (usize::MAX, 1, &["b"]),
        (1, usize::MAX, &[]),
        (usize::MAX, usize::MAX, &[]),
    ] {
        check(&ctx, &root, |op| (op.limit, op.offset) = (limit, offset), expected).await?;
        let set = |op: &mut ListNamespacesOp| (op.limit, op.offset, op.max_depth) = (limit, offset, Some(2));
        check(&ctx, &root, set, expected).await?;
    }
    Ok(())
}

async fn deleting_the_last_item_removes_its_namespace(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    fill(&ctx, &root, &["a", "a.b", "b"]).await?;
    ctx.store().put(named(&root, "b"), "k2", n(1)).await?;
    ctx.store().delete(named(&root, "a"), "k").await?;
    ctx.store().delete(named(&root, "b"), "k").await?;
    check(&ctx, &root, |_| (), &["a.b", "b"]).await?;
    ctx.store().delete(named(&root, "b"), "k2").await?;
    check(&ctx, &root, |_| (), &["a.b"]).await?;
    check(&ctx, &root, |op| op.max_depth = Some(2), &["a"]).await
}

async fn a_prefix_longer_than_the_namespaces(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    fill(&ctx, &root, &["a", "a.b"]).await?;
    let listed = ctx.store().list_namespaces().prefix(named(&root, "a.b.c")).await?;
    ensure_eq!(listed, [], "namespaces");
    let listed = ctx.store().list_namespaces().prefix(named(&root, "a.*.*")).await?;
    ensure_eq!(listed, [], "namespaces by a pattern");
    Ok(())
}

async fn without_conditions(ctx: StoreCtx) -> Done {
    let store = ctx.fresh().await?.open(StoreOptions::default()).await?;
    store.setup().await?;
    for name in NAMES {
        store.put(Namespace::from_text(name), "k", n(1)).await?;
    }
    let text = |listed: Vec<Namespace>| listed.iter().map(Namespace::to_text).collect::<Vec<_>>();
    ensure_eq!(text(store.list_namespaces().await?), NAMES, "namespaces");
    let listed = text(store.list_namespaces().max_depth(1).await?);
    ensure_eq!(listed, ["a", "a b", "a-b", "a0", "b", "c", "é", "世"], "first labels");
    let listed = text(store.list_namespaces().suffix(["c"]).max_depth(1).offset(1).limit(1).await?);
    ensure_eq!(listed, ["a-b"], "second of the first labels of namespaces that end with c");
    let listed = text(store.list_namespaces().prefix(Namespace::root()).limit(2).await?);
    ensure_eq!(listed, ["a", "a b"], "the first two");
    Ok(())
}

async fn several_listings_in_one_batch(ctx: StoreCtx) -> Done {
    let (first, second) = (ctx.root(), ctx.root());
    fill(&ctx, &first, &["a", "b.c"]).await?;
    fill(&ctx, &second, &["x"]).await?;
    let mut cut = ListNamespacesOp::new();
    cut.match_conditions.push(MatchCondition::Prefix(first.clone()));
    (cut.max_depth, cut.offset) = (Some(2), 1);
    let ops = vec![
        list_op(&first),
        list_op(&second),
        Op::ListNamespaces(cut),
        list_op(&first),
        list_op(&ctx.root()),
    ];
    let results = ctx.store().batch(ops).await?;
    let expected: [&[&str]; 5] = [&["a", "b.c"], &["x"], &["b"], &["a", "b.c"], &[]];
    ensure_eq!(results.len(), expected.len(), "results");
    for (at, (result, expected)) in results.iter().zip(expected).enumerate() {
        let OpResult::Namespaces(listed) = result else {
            return Err(Failure::new(format!("a listing returned {result:?}")));
        };
        ensure_eq!(names(listed), expected, "listing {at}");
    }
    Ok(())
}

async fn many_items_in_few_namespaces(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let places = ["a", "a-b", "a.b", "b"];
    let ops = (0..1200_usize).map(|at| put_op(&named(&root, places[at % 4]), &at.to_string(), &n(1)));
    ctx.store().batch(ops.collect::<Result<_, _>>()?).await?;
    check(&ctx, &root, |_| (), &places).await?;
    check(&ctx, &root, |op| op.max_depth = Some(2), &["a", "a-b", "b"]).await
}

async fn many_namespaces(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let mut names: Vec<_> = (0..900).map(|at| format!("u{}.m{}", at % 30, at / 30)).collect();
    names.sort();
    fill(&ctx, &root, &names.iter().map(|name| &**name).collect::<Vec<_>>()).await?;
    let all: Vec<_> = names.iter().map(|name| &**name).collect();
    check(&ctx, &root, |op| op.limit = 1000, &all).await?;
    check(&ctx, &root, |op| (op.limit, op.offset) = (5, 700), &all[700..705]).await?;
    let mut users: Vec<_> = (0..30).map(|at| format!("u{at}")).collect();
    users.sort();
    let users: Vec<_> = users.iter().map(|name| &**name).collect();
    check(&ctx, &root, |op| op.max_depth = Some(2), &users).await?;
    let seventh: Vec<_> = all.iter().copied().filter(|name| name.rsplit('.').next() == Some("m7")).collect();
    let suffix = MatchCondition::Suffix(Namespace::from(["m7"]));
    check(&ctx, &root, |op| op.match_conditions.push(suffix.clone()), &seventh).await
}
