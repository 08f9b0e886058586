//! An HTTP service that keeps a chat per thread: errors as status codes, probes, graceful shutdown, keys that rotate.
//!
//! ```sh
//! cargo run -p checkpoint-sqlite --example http_service -- agents.sqlite
//! curl --data "hello" http://127.0.0.1:8080/threads/ann
//! curl http://127.0.0.1:8080/threads/ann
//! curl http://127.0.0.1:8080/ready
//! ```
//!
//! `CHAT_KEYS` encrypts: `NAME=KEY` with a key of 64 hexadecimal digits. To rotate, put a new key before the old one:
//! `CHAT_KEYS=2026-11=…,2025-11=…`. New values are encrypted with the first key, and all keys decrypt.

use std::io;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use checkpoint_core::prelude::*;
use checkpoint_core::{Error, Result};
use checkpoint_sqlite::SqliteSaver;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;

/// Handlers know only the trait, so any database will do.
pub(crate) type Saver = Arc<dyn BaseCheckpointSaver>;

/// The state of a thread. Each field is a channel.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Chat {
    messages: Vec<String>,
}

/// An error as a response. Its text is for the log: it names ids and servers.
struct Failed(Error);

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let status = match error.kind() {
            ErrorKind::InvalidArgument => StatusCode::BAD_REQUEST,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Schema => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            // The keys, the configuration, the stored data or the database: nothing that a client can change.
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        eprintln!("{status}: {error:?}");
        let body = json!({ "error": error.kind().as_str(), "retry": error.is_retryable() });
        (status, Json(body)).into_response()
    }
}

/// One request: one step of one thread. Of two requests to one thread at the same time, the later one is a conflict.
async fn say(
    State(saver): State<Saver>,
    Path(thread_id): Path<String>,
    message: String,
) -> Result<Json<Chat>, Failed> {
    let thread = saver.thread(thread_id);
    let at = match thread.latest().await? {
        Some(at) => at,
        None => thread.begin(&Chat::default()).if_latest().await?,
    };
    let mut chat: Chat = at.values()?;
    chat.messages.push(message);
    thread.commit_if_latest(&at, &chat).await?; // Durable when this returns.
    Ok(Json(chat))
}

async fn show(State(saver): State<Saver>, Path(thread_id): Path<String>) -> Result<Response, Failed> {
    Ok(match saver.thread(thread_id).latest().await? {
        Some(at) => Json(at.values::<Chat>()?).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    })
}

/// Whether the database can be reached.
async fn live(State(saver): State<Saver>) -> Result<StatusCode, Failed> {
    Ok(saver.ping().await.map(|()| StatusCode::NO_CONTENT)?)
}

/// Whether the tables are those that this program needs. Changes nothing.
async fn ready(State(saver): State<Saver>) -> Result<StatusCode, Failed> {
    Ok(saver.check_schema().await.map(|()| StatusCode::NO_CONTENT)?)
}

/// Serves until the shutdown, lets requests end, and closes the saver.
pub(crate) async fn serve(
    listener: TcpListener,
    saver: Saver,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let routes = Router::new()
        .route("/threads/{thread_id}", get(show).post(say))
        .route("/live", get(live))
        .route("/ready", get(ready))
        .with_state(Arc::clone(&saver));
    axum::serve(listener, routes).with_graceful_shutdown(shutdown).await?;
    saver.close().await.map_err(io::Error::other)
}

/// Ends with SIGTERM, as Kubernetes and systemd send it, or Ctrl-C.
pub(crate) async fn stopped() {
    #[cfg(unix)]
    let terminated = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut signals) => drop(signals.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<()>();
    tokio::select! {
        () = terminated => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

/// The first key encrypts, all keys decrypt. An old key is removed once nothing is encrypted with it any more.
pub(crate) fn cipher(keys: &str) -> Result<Option<Cipher>> {
    let mut cipher: Option<Cipher> = None;
    for key in keys.split(',').filter(|key| !key.is_empty()) {
        let invalid = || Error::new(ErrorKind::InvalidConfig, "a key is given as NAME=HEX");
        let (name, hex) = key.split_once('=').ok_or_else(invalid)?;
        let byte = |at: usize| hex.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let key: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect::<Option<_>>().ok_or_else(invalid)?;
        cipher = Some(match cipher {
            None => Cipher::aes_gcm(name, &key)?,
            Some(first) => first.with_aes_gcm_decryption_key(name, &key)?,
        });
    }
    Ok(cipher)
}

pub(crate) fn open(path: &str, cipher: Option<Cipher>) -> Result<Saver> {
    let mut builder = SqliteSaver::builder(path);
    if let Some(cipher) = cipher {
        builder = builder.cipher(cipher);
    }
    Ok(Arc::new(builder.build()?))
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "agents.sqlite".to_owned());
    let keys = std::env::var("CHAT_KEYS").unwrap_or_default();
    let saver = cipher(&keys).and_then(|cipher| open(&path, cipher)).map_err(io::Error::other)?;
    // At deploy; a service whose role may not create tables leaves it out, and /ready tells whether it was done.
    saver.setup().await.map_err(io::Error::other)?;
    let listener = TcpListener::bind("127.0.0.1:8080").await?;
    println!("listening on http://{}", listener.local_addr()?);
    serve(listener, saver, stopped()).await
}
