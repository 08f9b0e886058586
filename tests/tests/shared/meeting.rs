//! A database in which Rust's and Python's stores meet.

#![allow(dead_code, unused_imports, unused_macros, reason = "each binary uses its part of this")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;

use checkpoint_conformance::Missing;
use checkpoint_core::store::{
    BaseStore, Distance, Embeddings, IndexConfig, Item, ItemFilter, SearchOp, StoreExt, TtlConfig,
};
use checkpoint_core::store::{Op, OpResult, SearchItem};
use checkpoint_core::{Result, async_trait};
use libtest_mimic::{Completion, Trial};
use serde_json::{Value as Json, json};
use store_postgres::{AnnIndex, PostgresStore, VectorType};

use super::postgres::{Database, Kind, Server, in_runtime, rows};
use super::pythons::{self, GENERATIONS};

/// The paths that both sides embed.
pub(crate) const FIELDS: [&str; 2] = ["text", "tags[*]"];

/// Makes the vectors that `stores.py` makes: counts bytes by their value modulo eight, in thirds.
#[derive(Debug)]
pub(crate) struct Bytes;

impl Bytes {
    pub(crate) const DIMS: usize = 8;
}

#[async_trait]
impl Embeddings for Bytes {
    async fn embed_documents(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        let vector = |text: &&str| {
            let mut counts = [0_u32; Self::DIMS];
            counts[0] = 1;
            for byte in text.bytes() {
                counts[usize::from(byte) % Self::DIMS] += 1;
            }
            #[expect(clippy::cast_possible_truncation, reason = "as the server rounds what Python sends")]
            counts.map(|count| (f64::from(count) / 3.0) as f32).to_vec()
        };
        Ok(texts.iter().map(vector).collect())
    }
}

/// What both sides are told about vectors.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Index {
    pub(crate) distance: Distance,
    pub(crate) vector_type: VectorType,
    pub(crate) ann: AnnIndex,
}

impl Index {
    fn of_python(self) -> Json {
        let distance = match self.distance {
            Distance::L2 => "l2",
            Distance::InnerProduct => "inner_product",
            _ => "cosine",
        };
        let mut ann = json!({"vector_type": self.vector_type.as_str()});
        match self.ann {
            AnnIndex::Hnsw { m, ef_construction } => {
                ann["kind"] = "hnsw".into();
                for (name, set) in [("m", m), ("ef_construction", ef_construction)] {
                    if let Some(set) = set {
                        ann[name] = set.into();
                    }
                }
            }
            AnnIndex::Ivfflat { lists } => {
                ann["kind"] = "ivfflat".into();
                ann["nlist"] = lists.into();
            }
            _ => ann["kind"] = "flat".into(),
        }
        json!({"fields": FIELDS, "distance_type": distance, "ann_index_config": ann})
    }
}

/// A Python that runs commands on its store.
#[derive(Debug)]
pub(crate) struct Python {
    commands: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Python {
    pub(crate) fn start(python: &Path, asynchronous: bool) -> Self {
        let environment = [("CHECKPOINT_TEST_ASYNC", Some(if asynchronous { "1" } else { "0" }))];
        let commands = pythons::start(python, "stores", &[], &environment);
        Self { answers: BufReader::new(commands.try_clone().unwrap()), commands }
    }

    /// Gives it a command, and does not wait for it.
    pub(crate) fn tell(&mut self, command: &Json) {
        self.commands.write_all(format!("{command}\n").as_bytes()).unwrap();
    }

    /// What the oldest command came to that was not asked for: its result, or the error's class and message.
    pub(crate) fn answer(&mut self) -> Result<Json, String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let mut answer: Json =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("Python answered {line:?}: {error}"));
        match answer.get("error") {
            None => Ok(answer["result"].take()),
            Some(class) => {
                Err(format!("{}: {}", class.as_str().unwrap(), answer["message"].as_str().unwrap()))
            }
        }
    }

    /// Runs a command.
    pub(crate) fn call(&mut self, command: &Json) -> Result<Json, String> {
        self.tell(command);
        self.answer()
    }

    /// Runs a command that succeeds.
    pub(crate) fn run(&mut self, command: &Json) -> Json {
        self.call(command).unwrap_or_else(|error| panic!("Python's {command} failed: {error}"))
    }
}

/// A database, and a Python of one generation.
pub(crate) struct Meeting {
    pub(crate) asynchronous: bool,
    pub(crate) python: Python,
    /// Where the generation stands in the list of them.
    pub(crate) at: usize,
    pub(crate) database: Database,
    /// What new databases are made on.
    pub(crate) server: String,
}

impl Meeting {
    /// Goes to an empty database.
    pub(crate) async fn move_on(&mut self) {
        self.database = Database::create(&self.server).await;
    }

    /// Lets Python open its store.
    pub(crate) fn open(&mut self, index: Option<Index>, ttl: &Json) {
        let options = json!({"index": index.map(Index::of_python), "ttl": ttl});
        self.python.run(&json!(["open", self.database.url(), options]));
    }

    /// Rust's store on the same tables.
    pub(crate) fn rust(&self, index: Option<Index>, ttl: TtlConfig) -> PostgresStore {
        let mut builder = PostgresStore::builder(self.database.url()).ttl(ttl);
        if let Some(Index { distance, vector_type, ann }) = index {
            let config = IndexConfig::new(Bytes::DIMS, Bytes).fields(FIELDS).distance(distance);
            builder = builder.index(config).vector_type(vector_type).ann_index(ann);
        }
        builder.build().unwrap()
    }

    /// Both stores on tables that Python made and Rust found made.
    pub(crate) async fn set_up_by_python(&mut self, index: Option<Index>) -> PostgresStore {
        self.open(index, &Json::Null);
        self.python.run(&json!(["setup"]));
        let store = self.rust(index, TtlConfig::new());
        store.setup().await.unwrap();
        store
    }

    /// Both stores on tables that Rust made and Python found made.
    pub(crate) async fn set_up_by_rust(&mut self, index: Option<Index>) -> PostgresStore {
        let store = self.rust(index, TtlConfig::new());
        store.setup().await.unwrap();
        self.open(index, &Json::Null);
        self.python.run(&json!(["setup"]));
        store
    }

    pub(crate) async fn rows(&self, query: &str) -> Vec<Vec<Option<String>>> {
        rows(&self.database.client().await, query).await
    }

    pub(crate) async fn execute(&self, statement: &str) {
        self.database.client().await.batch_execute(statement).await.unwrap();
    }
}

/// An item as Python tells it.
pub(crate) fn of_item(item: &Item) -> Json {
    let labels: Vec<&str> = item.namespace.labels().iter().map(|label| &**label).collect();
    json!({
        "namespace": labels,
        "key": &*item.key,
        "value": item.value.decode::<Json>().unwrap(),
        "created_at": item.created_at.timestamp_micros(),
        "updated_at": item.updated_at.timestamp_micros(),
    })
}

/// What Rust finds: items as Python tells them, with their scores.
pub(crate) fn of_found(found: &[SearchItem]) -> Json {
    let one = |found: &SearchItem| {
        let mut item = of_item(&found.item);
        item["score"] = json!(found.score);
        item
    };
    found.iter().map(one).collect()
}

/// Searches everything below a prefix.
pub(crate) async fn search(
    store: &impl BaseStore,
    prefix: &[&str],
    filter: &Json,
    query: Option<&str>,
) -> Result<Vec<SearchItem>> {
    let mut search = SearchOp::new(prefix.iter().map(|label| (*label).to_owned()).collect::<Vec<_>>());
    search.limit = 1000;
    search.filter = ItemFilter::from_json(filter)?;
    search.query = query.map(Into::into);
    match store.batch(vec![Op::Search(search)]).await?.remove(0) {
        OpResult::Items(items) => Ok(items),
        other => panic!("a search came to {other:?}"),
    }
}

/// What both read under a namespace and a key, which is the same.
pub(crate) async fn both_get(
    meeting: &mut Meeting,
    store: &impl BaseStore,
    namespace: &[&str],
    key: &str,
) -> Json {
    let python = meeting.python.run(&json!(["get", namespace, key]));
    let rust = store.get(owned(namespace), key.to_owned()).await.unwrap();
    let rust = rust.map_or(Json::Null, |item| of_item(&item));
    assert_eq!(rust, python, "{namespace:?} {key:?}");
    rust
}

pub(crate) fn owned(namespace: &[&str]) -> Vec<String> {
    namespace.iter().map(|label| (*label).to_owned()).collect()
}

/// What both find, which is the same, in the same order.
pub(crate) async fn both_search(meeting: &mut Meeting, store: &impl BaseStore, prefix: &[&str]) -> Vec<Json> {
    let Json::Array(mut python) = meeting.python.run(&json!(["search", prefix, {"limit": 1000}])) else {
        panic!("no list")
    };
    // Which of those put at the same time comes first is chance with Python.
    for same_time in python.chunk_by_mut(|a, b| a["updated_at"] == b["updated_at"]) {
        same_time.sort_by_key(|item| {
            let labels = item["namespace"].as_array().unwrap().iter();
            let labels: Vec<_> = labels.map(|label| label.as_str().unwrap()).collect();
            (labels.join("."), item["key"].as_str().unwrap().to_owned())
        });
    }
    let rust = of_found(&search(store, prefix, &json!({}), None).await.unwrap());
    assert_eq!(rust.as_array().unwrap(), &python, "{prefix:?}");
    python
}

/// Lets every time to live be over.
pub(crate) const EXPIRED: &str =
    "UPDATE store SET expires_at = now() - interval '1 second' WHERE ttl_minutes IS NOT NULL";

/// A case.
pub(crate) type Case = (&'static str, fn(Meeting) -> Result<(), Missing>);

/// Lists asynchronous functions as cases, by their names.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {{
        use $crate::shared::meeting::Case;
        use $crate::shared::postgres::{Ended, in_runtime};
        let cases: &[Case] = &[$((stringify!($case), |meeting| in_runtime($case(meeting)).ended())),*];
        cases
    }};
}
pub(crate) use cases;

fn meet(at: usize, asynchronous: bool) -> Result<Meeting, Missing> {
    let python = pythons::find(at)?;
    let server = Server::find(Kind::Postgres17)?;
    Ok(Meeting {
        asynchronous,
        python: Python::start(&python, asynchronous),
        at,
        database: in_runtime(Database::create(server.url())),
        server: server.url().to_owned(),
    })
}

/// The cases of a module, named after it: each runs with both of Python's stores of every generation.
pub(crate) fn trials(module: &str, cases: &[Case]) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (at, (generation, _)) in GENERATIONS.into_iter().enumerate() {
        for (kind, asynchronous) in [("sync", false), ("async", true)] {
            for (name, case) in cases.iter().copied() {
                let trial = move || match meet(at, asynchronous).and_then(case) {
                    Ok(()) => Ok(Completion::Completed),
                    Err(missing) => missing.end(),
                };
                let name = format!("{module}::{name}::{kind}::{generation}");
                trials.push(Trial::ignorable_test(name, trial).with_kind("python"));
            }
        }
    }
    trials
}
