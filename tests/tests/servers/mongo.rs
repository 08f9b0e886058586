//! What the tests on MongoDB's servers rely on.

use checkpoint_servers::Server as Entry;
use futures_util::TryStreamExt as _;
use mongodb::Collection;
use mongodb::bson::{Document, doc};
use mongodb::error::{ErrorKind, WriteFailure};
use mongodb::options::IndexOptions;

use crate::shared::mongo::wire::{Cut, Relay, Then, proxy};
use crate::shared::mongo::{Database, Kind, Server, Test, tests};
use crate::shared::server::Private;

fn numbered(ids: &[&str]) -> Vec<Document> {
    ids.iter().map(|id| doc! { "_id": id }).collect()
}

/// The ids from `first` up to `end`.
async fn ids(collection: &Collection<Document>, first: &str, end: &str) -> Vec<String> {
    let found = collection.find(doc! { "_id": { "$gte": first, "$lt": end } }).sort(doc! { "_id": 1 }).await;
    let found: Vec<_> = found.unwrap().try_collect().await.unwrap();
    found.iter().map(|document| document.get_str("_id").unwrap().to_owned()).collect()
}

async fn collection(url: &str, database: &Database) -> Collection<Document> {
    let options = format!("{url}/?serverSelectionTimeoutMS=2000&retryWrites=false&retryReads=false");
    mongodb::Client::with_uri_str(options).await.unwrap().database(database.name()).collection("a")
}

async fn an_ordered_insert_stops_at_the_duplicate(server: &Server) {
    let database = Database::new(server.url());
    let collection = collection(server.url(), &database).await;
    collection.insert_many(numbered(&["b"])).await.unwrap();
    let error = collection.insert_many(numbered(&["a", "b", "c"])).await.unwrap_err();
    let ErrorKind::InsertMany(error) = *error.kind else { panic!("{error:?}") };
    let failed: Vec<_> = error.write_errors.unwrap().iter().map(|error| (error.index, error.code)).collect();
    assert_eq!(failed, [(1, 11000)]);
    assert_eq!(ids(&collection, "a", "z").await, ["a", "b"]);
    // Without an order, only the duplicates are left out.
    let error = collection.insert_many(numbered(&["b", "c", "a", "d"])).ordered(false).await.unwrap_err();
    let ErrorKind::InsertMany(error) = *error.kind else { panic!("{error:?}") };
    let mut failed: Vec<_> = error.write_errors.unwrap().iter().map(|error| error.index).collect();
    failed.sort_unstable();
    assert_eq!(failed, [0, 2]);
    assert_eq!(ids(&collection, "a", "z").await, ["a", "b", "c", "d"]);
    let again = collection.insert_one(doc! { "_id": "a" }).await.unwrap_err();
    assert!(
        matches!(&*again.kind, ErrorKind::Write(WriteFailure::WriteError(error)) if error.code == 11000),
        "{again:?}"
    );
}

/// Ids are ordered by their bytes, in both directions, and ranges end before their end.
async fn ranges_are_in_the_order_of_bytes(server: &Server) {
    let database = Database::new(server.url());
    let collection = collection(server.url(), &database).await;
    let all = ["A", "a", "a!1", "a!2", "a!20", "a!2é", "a\"", "b", "~", "é", "😀"];
    let mut shuffled = numbered(&all);
    shuffled.reverse();
    collection.insert_many(shuffled).await.unwrap();
    assert_eq!(ids(&collection, "", "\u{10ffff}").await, all);
    assert_eq!(ids(&collection, "a!", "a\"").await, ["a!1", "a!2", "a!20", "a!2é"]);
    let newest =
        collection.find(doc! { "_id": { "$gte": "a!", "$lt": "a\"" } }).sort(doc! { "_id": -1 }).limit(2);
    let newest: Vec<_> = newest.await.unwrap().try_collect().await.unwrap();
    assert_eq!(newest, numbered(&["a!2é", "a!20"]));
    let some = collection.find(doc! { "_id": { "$in": ["b", "no", "A"] } }).await.unwrap();
    assert_eq!(some.try_collect::<Vec<_>>().await.unwrap().len(), 2);
    let deleted = collection.delete_many(doc! { "_id": { "$gte": "a!", "$lt": "a\"" } }).await.unwrap();
    assert_eq!(deleted.deleted_count, 4);
    assert_eq!(ids(&collection, "a", "b").await, ["a", "a\""]);
}

async fn a_ttl_index_is_made_or_refused(server: &Server) {
    let database = Database::new(server.url());
    let collection = collection(server.url(), &database).await;
    let ttl = IndexOptions::builder().expire_after(std::time::Duration::ZERO).build();
    let index = mongodb::IndexModel::builder().keys(doc! { "x": 1 }).options(ttl).build();
    if let Err(error) = collection.create_index(index).await {
        // FerretDB.
        assert!(matches!(&*error.kind, ErrorKind::Command(error) if error.code == 238), "{error:?}");
    }
    collection.create_index(mongodb::IndexModel::builder().keys(doc! { "r": 1 }).build()).await.unwrap();
}

async fn commands_are_counted(server: &Server) {
    let database = Database::new(server.url());
    let (proxy, url) = proxy(server.url()).await.unwrap();
    let collection = collection(&url, &database).await;
    collection.insert_many(numbered(&["a", "b"])).await.unwrap();
    let big = doc! { "_id": "c", "d": "x".repeat(1 << 20) };
    collection.insert_one(&big).await.unwrap();
    assert_eq!(collection.find_one(doc! { "_id": "c" }).await.unwrap().unwrap(), big);
    let traffic = proxy.take();
    assert_eq!(traffic.statements, [("find".to_owned(), 1), ("insert".to_owned(), 2)].into());
    assert_eq!(traffic.round_trips, 3);
}

async fn what_is_said_is_seen(server: &Server) {
    let database = Database::new(server.url());
    let relay = Relay::start(server.url()).await.unwrap();
    let collection = collection(relay.url(), &database).await;
    collection
        .insert_many([doc! { "_id": "a", "x": { "y": [{ "z": 1 }] } }, doc! { "_id": "b" }])
        .await
        .unwrap();
    collection.update_many(doc! { "_id": { "$lt": "b" } }, doc! { "$set": { "v": 1 } }).await.unwrap();
    assert_eq!(ids(&collection, "a", "c").await, ["a", "b"]);
    collection.delete_many(doc! { "_id": "a" }).await.unwrap();
    let seen = relay.take();
    let once = ["delete", "find", "insert", "update"].map(|name| (name.to_owned(), 1));
    assert_eq!(seen.commands, once.into());
    for operator in ["$gte", "$lt", "$set"] {
        assert!(seen.operators.contains(operator), "{operator} is missing in {:?}", seen.operators);
    }
    assert_eq!(seen.fields.iter().map(String::as_str).collect::<Vec<_>>(), ["0", "_id", "x", "y", "z"][1..]);
    assert_eq!(seen.documents, 4);
    assert!(seen.sent > 200 && seen.received > 100, "{seen:?}");
    assert_eq!(relay.take(), crate::shared::mongo::wire::Seen::default());
}

/// After every number of documents: the server has exactly these.
async fn an_insert_is_cut_after_every_document(server: &Server) {
    let relay = Relay::start(server.url()).await.unwrap();
    for then in [Then::GoOn, Then::Die] {
        for documents in 0..=4 {
            let database = Database::new(server.url());
            let cut = collection(relay.url(), &database).await;
            let past = collection(server.url(), &database).await;
            let before = relay.cuts();
            relay.cut(Cut::Documents(documents), then);
            let failed = async {
                cut.insert_many(numbered(&["a", "b"])).await?;
                cut.insert_many(numbered(&["c", "d", "e"])).await
            };
            failed.await.unwrap_err();
            assert_eq!(relay.cuts(), before + 1);
            assert_eq!(ids(&past, "a", "z").await, ["a", "b", "c", "d"][..documents], "{then:?} {documents}");
            assert_eq!(cut.insert_many(numbered(&["y"])).await.is_err(), then == Then::Die);
            relay.heal();
            cut.insert_many(numbered(&["z"])).await.unwrap();
        }
    }
}

async fn a_command_or_its_answer_is_lost(server: &Server) {
    let relay = Relay::start(server.url()).await.unwrap();
    for (lost, kept) in [(Cut::Command(1), &["a"][..]), (Cut::Answer(1), &["a", "b"])] {
        let database = Database::new(server.url());
        let cut = collection(relay.url(), &database).await;
        let past = collection(server.url(), &database).await;
        relay.cut(lost, Then::GoOn);
        cut.insert_many(numbered(&["a"])).await.unwrap();
        cut.insert_many(numbered(&["b"])).await.unwrap_err();
        assert_eq!(ids(&past, "a", "z").await, kept);
        cut.insert_many(numbered(&["c"])).await.unwrap();
    }
}

pub(crate) fn trials() -> Vec<libtest_mimic::Trial> {
    let tests: &[Test] = tests![
        an_ordered_insert_stops_at_the_duplicate,
        ranges_are_in_the_order_of_bytes,
        a_ttl_index_is_made_or_refused,
        commands_are_counted,
        what_is_said_is_seen,
        an_insert_is_cut_after_every_document,
        a_command_or_its_answer_is_lost,
    ];
    Kind::ALL.iter().flat_map(|kind| crate::shared::mongo::trials(*kind, kind.name(), tests)).collect()
}

/// A server that keeps its data on disk has it after a stop and after a crash.
pub(crate) async fn comes_back(server: Private) {
    let database = Database::new(&server.url());
    let url = server.url();
    collection(&url, &database).await.insert_many(numbered(&["a", "b"])).await.unwrap();
    for crash in [false, true] {
        server.restart(crash).await;
        assert_eq!(server.url(), url);
        assert_eq!(ids(&collection(&url, &database).await, "a", "z").await, ["a", "b"], "crash: {crash}");
    }
}

/// The servers that keep their data.
pub(crate) const LASTING: [&Entry; 1] = [&checkpoint_servers::MONGO];
