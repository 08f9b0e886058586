//! The client on real connections to local servers.

#![expect(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a test fails by panicking; texts are short"
)]

mod shared;

use std::error::Error as _;
use std::net::TcpStream;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use checkpoint_core::ErrorKind;
use checkpoint_core::store::{Embeddings, IndexConfig, JsonObject, PutOp};
use checkpoint_embeddings::secrecy::SecretString;
use checkpoint_embeddings::{EncodingFormat, OpenAiEmbeddings, OpenAiEmbeddingsBuilder};
use serde_json::json;

use shared::{Reply, Server, Stream};

const KEY: &str = "sk-hunter2";
const TEXT: &str = "a confidential text";

fn client(server: &Server) -> OpenAiEmbeddingsBuilder {
    OpenAiEmbeddings::builder("m").base_url(server.url()).api_key(SecretString::from(KEY))
}

/// All texts of an error and its sources.
fn shown(error: &checkpoint_core::Error) -> String {
    let mut shown = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(cause) = source {
        shown = format!("{shown} {cause} {cause:?}");
        source = cause.source();
    }
    shown
}

/// The error of a call, after the expected number of requests. It must contain neither texts nor key.
async fn refused(
    server: &Server,
    builder: OpenAiEmbeddingsBuilder,
    requests: usize,
) -> checkpoint_core::Error {
    let error = builder.build().unwrap().embed_documents(&[TEXT, "other"]).await.unwrap_err();
    assert_eq!(server.requests().len(), requests, "{error}");
    let shown = shown(&error);
    assert!(!shown.contains(TEXT) && !shown.contains("hunter2") && !shown.contains("no: "), "{shown}");
    assert_eq!((error.backend(), error.operation()), (Some("openai"), Some("embed")));
    error
}

#[tokio::test]
async fn requests_follow_the_api() {
    let server = Server::new(|_, request| Reply::vectors(request, 3));
    let embeddings = client(&server).dimensions(3).build().unwrap();
    assert_eq!(embeddings.embed_query("four").await.unwrap(), [4.0, 1.0, 1.0]);
    let plain = OpenAiEmbeddings::builder("m")
        .base_url(format!("{}/", server.url()))
        .encoding_format(EncodingFormat::Float)
        .build()
        .unwrap();
    assert_eq!(plain.embed_documents(&["", "ab"]).await.unwrap(), [[1.0, 1.0, 1.0], [2.0, 1.0, 1.0]]);
    assert!(plain.embed_documents(&[]).await.unwrap().is_empty());
    let requests = server.requests();
    assert_eq!(requests.len(), 2, "an empty slice is a no-op");
    for request in &requests {
        assert_eq!(request.line, "POST /v1/embeddings HTTP/1.1");
        assert_eq!(request.header("content-type"), Some("application/json"));
    }
    assert_eq!(requests[0].header("authorization"), Some("Bearer sk-hunter2"));
    assert_eq!(requests[1].header("authorization"), None);
    assert_eq!(
        requests[0].body,
        json!({ "model": "m", "input": ["four"], "encoding_format": "base64", "dimensions": 3 })
    );
    assert_eq!(requests[1].body, json!({ "model": "m", "input": [" ", "ab"], "encoding_format": "float" }));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_texts_are_split_into_requests_with_limited_concurrency() {
    #[derive(Default)]
    struct Running {
        now: usize,
        most: usize,
        came: usize,
    }
    let running = Arc::new((Mutex::new(Running::default()), Condvar::new()));
    let seen = Arc::clone(&running);
    let server = Server::new(move |_, request| {
        let (running, changed) = &*seen;
        let mut now = running.lock().unwrap();
        now.now += 1;
        now.came += 1;
        now.most = now.most.max(now.now);
        changed.notify_all();
        // The first three respond only when all three have arrived, so that they run concurrently.
        let mut now = changed.wait_while(now, |now| now.came < 3).unwrap();
        now.now -= 1;
        Reply::vectors(request, 2)
    });
    let texts: Vec<String> = (0..95).map(|length| "x".repeat(length + 1)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let embeddings = client(&server).batch_size(10).concurrency(3).build().unwrap();
    let vectors = embeddings.embed_documents(&texts).await.unwrap();
    let lengths: Vec<f32> = vectors.iter().map(|vector| vector[0]).collect();
    assert_eq!(
        lengths,
        (1..=95).map(|length| length as f32).collect::<Vec<_>>(),
        "in the order of the texts"
    );
    let mut sizes: Vec<_> = server.requests().iter().map(|request| request.inputs().len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [5, 10, 10, 10, 10, 10, 10, 10, 10, 10]);
    assert_eq!(running.0.lock().unwrap().most, 3);
}

#[tokio::test]
async fn transient_failures_are_retried() {
    let server = Server::new(|before, request| match before {
        0 => Reply::Http(429, "retry-after: 0\r\n", String::new()),
        1 => Reply::Http(503, "retry-after-ms: 1\r\n", "<html>".into()),
        2 => Reply::Bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"da".to_vec()),
        3 => Reply::Bytes(Vec::new()),
        _ => Reply::vectors(request, 2),
    });
    let embeddings = client(&server).max_retries(4).build().unwrap();
    assert_eq!(embeddings.embed_documents(&["abc"]).await.unwrap(), [[3.0, 1.0]]);
    let requests = server.requests();
    assert_eq!(requests.len(), 5);
    assert!(requests.iter().all(|request| request.body == requests[0].body));
}

#[tokio::test]
async fn retries_are_limited() {
    let server = Server::new(|_, request| {
        let Reply::Http(status, _, body) = Reply::refusal(429, "rate_limit_exceeded", request) else {
            panic!()
        };
        Reply::Http(status, "retry-after: 0\r\n", body)
    });
    let error = refused(&server, client(&server).max_retries(2), 3).await;
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
    assert!(error.to_string().contains("rate_limit_exceeded"), "{error}");

    // A Retry-After of hours is not waited for.
    let server = Server::new(|_, _| Reply::Http(503, "retry-after: 7200\r\n", String::new()));
    let error = refused(&server, client(&server), 1).await;
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
    assert!(error.to_string().contains("7200"), "{error}");
}

#[tokio::test]
async fn statuses_map_to_error_kinds() {
    for (status, code, kind) in [
        (302, "elsewhere", ErrorKind::InvalidConfig),
        (400, "context_length_exceeded", ErrorKind::InvalidArgument),
        (401, "invalid_api_key", ErrorKind::InvalidConfig),
        (403, "forbidden", ErrorKind::InvalidConfig),
        (404, "model_not_found", ErrorKind::InvalidConfig),
        (413, "too_large", ErrorKind::InvalidArgument),
        (418, "teapot", ErrorKind::Backend),
        (422, "unprocessable", ErrorKind::InvalidArgument),
        (429, "insufficient_quota", ErrorKind::Backend),
        (501, "not_implemented", ErrorKind::InvalidConfig),
    ] {
        let server = Server::new(move |_, request| Reply::refusal(status, code, request));
        let error = refused(&server, client(&server), 1).await;
        assert_eq!((error.kind(), error.is_retryable()), (kind, false), "{status}: {error}");
        let text = error.to_string();
        assert!(text.contains(code) && text.contains(&status.to_string()), "{text}");
    }
    // A code that equals a text is not shown.
    let server = Server::new(|_, request| Reply::refusal(400, "other", request));
    let error = refused(&server, client(&server), 1).await;
    assert!(!error.to_string().contains("other\""), "{error}");
}

#[tokio::test]
async fn invalid_responses_are_rejected() {
    for reply in [
        Reply::Http(200, "", "<html>".into()),
        Reply::Http(200, "", format!("{{\"data\": {TEXT:?}}}")),
        Reply::json(200, &json!({ "data": [{ "index": 0, "embedding": [1.0] }] })),
        Reply::Http(200, "", " ".repeat(3_000_000)),
    ] {
        let server = Server::new(move |_, _| reply.clone());
        let error = refused(&server, client(&server), 1).await;
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Codec, false), "{error}");
    }
    let server = Server::new(|_, request| Reply::vectors(request, 2));
    let error = refused(&server, client(&server).dimensions(3), 1).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}

#[tokio::test]
async fn unreachable_and_silent_servers_fail_differently() {
    // The port is bound, so that no other process gets it, but does not listen.
    let taken = tokio::net::TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}/v1", taken.local_addr().unwrap());
    let embeddings = OpenAiEmbeddings::builder("m").base_url(&url).max_retries(1).build().unwrap();
    let error = embeddings.embed_query(TEXT).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
    assert!(error.to_string().contains(&url), "{error}");

    let server = Server::new(|_, _| Reply::Silence);
    let error = refused(&server, client(&server).timeout(Duration::from_millis(300)), 1).await;
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Timeout, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_call_closes_its_connection_and_releases_its_permit() {
    let server =
        Server::new(|before, request| if before == 0 { Reply::Silence } else { Reply::vectors(request, 2) });
    let embeddings = client(&server).concurrency(1).build().unwrap();
    let call = tokio::spawn({
        let embeddings = embeddings.clone();
        async move { embeddings.embed_query("lost").await }
    });
    while server.requests().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    while *server.gone.lock().unwrap() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(embeddings.embed_query("next").await.unwrap(), [4.0, 1.0]);
}

#[tokio::test]
async fn a_put_that_cannot_be_embedded_fails_as_a_whole() {
    let server = Server::new(|_, request| Reply::refusal(401, "invalid_api_key", request));
    let index = IndexConfig::new(2, client(&server).build().unwrap());
    let value = JsonObject::new(&json!({ "text": TEXT })).unwrap();
    let error = index.embed_puts(&[PutOp::new(["a"], "k", value)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let server = Server::new(|_, request| Reply::vectors(request, 3));
    let index = IndexConfig::new(2, client(&server).build().unwrap());
    assert!(index.embed_query("x").await.unwrap_err().to_string().contains("dims"));
}

#[test]
fn invalid_options_are_rejected_and_the_key_is_never_shown() {
    let local = || OpenAiEmbeddings::builder("m").base_url("http://localhost/v1");
    for wrong in [
        OpenAiEmbeddings::builder("m"),
        OpenAiEmbeddings::builder("").base_url("http://localhost/v1"),
        local().base_url("http://me:hunter2@localhost/v1"),
        local().base_url("localhost:hunter2"),
        local().api_key(SecretString::from("")),
        local().api_key(SecretString::from("hunter2\r\nx: y")),
        local().api_key(SecretString::from("hunter2 hunter2")),
        local().api_key(SecretString::from("hünter2")),
        local().batch_size(0),
        local().batch_size(2049),
        local().concurrency(0),
        local().concurrency(usize::MAX),
        local().dimensions(0),
        local().timeout(Duration::ZERO),
    ] {
        let error = wrong.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(!shown(&error).contains("nter2"), "{error}");
    }
    let builder = local().api_key(SecretString::from(KEY));
    let built = builder.clone().build().unwrap();
    for text in [format!("{builder:?}"), format!("{built:?}"), format!("{:?}", IndexConfig::new(2, built))] {
        assert!(text.contains("localhost") && !text.contains("hunter2"), "{text}");
    }
}

/// Environment variables belong to the whole process, so these tests run in a child process.
fn in_child(variables: &[(&str, &str)]) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child", "--ignored"]).env_remove("OPENAI_API_KEY").env_remove("OPENAI_BASE_URL");
    // A proxy would see texts and keys.
    child.env("HTTP_PROXY", "http://127.0.0.1:9").env("HTTPS_PROXY", "http://127.0.0.1:9");
    let output = child.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Embeds with the configuration of the environment, and expects the outcome in `EXPECT`.
#[tokio::test]
#[ignore = "the child of other tests"]
async fn child() {
    let built = OpenAiEmbeddings::from_env("m").max_retries(0).build();
    let found = match built {
        Ok(embeddings) => match embeddings.embed_query("four").await {
            Ok(vector) => format!("{vector:?}"),
            Err(error) => format!("{:?}", error.kind()),
        },
        Err(error) => format!("not built: {:?}", error.kind()),
    };
    assert_eq!(found, std::env::var("EXPECT").unwrap());
}

#[test]
fn the_environment_names_server_and_key() {
    let server = Server::new(|_, request| Reply::vectors(request, 2));
    let url = server.url();
    in_child(&[("OPENAI_BASE_URL", &url), ("OPENAI_API_KEY", KEY), ("EXPECT", "[4.0, 1.0]")]);
    in_child(&[("OPENAI_BASE_URL", &url), ("OPENAI_API_KEY", ""), ("EXPECT", "[4.0, 1.0]")]);
    in_child(&[("OPENAI_BASE_URL", ""), ("EXPECT", "not built: InvalidConfig")]);
    in_child(&[("OPENAI_BASE_URL", "hunter2"), ("EXPECT", "not built: InvalidConfig")]);
    let requests = server.requests();
    let keys: Vec<_> = requests.iter().map(|request| request.header("authorization")).collect();
    assert_eq!(keys, [Some("Bearer sk-hunter2"), None]);
}

static TLS: OnceLock<Arc<rustls::ServerConfig>> = OnceLock::new();

fn encrypted(stream: TcpStream) -> Stream {
    let connection = rustls::ServerConnection::new(TLS.get().unwrap().clone()).unwrap();
    Stream::Tls(Box::new(rustls::StreamOwned::new(connection, stream)))
}

#[test]
fn https_certificates_are_verified() {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], signing_key.serialize_der().try_into().unwrap())
        .unwrap();
    assert!(TLS.set(Arc::new(config)).is_ok());
    let directory = tempfile::tempdir().unwrap();
    let trusted = directory.path().join("trusted.pem");
    std::fs::write(&trusted, cert.pem()).unwrap();
    let trusted = trusted.to_str().unwrap();
    let other = directory.path().join("other.pem");
    let another = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&other, another.cert.pem()).unwrap();
    let none = directory.path().join("none.pem");
    std::fs::write(&none, "").unwrap();

    let empty = directory.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let empty = empty.to_str().unwrap();

    let server = Server::with(encrypted, |_, request| Reply::vectors(request, 2));
    let plain = Server::new(|_, request| Reply::vectors(request, 2));
    let at = |host: &str, server: &Server| format!("https://{host}:{}/v1", server.port());
    for (url, file, expected) in [
        (at("localhost", &server), trusted, "[4.0, 1.0]"),
        (at("127.0.0.1", &server), trusted, "InvalidConfig"),
        (at("localhost", &server), other.to_str().unwrap(), "InvalidConfig"),
        (at("localhost", &server), none.to_str().unwrap(), "not built: InvalidConfig"),
        (at("localhost", &plain), trusted, "Unavailable"),
    ] {
        let variables = [
            ("OPENAI_BASE_URL", &*url),
            ("OPENAI_API_KEY", KEY),
            ("SSL_CERT_FILE", file),
            ("SSL_CERT_DIR", empty),
            ("EXPECT", expected),
        ];
        in_child(&variables);
    }
    assert_eq!(server.requests().len(), 1, "nothing was sent to untrusted servers");
}
