//! Decodes the server's response: vectors.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use checkpoint_core::store::IndexConfig;
use checkpoint_core::{Error, Result};
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};

/// The maximum bytes of a number as text, with comma and spaces.
const NUMBER_BYTES: usize = 32;

/// The maximum bytes of a response besides its vectors.
const OVERHEAD_BYTES: usize = 1 << 20;

/// The maximum bytes of a response for this number of texts.
pub(super) fn max_bytes(texts: usize) -> usize {
    texts.saturating_mul(IndexConfig::MAX_DIMS * NUMBER_BYTES).saturating_add(OVERHEAD_BYTES)
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    index: Option<usize>,
    embedding: Vector,
}

struct Vector(Vec<f32>);

impl<'de> Deserialize<'de> for Vector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(VectorVisitor).map(Self)
    }
}

struct VectorVisitor;

impl<'de> Visitor<'de> for VectorVisitor {
    type Value = Vec<f32>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of numbers, or 32-bit floats in base64")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<f32>, A::Error> {
        let mut numbers = Vec::new();
        while let Some(number) = items.next_element()? {
            numbers.push(number);
        }
        Ok(numbers)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<f32>, E> {
        let bytes = STANDARD.decode(text).map_err(|_| E::custom("not base64"))?;
        let (numbers, rest) = bytes.as_chunks();
        if !rest.is_empty() {
            return Err(E::custom("not 32-bit floats"));
        }
        Ok(numbers.iter().map(|number| f32::from_le_bytes(*number)).collect())
    }
}

/// The vectors in the order of the texts.
pub(super) fn decode(answer: &[u8], texts: usize, dimensions: Option<usize>) -> Result<Vec<Vec<f32>>> {
    // The parser's message might repeat the server's bytes.
    let answer: Answer = serde_json::from_slice(answer).map_err(|error| {
        Error::codec("the response is not that of an embeddings API; check base_url")
            .with("line", error.line())
            .with("column", error.column())
    })?;
    if answer.data.len() != texts {
        return Err(Error::codec("the server returned a different number of vectors than texts")
            .with("texts", texts)
            .with("vectors", answer.data.len()));
    }
    let mut vectors: Vec<Option<Vec<f32>>> = vec![None; texts];
    for (at, entry) in answer.data.into_iter().enumerate() {
        let Vector(vector) = entry.embedding;
        // Some servers omit the index and keep the order.
        let place = vectors.get_mut(entry.index.unwrap_or(at)).filter(|place| place.is_none());
        *place.ok_or_else(|| Error::codec("the indexes of the server's vectors do not match the texts"))? =
            Some(vector);
    }
    let vectors: Vec<Vec<f32>> = vectors.into_iter().flatten().collect();
    if let Some(dimensions) = dimensions
        && let Some(other) = vectors.iter().find(|vector| vector.len() != dimensions)
    {
        return Err(Error::invalid_config(
            "the model's vectors do not have the requested number of dimensions; do not set dimensions, \
            or choose a model that can shorten them",
        )
        .with("dimensions", dimensions)
        .with("vector", other.len()));
    }
    Ok(vectors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use checkpoint_core::ErrorKind;

    #[test]
    fn both_encodings_are_decoded() {
        // 1.0, -2.5 and 0.1 in single precision.
        let bytes: Vec<u8> = [1.0_f32, -2.5, 0.1].iter().flat_map(|number| number.to_le_bytes()).collect();
        let base64 = STANDARD.encode(bytes);
        let answer = format!(
            r#"{{"object":"list","data":[{{"embedding":"{base64}","index":1}},
               {{"object":"embedding","embedding":[1, -2.5, 0.1],"index":0}}],"usage":{{}}}}"#
        );
        let vectors = decode(answer.as_bytes(), 2, Some(3)).unwrap();
        assert_eq!(vectors, [[1.0, -2.5, 0.1], [1.0, -2.5, 0.1]]);
    }

    #[test]
    fn invalid_responses_are_rejected_without_showing_them() {
        for (answer, texts) in [
            ("", 1),
            ("<html>secret</html>", 1),
            (r#"{"data":"secret"}"#, 1),
            (r#"{"data":[{"embedding":{"secret":1},"index":0}]}"#, 1),
            (r#"{"data":[{"embedding":"s e c r e t","index":0}]}"#, 1),
            (r#"{"data":[{"embedding":"AAA=","index":0}]}"#, 1),
            (r#"{"data":[{"embedding":["secret"],"index":0}]}"#, 1),
            (r#"{"data":[{"embedding":[1],"index":1}]}"#, 1),
            (r#"{"data":[{"embedding":[1],"index":-1}]}"#, 1),
            (r#"{"data":[{"embedding":[1],"index":0},{"embedding":[1],"index":0}]}"#, 2),
            (r#"{"data":[{"embedding":[1],"index":0}]}"#, 2),
            (r#"{"data":[{"embedding":[1],"index":0},{"embedding":[1],"index":1}]}"#, 1),
            (r#"{"data":[{"index":0}]}"#, 1),
        ] {
            let error = decode(answer.as_bytes(), texts, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Codec, "{answer}");
            assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
        let error = decode(br#"{"data":[{"embedding":[1,2]}]}"#, 1, Some(3)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert_eq!(decode(br#"{"data":[{"embedding":[1,2]}]}"#, 1, None).unwrap(), [[1.0, 2.0]]);
    }
}
