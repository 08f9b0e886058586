//! The example of a service, with requests over HTTP.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

#[path = "../examples/http_service.rs"]
#[expect(dead_code, reason = "its main is not called")]
mod http_service;

use http_service::{Saver, cipher, open, serve, stopped};

const OLD: &str = "old=0101010101010101010101010101010101010101010101010101010101010101";
const NEW: &str = "new=0202020202020202020202020202020202020202020202020202020202020202";

struct Service {
    address: SocketAddr,
    saver: Saver,
    stop: oneshot::Sender<()>,
    served: JoinHandle<std::io::Result<()>>,
}

impl Service {
    async fn start(path: &str, keys: &str) -> Self {
        let saver = open(path, cipher(keys).unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, told) = oneshot::channel();
        let stopped = async { drop(told.await) };
        let served = tokio::spawn(serve(listener, saver.clone(), stopped));
        Self { address, saver, stop, served }
    }

    /// Returns the status and the body.
    async fn request(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        send(self.address, method, path, body).await
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.served.await.unwrap().unwrap();
        self.saver.ping().await.unwrap_err();
    }
}

async fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, if body.is_empty() { Value::Null } else { serde_json::from_str(body).unwrap() })
}

#[tokio::test]
async fn the_service_answers_and_its_probes_follow_the_database() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agents.sqlite").display().to_string();
    let service = Service::start(&path, "").await;
    assert_eq!(service.request("GET", "/live", "").await, (204, Value::Null));
    let (status, body) = service.request("GET", "/ready", "").await;
    assert_eq!((status, body), (503, json!({"error": "schema", "retry": false})));
    service.saver.setup().await.unwrap();
    assert_eq!(service.request("GET", "/ready", "").await, (204, Value::Null));

    assert_eq!(service.request("GET", "/threads/ann", "").await, (404, Value::Null));
    assert_eq!(service.request("POST", "/threads/ann", "one").await, (200, json!({"messages": ["one"]})));
    let both = json!({"messages": ["one", "two"]});
    assert_eq!(service.request("POST", "/threads/ann", "two").await, (200, both.clone()));
    service.stop().await;

    // After a restart the thread goes on.
    let service = Service::start(&path, "").await;
    assert_eq!(service.request("GET", "/threads/ann", "").await, (200, both));
    // The directory is gone: the database cannot be reached.
    directory.close().unwrap();
    for path in ["/live", "/ready", "/threads/ann"] {
        let (status, body) = service.request("GET", path, "").await;
        assert_eq!((status, &body["error"]), (503, &json!("unavailable")), "{path}");
    }
}

#[tokio::test]
async fn keys_rotate() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agents.sqlite").display().to_string();
    let old = Service::start(&path, OLD).await;
    old.saver.setup().await.unwrap();
    old.request("POST", "/threads/ann", "secret").await;
    old.stop().await;

    let both = Service::start(&path, &format!("{NEW},{OLD}")).await;
    let (status, body) = both.request("POST", "/threads/ann", "more").await;
    assert_eq!((status, body), (200, json!({"messages": ["secret", "more"]})));
    both.stop().await;

    // The newest state was encrypted with the new key, so the old one is no longer needed for it.
    for (keys, status) in [(NEW, 200), (OLD, 500), ("", 500)] {
        let service = Service::start(&path, keys).await;
        let (found, body) = service.request("GET", "/threads/ann", "").await;
        assert_eq!(found, status, "{keys:?}: {body}");
        assert!(status == 200 || body["error"] == "crypto", "{body}");
        service.stop().await;
    }
    for invalid in ["no key", "name=xyz", "name=0102"] {
        cipher(invalid).unwrap_err();
    }
}

/// SIGTERM ends the service after the requests under way, and what was answered is stored.
#[cfg(unix)]
#[tokio::test]
async fn sigterm_closes_the_saver() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agents.sqlite").display().to_string();
    let saver = open(&path, None).unwrap();
    saver.setup().await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut signal = std::pin::pin!(stopped());
    // From here on SIGTERM does not kill this process.
    assert!(futures_util::future::poll_immediate(&mut signal).await.is_none());
    let (stop, told) = oneshot::channel::<()>();
    let served = tokio::spawn(serve(listener, saver.clone(), async { drop(told.await) }));
    assert_eq!(send(address, "POST", "/threads/ann", "one").await.0, 200);

    let pid = std::process::id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    signal.await;
    stop.send(()).unwrap();
    served.await.unwrap().unwrap();
    saver.ping().await.unwrap_err();
    TcpStream::connect(address).await.unwrap_err();
    // The log was moved into the file.
    assert!(!directory.path().join("agents.sqlite-wal").exists());
}

#[test]
fn the_readme_shows_the_example() {
    let example = include_str!("../examples/http_service.rs");
    let readme = include_str!("../../README.md");
    let (_, block) = readme.split_once("```rust,ignore\n").unwrap();
    let (block, _) = block.split_once("```\n").unwrap();
    let mut shown = 0;
    for part in block.split("\n\n") {
        let part = part.trim_end();
        assert!(example.contains(part), "not in the example:\n{part}");
        shown += part.lines().count();
    }
    assert!(shown > 20, "{shown} lines");
}
