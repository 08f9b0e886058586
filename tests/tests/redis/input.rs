//! Errors of the Redis saver for invalid options, foreign keys, the wrong kind of server, and values beyond the server's
//! limits. Nothing is stored in part.

use std::time::Duration;

use checkpoint_conformance::Missing;
use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, Error, ErrorKind, ListQuery, Result,
    SaverExt, TypedBytes, id,
};
use checkpoint_redis::RedisSaver;

use crate::shared::redis::{HASH, INDEX, Kind, Prefix, Server, Test, nodes, tests};
use crate::shared::server::Private;
use crate::shared::soak::Random;
use crate::shared::writers::{metadata, step};

async fn put(saver: &RedisSaver, value: impl Into<ChannelValue>) -> Result<CheckpointConfig> {
    let made = Checkpoint::new(0).with_channel("x", value.into(), &*id::uuid6(0));
    saver.put(&CheckpointConfig::new("thread"), &made, &metadata(), &made.channel_versions).await
}

async fn get(saver: &RedisSaver) -> Result<()> {
    saver.get_tuple(&CheckpointConfig::new("thread")).await.map(drop)
}

fn zeros(length: usize) -> ChannelValue {
    TypedBytes::new("bytes", vec![0; length]).into()
}

/// What somebody else has encrypted, and is stored as it is.
fn sealed(length: usize) -> ChannelValue {
    TypedBytes::new("bytes+aes", vec![0; length]).into()
}

/// Bytes of which no part repeats.
fn noise(length: usize, seed: u64) -> ChannelValue {
    let mut random = Random(seed);
    let bytes = (0..length).map(|_| u8::try_from(random.below(256)).unwrap());
    TypedBytes::new("bytes", bytes.collect::<Vec<_>>()).into()
}

/// Every kind of call fails in the same way.
async fn every_call_fails(saver: &RedisSaver, kind: ErrorKind) {
    let config = CheckpointConfig::new("thread").with_checkpoint_id(Checkpoint::new(0).id);
    let errors: [Error; 5] = [
        saver.setup().await.unwrap_err(),
        put(saver, 1).await.unwrap_err(),
        get(saver).await.unwrap_err(),
        saver.put_writes(&config, &[("x".into(), 1.into())], "task", "").await.unwrap_err(),
        saver.list_all(ListQuery::thread("thread")).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), kind, "{error:?}");
        assert_eq!(error.backend(), Some("redis"));
        assert!(!error.to_string().contains('\n'), "{error}");
        assert!(!format!("{error:?} {error}").contains("secret-word"), "{error:?}");
    }
}

async fn invalid_options(_server: &Server) {
    let builder = || RedisSaver::builder("redis://localhost");
    for key_prefix in ["", "a{b", "a}b", "{a}", "a\0b"] {
        let error = builder().key_prefix(key_prefix).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{key_prefix:?}: {error}");
    }
    let error = builder().ttl(Duration::ZERO).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    let error = builder().timeout(Duration::ZERO).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
}

async fn invalid_urls(_server: &Server) {
    for url in [
        "",
        "redis",
        "mysql://localhost",
        "redis://localhost:no-port",
        "redis://u:pass-word@localhost/no-number",
        "redis+cluster://localhost/3",
        "redis+sentinel://localhost",
    ] {
        let error = RedisSaver::builder(url).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url:?}: {error}");
        assert!(!format!("{error:?}").contains("pass-word"), "{error:?}");
    }
}

async fn a_host_that_does_not_answer(_server: &Server) {
    // No process listens on a port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for url in [
        format!("redis://user:secret-word@127.0.0.1:{port}"),
        format!("redis+cluster://user:secret-word@127.0.0.1:{port},127.0.0.1:{port}"),
        format!("redis+sentinel://user:secret-word@127.0.0.1:{port}/service"),
    ] {
        let saver = RedisSaver::builder(url).max_retries(1).build().unwrap();
        every_call_fails(&saver, ErrorKind::Unavailable).await;
        assert!(get(&saver).await.unwrap_err().is_retryable());
    }
}

async fn an_unknown_database(server: &Server) {
    let saver = RedisSaver::builder(format!("{}/99999", server.url())).build().unwrap();
    every_call_fails(&saver, ErrorKind::InvalidConfig).await;
}

async fn a_cluster_that_is_none(server: &Server) {
    let url = format!("redis+cluster://{}", server.address());
    every_call_fails(&RedisSaver::builder(url).build().unwrap(), ErrorKind::InvalidConfig).await;
    let url = format!("redis+sentinel://{}/service", server.address());
    every_call_fails(&RedisSaver::builder(url).build().unwrap(), ErrorKind::InvalidConfig).await;
}

/// Some keys would be on this node, others elsewhere.
async fn one_node_of_a_cluster(_server: &Server) -> std::result::Result<(), Missing> {
    let cluster = Server::find(Kind::Cluster)?;
    let prefix = Prefix::set_up(cluster.url()).await;
    for address in nodes(cluster.url()) {
        let saver = prefix.builder_at(&format!("redis://{address}")).build().unwrap();
        let mut errors: Vec<_> = saver.setup().await.err().into_iter().collect();
        for number in 0..20 {
            let made = step(number);
            let config = CheckpointConfig::new(format!("thread-{number}"));
            errors.extend(saver.put(&config, &made, &metadata(), &made.channel_versions).await.err());
            errors.extend(saver.get_tuple(&config).await.err());
        }
        assert!(!errors.is_empty(), "{address}");
        for error in errors {
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::InvalidConfig, false), "{error:?}");
            assert!(error.to_string().contains("redis+cluster://"), "{error}");
        }
    }
    Ok(())
}

async fn keys_of_another_type(server: &Server) {
    for end in [HASH, INDEX] {
        let prefix = Prefix::set_up(server.url()).await;
        let raw = prefix.raw().await;
        let key = prefix.key("thread", end);
        raw.call::<()>(&[b"SET", &key, b"of somebody else"]).await;
        for scripts in [true, false] {
            let saver = prefix.builder().scripts(scripts).build().unwrap();
            for error in [put(&saver, 1).await.unwrap_err(), get(&saver).await.unwrap_err()] {
                assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Schema, false), "{error:?}");
            }
        }
        let found: Vec<u8> = raw.call(&[b"GET", &key]).await;
        assert_eq!(found, b"of somebody else");
        // Without it, the thread is whole: it has the checkpoint or not.
        raw.call::<u64>(&[b"UNLINK", &key]).await;
        let saver = prefix.builder().build().unwrap();
        let stored = put(&saver, 2).await.unwrap();
        for tuple in saver.list_all(ListQuery::thread("thread")).await.unwrap() {
            assert_eq!(saver.get_tuple(&tuple.config).await.unwrap().as_ref(), Some(&tuple));
        }
        assert!(saver.get_tuple(&stored).await.unwrap().is_some());
    }
}

async fn a_server_without_memory(_server: &Server) -> std::result::Result<(), Missing> {
    let server = Private::new(&checkpoint_servers::REDIS).await?;
    let prefix = Prefix::set_up(&server.url()).await;
    let raw = prefix.raw().await;
    let saver = prefix.builder().build().unwrap();
    let stored = put(&saver, zeros(100)).await.unwrap();
    let before = raw.contents(&prefix.key("thread", HASH)).await.unwrap();
    raw.words::<()>("CONFIG SET maxmemory-policy noeviction maxmemory 1").await;
    let error = put(&saver, zeros(100)).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Backend, false), "{error:?}");
    let error = saver.put_writes(&stored, &[("x".into(), 1.into())], "task", "").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error:?}");
    assert_eq!(raw.contents(&prefix.key("thread", HASH)).await.unwrap(), before);
    // Reads go on, and what frees memory.
    assert!(saver.get_tuple(&stored).await.unwrap().is_some());
    assert_eq!(saver.list_all(ListQuery::thread("thread")).await.unwrap().len(), 1);
    saver.delete_thread("thread").await.unwrap();
    assert!(saver.get_tuple(&stored).await.unwrap().is_none());
    raw.words::<()>("CONFIG SET maxmemory 0").await;
    put(&saver, 1).await.unwrap();
    Ok(())
}

async fn a_replica_and_a_server_without_replicas(_server: &Server) -> std::result::Result<(), Missing> {
    let server = Private::new(&checkpoint_servers::REDIS).await?;
    let prefix = Prefix::set_up(&server.url()).await;
    let raw = prefix.raw().await;
    let saver = prefix.builder().max_retries(2).build().unwrap();
    let stored = put(&saver, zeros(100)).await.unwrap();
    let before = raw.contents(&prefix.key("thread", HASH)).await.unwrap();
    // The second one makes it a replica of a server that is not there.
    for (refuse, accept) in [
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    ] {
        raw.words::<()>(refuse).await;
        let error = put(&saver, zeros(100)).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.is_retryable()),
            (ErrorKind::Unavailable, true),
            "{refuse}: {error:?}"
        );
        assert_eq!(raw.contents(&prefix.key("thread", HASH)).await.unwrap(), before, "{refuse}");
        assert!(saver.get_tuple(&stored).await.unwrap().is_some(), "{refuse}");
        raw.words::<()>(accept).await;
        assert!(saver.get_tuple(&stored).await.unwrap().is_some(), "{accept}");
    }
    put(&saver, 1).await.unwrap();
    Ok(())
}

async fn values_beyond_the_servers_limits(_server: &Server) -> std::result::Result<(), Missing> {
    let server = Private::new(&checkpoint_servers::REDIS).await?;
    let prefix = Prefix::set_up(&server.url()).await;
    let raw = prefix.raw().await;
    raw.words::<()>("CONFIG SET proto-max-bulk-len 1mb client-query-buffer-limit 4mb").await;
    let saver = prefix.builder().max_retries(1).build().unwrap();
    let stored = put(&saver, noise(500_000, 50)).await.unwrap();
    let before = raw.contents(&prefix.key("thread", HASH)).await.unwrap();
    // A value that is not split into smaller ones.
    let sealed = Checkpoint::new(0).with_channel("x", sealed(2_000_000), &*id::uuid6(0));
    let opaque = prefix.builder().max_retries(1).opaque_values(true).build().unwrap();
    let (config, metadata) = (CheckpointConfig::new("thread"), metadata());
    for error in [
        opaque.put(&config, &sealed, &metadata, &sealed.channel_versions).await.unwrap_err(),
        opaque.put_writes(&stored, &[("x".into(), self::sealed(2_000_000))], "task", "").await.unwrap_err(),
    ] {
        assert!(!error.to_string().contains('\n'), "{error:?}");
        assert!(
            matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::Backend | ErrorKind::Unavailable),
            "{error:?}"
        );
    }
    assert_eq!(raw.contents(&prefix.key("thread", HASH)).await.unwrap(), before);
    assert!(saver.get_tuple(&stored).await.unwrap().is_some());
    // What is split fits. The server may find the whole call too long, depending on how much of it arrives at once: then it
    // ends the connection without a word.
    let large = |parts: u64| {
        (0..parts).fold(Checkpoint::new(0), |made, at| {
            made.with_channel(format!("channel-{at}"), noise(1_500_000, at), &*id::uuid6(0))
        })
    };
    let (one, many) = (large(1), large(8));
    match saver.put(&config, &many, &metadata, &many.channel_versions).await {
        Ok(stored) => assert_eq!(saver.get_tuple(&stored).await.unwrap().unwrap().checkpoint, many),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            assert_eq!(raw.contents(&prefix.key("thread", HASH)).await.unwrap(), before);
        }
    }
    let stored = saver.put(&config, &one, &metadata, &one.channel_versions).await.unwrap();
    assert_eq!(saver.get_tuple(&stored).await.unwrap().unwrap().checkpoint, one);
    Ok(())
}

/// No server takes it, so that nothing is sent.
async fn a_value_over_512_mb(server: &Server) {
    let prefix = Prefix::set_up(server.url()).await;
    let saver = prefix.builder().opaque_values(true).build().unwrap();
    let raw = prefix.raw().await;
    let config = CheckpointConfig::new("thread").with_checkpoint_id(Checkpoint::new(0).id);
    let write = [("x".into(), sealed((512 << 20) + 1))];
    let made = Checkpoint::new(0).with_channel("x", sealed((512 << 20) + 1), &*id::uuid6(0));
    let metadata = metadata();
    let put = saver.put(&config, &made, &metadata, &made.channel_versions);
    for error in
        [put.await.map(drop).unwrap_err(), saver.put_writes(&config, &write, "task", "").await.unwrap_err()]
    {
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::InvalidArgument, false), "{error:?}");
    }
    assert!(
        !raw.exists(&prefix.key("thread", HASH)).await && !raw.exists(&prefix.key("thread", INDEX)).await
    );
}

/// A process that knows only this format must not write to a newer one.
async fn a_newer_format_is_refused(server: &Server) {
    let prefix = Prefix::set_up(server.url()).await;
    let saver = prefix.builder().build().unwrap();
    saver.setup().await.unwrap();
    let raw = prefix.raw().await;
    let key = format!("{}:{{%f}}", prefix.name());
    assert!(raw.exists(key.as_bytes()).await, "setup() has not written the version of the format");
    raw.call::<u64>(&[b"HSET", key.as_bytes(), b"v", b"99"]).await;
    for error in [saver.setup().await.unwrap_err(), saver.check_schema().await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Schema, "{error:?}");
        assert!(error.to_string().contains("99"), "{error}");
    }
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        invalid_options,
        invalid_urls,
        a_host_that_does_not_answer,
        an_unknown_database,
        a_cluster_that_is_none,
        one_node_of_a_cluster,
        keys_of_another_type,
        a_server_without_memory,
        a_replica_and_a_server_without_replicas,
        values_beyond_the_servers_limits,
        a_value_over_512_mb,
        a_newer_format_is_refused,
    ]
}
