//! Seals values again, in place: pages of rows are read and sealed without a transaction or a lock, and a row is changed
//! only if it is as it was read.

use std::collections::BTreeMap;

use bytes::Bytes;
use checkpoint_core::backend::{AssociatedData, CheckpointKey, Rekeying, ValueCodec, telemetry};
use checkpoint_core::{
    ChannelVersions, Error, RekeyOptions, RekeyReport, Result, SealedBy, Str, TypedBytes, Value,
};
use common_postgres::tokio_postgres::Row;
use common_postgres::{Connection, Json, Param, SYSTEM, column, params, text};
use indexmap::IndexMap;
use serde_json::value::RawValue;

use crate::document::{self, SEALED_FIELDS, check_name, check_text};
use crate::lock::{self, Lock};
use crate::row::{self, Blob};
use crate::shared::Shared;
use crate::sql::rekey::{PAGE_ROWS, column as at, counted};

/// The MessagePack of `true`.
const TRUE: &[u8] = b"\xc3";

/// Seals every value of a thread again.
pub(crate) async fn rekey(shared: &Shared, thread_id: &str, options: RekeyOptions) -> Result<RekeyReport> {
    check_text("thread_id", thread_id)?;
    let values = count(shared, thread_id).await?;
    let rekeying = Rekeying::begin(&shared.codec, options, &values)?;
    if !rekeying.reads_values() {
        return rekeying.report(values);
    }
    let current_head = rekeying.current_head();
    let mut within = InThread { shared, thread_id, current_head, rekeying, missed: 0 };
    for _ in 0..Rekeying::PASSES {
        within.rekeying.pass_again();
        within.missed = 0;
        within.blobs().await?;
        within.documents().await?;
        within.writes().await?;
        if within.missed == 0 {
            let rekeying = within.rekeying;
            let values = if rekeying.must_count_again() { count(shared, thread_id).await? } else { values };
            return rekeying.report(values);
        }
    }
    Err(Rekeying::conflict())
}

/// How many values of a thread are sealed by which key.
async fn count(shared: &Shared, thread_id: &str) -> Result<BTreeMap<SealedBy, u64>> {
    let rows = shared.database.query(&shared.sql.count_values, &params![TEXT: thread_id]).await?;
    let mut values = BTreeMap::new();
    for row in &rows {
        let head = column::<Option<&[u8]>>(row, counted::HEAD)?.unwrap_or_default();
        let count = u64::try_from(column::<i64>(row, counted::COUNT)?).unwrap_or_default();
        *values.entry(SealedBy::of(column(row, counted::TYPE)?, head)).or_default() += count;
    }
    Ok(values)
}

/// A thread whose values are sealed again.
struct InThread<'a> {
    shared: &'a Shared,
    thread_id: &'a str,
    current_head: Option<Bytes>,
    rekeying: Rekeying,
    /// How many rows were changed by others in the current pass.
    missed: u64,
}

/// A value of a row that was sealed again. What it was read from is `K`.
struct Sealed<'a, K> {
    key: K,
    xmin: &'a str,
    new: TypedBytes,
}

/// The statement for one row, and the number of values that it seals.
type Change<'a> = (&'a str, Vec<Param<'a>>, u64);

impl InThread<'_> {
    async fn blobs(&mut self) -> Result<()> {
        let sql = &self.shared.sql;
        let mut after: Option<(Str, Str, Str)> = None;
        loop {
            let (statement, (ns, channel, version)) = match &after {
                None => (&sql.first_blobs, ("", "", "")),
                Some((ns, channel, version)) => (&sql.next_blobs, (&**ns, &**channel, &**version)),
            };
            let head = self.current_head.as_deref().map(Blob);
            let params = params![TEXT: self.thread_id; BYTEA: head; TEXT: ns, channel, version];
            let rows = self.shared.database.query(statement, &params).await?;
            let mut sealed = Vec::new();
            for row in &rows {
                let (ns, channel, version): (&str, &str, &str) = (
                    column(row, at::BLOB_NS)?,
                    column(row, at::BLOB_CHANNEL)?,
                    column(row, at::BLOB_VERSION)?,
                );
                let data = blob_data(self.thread_id, ns, channel, version);
                let context = CheckpointKey::new(self.thread_id, ns, "").context();
                let context = |error| context(error).with("channel", channel);
                if let Some(new) = self.rekeying.reseal(row::typed(row, at::TYPE, at::DATA), &data, context) {
                    sealed.push(Sealed { key: (ns, channel, version), xmin: column(row, at::XMIN)?, new });
                }
            }
            let data = blobs(sealed.iter().map(|value| &value.new));
            let changes = sealed.iter().zip(&data).map(|(value, data)| {
                let Sealed { key: (ns, channel, version), xmin, new } = value;
                let params =
                    params![TEXT: self.thread_id, *ns, *channel, *version, *xmin, new.tag; BYTEA: *data];
                (&*sql.rekey_blob, params.to_vec(), 1)
            });
            let (stored, missed) = self.store(changes.collect()).await?;
            self.note(stored, missed);
            let Some(last) = last_of_full(&rows)? else { return Ok(()) };
            let [ns, channel, version] = [at::BLOB_NS, at::BLOB_CHANNEL, at::BLOB_VERSION];
            after = Some((text(last, ns)?, text(last, channel)?, text(last, version)?));
        }
    }

    async fn writes(&mut self) -> Result<()> {
        let sql = &self.shared.sql;
        let mut after: Option<(Str, Str, Str, i32)> = None;
        loop {
            let (statement, (ns, id, task, idx)) = match &after {
                None => (&sql.first_writes, ("", "", "", i32::MIN)),
                Some((ns, id, task, idx)) => (&sql.next_writes, (&**ns, &**id, &**task, *idx)),
            };
            let head = self.current_head.as_deref().map(Blob);
            let params = params![TEXT: self.thread_id; BYTEA: head; TEXT: ns, id, task; INT4: idx];
            let rows = self.shared.database.query(statement, &params).await?;
            let mut sealed = Vec::new();
            for row in &rows {
                let (ns, id): (&str, &str) =
                    (column(row, at::WRITE_NS)?, column(row, at::WRITE_CHECKPOINT_ID)?);
                let (task, idx): (&str, i32) = (column(row, at::WRITE_TASK_ID)?, column(row, at::WRITE_IDX)?);
                let key = CheckpointKey::new(self.thread_id, ns, id);
                let data = key.write_data(task, idx, column(row, at::WRITE_CHANNEL)?);
                let typed = row::typed(row, at::TYPE, at::DATA);
                if let Some(new) = self.rekeying.reseal(typed, &data, key.context()) {
                    sealed.push(Sealed { key: (ns, id, task, idx), xmin: column(row, at::XMIN)?, new });
                }
            }
            let data = blobs(sealed.iter().map(|value| &value.new));
            let changes = sealed.iter().zip(&data).map(|(value, data)| {
                let Sealed { key: (ns, id, task, idx), xmin, new } = value;
                let params = params![TEXT: self.thread_id, *ns, *id, *task; INT4: *idx; TEXT: *xmin, new.tag; BYTEA: *data];
                (&*sql.rekey_write, params.to_vec(), 1)
            });
            let (stored, missed) = self.store(changes.collect()).await?;
            self.note(stored, missed);
            let Some(last) = last_of_full(&rows)? else { return Ok(()) };
            let (ns, id) = (text(last, at::WRITE_NS)?, text(last, at::WRITE_CHECKPOINT_ID)?);
            after = Some((ns, id, text(last, at::WRITE_TASK_ID)?, column(last, at::WRITE_IDX)?));
        }
    }

    async fn documents(&mut self) -> Result<()> {
        let sql = &self.shared.sql;
        let mut after: Option<(Str, Str)> = None;
        loop {
            let (statement, (ns, id)) = match &after {
                None => (&sql.first_documents, ("", "")),
                Some((ns, id)) => (&sql.next_documents, (&**ns, &**id)),
            };
            let head = self.current_head.as_deref().map(Blob);
            let params = params![TEXT: self.thread_id; BYTEA: head; TEXT: ns, id];
            let rows = self.shared.database.query(statement, &params).await?;
            let mut documents = Vec::new();
            for row in &rows {
                let (ns, id): (&str, &str) =
                    (column(row, at::DOCUMENT_NS)?, column(row, at::DOCUMENT_CHECKPOINT_ID)?);
                let key = CheckpointKey::new(self.thread_id, ns, id);
                match Document::parse(column::<Json<'_>>(row, at::CHECKPOINT)?.0) {
                    Ok(document) => documents.push((key, column::<&str>(row, at::XMIN)?, document)),
                    Err(error) => self.rekeying.fail(key.context()(error)),
                }
            }
            self.find_marks(&mut documents).await?;
            let mut sealed = Vec::new();
            for (key, xmin, document) in documents {
                match document.seal(key, &self.shared.codec, &mut self.rekeying) {
                    Ok(Some(new)) => sealed.push((key, xmin, new)),
                    Ok(None) => {}
                    Err(error) => self.rekeying.fail(key.context()(error)),
                }
            }
            let columns: Vec<_> = sealed.iter().map(|(_, _, new)| new.columns()).collect();
            let changes = sealed.iter().zip(&columns).map(|((key, xmin, new), columns)| {
                let (json, channels, versions, types, data) = columns;
                let params = params![
                    TEXT: key.thread_id, key.checkpoint_ns, key.checkpoint_id, *xmin;
                    JSONB: *json; TEXT_ARRAY: *channels, *versions, *types; BYTEA_ARRAY: *data
                ];
                (&*sql.rekey_document, params.to_vec(), new.values)
            });
            let (stored, missed) = self.store(changes.collect()).await?;
            self.note(stored, missed);
            let Some(last) = last_of_full(&rows)? else { return Ok(()) };
            after = Some((text(last, at::DOCUMENT_NS)?, text(last, at::DOCUMENT_CHECKPOINT_ID)?));
        }
    }

    /// Finds out which `true` of documents is the mark of a snapshot: it has a blob, which has something else in it.
    async fn find_marks(&self, documents: &mut [(CheckpointKey<'_>, &str, Document<'_>)]) -> Result<()> {
        let mut found = Vec::new();
        for (at, (key, _, document)) in documents.iter().enumerate() {
            for (channel, value) in &document.values {
                if value.json == "true"
                    && let Some(version) = &value.version
                {
                    found.push((at, key.checkpoint_ns, channel.clone(), version.clone()));
                }
            }
        }
        if found.is_empty() || self.rekeying.is_dry_run() {
            return Ok(());
        }
        let namespaces: Vec<&str> = found.iter().map(|(_, ns, ..)| *ns).collect();
        let channels: Vec<&str> = found.iter().map(|(_, _, channel, _)| &**channel).collect();
        let versions: Vec<&str> = found.iter().map(|(.., version)| &**version).collect();
        let params = params![TEXT: self.thread_id; TEXT_ARRAY: namespaces, channels, versions];
        let codec = self.shared.codec.requiring_decryption();
        for row in &self.shared.database.query(&self.shared.sql.marked_blobs, &params).await? {
            let position = usize::try_from(column::<i64>(row, 0)?).unwrap_or_default();
            let Some((at, ns, channel, version)) = position.checked_sub(1).and_then(|at| found.get(at))
            else {
                continue;
            };
            let is_true = match (column::<&str>(row, 1)?, column::<Option<&[u8]>>(row, 2)?) {
                ("empty", _) => true,
                (_, None) => false,
                (tag, Some(data)) => {
                    let typed = TypedBytes::new(tag.to_owned(), Bytes::copy_from_slice(data));
                    // One that does not open fails where blobs are sealed.
                    codec
                        .open(typed, &blob_data(self.thread_id, ns, channel, version))
                        .is_ok_and(|typed| typed.tag == "msgpack" && &*typed.data == TRUE)
                }
            };
            if !is_true && let Some((_, _, document)) = documents.get_mut(*at) {
                document.values.shift_remove(channel);
            }
        }
        Ok(())
    }

    /// Changes rows in one transaction, and returns how many values were stored and how many rows had changed.
    async fn store(&self, changes: Vec<Change<'_>>) -> Result<(u64, u64)> {
        if changes.is_empty() {
            return Ok((0, 0));
        }
        let (statements, values): (Vec<_>, Vec<_>) =
            changes.into_iter().map(|(sql, params, values)| ((sql, params), values)).unzip();
        let lock = &lock::take(&[], &[Lock::of(self.thread_id)]);
        let statements = &statements;
        let run = |connection: Connection| async move {
            connection.execute_all_in_transaction(lock, statements).await
        };
        let rows = self.shared.database.run(run).await?;
        let stored = values.iter().zip(&rows).filter(|(_, rows)| **rows > 0);
        let missed = rows.iter().filter(|rows| **rows == 0).count();
        Ok((stored.map(|(values, _)| values).sum(), missed as u64))
    }

    fn note(&mut self, stored: u64, missed: u64) {
        self.rekeying.stored(stored);
        self.missed += missed;
    }
}

fn blob_data<'a>(
    thread_id: &'a str,
    checkpoint_ns: &'a str,
    channel: &'a str,
    version: &'a str,
) -> AssociatedData<'a> {
    AssociatedData::Blob { thread_id, checkpoint_ns, channel, version }
}

/// The bytes of values that are about to be stored.
fn blobs<'a>(values: impl Iterator<Item = &'a TypedBytes>) -> Vec<Blob<'a>> {
    let blobs: Vec<_> = values.map(|value| Blob(&value.data)).collect();
    telemetry::bytes_written(SYSTEM, blobs.iter().map(|blob| blob.0.len()).sum());
    blobs
}

/// The last row of a page, unless the thread has no further rows.
fn last_of_full(rows: &[Row]) -> Result<Option<&Row>> {
    let Some(last) = rows.last() else { return Ok(None) };
    let found: i64 = column(last, at::FOUND)?;
    let was_cut = usize::try_from(found).is_ok_and(|found| found > rows.len());
    Ok((was_cut || found == PAGE_ROWS).then_some(last))
}

/// A document, its inline values apart.
struct Document<'a> {
    fields: IndexMap<Str, &'a RawValue>,
    channel_values: IndexMap<Str, &'a RawValue>,
    /// Those to be moved to blobs.
    values: IndexMap<Str, Inline<'a>>,
}

/// An inline value, and its version as text.
struct Inline<'a> {
    json: &'a str,
    version: Option<String>,
}

/// A document without inline values, and the blobs for them.
struct SealedDocument {
    json: String,
    blobs: Vec<(Str, String, TypedBytes)>,
    values: u64,
}

/// The parameters of a document: its JSON, and of its blobs the channels, versions, types and bytes.
type Columns<'a> = (Json<'a>, Vec<&'a str>, Vec<&'a str>, Vec<&'a str>, Vec<Blob<'a>>);

impl SealedDocument {
    fn columns(&self) -> Columns<'_> {
        (
            Json(&self.json),
            self.blobs.iter().map(|(channel, ..)| &**channel).collect(),
            self.blobs.iter().map(|(_, version, _)| &**version).collect(),
            self.blobs.iter().map(|(.., value)| &*value.tag).collect(),
            blobs(self.blobs.iter().map(|(.., value)| value)),
        )
    }
}

impl<'a> Document<'a> {
    fn parse(json: &'a str) -> Result<Self> {
        let fields: IndexMap<Str, &RawValue> = document::from_json(json.as_bytes())?;
        let object = |name: &str| fields.get(name).map_or("{}", |raw| raw.get());
        let channel_values: IndexMap<Str, &RawValue> =
            document::from_json(object("channel_values").as_bytes())?;
        let versions: ChannelVersions = document::from_json(object("channel_versions").as_bytes())?;
        let mut values = IndexMap::new();
        for (channel, raw) in &channel_values {
            let version = versions.get(channel).map(document::version_text).transpose()?;
            values.insert(channel.clone(), Inline { json: raw.get(), version });
        }
        Ok(Self { fields, channel_values, values })
    }

    /// Seals the inline values and the fields that LangGraph does not have, as `put` does. `None` if there is nothing to
    /// store.
    fn seal(
        mut self,
        key: CheckpointKey<'_>,
        codec: &ValueCodec,
        rekeying: &mut Rekeying,
    ) -> Result<Option<SealedDocument>> {
        let mut blobs = Vec::new();
        for (channel, Inline { json, version }) in &self.values {
            // Without a version there is no blob.
            let Some(version) = version else { continue };
            if rekeying.is_dry_run() {
                continue;
            }
            check_name("channel", channel)?;
            let data = blob_data(key.thread_id, key.checkpoint_ns, channel, version);
            let typed = document::scalar(json, codec).and_then(|value| value.to_typed());
            if let Some(new) = rekeying.reseal(typed, &data, key.context()) {
                self.channel_values.shift_remove(channel);
                blobs.push((channel.clone(), version.clone(), new));
            }
        }
        let fields = self.seal_fields(key, codec, rekeying)?;
        let values = blobs.len() as u64 + u64::from(fields.is_some());
        if values == 0 {
            return Ok(None);
        }
        let raw = |value: serde_json::Result<String>| {
            let json = value.map_err(|source| {
                Error::codec("the document cannot be written as JSON").with_source(source)
            })?;
            document::raw(json)
        };
        let channel_values = raw(serde_json::to_string(&self.channel_values))?;
        let sealed = fields.map(|typed| document::raw(document::sealed_fields_json(&typed))).transpose()?;
        let mut fields: IndexMap<Str, &RawValue> = self.fields;
        if let Some(stored) = fields.get_mut("channel_values") {
            *stored = &channel_values;
        }
        if let Some(sealed) = &sealed {
            fields.retain(|name, raw| !is_plain(name, raw));
            fields.insert(SEALED_FIELDS.into(), sealed);
        }
        let json = raw(serde_json::to_string(&fields))?;
        Ok(Some(SealedDocument { json: json.get().to_owned(), blobs, values }))
    }

    fn seal_fields(
        &self,
        key: CheckpointKey<'_>,
        codec: &ValueCodec,
        rekeying: &mut Rekeying,
    ) -> Result<Option<TypedBytes>> {
        let data = key.checkpoint_data();
        let sealed =
            self.fields.get(SEALED_FIELDS).map(|raw| document::sealed_fields(raw.get())).transpose()?;
        let plain: Vec<_> = self.fields.iter().filter(|(name, raw)| is_plain(name, raw)).collect();
        if plain.is_empty() || rekeying.is_dry_run() {
            return Ok(sealed.and_then(|typed| rekeying.reseal(Ok(typed), &data, key.context())));
        }
        let mut entries = Vec::new();
        for (name, raw) in plain {
            let value = document::scalar(raw.get(), &ValueCodec::default())?.to_value()?;
            entries.push((Value::from(&**name), value));
        }
        if let Some(sealed) = sealed {
            // Those that are sealed win, as for readers.
            let opened = codec.requiring_decryption().open(sealed, &data)?.to_value()?;
            let opened = opened.as_map().unwrap_or_default();
            entries.retain(|(name, _)| !opened.iter().any(|(sealed, _)| sealed == name));
            entries.extend(opened.iter().cloned());
        }
        let fields = TypedBytes::msgpack(Value::Map(entries).to_msgpack()?);
        Ok(rekeying.reseal(Ok(fields), &data, key.context()))
    }
}

/// Whether a field of a document is one that `put` seals.
fn is_plain(name: &str, value: &RawValue) -> bool {
    !document::is_own(name) && !matches!(name, "updated_channels" | SEALED_FIELDS) && value.get() != "null"
}
