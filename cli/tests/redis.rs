//! `ckpt` on Redis. Each test has a key prefix of its own.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../tests/tests/shared/redis.rs"]
mod redis;
#[path = "../../tests/tests/shared/server.rs"]
mod server;
mod shared;
#[path = "../../tests/tests/shared/trials.rs"]
mod trials;

use std::process::ExitCode;

use checkpoint_conformance::{Missing, TestBinary};

use redis::{Kind, Prefix, Raw, Server, Test, in_runtime};
use shared::{
    Golden, assert_same_values, blocking, copy, counts, everywhere, failure, file, filled, run, sqlite, text,
};

/// What runs on one server, and on a cluster.
const EVERYWHERE: &[Test] = blocking![
    every_command_works_as_on_a_file,
    copies_of_pythons_file_to_the_server_and_back_are_equal,
    keys_are_rotated,
    usage_and_retain_say_the_same_as_on_a_file,
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

fn every_command_works_as_on_a_file(server: &Server) {
    let (_prefix, url) = prefix(server);
    everywhere::every_command_works_as_on_a_file(&url, "The key prefix is ready.", true);
    everywhere::there_is_no_store(&url);
}

fn keys_are_rotated(server: &Server) {
    let (_prefix, url) = set_up(server);
    everywhere::keys_are_rotated(&url);
}

fn copies_of_pythons_file_to_the_server_and_back_are_equal(server: &Server) {
    let (_prefix, url) = set_up(server);
    everywhere::copies_of_pythons_file_to_the_server_and_back_are_equal(&url);
}

fn rows_come_back_byte_by_byte(server: &Server) {
    let (_prefix, url) = set_up(server);
    everywhere::rows_come_back_byte_by_byte(&url);
}

fn usage_and_retain_say_the_same_as_on_a_file(server: &Server) {
    let (_prefix, url) = set_up(server);
    everywhere::usage_and_retain_say_the_same_as_on_a_file(&url);
}

fn the_suite_runs(server: &Server) {
    let (_prefix, url) = set_up(server);
    everywhere::the_suite_runs(&url);
}

fn copies_can_encrypt_values(server: &Server) {
    let (prefix, url) = set_up(server);
    everywhere::copies_can_encrypt_values(&url, || {
        in_runtime(async { redis::dump(&prefix.raw().await, prefix.name()).await.unwrap() })
    });
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
