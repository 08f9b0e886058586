//! With a cipher, the server holds no clear text.

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, Cipher, PutOptions,
    TypedBytes, Value, id,
};

use super::load::encode;
use crate::shared::redis::{Prefix, Server, Test, dump, tests};

fn holds(haystack: &[u8], needle: &str) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle.as_bytes())
}

async fn no_clear_text_is_stored(server: &Server) {
    // Each begins as every other one does, so that one search finds them all.
    const CANARY: &str = "canary-in-";
    let ciphers = [Cipher::aes_gcm("key", &[7; 32]).unwrap(), Cipher::aes(&[7; 32]).unwrap()];
    for (cipher, level) in ciphers.into_iter().flat_map(|cipher| [(cipher.clone(), None), (cipher, Some(3))])
    {
        let prefix = Prefix::set_up(server.url()).await;
        let builder = prefix.builder().cipher(cipher);
        let configured = match level {
            Some(level) => builder.compression(level),
            None => builder,
        };
        let saver = configured.build().unwrap();
        saver.setup().await.unwrap();
        let text = |place: &str| format!("{CANARY}{place}");
        let long = |place: &str| format!("{CANARY}{place} {}", "and more ".repeat(3000));
        let values: [(String, ChannelValue); 5] = [
            (text("channel-name-0"), text("scalar").as_str().into()),
            (text("channel-name-1"), long("long-scalar").as_str().into()),
            (text("channel-name-2"), encode(&Value::Array(vec![text("list").into()]))),
            (
                text("channel-name-3"),
                encode(&Value::Array((0..100).map(|_| long("segments").into()).collect())),
            ),
            (text("channel-name-4"), TypedBytes::new("bytes", text("bytes").into_bytes()).into()),
        ];
        let mut config = CheckpointConfig::new("the-thread-is-shown");
        for step in 0..3 {
            let mut made = Checkpoint::new(step);
            for (channel, value) in &values {
                made = made.with_channel(channel.as_str(), value.clone(), &*id::uuid6(0));
            }
            made.extra.insert("extra".into(), text("extra").as_str().into());
            let metadata = CheckpointMetadata::new("loop", step)
                .with("user", text("metadata"))
                .with(text("metadata-key"), 1);
            let options = PutOptions::default().step_key(text("step-key"));
            let put =
                saver.put_with(&config, &made, &metadata, &made.channel_versions, &options).await.unwrap();
            config = put;
            let writes: Vec<_> =
                values.iter().map(|(channel, value)| (channel.as_str().into(), value.clone())).collect();
            saver.put_writes(&config, &writes, "the-task-is-shown", &text("task-path")).await.unwrap();
            let error = [("__error__".into(), text("error").as_str().into())];
            saver.put_writes(&config, &error, "the-task-is-shown", "").await.unwrap();
            let found = saver.get_tuple(&config).await.unwrap().unwrap();
            assert_eq!(found.checkpoint, made);
            assert_eq!(found.metadata.get("user"), Some(&text("metadata").into()));
        }
        let raw = prefix.raw().await;
        let mut stored = dump(&raw, prefix.name()).await.unwrap();
        for key in raw.keys(prefix.name()).await.unwrap() {
            stored.extend(raw.call::<Vec<u8>>(&[b"DUMP", &key]).await);
        }
        // The search finds what is there.
        assert!(holds(&stored, "the-thread-is-shown"));
        if let Some(at) = stored.windows(CANARY.len()).position(|window| window == CANARY.as_bytes()) {
            let found = &stored[at.saturating_sub(40)..(at + 60).min(stored.len())];
            panic!("clear text is stored: {}", String::from_utf8_lossy(found));
        }
    }
}

pub(crate) fn tests() -> &'static [Test] {
    tests![no_clear_text_is_stored]
}
