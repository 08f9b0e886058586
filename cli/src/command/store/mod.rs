//! `ckpt store`.

mod demo;
mod embed;
mod item;

use std::io::{Read, Write};

use checkpoint_core::store::{
    ItemFilter, ItemIndex, JsonObject, Namespace, Op, PutOp, SearchOp, StoreExt, Ttl,
};
use checkpoint_core::{Error, ErrorKind};
use serde_json::json;

use super::manage::{done, require_consent};
use crate::arguments::{Index, Options, StoreCommand};
use crate::failure::{Failure, Result};
use crate::open::{self, Store, Vectors};
use crate::output::{DIM, clean, json_line, stdout, styled};

/// The argument for standard input.
const STDIN: &str = "-";

pub(crate) async fn run(options: &Options, command: StoreCommand) -> Result<()> {
    dispatch(options, command).await.map_err(Failure::of_store)
}

async fn dispatch(options: &Options, command: StoreCommand) -> Result<()> {
    let json = options.json;
    match command {
        StoreCommand::Setup { index, filter_index } => setup(options, &index, filter_index).await,
        StoreCommand::Put { namespace, key, value, ttl, paths, no_index, index } => {
            let mut op = PutOp::new(Namespace::from_text(&namespace), key, parse_value(value)?);
            if let Some(ttl) = ttl {
                op.ttl = parse_ttl(&ttl)?;
            }
            if no_index {
                op.index = ItemIndex::Off;
            } else if !paths.is_empty() {
                op.index = ItemIndex::Fields(paths.into_iter().map(Into::into).collect());
            }
            put(options, op, &index).await
        }
        StoreCommand::Get { namespace, key, refresh } => {
            let namespace = Namespace::from_text(&namespace);
            let store = open_store(options, None)?;
            match store.get(&namespace, key.as_str()).refresh_ttl(refresh.refresh_ttl).await? {
                Some(item) => item::show(&item, json),
                None => Err(missing(&namespace, &key)),
            }
        }
        StoreCommand::Delete { namespace, key, consent } => {
            delete(&open_store(options, None)?, &Namespace::from_text(&namespace), &key, consent.yes, json)
                .await
        }
        StoreCommand::Search { namespace, filter, query, limit, offset, refresh, index } => {
            let mut op = SearchOp::new(Namespace::from_text(&namespace));
            if let Some(filter) = filter {
                op.filter = parse_filter(&filter)?;
            }
            (op.query, op.limit, op.offset) = (query.map(Into::into), limit, offset);
            op.refresh_ttl = Some(refresh.refresh_ttl);
            search(options, op, &index).await
        }
        StoreCommand::Namespaces { prefix, suffix, max_depth, limit, offset } => {
            let store = open_store(options, None)?;
            let mut list = store.list_namespaces().limit(limit).offset(offset);
            if let Some(prefix) = prefix {
                list = list.prefix(Namespace::from_text(&prefix));
            }
            if let Some(suffix) = suffix {
                list = list.suffix(Namespace::from_text(&suffix));
            }
            if let Some(max_depth) = max_depth {
                list = list.max_depth(max_depth);
            }
            namespaces(&list.await?, json)
        }
        StoreCommand::Sweep => {
            let swept = open_store(options, None)?.sweep_ttl().await?;
            let plural = if swept == 1 { "item" } else { "items" };
            done(json, &json!({ "swept": swept }), &format!("Removed {swept} expired {plural}."))
        }
        StoreCommand::Demo => demo::run(json).await,
    }
}

fn open_store(options: &Options, vectors: Option<Vectors>) -> Result<Store> {
    open::store(open::url(options)?, vectors, false)
}

async fn setup(options: &Options, index: &Index, filter_index: bool) -> Result<()> {
    let vectors = embed::tables(index);
    if vectors.is_none() && index.embed.is_some() {
        return Err(Failure::usage("a table of vectors needs --embed-dims, the number of dimensions"));
    }
    let store = open::store(open::url(options)?, vectors, filter_index)?;
    store.setup().await?;
    let dims = index.embed_dims;
    let sentence = match dims {
        Some(dims) => format!("The store's tables are ready, with vectors of {dims} dimensions."),
        None => "The store's tables are ready.".to_owned(),
    };
    done(options.json, &json!({ "backend": store.backend(), "ready": true, "dims": dims }), &sentence)
}

/// Parses the value argument, or standard input.
fn parse_value(argument: String) -> Result<JsonObject> {
    let mut text = argument;
    if text == STDIN {
        text.clear();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(|error| Failure::usage(format!("cannot read standard input: {error}")))?;
    }
    Ok(JsonObject::from_text(text)?)
}

fn parse_filter(text: &str) -> Result<ItemFilter> {
    let json: serde_json::Value = serde_json::from_str(text)
        .map_err(|error| Failure::usage(format!("--filter is not valid JSON: {error}")))?;
    Ok(ItemFilter::from_json(&json)?)
}

/// Parses a number of minutes, or a number with a unit.
fn parse_ttl(text: &str) -> Result<Ttl> {
    let (number, minutes) = match text.char_indices().next_back() {
        Some((at, 's')) => (text.get(..at), 1.0 / 60.0),
        Some((at, 'm')) => (text.get(..at), 1.0),
        Some((at, 'h')) => (text.get(..at), 60.0),
        Some((at, 'd')) => (text.get(..at), 24.0 * 60.0),
        _ => (Some(text), 1.0),
    };
    let number: f64 = number.and_then(|number| number.parse().ok()).ok_or_else(|| {
        Failure::usage(
            "--ttl must be a number of minutes, or a number with the unit s, m, h or d: 90, 45s, 12h, 7d",
        )
    })?;
    Ok(Ttl::Minutes(number * minutes))
}

async fn put(options: &Options, mut op: PutOp, index: &Index) -> Result<()> {
    let (namespace, key, no_index) = (op.namespace.clone(), op.key.clone(), op.index == ItemIndex::Off);
    if let Some(vectors) = embed::vectors(index)? {
        open_store(options, Some(vectors))?.batch(vec![Op::Put(op)]).await?;
    } else {
        if matches!(op.index, ItemIndex::Fields(_)) {
            return Err(Failure::usage("--index needs --embed, the model that embeds the texts"));
        }
        // A store without an index would leave the old vectors, and queries would find the item by its old value.
        op.index = ItemIndex::Off;
        let cleared = open_store(options, Some(embed::none(index)))?.batch(vec![Op::Put(op.clone())]).await;
        match cleared {
            Ok(_) if no_index => {}
            Ok(_) => anstream::eprintln!(
                "ckpt: the item has no vectors, so queries do not find it; put it with --embed, or with --no-index to silence this warning"
            ),
            // There is no table of vectors, or no table at all.
            Err(error) if error.kind() == ErrorKind::Schema => {
                open_store(options, None)?.batch(vec![Op::Put(op)]).await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let sentence = format!("Put {} into {}.", item::key(&key), item::namespace(&namespace));
    done(options.json, &json!({ "put": &*key, "namespace": item::labels(&namespace) }), &sentence)
}

/// The failure for a missing item.
fn missing(namespace: &Namespace, key: &str) -> Failure {
    Failure::not_found(format!(
        "there is no item {} in namespace {}; `ckpt store search {}` lists the existing ones",
        item::key(key),
        item::namespace(namespace),
        clean(&namespace.to_text())
    ))
}

async fn delete(store: &Store, namespace: &Namespace, key: &str, yes: bool, json: bool) -> Result<()> {
    if store.get(namespace, key).refresh_ttl(false).await?.is_none() {
        return Err(missing(namespace, key));
    }
    let what = format!("{} of {}", item::key(key), item::namespace(namespace));
    require_consent(yes, &format!("Delete {what}?"))?;
    store.delete(namespace, key).await?;
    done(json, &json!({ "deleted": key, "namespace": item::labels(namespace) }), &format!("Deleted {what}."))
}

async fn search(options: &Options, op: SearchOp, index: &Index) -> Result<()> {
    let vectors = match &op.query {
        Some(_) => Some(embed::vectors(index)?.ok_or_else(|| {
            Failure::usage(
                "--query needs --embed MODEL and --embed-dims, the same as when the items were put",
            )
        })?),
        None => None,
    };
    let store = open_store(options, vectors)?;
    let mut search = store.search(op.namespace_prefix).filter(op.filter).limit(op.limit).offset(op.offset);
    search = search.refresh_ttl(op.refresh_ttl == Some(true));
    if let Some(query) = op.query {
        search = search.query(query);
    }
    let found = search.await.map_err(|error: Error| Failure::from(error))?;
    item::list(&found, options.json)
}

fn namespaces(found: &[Namespace], json: bool) -> Result<()> {
    let mut out = stdout();
    for namespace in found {
        if json {
            json_line(&mut out, &json!({ "namespace": item::labels(namespace) }))?;
        } else {
            writeln!(out, "{}", item::namespace(namespace))?;
        }
    }
    if !json {
        let plural = if found.len() == 1 { "namespace" } else { "namespaces" };
        writeln!(out, "{}", styled(DIM, format!("{} {plural}", found.len())))?;
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttls_have_units() {
        for (text, minutes) in
            [("90", 90.0), ("0.5", 0.5), ("30m", 30.0), ("90s", 1.5), ("12h", 720.0), ("7d", 10080.0)]
        {
            assert_eq!(parse_ttl(text).unwrap(), Ttl::Minutes(minutes), "{text}");
        }
        for wrong in ["", "m", "x", "1w", "1 h ago", "½"] {
            assert!(parse_ttl(wrong).is_err(), "{wrong}");
        }
    }
}
