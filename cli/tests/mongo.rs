//! `ckpt` on MongoDB. Each test has a database of its own.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../tests/tests/shared/mongo.rs"]
mod mongo;
#[path = "../../tests/tests/shared/postgres.rs"]
mod postgres;
#[path = "../../tests/tests/shared/redis.rs"]
mod redis;
#[path = "../../tests/tests/shared/server.rs"]
mod server;
mod shared;
#[path = "../../tests/tests/shared/trials.rs"]
mod trials;

use std::process::ExitCode;

use checkpoint_conformance::{Missing, TestBinary};
use mongodb::bson::{Document, doc};
use serde_json::Value as Json;

use mongo::{Database, Kind, Server, Test, documents, in_runtime};
use shared::{
    Golden, assert_same_values, blocking, copy, counts, everywhere, failure, file, filled, key_file, rows,
    run, sqlite, text,
};

/// What runs on both servers.
const EVERYWHERE: &[Test] = blocking![
    every_command_works_as_on_a_file,
    copies_of_pythons_file_to_the_server_and_back_are_equal,
    keys_are_rotated,
    copies_can_encrypt_values,
    the_suite_runs,
];

fn main() -> ExitCode {
    // On the faster one.
    let alone: &[Test] = blocking![
        rows_come_back_byte_by_byte,
        a_collection_is_a_separate_database,
        old_checkpoints_are_removed,
        written_threads_expire,
        errors_do_not_contain_the_password,
    ];
    let copies: &[Test] = &[("threads_move_through_every_server", threads_move_through_every_server)];
    server::with_servers(|| {
        let mut tests = TestBinary::new();
        for kind in Kind::ALL {
            tests = tests.tests(mongo::trials(kind, kind.name(), EVERYWHERE));
        }
        tests
            .tests(mongo::trials(Kind::Java, Kind::Java.name(), alone))
            .tests(mongo::trials(Kind::Mongo, Kind::Mongo.name(), copies))
            .run()
    })
}

fn set_up(server: &Server) -> (Database, String) {
    let database = Database::new(server.url());
    let url = database.url();
    text(&run(&url, &["setup"]));
    (database, url)
}

fn every_command_works_as_on_a_file(server: &Server) {
    let database = Database::new(server.url());
    everywhere::every_command_works_as_on_a_file(&database.url(), "The collection is ready.", true);
    everywhere::there_is_no_store(&database.url());
}

fn keys_are_rotated(server: &Server) {
    let (_database, url) = set_up(server);
    everywhere::keys_are_rotated(&url);
}

fn copies_of_pythons_file_to_the_server_and_back_are_equal(server: &Server) {
    let (_database, url) = set_up(server);
    everywhere::copies_of_pythons_file_to_the_server_and_back_are_equal(&url);
}

fn rows_come_back_byte_by_byte(server: &Server) {
    let (_database, url) = set_up(server);
    everywhere::rows_come_back_byte_by_byte(&url);
}

fn copies_can_encrypt_values(server: &Server) {
    let (database, url) = set_up(server);
    everywhere::copies_can_encrypt_values(&url, || {
        let found = in_runtime(async { documents(&database.raw().await).await.unwrap() });
        found.iter().flat_map(|document| document.as_bytes().to_vec()).collect()
    });
}

fn the_suite_runs(server: &Server) {
    let (_database, url) = set_up(server);
    everywhere::the_suite_runs(&url);
}

fn a_collection_is_a_separate_database(server: &Server) {
    let (_database, default) = set_up(server);
    let [one, two] = ["one", "two%20words"].map(|name| format!("{default}?collection={name}"));
    let directory = tempfile::tempdir().unwrap();
    let source = filled(directory.path(), &["a"], 12, 50);
    for url in [&one, &two] {
        assert!(failure(&run(url, &["threads"]), 4).contains("`ckpt setup`"));
        text(&run(url, &["setup"]));
    }
    counts(&sqlite(&source), &one, &[]);
    counts(&one, &two, &[]);
    assert_eq!(text(&run(&default, &["threads"])), "0 threads\n");
    let back = file(directory.path(), "back.sqlite");
    counts(&format!("{two}&appName=ckpt"), &sqlite(&back), &[]);
    assert_same_values(&source, &back);
    let same = default.replace("127.0.0.1", "localhost") + "?collection=one";
    assert!(failure(&copy(&same, &one, &[]).output().unwrap(), 2).contains("same database"));
    for wrong in ["a$b", "", "system.users"] {
        let line = failure(&run(&format!("{default}?collection={wrong}"), &["setup"]), 2);
        assert!(line.contains("collection"), "{line}");
    }
}

fn old_checkpoints_are_removed(server: &Server) {
    let (database, url) = set_up(server);
    let directory = tempfile::tempdir().unwrap();
    counts(&sqlite(&filled(directory.path(), &["a", "b"], 12, 500)), &url, &[]);
    let json = |arguments: &[&str]| -> Json { serde_json::from_str(&text(&run(&url, arguments))).unwrap() };
    let before = json(&["usage", "--json"]);
    assert_eq!(before["threads"], 2);
    let planned = json(&["retain", "--keep-last", "3", "--include-waiting", "--dry-run", "--json"]);
    let done = json(&["retain", "--keep-last", "3", "--include-waiting", "--yes", "--json"]);
    assert_eq!(done["removed"], planned["removed"]);
    let after = json(&["usage", "--json"]);
    // All that was to go is gone when the command ends.
    for count in ["checkpoints", "writes", "bytes"] {
        let gone = before[count].as_u64().unwrap() - after[count].as_u64().unwrap();
        assert_eq!((gone > 0, Some(gone)), (true, done["removed"][count].as_u64()), "{count}");
    }
    let notes = async {
        let collection = database.raw().await.collection::<Document>("lg_checkpoints");
        collection.count_documents(doc! { "go": { "$exists": true } }).await.unwrap()
    };
    assert_eq!(in_runtime(notes), 0);
}

fn written_threads_expire(server: &Server) {
    let (database, url) = set_up(server);
    let directory = tempfile::tempdir().unwrap();
    let source = filled(directory.path(), &["a", "b"], 3, 10);
    counts(&sqlite(&source), &format!("{url}?ttl=3600"), &["a"]);
    counts(&sqlite(&source), &url, &["b"]);
    let documents = |filter: Document| {
        in_runtime(async {
            let raw = database.raw().await;
            raw.collection::<Document>("lg_checkpoints").count_documents(filter).await.unwrap()
        })
    };
    // When a document expires is in `x`.
    let expire = documents(doc! { "x": { "$exists": true } });
    let of_a = documents(doc! { "t": "a" });
    assert!(expire > 0 && expire >= of_a, "{expire} of {of_a}");
    assert_eq!(documents(doc! { "t": "b", "x": { "$exists": true } }), 0);
    let line = failure(&run(&format!("{url}?ttl=soon"), &["threads"]), 2);
    assert!(line.contains("ttl") && !line.contains("soon"), "{line}");
}

fn errors_do_not_contain_the_password(server: &Server) {
    const PASSWORD: &str = "hunter2x";
    let host = server.url().split_once("://").unwrap().1;
    for (url, code, said) in [
        (format!("mongodb://u:{PASSWORD}@no-such-host.invalid"), 5, "cannot be reached"),
        (format!("mongodb://u:{PASSWORD}@127.0.0.1:1"), 5, "cannot be reached"),
        (format!("mongodb://u:{PASSWORD}@{host}/?foo={PASSWORD}"), 2, "URL"),
        (format!("mongodb://u:{PASSWORD}@{host}/?ttl={PASSWORD}"), 2, "ttl"),
        (format!("mongodb://u:{PASSWORD}@{host}/?sharded={PASSWORD}"), 2, "sharded"),
        (format!("mongodb://u:{PASSWORD}@h:{PASSWORD}"), 2, "URL"),
        (format!("mongodb+srv://u:{PASSWORD}@{host}"), 2, "URL"),
        (format!("mongodb:{PASSWORD}"), 2, "mongodb://USER@HOST"),
    ] {
        let line = failure(&run(&url, &["threads"]), code);
        assert!(line.contains(said) && !line.contains(PASSWORD), "{line}");
        let file = tempfile::tempdir().unwrap();
        let line = failure(&copy(&sqlite(&file.path().join("x")), &url, &[]).output().unwrap(), code);
        assert!(!line.contains(PASSWORD), "{line}");
    }
}

/// From Python's file through every other server and back.
fn threads_move_through_every_server(server: &Server) -> Result<(), Missing> {
    let postgres = postgres::Server::find(postgres::Kind::Postgres17)?;
    let redis = redis::Server::find(redis::Kind::Redis8)?;
    let postgres = in_runtime(postgres::Database::set_up(postgres.url()));
    let prefix = redis::Prefix::new(redis.url());
    let redis = format!("{}?prefix={}", prefix.url(), prefix.name());
    let [(_one, one), (_two, two), (_three, three)] = [set_up(server), set_up(server), set_up(server)];
    text(&run(&redis, &["setup"]));
    let golden = Golden::new();
    golden.text(&["setup"]);
    let key = key_file(golden.directory.path());
    let key = key.to_str().unwrap();
    let back = file(golden.directory.path(), "back.sqlite");
    let stations =
        [&golden.url(), &one, &redis, &two, postgres.url(), &three, &sqlite(&back)].map(ToString::to_string);
    let checkpoints = rows(&golden.path)[0].len();
    for hop in stations.windows(2) {
        let counted = counts(&hop[0], &hop[1], &["--key-file", key]);
        assert_eq!(counted["checkpoints"], checkpoints, "{hop:?}");
    }
    for to in &stations[1..] {
        let counted = counts(&stations[0], to, &["--dry-run", "--key-file", key]);
        for nothing in ["checkpoints", "writes", "checkpoints_only_in_target", "threads_not_whole"] {
            assert_eq!(counted[nothing], 0, "{nothing} in {to}");
        }
    }
    Ok(())
}
