//! A service that keeps its threads in PostgreSQL: one pool, migrations at deploy, graceful shutdown.
//!
//! ```sh
//! cargo run -p checkpoint-postgres --example service -- postgres://agents@localhost/agents
//! ```
//!
//! Without an argument, the URL comes from `DATABASE_URL`. The tables are made in the schema `checkpoint_example`.

use std::time::Duration;

use checkpoint_core::{BaseCheckpointSaver, Error, ErrorKind, Result, SaverExt, Thread};
use checkpoint_postgres::PostgresSaver;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

/// The state of a conversation. Each field is a channel.
#[derive(Debug, Serialize, Deserialize)]
struct Chat {
    messages: Vec<String>,
}

/// Handles one request: one step of one thread.
async fn answer(thread: Thread<PostgresSaver>, message: String) -> Result<()> {
    let at = match thread.latest().await? {
        Some(at) => at,
        None => thread.begin(&Chat { messages: vec![] }).await?,
    };
    let mut chat: Chat = at.values()?;
    chat.messages.push(format!("you said: {message}"));
    thread.commit(&at, &chat).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args()
        .nth(1)
        .or_else(|| std::env::var("DATABASE_URL").ok())
        .ok_or_else(|| Error::new(ErrorKind::InvalidConfig, "give a URL as argument, or set DATABASE_URL"))?;

    // `build` checks the options and opens nothing; connections are opened when they are needed. Clones share the pool.
    let saver = PostgresSaver::builder(url)
        .schema("checkpoint_example")
        .max_connections(4)
        .acquire_timeout(Duration::from_secs(5)) // How long a call waits for a free connection.
        .statement_timeout(Duration::from_secs(10)) // How long the server works on a statement.
        .build()?;

    // At deploy: creates or migrates the tables. Idempotent, and safe from many processes at once.
    saver.setup().await?;

    // In service: 16 requests at once share the 4 connections.
    let mut requests = JoinSet::new();
    for user in 0..16 {
        let thread = saver.clone().thread(format!("user-{user}"));
        requests.spawn(answer(thread, "hello".into()));
    }
    let mut answered = 0;
    while let Some(done) = requests.join_next().await {
        done.map_err(|error| Error::new(ErrorKind::Backend, "a request panicked").with_source(error))??;
        answered += 1;
    }
    println!("answered {answered} requests");

    // Cleans up what this example stored.
    for user in 0..16 {
        saver.delete_thread(&format!("user-{user}")).await?;
    }

    // At shutdown: waits for calls under way and closes the connections. Later calls get an error.
    saver.close().await?;
    if let Err(error) = saver.list_first(checkpoint_core::ListQuery::all()).await {
        println!("after close: {error}");
    }
    Ok(())
}
