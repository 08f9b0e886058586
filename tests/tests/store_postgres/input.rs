//! Invalid options and tables, and the errors of the Postgres store.

use checkpoint_conformance::Missing;
use checkpoint_core::ErrorKind;
use checkpoint_core::store::{BaseStore, Distance, IndexConfig, NgramEmbeddings, StoreExt};
use serde_json::json;
use store_postgres::{AnnIndex, PostgresStore, PostgresStoreBuilder, VectorType};

use crate::shared::postgres::{Database, Kind, Server, Test, count, tests};

fn index(dims: usize) -> IndexConfig {
    IndexConfig::new(dims, NgramEmbeddings::new(dims))
}

fn store(builder: PostgresStoreBuilder) -> PostgresStore {
    builder.build().unwrap()
}

async fn tables_that_are_missing(server: &Server) {
    let database = Database::create(server.url()).await;
    let store = store(PostgresStore::builder(database.url()).index(index(8)));
    for error in [
        store.get(["a"], "k").await.unwrap_err(),
        store.put(["a"], "k", json!({"text": "x"})).await.unwrap_err(),
        store.search(["a"]).await.unwrap_err(),
        store.search(["a"]).query("x").await.unwrap_err(),
        store.list_namespaces().await.unwrap_err(),
        store.sweep_ttl().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert!(error.to_string().contains("setup()"), "{error}");
    }
}

/// PostgreSQL 15 comes without pgvector here.
async fn an_extension_that_is_missing(_: &Server) -> Result<(), Missing> {
    let server = Server::find(Kind::Postgres15)?;
    let database = Database::create(server.url()).await;
    let client = database.client().await;
    if count(&client, "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'").await > 0 {
        return Err(Missing::new("postgres 15 without pgvector", "this server has pgvector", &[]));
    }
    let store = store(PostgresStore::builder(database.url()).index(index(8)));
    let error = store.setup().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    assert!(error.to_string().contains("install pgvector"), "{error}");
    Ok(())
}

async fn vectors_of_another_index(server: &Server) {
    let database = Database::create(server.url()).await;
    let builder = || PostgresStore::builder(database.url());
    store(builder().index(index(8))).setup().await.unwrap();
    for other in [
        builder().index(index(9)),
        builder().index(index(8)).vector_type(VectorType::Halfvec),
        builder().index(index(8).distance(Distance::L2)),
    ] {
        let error = store(other).setup().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert!(error.to_string().contains("was made for another"), "{error}");
    }
    // An exact search needs no index.
    store(builder().index(index(8)).ann_index(AnnIndex::Flat)).setup().await.unwrap();
}

async fn tables_that_are_newer(server: &Server) {
    let database = Database::create(server.url()).await;
    let store = store(PostgresStore::builder(database.url()).index(index(8)));
    store.setup().await.unwrap();
    let client = database.client().await;
    for table in ["store_migrations", "vector_migrations"] {
        client.batch_execute(&format!("INSERT INTO {table} VALUES (99)")).await.unwrap();
        let error = store.setup().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{table}: {error}");
        assert!(error.to_string().contains("newer"), "{error}");
        client.batch_execute(&format!("DELETE FROM {table} WHERE v = 99")).await.unwrap();
    }
    store.setup().await.unwrap();
}

async fn invalid_options(server: &Server) {
    let builder = || PostgresStore::builder(server.url());
    for wrong in [
        builder().index(index(0)),
        builder().index(index(2001)),
        builder().index(index(4001)).vector_type(VectorType::Halfvec),
        builder().index(index(8)).ann_index(AnnIndex::hnsw().m(1)),
        builder().index(index(8)).ann_index(AnnIndex::hnsw().m(40)),
        builder().index(index(8)).ann_index(AnnIndex::ivfflat(0)),
        builder().index(index(8)).ef_search(0),
        builder().index(index(8)).probes(0),
        builder().schema(""),
    ] {
        let error = wrong.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }
    builder().index(index(4001)).ann_index(AnnIndex::Flat).build().unwrap();
}

/// A name for an index of filters, and vectors of every kind, are made and used.
async fn every_kind_of_index_finds(server: &Server) {
    for (ann, vector_type) in [
        (AnnIndex::hnsw().m(8).ef_construction(32), VectorType::Halfvec),
        (AnnIndex::ivfflat(4), VectorType::Vector),
        (AnnIndex::ivfflat(4), VectorType::Halfvec),
        (AnnIndex::Flat, VectorType::Halfvec),
    ] {
        let database = Database::create(server.url()).await;
        let builder = PostgresStore::builder(database.url()).index(index(64).fields(["text"]));
        let store = store(builder.ann_index(ann).vector_type(vector_type).filter_index(true));
        store.setup().await.unwrap();
        store.setup().await.unwrap();
        // More than are looked at one by one.
        let ops = (0..1200).map(|at| {
            let value = json!({"text": format!("word{at}"), "kind": format!("k{}", at % 3)});
            let value = checkpoint_core::store::JsonObject::new(&value).unwrap();
            checkpoint_core::store::Op::Put(checkpoint_core::store::PutOp::new(["w"], format!("{at}"), value))
        });
        store.batch(ops.collect()).await.unwrap();
        let found = store.search(["w"]).query("word77").limit(3).await.unwrap();
        assert_eq!(found.len(), 3, "{ann:?} {vector_type:?}");
        let filter = checkpoint_core::store::ItemFilter::new().eq("kind", "k1");
        let found = store.search(["w"]).query("word76").filter(filter).limit(1000).await.unwrap();
        assert_eq!(found.len(), 400, "no item is missing: {ann:?} {vector_type:?}");
        assert_eq!(&*found[0].item.key, "76", "{ann:?} {vector_type:?}");
        assert!(found.iter().zip(&found[1..]).all(|(a, b)| a.score >= b.score), "{ann:?} {vector_type:?}");
    }
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        tables_that_are_missing,
        an_extension_that_is_missing,
        vectors_of_another_index,
        tables_that_are_newer,
        invalid_options,
        every_kind_of_index_finds,
    ]
}
