//! The MongoDB saver next to the round trip of a ping, calls in turns; concurrent steps.

use std::error::Error;
use std::sync::Arc;

use checkpoint_benches::{calls, concurrent};
use checkpoint_core::BaseCheckpointSaver;
use checkpoint_mongo::{MongoSaver, mongodb};
use clap::Parser;

#[derive(Debug, Parser)]
#[command(about = "The MongoDB saver next to the round trip of a ping")]
struct Arguments {
    /// The server. A collection of the run's own is made in the URL's database, or else in `langgraph`, and dropped at the
    /// end.
    url: String,
    /// How often the calls of one state are made.
    #[arg(long, default_value_t = 2000)]
    rounds: usize,
    /// How long the concurrent tasks run, in seconds.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// How many tasks step threads of their own at once.
    #[arg(long, default_value_t = 64)]
    tasks: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments = Arguments::parse();
    let client = mongodb::Client::with_uri_str(&arguments.url).await?;
    let database = client.default_database().unwrap_or_else(|| client.database("langgraph"));
    let collection = format!("bench{}", std::process::id());
    let saver =
        MongoSaver::builder(&*arguments.url).database(database.name()).collection(&*collection).build()?;
    saver.setup().await?;
    let done = measure(&saver, &arguments).await;
    // As far as it came, nothing is left behind.
    saver.close().await?;
    for name in database.list_collection_names().await? {
        if name.starts_with(&collection) {
            database.collection::<mongodb::bson::Document>(&name).drop().await?;
        }
    }
    done
}

async fn measure(saver: &MongoSaver, arguments: &Arguments) -> Result<(), Box<dyn Error + Send + Sync>> {
    println!("| state | call | p50 µs | p99 µs | p50 / ping |");
    println!("|---|---|---|---|---|");
    for (name, messages, rounds) in [("small", 9, arguments.rounds), ("large", 1000, arguments.rounds / 4)] {
        calls(saver, name, messages, rounds).await?;
    }
    let rate = concurrent(Arc::new(saver.clone()), arguments.tasks, arguments.seconds).await?;
    println!();
    println!("{} tasks: {rate:.0} steps/s (a put and a put_writes each)", arguments.tasks);
    Ok(())
}
