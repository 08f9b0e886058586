//! Random values and random edits.

use checkpoint_core::python::Message;
use checkpoint_core::serde::to_msgpack;
use checkpoint_core::{TypedBytes, Value};
use proptest::prelude::*;

use super::data::{Database, THREAD, codecs, message, row, split, text, typed};

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Nil),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (any::<u64>(), 0_usize..3_000).prop_map(|(seed, len)| Value::from(text(seed, len))),
        (any::<u64>(), 0_usize..60_000).prop_map(|(seed, len)| Value::Bin(text(seed, len).into())),
    ]
}

/// Values of every shape, often long enough to be split.
fn value() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(4, 80, 24, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..24).prop_map(Value::Array),
            prop::collection::vec((scalar(), inner.clone()), 0..12).prop_map(Value::Map),
            inner.clone().prop_map(|inner| Value::Ext(7, inner.to_msgpack().unwrap().into())),
            (any::<i8>(), inner)
                .prop_map(|(code, inner)| Value::Ext(code, inner.to_msgpack().unwrap().into())),
        ]
    })
}

#[derive(Debug, Clone)]
enum Edit {
    Append(usize),
    Replace(prop::sample::Index, usize),
    Insert(prop::sample::Index, usize),
    Remove(prop::sample::Index),
    TrimFirst(prop::sample::Index),
    TrimLast(prop::sample::Index),
    Swap(prop::sample::Index, prop::sample::Index),
    Rotate(prop::sample::Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let len = || prop_oneof![4 => 200_usize..3_000, 1 => 3_000_usize..40_000];
    let at = any::<prop::sample::Index>;
    prop_oneof![
        6 => len().prop_map(Edit::Append),
        1 => (at(), len()).prop_map(|(at, len)| Edit::Replace(at, len)),
        1 => (at(), len()).prop_map(|(at, len)| Edit::Insert(at, len)),
        1 => at().prop_map(Edit::Remove),
        1 => at().prop_map(Edit::TrimFirst),
        1 => at().prop_map(Edit::TrimLast),
        1 => (at(), at()).prop_map(|(a, b)| Edit::Swap(a, b)),
        1 => at().prop_map(Edit::Rotate),
    ]
}

fn apply(list: &mut Vec<Message>, edit: &Edit, seed: u64) {
    let len = list.len();
    match *edit {
        Edit::Append(bytes) => list.push(message(seed, bytes)),
        Edit::Insert(at, bytes) => list.insert(at.index(len + 1), message(seed, bytes)),
        _ if len == 0 => {}
        Edit::Replace(at, bytes) => list[at.index(len)] = message(seed, bytes),
        Edit::Remove(at) => drop(list.remove(at.index(len))),
        Edit::TrimFirst(at) => drop(list.drain(..at.index(len) / 2)),
        Edit::TrimLast(at) => list.truncate(len - at.index(len) / 2),
        Edit::Swap(a, b) => list.swap(a.index(len), b.index(len)),
        Edit::Rotate(at) => list.rotate_left(at.index(len)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn values_come_back(value in value(), tag in 0_usize..4) {
        let tag = ["msgpack", "msgpack", "json", "own"][tag];
        let value = TypedBytes::new(tag, value.to_msgpack().unwrap());
        for codec in codecs() {
            Database::default().round_trip(&codec, &value);
        }
    }

    #[test]
    fn bytes_that_are_not_messagepack_come_back(
        value in value(),
        repeat in 1_usize..5,
        end in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
    ) {
        let mut bytes = value.to_msgpack().unwrap().repeat(repeat);
        for (at, byte) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        bytes.truncate(end.index(bytes.len()) + 1);
        for codec in codecs() {
            Database::default().round_trip(&codec, &TypedBytes::msgpack(bytes.clone()));
        }
    }

    #[test]
    fn every_version_of_an_edited_list_comes_back(edits in prop::collection::vec(edit(), 1..16), seed in any::<u64>()) {
        let mut list: Vec<_> = (0..20).map(|at| message(seed ^ at, 1_000)).collect();
        let codecs = codecs();
        let mut databases = vec![Database::default(); codecs.len()];
        let mut versions = Vec::new();
        for (at, edit) in edits.iter().enumerate() {
            let before = split(&typed(&list));
            apply(&mut list, edit, seed.wrapping_add(at as u64));
            let value = typed(&list);
            if matches!(edit, Edit::Append(_)) {
                let after = split(&value);
                prop_assert!(after.addresses.as_bytes().starts_with(before.addresses.as_bytes()));
            }
            for (codec, database) in codecs.iter().zip(&mut databases) {
                let stored = database.round_trip(codec, &value);
                versions.push((codec, stored, value.clone()));
            }
        }
        for (at, (codec, stored, value)) in versions.iter().enumerate() {
            let database = &databases[at % codecs.len()];
            prop_assert_eq!(&database.get(codec, &stored.value, &stored.addresses).unwrap(), value);
        }
    }

    #[test]
    fn the_beginning_of_a_list_decides_about_its_segments(
        elements in prop::collection::vec(value(), 1..60),
        cut in any::<prop::sample::Index>(),
    ) {
        let whole = split(&TypedBytes::msgpack(to_msgpack(&elements).unwrap()));
        let part = split(&TypedBytes::msgpack(to_msgpack(&elements[..cut.index(elements.len())]).unwrap()));
        prop_assert!(whole.addresses.as_bytes().starts_with(part.addresses.as_bytes()));
    }

    #[test]
    fn what_is_remembered_changes_no_cut(
        start in prop_oneof![prop::collection::vec(value(), 0..40), Just(Vec::new())],
        as_map in any::<bool>(),
        edits in prop::collection::vec((edit(), any::<bool>()), 1..16),
        seed in any::<u64>(),
    ) {
        for codec in codecs() {
            let remembering = codec.clone().remembering(1 << 24);
            let mut list: Vec<_> = (0..40).map(|at| message(seed ^ at, 700)).collect();
            for (at, (edit, is_stored)) in edits.iter().enumerate() {
                apply(&mut list, edit, seed.wrapping_add(at as u64));
                let messages = list.iter().map(|message| Value::Bin(to_msgpack(message).unwrap().into()));
                let elements = start.iter().cloned().chain(messages);
                let value = if as_map {
                    Value::Map(elements.enumerate().map(|(key, value)| (Value::from(key as u64), value)).collect())
                } else {
                    Value::Array(elements.collect())
                };
                let value = TypedBytes::msgpack(value.to_msgpack().unwrap());
                let expected = codec.split(value.clone(), &row(THREAD)).unwrap();
                let found = remembering.split(value, &row(THREAD)).unwrap();
                prop_assert_eq!(&found.addresses, &expected.addresses);
                if codec.values().cipher.is_none() {
                    prop_assert_eq!(&found.value, &expected.value);
                }
                if *is_stored {
                    remembering.remember(THREAD, &found.segments);
                }
            }
        }
    }
}
