//! `ckpt store` on PostgreSQL. Each test has a database of its own.

#![expect(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a test fails by panicking; texts are short"
)]

#[path = "../../embeddings/tests/shared/mod.rs"]
mod embedder;
#[path = "../../tests/tests/shared/postgres.rs"]
mod postgres;
#[path = "../../tests/tests/shared/server.rs"]
mod server;
mod shared;
#[path = "../../tests/tests/shared/trials.rs"]
mod trials;

use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};

use serde_json::{Value as Json, json};

use embedder::Reply;
use postgres::{Database, Server, count, in_runtime};
use shared::{blocking, ckpt, failure, text};

const NGRAMS: [&str; 4] = ["--embed", "ngrams", "--embed-dims", "64"];

fn main() -> ExitCode {
    postgres::run(blocking![
        items_are_put_found_and_deleted,
        items_expire_and_are_swept,
        reads_do_not_refresh_the_ttl_by_default,
        queries_find_items_put_with_vectors,
        a_put_without_vectors_deletes_the_old_ones,
        a_model_embeds,
        invalid_arguments_are_reported,
        the_examples_of_help_work,
        the_suite_of_stores_runs,
    ])
}

/// A database with the tables of a store.
fn database(server: &Server, setup: &[&str]) -> Database {
    let database = in_runtime(Database::create(server.url()));
    store(&database, &[&["setup"], setup].concat());
    database
}

fn run(database: &Database, arguments: &[&str]) -> Output {
    ckpt().env("CKPT_URL", database.url()).arg("store").args(arguments).output().unwrap()
}

fn store(database: &Database, arguments: &[&str]) -> String {
    text(&run(database, arguments))
}

fn lines(database: &Database, arguments: &[&str]) -> Vec<Json> {
    let output = store(database, &[arguments, &["--json"]].concat());
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn keys(database: &Database, arguments: &[&str]) -> Vec<String> {
    let found = lines(database, &[&["search"], arguments].concat());
    found.iter().map(|item| item["key"].as_str().unwrap().to_owned()).collect()
}

fn number(database: &Database, sql: &str) -> i64 {
    in_runtime(async { count(&database.client().await, sql).await })
}

fn items_are_put_found_and_deleted(server: &Server) {
    let database = in_runtime(Database::create(server.url()));
    let before = failure(&run(&database, &["get", "users.ann", "prefs"]), 4);
    assert!(before.contains("`ckpt store setup`"), "{before}");
    for _ in 0..2 {
        assert_eq!(store(&database, &["setup"]), "The store's tables are ready.\n");
    }
    assert!(store(&database, &["setup", "--filter-index", "--json"]).contains("\"ready\":true"));

    let big = r#"{"theme": "dark", "n": 123456789012345678901234567890, "l": [1.50, {}]}"#;
    assert_eq!(store(&database, &["put", "users.ann", "prefs", big]), "Put prefs into users.ann.\n");
    let mut put = ckpt()
        .env("CKPT_URL", database.url())
        .args(["store", "put", "users.bob", "", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    put.stdin.take().unwrap().write_all(b"{\n \"visits\": 12\n}\n").unwrap();
    let put: Json = serde_json::from_str(&text(&put.wait_with_output().unwrap())).unwrap();
    assert_eq!(put, json!({ "put": "", "namespace": ["users", "bob"] }));
    store(&database, &["put", "runs", "1", r#"{"visits": 9}"#]);

    let shown = store(&database, &["get", "users.ann", "prefs"]);
    for part in ["users.ann", "prefs", "\n  \"theme\": \"dark\"", "123456789012345678901234567890", "1.50"] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    let shown = store(&database, &["get", "users.ann", "prefs", "--json"]);
    assert!(shown.contains("123456789012345678901234567890"), "{shown}");
    let item = &lines(&database, &["get", "users.bob", ""])[0];
    assert_eq!((&item["namespace"], &item["value"]), (&json!(["users", "bob"]), &json!({ "visits": 12 })));
    assert_eq!(item["created_at"], item["updated_at"]);
    assert!(item.get("score").is_none());

    assert_eq!(keys(&database, &[]), ["1", "", "prefs"]);
    assert_eq!(keys(&database, &["users"]), ["", "prefs"]);
    assert_eq!(keys(&database, &["users", "--limit", "1", "--offset", "1"]), ["prefs"]);
    assert_eq!(keys(&database, &["--filter", r#"{"visits": {"$gte": 10}}"#]), [""]);
    let found = store(&database, &["search", "users"]);
    assert!(found.contains("users.bob ''") && found.ends_with("2 items\n"), "{found}");

    assert_eq!(store(&database, &["namespaces"]), "runs\nusers.ann\nusers.bob\n3 namespaces\n");
    let listed = lines(&database, &["namespaces", "--prefix", "users.*", "--limit", "1", "--offset", "1"]);
    assert_eq!(listed, [json!({ "namespace": ["users", "bob"] })]);
    assert_eq!(store(&database, &["namespaces", "--suffix", "ann"]), "users.ann\n1 namespace\n");
    assert_eq!(store(&database, &["namespaces", "--max-depth", "1"]), "runs\nusers\n2 namespaces\n");

    assert!(failure(&run(&database, &["delete", "runs", "1"]), 2).contains("--yes"));
    assert_eq!(store(&database, &["delete", "runs", "1", "--yes"]), "Deleted 1 of runs.\n");
    for gone in [&["delete", "runs", "1", "--yes"][..], &["get", "runs", "1"]] {
        assert!(failure(&run(&database, gone), 3).contains("`ckpt store search runs`"));
    }
    assert_eq!(store(&database, &["search", "runs"]), "0 items\n");
}

fn items_expire_and_are_swept(server: &Server) {
    let database = database(server, &[]);
    store(&database, &["put", "a", "short", "{}", "--ttl", "1s"]);
    store(&database, &["put", "a", "long", "{}", "--ttl", "2d"]);
    store(&database, &["put", "a", "ever", "{}"]);
    let long = "SELECT count(*) FROM store WHERE key = 'long' AND ttl_minutes = 2880";
    assert_eq!(number(&database, long), 1);
    in_runtime(async {
        let expire = "UPDATE store SET expires_at = now() - interval '1 minute' WHERE key = 'short'";
        database.client().await.batch_execute(expire).await.unwrap();
    });
    assert!(failure(&run(&database, &["get", "a", "short"]), 3).contains("short"));
    assert_eq!(keys(&database, &[]), ["ever", "long"]);
    assert_eq!(store(&database, &["sweep"]), "Removed 1 expired item.\n");
    assert_eq!(lines(&database, &["sweep"]), [json!({ "swept": 0 })]);
    assert_eq!(number(&database, "SELECT count(*) FROM store"), 2);
}

fn reads_do_not_refresh_the_ttl_by_default(server: &Server) {
    let database = database(server, &[]);
    store(&database, &["put", "a", "k", "{}", "--ttl", "1h"]);
    let shorten = "UPDATE store SET expires_at = now() + interval '10 minutes'";
    in_runtime(async { database.client().await.batch_execute(shorten).await.unwrap() });
    let refreshed =
        || number(&database, "SELECT count(*) FROM store WHERE expires_at > now() + interval '30 minutes'");
    store(&database, &["get", "a", "k"]);
    store(&database, &["search", "a"]);
    assert_eq!(refreshed(), 0);
    store(&database, &["get", "a", "k", "--refresh-ttl"]);
    assert_eq!(refreshed(), 1);
    in_runtime(async { database.client().await.batch_execute(shorten).await.unwrap() });
    store(&database, &["search", "a", "--refresh-ttl"]);
    assert_eq!(refreshed(), 1);
}

fn with_ngrams<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [arguments, &NGRAMS].concat()
}

fn queries_find_items_put_with_vectors(server: &Server) {
    for setup in [
        &["--embed-dims", "64"][..],
        &["--embed-dims", "64", "--vector-type", "halfvec", "--distance", "l2", "--ann", "flat"],
        &["--embed-dims", "64", "--distance", "inner-product", "--ann", "ivfflat", "--ann-lists", "2"],
    ] {
        let database = database(server, setup);
        let kept = &setup[2..];
        let put = |key: &str, value: &str, more: &[&str]| {
            store(&database, &[&with_ngrams(&["put", "notes", key, value])[..], kept, more].concat())
        };
        let query = |query: &str| {
            let arguments = with_ngrams(&["notes", "--query", query, "--limit", "1"]);
            keys(&database, &[&arguments[..], kept].concat())
        };
        put("tea", r#"{"text": "ann drinks green tea", "by": "the old man"}"#, &["--embed-field", "text"]);
        put("cat", r#"{"text": "the cats sleep all day"}"#, &[]);
        put("trip", r#"{"text": "x", "title": "to lisbon in march"}"#, &["--index", "title"]);
        put("off", r#"{"text": "who drinks green tea?"}"#, &["--no-index"]);
        assert_eq!(query("who drinks green tea?"), ["tea"]);
        assert_eq!(query("sleeping cats"), ["cat"]);
        assert_eq!(query("lisbon"), ["trip"]);
        let fields = "SELECT count(*) FROM store_vectors WHERE field_name IN ('text', '$', 'title')";
        assert_eq!(
            (number(&database, fields), number(&database, "SELECT count(*) FROM store_vectors")),
            (3, 3)
        );
        let found = lines(&database, &[&with_ngrams(&["search", "--query", "tea"])[..], kept].concat());
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|item| item["score"].is_number()), "{found:?}");
        assert!(
            store(&database, &[&with_ngrams(&["search", "--query", "tea"])[..], kept].concat())
                .contains("3 items")
        );
    }
}

fn a_put_without_vectors_deletes_the_old_ones(server: &Server) {
    for kind in ["vector", "halfvec"] {
        let database = database(server, &["--embed-dims", "64", "--vector-type", kind]);
        let old = with_ngrams(&["put", "a", "k", r#"{"text": "old words"}"#, "--vector-type", kind]);
        let query = with_ngrams(&["--query", "old words", "--vector-type", kind]);
        store(&database, &old);
        assert_eq!(keys(&database, &query), ["k"]);
        let put = run(&database, &["put", "a", "k", r#"{"text": "new"}"#]);
        let warning = String::from_utf8(put.stderr.clone()).unwrap();
        assert!(warning.contains("no vectors") && warning.contains("--embed"), "{warning}");
        assert_eq!(text(&put), "Put k into a.\n");
        assert!(keys(&database, &query).is_empty());
        store(&database, &old);
        let put = run(&database, &["put", "a", "k", "{}", "--no-index"]);
        assert!(put.status.success() && put.stderr.is_empty(), "no warning with --no-index");
        assert_eq!(number(&database, "SELECT count(*) FROM store_vectors"), 0);
        // Deleting an item deletes its vectors.
        store(&database, &old);
        store(&database, &["delete", "a", "k", "--yes"]);
        assert!(keys(&database, &query).is_empty());
    }
    let without = database(server, &[]);
    let put = run(&without, &["put", "a", "k", "{}"]);
    assert!(put.status.success() && put.stderr.is_empty(), "no warning in a store without vectors");
}

fn a_model_embeds(server: &Server) {
    const KEY: &str = "sk-hunter2";
    let database = database(server, &["--embed-dims", "8"]);
    let model = embedder::Server::new(|_, request| Reply::vectors(request, 8));
    let url = model.url();
    let with_model = |arguments: &[&str]| {
        let mut ckpt = ckpt();
        ckpt.env("CKPT_URL", database.url()).env("OPENAI_API_KEY", KEY).env("CKPT_EMBED", "some-model");
        ckpt.env("CKPT_EMBED_DIMS", "8").env("CKPT_EMBED_URL", &url).arg("store").args(arguments);
        ckpt
    };
    for (key, value) in [("short", r#"{"text": "abc"}"#), ("long", r#"{"text": "abcdefghijklmnop"}"#)] {
        text(&with_model(&["put", "a", key, value, "--index", "text"]).output().unwrap());
    }
    let found = text(&with_model(&["search", "--query", "abcd", "--json"]).output().unwrap());
    let nearest: Json = serde_json::from_str(found.lines().next().unwrap()).unwrap();
    assert_eq!(nearest["key"], "short");
    text(&with_model(&["search", "--query", "abcd", "--embed-shorten"]).output().unwrap());
    let requests = model.requests();
    assert_eq!(requests[0].body["model"], "some-model");
    assert_eq!(requests[0].inputs(), ["abc"]);
    assert_eq!(requests[0].header("authorization"), Some("Bearer sk-hunter2"));
    assert_eq!((&requests[2].body.get("dimensions"), &requests[3].body["dimensions"]), (&None, &json!(8)));

    let refusing = embedder::Server::new(|_, request| Reply::refusal(401, "invalid_api_key", request));
    let put = ["put", "a", "lost", r#"{"text": "secret words"}"#, "--embed-url", &refusing.url()];
    let line = failure(&with_model(&put).output().unwrap(), 2);
    assert!(line.contains("API key") && !line.contains("hunter2") && !line.contains("secret"), "{line}");
    assert!(failure(&run(&database, &["get", "a", "lost"]), 3).contains("lost"), "nothing was stored");
    let other = embedder::Server::new(|_, request| Reply::vectors(request, 9));
    let line = failure(&with_model(&[&put[..5], &[&other.url()]].concat()).output().unwrap(), 2);
    assert!(line.contains("--embed-dims"), "{line}");
    let mut keyless = with_model(&["search", "--query", "x", "--embed-url", ""]);
    let line = failure(&keyless.env_remove("OPENAI_API_KEY").output().unwrap(), 2);
    assert!(line.contains("OPENAI_API_KEY") && !line.contains("api_key()"), "{line}");
}

fn invalid_arguments_are_reported(server: &Server) {
    let database = database(server, &["--embed-dims", "64"]);
    let put = |more: &[&'static str]| [&["put", "a", "k", "{}"], more].concat();
    for (arguments, expected) in [
        (vec!["put", "a", "k", "[1]"], "object"),
        (vec!["put", "a", "k", "{"], "JSON"),
        (vec!["put", "", "k", "{}"], "at least one label"),
        (vec!["put", "a..b", "k", "{}"], "not be empty"),
        (vec!["put", "langgraph.x", "k", "{}"], "langgraph"),
        (vec!["put", "a", "k", r#"{"x": "\u0000"}"#], "U+0000"),
        (put(&["--ttl", "soon"]), "--ttl"),
        (put(&["--ttl=-1"]), "invalid TTL"),
        (put(&["--ttl", "NaN"]), "invalid TTL"),
        (put(&["--ttl", "0s"]), "invalid TTL"),
        (put(&["--index", "x"]), "--embed"),
        (put(&["--embed", "ngrams"]), "--embed-dims"),
        (put(&["--embed", "ngrams", "--embed-dims", "0"]), "dims"),
        (put(&["--embed", "m", "--embed-dims", "4", "--embed-url", "hunter2"]), "--embed-url"),
        (vec!["setup", "--embed", "ngrams"], "--embed-dims"),
        (vec!["setup", "--embed-dims", "20000"], "16,000"),
        (vec!["setup", "--embed-dims", "3000"], "halfvec"),
        (vec!["search", "--query", "x"], "--embed"),
        (vec!["search", "--filter", "{"], "--filter"),
        (vec!["search", "--filter", "[]"], "object"),
        (vec!["search", "--filter", r#"{"a": {"$in": [1]}}"#], "$eq"),
        (vec!["namespaces", "--max-depth", "0"], "max_depth must be at least 1"),
    ] {
        let line = failure(&run(&database, &arguments), 2);
        assert!(line.contains(expected) && !line.contains("hunter2"), "{arguments:?}: {line}");
    }
    assert_eq!(store(&database, &["search"]), "0 items\n");
    let line = failure(&run(&database, &["setup", "--embed-dims", "65"]), 4);
    assert!(line.contains("vector(64)"), "{line}");
}

/// Runs the examples of `--help` in a shell.
fn the_examples_of_help_work(server: &Server) {
    let database = database(server, &["--embed-dims", "256"]);
    let directory = Path::new(env!("CARGO_BIN_EXE_ckpt")).parent().unwrap();
    let path = std::env::join_paths(
        std::iter::once(directory.to_owned())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    )
    .unwrap();
    let separator = if database.url().contains('?') { '&' } else { '?' };
    // Puts run before reads, and deletions last.
    for command in ["setup", "put", "get", "search", "namespaces", "sweep", "delete", "demo"] {
        let help = text(&ckpt().args(["store", command, "--help"]).output().unwrap());
        let (_, examples) = help.split_once("Example").unwrap();
        let examples: Vec<_> =
            examples.lines().skip(1).map(str::trim).filter(|line| !line.is_empty()).collect();
        assert!(!examples.is_empty(), "{help}");
        for (at, example) in examples.into_iter().enumerate() {
            assert!(example.contains(&format!("ckpt store {command}")), "{example}");
            // A table of vectors is of one kind; and not everybody has jq.
            let url = if command == "setup" {
                format!("{}{separator}schema=example_{at}", database.url())
            } else {
                database.url().to_owned()
            };
            let example = example.split(" | jq").next().unwrap();
            let output = Command::new("sh")
                .args(["-c", example])
                .env("PATH", &path)
                .env("CKPT_URL", url)
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let printed = text(&output);
            assert!(!printed.is_empty() && !printed.starts_with("0 "), "{example}: {printed}");
        }
    }
}

fn the_suite_of_stores_runs(server: &Server) {
    let database = in_runtime(Database::create(server.url()));
    let run = |arguments: &[&str]| ckpt().env("CKPT_URL", database.url()).args(arguments).output().unwrap();
    let ran = |filter: &str| -> Json {
        let lines = text(&run(&["conformance", "--store", filter, "--json"]));
        serde_json::from_str(lines.lines().last().unwrap()).unwrap()
    };
    // The extension is not there, and is not made.
    let embedding = ran("store_embedding::");
    assert_eq!((&embedding["passed"], &embedding["failed"]), (&0.into(), &0.into()), "{embedding}");
    assert!(embedding["ignored"].as_u64() > Some(0), "{embedding}");
    assert_eq!(number(&database, "SELECT count(*) FROM pg_extension WHERE extname = 'vector'"), 0);
    in_runtime(async { database.client().await.batch_execute("CREATE EXTENSION vector").await.unwrap() });
    for group in ["store_get::", "store_put::", "store_embedding::"] {
        let summary = ran(group);
        assert!(summary["passed"].as_u64() > Some(2) && summary["ignored"] == 0, "{group}: {summary}");
    }
    assert_eq!(number(&database, "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'ckpt%'"), 0);
    assert_eq!(number(&database, "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'store%'"), 0);
    failure(&run(&["conformance", "--store", "no such case"]), 3);
}
