//! The serializer and the ciphers against values that Python wrote; see `vectors/README.md`.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;

use checkpoint_core::backend::AssociatedData;
use checkpoint_core::python::{self, Object};
use checkpoint_core::serde::{from_msgpack, to_msgpack};
use checkpoint_core::{ChannelValue, Cipher, ErrorKind, TypedBytes, Value};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct File<T> {
    vectors: Vec<T>,
}

#[derive(Deserialize)]
pub(super) struct Vector {
    pub(super) name: String,
    type_tag: Option<String>,
    hex: Option<String>,
    /// Raw, because some are nested deeper than the parser goes.
    structure: Option<Box<RawValue>>,
    encode_error: Option<String>,
}

impl Vector {
    pub(super) fn typed(&self) -> TypedBytes {
        TypedBytes::new(self.type_tag.clone().unwrap(), unhex(self.hex.as_ref().unwrap()))
    }
}

pub(super) fn load<T: DeserializeOwned>(file: &str) -> Vec<T> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vectors").join(file);
    serde_json::from_str::<File<T>>(&std::fs::read_to_string(path).unwrap()).unwrap().vectors
}

pub(super) fn vectors() -> Vec<Vector> {
    load("serde_vectors.json")
}

pub(super) fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// The value that Python's projection of MessagePack describes.
fn from_structure(json: &Json) -> Value {
    let only = |key: &str| match json {
        Json::Object(map) => map.get(key),
        _ => None,
    };
    if let Some(code) = only("$ext") {
        let payload = from_structure(&json["data"]).to_msgpack().unwrap();
        return Value::Ext(code.as_i64().unwrap().try_into().unwrap(), payload.into());
    }
    if let Some(entries) = only("$map") {
        let entry = |entry: &Json| (from_structure(&entry[0]), from_structure(&entry[1]));
        return Value::Map(entries.as_array().unwrap().iter().map(entry).collect());
    }
    if let Some(hex) = only("$bin") {
        return Value::Bin(unhex(hex.as_str().unwrap()).into());
    }
    if let Some(number) = only("$float") {
        return Value::Float(number.as_str().unwrap().parse().unwrap());
    }
    match json {
        Json::Null => Value::Nil,
        Json::Bool(flag) => (*flag).into(),
        Json::Number(number) => number.as_i64().map_or_else(|| number.as_u64().unwrap().into(), Value::from),
        Json::String(text) => text.as_str().into(),
        Json::Array(items) => items.iter().map(from_structure).collect::<Vec<_>>().into(),
        Json::Object(_) => panic!("a map without a mark in a projection"),
    }
}

fn from_rmpv(value: rmpv::Value) -> Value {
    match value {
        rmpv::Value::Nil => Value::Nil,
        rmpv::Value::Boolean(flag) => flag.into(),
        rmpv::Value::Integer(number) => {
            number.as_i64().map_or_else(|| number.as_u64().unwrap().into(), Value::from)
        }
        rmpv::Value::F32(number) => f64::from(number).into(),
        rmpv::Value::F64(number) => number.into(),
        rmpv::Value::String(text) => text.into_str().unwrap().into(),
        rmpv::Value::Binary(data) => Value::Bin(data.into()),
        rmpv::Value::Array(items) => items.into_iter().map(from_rmpv).collect::<Vec<_>>().into(),
        rmpv::Value::Map(entries) => {
            Value::Map(entries.into_iter().map(|(key, value)| (from_rmpv(key), from_rmpv(value))).collect())
        }
        rmpv::Value::Ext(code, data) => Value::Ext(code, data.into()),
    }
}

/// Decomposes and reassembles every object; returns the number of objects.
fn objects_survive(value: &Value, name: &str) -> usize {
    match value {
        Value::Array(items) => items.iter().map(|item| objects_survive(item, name)).sum(),
        Value::Map(entries) => entries.iter().map(|(_, value)| objects_survive(value, name)).sum(),
        Value::Ext(0..=5, _) => {
            let object = Object::from_value(value).unwrap_or_else(|| panic!("{name}: no object"));
            assert_eq!(&object.to_value().unwrap(), value, "{name}");
            1 + objects_survive(&object.contents, name)
        }
        Value::Ext(7, payload) => objects_survive(&Value::from_msgpack(payload).unwrap(), name),
        _ => 0,
    }
}

#[test]
fn every_value_decodes_and_is_written_back_byte_for_byte() {
    let (mut decoded, mut refused, mut pointers, mut objects) = (0, 0, 0, 0);
    for vector in vectors() {
        let name = &vector.name;
        if vector.encode_error.is_some() {
            assert!(vector.hex.is_none(), "{name}");
            refused += 1;
            continue;
        }
        if name == "np_object_array" {
            assert!(matches!(vector.typed().to_value().unwrap(), Value::Ext(6, _)));
            pointers += 1;
            continue;
        }
        decoded += 1;
        let typed = vector.typed();
        let value = typed.to_value().unwrap();
        let channel = ChannelValue::from_typed(typed.clone()).unwrap();
        assert_eq!(channel.to_typed().unwrap(), typed, "{name}");
        match &*typed.tag {
            "null" => assert_eq!(value, Value::Nil),
            "bytes" | "bytearray" => assert_eq!(value, Value::Bin(typed.data.clone()), "{name}"),
            "msgpack" => {
                let structure = vector.structure.as_ref().unwrap().get();
                let written = if let Ok(structure) = serde_json::from_str(structure) {
                    from_structure(&structure).to_msgpack().unwrap()
                } else {
                    // Lists in lists, deeper than the parser goes.
                    let structure: String = structure.split_whitespace().collect();
                    let depth = structure.len() / 2;
                    assert_eq!(structure, "[".repeat(depth) + &"]".repeat(depth), "{name}");
                    let nested = (1..depth).fold(Value::Array(vec![]), |inner, _| vec![inner].into());
                    nested.to_msgpack().unwrap()
                };
                // Bytes are compared, because NaN is not equal to itself.
                assert_eq!(written, *typed.data, "{name}: the structure");
                assert_eq!(value.to_msgpack().unwrap(), *typed.data, "{name}: Value");
                assert_eq!(to_msgpack(&value).unwrap(), *typed.data, "{name}: Value through serde");
                let exact: Value = from_msgpack(&typed.data).unwrap();
                assert_eq!(exact.to_msgpack().unwrap(), *typed.data, "{name}: Value from serde");
                let oracle = rmpv::decode::read_value(&mut &*typed.data).unwrap();
                assert_eq!(from_rmpv(oracle).to_msgpack().unwrap(), *typed.data, "{name}: rmpv");
                objects += objects_survive(&value, name);
            }
            tag => panic!("{name}: tag {tag}"),
        }
    }
    assert_eq!((decoded, refused, pointers), (199, 23, 1), "223 vectors in all");
    assert!(objects > 90, "{objects} objects were taken apart");
}

#[test]
fn values_that_python_cannot_encode_are_rejected() {
    let nested = |depth| (1..depth).fold(Value::Array(vec![]), |inner, _| vec![inner].into());
    let keyed_by = |key: &dyn Fn() -> Value| Value::Map(vec![(key(), Value::Nil)]);
    let mut without_counterpart = Vec::new();
    for vector in vectors().into_iter().filter(|vector| vector.encode_error.is_some()) {
        let error = match vector.name.as_str() {
            "int_2**64" => to_msgpack(&(1_u128 << 64)),
            "int_-2**63-1" => to_msgpack(&(i128::from(i64::MIN) - 1)),
            "nesting_depth_255" => nested(256).to_msgpack(),
            "nesting_depth_256" => to_msgpack(&nested(257)),
            "dict_frozenset_keys" => {
                let key = || encoded(&python::FrozenSet(vec![1]));
                keyed_by(&key).to_msgpack()
            }
            "dict_decimal_keys" => to_msgpack(&BTreeMap::from([("k", 1)]))
                .and_then(|_| keyed_by(&|| encoded(&python::Decimal::new("1.5"))).to_msgpack()),
            _ => {
                without_counterpart.push(vector.name);
                continue;
            }
        };
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Codec, "{}", vector.name);
    }
    assert_eq!(
        without_counterpart,
        [
            "float_subclass_nested",
            "bytes_subclass_nested",
            "range",
            "generator",
            "dict_keys",
            "pureposixpath",
            "complex",
            "type_object",
            "function",
            "opaque_object",
            "np_datetime64",
            "np_scalar_float64",
            "np_scalar_float32",
            "np_scalar_int64",
            "np_scalar_bool",
            "np_scalar_float64_nested",
            "retry_policy",
        ],
        "Rust has no such values"
    );
    assert!(nested(255).to_msgpack().is_ok(), "Python writes as much");
}

pub(super) fn encoded<T: Serialize>(value: &T) -> Value {
    Value::from_msgpack(&to_msgpack(value).unwrap()).unwrap()
}

pub(super) fn bytes_of(name: &str) -> Vec<u8> {
    unhex(vectors().iter().find(|vector| vector.name == name).unwrap().hex.as_ref().unwrap())
}

pub(super) fn read<T: DeserializeOwned>(name: &str) -> T {
    from_msgpack(&bytes_of(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Reads a value through a typed view, which must write the same bytes.
pub(super) fn view<T: Serialize + DeserializeOwned + PartialEq + Debug>(name: &str) -> T {
    let value: T = read(name);
    let written = to_msgpack(&value).unwrap();
    assert_eq!(
        Value::from_msgpack(&written).unwrap(),
        Value::from_msgpack(&bytes_of(name)).unwrap(),
        "{name}"
    );
    assert_eq!(written, bytes_of(name), "{name}");
    value
}

#[derive(Deserialize)]
struct Sealed {
    name: String,
    key_hex: String,
    type_tag: String,
    hex: String,
    plain_type_tag: String,
    plain_hex: String,
    fixed_nonce: Option<FixedNonce>,
}

#[derive(Deserialize)]
struct FixedNonce {
    type_tag: String,
    hex: String,
}

#[test]
fn values_encrypted_by_python_decrypt_only_with_its_key() {
    let place = AssociatedData::Checkpoint { thread_id: "t", checkpoint_ns: "", checkpoint_id: "c" };
    let vectors = load::<Sealed>("encrypted_vectors.json");
    let mut opened = 0;
    for vector in &vectors {
        let cipher = Cipher::aes(&unhex(&vector.key_hex)).unwrap();
        let plain = TypedBytes::new(vector.plain_type_tag.clone(), unhex(&vector.plain_hex));
        let fixed = vector.fixed_nonce.iter().map(|fixed| (&fixed.type_tag, &fixed.hex));
        for (tag, hex) in fixed.chain([(&vector.type_tag, &vector.hex)]) {
            let sealed = TypedBytes::new(tag.clone(), unhex(hex));
            assert_eq!(cipher.open(sealed.clone(), &place).unwrap(), plain, "{}", vector.name);
            let other = Cipher::aes(&[0xaa; 32]).unwrap();
            let error = other.open(sealed.clone(), &place).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Crypto, "{}", vector.name);
            let error = checkpoint_core::backend::ValueCodec::default().open(sealed, &place).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Crypto, "{}", vector.name);
            opened += 1;
        }
        let again = cipher.seal(&plain, &place).unwrap();
        assert_eq!(again.tag, vector.type_tag, "{}", vector.name);
        assert_eq!(cipher.open(again, &place).unwrap(), plain, "{}", vector.name);
    }
    assert_eq!((vectors.len(), opened), (11, 20));
}
