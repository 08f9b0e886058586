//! Rust's and Python's stores take turns with the items of one database, for each generation that shares it, and for both
//! of Python's stores on PostgreSQL.

use std::time::Duration;

use checkpoint_core::ErrorKind;
use checkpoint_core::store::{BaseStore, Namespace, StoreExt, TtlConfig};
use serde_json::{Value as Json, json};

use crate::shared::meeting::{Case, EXPIRED, Meeting, both_get, both_search, cases, of_found, owned, search};
use crate::shared::postgres::count;

/// Labels and keys that a query, a pattern or a path could take for something else.
const ODD: [&str; 18] = [
    "user_1",
    "userX1",
    "a%b",
    "*",
    "x[1]",
    "st*r",
    "quote's",
    "\"double\"",
    "back\\slash",
    "grüße",
    "世😀",
    "a b",
    "line\nfeed",
    "{}",
    "$1",
    "UPPER",
    "^(+|?)$",
    "%s",
];

fn values() -> Vec<Json> {
    vec![
        json!({}),
        json!({"text": "grüße 世😀 \"quoted\" \\ \u{1f}", "": "", "a.b": {"c": [1, [2, {}], null]}}),
        json!({"int": -1, "big": u64::MAX, "small": i64::MIN, "exact": 9_007_199_254_740_993_u64}),
        json!({"float": 1.5, "tiny": 5e-7, "true": true, "false": false, "null": null, "$eq": {"$gt": 1}}),
    ]
}

async fn items_by_turns(mut meeting: Meeting) {
    let store = meeting.set_up_by_python(None).await;
    let mut places: Vec<(Vec<&str>, &str, Json)> = Vec::new();
    let values = values();
    for (at, odd) in ODD.into_iter().enumerate() {
        places.push((vec![odd, "x"], odd, values[at % values.len()].clone()));
        places.push((vec!["deep", "er", odd], "k", values[(at + 1) % values.len()].clone()));
    }
    places.push((vec!["langgraphs"], "", json!({"empty": "key"})));
    places.push((vec!["a", "langgraph"], "k.k/k:k", json!({"dotted": "key"})));
    for (at, (namespace, key, value)) in places.iter().enumerate() {
        if at % 2 == 0 {
            meeting.python.run(&json!(["put", namespace, key, value]));
        } else {
            store.put(owned(namespace), (*key).to_owned(), value).await.unwrap();
        }
    }
    // Each changes what the other made, and itself made, and both agree about the times.
    for (at, (namespace, key, value)) in places.iter().enumerate() {
        let first = both_get(&mut meeting, &store, namespace, key).await;
        assert_eq!(&first["value"], value);
        let changed = json!({"changed": at});
        if at % 4 < 2 {
            meeting.python.run(&json!(["put", namespace, key, changed]));
        } else {
            store.put(owned(namespace), (*key).to_owned(), &changed).await.unwrap();
        }
        let second = both_get(&mut meeting, &store, namespace, key).await;
        assert_eq!((&second["value"], &second["created_at"]), (&changed, &first["created_at"]));
        assert!(second["updated_at"].as_i64() > first["updated_at"].as_i64());
    }
    let all = both_search(&mut meeting, &store, &[]).await;
    assert_eq!(all.len(), places.len());
    for odd in ODD {
        assert_eq!(both_search(&mut meeting, &store, &[odd]).await.len(), 1, "{odd}");
    }
    assert_eq!(both_search(&mut meeting, &store, &["deep", "er"]).await.len(), ODD.len());
    namespaces_are_listed_alike(&mut meeting, &store).await;
    for (at, (namespace, key, _)) in places.iter().enumerate() {
        if at % 3 == 0 {
            meeting.python.run(&json!(["delete", namespace, key]));
        } else {
            store.delete(owned(namespace), (*key).to_owned()).await.unwrap();
        }
        assert_eq!(both_get(&mut meeting, &store, namespace, key).await, Json::Null);
    }
    assert!(both_search(&mut meeting, &store, &[]).await.is_empty());
    assert_eq!(meeting.python.run(&json!(["namespaces"])), json!([]));
    assert!(store.list_namespaces().await.unwrap().is_empty());
}

async fn namespaces_are_listed_alike(meeting: &mut Meeting, store: &impl BaseStore) {
    let mut listings = vec![
        json!({"limit": 1000}),
        json!({"limit": 3, "offset": 2}),
        json!({"max_depth": 1}),
        json!({"max_depth": 2, "limit": 2, "offset": 3}),
        json!({"prefix": ["deep"], "max_depth": 2}),
        json!({"prefix": ["*", "er"]}),
        json!({"prefix": ["deep"], "suffix": ["*", "UPPER"]}),
        json!({"suffix": ["x"], "limit": 1000}),
        json!({"suffix": ["*", "*", "*"]}),
        json!({"prefix": ["none"]}),
    ];
    for odd in ODD {
        listings.push(json!({"prefix": [odd]}));
        listings.push(json!({"suffix": [odd]}));
    }
    for listing in listings {
        let python = meeting.python.run(&json!(["namespaces", listing]));
        let mut call = store.list_namespaces();
        let number =
            |name: &str| listing.get(name).map(|number| usize::try_from(number.as_u64().unwrap()).unwrap());
        let pattern = |name: &str| {
            let labels = listing.get(name)?.as_array().unwrap();
            Some(labels.iter().map(|label| label.as_str().unwrap().to_owned()).collect::<Namespace>())
        };
        if let Some(prefix) = pattern("prefix") {
            call = call.prefix(prefix);
        }
        if let Some(suffix) = pattern("suffix") {
            call = call.suffix(suffix);
        }
        if let Some(max_depth) = number("max_depth") {
            call = call.max_depth(max_depth);
        }
        call = call.limit(number("limit").unwrap_or(100)).offset(number("offset").unwrap_or(0));
        let rust: Vec<Vec<String>> = call
            .await
            .unwrap()
            .iter()
            .map(|namespace| namespace.labels().iter().map(ToString::to_string).collect())
            .collect();
        assert_eq!(json!(rust), python, "{listing}");
    }
}

/// Filters that find something else with Python, and what they find with Rust.
fn filters_that_differ() -> Vec<(Json, Json, &'static str)> {
    const TEXT: &str = "Python compares numbers as text";
    const NESTED: &str = "Python takes a key for an operator";
    vec![
        (json!({"n": {"$gt": 3}}), json!(["ten", "big"]), TEXT),
        (json!({"n": {"$gte": 3}}), json!(["three", "ten", "big"]), TEXT),
        (json!({"n": {"$lt": 3}}), json!(["minus", "half"]), TEXT),
        (json!({"n": {"$lte": 10}}), json!(["minus", "half", "three", "ten"]), TEXT),
        (json!({"n": {"$gt": -2, "$lt": 1}}), json!(["minus", "half"]), TEXT),
        (json!({"s": {"$gt": 1}}), json!([]), "Python compares a text with the number's text"),
        (json!({"t": {"$gte": "false"}}), json!([]), "Python compares a boolean's text"),
        (json!({"o": {"p": 1}}), json!(["object", "objects"]), NESTED),
        (json!({"o": {"p": {"$gt": 0}}}), json!(["object", "objects"]), NESTED),
        (json!({"o": {}}), json!(["object", "objects"]), "for Python, no condition at all"),
        (json!({"l": [{"$gt": 0}, 2]}), json!(["list"]), "Python looks for the same list"),
    ]
}

async fn filters(mut meeting: Meeting) {
    let store = meeting.set_up_by_rust(None).await;
    let items = json!({
        "minus": {"n": -1.5}, "half": {"n": 0.5}, "three": {"n": 3}, "ten": {"n": 10.0}, "big": {"n": 123_456_789},
        "text": {"s": "b"}, "upper": {"s": "B"}, "accent": {"s": "é"}, "empty": {"s": ""}, "digits": {"s": "10"},
        "true": {"t": true}, "false": {"t": false}, "null": {"z": null},
        "object": {"o": {"p": 1}}, "objects": {"o": {"p": 1, "q": {"r": [1]}}},
        "list": {"l": [1, 2]}, "lists": {"l": [[1], {"p": null}]},
        "dotted": {"a.b": 1}, "nested": {"a": {"b": 1}}, "odd": {"it's %s \" \\ $x": 1, "": 2},
    });
    for (at, (key, value)) in items.as_object().unwrap().iter().enumerate() {
        if at % 2 == 0 {
            meeting.python.run(&json!(["put", ["f"], key, value]));
        } else {
            store.put(["f"], key.clone(), value).await.unwrap();
        }
    }
    let same = [
        json!({}),
        json!({"n": 3}),
        json!({"n": 3.0}),
        json!({"n": 10}),
        json!({"n": "3"}),
        json!({"n": {"$eq": 0.5}}),
        json!({"n": {"$ne": 3}}),
        json!({"n": {"$ne": null}}),
        json!({"s": "b"}),
        json!({"s": {"$gt": "B"}}),
        json!({"s": {"$gte": "b"}}),
        json!({"s": {"$lt": "b"}}),
        json!({"s": {"$lte": "é", "$gt": ""}}),
        json!({"t": true}),
        json!({"t": {"$ne": true}}),
        json!({"t": 1}),
        json!({"z": null}),
        json!({"z": {"$eq": null}}),
        json!({"z": {"$ne": 1}}),
        json!({"missing": null}),
        json!({"missing": {"$ne": 1}}),
        json!({"o": {"$eq": {"p": 1}}}),
        json!({"o": {"$eq": {"q": {"r": [1]}, "p": 1.0}}}),
        json!({"o": {"$ne": {"p": 1}}}),
        json!({"l": [1, 2]}),
        json!({"l": [2, 1]}),
        json!({"l": [1]}),
        json!({"l": 1}),
        json!({"l": {"$eq": [[1], {"p": null}]}}),
        json!({"a.b": 1}),
        json!({"a": {"$eq": {"b": 1}}}),
        json!({"it's %s \" \\ $x": 1}),
        json!({"": 2}),
        json!({"n": {"$ne": 3}, "s": "b"}),
    ];
    let mut hits = 0;
    for filter in same {
        let found = of_found(&search(&store, &["f"], &filter, None).await.unwrap());
        hits += found.as_array().unwrap().len();
        let python = meeting.python.run(&json!(["search", ["f"], {"filter": filter, "limit": 1000}]));
        assert_eq!(found, python, "{filter}");
    }
    assert_eq!(hits, 59, "they find something");
    for (filter, ours, why) in filters_that_differ() {
        let keys = |items: &Json| {
            let mut keys: Vec<_> = items
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item["key"].as_str().unwrap().to_owned())
                .collect();
            keys.sort_unstable();
            keys
        };
        let found = of_found(&search(&store, &["f"], &filter, None).await.unwrap());
        let mut ours: Vec<_> = ours.as_array().unwrap().iter().map(|key| key.as_str().unwrap()).collect();
        ours.sort_unstable();
        assert_eq!(keys(&found), ours, "{filter}: {why}");
        match meeting.python.call(&json!(["search", ["f"], {"filter": filter, "limit": 1000}])) {
            Ok(python) => assert_ne!(keys(&python), ours, "{filter}: no difference"),
            Err(error) => assert!(error.contains("Unsupported operator"), "{filter}: {error}"),
        }
    }
    let unknown = json!({"n": {"$in": [1]}});
    let error = search(&store, &["f"], &unknown, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let error = meeting.python.call(&json!(["search", ["f"], {"filter": unknown}])).unwrap_err();
    assert!(error.contains("Unsupported operator: $in"), "{error}");
}

/// Has every time to live end in half an hour, and returns when that is.
async fn in_half_an_hour(meeting: &Meeting) -> String {
    let until = meeting.rows("SELECT now() + interval '30 minutes'").await[0][0].clone().unwrap();
    let set = format!("UPDATE store SET expires_at = '{until}' WHERE ttl_minutes IS NOT NULL");
    meeting.execute(&set).await;
    until
}

/// How many times to live do not end then any more.
async fn refreshed(meeting: &Meeting, until: &str) -> i64 {
    let moved =
        format!("SELECT count(*) FROM store WHERE ttl_minutes IS NOT NULL AND expires_at <> '{until}'");
    count(&meeting.database.client().await, &moved).await
}

/// How long items live: what they are prolonged by, and what they began with.
const LIVES: &str =
    "SELECT key, ttl_minutes, extract(epoch FROM expires_at - updated_at)::float FROM store ORDER BY key";

async fn times_to_live(mut meeting: Meeting) {
    let ttl = TtlConfig::new().default_ttl(Duration::from_secs(3600));
    let store = meeting.rust(None, ttl);
    store.setup().await.unwrap();
    meeting.open(None, &json!({"default_ttl": 60}));
    meeting.python.run(&json!(["setup"]));
    let minutes = |minutes: f64| Duration::from_secs_f64(minutes * 60.0);
    for (key, ttl) in [("whole", 50.0), ("half", 41.5), ("less", 0.4)] {
        meeting.python.run(&json!(["put", ["p"], format!("p-{key}"), {}, {"ttl": ttl}]));
        store.put(["r"], format!("r-{key}"), json!({})).ttl(minutes(ttl)).await.unwrap();
    }
    for (key, call) in [("default", json!({})), ("never", json!({"ttl": null}))] {
        meeting.python.run(&json!(["put", ["p"], format!("p-{key}"), {}, call]));
    }
    store.put(["r"], "r-default", json!({})).await.unwrap();
    store.put(["r"], "r-never", json!({})).no_ttl().await.unwrap();
    let some = |text: &str| Some(text.to_owned());
    let row = |key: &str, minutes: &str, seconds: &str| vec![some(key), some(minutes), some(seconds)];
    let never = |key: &str| vec![some(key), None, None];
    let lives = meeting.rows(LIVES).await;
    let python = [
        row("p-default", "60", "3600"),
        row("p-half", "42", "2490"),
        row("p-less", "0", "24"),
        never("p-never"),
        row("p-whole", "50", "3000"),
    ];
    assert_eq!(lives[..5], python);
    // Python rounds to the even whole, so that a refresh ends the life of what had less than half a minute.
    let rust = [
        row("r-default", "60", "3600"),
        row("r-half", "42", "2490"),
        row("r-less", "1", "24"),
        never("r-never"),
        row("r-whole", "50", "3000"),
    ];
    assert_eq!(lives[5..], rust);

    let until = in_half_an_hour(&meeting).await;
    for (key, moved) in [("p-default", 1), ("p-half", 2), ("p-never", 2), ("p-whole", 3)] {
        store.get(["p"], key).await.unwrap().unwrap();
        assert_eq!(refreshed(&meeting, &until).await, moved, "{key}");
    }
    for (key, moved) in [("r-default", 4), ("r-half", 5), ("r-less", 6), ("r-never", 6), ("r-whole", 7)] {
        meeting.python.run(&json!(["get", ["r"], key]));
        assert_eq!(refreshed(&meeting, &until).await, moved, "{key}");
    }
    // What Python has rounded to nothing does not end when Rust reads it.
    for _ in 0..2 {
        assert!(store.get(["p"], "p-less").await.unwrap().is_some());
    }

    let until = in_half_an_hour(&meeting).await;
    meeting.python.run(&json!(["search", ["r"], {"refresh_ttl": false}]));
    search(&store, &["none"], &json!({}), None).await.unwrap();
    assert_eq!(refreshed(&meeting, &until).await, 0);
    assert_eq!(search(&store, &["p"], &json!({}), None).await.unwrap().len(), 5);
    assert_eq!(refreshed(&meeting, &until).await, 3);
    meeting.python.run(&json!(["search", ["r"]]));
    assert_eq!(refreshed(&meeting, &until).await, 7);

    // A put without a time to live ends what the other had set.
    meeting.python.run(&json!(["put", ["r"], "r-whole", {}, {"ttl": null}]));
    store.put(["p"], "p-whole", json!({})).no_ttl().await.unwrap();
    let lives = meeting.rows(LIVES).await;
    assert_eq!([&lives[4], &lives[9]], [&never("p-whole"), &never("r-whole")]);
    expired(meeting, store).await;
}

async fn expired(mut meeting: Meeting, store: impl BaseStore) {
    meeting.execute(EXPIRED).await;
    let before = meeting.python.run(&json!(["get", ["p"], "p-half", {"refresh_ttl": false}]));
    assert!(before.is_object(), "Python sees what has expired");
    assert!(store.get(["p"], "p-half").await.unwrap().is_none());
    assert_eq!(search(&store, &[], &json!({}), None).await.unwrap().len(), 4);
    assert_eq!(store.list_namespaces().await.unwrap().len(), 2);
    // Reading does not bring it back, and a put begins a new item.
    meeting.open(None, &json!({"omit_expired": true}));
    assert_eq!(both_get(&mut meeting, &store, &["p"], "p-half").await, Json::Null);
    assert_eq!(both_search(&mut meeting, &store, &[]).await.len(), 4);
    store.put(["p"], "p-half", json!({"new": true})).no_ttl().await.unwrap();
    let new = both_get(&mut meeting, &store, &["p"], "p-half").await;
    assert!(new["created_at"].as_i64() > before["created_at"].as_i64());
    assert_eq!(new["created_at"], new["updated_at"]);
    assert_eq!(both_search(&mut meeting, &store, &[]).await.len(), 5);
    assert_eq!(store.sweep_ttl().await.unwrap(), 5);
    assert_eq!(meeting.python.run(&json!(["sweep"])), 0);
    for (namespace, ours) in [("p", true), ("r", false)] {
        let ttl = json!({"ttl": 1});
        store.put([namespace], "last", json!({})).ttl(Duration::from_secs(60)).await.unwrap();
        meeting.python.run(&json!(["put", [namespace], "most", {}, ttl]));
        meeting.execute(EXPIRED).await;
        if ours {
            assert_eq!(store.sweep_ttl().await.unwrap(), 2);
        } else {
            assert_eq!(meeting.python.run(&json!(["sweep"])), 2);
        }
    }
    assert_eq!(both_search(&mut meeting, &store, &[]).await.len(), 5);
}

pub(crate) fn cases() -> &'static [Case] {
    cases![items_by_turns, filters, times_to_live]
}
