//! Group recall: the recall and latency of searches with a query, on clustered vectors. Results are compared with exact
//! ones, which are computed here.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use checkpoint_benches::{Clusters, Latencies, Mark, Recorder, SplitMix64, text};
use checkpoint_core::store::{
    Distance, Embeddings, IndexConfig, ItemFilter, JsonObject, Namespace, Op, PutOp, SearchItem, StoreExt,
};
use checkpoint_core::{Error, ErrorKind, InMemoryStore, Str, id};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use store_postgres::{AnnIndex, PostgresStore, VectorType};

use crate::groups::check;
use crate::place::{Disk, Place};
use crate::stores::Store;
use crate::{Arguments, Implementation, Result};

/// The limit of a search.
const NEAREST: usize = 10;
/// Scores that differ by less are equal: vectors are 32-bit floats.
const ROUNDING: f64 = 1e-6;
/// The cosine, as all vectors have length 1.
const NEARNESS: Distance = Distance::InnerProduct;
/// The maximum error of a score of 16-bit floats.
const HALF_ROUNDING: f64 = 5e-3;
/// The number of untimed searches of each kind before the timed ones.
const WARM_UP: usize = 10;

/// The options of group recall.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Group recall")]
pub(crate) struct RecallArguments {
    /// The number of items.
    #[arg(long, default_value_t = 100_000)]
    vectors: usize,
    /// The dimensions of their vectors.
    #[arg(long, default_value_t = 384)]
    dims: usize,
    /// The number of clusters.
    #[arg(long, default_value_t = 1000)]
    clusters: usize,
    /// The length of the noise around a cluster's centre, relative to the centre's.
    #[arg(long, default_value_t = 0.5)]
    noise: f64,
    /// The number of queries.
    #[arg(long, default_value_t = 200)]
    queries: usize,
    /// The number of items in a batch of puts.
    #[arg(long, default_value_t = 500)]
    batch: usize,
    /// The indexes to measure, each in a new database.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Ann::Hnsw, Ann::Flat])]
    ann: Vec<Ann>,
    /// The type of the column.
    #[arg(long, value_enum, default_value_t = Numbers::Vector)]
    vector_type: Numbers,
    /// Values of `hnsw.ef_search` to measure beside the store's own.
    #[arg(long, value_delimiter = ',')]
    ef_search: Vec<u16>,
    /// The neighbours of a vector in hnsw's graph; the server's default if not given.
    #[arg(long)]
    m: Option<u16>,
    /// The candidates of an insertion into hnsw's graph; the server's default if not given.
    #[arg(long)]
    ef_construction: Option<u16>,
    /// Builds the index after everything is stored.
    #[arg(long)]
    index_last: bool,
}

impl RecallArguments {
    fn ann_index(&self, ann: Ann) -> Result<AnnIndex> {
        Ok(match ann {
            Ann::Hnsw => {
                let index = self.m.into_iter().fold(AnnIndex::hnsw(), AnnIndex::m);
                self.ef_construction.into_iter().fold(index, AnnIndex::ef_construction)
            }
            // The number that pgvector recommends.
            Ann::Ivfflat => AnnIndex::ivfflat(u32::try_from(self.vectors.div_ceil(1000))?),
            Ann::Flat => AnnIndex::Flat,
        })
    }

    fn vector_type(&self) -> VectorType {
        match self.vector_type {
            Numbers::Vector => VectorType::Vector,
            Numbers::Halfvec => VectorType::Halfvec,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Ann {
    Hnsw,
    /// Of little use unless it is built after everything is stored.
    Ivfflat,
    /// None: every search is exact.
    Flat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Numbers {
    Vector,
    Halfvec,
}

/// The value of an item, with the fields for filters.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Value {
    /// Identifies the vector.
    text: String,
    tenth: u64,
    hundredth: u64,
    /// Clusters by hundredths.
    topic: u64,
    body: String,
}

/// An item without its vector.
#[derive(Debug, Clone)]
struct Card {
    tenant: &'static str,
    tenth: u64,
    hundredth: u64,
    topic: u64,
}

impl Card {
    fn of(number: usize, cluster: usize) -> Self {
        let mut random = SplitMix64::new(0xCA2D + number as u64);
        let tenant = match random.next_u64() % 1000 {
            0..2 => "few",
            2..500 => "many",
            _ => "other",
        };
        let (tenth, hundredth) = (random.next_u64() % 10, random.next_u64() % 100);
        Self { tenant, tenth, hundredth, topic: cluster as u64 % 100 }
    }

    fn put(&self, number: usize) -> Result<Op> {
        let mut random = SplitMix64::new(number as u64);
        let Self { tenant, tenth, hundredth, topic } = *self;
        let value = Value { text: name(number), tenth, hundredth, topic, body: text(&mut random, 200) };
        let value = JsonObject::new(&value)?;
        Ok(Op::Put(PutOp::new(["recall", tenant], name(number), value)))
    }
}

/// All vectors, the queries' last, and the items.
struct Data {
    vectors: Vec<Vec<f32>>,
    cards: Vec<Card>,
}

impl Data {
    fn draw(arguments: &RecallArguments) -> Self {
        let RecallArguments { vectors, dims, clusters, noise, queries, .. } = *arguments;
        let clusters = Clusters::new(0x5EED, clusters, dims, noise);
        let drawn = (0..).take(vectors + queries).map(|number| clusters.vector(number));
        let (of, drawn): (Vec<_>, Vec<_>) = drawn.unzip();
        let cards =
            of.into_iter().take(vectors).enumerate().map(|(at, cluster)| Card::of(at, cluster)).collect();
        Self { vectors: drawn, cards }
    }

    fn queries(&self) -> std::ops::Range<usize> {
        self.cards.len()..self.vectors.len()
    }
}

/// The text that identifies a vector, which is also the key of its item.
fn name(number: usize) -> String {
    format!("v{number:07}")
}

fn number(name: &str) -> Option<usize> {
    name.strip_prefix('v')?.parse().ok()
}

/// Embeddings that return the vector of each name.
#[derive(Clone)]
struct Drawn(Arc<Data>);

impl fmt::Debug for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Drawn({} vectors)", self.0.vectors.len())
    }
}

#[async_trait]
impl Embeddings for Drawn {
    async fn embed_documents(&self, texts: &[&str]) -> checkpoint_core::Result<Vec<Vec<f32>>> {
        let unknown = || Error::new(ErrorKind::Backend, "a text without a vector");
        let vector = |text: &&str| {
            number(text).and_then(|number| self.0.vectors.get(number)).cloned().ok_or_else(unknown)
        };
        texts.iter().map(vector).collect()
    }
}

/// A part of the store to search.
struct Scope {
    name: &'static str,
    what: &'static str,
    namespace: Namespace,
    filter: ItemFilter,
    has: fn(&Card) -> bool,
}

fn scopes() -> Vec<Scope> {
    let root = Namespace::from(["recall"]);
    let none = ItemFilter::new;
    vec![
        Scope {
            name: "all",
            what: "everything",
            namespace: Namespace::root(),
            filter: none(),
            has: |_| true,
        },
        Scope {
            name: "many",
            what: "a namespace with half of it",
            namespace: Namespace::from(["recall", "many"]),
            filter: none(),
            has: |card| card.tenant == "many",
        },
        Scope {
            name: "few",
            what: "a namespace with 0.2 %",
            namespace: Namespace::from(["recall", "few"]),
            filter: none(),
            has: |card| card.tenant == "few",
        },
        Scope {
            name: "tenth",
            what: "a filter that 10 % meet",
            namespace: root.clone(),
            filter: none().eq("tenth", 7),
            has: |card| card.tenth == 7,
        },
        Scope {
            name: "hundredth",
            what: "a filter that 1 % meet",
            namespace: root.clone(),
            filter: none().eq("hundredth", 7),
            has: |card| card.hundredth == 7,
        },
        Scope {
            name: "topic",
            what: "a filter that 1 % meet, most of them far from the query",
            namespace: root,
            filter: none().eq("topic", 7),
            has: |card| card.topic == 7,
        },
    ]
}

/// The exact result of one query in one scope.
#[derive(Clone, Copy)]
struct Answer {
    /// The number of matching items.
    there: usize,
    /// The score of the last of them.
    least: f64,
}

/// The exact results of all queries, for each scope.
fn answers(data: &Data, scopes: &[Scope]) -> Vec<Vec<Answer>> {
    let mut answers = vec![Vec::new(); scopes.len()];
    for query in &data.vectors[data.queries()] {
        let of_all: Vec<f64> =
            data.vectors.iter().take(data.cards.len()).map(|vector| NEARNESS.score(query, vector)).collect();
        for (scope, answers) in scopes.iter().zip(&mut answers) {
            let in_scope = data.cards.iter().zip(&of_all).filter(|(card, _)| (scope.has)(card));
            let mut best: Vec<f64> = in_scope.map(|(_, score)| *score).collect();
            best.sort_unstable_by(|one, other| other.total_cmp(one));
            best.truncate(NEAREST);
            let least = best.last().copied().unwrap_or_default();
            answers.push(Answer { there: best.len(), least });
        }
    }
    answers
}

/// The measurements of one scope.
#[derive(Debug, Serialize)]
struct Row {
    ann: Ann,
    ef_search: Option<u16>,
    scope: &'static str,
    /// The fraction of the nearest items that was found.
    recall: f64,
    latencies: Latencies,
}

/// The cost of storing all items.
#[derive(Debug, Serialize)]
struct Load {
    ann: Ann,
    seconds: f64,
    /// The additional cost of the index, if it was built last.
    index_seconds: f64,
    batches: Latencies,
    disk: Option<Disk>,
}

#[derive(Debug, Serialize)]
struct Line {
    r#impl: String,
    group: crate::Group,
    sync: crate::Synchrony,
    vectors: usize,
    dims: usize,
    clusters: usize,
    noise: f64,
    vector_type: Numbers,
    loads: Vec<Load>,
    rows: Vec<Row>,
    max_rss_mb: f64,
    at: Str,
}

/// A run of the group.
struct Recall<'a> {
    arguments: &'a Arguments,
    data: Arc<Data>,
    scopes: Vec<Scope>,
    answers: Vec<Vec<Answer>>,
    loads: Vec<Load>,
    rows: Vec<Row>,
}

/// Prints the table, and the same as a line of JSON.
pub(crate) async fn run(arguments: &Arguments) -> Result<()> {
    let data = Arc::new(Data::draw(&arguments.recall));
    let scopes = scopes();
    let answers = answers(&data, &scopes);
    let mut recall = Recall { arguments, data, scopes, answers, loads: Vec::new(), rows: Vec::new() };
    match arguments.r#impl {
        Implementation::Memory => {
            let store: Store = Arc::new(InMemoryStore::builder().index(recall.index()).build()?);
            recall.measure_all(&store, &[(None, Arc::clone(&store))], Ann::Flat, &Place::Memory).await?;
        }
        Implementation::Postgres => {
            for ann in &arguments.recall.ann {
                let place = Place::Database(arguments.postgres.server.database(arguments.sync).await?);
                let measured = recall.measure_in(*ann, &place).await;
                if let Place::Database(database) = place {
                    database.remove().await?;
                }
                measured?;
            }
        }
        _ => return Err("only the stores in memory and on PostgreSQL search by meaning".into()),
    }
    recall.print()
}

impl Recall<'_> {
    fn index(&self) -> IndexConfig {
        IndexConfig::new(self.arguments.recall.dims, Drawn(Arc::clone(&self.data))).fields(["text"])
    }

    async fn measure_in(&mut self, ann: Ann, place: &Place) -> Result<()> {
        let Place::Database(database) = place else { return Err("this needs a database".into()) };
        let open = |ann: Ann, ef_search: Option<u16>| {
            let mut builder = PostgresStore::builder(database.url())
                .index(self.index())
                .filter_index(self.arguments.postgres.filter_index)
                .ann_index(self.arguments.recall.ann_index(ann)?)
                .vector_type(self.arguments.recall.vector_type());
            if let Some(ef_search) = ef_search {
                builder = builder.ef_search(ef_search);
            }
            Result::<_>::Ok(Arc::new(builder.build()?) as Store)
        };
        let mut stores = vec![(None, open(ann, None)?)];
        if ann == Ann::Hnsw {
            for ef_search in &self.arguments.recall.ef_search {
                stores.push((Some(*ef_search), open(ann, Some(*ef_search))?));
            }
        }
        let loads = open(if self.arguments.recall.index_last { Ann::Flat } else { ann }, None)?;
        self.measure_all(&loads, &stores, ann, place).await
    }

    /// Stores everything by one store, then searches with each of the others.
    async fn measure_all(
        &mut self,
        loads: &Store,
        stores: &[(Option<u16>, Store)],
        ann: Ann,
        place: &Place,
    ) -> Result<()> {
        loads.setup().await?;
        let (seconds, batches) = self.load(loads).await?;
        let begun = Instant::now();
        for (_, store) in stores {
            store.setup().await?;
        }
        let index_seconds = begun.elapsed().as_secs_f64();
        place.analyze().await?;
        let disk = place.disk().await?;
        let items = self.data.cards.len();
        eprintln!("{ann:?}: {items} items stored in {seconds:.1} s, the index made in {index_seconds:.1} s");
        self.loads.push(Load { ann, seconds, index_seconds, batches, disk });
        for (ef_search, store) in stores {
            for at in 0..self.scopes.len() {
                let row = self.search(store, at, ann, *ef_search).await?;
                self.rows.push(row);
            }
        }
        Ok(())
    }

    async fn load(&self, store: &Store) -> Result<(f64, Latencies)> {
        let mut recorder = Recorder::default();
        let begun = Instant::now();
        let numbered: Vec<_> = self.data.cards.iter().enumerate().collect();
        for batch in numbered.chunks(self.arguments.recall.batch.max(1)) {
            let ops = batch.iter().map(|(number, card)| card.put(*number)).collect::<Result<Vec<_>>>()?;
            let mark = Mark::now();
            store.batch(ops).await?;
            recorder.record("batch", mark);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let batches = recorder.finish().swap_remove("batch").ok_or("there is nothing to store")?;
        Ok((seconds, batches))
    }

    /// Runs all queries in one scope.
    async fn search(&self, store: &Store, at: usize, ann: Ann, ef_search: Option<u16>) -> Result<Row> {
        let scope = &self.scopes[at];
        let mut recorder = Recorder::default();
        let (mut found, mut there) = (0, 0);
        let queries = || self.data.queries().zip(&self.answers[at]);
        for (timed, (query, answer)) in
            queries().take(WARM_UP).map(|query| (false, query)).chain(queries().map(|query| (true, query)))
        {
            let filter = scope.filter.clone();
            let begun = Mark::now();
            let items =
                store.search(&scope.namespace).filter(filter).query(name(query)).limit(NEAREST).await?;
            if timed {
                recorder.record(scope.name, begun);
                found += self.found(scope, query, &items, *answer)?;
                there += answer.there;
            }
        }
        let latencies = recorder.finish().swap_remove(scope.name).ok_or("there are no queries")?;
        #[expect(clippy::cast_precision_loss, reason = "there are far fewer than 2^52 items")]
        let recall = found as f64 / there.max(1) as f64;
        Ok(Row { ann, ef_search, scope: scope.name, recall, latencies })
    }

    /// Checks the items found, and counts those among the nearest.
    fn found(&self, scope: &Scope, query: usize, items: &[SearchItem], answer: Answer) -> Result<usize> {
        let half = self.arguments.recall.vector_type == Numbers::Halfvec
            && self.arguments.r#impl == Implementation::Postgres;
        let off = if half { HALF_ROUNDING } else { 10.0 * ROUNDING };
        check(items.len() <= answer.there, "no more than there is")?;
        let (mut found, mut seen, mut last) = (0, HashSet::new(), f64::INFINITY);
        for SearchItem { item, score, .. } in items {
            let number = number(&item.key).filter(|number| *number < self.data.cards.len());
            let number = number.ok_or("an item that was never stored")?;
            let card = &self.data.cards[number];
            check(seen.insert(number) && (scope.has)(card), "each item once, and none from elsewhere")?;
            check(item.namespace == Namespace::from(["recall", card.tenant]), "the namespace of an item")?;
            check(item.value.decode::<Value>()?.text == name(number), "the value of an item")?;
            let exact = NEARNESS.score(&self.data.vectors[query], &self.data.vectors[number]);
            let nearness = score.ok_or("an item without a score")?;
            check((nearness - exact).abs() < off, "the score of an item")?;
            check(nearness <= last, "the order of items")?;
            last = nearness;
            if exact >= answer.least - ROUNDING {
                found += 1;
            }
        }
        Ok(found)
    }

    fn print(self) -> Result<()> {
        let arguments = &self.arguments.recall;
        println!(
            "{} items, {} dimensions, {} clusters, noise {}, {} queries, {}\n",
            arguments.vectors,
            arguments.dims,
            arguments.clusters,
            arguments.noise,
            arguments.queries,
            if arguments.vector_type == Numbers::Vector { "vector" } else { "halfvec" }
        );
        let last = arguments.index_last;
        let header = if last { "without the index, in s | index made in s" } else { "with the index, in s" };
        println!("| index | stored {header} | a batch of {}, p50 in ms |", arguments.batch);
        println!("|---|{}---|", "---|".repeat(1 + usize::from(last)));
        for Load { ann, seconds, index_seconds, batches, .. } in &self.loads {
            let index = if last { format!(" {index_seconds:.1} |") } else { String::new() };
            println!("| {} | {seconds:.1} |{index} {:.1} |", named(*ann), batches.p50_ms);
        }
        println!("\n| index | ef_search | searched | recall@{NEAREST} | p50 in ms | p95 in ms | goal |");
        println!("|---|---|---|---|---|---|---|");
        for row in &self.rows {
            let what =
                self.scopes.iter().find(|scope| scope.name == row.scope).map_or("", |scope| scope.what);
            let ef_search = row.ef_search.map_or_else(|| "default".to_owned(), |value| value.to_string());
            let (goal, met) = match row.ann {
                Ann::Hnsw | Ann::Ivfflat => ("0.95", row.recall >= 0.95),
                Ann::Flat => ("1", row.recall >= 1.0),
            };
            println!(
                "| {} | {} | {what} | {:.4} | {:.2} | {:.2} | {goal}: {} |",
                named(row.ann),
                if row.ann == Ann::Hnsw { &ef_search } else { "" },
                row.recall,
                row.latencies.p50_ms,
                row.latencies.p95_ms,
                if met { "yes" } else { "**no**" },
            );
        }
        let line = Line {
            r#impl: self.arguments.name(),
            group: self.arguments.group,
            sync: self.arguments.sync,
            vectors: arguments.vectors,
            dims: arguments.dims,
            clusters: arguments.clusters,
            noise: arguments.noise,
            vector_type: arguments.vector_type,
            loads: self.loads,
            rows: self.rows,
            max_rss_mb: crate::max_rss_mb(),
            at: id::now(),
        };
        println!("\n{}", serde_json::to_string(&line)?);
        Ok(())
    }
}

fn named(ann: Ann) -> &'static str {
    match ann {
        Ann::Hnsw => "hnsw",
        Ann::Ivfflat => "ivfflat",
        Ann::Flat => "flat",
    }
}
