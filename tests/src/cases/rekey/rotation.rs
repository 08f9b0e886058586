//! A key rotation, and a thread with every kind of value.

use std::collections::BTreeMap;
use std::sync::Arc;

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, ChannelVersions, CheckpointConfig, CheckpointTuple, Cipher,
    DeltaChannelHistory, ErrorKind, ListQuery, RekeyOptions, RekeyReport, Result, SaverExt, SealedBy, Str,
};

use crate::case::Ctx;
use crate::fixture::{
    Done, at_version, bytes, checkpoint, encode, expect_kind, list, map, metadata, put, random, snapshot,
    write, write_at,
};
use crate::target::{OpenOptions, Saver, Target};

pub(super) const OLD: [u8; 32] = [1; 32];
pub(super) const NEW: [u8; 32] = [2; 32];

pub(super) fn old_gcm() -> Result<Cipher> {
    Cipher::aes_gcm("old", &OLD)
}

pub(super) fn new_gcm() -> Result<Cipher> {
    Cipher::aes_gcm("new", &NEW)
}

/// The new GCM key seals, and the old one opens.
pub(super) fn gcm_ring() -> Result<Cipher> {
    new_gcm()?.with_aes_gcm_decryption_key("old", &OLD)
}

pub(super) async fn open(target: &Arc<dyn Target>, cipher: Cipher) -> Result<Saver> {
    target.open(OpenOptions::with_cipher(cipher)).await
}

/// A rotation: the old cipher (or none), the ring with both keys, the new cipher.
pub(super) struct Rotation {
    pub(super) old: Saver,
    pub(super) ring: Saver,
    pub(super) new: Saver,
    pub(super) sealed_before: SealedBy,
    pub(super) sealed_by: SealedBy,
}

impl Rotation {
    pub(super) async fn open(ctx: &Ctx, old: Option<Cipher>, ring: Cipher, new: Cipher) -> Result<Self> {
        let sealed_before = old.as_ref().map_or(SealedBy::Plain, Cipher::sealed_by);
        let sealed_by = new.sealed_by();
        let old = match old {
            Some(cipher) => open(ctx.target(), cipher).await?,
            None => ctx.saver().clone(),
        };
        Ok(Self {
            old,
            ring: open(ctx.target(), ring).await?,
            new: open(ctx.target(), new).await?,
            sealed_before,
            sealed_by,
        })
    }

    pub(super) async fn gcm(ctx: &Ctx) -> Result<Self> {
        Self::open(ctx, Some(old_gcm()?), gcm_ring()?, new_gcm()?).await
    }

    pub(super) async fn all(ctx: &Ctx) -> Result<Vec<Self>> {
        let old_aes = || Cipher::aes(&OLD);
        let new_aes = || Cipher::aes(&NEW);
        Ok(vec![
            Self::gcm(ctx).await?,
            Self::open(ctx, Some(old_aes()?), new_gcm()?.with_aes_decryption_key(&OLD)?, new_gcm()?).await?,
            Self::open(ctx, Some(old_aes()?), new_aes()?.with_aes_decryption_key(&OLD)?, new_aes()?).await?,
            Self::open(
                ctx,
                Some(old_gcm()?),
                new_aes()?.with_aes_gcm_decryption_key("old", &OLD)?,
                new_aes()?,
            )
            .await?,
            Self::open(ctx, None, new_gcm()?, new_gcm()?).await?,
            Self::open(ctx, None, new_aes()?, new_aes()?).await?,
        ])
    }

    pub(super) fn what(&self) -> String {
        format!("{} to {}", self.sealed_before, self.sealed_by)
    }

    /// Fails unless only the new key is needed and the thread is as it was.
    pub(super) async fn check(&self, thread_id: &str, expected: &Contents) -> Done {
        let what = self.what();
        ensure_eq!(&contents(&self.new, thread_id).await?, expected, "{what}: with the new key");
        ensure_eq!(&contents(&self.ring, thread_id).await?, expected, "{what}: with both keys");
        let old = self.old.list_all(ListQuery::thread(thread_id)).await;
        expect_kind(old, ErrorKind::Crypto, "with the old key")
    }
}

pub(super) async fn rekey(saver: &Saver, thread_id: &str) -> Result<RekeyReport> {
    saver.rekey(thread_id, RekeyOptions::default()).await
}

pub(super) async fn dry_run(saver: &Saver, thread_id: &str) -> Result<RekeyReport> {
    saver.rekey(thread_id, RekeyOptions::default().dry_run(true)).await
}

/// Everything that is read of a thread.
pub(super) type Contents = (Vec<CheckpointTuple>, Vec<BTreeMap<Str, DeltaChannelHistory>>);

pub(super) async fn contents(saver: &Saver, thread_id: &str) -> Result<Contents> {
    let tuples = saver.list_all(ListQuery::thread(thread_id)).await?;
    let mut histories = Vec::new();
    for tuple in tuples.iter().take(20) {
        histories.push(saver.get_delta_channel_history(&tuple.config, &["log", "kept", "n"]).await?);
    }
    Ok((tuples, histories))
}

/// A thread with an unchanged channel that many checkpoints share, scalars, snapshots, unknown fields, writes, a fork, and
/// a subgraph.
pub(super) async fn fill(saver: &Saver, thread_id: &Str) -> Result<()> {
    let kept = encode(&map(&[("kept", list(&[1, 2, 3]))]))?;
    let mut config = CheckpointConfig::new(thread_id.clone());
    let mut fork = None;
    for step in 1..=5_i64 {
        let mut made =
            checkpoint(&[("kept", kept.clone()), ("flag", true.into()), ("none", ChannelValue::Null)])
                .with_channel("n", step, step)
                .with_channel("text", format!("step {step}"), step)
                .with_channel("items", encode(&list(&[step]))?, step);
        let mut changed: ChannelVersions =
            ["n", "text", "items"].map(|channel| (channel.into(), step.into())).into_iter().collect();
        if step == 1 {
            changed.extend(["kept", "flag", "none"].map(|channel| (channel.into(), 1.into())));
        }
        if step == 3 {
            made = made.with_channel("log", snapshot(&list(&[3]))?, 3);
            changed.insert("log".into(), 3.into());
        }
        made.extra.insert("unknown".into(), encode(&list(&[step]))?);
        config = saver.put(&config, &made, &metadata(step), &changed).await?;
        write(saver, &config, "a", &[("log", step.into()), ("items", encode(&list(&[step]))?)]).await?;
        write_at(saver, &config, "b", "path", &[("__error__", "broken".into())]).await?;
        if step == 2 {
            fork = Some(config.clone());
        }
    }
    if let Some(fork) = fork {
        put(saver, &fork, &at_version(9, &[("text", "another way".into())])).await?;
    }
    for ns in ["sub:1", "sub:1|leaf:2"] {
        let config = CheckpointConfig::new(thread_id.clone()).with_checkpoint_ns(ns);
        let stored = put(saver, &config, &checkpoint(&[("items", encode(&list(&[7]))?)])).await?;
        write(saver, &stored, "task", &[("ch", bytes(&b"bytes"[..]))]).await?;
    }
    // Ahead of their checkpoint.
    write(saver, &config.for_checkpoint(random()), "task", &[("ch", 1.into())]).await
}

pub(super) fn total(report: &RekeyReport) -> u64 {
    report.values.values().sum()
}
