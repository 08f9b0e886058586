//! A checkpoint as a JSON document and rows of blobs, split as Python's saver splits it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use checkpoint_core::backend::{BlobRow, CheckpointKey, Inline, SplitCheckpoint, SplitRules, ValueCodec};
use checkpoint_core::serde::json;
use checkpoint_core::{
    ChannelValue, ChannelVersion, ChannelVersions, Checkpoint, CheckpointConfig, CheckpointMetadata, Error,
    InlineScalars, PutOptions, Result, Str, TypedBytes, Value,
};
use indexmap::IndexMap;
use serde::Serialize;
use serde_json::value::RawValue;

/// From here on the JSON of a double has no fraction, and the server returns an integer.
const WHOLE_FROM: f64 = 1e16;

/// The metadata key that Python's saver for Postgres does not store.
const LEFT_OUT: &str = "writes";

/// With a cipher, the field of the document with all fields that LangGraph does not have, encrypted: type tag and
/// base64.
pub(crate) const SEALED_FIELDS: &str = "$sealed_fields";

/// A checkpoint as it is stored.
#[derive(Debug)]
pub(crate) struct Document {
    /// The JSON document, with the scalars in it.
    pub(crate) json: String,
    /// Every other value.
    pub(crate) blobs: Vec<BlobRow>,
    /// The versions of values that the parent has stored, as JSON.
    pub(crate) carried_over: Option<String>,
}

/// A value in the document.
struct InDocument<'a>(Inline<'a>);

impl Serialize for InDocument<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Inline::Value(value) = &self.0 else { return serializer.serialize_bool(true) };
        match &**value {
            ChannelValue::Null => serializer.serialize_unit(),
            ChannelValue::Bool(flag) => serializer.serialize_bool(*flag),
            ChannelValue::Int(number) => serializer.serialize_i64(*number),
            ChannelValue::Float(number) => serializer.serialize_f64(*number),
            ChannelValue::Str(text) => serializer.serialize_str(text),
            ChannelValue::Blob(digits) => {
                let digits = std::str::from_utf8(&digits.data).map_err(serde::ser::Error::custom)?;
                let digits: &RawValue = serde_json::from_str(digits).map_err(serde::ser::Error::custom)?;
                digits.serialize(serializer)
            }
        }
    }
}

#[derive(Serialize)]
struct Fields<'a> {
    v: i64,
    ts: &'a str,
    id: &'a str,
    channel_values: IndexMap<&'a str, InDocument<'a>>,
    channel_versions: &'a ChannelVersions,
    versions_seen: &'a IndexMap<Str, ChannelVersions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_channels: Option<&'a [Str]>,
    #[serde(flatten)]
    extra: BTreeMap<&'a str, Box<RawValue>>,
}

/// How values are laid out in Python's tables.
struct Rules;

impl SplitRules for Rules {
    /// Python inlines every scalar, and loses those that the server's JSON does not return unchanged.
    fn is_inline(&self, value: &ChannelValue) -> bool {
        InlineScalars::Jsonb.contains(value)
    }

    fn version_key(&self, version: &ChannelVersion) -> Result<String> {
        version_text(version)
    }

    fn check_name(&self, what: &'static str, name: &str) -> Result<()> {
        check_name(what, name)
    }
}

/// Splits a checkpoint into its document and its blobs. With a cipher every value is a blob, encrypted.
pub(crate) fn encode(
    codec: &ValueCodec,
    config: &CheckpointConfig,
    checkpoint: &Checkpoint,
    new_versions: &ChannelVersions,
    options: &PutOptions,
) -> Result<Document> {
    let split = SplitCheckpoint::new(codec, &Rules, config, checkpoint, new_versions, options)?;
    let inline = split.inline.into_iter().map(|(channel, value)| (channel, InDocument(value)));
    let fields = Fields {
        v: checkpoint.v,
        ts: &checkpoint.ts,
        id: &checkpoint.id,
        channel_values: inline.collect(),
        channel_versions: check_versions(&checkpoint.channel_versions)?,
        versions_seen: &checkpoint.versions_seen,
        updated_channels: checkpoint.updated_channels.as_deref(),
        extra: extra(config, checkpoint, codec)?,
    };
    checkpoint.versions_seen.values().try_for_each(|seen| check_versions(seen).map(|_| ()))?;
    let write = |written: serde_json::Result<String>| {
        written.map_err(|source| Error::codec("the checkpoint cannot be written as JSON").with_source(source))
    };
    let json = write(serde_json::to_string(&fields))?;
    check_nul(&json)?;
    let carried_over = &split.carried_over;
    let carried_over =
        (!carried_over.is_empty()).then(|| write(serde_json::to_string(carried_over))).transpose()?;
    Ok(Document { json, blobs: split.blobs, carried_over })
}

/// A version as `jsonb_each_text` returns it: part of the key of its blob.
pub(crate) fn version_text(version: &ChannelVersion) -> Result<String> {
    match version {
        ChannelVersion::Float(number) if !number.is_finite() => {
            Err(Error::invalid_argument("a version must be a finite number"))
        }
        ChannelVersion::Float(number) if number.fract() == 0.0 && number.abs() < WHOLE_FROM => {
            // The server keeps the fraction `.0`, and has no negative zero.
            Ok(format!("{:.1}", if *number == 0.0 { 0.0 } else { *number }))
        }
        ChannelVersion::Float(number) => Ok(number.to_string()),
        other => Ok(other.to_string()),
    }
}

fn check_versions(versions: &ChannelVersions) -> Result<&ChannelVersions> {
    versions.values().try_for_each(|version| version_text(version).map(|_| ()))?;
    Ok(versions)
}

/// Rejects a name that breaks Python's reads: they cast it to bytes, where a backslash begins an escape.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<()> {
    if name.contains('\\') {
        return Err(Error::invalid_argument(
            "the name contains a backslash, with which Python could not read the row; choose another name",
        )
        .with(what, name));
    }
    check_text(what, name)
}

/// Rejects a text that the server cannot store.
pub(crate) fn check_text(what: &'static str, text: &str) -> Result<()> {
    if text.contains('\0') {
        return Err(Error::invalid_argument("PostgreSQL cannot hold U+0000 in a text").with(what, text));
    }
    Ok(())
}

/// Rejects a config with an id that the server cannot store.
pub(crate) fn check_key(config: &CheckpointConfig) -> Result<()> {
    check_text("thread_id", config.thread_id())?;
    check_text("checkpoint_ns", config.checkpoint_ns())?;
    config.checkpoint_id().map_or(Ok(()), |id| check_text("checkpoint_id", id))
}

/// Rejects JSON with U+0000 in one of its texts, which the server cannot store.
fn check_nul(json: &str) -> Result<()> {
    const NUL: &str = "\\u0000";
    let escaped = |at: usize| {
        let before = json.as_bytes().get(..at).unwrap_or_default();
        before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
    };
    if json.match_indices(NUL).any(|(at, _)| !escaped(at)) {
        return Err(Error::invalid_argument(
            "PostgreSQL cannot hold U+0000 in JSON: not in a name, a version or nested metadata",
        ));
    }
    Ok(())
}

/// Whether a field of a document is one that LangGraph always has.
pub(crate) fn is_own(key: &str) -> bool {
    matches!(key, "v" | "ts" | "id" | "channel_values" | "channel_versions" | "versions_seen")
}

fn extra<'a>(
    config: &CheckpointConfig,
    checkpoint: &'a Checkpoint,
    codec: &ValueCodec,
) -> Result<BTreeMap<&'a str, Box<RawValue>>> {
    let mut extra = BTreeMap::new();
    let mut sealed = Vec::new();
    for (key, value) in &checkpoint.extra {
        if is_own(key) || (&**key == "updated_channels" && checkpoint.updated_channels.is_some()) {
            continue;
        }
        if &**key == SEALED_FIELDS && codec.cipher.is_none() {
            return Err(Error::invalid_argument("the name of this field is taken; choose another name")
                .with("field", key));
        }
        let value = value.to_value()?;
        if codec.cipher.is_some() && !value.is_nil() {
            sealed.push((Value::from(&**key), value));
            continue;
        }
        extra.insert(&**key, raw(to_json(&value).map_err(|error| error.with("field", key))?)?);
    }
    if !sealed.is_empty() {
        let key = CheckpointKey::new(config.thread_id(), config.checkpoint_ns(), &checkpoint.id);
        let fields = TypedBytes::msgpack(Value::Map(sealed).to_msgpack()?);
        extra.insert(SEALED_FIELDS, raw(sealed_fields_json(&codec.seal(fields, &key.checkpoint_data())?))?);
    }
    Ok(extra)
}

pub(crate) fn raw(json: String) -> Result<Box<RawValue>> {
    RawValue::from_string(json)
        .map_err(|source| Error::codec("the field cannot be written as JSON").with_source(source))
}

/// The JSON of [`SEALED_FIELDS`].
pub(crate) fn sealed_fields_json(typed: &TypedBytes) -> String {
    // Neither a tag nor base64 has anything to escape.
    format!("[\"{}\", \"{}\"]", typed.tag, STANDARD.encode(&typed.data))
}

/// Decodes the JSON of [`SEALED_FIELDS`].
pub(crate) fn sealed_fields(json: &str) -> Result<TypedBytes> {
    let (tag, data): (String, String) = from_json(json.as_bytes())?;
    let data = STANDARD.decode(data).map_err(|source| {
        Error::codec("the sealed fields of the checkpoint are damaged").with_source(source.to_string())
    })?;
    Ok(TypedBytes::new(tag, data))
}

/// Decrypts the fields that LangGraph does not have, where they are encrypted.
pub(crate) fn open_fields(
    checkpoint: &mut Checkpoint,
    key: CheckpointKey<'_>,
    codec: &ValueCodec,
) -> Result<()> {
    let Some(sealed) = checkpoint.extra.get(SEALED_FIELDS) else { return Ok(()) };
    let typed = sealed_fields(&to_json(&sealed.to_value()?)?)?;
    let fields = codec.open(typed, &key.checkpoint_data())?;
    if fields.is_sealed() {
        // Kept as it is.
        return Ok(());
    }
    let fields = fields.to_value()?;
    let fields = CheckpointMetadata::from_entries(fields.as_map().unwrap_or_default())?;
    checkpoint.extra.shift_remove(SEALED_FIELDS);
    for (key, value) in fields.iter() {
        checkpoint.extra.insert(key.clone(), of_value(value)?);
    }
    Ok(())
}

/// JSON that the server accepts.
pub(crate) fn to_json(value: &Value) -> Result<String> {
    if !is_finite(value) {
        return Err(Error::invalid_argument("PostgreSQL cannot hold NaN and infinities in JSON"));
    }
    let json = json::to_string(value, json::Style::Plain)?;
    check_nul(&json)?;
    Ok(json)
}

fn is_finite(value: &Value) -> bool {
    match value {
        Value::Float(number) => number.is_finite(),
        Value::Array(items) => items.iter().all(is_finite),
        Value::Map(entries) => entries.iter().all(|(key, value)| is_finite(key) && is_finite(value)),
        _ => true,
    }
}

/// The stored metadata: merged with the config's and the step key, without the key that Python's saver does not store.
pub(crate) fn metadata(
    metadata: &CheckpointMetadata,
    config: &CheckpointConfig,
    options: &PutOptions,
) -> Result<String> {
    let mut merged = options.metadata(metadata, config)?;
    merged.remove(LEFT_OUT);
    let finite = merged.iter().all(|(_, value)| is_finite(value));
    if !finite {
        return Err(Error::invalid_argument("PostgreSQL cannot hold NaN and infinities in metadata"));
    }
    let json = merged.to_json()?;
    check_nul(&json)?;
    Ok(json)
}

/// Decodes a document. The values in `checkpoint_blobs` are not part of it.
pub(crate) fn decode(document: &[u8], codec: &ValueCodec) -> Result<Checkpoint> {
    let fields: IndexMap<Str, &RawValue> = from_json(document)?;
    let mut checkpoint = Checkpoint::undecoded();
    for (key, raw) in fields {
        let json = raw.get();
        match &*key {
            "v" => checkpoint.v = from_json(json.as_bytes())?,
            "id" => checkpoint.id = from_json(json.as_bytes())?,
            "ts" => checkpoint.ts = from_json(json.as_bytes())?,
            "channel_values" => {
                let values: IndexMap<Str, &RawValue> = from_json(json.as_bytes())?;
                let value =
                    |(channel, raw): (Str, &RawValue)| scalar(raw.get(), codec).map(|value| (channel, value));
                checkpoint.channel_values = values.into_iter().map(value).collect::<Result<_>>()?;
            }
            "channel_versions" => checkpoint.channel_versions = from_json(json.as_bytes())?,
            "versions_seen" => checkpoint.versions_seen = from_json(json.as_bytes())?,
            "updated_channels" if json.starts_with('[') => {
                checkpoint.updated_channels = from_json(json.as_bytes())?;
            }
            _ => {
                checkpoint.extra.insert(key, scalar(json, &ValueCodec::default())?);
            }
        }
    }
    Ok(checkpoint)
}

pub(crate) fn from_json<'a, T: serde::Deserialize<'a>>(json: &'a [u8]) -> Result<T> {
    // The parser's message could quote stored values.
    serde_json::from_slice(json).map_err(|error| {
        Error::codec("the stored checkpoint does not have LangGraph's shape").with("column", error.column())
    })
}

/// A value of a document: a scalar, or from older or other writers, a list or map.
///
/// With opaque values an integer beyond 64 bits is always its digits: nobody else's serializer reads our MessagePack.
pub(crate) fn scalar(json: &str, codec: &ValueCodec) -> Result<ChannelValue> {
    match json.as_bytes().first() {
        Some(b'n') => Ok(ChannelValue::Null),
        Some(b't') => Ok(ChannelValue::Bool(true)),
        Some(b'f') => Ok(ChannelValue::Bool(false)),
        Some(b'"') => from_json(json.as_bytes()).map(ChannelValue::Str),
        Some(b'[' | b'{') => of_value(&json::parse(json.as_bytes())?),
        _ if json.contains(['.', 'e', 'E']) => from_json(json.as_bytes()).map(ChannelValue::Float),
        _ => {
            if let Ok(number) = json.parse() {
                return Ok(ChannelValue::Int(number));
            }
            if let Ok(number) = json.parse()
                && !codec.opaque_values
            {
                return of_value(&Value::UInt(number));
            }
            Ok(ChannelValue::Blob(TypedBytes::new("json", json.as_bytes().to_vec())))
        }
    }
}

fn of_value(value: &Value) -> Result<ChannelValue> {
    ChannelValue::from_msgpack(value.to_msgpack()?.into())
}

#[cfg(test)]
mod tests {
    use checkpoint_core::{Cipher, ErrorKind};

    use super::*;

    fn encode_values(values: &[(&str, ChannelValue)], codec: &ValueCodec) -> Result<Document> {
        let checkpoint = values.iter().fold(Checkpoint::new(0), |checkpoint, (channel, value)| {
            checkpoint.with_channel(*channel, value.clone(), "1.5")
        });
        encode_plain(&checkpoint, &checkpoint.channel_versions, codec)
    }

    fn encode_plain(
        checkpoint: &Checkpoint,
        new_versions: &ChannelVersions,
        codec: &ValueCodec,
    ) -> Result<Document> {
        encode(codec, &CheckpointConfig::new("t"), checkpoint, new_versions, &PutOptions::default())
    }

    fn sealing(cipher: Cipher) -> ValueCodec {
        ValueCodec { cipher: Some(cipher), ..ValueCodec::default() }
    }

    fn inline(document: &Document) -> serde_json::Value {
        serde_json::from_str::<serde_json::Value>(&document.json).unwrap()["channel_values"].clone()
    }

    #[test]
    fn scalars_that_json_gives_back_are_inline_and_all_else_is_a_row() {
        let big = TypedBytes::new("json", &b"1180591620717411303424"[..]);
        let table: [(ChannelValue, Option<&str>); 13] = [
            (ChannelValue::Null, Some("null")),
            (true.into(), Some("true")),
            (i64::MIN.into(), Some("-9223372036854775808")),
            (1.0.into(), Some("1.0")),
            (1e15.into(), Some("1000000000000000.0")),
            ("\u{e9}\"\\".into(), Some("\"\u{e9}\\\"\\\\\"")),
            (big.into(), Some("1180591620717411303424")),
            (1e16.into(), None),
            ((-0.0).into(), None),
            (f64::NAN.into(), None),
            (f64::NEG_INFINITY.into(), None),
            ("a\0b".into(), None),
            (TypedBytes::msgpack(&b"\x90"[..]).into(), None),
        ];
        for (value, expected) in table {
            let document = encode_values(&[("x", value.clone())], &ValueCodec::default()).unwrap();
            if let Some(json) = expected {
                assert!(document.json.contains(&format!("\"channel_values\":{{\"x\":{json}}}")), "{value:?}");
                assert!(document.blobs.is_empty());
                let decoded = decode(document.json.as_bytes(), &ValueCodec::default()).unwrap();
                assert_eq!(decoded.channel_values.get("x"), Some(&value));
                continue;
            }
            assert_eq!(inline(&document), serde_json::json!({}), "{value:?}");
            let [blob] = &*document.blobs else { panic!("{value:?}: {} blobs", document.blobs.len()) };
            assert_eq!((&*blob.channel, &*blob.version), ("x", "1.5"));
            let found = ChannelValue::from_typed(blob.value.clone()).unwrap();
            assert_eq!(found.to_msgpack().unwrap(), value.to_msgpack().unwrap());
        }
    }

    #[test]
    fn a_snapshot_leaves_its_mark() {
        let snapshot = TypedBytes::msgpack(&b"\xd4\x07\xc0"[..]);
        let document = encode_values(&[("log", snapshot.into())], &ValueCodec::default()).unwrap();
        assert_eq!((inline(&document), document.blobs.len()), (serde_json::json!({ "log": true }), 1));
    }

    #[test]
    fn with_a_cipher_nothing_is_inline() {
        let cipher = Cipher::aes(&[7; 16]).unwrap();
        let values = [("a", ChannelValue::Null), ("b", 5.into()), ("c", "canary".into())];
        let document = encode_values(&values, &sealing(cipher)).unwrap();
        assert_eq!((inline(&document), document.blobs.len()), (serde_json::json!({}), 3));
        assert!(document.blobs.iter().all(|blob| blob.value.is_sealed()));
    }

    #[test]
    fn what_would_be_lost_is_refused() {
        let mut checkpoint = Checkpoint::new(0);
        checkpoint.channel_values.insert("x".into(), TypedBytes::msgpack(&b"\x90"[..]).into());
        let config = CheckpointConfig::new("t");
        let no_version =
            encode_plain(&checkpoint, &ChannelVersions::new(), &ValueCodec::default()).unwrap_err();
        assert_eq!(no_version.kind(), ErrorKind::InvalidArgument);
        let list = || ChannelValue::Blob(TypedBytes::msgpack(&b"\x90"[..]));
        for (channel, value) in [
            ("back\\slash", list()),
            ("nul\0", list()),
            ("nul\0", 5.into()),
            ("x", TypedBytes::new("a\\b", &b""[..]).into()),
        ] {
            let error = encode_values(&[(channel, value)], &ValueCodec::default()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{channel:?}");
        }
        // A text that only looks like the escape is fine.
        assert!(encode_values(&[("\\u0000 in a name", 5.into())], &ValueCodec::default()).is_ok());
        // It could not be read again.
        let mut taken = Checkpoint::new(0);
        taken.extra.insert(SEALED_FIELDS.into(), 5.into());
        let error = encode_plain(&taken, &ChannelVersions::new(), &ValueCodec::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let nan = CheckpointMetadata::default().with("a", Value::Array(vec![f64::NAN.into()]));
        assert_eq!(
            metadata(&nan, &config, &PutOptions::default()).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
    }

    #[test]
    fn versions_are_what_the_server_makes_of_them() {
        let table = [
            (ChannelVersion::Int(7), "7"),
            (1.0.into(), "1.0"),
            ((-0.0).into(), "0.0"),
            (2.5.into(), "2.5"),
            (1e-5.into(), "0.00001"),
            (1e16.into(), "10000000000000000"),
            ("001.5".into(), "001.5"),
        ];
        for (version, text) in table {
            assert_eq!(version_text(&version).unwrap(), text);
        }
        assert!(version_text(&f64::NAN.into()).is_err());
    }

    #[test]
    fn unknown_fields_are_kept_and_sealed() {
        let mut checkpoint = Checkpoint::new(0);
        checkpoint.extra.insert("pending_sends".into(), of_value(&Value::Array(vec!["x".into()])).unwrap());
        checkpoint.extra.insert("updated_channels".into(), ChannelValue::Null);
        let cipher = Cipher::aes_gcm("k", &[7; 32]).unwrap();
        for codec in [ValueCodec::default(), sealing(cipher)] {
            let document = encode_plain(&checkpoint, &ChannelVersions::new(), &codec).unwrap();
            assert_eq!(document.json.contains("pending_sends"), codec.cipher.is_none());
            let mut decoded = decode(document.json.as_bytes(), &ValueCodec::default()).unwrap();
            open_fields(&mut decoded, CheckpointKey::new("t", "", &checkpoint.id), &codec).unwrap();
            assert_eq!(decoded, checkpoint);
        }
    }

    #[test]
    fn damaged_documents_are_errors() {
        for json in [
            "",
            "1",
            "\"half a",
            "{\"v\": \"x\"}",
            "{\"channel_values\": 1}",
            "{\"versions_seen\": {\"a\": 1}}",
        ] {
            assert_eq!(
                decode(json.as_bytes(), &ValueCodec::default()).unwrap_err().kind(),
                ErrorKind::Codec,
                "{json}"
            );
        }
        assert_eq!(sealed_fields("[\"t\", \"%\"]").unwrap_err().kind(), ErrorKind::Codec);
    }
}
