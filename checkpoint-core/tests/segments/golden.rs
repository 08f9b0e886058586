//! The format: the files of version 1 are read for ever, and every process cuts a value in the same places.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use checkpoint_core::backend::segments::{Addresses, Segment, SegmentCodec};
use checkpoint_core::serde::to_msgpack;
use checkpoint_core::{TypedBytes, Value};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::data::{
    Database, Random, THREAD, codec, eax, gcm, message, messages, row, text, truncated_list, typed,
};

/// `tests/vectors/segments.json`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Golden {
    cuts: Vec<Cut>,
    stored: Vec<Stored>,
}

/// Where a value is cut. Binary fields are base64, here and below.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Cut {
    name: String,
    lengths: Vec<usize>,
    addresses: String,
    /// Of the thread `thread-1`, with the AES-256-GCM key of 32 bytes 7.
    keyed_addresses: String,
    manifest_sha256: String,
}

/// What was stored for the messages 0 to 13.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Stored {
    codec: String,
    tag: String,
    manifest: String,
    addresses: String,
    segments: Vec<(String, String)>,
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/segments.json")
}

fn golden() -> Golden {
    serde_json::from_slice(&std::fs::read(path()).unwrap()).unwrap()
}

/// Values of every shape that is cut in its own way.
fn values() -> Vec<(&'static str, TypedBytes)> {
    let mut random = Random::new(1);
    let numbers: Vec<u64> = (0..10_000).map(|_| random.next() >> 32).collect();
    let files: Vec<_> =
        (0..20).map(|at| (Value::from(format!("{at}.md")), Value::from(text(at, 2_000)))).collect();
    let state = [
        (Value::from("step"), Value::from(5_i64)),
        (Value::from("messages"), Value::from_msgpack(&to_msgpack(&messages(0..50)).unwrap()).unwrap()),
        (Value::from("report"), Value::from(text(1, 40_000))),
    ];
    let snapshot = Value::Ext(7, to_msgpack(&messages(0..20)).unwrap().into());
    let mut nested = vec![0x91; 20];
    nested.extend(to_msgpack(&text(2, 50_000)).unwrap());
    let value = |value: Value| TypedBytes::msgpack(value.to_msgpack().unwrap());
    vec![
        ("messages", typed(&messages(0..50))),
        ("long messages", typed(&[message(1, 12_000), message(2, 100), message(3, 300_000)])),
        ("numbers", typed(&numbers)),
        ("files", value(Value::Map(files))),
        ("state", value(Value::Map(state.into()))),
        ("snapshot", value(snapshot)),
        ("text", typed(&text(1, 1_500_000))),
        ("bytes", TypedBytes::new("bytes", text(2, 100_000).into_bytes())),
        ("zeros", TypedBytes::new("bytes", vec![0; 200_000])),
        ("nested", TypedBytes::msgpack(nested)),
        ("truncated", TypedBytes::msgpack(truncated_list())),
    ]
}

fn cut(name: &str, value: TypedBytes) -> Cut {
    let split = codec(None).split(value.clone(), &row(THREAD)).unwrap();
    let keyed = codec(Some(gcm())).split(value, &row(THREAD)).unwrap();
    Cut {
        name: name.into(),
        lengths: split.segments.iter().map(Segment::len).collect(),
        addresses: STANDARD.encode(split.addresses.as_bytes()),
        keyed_addresses: STANDARD.encode(keyed.addresses.as_bytes()),
        manifest_sha256: STANDARD.encode(Sha256::digest(&split.value.data)),
    }
}

fn named_codecs() -> Vec<(&'static str, SegmentCodec)> {
    let codecs = [("plain", codec(None)), ("aes256gcm", codec(Some(gcm()))), ("aes", codec(Some(eax())))];
    #[cfg(feature = "zstd")]
    let codecs = {
        let compressed = codecs.clone().map(|(_, codec)| codec.with_zstd(3));
        let names = ["zstd", "zstd aes256gcm", "zstd aes"];
        codecs.into_iter().chain(names.into_iter().zip(compressed))
    };
    codecs.into_iter().collect()
}

#[test]
fn every_process_cuts_in_the_same_places() {
    let found: Vec<_> = values().into_iter().map(|(name, value)| cut(name, value)).collect();
    let wanted = golden().cuts;
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(&wanted) {
        assert_eq!(found, wanted);
        assert!(!found.lengths.is_empty());
    }
}

#[test]
fn what_was_stored_is_read() {
    let stored = golden().stored;
    assert_eq!(stored.len(), 6);
    let mut read = 0;
    for (name, codec) in named_codecs() {
        let stored = stored.iter().find(|stored| stored.codec == name).unwrap();
        let bytes = |text: &str| STANDARD.decode(text).unwrap();
        let addresses = Addresses::new(bytes(&stored.addresses)).unwrap();
        let mut database = Database::default();
        for (address, (tag, data)) in addresses.iter().zip(&stored.segments) {
            database.segments.insert(address, TypedBytes::new(tag.clone(), bytes(data)));
        }
        let value = TypedBytes::new(stored.tag.clone(), bytes(&stored.manifest));
        assert_eq!(database.get(&codec, &value, &addresses).unwrap(), typed(&messages(0..14)), "{name}");
        assert_eq!(
            codec.split(typed(&messages(0..14)), &row(THREAD)).unwrap().addresses,
            addresses,
            "{name}"
        );
        read += 1;
    }
    assert_eq!(read, if cfg!(feature = "zstd") { 6 } else { 3 });
}

#[cfg(not(feature = "zstd"))]
#[test]
fn compressed_values_are_refused_with_the_name_of_the_feature() {
    for stored in golden().stored.iter().filter(|stored| stored.codec == "zstd") {
        let bytes = |text: &str| STANDARD.decode(text).unwrap();
        let addresses = Addresses::new(bytes(&stored.addresses)).unwrap();
        let value = TypedBytes::new(stored.tag.clone(), bytes(&stored.manifest));
        let error = Database::default().get(&codec(None), &value, &addresses).unwrap_err();
        assert!(error.to_string().contains("feature `zstd`"), "{error}");
    }
}

/// Run it with `--features zstd -- --ignored` for a new version of the format, and never to make a test pass.
#[cfg(feature = "zstd")]
#[test]
#[ignore = "writes the golden file"]
fn write_the_file() {
    let stored = |(name, codec): (&str, SegmentCodec)| {
        let split = codec.split(typed(&messages(0..14)), &row(THREAD)).unwrap();
        assert!(split.segments.len() == split.addresses.len());
        let segment = |segment| {
            let sealed = codec.seal_segment(segment, THREAD).unwrap();
            (sealed.tag.into_owned(), STANDARD.encode(&sealed.data))
        };
        Stored {
            codec: name.into(),
            tag: split.value.tag.to_string(),
            manifest: STANDARD.encode(&split.value.data),
            addresses: STANDARD.encode(split.addresses.as_bytes()),
            segments: split.segments.iter().map(segment).collect(),
        }
    };
    let golden = Golden {
        cuts: values().into_iter().map(|(name, value)| cut(name, value)).collect(),
        stored: named_codecs().into_iter().map(stored).collect(),
    };
    let lines = |lines: Vec<String>| lines.join(",\n");
    let cuts = golden.cuts.iter().map(|cut| serde_json::to_string(cut).unwrap()).collect();
    let stored = golden.stored.iter().map(|stored| serde_json::to_string(stored).unwrap()).collect();
    let text = format!("{{\"cuts\": [\n{}\n],\n\"stored\": [\n{}\n]}}\n", lines(cuts), lines(stored));
    std::fs::write(path(), text).unwrap();
}
