//! Rust's and Python's stores take turns with the vectors of one database: what one of them wrote the other finds, with
//! the same score.

use std::time::Duration;

use checkpoint_conformance::Missing;
use checkpoint_core::store::{BaseStore, Distance, JsonObject, Op, PutOp, StoreExt, TtlConfig};
use serde_json::{Value as Json, json};
use store_postgres::{AnnIndex, VectorType};

use crate::shared::meeting::{
    Case, EXPIRED, Index, Meeting, Python, both_get, both_search, cases, of_found, search,
};
use crate::shared::postgres::count;
use crate::shared::pythons;

/// Puts the same documents under a label on each side.
async fn put_documents(meeting: &mut Meeting, store: &impl BaseStore) {
    let documents = [
        ("plain", json!({"text": "the quick brown fox"}), json!(null)),
        (
            "tagged",
            json!({"text": "jumps over", "tags": ["lazy", "dog", 7, true, null, {"b": 1, "a": "é"}]}),
            json!(null),
        ),
        ("one", json!({"tags": ["single"]}), json!(null)),
        (
            "path",
            json!({"text": "not this", "meta": {"title": "but this", "n": [1.5, 2]}}),
            json!(["meta.title", "meta.n[*]"]),
        ),
        ("whole", json!({"all": {"z": 1, "a": {"ü": "😀", "b": [1, 2.5, "x"]}}}), json!(["all"])),
        ("braces", json!({"a": "first", "b": {"c": "second"}}), json!(["{a,b.c}", "a"])),
        ("off", json!({"text": "the quick brown fox"}), json!(false)),
        ("none", json!({"other": 1}), json!(null)),
    ];
    for (key, value, index) in documents {
        meeting.python.run(&json!(["put", ["python"], key, value, {"index": index}]));
        let put = store.put(["rust"], key, &value);
        match index {
            Json::Array(paths) => put.index(paths.iter().map(|path| path.as_str().unwrap().to_owned())).await,
            Json::Bool(_) => put.no_index().await,
            _ => put.await,
        }
        .unwrap();
    }
}

/// The vectors under a label.
async fn vectors(meeting: &Meeting, label: &str) -> Vec<Vec<Option<String>>> {
    let vectors = format!(
        "SELECT key, field_name, embedding FROM store_vectors WHERE prefix = '{label}' \
         ORDER BY key, field_name COLLATE \"C\""
    );
    meeting.rows(&vectors).await
}

async fn both_query(
    meeting: &mut Meeting,
    store: &impl BaseStore,
    prefix: &[&str],
    filter: &Json,
    query: &str,
) -> usize {
    // What comes first of equals is chance with Python.
    let sorted = |items: &Json| {
        let mut items: Vec<_> = items
            .as_array()
            .unwrap()
            .iter()
            .map(|item| (item["score"].as_f64().unwrap(), item["key"].to_string(), item["value"].to_string()))
            .collect();
        items.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| (&a.1, &a.2).cmp(&(&b.1, &b.2))));
        items
    };
    let call = json!(["search", prefix, {"filter": filter, "query": query, "limit": 1000}]);
    let python = meeting.python.run(&call);
    let rust = of_found(&search(store, prefix, filter, Some(query)).await.unwrap());
    let (python, rust) = (sorted(&python), sorted(&rust));
    assert_eq!(rust, python, "{query}");
    rust.len()
}

fn indexes() -> Vec<Index> {
    let mut all = Vec::new();
    for distance in [Distance::Cosine, Distance::L2, Distance::InnerProduct] {
        for vector_type in [VectorType::Vector, VectorType::Halfvec] {
            for ann in [AnnIndex::hnsw().m(8).ef_construction(32), AnnIndex::ivfflat(1), AnnIndex::Flat] {
                all.push(Index { distance, vector_type, ann });
            }
        }
    }
    all
}

async fn vectors_are_the_same(mut meeting: Meeting) {
    for (at, index) in indexes().into_iter().enumerate() {
        if at > 0 {
            meeting.move_on().await;
        }
        // Python's asynchronous store cannot set up without an index of vectors.
        let by_rust = at % 2 == 0 || (meeting.asynchronous && index.ann == AnnIndex::Flat);
        let store = if by_rust {
            let store = meeting.rust(Some(index), TtlConfig::new());
            store.setup().await.unwrap();
            meeting.open(Some(index), &Json::Null);
            store
        } else {
            meeting.set_up_by_python(Some(index)).await
        };
        put_documents(&mut meeting, &store).await;
        let python = vectors(&meeting, "python").await;
        assert_eq!(vectors(&meeting, "rust").await, python, "{index:?}");
        assert_eq!(python.len(), 15, "{index:?}");
        for query in ["the quick brown fox", "dog", "but this", "{\"a\": 1}"] {
            for prefix in [&["python"][..], &["rust"], &[]] {
                let found = both_query(&mut meeting, &store, prefix, &json!({}), query).await;
                assert_eq!(found, if prefix.is_empty() { 12 } else { 6 }, "{index:?}");
            }
            let filter = json!({"text": {"$ne": "jumps over"}});
            assert_eq!(both_query(&mut meeting, &store, &[], &filter, query).await, 4, "{index:?}");
        }
    }
}

/// Whoever puts or deletes an item, its vectors are those of its value. Python leaves those of fields that are gone.
async fn vectors_follow_their_items(mut meeting: Meeting) {
    let index = Some(Index::default());
    let store = meeting.set_up_by_rust(index).await;
    put_documents(&mut meeting, &store).await;
    let fields = async |meeting: &Meeting, label: &str, key: &str| -> Vec<String> {
        let all = vectors(meeting, label).await;
        all.into_iter()
            .filter(|row| row[0].as_deref() == Some(key))
            .map(|mut row| row.swap_remove(1).unwrap())
            .collect()
    };
    let changed = json!({"text": "jumps", "tags": ["lazy"]});
    meeting.python.run(&json!(["put", ["rust"], "tagged", changed]));
    store.put(["python"], "tagged", &changed).await.unwrap();
    let by_rust = vec!["tags[*]".to_owned(), "text".to_owned()];
    assert_eq!(fields(&meeting, "python", "tagged").await, by_rust);
    let by_python = fields(&meeting, "rust", "tagged").await;
    assert!(by_rust.iter().all(|field| by_python.contains(field)) && by_python.len() == 7, "{by_python:?}");
    // Put by Rust they are what they should be, also when they are no longer indexed.
    store.put(["rust"], "tagged", &changed).await.unwrap();
    assert_eq!(vectors(&meeting, "rust").await, vectors(&meeting, "python").await);
    store.put(["python"], "tagged", &changed).no_index().await.unwrap();
    assert!(fields(&meeting, "python", "tagged").await.is_empty());
    both_query(&mut meeting, &store, &[], &json!({}), "jumps").await;

    store.delete(["python"], "plain").await.unwrap();
    meeting.python.run(&json!(["delete", ["rust"], "plain"]));
    for label in ["python", "rust"] {
        assert!(fields(&meeting, label, "plain").await.is_empty(), "{label}");
    }
    both_query(&mut meeting, &store, &[], &json!({}), "the quick brown fox").await;

    let one = JsonObject::new(&json!({"text": "lives"})).unwrap();
    for (by_rust, key) in [(true, "python's"), (false, "rust's")] {
        if by_rust {
            meeting.python.run(&json!(["put", ["ttl"], key, {"text": "lives"}, {"ttl": 1}]));
        } else {
            store.put(["ttl"], key, &one).ttl(Duration::from_secs(60)).await.unwrap();
        }
        assert_eq!(both_query(&mut meeting, &store, &["ttl"], &json!({}), "lives").await, 1);
        meeting.execute(EXPIRED).await;
        assert!(search(&store, &["ttl"], &json!({}), Some("lives")).await.unwrap().is_empty());
        let swept = if by_rust {
            json!(store.sweep_ttl().await.unwrap())
        } else {
            meeting.python.run(&json!(["sweep"]))
        };
        assert_eq!(swept, 1);
        assert!(vectors(&meeting, "ttl").await.is_empty());
    }
}

/// As a path of one item, `$` is the whole value for Rust, and for Python a key that nothing has.
async fn the_whole_value_of_one_item(mut meeting: Meeting) {
    let store = meeting.set_up_by_rust(Some(Index::default())).await;
    let value = json!({"text": "of the store's own field"});
    meeting.python.run(&json!(["put", ["python"], "k", value, {"index": ["$"]}]));
    store.put(["rust"], "k", &value).index(["$"]).await.unwrap();
    assert!(vectors(&meeting, "python").await.is_empty());
    let by_rust = vectors(&meeting, "rust").await;
    let [row] = by_rust.as_slice() else { panic!("{by_rust:?}") };
    assert_eq!(row[1].as_deref(), Some("$"));
    assert_eq!(both_query(&mut meeting, &store, &[], &json!({}), "store").await, 1);
}

/// For Rust an empty query is one, for Python it is none.
async fn the_empty_query(mut meeting: Meeting) {
    let store = meeting.set_up_by_rust(Some(Index::default())).await;
    store.put(["q"], "text", json!({"text": "some"})).await.unwrap();
    store.put(["q"], "none", json!({"other": 1})).await.unwrap();
    let Json::Array(python) = meeting.python.run(&json!(["search", ["q"], {"query": ""}])) else {
        panic!("no list")
    };
    assert_eq!(python.len(), 2);
    assert!(python.iter().all(|item| item["score"].is_null()));
    let rust = search(&store, &["q"], &json!({}), Some("")).await.unwrap();
    let [one] = rust.as_slice() else { panic!("{rust:?}") };
    assert!(&*one.item.key == "text" && one.score.is_some_and(|score| 0.0 < score && score < 1.0));
}

async fn batches(mut meeting: Meeting) {
    let store = meeting.set_up_by_python(Some(Index::default())).await;
    let put = |key: &str, text: &str| {
        Op::Put(PutOp::new(["b"], key.to_owned(), JsonObject::new(&json!({"text": text})).unwrap()))
    };
    store.batch(vec![put("a", "first"), put("b", "second"), put("c", "third")]).await.unwrap();
    let results = meeting.python.run(&json!(["batch", [
        ["put", {"namespace": ["b"], "key": "a", "value": {"text": "changed"}}],
        ["get", {"namespace": ["b"], "key": "a"}],
        ["put", {"namespace": ["b"], "key": "b"}],
        ["search", {"prefix": ["b"], "query": "third", "limit": 1}],
        ["put", {"namespace": ["b"], "key": "d", "value": {"text": "fourth"}}],
        ["list", {"match": [["prefix", ["b"]]]}],
    ]]));
    assert_eq!(
        (&results[1]["value"], &results[3][0]["key"], &results[5]),
        (&json!({"text": "first"}), &json!("c"), &json!([["b"]]),)
    );
    store.batch(vec![put("e", "fifth"), Op::Put(PutOp::delete(["b"], "d")), put("e", "last")]).await.unwrap();
    let mut keys: Vec<_> =
        both_search(&mut meeting, &store, &["b"]).await.iter().map(|item| item["key"].to_string()).collect();
    keys.sort();
    assert_eq!(keys, ["\"a\"", "\"c\"", "\"e\""]);
    for text in ["changed", "third", "last"] {
        assert_eq!(both_query(&mut meeting, &store, &["b"], &json!({}), text).await, 3);
    }
}

/// What one generation made goes on under Rust and the other.
async fn across_generations(mut meeting: Meeting) -> Result<(), Missing> {
    let other = pythons::other(meeting.at)?;
    let index = Some(Index::default());
    let store = meeting.set_up_by_python(index).await;
    put_documents(&mut meeting, &store).await;
    let first = both_search(&mut meeting, &store, &[]).await;
    meeting.python = Python::start(&other, meeting.asynchronous);
    meeting.open(index, &Json::Null);
    meeting.python.run(&json!(["setup"]));
    store.setup().await.unwrap();
    assert_eq!(both_search(&mut meeting, &store, &[]).await, first);
    put_documents(&mut meeting, &store).await;
    assert_eq!(vectors(&meeting, "rust").await, vectors(&meeting, "python").await);
    assert_eq!(both_query(&mut meeting, &store, &[], &json!({}), "lazy dog").await, 12);
    Ok(())
}

/// What Python sends for a put, without the end of its transaction.
const PUT_BY_PYTHON: &str = "
    BEGIN;
    INSERT INTO store (prefix, key, value, created_at, updated_at, expires_at, ttl_minutes)
    VALUES ('w', 'KEY', '{\"tags\": [\"a\"]}', CURRENT_TIMESTAMP, CURRENT_TIMESTAMP, NULL, NULL)
    ON CONFLICT (prefix, key) DO UPDATE SET value = EXCLUDED.value, updated_at = CURRENT_TIMESTAMP,
        expires_at = EXCLUDED.expires_at, ttl_minutes = EXCLUDED.ttl_minutes;
    INSERT INTO store_vectors (prefix, key, field_name, embedding, created_at, updated_at)
    VALUES ('w', 'KEY', 'tags[*]', '[1,2,3,4,5,6,7,8]', CURRENT_TIMESTAMP, CURRENT_TIMESTAMP)
    ON CONFLICT (prefix, key, field_name) DO UPDATE SET embedding = EXCLUDED.embedding,
        updated_at = CURRENT_TIMESTAMP";

/// A put that had to wait for one by Python replaces the vectors that it could not see yet when it began.
async fn a_put_that_waits_for_python(mut meeting: Meeting) {
    let store = meeting.set_up_by_python(Some(Index::default())).await;
    store.put(["w"], "there", json!({"text": "before"})).await.unwrap();
    let watch = meeting.database.client().await;
    let waits = "SELECT count(*) FROM pg_stat_activity \
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    for key in ["there", "new"] {
        let python = meeting.database.client().await;
        python.batch_execute(&PUT_BY_PYTHON.replace("KEY", key)).await.unwrap();
        let put = {
            let store = store.clone();
            tokio::spawn(async move { store.put(["w"], key, json!({"text": "after"})).await })
        };
        while count(&watch, waits).await == 0 {
            assert!(!put.is_finished(), "it did not wait for Python's");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        python.batch_execute("COMMIT").await.unwrap();
        put.await.unwrap().unwrap();
        let found = both_get(&mut meeting, &store, &["w"], key).await;
        assert_eq!(found["value"], json!({"text": "after"}));
        let fields = format!("SELECT field_name FROM store_vectors WHERE prefix = 'w' AND key = '{key}'");
        assert_eq!(meeting.rows(&fields).await, [[Some("text".to_owned())]], "{key}");
    }
}

/// Both put items, vectors and all, under the same keys at the same time. Nobody fails, and the vectors of an item are
/// those of the value that was put last.
async fn both_at_once(mut meeting: Meeting) {
    const ROUNDS: usize = 40;
    const SHARED: usize = 4;
    let store = meeting.set_up_by_rust(Some(Index::default())).await;
    for round in 0..ROUNDS {
        let own = json!(["put", ["python"], round.to_string(), {"text": format!("python {round}")}]);
        meeting.python.tell(&own);
        let shared = json!({"text": format!("python {round}"), "tags": ["python", round.to_string()]});
        meeting.python.tell(&json!(["put", ["shared"], (round % SHARED).to_string(), shared]));
    }
    for round in 0..ROUNDS {
        let mut puts = vec![Op::Put(PutOp::new(
            ["rust"],
            round.to_string(),
            JsonObject::new(&json!({"text": format!("rust {round}")})).unwrap(),
        ))];
        for key in 0..SHARED {
            let value = JsonObject::new(&json!({"text": format!("rust {round} {key}")})).unwrap();
            puts.push(Op::Put(PutOp::new(["shared"], key.to_string(), value)));
        }
        store.batch(puts).await.unwrap();
    }
    for command in 0..2 * ROUNDS {
        meeting.python.answer().unwrap_or_else(|error| panic!("command {command}: {error}"));
    }
    assert_eq!(both_search(&mut meeting, &store, &["rust"]).await.len(), ROUNDS);
    assert_eq!(both_search(&mut meeting, &store, &["python"]).await.len(), ROUNDS);
    let shared = both_search(&mut meeting, &store, &["shared"]).await;
    assert_eq!(shared.len(), SHARED);
    for item in shared {
        let (key, value) = (item["key"].as_str().unwrap(), &item["value"]);
        let vectors = async |meeting: &Meeting, label: &str| {
            let all = vectors(meeting, label).await;
            all.into_iter().filter(|row| row[0].as_deref() == Some(key)).collect::<Vec<_>>()
        };
        let found = vectors(&meeting, "shared").await;
        store.put(["again"], key.to_owned(), value).await.unwrap();
        let wanted = vectors(&meeting, "again").await;
        if value.get("tags").is_some() {
            assert_eq!(found, wanted, "Python's {value}");
        } else {
            assert_eq!(found, wanted, "Rust's {value}");
        }
    }
}

pub(crate) fn cases() -> &'static [Case] {
    cases![
        vectors_are_the_same,
        vectors_follow_their_items,
        the_whole_value_of_one_item,
        the_empty_query,
        batches,
        across_generations,
        a_put_that_waits_for_python,
        both_at_once
    ]
}
