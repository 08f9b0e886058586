//! Every operation of a store once, for what all of them have in common.

use checkpoint_core::Result;
use checkpoint_core::store::{BaseStore, Expected, GetOp, ListNamespacesOp, Namespace, Op, PutOp, SearchOp};
use futures_util::future::BoxFuture;

use super::items::{n, object};
use crate::Store;
use crate::telemetry::Fields;

/// A call that has not begun.
pub(super) struct Operation {
    /// Its name in errors and spans.
    pub(super) name: &'static str,
    /// The arguments that its span has.
    pub(super) fields: Fields,
    pub(super) call: BoxFuture<'static, Result<()>>,
}

/// Calls of every operation of a store, except `close`, to be run in this order. They use this namespace.
pub(super) fn operations(store: &Store, root: &Namespace) -> Result<Vec<Operation>> {
    let namespace = Namespace::from_text(&format!("{root}.inner"));
    let value = object(&n(1))?;
    let inner = namespace.to_text();
    let item = [("namespace", &*inner), ("key", "a key")];
    let get = || Op::Get(GetOp::new(namespace.clone(), "a key"));
    let put = || PutOp::new(namespace.clone(), "a key", value.clone());
    let search = SearchOp::new(namespace.clone());
    let list = ListNamespacesOp::new();
    let batches = [
        ("put", item.to_vec(), vec![Op::Put(put())]),
        ("get", item.to_vec(), vec![get()]),
        ("search", vec![("namespace", &*inner), ("limit", "10")], vec![Op::Search(search)]),
        ("list_namespaces", vec![("limit", "100")], vec![Op::ListNamespaces(list)]),
        ("batch", vec![("db.operation.batch.size", "3")], vec![get(), Op::Put(put()), get()]),
        ("batch", vec![("db.operation.batch.size", "0")], vec![]),
        ("delete", item.to_vec(), vec![Op::Put(PutOp::delete(namespace.clone(), "a key"))]),
    ];
    let without_arguments = |name, call| Operation { name, fields: Fields::new(), call };
    let (setup, ping, check) = (store.clone(), store.clone(), store.clone());
    let mut operations = vec![
        without_arguments("setup", Box::pin(async move { setup.setup().await })),
        without_arguments("ping", Box::pin(async move { ping.ping().await })),
        without_arguments("check_schema", Box::pin(async move { check.check_schema().await })),
    ];
    for (name, fields, ops) in batches {
        let store = store.clone();
        let fields = fields.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
        let call = Box::pin(async move { store.batch(ops).await.map(|_| ()) });
        operations.push(Operation { name, fields, call });
    }
    let (conditional, put) = (store.clone(), put());
    let fields = item.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
    let call = Box::pin(async move { conditional.put_if(put, Expected::Absent).await });
    operations.push(Operation { name: "put_if", fields, call });
    let store = store.clone();
    operations
        .push(without_arguments("sweep_ttl", Box::pin(async move { store.sweep_ttl().await.map(|_| ()) })));
    Ok(operations)
}
