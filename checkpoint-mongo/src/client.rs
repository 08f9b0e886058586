//! Requests to the server: each runs in a task of its own, has a timeout, and is retried.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use checkpoint_core::backend::{Backoff, telemetry};
use checkpoint_core::{Error, ErrorKind, Result};
use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use mongodb::error::{Error as DriverError, ErrorKind as Driver, Result as DriverResult};
use mongodb::options::{
    ClientOptions, ConnectionString, InsertManyOptions, ReadConcern, ReadPreference, SelectionCriteria,
    WriteConcern,
};
use mongodb::{Client, Collection, Database};
use tokio::runtime::Id;

use crate::error::{self, DUPLICATE, SYSTEM, convert};
use crate::keys::Range;
use crate::runtime;

/// How many runtimes a saver has clients for.
const RUNTIMES: usize = 8;

/// How many bytes of records one insert has, unless a single document has more.
const LONGEST_REQUEST: usize = 16 << 20;

/// How many documents of any length fit into one response.
const FEW: u32 = 5;

/// How many documents are deleted at a time where a range cannot be deleted at once.
const DELETED_AT_A_TIME: i64 = 5000;

/// Where the checkpoints are, and how to reach them.
pub(crate) struct Target {
    pub(crate) parsed: ConnectionString,
    pub(crate) database: String,
    pub(crate) collection: String,
    pub(crate) sharded: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) timeout: Duration,
    pub(crate) max_retries: u32,
    pub(crate) max_pool_size: u32,
    pub(crate) app_name: Option<String>,
}

/// The collection of a saver.
pub(crate) struct Mongo {
    target: Target,
    /// A client's background tasks end with the runtime in which it was made.
    clients: Mutex<HashMap<Id, Client>>,
}

impl fmt::Debug for Mongo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The rest may have a password.
        f.debug_struct("Mongo").field("namespace", &self.namespace()).finish_non_exhaustive()
    }
}

/// What became of an insert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Inserted {
    All,
    /// The documents with these numbers have an `_id` that is taken. An ordered insert stopped at the first of them.
    Duplicates(Vec<usize>),
}

/// What is read of documents.
#[derive(Debug, Clone, Default)]
pub(crate) struct Find {
    pub(crate) filter: Document,
    pub(crate) projection: Option<Document>,
    /// In descending order of the `_id`; ascending otherwise.
    pub(crate) descending: bool,
    /// 0 for all.
    pub(crate) limit: usize,
}

impl Mongo {
    pub(crate) fn new(target: Target) -> Self {
        Self { target, clients: Mutex::default() }
    }

    pub(crate) fn namespace(&self) -> String {
        format!("{}.{}", self.target.database, self.target.collection)
    }

    pub(crate) fn collection_name(&self) -> &str {
        &self.target.collection
    }

    pub(crate) fn is_sharded(&self) -> bool {
        self.target.sharded
    }

    /// Forgets the clients: their connections are closed when the last call that uses them ends.
    pub(crate) fn close(&self) {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    async fn client(&self) -> Result<Client> {
        let id = runtime::current()?.id();
        let known = |clients: &HashMap<Id, Client>| clients.get(&id).cloned();
        if let Some(client) = known(&self.clients.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(client);
        }
        runtime::check_drivers().await?;
        let mut options = ClientOptions::parse(self.target.parsed.clone()).await.map_err(convert)?;
        let set = |unset: &mut Option<Duration>, value| _ = unset.get_or_insert(value);
        set(&mut options.connect_timeout, self.target.connect_timeout);
        set(&mut options.server_selection_timeout, self.target.connect_timeout);
        options.max_pool_size.get_or_insert(self.target.max_pool_size);
        if self.target.app_name.is_some() {
            options.app_name.clone_from(&self.target.app_name);
        }
        // MongoDB 4.4 would acknowledge what a failover undoes; a read elsewhere could lack what was just written.
        options.write_concern = Some(WriteConcern::majority());
        options.read_concern = Some(ReadConcern::local());
        options.selection_criteria = Some(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        let client = Client::with_options(options).map_err(convert)?;
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.len() >= RUNTIMES {
            clients.clear();
        }
        Ok(clients.entry(id).or_insert(client).clone())
    }

    async fn database(&self) -> Result<Database> {
        Ok(self.client().await?.database(&self.target.database))
    }

    /// Makes a request, and again after a transient error.
    async fn request<T, F>(&self, act: impl Fn(Database) -> F + Send + Sync) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = DriverResult<T>> + Send + 'static,
    {
        let mut backoff = Backoff::new(self.target.max_retries);
        loop {
            // The driver's futures are large.
            let task = tokio::spawn(Box::pin(act(self.database().await?)));
            // A task that takes too long goes on: dropped, it would leave its connection in an unknown state.
            let error = match tokio::time::timeout(self.target.timeout, task).await {
                Ok(Ok(Ok(done))) => return Ok(done),
                Ok(Ok(Err(error))) => convert(error),
                Ok(Err(ended)) => return Err(runtime::ended(ended)),
                Err(_) => error::timeout(),
            };
            let Some(pause) = backoff.after(&error) else { return Err(error) };
            telemetry::retry(SYSTEM, error.kind());
            tokio::time::sleep(pause).await;
        }
    }

    fn collection(&self) -> impl Fn(&Database) -> Collection<Document> + Send + Sync + use<> {
        let name = self.target.collection.clone();
        move |database| database.collection(&name)
    }

    /// Reads documents.
    pub(crate) async fn find(&self, find: Find) -> Result<Vec<Document>> {
        let found = match self.find_in(&find, None).await {
            // Some servers put more into one response than the protocol allows.
            Err(error) if error::is_not_understood(&error) => self.find_in(&find, Some(FEW)).await?,
            found => found?,
        };
        telemetry::bytes_read(SYSTEM, found.iter().map(bytes_of).sum());
        Ok(found)
    }

    async fn find_in(&self, find: &Find, batch_size: Option<u32>) -> Result<Vec<Document>> {
        let of = self.collection();
        let act = |database: Database| {
            let (all, find) = (of(&database), find.clone());
            async move {
                let mut action =
                    all.find(find.filter).sort(doc! { "_id": if find.descending { -1 } else { 1 } });
                if let Some(projection) = find.projection {
                    action = action.projection(projection);
                }
                if let Some(limit) = i64::try_from(find.limit).ok().filter(|limit| *limit > 0) {
                    action = action.limit(limit);
                }
                if let Some(batch_size) = batch_size {
                    action = action.batch_size(batch_size);
                }
                action.await?.try_collect::<Vec<_>>().await
            }
        };
        self.request(act).await
    }

    /// Reads one document by its `_id`. The filter has nothing else, because some servers find a document in no other way
    /// without looking at all of them.
    pub(crate) async fn get(
        &self,
        thread_id: &str,
        id: &str,
        projection: Option<Document>,
    ) -> Result<Option<Document>> {
        let find = Find { filter: self.by_id(thread_id, id), projection, limit: 1, ..Find::default() };
        Ok(self.find(find).await?.pop())
    }

    /// Inserts documents: in one request, or in several if they are long, because a request has a time limit.
    pub(crate) async fn insert(&self, documents: &[Document], is_ordered: bool) -> Result<Inserted> {
        let (mut from, mut bytes) = (0, 0);
        let mut duplicates = Vec::new();
        for (at, document) in documents.iter().enumerate() {
            let length = bytes_of(document);
            let is_last = at + 1 == documents.len();
            bytes += length;
            let next = documents.get(at + 1).map_or(0, bytes_of);
            if !is_last && bytes + next <= LONGEST_REQUEST {
                continue;
            }
            let part = documents.get(from..=at).unwrap_or_default();
            if let Inserted::Duplicates(found) = self.insert_part(part, is_ordered).await? {
                duplicates.extend(found.into_iter().map(|number| from + number));
                if is_ordered {
                    break;
                }
            }
            (from, bytes) = (at + 1, 0);
        }
        Ok(if duplicates.is_empty() { Inserted::All } else { Inserted::Duplicates(duplicates) })
    }

    async fn insert_part(&self, documents: &[Document], is_ordered: bool) -> Result<Inserted> {
        let of = self.collection();
        let act = |database: Database| {
            let options = InsertManyOptions::builder().ordered(is_ordered).build();
            let (all, insert) = (of(&database), documents.to_vec());
            async move {
                match all.insert_many(insert).with_options(options).await {
                    Ok(_) => Ok(Inserted::All),
                    Err(error) => duplicates(error),
                }
            }
        };
        let inserted = self.request(act).await?;
        telemetry::bytes_written(SYSTEM, documents.iter().map(bytes_of).sum());
        Ok(inserted)
    }

    /// Stores documents under their `_id`s, over what is there, in their order.
    pub(crate) async fn replace(&self, thread_id: &str, documents: &[Document]) -> Result<()> {
        if documents.is_empty() {
            return Ok(());
        }
        let update = |document: &Document| {
            let id = document.get_str("_id").unwrap_or_default();
            doc! { "q": self.by_id(thread_id, id), "u": document.clone(), "upsert": true, "multi": false }
        };
        let updates: Vec<Document> = documents.iter().map(update).collect();
        let command = doc! { "update": &self.target.collection, "updates": updates, "ordered": true };
        telemetry::bytes_written(SYSTEM, documents.iter().map(bytes_of).sum());
        // Of two upserts of one `_id` at the same time, one may fail.
        for _ in 0..3 {
            match self.write(&command).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                done => return done.map(|_| ()),
            }
        }
        self.write(&command).await.map(|_| ())
    }

    /// Changes the documents that a filter matches, and returns how many it matched.
    pub(crate) async fn update(&self, filter: Document, change: Document) -> Result<u64> {
        let update = doc! { "q": filter, "u": change, "upsert": false, "multi": true };
        self.write(&doc! { "update": &self.target.collection, "updates": [update], "ordered": true }).await
    }

    /// Deletes what filters match, one after the other, in one request. Returns how many documents it deleted.
    pub(crate) async fn delete(&self, filters: Vec<Document>) -> Result<u64> {
        if filters.is_empty() {
            return Ok(0);
        }
        let deletes: Vec<Document> =
            filters.iter().map(|filter| doc! { "q": filter.clone(), "limit": 0 }).collect();
        let command = doc! { "delete": &self.target.collection, "deletes": deletes, "ordered": true };
        match self.write(&command).await {
            Err(error) if error.kind() == ErrorKind::Backend => {
                // Some servers put all ids into one statement of their own database, which has limits.
                let mut count = 0;
                for filter in filters {
                    count += self.delete_in_pages(filter).await?;
                }
                Ok(count)
            }
            done => done,
        }
    }

    async fn delete_in_pages(&self, filter: Document) -> Result<u64> {
        let mut count = 0;
        loop {
            let limit = usize::try_from(DELETED_AT_A_TIME).unwrap_or_default();
            let projection = Some(doc! { "_id": 1 });
            let found =
                self.find(Find { filter: filter.clone(), projection, limit, ..Find::default() }).await?;
            let ids: Vec<Bson> = found.into_iter().filter_map(|mut found| found.remove("_id")).collect();
            if ids.is_empty() {
                return Ok(count);
            }
            let is_last = ids.len() < limit;
            let q = doc! { "_id": { "$in": ids } };
            let command = doc! { "delete": &self.target.collection, "deletes": [{ "q": q, "limit": 0 }], "ordered": true };
            count += self.write(&command).await?;
            if is_last {
                return Ok(count);
            }
        }
    }

    /// Runs a command that writes, and returns its `n`.
    async fn write(&self, command: &Document) -> Result<u64> {
        let mut command = command.clone();
        // `run_command` does not add it.
        command.insert("writeConcern", doc! { "w": "majority" });
        let reply = self.command(command).await?;
        let list = |key: &str| {
            reply.get_array(key).ok().and_then(|errors| errors.first()).and_then(Bson::as_document)
        };
        let failed = list("writeErrors").or_else(|| reply.get_document("writeConcernError").ok());
        if let Some(failed) = failed {
            let code = failed.get_i32("code").unwrap_or_default();
            return Err(error::refused(code, failed.get_str("codeName").unwrap_or_default()));
        }
        let n = reply.get("n");
        let n = n.and_then(|n| n.as_i32().map(i64::from).or_else(|| n.as_i64())).unwrap_or_default();
        Ok(u64::try_from(n).unwrap_or_default())
    }

    /// Runs a command on the database.
    pub(crate) async fn command(&self, command: Document) -> Result<Document> {
        let act = |database: Database| {
            let command = command.clone();
            async move { database.run_command(command).await }
        };
        self.request(act).await
    }

    /// Runs a command on the database `admin`.
    pub(crate) async fn admin(&self, command: Document) -> Result<Document> {
        let act = |database: Database| {
            let command = command.clone();
            async move { database.client().database("admin").run_command(command).await }
        };
        self.request(act).await
    }

    /// The options of the collection, if it is there.
    pub(crate) async fn collection_options(&self) -> Result<Option<Document>> {
        let filter = doc! { "name": &self.target.collection };
        let act = |database: Database| {
            let filter = filter.clone();
            async move { database.run_command(doc! { "listCollections": 1, "filter": filter }).await }
        };
        let reply = self.request(act).await?;
        let batch = reply.get_document("cursor").ok().and_then(|cursor| cursor.get_array("firstBatch").ok());
        let named =
            |found: &&Document| found.get_str("name").is_ok_and(|name| name == self.target.collection);
        let found = batch.into_iter().flatten().filter_map(Bson::as_document).find(named);
        Ok(found.map(|found| found.get_document("options").cloned().unwrap_or_default()))
    }

    /// Makes sure that the server answers.
    pub(crate) async fn ping(&self) -> Result<()> {
        self.command(doc! { "ping": 1 }).await.map(|_| ())
    }

    /// A filter for one document.
    pub(crate) fn by_id(&self, thread_id: &str, id: &str) -> Document {
        self.of_thread(thread_id, doc! { "_id": id })
    }

    /// A filter for several documents: of one thread, or of several.
    pub(crate) fn by_ids<'t>(
        &self,
        thread_id: impl Into<Option<&'t str>>,
        ids: impl IntoIterator<Item = String>,
    ) -> Document {
        let ids: Vec<Bson> = ids.into_iter().map(Bson::String).collect();
        self.of_any(thread_id, doc! { "_id": { "$in": ids } })
    }

    /// A filter for a range of a thread's documents.
    pub(crate) fn in_range(&self, thread_id: &str, range: &Range) -> Document {
        self.of_thread(thread_id, within(range))
    }

    /// A filter for several ranges of documents: of one thread, or of several.
    pub(crate) fn in_ranges<'r, 't>(
        &self,
        thread_id: impl Into<Option<&'t str>>,
        ranges: impl IntoIterator<Item = &'r Range>,
    ) -> Document {
        let ranges: Vec<Document> = ranges.into_iter().map(within).collect();
        match <[Document; 1]>::try_from(ranges) {
            Ok([only]) => self.of_any(thread_id, only),
            Err(ranges) => self.of_any(thread_id, doc! { "$or": ranges }),
        }
    }

    fn of_any<'t>(&self, thread_id: impl Into<Option<&'t str>>, filter: Document) -> Document {
        match thread_id.into() {
            Some(thread_id) => self.of_thread(thread_id, filter),
            None => filter,
        }
    }

    /// Adds the shard key to the filter.
    fn of_thread(&self, thread_id: &str, mut filter: Document) -> Document {
        if self.target.sharded {
            filter.insert("t", thread_id);
        }
        filter
    }
}

/// The bytes of records in a document.
fn bytes_of(document: &Document) -> usize {
    let record = |value: &Bson| match value {
        Bson::Binary(binary) => binary.bytes.len(),
        _ => 0,
    };
    document.values().map(record).sum()
}

/// A filter for a range.
pub(crate) fn within(range: &Range) -> Document {
    doc! { "_id": { "$gte": &range.from, "$lt": &range.to } }
}

/// The duplicates among the errors of an insert, if there are no other errors.
fn duplicates(error: DriverError) -> DriverResult<Inserted> {
    if let Driver::InsertMany(many) = error.kind.as_ref()
        && many.write_concern_error.is_none()
        && let Some(errors) = &many.write_errors
        && !errors.is_empty()
        && errors.iter().all(|error| error.code == DUPLICATE)
    {
        let mut numbers: Vec<_> = errors.iter().map(|error| error.index).collect();
        numbers.sort_unstable();
        return Ok(Inserted::Duplicates(numbers));
    }
    Err(error)
}

/// The error of a server that answered something else than was asked for.
pub(crate) fn not_understood(what: &'static str) -> Error {
    Error::codec("a document of the collection is damaged, or of a newer format").with("field", what)
}
