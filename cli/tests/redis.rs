//! `ckpt` on Redis. Each test has a key prefix of its own.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../tests/tests/shared/redis.rs"]
mod redis;
#[path = "../../tests/tests/shared/server.rs"]
mod server;
mod shared;
#[path = "../../tests/tests/shared/trials.rs"]
mod trials;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use checkpoint_conformance::{Missing, TestBinary};
use checkpoint_core::BaseCheckpointSaver;
use checkpoint_sqlite::{SqliteSaver, Synchronous};
use serde_json::Value as Json;

use redis::{Kind, Prefix, Raw, Server, Test, in_runtime};
use shared::{Golden, assert_same_values, block_on, blocking, ckpt, failure, fill, key_file, rows, text};

/// What runs on one server, and on a cluster.
const EVERYWHERE: &[Test] = blocking![
    every_command_works_as_on_a_file,
    copies_of_pythons_file_to_the_server_and_back_are_equal,
    keys_are_rotated,
    the_suite_runs,
];

fn main() -> ExitCode {
    let alone: &[Test] = blocking![
        rows_come_back_byte_by_byte,
        copies_can_encrypt_values,
        a_prefix_is_a_separate_database,
        written_threads_expire,
        users_without_scripts_have_a_parameter,
        errors_do_not_contain_the_password,
    ];
    server::with_servers(|| {
        let cluster = trials::trials(
            EVERYWHERE,
            |test| format!("cluster::{test}"),
            Kind::Cluster.name(),
            || Server::find(Kind::Cluster),
        );
        TestBinary::new()
            .tests(redis::trials("server", EVERYWHERE))
            .tests(redis::trials("server", alone))
            .tests(redis::trials("sentinel", &[("leads_to_the_primary", leads_to_the_primary)]))
            .tests(cluster)
            .run()
    })
}

/// A URL with a prefix. The keys are deleted with the handle.
fn prefix(server: &Server) -> (Prefix, String) {
    let prefix = Prefix::new(server.url());
    let url = with(&prefix, "");
    (prefix, url)
}

fn set_up(server: &Server) -> (Prefix, String) {
    let (prefix, url) = prefix(server);
    text(&run(&url, &["setup"]));
    (prefix, url)
}

fn with(prefix: &Prefix, parameters: &str) -> String {
    format!("{}?prefix={}{parameters}", prefix.url(), prefix.name())
}

fn file(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    let saver = SqliteSaver::builder(&path).synchronous(Synchronous::Normal).build().unwrap();
    block_on(saver.setup()).unwrap();
    path
}

fn filled(directory: &Path, threads: &[&str], steps: i64, bytes: usize) -> PathBuf {
    let path = file(directory, "source.sqlite");
    let saver = SqliteSaver::builder(&path).synchronous(Synchronous::Normal).build().unwrap();
    block_on(fill(&saver, threads, steps, bytes));
    path
}

fn sqlite(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

fn copy(from: &str, to: &str, arguments: &[&str]) -> Command {
    // By the environment, since other users can see arguments with a password.
    let mut copy = ckpt();
    copy.env("CKPT_FROM", from).env("CKPT_TO", to).args(["copy", "--json"]).args(arguments);
    copy
}

fn counts(from: &str, to: &str, arguments: &[&str]) -> Json {
    serde_json::from_str(&text(&copy(from, to, arguments).output().unwrap())).unwrap()
}

fn run(url: &str, arguments: &[&str]) -> Output {
    ckpt().env("CKPT_URL", url).args(arguments).output().unwrap()
}

fn every_command_works_as_on_a_file(server: &Server) {
    let (_prefix, url) = prefix(server);
    let golden = Golden::new();
    let key = key_file(golden.directory.path());
    let key = key.to_str().unwrap();
    assert!(failure(&run(&url, &["check"]), 4).contains("`ckpt setup`"));
    let not_set_up = copy(&golden.url(), &url, &["func-1"]).output().unwrap();
    assert!(failure(&not_set_up, 4).contains("--to"));
    for command in ["setup", "setup", "check"] {
        assert_eq!(text(&run(&url, &[command])), "The key prefix is ready.\n");
    }
    let clear = ["delta-1", "delta-slow-1", "delta-slow-exit-1", "func-1", "rich-1"];
    counts(&golden.url(), &url, &clear);
    counts(&golden.url(), &url, &["enc-1", "--key-file", key]);
    for arguments in [
        &["threads"][..],
        &["threads", "--with-status", "--prefix", "delta-"],
        &["threads", "--json", "--after", "delta-1", "--limit", "2"],
        &["history", "rich-1"],
        &["history", "rich-1", "--json"],
        &["history", "func-1", "--ns", "", "--limit", "2"],
        &["show", "rich-1", "--channel", "messages"],
        &["show", "func-1"],
        &["show", "rich-1", "1f1e4fbf-bec5-6005-8001-2d43fac462cf", "--json"],
    ] {
        let (there, here) = (text(&run(&url, arguments)), golden.text(arguments));
        assert!(!here.is_empty() && there == here, "{arguments:?}:\n{there}\n{here}");
    }
    let sealed = run(&url, &["show", "enc-1", "--channel", "log"]);
    assert!(failure(&sealed, 6).contains("LANGGRAPH_AES_KEY"));
    assert!(text(&run(&url, &["show", "enc-1"])).contains("--key-file"));
    let rows = text(&run(&url, &["history", "enc-1", "--json"]));
    assert_eq!(rows.lines().count(), 9, "{rows}");
    assert!(rows.lines().all(|line| line.contains("\"encrypted\":true")), "{rows}");
    let opened = run(&url, &["show", "enc-1", "--json", "--key-file", key]);
    assert!(!text(&opened).contains("$error"));

    text(&run(&url, &["copy-thread", "rich-1", "copy"]));
    assert!(failure(&run(&url, &["copy-thread", "func-1", "copy"]), 2).contains("--yes"));
    text(&run(&url, &["prune", "copy", "--yes"]));
    assert_eq!(text(&run(&url, &["history", "copy", "--json"])).lines().count(), 3);
    text(&run(&url, &["delete-thread", "copy", "--yes"]));
    assert!(failure(&run(&url, &["history", "copy"]), 3).contains("copy"));
    text(&run(&url, &["prune", "--all", "--strategy", "delete", "--yes"]));
    assert_eq!(text(&run(&url, &["threads"])), "0 threads\n");
    assert!(failure(&run(&url, &["store", "setup"]), 2).contains("no store"));
}

fn keys_are_rotated(server: &Server) {
    let (_prefix, url) = set_up(server);
    let golden = Golden::new();
    let python = key_file(golden.directory.path()).display().to_string();
    counts(&golden.url(), &url, &["--key-file", &python]);
    let gcm = |id: &str, byte: u8| {
        let path = golden.directory.path().join(id);
        std::fs::write(&path, [byte; 32]).unwrap();
        format!("{id}={}", path.display())
    };
    let (old, new) = (gcm("old", 1), gcm("new", 2));
    let rekey = |arguments: &[&str]| -> Json {
        serde_json::from_str(&text(&run(&url, &[&["rekey", "--json"], arguments].concat()))).unwrap()
    };
    let show = |key: &[&str]| run(&url, &[&["show", "rich-1", "--json"], key].concat());
    let expected = text(&show(&["--key-file", &python]));
    for (keys, id) in [
        (vec!["--gcm-key", &*old, "--key-file", &*python], "old"),
        (vec!["--gcm-key", &*new, "--gcm-key", &*old], "new"),
    ] {
        let before = rekey(&["--dry-run"]);
        let done = rekey(&keys);
        let values = &before["keys"][0]["values"];
        assert_eq!((&done["resealed"], &done["remaining"], &done["failed"]), (values, &0.into(), &0.into()));
        let after = rekey(&["--dry-run"]);
        assert_eq!(after["keys"].as_array().unwrap().len(), 1);
        assert_eq!((after["keys"][0]["key_id"].as_str(), &after["keys"][0]["values"]), (Some(id), values));
    }
    assert_eq!(text(&show(&["--gcm-key", &new])), expected);
    assert!(failure(&run(&url, &["rekey", "rich-1", "--gcm-key", &old]), 6).contains("key_id=\"new\""));
}

fn copies_of_pythons_file_to_the_server_and_back_are_equal(server: &Server) {
    let (_prefix, url) = set_up(server);
    let golden = Golden::new();
    let key = key_file(golden.directory.path());
    let key = key.to_str().unwrap();
    golden.text(&["setup"]);
    let back = file(golden.directory.path(), "back.sqlite");
    let first = counts(&golden.url(), &url, &["--key-file", key]);
    let second = counts(&url, &sqlite(&back), &["--key-file", key]);
    let [checkpoints, writes] = rows(&golden.path);
    for counted in [first, second] {
        assert_eq!(
            (&counted["checkpoints"], &counted["writes"]),
            (&checkpoints.len().into(), &writes.len().into())
        );
    }
    // Compared in both directions, nothing is missing and nothing differs on any side.
    let sides = [golden.url(), url, sqlite(&back)];
    for from in &sides {
        for to in sides.iter().filter(|to| *to != from) {
            let counted = counts(from, to, &["--dry-run", "--key-file", key]);
            for nothing in ["checkpoints", "writes", "checkpoints_only_in_target", "threads_not_whole"] {
                assert_eq!(counted[nothing], 0, "{nothing}");
            }
            assert_eq!(counted["checkpoints_there_already"], checkpoints.len());
        }
    }
}

fn rows_come_back_byte_by_byte(server: &Server) {
    let (_prefix, url) = set_up(server);
    let directory = tempfile::tempdir().unwrap();
    let source = filled(directory.path(), &["a", "b", ""], 40, 3000);
    let back = file(directory.path(), "back.sqlite");
    counts(&sqlite(&source), &url, &[]);
    counts(&url, &sqlite(&back), &[]);
    assert_same_values(&source, &back);
}

fn copies_can_encrypt_values(server: &Server) {
    let (prefix, url) = set_up(server);
    let directory = tempfile::tempdir().unwrap();
    let source = filled(directory.path(), &["canary"], 12, 50);
    let key = directory.path().join("gcm");
    std::fs::write(&key, [7; 32]).unwrap();
    let key = format!("k1={}", key.display());
    counts(&sqlite(&source), &url, &["--to-gcm-key", &key]);
    let stored = in_runtime(async { redis::dump(&prefix.raw().await, prefix.name()).await.unwrap() });
    let has = |text: &str| stored.windows(text.len()).any(|window| window == text.as_bytes());
    // The thread's name is in the keys, its value `rust` nowhere.
    assert!(has("canary") && !has("rust"));
    let back = file(directory.path(), "back.sqlite");
    failure(&copy(&url, &sqlite(&back), &[]).output().unwrap(), 6);
    assert!(rows(&back).iter().all(Vec::is_empty));
    counts(&url, &sqlite(&back), &["--from-gcm-key", &key]);
    assert_same_values(&source, &back);
}

fn a_prefix_is_a_separate_database(server: &Server) {
    let (_one, one) = set_up(server);
    let (two_prefix, _) = set_up(server);
    let (_default, default) = set_up(server);
    let two = with(&two_prefix, "&db=0&protocol=3");
    let directory = tempfile::tempdir().unwrap();
    let source = filled(directory.path(), &["a"], 12, 50);
    counts(&sqlite(&source), &one, &[]);
    counts(&one, &two, &[]);
    assert_eq!(text(&run(&default, &["threads"])), "0 threads\n");
    let back = file(directory.path(), "back.sqlite");
    counts(&two, &sqlite(&back), &[]);
    assert_same_values(&source, &back);
    assert!(failure(&copy(&two, &with(&two_prefix, ""), &[]).output().unwrap(), 2).contains("same database"));
    for (wrong, part) in [("a%7Bb", "prefix in the URL"), ("", "prefix in the URL")] {
        let url = format!("{}?prefix={wrong}", server.url());
        let line = failure(&run(&url, &["setup"]), 2);
        assert!(line.contains(part), "{line}");
    }
}

fn written_threads_expire(server: &Server) {
    let (prefix, url) = set_up(server);
    let directory = tempfile::tempdir().unwrap();
    let source = filled(directory.path(), &["a", "b"], 3, 10);
    counts(&sqlite(&source), &with(&prefix, "&ttl=3600"), &["a"]);
    counts(&sqlite(&source), &url, &["b"]);
    let seconds = |thread: &str| {
        let key = prefix.key(thread, redis::HASH);
        in_runtime(async { prefix.raw().await.call::<i64>(&[b"TTL", &key]).await })
    };
    assert!((1..=3600).contains(&seconds("a")), "{}", seconds("a"));
    assert_eq!(seconds("b"), -1);
    let line = failure(&run(&with(&prefix, "&ttl=soon"), &["threads"]), 2);
    assert!(line.contains("ttl") && !line.contains("soon"), "{line}");
}

/// A user of the server, who may do anything but some commands. It is deleted with this handle.
struct User<'a> {
    server: &'a Server,
    name: String,
}

impl<'a> User<'a> {
    fn new(server: &'a Server, rules: &str) -> Self {
        let name = trials::unique_name();
        let rules = format!("ACL SETUSER {name} on >pw ~* +@all {rules}");
        let rules = rules.trim_end();
        in_runtime(async { Raw::connect(server.url()).await.unwrap().words::<String>(rules).await });
        Self { server, name }
    }

    fn url(&self, prefix: &Prefix, parameters: &str) -> String {
        with(prefix, parameters).replacen("://", &format!("://{}:pw@", self.name), 1)
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        let delete = format!("ACL DELUSER {}", self.name);
        in_runtime(async { Raw::connect(self.server.url()).await.unwrap().words::<u64>(&delete).await });
    }
}

fn users_without_scripts_have_a_parameter(server: &Server) {
    let (prefix, url) = set_up(server);
    let golden = Golden::new();
    counts(&golden.url(), &url, &["rich-1"]);
    let user = User::new(server, "-@scripting");
    let line = failure(&run(&user.url(&prefix, ""), &["show", "rich-1"]), 2);
    assert!(line.contains("add scripts=false to the URL"), "{line}");
    let url = user.url(&prefix, "&scripts=false");
    let messages = ["show", "rich-1", "--channel", "messages"];
    assert_eq!(text(&run(&url, &messages)), golden.text(&messages));
    text(&run(&url, &["prune", "rich-1", "--yes"]));
}

fn leads_to_the_primary(_: &Server) -> Result<(), Missing> {
    let url = server::url(&checkpoint_servers::REDIS_SENTINEL)?;
    let prefix = Prefix::new(&url);
    let url = with(&prefix, "");
    let golden = Golden::new();
    text(&run(&url, &["setup"]));
    counts(&golden.url(), &url, &["rich-1"]);
    assert_eq!(text(&run(&url, &["history", "rich-1"])), golden.text(&["history", "rich-1"]));
    Ok(())
}

fn errors_do_not_contain_the_password(server: &Server) {
    const PASSWORD: &str = "hunter2x";
    let host = server.address();
    let user = User::new(server, "");
    for (url, code, said) in [
        (format!("redis://{}:{PASSWORD}@{host}", user.name), 2, "password"),
        (format!("redis://u:{PASSWORD}@no-such-host.invalid"), 5, "cannot be reached"),
        (format!("redis://u:{PASSWORD}@127.0.0.1:1"), 5, "cannot be reached"),
        (format!("redis://u:{PASSWORD}@{host}?foo={PASSWORD}"), 2, "foo"),
        (format!("redis://u:{PASSWORD}@{host}?ttl={PASSWORD}"), 2, "ttl"),
        (format!("redis://u:{PASSWORD}@h:{PASSWORD}"), 2, "host:port"),
        (format!("redis://u:{PASSWORD}@a,b"), 2, "redis+cluster://"),
        (format!("redis+nodes://u:{PASSWORD}@{host}"), 2, "redis+cluster://"),
        (format!("redis+cluster://u:{PASSWORD}@{host}/3"), 2, "database 0"),
        (format!("redis+sentinel://u:{PASSWORD}@{host}"), 2, "service"),
        (format!("redis:{PASSWORD}"), 2, "redis://USER@HOST"),
        (format!("rediss://u:{PASSWORD}@h?ssl_ca_certs=/no/such/file"), 2, "cannot be read"),
        (format!("redis+cluster://{host}?prefix=x"), 2, "not in a cluster"),
    ] {
        let line = failure(&run(&url, &["threads"]), code);
        assert!(line.contains(said) && !line.contains(PASSWORD), "{line}");
        let file = tempfile::tempdir().unwrap();
        let line = failure(&copy(&sqlite(&file.path().join("x")), &url, &[]).output().unwrap(), code);
        assert!(!line.contains(PASSWORD), "{line}");
    }
}

fn the_suite_runs(server: &Server) {
    let (_prefix, url) = set_up(server);
    let lines = text(&run(&url, &["conformance", "put_writes", "--json"]));
    let summary: Json = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert!(summary["passed"].as_u64().is_some_and(|passed| passed >= 10), "{summary}");
    assert_eq!(text(&run(&url, &["threads"])), "0 threads\n");
}
