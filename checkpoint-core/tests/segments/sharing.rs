//! What versions share, and what each costs.

use checkpoint_core::serde::to_msgpack;
use checkpoint_core::{TypedBytes, Value};
use serde::Serialize;

use super::data::{
    Database, Random, codec, codecs, manifest_bytes, message, messages, split, text, truncated_list, typed,
};

#[test]
fn short_values_stay_whole() {
    for len in [0, 100, 8_000] {
        let value = typed(&vec![text(1, len)]);
        let split = split(&value);
        assert_eq!((split.value, split.addresses.len(), split.segments.len()), (value, 0, 0));
    }
}

#[test]
fn a_growing_list_costs_what_is_new() {
    let list = messages(0..300);
    for codec in codecs() {
        let mut database = Database::default();
        let mut manifests = 0;
        let mut before = Vec::new();
        for len in 1..=list.len() {
            let value = typed(&list[..len]);
            let split = codec.split(value, &super::data::row(super::data::THREAD)).unwrap();
            database.put(&codec, &split);
            manifests += manifest_bytes(&split);
            let addresses: Vec<_> = split.addresses.iter().collect();
            assert!(addresses.starts_with(&before), "an append changes no segment");
            before = addresses;
        }
        // 46 MB as full copies.
        assert!(database.bytes + manifests < 1_700_000, "{} and {manifests} bytes", database.bytes);
        assert!(database.bytes < 320_000, "every byte is stored once as a segment, not {}", database.bytes);
        assert!(database.segments.len() < 60, "{} segments", database.segments.len());
    }
}

#[test]
fn a_change_costs_the_segments_around_it() {
    let list = messages(0..500);
    let new = message(1_000, 1_500);
    let mut changed = vec![];
    for at in [3, 120, 250, 377, 490] {
        let mut edited = list.clone();
        edited[at] = new.clone();
        let mut inserted = list.clone();
        inserted.insert(at, new.clone());
        let mut removed = list.clone();
        removed.remove(at);
        changed.extend([edited, inserted, removed, list[at..].to_vec()]);
    }
    let edits = changed.len();
    let mut swapped = list.clone();
    swapped.swap(100, 400);
    let mut rotated = list.clone();
    rotated.rotate_left(250);
    changed.extend([swapped, rotated]);
    let codec = codec(None);
    let mut original = Database::default();
    original.round_trip(&codec, &typed(&list));
    let mut sum = 0;
    for (at, changed) in changed.iter().enumerate() {
        let mut database = original.clone();
        database.round_trip(&codec, &typed(changed));
        let new = database.bytes - original.bytes;
        assert!(new < if at < edits { 64_000 } else { 128_000 }, "change {at} costs {new} bytes of 512,000");
        sum += new;
    }
    assert!(sum / changed.len() < 20_000, "on average a change costs {} bytes", sum / changed.len());
}

#[derive(Serialize)]
struct State<'a, T> {
    step: u32,
    messages: &'a [T],
    status: &'a str,
}

#[test]
fn a_long_list_in_a_state_is_shared_although_what_is_around_it_changes() {
    let list = messages(0..200);
    let codec = codec(None);
    let mut database = Database::default();
    for step in 100..200_u32 {
        let state = State {
            step,
            messages: &list[..step as usize],
            status: if step % 2 == 0 { "on" } else { "off" },
        };
        let split = database.round_trip(&codec, &typed(&state));
        assert!(manifest_bytes(&split) < 25_000);
    }
    assert!(database.bytes < 220_000, "{} bytes of segments", database.bytes);
}

#[test]
fn the_snapshot_of_a_delta_channel_is_shared() {
    let list = messages(0..60);
    let codec = codec(None);
    let mut database = Database::default();
    for len in 10..60 {
        let payload = to_msgpack(&list[..len]).unwrap();
        let snapshot = Value::Ext(7, payload.into()).to_msgpack().unwrap();
        database.round_trip(&codec, &TypedBytes::msgpack(snapshot));
    }
    assert!(database.bytes < 64_000, "{} bytes of segments", database.bytes);
}

#[test]
fn an_edit_in_a_long_text_keeps_most_of_its_segments() {
    let codec = codec(None);
    for tag in ["msgpack", "json", "bytes", "pickle"] {
        let value = |text: &str| match tag {
            "msgpack" => typed(&[("report.md", text)]),
            tag => TypedBytes::new(tag, text.as_bytes().to_vec()),
        };
        let report = text(1, 600_000);
        let edited = format!("{}edit{}", &report[..50_000], &report[50_000..]);
        let mut database = Database::default();
        let first = database.round_trip(&codec, &value(&report));
        assert!((20..80).contains(&first.segments.len()), "{} segments", first.segments.len());
        let before = database.bytes;
        database.round_trip(&codec, &value(&edited));
        assert!(database.bytes - before < 150_000, "{tag}: {} new bytes", database.bytes - before);
        let longer = format!("{report}{}", text(2, 10_000));
        let longer = database.round_trip(&codec, &value(&longer));
        assert!(longer.addresses.as_bytes().starts_with(first.addresses.as_bytes()));
    }
}

#[test]
fn maps_and_small_elements_are_shared() {
    let codec = codec(None);
    let entry = |at: u64| (format!("file-{at}.md"), text(at, 2_000));
    let mut entries: Vec<_> = (0..50).map(entry).collect();
    let map = |entries: &[(String, String)]| {
        let entries = entries.iter().map(|(key, text)| (Value::from(&**key), Value::from(&**text)));
        TypedBytes::msgpack(Value::Map(entries.collect()).to_msgpack().unwrap())
    };
    let mut database = Database::default();
    database.round_trip(&codec, &map(&entries));
    let before = database.bytes;
    entries[20].1 = text(99, 2_000);
    entries.push(entry(50));
    database.round_trip(&codec, &map(&entries));
    assert!(database.bytes - before < 40_000, "{} new bytes of 102,000", database.bytes - before);

    let mut random = Random::new(1);
    let mut numbers: Vec<u64> = (0..20_000).map(|_| random.next() >> 32).collect();
    let mut database = Database::default();
    database.round_trip(&codec, &typed(&numbers));
    let before = database.bytes;
    numbers.insert(10_000, 5);
    database.round_trip(&codec, &typed(&numbers));
    assert!(database.bytes - before < 40_000, "{} new bytes of 100,000", database.bytes - before);
}

#[test]
fn what_repeats_is_stored_once() {
    let mut database = Database::default();
    let split = database.round_trip(&codec(None), &TypedBytes::new("bytes", vec![0; 3_000_000]));
    assert!(split.addresses.len() > split.segments.len());
    assert!(database.bytes < 300_000, "{} bytes of segments", database.bytes);
}

#[test]
fn unusual_shapes_are_split_too() {
    let codec = codec(None);
    let deep = |levels: usize| {
        let mut bytes = vec![0x91; levels];
        bytes.extend(to_msgpack(&messages(0..40)).unwrap());
        bytes
    };
    let mut trailing = to_msgpack(&messages(0..40)).unwrap();
    trailing.extend(text(3, 20_000).into_bytes());
    let long_keys: Vec<_> = (0..100).map(|at| (Value::from(text(at, 8_190)), Value::from(1_i64))).collect();
    let longer_keys: Vec<_> =
        (0..10).map(|at| (Value::from(text(at, 50_000)), Value::from(text(at, 9_000)))).collect();
    let values = [
        vec![0x91; 1_000_000],
        deep(5),
        deep(15),
        deep(1_000),
        trailing,
        truncated_list().to_vec(),
        Value::Map(long_keys).to_msgpack().unwrap(),
        Value::Map(longer_keys).to_msgpack().unwrap(),
        to_msgpack(&vec![message(1, 9_000); 10]).unwrap(),
        to_msgpack(&vec![message(2, 100_000), message(3, 20), message(4, 1_000_000)]).unwrap(),
        b"\xdb\xff\xff\xff\xff".repeat(5_000),
        Value::Ext(-3, text(4, 50_000).into()).to_msgpack().unwrap(),
    ];
    for value in values {
        let split = Database::default().round_trip(&codec, &TypedBytes::msgpack(value));
        assert!(!split.segments.is_empty());
        assert!(split.segments.iter().all(|segment| segment.len() <= 160 * 1024));
        assert!(manifest_bytes(&split) < 140_000);
    }
}
