//! What was done on Python's stores, done on ours: operations, filters, namespaces, vectors, tables, times to live.
//!
//! Each probe is compared with what Python recorded. Where ours differs it is on purpose: [`DIFFERENCES`] says what ours
//! does, and why. [`WITHOUT_COUNTERPART`] names the probes that Rust cannot express.

use std::time::Duration;

use checkpoint_core::store::{
    Distance, Embeddings, GetOp, IndexConfig, ItemFilter, ItemIndex, JsonObject, ListNamespacesOp,
    MatchCondition, Op, OpResult, PutOp, SearchItem, SearchOp, StoreExt, TtlConfig,
};
use checkpoint_core::{Result, async_trait};
use libtest_mimic::{Completion, Trial};
use serde_json::{Value as Json, json};
use store_postgres::{AnnIndex, PostgresStoreBuilder, VectorType};

use crate::shared::fresh_store::Fresh;
use crate::shared::golden::json_vectors;
use crate::shared::postgres::{Kind, Server, count, in_runtime};
use crate::shared::store_differences::{DIFFERENCES, On, WITHOUT_COUNTERPART};

/// How many of the letters `a` to `d` are in a text, and a little, so that no vector is zero.
#[derive(Debug)]
struct Letters;

#[async_trait]
impl Embeddings for Letters {
    async fn embed_documents(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        let number =
            |text: &str, letter: char| f32::from(u8::try_from(text.matches(letter).count()).unwrap());
        let vector = |text: &&str| {
            vec![number(text, 'a') + 0.01, number(text, 'b'), number(text, 'c'), number(text, 'd')]
        };
        Ok(texts.iter().map(vector).collect())
    }
}

fn index(fields: &[&'static str], distance: Distance) -> IndexConfig {
    IndexConfig::new(4, Letters).fields(fields.iter().copied()).distance(distance)
}

/// What a call came to, as the probes have it.
fn answer<T>(result: Result<T>, of: impl FnOnce(T) -> Json) -> Json {
    match result {
        Ok(value) => of(value),
        Err(error) => format!("ERR {:?}", error.kind()).into(),
    }
}

/// What a search finds, as the probes have it.
async fn found_in(fresh: &Fresh, search: SearchOp) -> Json {
    answer(fresh.search(search).await, |items| items.iter().map(found).collect())
}

fn found(item: &SearchItem) -> Json {
    let score = item.score.map(|score| (score * 1e4).round() / 1e4);
    json!([item.item.namespace.to_text(), &*item.item.key, score])
}

/// As Python's `str` of an item or of none.
fn text_of(value: Option<Json>) -> Json {
    match value {
        Some(value) => value.to_string().replace('"', "'").replace(':', ": ").into(),
        None => "None".into(),
    }
}

/// The probes on one store.
struct Replay {
    server: Option<Server>,
    /// What came of the probes so far.
    came: Vec<(String, Json)>,
}

impl Replay {
    fn on(&self) -> On {
        if self.server.is_some() { On::Postgres } else { On::Memory }
    }

    async fn plain(&self) -> Fresh {
        self.fresh(None, TtlConfig::new()).await
    }

    async fn fresh(&self, index: Option<IndexConfig>, ttl: TtlConfig) -> Fresh {
        let Some(server) = &self.server else { return Fresh::in_memory(index, ttl).await };
        let configure = |builder: PostgresStoreBuilder| match index {
            Some(index) => builder.ttl(ttl).index(index),
            None => builder.ttl(ttl),
        };
        Fresh::on_postgres(server, configure).await
    }

    fn came(&mut self, probe: impl Into<String>, to: Json) {
        self.came.push((probe.into(), to));
    }

    /// Compares everything that came of the probes, and sees to it that none is left out.
    fn compare(self) {
        let on = self.on();
        let Json::Object(recorded) = json_vectors("store_probes.json") else { panic!("no probes") };
        let mut wrong = Vec::new();
        for (probe, came) in &self.came {
            let python = python(&recorded, probe, on);
            let listed: Vec<_> =
                DIFFERENCES.iter().filter(|one| one.probe == probe && one.on.has(on)).collect();
            match listed.as_slice() {
                [] if *came == python => {}
                [] => wrong.push(format!("{probe}: ours {came}, Python's {python}")),
                [one] => {
                    let ours: Json = serde_json::from_str(one.ours).unwrap();
                    if ours == python {
                        wrong.push(format!("{probe}: no difference: {}", one.why));
                    }
                    if *came != ours {
                        wrong.push(format!("{probe}: ours {came}, not {ours}: {}", one.why));
                    }
                }
                _ => wrong.push(format!("{probe} has several differences")),
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let came = |probe: &str| self.came.iter().filter(|(one, _)| one == probe).count();
        for (probe, by_store) in &recorded {
            // Some were made on one of Python's stores only, or on no store.
            let on_no_store = ["mem", "sqlite", "pg"].iter().all(|store| by_store.get(store).is_none());
            let without = WITHOUT_COUNTERPART.iter().filter(|(one, _)| one == probe).count();
            let wanted = on_no_store || by_store.get(on.recorded()).is_some() || without > 0;
            assert!(!wanted || came(probe) + without == 1, "{probe}: {} and {without}", came(probe));
        }
        for difference in DIFFERENCES.iter().filter(|one| one.on.has(on)) {
            assert_eq!(came(difference.probe), 1, "{}", difference.probe);
        }
        for (probe, _) in WITHOUT_COUNTERPART {
            assert!(recorded.contains_key(*probe), "{probe}");
        }
    }
}

/// What Python recorded. Where it has no such thing in memory, what it recorded on PostgreSQL.
fn python(recorded: &serde_json::Map<String, Json>, probe: &str, on: On) -> Json {
    let by_store = recorded.get(probe).unwrap_or_else(|| panic!("there is no probe {probe}"));
    let mut result = by_store.get(on.recorded()).or_else(|| by_store.get("pg")).unwrap_or(by_store).clone();
    if let Some(error) = result.as_str().and_then(|text| text.strip_prefix("ERR ")) {
        let kind = match error.split_once(':').map(|(class, _)| class) {
            Some("InvalidNamespaceError" | "ValueError") => "InvalidArgument",
            Some("NotImplementedError") => "Unsupported",
            _ => panic!("{probe}: ours has no error like {error}"),
        };
        return format!("ERR {kind}").into();
    }
    // Times are those of the recording.
    if probe.starts_with("ttl refresh") {
        result.as_object_mut().unwrap().retain(|key, _| !key.starts_with("fmt_"));
    } else if probe.starts_with("ttl rows") {
        for row in result.as_array_mut().unwrap() {
            let row = row.as_object_mut().unwrap();
            let expires = row.remove("expires_at").unwrap() != "None";
            row.insert("expires".into(), expires.into());
        }
    }
    result
}

async fn replay(server: Option<Server>) {
    let mut replay = Replay { server, came: Vec::new() };
    namespaces_are_checked(&mut replay).await;
    single_items(&mut replay).await;
    searches(&mut replay).await;
    listings(&mut replay).await;
    odd_prefixes(&mut replay).await;
    batches(&mut replay).await;
    queries(&mut replay).await;
    texts(&mut replay);
    expiry(&mut replay).await;
    if replay.server.is_some() {
        tables(&mut replay).await;
        times_to_live(&mut replay).await;
    }
    replay.compare();
}

async fn namespaces_are_checked(replay: &mut Replay) {
    let fresh = replay.plain().await;
    let namespaces: [(&str, &[&str]); 5] = [
        ("empty", &[]),
        ("dot", &["a.b"]),
        ("emptylabel", &["a", ""]),
        ("langgraph root", &["langgraph", "x"]),
        ("langgraph nested ok", &["x", "langgraph"]),
    ];
    for (name, namespace) in namespaces {
        let put = fresh.store.put(namespace, "k", json!({"v": 1})).await;
        replay.came(format!("put namespace {name}"), answer(put, |()| Json::Null));
        let get = fresh.store.get(namespace, "other").await;
        let got = answer(get, |item| text_of(item.map(|item| item.value.decode().unwrap())));
        replay.came(format!("get namespace {name} (not validated in 4.2)"), got);
    }
}

async fn single_items(replay: &mut Replay) {
    let fresh = replay.plain().await;
    let store = &fresh.store;
    let got = |item: Option<_>| {
        item.map_or(Json::Null, |item: checkpoint_core::store::Item| item.value.decode().unwrap())
    };
    fresh.put(&["d"], "k", json!({"v": 1})).await;
    store.batch(vec![Op::Put(PutOp::delete(["d"], "k"))]).await.unwrap();
    replay.came("delete via put None", got(store.get(["d"], "k").await.unwrap()));
    let deleted = answer(store.delete(["d"], "missing").await, |()| Json::Null);
    replay.came("delete missing", deleted);
    replay.came("get missing", got(store.get(["d"], "missing").await.unwrap()));
    let put = store.put(["d"], "ttl", json!({})).ttl(Duration::from_secs(60)).await;
    replay.came("ttl on store", answer(put, |()| Json::Null));
    fresh.put(&["d"], "t", json!({"v": 1})).await;
    let first = store.get(["d"], "t").await.unwrap().unwrap();
    fresh.put(&["d"], "t", json!({"v": 2})).await;
    let second = store.get(["d"], "t").await.unwrap().unwrap();
    let times = json!({
        "created_preserved": first.created_at == second.created_at,
        "updated_gt": second.updated_at > first.updated_at,
    });
    replay.came("update preserves created_at?", times);
}

/// The items of the searches and listings.
async fn with_items(replay: &Replay) -> Fresh {
    let fresh = replay.plain().await;
    let first = json!({"s": "x", "n": 1, "t": true, "z": null, "o": {"p": 1}, "l": [1, 2], "f": 1.5});
    fresh.put(&["u", "1"], "k1", first).await;
    fresh.put(&["u", "1"], "k2", json!({"s": "y", "n": 2, "t": false})).await;
    fresh.put(&["u", "2"], "k3", json!({"s": "x", "n": 10})).await;
    fresh.put(&["u1"], "k4", json!({"n": 3})).await;
    fresh.put(&["u", "1", "deep"], "k5", json!({"s": "z", "n": 5})).await;
    fresh
}

/// A filter from Python's source text of it.
fn filter(python: &str) -> Result<ItemFilter> {
    let json = python.replace('\'', "\"").replace("True", "true").replace("None", "null");
    ItemFilter::from_json(&serde_json::from_str(&json).unwrap())
}

async fn searches(replay: &mut Replay) {
    let fresh = with_items(replay).await;
    for (probe, prefix) in [
        ("search ('u','1') all", &["u", "1"][..]),
        ("search () all", &[]),
        ("search ('u',) prefix is segment-wise", &["u"]),
    ] {
        let found = found_in(&fresh, SearchOp::new(prefix)).await;
        replay.came(probe, found);
    }
    let mut search = SearchOp::new(());
    (search.limit, search.offset) = (2, 1);
    let found = found_in(&fresh, search.clone()).await;
    replay.came("search limit/offset", found);
    (search.limit, search.offset) = (0, 0);
    let found = found_in(&fresh, search).await;
    replay.came("search limit=0", found);
    let mut query = SearchOp::new(["u", "1"]);
    query.query = Some("x".into());
    let found = found_in(&fresh, query).await;
    replay.came("query without index", found);

    let Json::Object(recorded) = json_vectors("store_probes.json") else { panic!("no probes") };
    for probe in recorded.keys() {
        let Some(python) = probe.strip_prefix("filter ") else { continue };
        let found = match filter(python) {
            Ok(filter) => {
                let mut search = SearchOp::new(());
                search.filter = filter;
                fresh.search(search).await
            }
            Err(error) => Err(error),
        };
        let keys = |items: Vec<SearchItem>| {
            let mut keys: Vec<_> = items.iter().map(|found| found.item.key.to_string()).collect();
            keys.sort_unstable();
            json!(keys)
        };
        replay.came(probe, answer(found, keys));
    }
}

async fn listings(replay: &mut Replay) {
    let fresh = with_items(replay).await;
    let all = ListNamespacesOp::new;
    let prefix = |pattern: &[&'static str]| MatchCondition::Prefix(pattern.into());
    let suffix = |pattern: &[&'static str]| MatchCondition::Suffix(pattern.into());
    let matching = |conditions: &[MatchCondition]| {
        let mut list = all();
        list.match_conditions = conditions.to_vec();
        list
    };
    let mut shallow = all();
    shallow.max_depth = Some(1);
    let mut page = all();
    (page.max_depth, page.limit, page.offset) = (Some(2), 1, 1);
    for (probe, list) in [
        ("list_namespaces all", all()),
        ("list_namespaces prefix u", matching(&[prefix(&["u"])])),
        ("list_namespaces prefix u.*", matching(&[prefix(&["u", "*"])])),
        ("list_namespaces suffix 1", matching(&[suffix(&["1"])])),
        ("list_namespaces suffix *.deep", matching(&[suffix(&["*", "deep"])])),
        ("list_namespaces max_depth 1", shallow),
        ("list_namespaces max_depth 2 limit 1 offset 1", page),
        ("list_namespaces prefix+suffix", matching(&[prefix(&["u"]), suffix(&["deep"])])),
    ] {
        let listed = fresh.namespaces(list).await;
        replay.came(probe, listed);
    }
    fresh.put(&["gone"], "k", json!({})).await;
    fresh.store.delete(["gone"], "k").await.unwrap();
    let listed = fresh.namespaces(matching(&[prefix(&["gone"])])).await;
    replay.came("list_namespaces after deleting last item", listed);
}

/// Labels that a pattern would take for others.
async fn odd_prefixes(replay: &mut Replay) {
    const LABELS: [&str; 5] = ["user_1", "a%b", "x[1]", "st*r", "USER_1"];
    let fresh = replay.plain().await;
    for label in LABELS.into_iter().chain(["userX1", "aXb", "x1", "stXr"]) {
        fresh.put(&[label], "k", json!({})).await;
    }
    let mut found = json!({});
    for label in LABELS {
        let items = fresh.search(SearchOp::new([label])).await.unwrap();
        found[label] = items.iter().map(|found| found.item.namespace.to_text()).collect();
    }
    replay.came("search prefix metachars", found);
}

async fn batches(replay: &mut Replay) {
    let fresh = replay.plain().await;
    let put = |key: &'static str, v: i64| {
        Op::Put(PutOp::new(["n"], key, JsonObject::new(&json!({"v": v})).unwrap()))
    };
    let get = |key: &'static str| Op::Get(GetOp::new(["n"], key));
    fresh.store.batch(vec![put("k", 0)]).await.unwrap();
    let ops = vec![
        put("k", 1),
        get("k"),
        put("k", 2),
        Op::Search(SearchOp::new(["n"])),
        put("j", 1),
        get("j"),
        Op::Put(PutOp::delete(["n"], "j")),
        Op::ListNamespaces(ListNamespacesOp::new()),
    ];
    let results = fresh.store.batch(ops).await.unwrap();
    let mut came: Vec<Json> = results
        .iter()
        .map(|result| match result {
            OpResult::Item(Some(item)) => text_of(Some(item.value.decode().unwrap())),
            OpResult::Item(None) | OpResult::Done => Json::Null,
            OpResult::Items(items) => {
                items.iter().map(|found| found.item.value.decode::<Json>().unwrap()).collect()
            }
            OpResult::Namespaces(namespaces) => namespaces
                .iter()
                .map(|namespace| namespace.labels().iter().map(ToString::to_string).collect::<Json>())
                .collect(),
            other => panic!("{other:?}"),
        })
        .collect();
    for key in ["k", "j"] {
        let item = fresh.store.get(["n"], key).await.unwrap();
        came.push(item.map_or(Json::Null, |item| item.value.decode().unwrap()));
    }
    replay.came("batch: reads see pre-batch state; last put wins", came.into());
}

async fn with_documents(replay: &Replay, index: IndexConfig) -> Fresh {
    let fresh = replay.fresh(Some(index), TtlConfig::new()).await;
    let store = &fresh.store;
    store.put(["d"], "k1", json!({"text": "aaaa", "tags": ["b", "c"]})).await.unwrap();
    store.put(["d"], "k2", json!({"text": "bbbb"})).await.unwrap();
    store.put(["d"], "k3", json!({"text": "cccc"})).no_index().await.unwrap();
    store.put(["d"], "k4", json!({"other": "dddd"})).index(["other"]).await.unwrap();
    fresh
}

async fn queries(replay: &mut Replay) {
    let query = |text: &'static str| {
        let mut search = SearchOp::new(["d"]);
        search.query = Some(text.into());
        search
    };
    for (name, distance) in
        [("cosine", Distance::Cosine), ("l2", Distance::L2), ("inner_product", Distance::InnerProduct)]
    {
        let fresh = with_documents(replay, index(&["text"], distance)).await;
        let found = found_in(&fresh, query("a")).await;
        replay.came(format!("vector search {name}"), found);
    }
    let fresh = with_documents(replay, index(&["text", "tags[*]"], Distance::Cosine)).await;
    // Python recorded the first three: a fourth, in memory, has no vector.
    let found = found_in(&fresh, query("b")).await;
    replay.came("vector search multi field tags[*]", found);
    if replay.server.is_some() {
        let fields = "SELECT key, field_name FROM store_vectors ORDER BY key, field_name COLLATE \"C\"";
        let fields = fresh.rows(fields).await;
        replay.came("pg field_name rows", json!(fields));
    }
    let fresh = with_documents(replay, index(&["$"], Distance::Cosine)).await;
    let found = found_in(&fresh, query("b")).await;
    replay.came("vector search $ default", found);

    let fresh = replay.fresh(Some(index(&["text"], Distance::Cosine)), TtlConfig::new()).await;
    fresh.put(&["d"], "k", json!({"text": "a"})).await;
    assert_eq!(fresh.search(query("a")).await.unwrap().len(), 1);
    fresh.put(&["d"], "k", json!({"other": 1})).await;
    let mut left = Vec::new();
    for last in [false, true] {
        if last {
            fresh.store.delete(["d"], "k").await.unwrap();
        }
        let mut vectors = i64::try_from(fresh.search(query("a")).await.unwrap().len()).unwrap();
        if let Some(database) = &fresh.database {
            vectors += count(&database.client().await, "SELECT count(*) FROM store_vectors").await;
        }
        left.push(vectors);
    }
    replay.came(
        "stale vectors",
        json!({"vectors_after_overwrite_without_field": left[0], "after_delete": left[1]}),
    );
}

/// The texts that are embedded.
fn texts(replay: &mut Replay) {
    let Json::Object(recorded) = json_vectors("store_probes.json") else { panic!("no probes") };
    let object = r#"{"a": {"b": "x", "n": 1, "t": true, "z": null}, "l": [{"c": "p"}, {"c": "q"}, 3], "s": "str",
        "m": {"k1": "v1", "k2": "v2"}, "eé": [1]}"#;
    let object = JsonObject::from_text(object).unwrap();
    let index = index(&["$"], Distance::Cosine);
    let mut came = json!({});
    for path in recorded["get_text_at_path"].as_object().unwrap().keys() {
        let texts = index.texts(&object, &ItemIndex::Fields(vec![path.as_str().into()])).unwrap();
        let several = texts.len() > 1;
        for (at, text) in texts.iter().enumerate() {
            let name = if several { format!("{path}.{at}") } else { path.clone() };
            assert_eq!(text.field_name, name);
        }
        came[path] = texts.into_iter().map(|text| text.text).collect();
    }
    replay.came("get_text_at_path", came);
}

/// An item whose time is over, before and after it is swept.
async fn expiry(replay: &mut Replay) {
    // Whether expired items are left out is no option here.
    for probe in ["expired rows visible until sweep", "expired rows omit_expired"] {
        let fresh = replay.fresh(None, TtlConfig::new()).await;
        let store = &fresh.store;
        if fresh.database.is_some() {
            store.put(["t"], "k", json!({})).ttl(Duration::from_secs(600)).await.unwrap();
            fresh.execute("UPDATE store SET expires_at = now() - interval '1 second'").await;
        } else {
            store.put(["t"], "k", json!({})).ttl(Duration::from_millis(1)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let got = store.get(["t"], "k").await.unwrap().is_some();
        let found = store.search(["t"]).await.unwrap().len();
        let listed = store.list_namespaces().await.unwrap().len();
        let swept = store.sweep_ttl().await.unwrap();
        let came = json!({
            "expired_visible_get": got,
            "expired_visible_search": found,
            "listed": listed,
            "swept": swept,
            "after": store.get(["t"], "k").await.unwrap().is_some(),
        });
        replay.came(probe, came);
    }
}

type Configure = fn(PostgresStoreBuilder) -> PostgresStoreBuilder;

/// What setup makes. Python made it in `public`, and so does ours.
async fn tables(replay: &mut Replay) {
    let server = replay.server.clone().unwrap();
    let kinds: [(&str, &str, Configure); 4] = [
        ("default", "store%", |builder| builder.index(index(&["$"], Distance::Cosine))),
        ("hnsw halfvec", "store_vectors", |builder| {
            builder
                .index(index(&["$"], Distance::L2))
                .vector_type(VectorType::Halfvec)
                .ann_index(AnnIndex::hnsw().m(8).ef_construction(32))
        }),
        ("ivfflat", "store_vectors", |builder| {
            builder.index(index(&["$"], Distance::L2)).ann_index(AnnIndex::ivfflat(4))
        }),
        ("flat", "store_vectors", |builder| {
            builder.index(index(&["$"], Distance::Cosine)).ann_index(AnnIndex::Flat)
        }),
    ];
    for (name, tables, configure) in kinds {
        let fresh = Fresh::on_postgres(&server, configure).await;
        let indexes = format!(
            "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename LIKE '{tables}' \
             ORDER BY indexdef COLLATE \"C\""
        );
        let mut came: Vec<Json> =
            fresh.rows(&indexes).await.into_iter().map(|mut row| json!(row.remove(0))).collect();
        for row in fresh.rows("SELECT v FROM vector_migrations ORDER BY v").await {
            came.push(json!({"v": row[0].as_ref().unwrap().parse::<i64>().unwrap()}));
        }
        let column = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute \
            WHERE attrelid = 'store_vectors'::regclass AND attname = 'embedding'";
        came.push(json!(fresh.rows(column).await[0][0]));
        replay.came(format!("pg schema {name}"), came.into());
    }
}

async fn times_to_live(replay: &mut Replay) {
    let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
    let fresh = replay.fresh(None, TtlConfig::new().default_ttl(minutes(10))).await;
    fresh.store.put(["t"], "k", json!({})).ttl(Duration::from_secs(24)).await.unwrap();
    fresh.store.put(["t"], "k2", json!({})).await.unwrap();
    fresh.store.put(["t"], "k3", json!({})).no_ttl().await.unwrap();
    let table =
        "SELECT key, ttl_minutes, extract(epoch FROM expires_at - updated_at)::float FROM store ORDER BY key";
    let table = fresh.rows(table).await;
    let lives: Vec<_> = table.iter().map(|row| row[2].as_deref()).collect();
    assert_eq!(lives, [Some("24"), Some("600"), None], "they expire exactly then");
    let came: Json = table
        .iter()
        .map(|row| {
            json!({
                "key": row[0],
                "expires": row[2].is_some(),
                "ttl_minutes": row[1].as_deref().unwrap_or("None"),
            })
        })
        .collect();
    replay.came("ttl rows (default_ttl=10)", came);

    for (name, config) in [
        ("config {}", TtlConfig::new()),
        ("refresh_on_read True", TtlConfig::new().refresh_on_read(true)),
        ("refresh_on_read False", TtlConfig::new().refresh_on_read(false)),
        ("no ttl config", TtlConfig::default()),
    ] {
        let fresh = replay.fresh(None, config).await;
        let store = &fresh.store;
        store.put(["t"], "k", json!({})).ttl(minutes(10)).await.unwrap();
        let mut refreshed = Vec::new();
        for read in ["get without", "get", "search"] {
            // Later than now, so that it has not expired, and earlier than a refresh sets it.
            let until = fresh.rows("SELECT now() + interval '5 minutes'").await[0][0].clone().unwrap();
            fresh.execute(&format!("UPDATE store SET expires_at = '{until}'")).await;
            match read {
                "get without" => {
                    store.get(["t"], "k").refresh_ttl(false).await.unwrap();
                }
                "get" => {
                    store.get(["t"], "k").await.unwrap();
                }
                _ => {
                    store.search(["t"]).await.unwrap();
                }
            }
            let moved = format!("SELECT count(*) FROM store WHERE expires_at > '{until}'");
            let client = fresh.database.as_ref().unwrap().client().await;
            refreshed.push(count(&client, &moved).await == 1);
        }
        let came = json!({
            "no_refresh": !refreshed[0],
            "get_refreshes": refreshed[1],
            "search_refreshes": refreshed[2],
        });
        replay.came(format!("ttl refresh ({name})"), came);
    }
}

/// The same calls on each kind of store.
pub(crate) fn trials(module: &str) -> Vec<Trial> {
    let in_memory = || {
        in_runtime(replay(None));
        Ok(())
    };
    let on_postgres = || match Server::find(Kind::Postgres17) {
        Ok(server) => {
            in_runtime(replay(Some(server)));
            Ok(Completion::Completed)
        }
        Err(missing) => missing.end(),
    };
    vec![
        Trial::test(format!("{module}::every_probe_is_as_in_python::memory"), in_memory),
        Trial::ignorable_test(format!("{module}::every_probe_is_as_in_python::postgres"), on_postgres)
            .with_kind(Kind::Postgres17.name()),
    ]
}
