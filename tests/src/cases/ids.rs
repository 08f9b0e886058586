//! Ids with any text: no two are confused, and ids that a database cannot store are rejected.

use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig, Error, ErrorKind, ListQuery, Str, id};

use crate::case::{Ctx, Need};
use crate::fixture::{
    Done, checkpoint, encode, id_of, ids, list, put, random, read, triples, value, write_at,
};
use crate::target::{Facility, OpenOptions};

cases!("ids";
    hostile_threads,
    hostile_namespaces,
    hostile_tasks_and_paths,
    hostile_channels,
    similar_ids_do_not_share_rows,
    wildcards_match_only_themselves,
    checkpoint_ids_are_not_normalized,
    bare_ids [Need::Target(Facility::Fresh)],
);

/// Texts that are error-prone in databases, query languages and key schemes.
fn hostile() -> Vec<String> {
    let mut all: Vec<String> = [
        "",
        " ",
        ":",
        "::",
        "{",
        "}",
        "{tag}",
        "%",
        "_",
        "*",
        "?",
        "[a-z]",
        "|",
        "/",
        "..",
        ".",
        "$",
        "$where",
        "a.b",
        "\0",
        "a\0b",
        "\n",
        "\r\n",
        "\t",
        "'",
        "''",
        "\"",
        "`",
        ";",
        "'; DROP TABLE checkpoints; --",
        "null",
        "None",
        "0",
        "-1",
        "1e5",
        "\u{feff}",
        "\u{202e}abc",
        "\\",
        "a\\b",
        "\\x41",
        "é",
        "e\u{301}",
        "世界",
        "🦀👨‍👩‍👧",
        "\u{10ffff}",
    ]
    .map(str::to_owned)
    .into();
    all.push("x".repeat(5000));
    all.push("é世🦀".repeat(1250));
    all
}

/// Returns `None` if a call was rejected, which is allowed for ids that the database cannot store, but only with
/// `InvalidArgument`.
fn refused<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == ErrorKind::InvalidArgument => Ok(None),
        Err(error) => Err(error),
    }
}

/// Fails if a backend rejects most of the ids, so that few were compared.
fn ensure_most(kept: usize, all: usize) -> Done {
    ensure!(kept * 2 > all, "only {kept} of {all} were stored, the others were rejected");
    Ok(())
}

async fn hostile_threads(ctx: Ctx) -> Done {
    let mut kept = 0;
    for text in hostile() {
        // Others may use the bare ids, so each gets a random prefix or suffix.
        for thread_id in [format!("{}{text}", random()), format!("{text}{}", random())] {
            let thread_id = ctx.use_thread(&thread_id);
            let config = CheckpointConfig::new(thread_id.clone());
            let Some(stored) = refused(put(ctx.saver(), &config, &checkpoint(&[("v", "in".into())])).await)?
            else {
                // Reading an id that cannot be stored finds nothing or is rejected as well.
                ensure!(
                    refused(ctx.saver().get_tuple(&config).await)?.flatten().is_none(),
                    "refused, but stored"
                );
                continue;
            };
            ensure_eq!(stored.thread_id(), &*thread_id, "thread");
            ensure_eq!(value(&read(ctx.saver(), &config).await?, "v")?, "in".into(), "value");
            let found = ids(ctx.saver(), ListQuery::thread(thread_id.clone())).await?;
            ensure_eq!(found, [id_of(&stored)], "listing of {thread_id:?}");
            ctx.saver().delete_thread(&thread_id).await?;
            ensure_eq!(ctx.saver().get_tuple(&config).await?, None, "after delete_thread");
            kept += 1;
        }
    }
    ensure_most(kept, 2 * hostile().len())
}

async fn hostile_namespaces(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let mut stored = Vec::new();
    for text in hostile() {
        let config = CheckpointConfig::new(thread_id.clone()).with_checkpoint_ns(text.clone());
        let made = checkpoint(&[("ns", encode(&text.as_str().into())?)]);
        match refused(put(ctx.saver(), &config, &made).await)? {
            Some(config) => stored.push((config, text)),
            None => {
                ensure!(
                    refused(ctx.saver().get_tuple(&config).await)?.flatten().is_none(),
                    "refused, but stored"
                );
            }
        }
    }
    for (config, text) in &stored {
        let tuple = read(ctx.saver(), &config.clone().latest()).await?;
        ensure_eq!(&tuple.config, config, "config of {text:?}");
        ensure_eq!(value(&tuple, "ns")?, text.as_str().into(), "value");
        let query = ListQuery::thread(thread_id.clone()).checkpoint_ns(text.clone());
        ensure_eq!(ids(ctx.saver(), query).await?, [id_of(config)], "listing of {text:?}");
    }
    ensure_eq!(
        ids(ctx.saver(), ListQuery::thread(thread_id)).await?.len(),
        stored.len(),
        "checkpoints in all"
    );
    ensure_most(stored.len(), hostile().len())
}

async fn hostile_tasks_and_paths(ctx: Ctx) -> Done {
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    let mut expected = Vec::new();
    for text in hostile() {
        for (task, path) in [(text.as_str(), ""), ("task", text.as_str())] {
            let task = if path.is_empty() { task.to_owned() } else { format!("{task} of {path}") };
            let writes = [("ch", task.as_str().into())];
            if refused(write_at(ctx.saver(), &stored, &task, path, &writes).await)?.is_some() {
                expected.push((path.to_owned(), task));
            }
        }
    }
    expected.sort();
    expected.dedup();
    let tuple = read(ctx.saver(), &stored).await?;
    let found: Vec<_> = tuple
        .pending_writes
        .iter()
        .map(|write| (write.task_path.to_string(), write.task_id.to_string()))
        .collect();
    ensure_eq!(found, expected, "paths and tasks in their order");
    for write in &tuple.pending_writes {
        ensure_eq!(write.value, (&*write.task_id).into(), "value");
    }
    ensure_most(found.len(), 2 * hostile().len())
}

async fn hostile_channels(ctx: Ctx) -> Done {
    let mut kept = 0;
    for wrap in [false, true] {
        for text in hostile() {
            let named = encode(&text.as_str().into())?;
            let named = if wrap { encode(&vec![named.to_value()?].into())? } else { named };
            let made = checkpoint(&[(&text, named.clone()), ("plain", 1.into())]);
            let config = CheckpointConfig::new(ctx.thread());
            let Some(stored) = refused(put(ctx.saver(), &config, &made).await)? else {
                ensure_eq!(ctx.saver().get_tuple(&config).await?, None, "refused, but stored");
                continue;
            };
            ensure_eq!(read(ctx.saver(), &stored).await?.checkpoint, made, "checkpoint");
            let writes = [(text.as_str(), named.clone()), ("plain", 1.into())];
            if refused(write_at(ctx.saver(), &stored, "task", "", &writes).await)?.is_some() {
                let tuple = read(ctx.saver(), &stored).await?;
                let expected = [("task", &*text, &named), ("task", "plain", &1.into())];
                ensure_eq!(triples(&tuple.pending_writes), expected, "writes");
                kept += 1;
            } else {
                ensure_eq!(read(ctx.saver(), &stored).await?.pending_writes, [], "refused, but stored");
            }
        }
    }
    ensure_most(kept, 2 * hostile().len())
}

/// Different pairs of thread and namespace that collide if they are joined without escaping.
fn colliding_pairs() -> Vec<[(String, String); 2]> {
    let mut pairs = Vec::new();
    for separator in [":", "|", "/", "\0", "\n", "\u{1f}", "{}", "%3A", "__", " ", "$", "\\"] {
        pairs.push([(format!("a{separator}b"), "c".to_owned()), ("a".to_owned(), format!("b{separator}c"))]);
        pairs.push([(format!("s{separator}"), String::new()), ("s".to_owned(), separator.to_owned())]);
        pairs.push([(format!("t{separator}"), "n".to_owned()), ("t".to_owned(), "n".to_owned())]);
    }
    for (one, other) in
        [("x", "X"), ("é", "e\u{301}"), ("i", "ı"), ("ß", "ss"), ("1", "01"), ("a", "a "), ("", "\u{200b}")]
    {
        pairs.push([(one.to_owned(), String::new()), (other.to_owned(), String::new())]);
        pairs.push([("n".to_owned(), format!("n{one}")), ("n".to_owned(), format!("n{other}"))]);
    }
    pairs
}

async fn similar_ids_do_not_share_rows(ctx: Ctx) -> Done {
    let unique = random();
    let mut compared = 0;
    for (at, pair) in colliding_pairs().into_iter().enumerate() {
        // Each pair has its own threads.
        let pair =
            pair.map(|(thread_id, checkpoint_ns)| (format!("{unique} {at} {thread_id}"), checkpoint_ns));
        let id = random();
        let mut stored = Vec::new();
        for (which, (thread_id, checkpoint_ns)) in (0_i64..).zip(&pair) {
            let thread_id = ctx.use_thread(thread_id);
            let config = CheckpointConfig::new(thread_id).with_checkpoint_ns(checkpoint_ns.clone());
            let mut made = checkpoint(&[("which", which.into()), ("blob", encode(&list(&[which]))?)]);
            made.id = id.clone();
            if let Some(config) = refused(put(ctx.saver(), &config, &made).await)? {
                write_at(ctx.saver(), &config, "task", "", &[("which", which.into())]).await?;
                stored.push((config, which));
            }
        }
        for (config, which) in &stored {
            let tuple = read(ctx.saver(), config).await?;
            ensure_eq!(&tuple.config, config, "config");
            ensure_eq!(value(&tuple, "which")?, (*which).into(), "value of {config:?}");
            ensure_eq!(value(&tuple, "blob")?, encode(&list(&[*which]))?, "blob of {config:?}");
            ensure_eq!(triples(&tuple.pending_writes), [("task", "which", &(*which).into())], "writes");
            let found = ids(ctx.saver(), ListQuery::from_config(&config.clone().latest())).await?;
            ensure_eq!(found.len(), 1, "listing of {config:?}");
        }
        compared += usize::from(stored.len() == 2);
        if let [(first, _), (second, _)] = &*stored
            && first.thread_id() != second.thread_id()
        {
            ctx.saver().delete_thread(first.thread_id()).await?;
            ensure_eq!(ctx.saver().get_tuple(first).await?, None, "the deleted one");
            let tuple = read(ctx.saver(), second).await?;
            ensure_eq!(tuple.pending_writes.len(), 1, "writes of the other one");
        }
    }
    ensure_most(compared, colliding_pairs().len())
}

async fn wildcards_match_only_themselves(ctx: Ctx) -> Done {
    let unique = random();
    let victim = ctx.use_thread(&format!("{unique}abc"));
    put(ctx.saver(), &CheckpointConfig::new(victim.clone()).with_checkpoint_ns("abc"), &checkpoint(&[]))
        .await?;
    for pattern in ["%", "___", "*", "a*", "[a-z]bc", "a_c", "%b%", "???", ".*", "a?c"] {
        let thread_id = ctx.use_thread(&format!("{unique}{pattern}"));
        ensure_eq!(
            ids(ctx.saver(), ListQuery::thread(thread_id.clone())).await?.len(),
            0,
            "thread {pattern:?}"
        );
        let query = ListQuery::thread(victim.clone()).checkpoint_ns(pattern);
        ensure_eq!(ids(ctx.saver(), query).await?.len(), 0, "namespace {pattern:?}");
        ctx.saver().delete_thread(&thread_id).await?;
        if ctx.saver().capabilities().prune {
            ctx.saver().prune(&[&thread_id], checkpoint_core::PruneStrategy::Delete).await?;
        }
    }
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(victim)).await?.len(), 1, "the thread that patterns match");
    Ok(())
}

async fn bare_ids(ctx: Ctx) -> Done {
    // In an empty database, ids need no random part: the empty id, and ids of special characters only.
    let target = ctx.target().fresh().await?;
    let saver = target.open(OpenOptions::default()).await?;
    saver.setup().await?;
    let mut stored = Vec::new();
    for text in hostile() {
        let config = CheckpointConfig::new(text.as_str()).with_checkpoint_ns(text.as_str());
        let made = checkpoint(&[(&text, encode(&list(&[1]))?)]);
        if let Some(config) = refused(put(&saver, &config, &made).await)? {
            write_at(&saver, &config, &text, &text, &[(&text, 1.into())]).await?;
            stored.push((config, made));
        }
    }
    for (config, made) in &stored {
        let tuple = read(&saver, &config.clone().latest()).await?;
        ensure_eq!((&tuple.config, &tuple.checkpoint), (config, made), "checkpoint");
        ensure_eq!(tuple.pending_writes.len(), 1, "number of writes");
    }
    let mut left = stored.len();
    ensure_most(left, hostile().len())?;
    ensure_eq!(ids(&saver, ListQuery::all()).await?.len(), left, "checkpoints in all");
    for (config, _) in &stored {
        saver.delete_thread(config.thread_id()).await?;
        left -= 1;
        ensure_eq!(ids(&saver, ListQuery::all()).await?.len(), left, "left after deleting {config:?}");
    }
    Ok(())
}

async fn checkpoint_ids_are_not_normalized(ctx: Ctx) -> Done {
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    let id = id_of(&stored);
    id::validate(&id)?;
    for spelling in
        [id.to_uppercase(), id.replace('-', ""), format!("{{{id}}}"), format!("{id} "), "no-uuid".into()]
    {
        let found =
            ctx.saver().get_tuple(&stored.clone().with_checkpoint_id(Str::from(spelling.as_str()))).await;
        ensure!(refused(found)?.flatten().is_none(), "{spelling:?} finds {id:?}");
    }
    Ok(())
}
