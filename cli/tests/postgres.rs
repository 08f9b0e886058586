//! `ckpt` on PostgreSQL. Each test has a database of its own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../tests/tests/shared/postgres.rs"]
mod postgres;
#[path = "../../tests/tests/shared/server.rs"]
mod server;
mod shared;
#[path = "../../tests/tests/shared/trials.rs"]
mod trials;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;

use checkpoint_core::{BaseCheckpointSaver, Cipher, ListQuery, SaverExt};
use checkpoint_sqlite::SqliteSaver;

use postgres::{Database, Server, count, in_runtime};
use shared::{
    Golden, assert_same_values, blocking, ckpt, copy, counts, everywhere, failure, file, filled, key_file,
    rows, run, sqlite, text,
};

fn main() -> ExitCode {
    postgres::run(blocking![
        every_command_works_as_on_a_file,
        copies_of_pythons_file_to_the_server_and_back_are_equal,
        copies_of_pythons_file_read_the_same,
        rows_come_back_byte_by_byte,
        a_repeatedly_killed_copy_completes,
        copies_can_encrypt_values,
        keys_are_rotated,
        values_that_the_server_cannot_store_stop_one_thread,
        a_schema_is_a_separate_database,
        connection_strings_and_the_environment_are_heeded,
        errors_do_not_contain_the_password,
        the_suite_runs,
    ])
}

fn database(server: &Server) -> Database {
    in_runtime(Database::set_up(server.url()))
}

fn every_command_works_as_on_a_file(server: &Server) {
    let database = in_runtime(Database::create(server.url()));
    everywhere::every_command_works_as_on_a_file(database.url(), "The tables are ready.", false);
}

fn keys_are_rotated(server: &Server) {
    everywhere::keys_are_rotated(database(server).url());
}

fn copies_of_pythons_file_to_the_server_and_back_are_equal(server: &Server) {
    let database = database(server);
    everywhere::copies_of_pythons_file_to_the_server_and_back_are_equal(database.url());
}

fn copies_of_pythons_file_read_the_same(server: &Server) {
    let database = database(server);
    let golden = Golden::new();
    let key = key_file(golden.directory.path());
    let key = key.to_str().unwrap();
    golden.text(&["setup"]);
    let back = file(golden.directory.path(), "back.sqlite");
    counts(&golden.url(), database.url(), &["--key-file", key]);
    counts(database.url(), &sqlite(&back), &["--key-file", key]);
    // A delta channel is rebuilt from the same writes on the same seed.
    let read = |saver: Arc<dyn BaseCheckpointSaver>| {
        in_runtime(async move {
            let mut found = Vec::new();
            for thread in ["delta-1", "delta-slow-1", "delta-slow-exit-1"] {
                let tuples = saver.list_all(ListQuery::thread(thread)).await.unwrap();
                let channels: BTreeSet<_> =
                    tuples.iter().flat_map(|it| it.metadata.delta_channels()).collect();
                let channels: Vec<_> = channels.into_iter().collect();
                assert!(!channels.is_empty(), "{thread}");
                for tuple in &tuples {
                    let history = saver.get_delta_channel_history(&tuple.config, &channels).await.unwrap();
                    found.push((tuple.checkpoint.id.clone(), history));
                }
            }
            found
        })
    };
    let cipher = Cipher::aes(&std::fs::read(key).unwrap()).unwrap();
    let expected = read(Arc::new(SqliteSaver::builder(&golden.path).build().unwrap()));
    assert_eq!(read(Arc::new(database.builder().cipher(cipher.clone()).build().unwrap())), expected);
    assert_eq!(read(Arc::new(SqliteSaver::builder(&back).cipher(cipher).build().unwrap())), expected);
    // Ciphertext differs each time; the keys of the writes do not.
    let keys = |path: &Path| -> Vec<_> { rows(path)[1].iter().map(|row| row[..7].to_vec()).collect() };
    assert!(keys(&back) == keys(&golden.path));
    let parents = |path: &Path| -> Vec<_> { rows(path)[0].iter().map(|row| row[..4].to_vec()).collect() };
    assert!(parents(&back) == parents(&golden.path));
}

fn rows_come_back_byte_by_byte(server: &Server) {
    everywhere::rows_come_back_byte_by_byte(database(server).url());
}

fn a_repeatedly_killed_copy_completes(server: &Server) {
    let database = database(server);
    let directory = tempfile::tempdir().unwrap();
    let source = filled(directory.path(), &["a", "b"], 300, 2000);
    let arrived =
        || in_runtime(async { count(&database.client().await, "SELECT count(*) FROM checkpoints").await });
    let (mut kills, mut goal) = (0, 1);
    loop {
        let mut child = copy(&sqlite(&source), database.url(), &[])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while arrived() < goal && child.try_wait().unwrap().is_none() {}
        child.kill().unwrap();
        if child.wait().unwrap().success() {
            break;
        }
        kills += 1;
        goal = arrived() + 61;
    }
    assert!(kills > 1, "{kills}");
    let back = file(directory.path(), "back.sqlite");
    counts(database.url(), &sqlite(&back), &[]);
    assert_same_values(&source, &back);
}

fn copies_can_encrypt_values(server: &Server) {
    let database = database(server);
    let directory = tempfile::tempdir().unwrap();
    let source = filled(directory.path(), &["canary"], 12, 50);
    let key = directory.path().join("gcm");
    std::fs::write(&key, [7; 32]).unwrap();
    let key = format!("k1={}", key.display());
    counts(&sqlite(&source), database.url(), &["--to-gcm-key", &key]);
    let clear = "SELECT (SELECT count(*) FROM checkpoint_blobs WHERE type NOT LIKE '%+aes256gcm') \
                 + (SELECT count(*) FROM checkpoint_writes WHERE type NOT LIKE '%+aes256gcm') \
                 + (SELECT count(*) FROM checkpoints WHERE checkpoint::text LIKE '%rust%')";
    assert_eq!(in_runtime(async { count(&database.client().await, clear).await }), 0);
    for wrong in [&[][..], &["--from-key-file", source.to_str().unwrap()]] {
        let back = file(directory.path(), "wrong.sqlite");
        let code = if wrong.is_empty() { 6 } else { 2 };
        failure(&copy(database.url(), &sqlite(&back), wrong).output().unwrap(), code);
        assert!(rows(&back).iter().all(Vec::is_empty));
    }
    let back = file(directory.path(), "back.sqlite");
    counts(database.url(), &sqlite(&back), &["--from-gcm-key", &key]);
    assert_same_values(&source, &back);
    // Without a key, unencrypted values are not added to an encrypted database.
    let other = filled(
        &{
            let other = directory.path().join("other");
            std::fs::create_dir(&other).unwrap();
            other
        },
        &["other"],
        2,
        10,
    );
    assert!(failure(&copy(&sqlite(&other), database.url(), &[]).output().unwrap(), 6).contains("--to"));
}

fn values_that_the_server_cannot_store_stop_one_thread(server: &Server) {
    let database = database(server);
    let directory = tempfile::tempdir().unwrap();
    // Python could not decode a name with a backslash, and the server cannot store U+0000.
    let source = filled(directory.path(), &["backslash", "good", "nul\0"], 3, 10);
    let connection = rusqlite::Connection::open(&source).unwrap();
    let rename = "UPDATE writes SET channel = 'a\\b' WHERE thread_id = 'backslash' AND channel = 'y'";
    assert!(connection.execute(rename, ()).unwrap() > 0);
    let output = copy(&sqlite(&source), database.url(), &[]).output().unwrap();
    let lines = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{lines}");
    for part in ["thread backslash, checkpoint ", "thread nul\\u{0}", "2 of 3 threads"] {
        assert!(lines.contains(part), "{part} is missing in {lines}");
    }
    let counted = counts(&sqlite(&source), database.url(), &["good"]);
    assert_eq!((&counted["checkpoints"], &counted["checkpoints_there_already"]), (&0.into(), &3.into()));
    let history = run(database.url(), &["history", "backslash"]);
    assert!(failure(&history, 3).contains("backslash"), "the checkpoint does not come before its writes");
}

fn a_schema_is_a_separate_database(server: &Server) {
    let database = database(server);
    let directory = tempfile::tempdir().unwrap();
    let source = filled(directory.path(), &["a"], 12, 50);
    let separator = if database.url().contains('?') { '&' } else { '?' };
    let within = |schema: &str| format!("{}{separator}schema={schema}", database.url());
    let (one, two) = (within("one"), within("Tw%20o"));
    for url in [&one, &two] {
        text(&run(url, &["setup"]));
    }
    counts(&sqlite(&source), &one, &[]);
    counts(&one, &two, &[]);
    assert_eq!(text(&run(database.url(), &["threads"])), "0 threads\n");
    let back = file(directory.path(), "back.sqlite");
    counts(&two, &sqlite(&back), &[]);
    assert_same_values(&source, &back);
    assert!(failure(&copy(&one, &one, &[]).output().unwrap(), 2).contains("same database"));
}

fn connection_strings_and_the_environment_are_heeded(server: &Server) {
    let database = database(server);
    // Read by the driver, so that our own reading is not its own witness.
    let parts: tokio_postgres::Config = database.url().parse().unwrap();
    let (host, port) = ("127.0.0.1", parts.get_ports()[0].to_string());
    let (user, name) = (parts.get_user().unwrap(), parts.get_dbname().unwrap());
    let password = std::str::from_utf8(parts.get_password().unwrap()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let source = filled(directory.path(), &["a"], 3, 10);
    counts(&sqlite(&source), database.url(), &[]);
    let threads = text(&run(database.url(), &["threads"]));
    assert!(threads.contains("1 thread"), "{threads}");

    let pairs = format!("host={host} port={port} user={user} password={password} dbname='{name}'");
    assert_eq!(text(&run(&pairs, &["threads"])), threads);
    let schema = format!("{pairs} schema='Tw o'");
    text(&run(&schema, &["setup"]));
    assert_eq!(text(&run(&schema, &["threads"])), "0 threads\n");
    assert!(failure(&copy(&pairs, database.url(), &[]).output().unwrap(), 2).contains("same database"));
    text(&run(&schema, &["store", "setup"]));
    assert_eq!(text(&run(&schema, &["store", "namespaces", "--json"])), "");

    let with = |url: &str, more: &[(&str, &str)]| {
        let mut ckpt = ckpt();
        ckpt.env("PGHOST", host).env("PGPORT", &port).env("PGUSER", user).env("PGPASSWORD", password);
        ckpt.env("PGDATABASE", name)
            .envs(more.iter().copied())
            .args(["--url", url, "threads"])
            .output()
            .unwrap()
    };
    for url in ["postgres://", "postgres:///", "sslmode=prefer", &format!("dbname={name}")] {
        assert_eq!(text(&with(url, &[])), threads, "{url}");
        // Port 1 has no server.
        assert!(failure(&with(url, &[("PGPORT", "1")]), 5).contains("cannot be reached"), "{url}");
    }
    assert!(
        failure(&with("postgres://", &[("PGHOST", "no-such-host.invalid")]), 5).contains("cannot be reached")
    );
    let missing = directory.path().join("missing.crt");
    let verify = [("PGSSLMODE", "verify-full"), ("PGSSLROOTCERT", missing.to_str().unwrap())];
    for url in ["postgres://", database.url()] {
        let line = failure(&with(url, &verify), 2);
        assert!(line.contains("sslrootcert") && line.contains("missing.crt"), "{line}");
    }
    let line = failure(&with("postgres://", &[("PGSERVICE", "agents")]), 2);
    assert!(line.contains("PGSERVICE"), "{line}");
}

fn errors_do_not_contain_the_password(server: &Server) {
    const PASSWORD: &str = "hunter2x";
    let (_, place) = server.url().rsplit_once('@').unwrap();
    let (user, _) = server.url().split_once("://").unwrap().1.split_once(':').unwrap();
    let (host, _) = place.split_once('/').unwrap();
    for (url, code, said) in [
        (format!("postgres://{user}:{PASSWORD}@{place}"), 2, "password"),
        (format!("postgres://{user}:{PASSWORD}@no-such-host.invalid/x"), 5, "cannot be reached"),
        (format!("postgres://{user}:{PASSWORD}@{host}/x?foo={PASSWORD}"), 2, "foo"),
        (format!("postgres://{user}:{PASSWORD}@{host}:{PASSWORD}/x"), 2, "port"),
        (format!("postgres://{user}:{PASSWORD}@{host}/x?schema=%{PASSWORD}"), 2, "schema"),
        (format!("{PASSWORD}@{host}/x"), 2, "not a database URL"),
        (format!("{PASSWORD}@host/x"), 2, "not a database URL"),
        (format!("user={user} password={PASSWORD} foo={PASSWORD}"), 2, "is unknown"),
        (format!("password={PASSWORD} port={PASSWORD}"), 2, "port"),
    ] {
        let line = failure(&run(&url, &["threads"]), code);
        assert!(line.contains(said) && !line.contains(PASSWORD), "{line}");
        let file = tempfile::tempdir().unwrap();
        let line = failure(&copy(&sqlite(&file.path().join("x")), &url, &[]).output().unwrap(), code);
        assert!(!line.contains(PASSWORD), "{line}");
    }
    // A URL need not have the password.
    let (_, password) = server.url().rsplit_once('@').unwrap().0.rsplit_once(':').unwrap();
    let without = format!("postgres://{user}@{place}");
    assert!(failure(&run(&without, &["threads"]), 2).contains("password"));
    let given = ckpt().env("CKPT_URL", &without).env("PGPASSWORD", password).arg("setup").output().unwrap();
    assert!(text(&given).contains("ready"));
}

fn the_suite_runs(server: &Server) {
    everywhere::the_suite_runs(database(server).url());
}
