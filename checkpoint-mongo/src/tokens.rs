//! Tokens of metadata: hashes of its entries, by which the server finds checkpoints without seeing a caller's value as
//! anything but a text. With a cipher they are keyed, and tell nothing.

use checkpoint_core::backend::ValueCodec;
use checkpoint_core::{CheckpointMetadata, Filter, Result, Value};
use mongodb::bson::{Document, doc};

use crate::keys::{self, hex};

/// How many bytes of a hash a token has.
const TOKEN: usize = 12;

/// Numbers from this magnitude on have no token.
const WHOLE: u128 = 1_000_000_000_000_000_000;

/// The tokens of all entries that filters can name.
pub(crate) fn tokens(codec: &ValueCodec, metadata: &CheckpointMetadata) -> Vec<String> {
    metadata.iter().filter_map(|(key, value)| token(codec, key, value)).collect()
}

/// The metadata as it is read again: numbers and keys may have other types then.
pub(crate) fn as_stored(metadata: &CheckpointMetadata) -> Result<CheckpointMetadata> {
    CheckpointMetadata::from_json(metadata.to_json()?.as_bytes())
}

/// The token of a run.
pub(crate) fn run(codec: &ValueCodec, run_id: &str) -> String {
    let hash = keys::name(codec, &[b"run", run_id.as_bytes()]);
    hex(hash.get(..TOKEN).unwrap_or_default())
}

/// What tells by which key tokens were made; nothing without a cipher.
pub(crate) fn key(codec: &ValueCodec) -> Option<String> {
    codec.pseudonym(&[b"tokens"]).map(|name| hex(name.get(..TOKEN).unwrap_or_default()))
}

/// Adds the conditions of a filter to one of the server. It may find too much: the metadata is compared afterwards.
pub(crate) fn condition(codec: &ValueCodec, filter: &Filter, into: &mut Document) {
    // `null` matches what is not there, and a key with a dot may be a path.
    let wanted = filter.iter().filter(|(key, _)| !key.contains('.'));
    let tokens: Vec<String> = wanted.filter_map(|(key, value)| token(codec, key, value)).collect();
    if !tokens.is_empty() {
        either(codec, doc! { "mt": { "$all": tokens } }, into);
    }
}

/// Adds a condition on tokens. What another key has made could match, too.
pub(crate) fn either(codec: &ValueCodec, mut condition: Document, into: &mut Document) {
    match key(codec) {
        None => {
            // Sealed checkpoints of others have tokens that say nothing here.
            into.insert("$or", vec![condition, doc! { "mk": { "$exists": true } }]);
        }
        Some(key) => {
            condition.insert("mk", &key);
            into.insert("$or", vec![condition, doc! { "mk": { "$ne": key } }]);
        }
    }
}

/// The token of an entry; none for what a filter compares in other ways than by equality.
fn token(codec: &ValueCodec, key: &str, value: &Value) -> Option<String> {
    let mut canonical = Vec::new();
    if matches!(value, Value::Nil) || !canonicalize(value, &mut canonical) {
        return None;
    }
    let hash = keys::name(codec, &[b"token", key.as_bytes(), &canonical]);
    Some(hex(hash.get(..TOKEN).unwrap_or_default()))
}

/// Encodes a value so that equal ones are the same bytes: integers, doubles and booleans by value, maps in the order of
/// their keys. `false` for what JSON lacks.
fn canonicalize(value: &Value, out: &mut Vec<u8>) -> bool {
    // Beyond that, a double can equal several integers.
    let integer = |number: i128, out: &mut Vec<u8>| {
        out.push(b'i');
        out.extend_from_slice(&number.to_be_bytes());
        number.unsigned_abs() < WHOLE
    };
    match value {
        Value::Nil => out.push(b'n'),
        Value::Bool(flag) => return integer(i128::from(*flag), out),
        Value::Int(number) => return integer(i128::from(*number), out),
        Value::UInt(number) => return integer(i128::from(*number), out),
        #[expect(clippy::cast_possible_truncation, reason = "it has no fraction and is small")]
        Value::Float(number) if number.fract() == 0.0 && number.abs() < 1e18 => {
            return integer(*number as i128, out);
        }
        Value::Str(text) => {
            out.push(b's');
            out.extend_from_slice(&(text.len() as u64).to_be_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        Value::Array(items) => {
            out.push(b'a');
            out.extend_from_slice(&(items.len() as u64).to_be_bytes());
            return items.iter().all(|item| canonicalize(item, out));
        }
        Value::Map(entries) => {
            let mut encoded = std::collections::BTreeMap::new();
            for (key, value) in entries {
                let (mut of_key, mut of_value) = (Vec::new(), Vec::new());
                if !canonicalize(key, &mut of_key) || !canonicalize(value, &mut of_value) {
                    return false;
                }
                encoded.insert(of_key, of_value);
            }
            if encoded.len() != entries.len() {
                return false;
            }
            out.push(b'm');
            out.extend_from_slice(&(encoded.len() as u64).to_be_bytes());
            for (key, value) in encoded {
                out.extend([key, value].concat());
            }
        }
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, Value)]) -> Value {
        Value::Map(entries.iter().map(|(key, value)| ((*key).into(), value.clone())).collect())
    }

    #[test]
    fn equal_values_have_the_same_token() {
        let token = |value: Value| token(&ValueCodec::default(), "k", &value);
        let same = [
            (1_i64.into(), 1.0.into()),
            (1_i64.into(), true.into()),
            (0_i64.into(), (-0.0).into()),
            (map(&[("a", 1_i64.into()), ("b", 2_i64.into())]), map(&[("b", 2.0.into()), ("a", true.into())])),
        ];
        for (a, b) in same {
            assert!(token(a.clone()).is_some() && token(a.clone()) == token(b.clone()), "{a:?} {b:?}");
        }
        let different: [Value; 7] = [
            1_i64.into(),
            "1".into(),
            "".into(),
            Value::Array(vec![]),
            Value::Array(vec![1_i64.into()]),
            map(&[]),
            map(&[("a", Value::Nil)]),
        ];
        let tokens: std::collections::BTreeSet<_> = different.into_iter().filter_map(token).collect();
        assert_eq!(tokens.len(), 7);
        assert_eq!(token(Value::Nil), None);
        assert_eq!(token(1.5.into()), None);
    }
}
