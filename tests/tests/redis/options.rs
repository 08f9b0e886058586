//! The Redis saver as applications and administrators run it: TLS, users that may do little, a database, expiring threads,
//! compression, a server that evicts.

use std::path::Path;
use std::time::Duration;

use checkpoint_conformance::Missing;
use checkpoint_conformance::telemetry::Recording;
use checkpoint_core::retention::UsageOptions;
use checkpoint_core::{
    BaseCheckpointSaver, Checkpoint, CheckpointConfig, Cipher, ErrorKind, ListQuery, Result, SaverExt,
};
use checkpoint_redis::{Durability, RedisSaver};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use super::load::messages;
use crate::shared::everything::everything_works;
use crate::shared::redis::{HASH, INDEX, Prefix, Raw, Server, Test, tests, unique_name};
use crate::shared::server::Private;
use crate::shared::writers::{metadata, step, writes};

/// The commands that the crate's page asks for.
const COMMANDS: &str = "+hset +hmget +hget +hgetall +hsetnx +hdel +hexists +hstrlen +hincrby +hlen +hscan +hkeys +zadd +zrem +zcard \
    +zscore +zmscore +zrangebylex +zrevrangebylex +zrange +zrangebyscore +zrevrangebyscore +zlexcount +zscan +pexpire +pttl +persist +unlink \
    +exists +multi +exec +discard +watch +unwatch +evalsha +eval +copy +wait +ping +hello +client|setinfo +client|setname +select +set +get +del +time";

async fn put(saver: &RedisSaver, thread_id: &str) -> Result<CheckpointConfig> {
    let made = step(1);
    saver.put(&CheckpointConfig::new(thread_id), &made, &metadata(), &made.channel_versions).await
}

async fn threads(saver: &RedisSaver) -> Vec<String> {
    let all = saver.list_all(ListQuery::all()).await.unwrap();
    all.iter().map(|tuple| tuple.config.thread_id().to_string()).collect()
}

async fn prefixes_share_nothing(server: &Server) {
    let prefix = Prefix::set_up(server.url()).await;
    // What begins like another one, and what a pattern would take for it.
    let names = ["", "a", ":a", "*", "世界", "a b"].map(|end| format!("{}:{end}", prefix.name()));
    let savers = names.clone().map(|name| prefix.builder().key_prefix(name).build().unwrap());
    for (saver, name) in savers.iter().zip(&names) {
        saver.setup().await.unwrap();
        put(saver, name).await.unwrap();
    }
    for (saver, name) in savers.iter().zip(&names) {
        assert_eq!(threads(saver).await, [name.as_str()]);
        everything_works(saver).await;
    }
    savers[0].delete_thread(&names[1]).await.unwrap();
    assert_eq!(threads(&savers[1]).await, [names[1].as_str()]);
}

async fn a_database_of_its_own(server: &Server) {
    let prefix = Prefix::set_up(&format!("{}/3", server.url())).await;
    let saver = prefix.builder().build().unwrap();
    saver.setup().await.unwrap();
    everything_works(&saver).await;
    put(&saver, "thread").await.unwrap();
    assert!(!prefix.raw().await.keys(prefix.name()).await.unwrap().is_empty());
    let elsewhere = Raw::connect(server.url()).await.unwrap();
    assert!(elsewhere.keys(prefix.name()).await.unwrap().is_empty());
}

async fn resp3(server: &Server) {
    let prefix = Prefix::set_up(server.url()).await;
    for scripts in [true, false] {
        let saver = prefix.builder().resp3(true).scripts(scripts).build().unwrap();
        saver.setup().await.unwrap();
        everything_works(&saver).await;
    }
}

async fn compressed_values(server: &Server) {
    let prefix = Prefix::set_up(server.url()).await;
    let (plain, compressed) =
        (prefix.builder().build().unwrap(), prefix.builder().compression(3).build().unwrap());
    everything_works(&compressed).await;
    let made = Checkpoint::new(0).with_channel("messages", messages(200), 1);
    let raw = prefix.raw().await;
    let mut sizes = Vec::new();
    for (saver, thread_id) in [(&plain, "plain"), (&compressed, "compressed")] {
        let config = CheckpointConfig::new(thread_id);
        let stored = saver.put(&config, &made, &metadata(), &made.channel_versions).await.unwrap();
        // Whoever wrote it.
        for reader in [&plain, &compressed] {
            assert_eq!(reader.get_tuple(&stored).await.unwrap().unwrap().checkpoint, made);
        }
        sizes.push(raw.memory(&prefix.key(thread_id, HASH)).await);
    }
    assert!(sizes[1] < sizes[0] / 2, "{sizes:?}");
}

/// A user of a test on the shared server, which goes with this handle.
struct User {
    server: Server,
    name: String,
}

impl User {
    async fn new(server: &Server, rules: &str) -> Self {
        let user = Self { server: server.clone(), name: unique_name() };
        let raw = Raw::connect(server.url()).await.unwrap();
        raw.words::<()>(&format!("ACL SETUSER {} reset on >pass-word {rules}", user.name)).await;
        user
    }

    fn url(&self) -> String {
        self.url_with("pass-word")
    }

    fn url_with(&self, password: &str) -> String {
        format!("redis://{}:{password}@{}", self.name, self.server.address())
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let (url, name) = (self.server.url().to_owned(), self.name.clone());
        let dropping = std::thread::spawn(move || {
            crate::shared::redis::in_runtime(async {
                let raw = Raw::connect(&url).await.unwrap();
                raw.words::<()>(&format!("ACL DELUSER {name}")).await;
            });
        });
        drop(dropping.join());
    }
}

async fn a_user_with_few_permissions(server: &Server) {
    for (kind, commands) in [(true, COMMANDS.to_owned()), (false, COMMANDS.replace("+evalsha +eval ", ""))] {
        let prefix = Prefix::set_up(server.url()).await;
        let user = User::new(server, &format!("~{}:* {commands}", prefix.name())).await;
        let builder = prefix.builder_at(&user.url()).scripts(kind);
        let saver = builder.clone().build().unwrap();
        saver.setup().await.unwrap();
        saver.ping().await.unwrap();
        saver.check_schema().await.unwrap();
        everything_works(&saver).await;
        let pruning = builder.keep_last(1).build().unwrap();
        let mut config = CheckpointConfig::new("pruned");
        for number in 0..3 {
            let made = step(number);
            config = pruning.put(&config, &made, &metadata(), &made.channel_versions).await.unwrap();
        }
        let usage = saver.usage(&UsageOptions::default()).await.unwrap();
        assert_eq!((usage.threads, usage.checkpoints), (1, 1));
        // Another prefix is none of its business.
        let other = Prefix::set_up(server.url()).await;
        let other = other.builder_at(&user.url()).scripts(kind).build().unwrap();
        let error = put(&other, "thread").await.unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::InvalidConfig, false), "{error:?}");
    }
}

async fn a_user_without_scripts(server: &Server) {
    let prefix = Prefix::set_up(server.url()).await;
    let rules = format!("~{}:* +@all -@scripting", prefix.name());
    let user = User::new(server, &rules).await;
    let saver = prefix.builder_at(&user.url()).build().unwrap();
    let error = saver.get_tuple(&CheckpointConfig::new("thread")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error:?}");
    assert!(error.to_string().contains("scripts(false)"), "{error}");
    let plain = prefix.builder_at(&user.url()).scripts(false).build().unwrap();
    everything_works(&plain).await;
}

async fn a_wrong_password(server: &Server) {
    let prefix = Prefix::set_up(server.url()).await;
    let user = User::new(server, &format!("~{}:* +@all", prefix.name())).await;
    let saver = prefix.builder_at(&user.url_with("not-the-password")).build().unwrap();
    for error in [saver.setup().await.unwrap_err(), put(&saver, "thread").await.unwrap_err()] {
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::InvalidConfig, false), "{error:?}");
        assert!(!format!("{error} {error:?} {saver:?}").contains("not-the-password"), "{error:?}");
    }
}

async fn lifetimes(raw: &Raw, prefix: &Prefix, thread_id: &str) -> [i64; 2] {
    let mut lifetimes = [0; 2];
    for (lifetime, end) in lifetimes.iter_mut().zip([HASH, INDEX]) {
        *lifetime = raw.call(&[b"PTTL", &prefix.key(thread_id, end)]).await;
    }
    lifetimes
}

/// Has the thread expire at once or later.
async fn expire(raw: &Raw, prefix: &Prefix, thread_id: &str, millis: u64) {
    for end in [HASH, INDEX] {
        let key = prefix.key(thread_id, end);
        raw.call::<u64>(&[b"PEXPIRE", &key, millis.to_string().as_bytes()]).await;
    }
}

async fn threads_expire_as_a_whole(server: &Server) {
    const HOUR: i64 = 3_600_000;
    let prefix = Prefix::set_up(server.url()).await;
    let raw = prefix.raw().await;
    let saver = prefix.builder().ttl(Duration::from_secs(3600)).build().unwrap();
    let refreshing = prefix.builder().ttl(Duration::from_secs(3600)).refresh_on_read(true).build().unwrap();
    let forever = prefix.builder().build().unwrap();
    let is_long = |lifetimes: [i64; 2]| lifetimes.iter().all(|lifetime| (HOUR / 2..=HOUR).contains(lifetime));
    let is_short = |lifetimes: [i64; 2]| lifetimes.iter().all(|lifetime| (1..HOUR / 2).contains(lifetime));

    put(&forever, "forever").await.unwrap();
    assert_eq!(lifetimes(&raw, &prefix, "forever").await, [-1, -1]);
    let stored = put(&saver, "thread").await.unwrap();
    assert!(is_long(lifetimes(&raw, &prefix, "thread").await));
    // Each kind of write counts.
    expire(&raw, &prefix, "thread", 1_000_000).await;
    saver.put_writes(&stored, &writes(1), "task", "").await.unwrap();
    assert!(is_long(lifetimes(&raw, &prefix, "thread").await));
    expire(&raw, &prefix, "thread", 1_000_000).await;
    saver.get_tuple(&stored).await.unwrap().unwrap();
    assert!(is_short(lifetimes(&raw, &prefix, "thread").await), "reading counts only if asked for");
    refreshing.get_tuple(&stored).await.unwrap().unwrap();
    assert!(is_long(lifetimes(&raw, &prefix, "thread").await));
    saver.copy_thread("thread", "copy").await.unwrap();
    assert!(is_long(lifetimes(&raw, &prefix, "copy").await));

    expire(&raw, &prefix, "thread", 1).await;
    while raw.exists(&prefix.key("thread", HASH)).await || raw.exists(&prefix.key("thread", INDEX)).await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(saver.get_tuple(&stored).await.unwrap().is_none());
    let mut left = threads(&saver).await;
    left.sort();
    assert_eq!(left, ["copy", "forever"]);
    // It can begin again.
    let again = put(&saver, "thread").await.unwrap();
    assert!(saver.get_tuple(&again).await.unwrap().is_some());
    assert!(saver.get_tuple(&stored).await.unwrap().is_none());
    assert_eq!(threads(&saver).await.len(), 3);
}

async fn setup_warns_of_eviction(_server: &Server) -> std::result::Result<(), Missing> {
    let server = Private::new(&checkpoint_servers::REDIS).await?;
    let prefix = Prefix::set_up(&server.url()).await;
    let raw = prefix.raw().await;
    let saver = prefix.builder().build().unwrap();
    for (policy, warns) in [("noeviction", false), ("allkeys-lru", true), ("allkeys-random", true)] {
        raw.words::<()>(&format!("CONFIG SET maxmemory 100mb maxmemory-policy {policy}")).await;
        let recording = Recording::new();
        recording.of(saver.setup()).await.unwrap();
        let warnings = recording.warnings();
        assert_eq!(!warnings.is_empty(), warns, "{policy}: {warnings:?}");
        if warns {
            assert!(format!("{warnings:?}").contains(policy), "{warnings:?}");
        }
    }
    Ok(())
}

/// Writes a server's certificate, its key, and the certificates of its authority and of another one.
fn certificates(folder: &Path) -> [(&'static str, String); 2] {
    let authority = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.join(name), certificate.pem()).unwrap();
        Issuer::new(params, key)
    };
    let issuer = authority("ca.crt");
    authority("wrong-ca.crt");
    let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    [("server.crt", certificate.pem()), ("server.key", key.serialize_pem())]
}

async fn tls(_server: &Server) -> std::result::Result<(), Missing> {
    let folder = tempfile::tempdir().unwrap();
    let server = Private::new(&checkpoint_servers::REDIS).await?;
    for (name, text) in certificates(folder.path()) {
        server.run(&format!("cat > /srv/{name} <<'END'\n{text}END")).await;
    }
    let raw = Raw::connect(&server.url()).await.unwrap();
    // The port that spoke plain text speaks TLS from now on.
    raw.words::<()>(
        "CONFIG SET tls-cert-file /srv/server.crt tls-key-file /srv/server.key tls-auth-clients no port 0 tls-port 6379",
    )
    .await;
    let url = server.url().replace("redis://", "rediss://");
    let builder = || RedisSaver::builder(url.as_str()).max_retries(1);
    let trusting = builder().tls_root_certificates(folder.path().join("ca.crt")).build().unwrap();
    trusting.setup().await.unwrap();
    everything_works(&trusting).await;
    let wrong = builder().tls_root_certificates(folder.path().join("wrong-ca.crt")).build().unwrap();
    let error = put(&wrong, "thread").await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::InvalidConfig, false), "{error:?}");
    // Plain text to a server that speaks TLS.
    let plain = RedisSaver::builder(server.url()).max_retries(1).build().unwrap();
    let error = put(&plain, "thread").await.unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Backend | ErrorKind::InvalidConfig),
        "{error:?}"
    );
    Ok(())
}

async fn durability_without_replicas(server: &Server) {
    let prefix = Prefix::set_up(server.url()).await;
    let durability = |replicas, aof| Durability { replicas, timeout: Duration::from_secs(3), aof };
    // On its own disk, which the server writes to every second.
    let disk = prefix.builder().durability(durability(0, true)).build().unwrap();
    everything_works(&disk).await;
    let replica = prefix.builder().durability(durability(1, false)).build().unwrap();
    let error = put(&replica, "thread").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error:?}");
}

async fn secrets_are_not_shown(_server: &Server) {
    let url = "redis://user:pass-word@127.0.0.1:1/0";
    let cipher = Cipher::aes_gcm("key", &[7; 32]).unwrap();
    let builder = RedisSaver::builder(url).cipher(cipher);
    let shown = format!("{builder:?}");
    let saver = builder.build().unwrap();
    assert!(!format!("{shown} {saver:?}").contains("pass-word"), "{shown} {saver:?}");
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        prefixes_share_nothing,
        a_database_of_its_own,
        resp3,
        compressed_values,
        a_user_with_few_permissions,
        a_user_without_scripts,
        a_wrong_password,
        threads_expire_as_a_whole,
        setup_warns_of_eviction,
        tls,
        durability_without_replicas,
        secrets_are_not_shown,
    ]
}
