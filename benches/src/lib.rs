//! The data of the workload that the benchmarks share with the drivers in Python: the same bytes in both languages.
//!
//! Everything comes from [`SplitMix64`]; nothing is random but thread ids, checkpoint ids and times.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Serialize;

/// How many bytes a message has as compact JSON.
pub const MESSAGE_BYTES: usize = 500;

/// A small generator that is the same in every language.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Starts at a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next output.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// The next output modulo `n`, as an index.
    fn below(&mut self, n: u16) -> usize {
        usize::try_from(self.next_u64() % u64::from(n)).unwrap_or_default()
    }
}

/// The 1,024 words that texts are made of; duplicates occur.
pub static VOCABULARY: LazyLock<Vec<String>> = LazyLock::new(|| {
    let (consonants, vowels) = (b"bcdfghjklmnprstvw", b"aeiou");
    let mut rng = SplitMix64::new(0x5EED);
    let word = |_| {
        let mut word = String::new();
        for _ in 0..=rng.below(3) {
            word.push(consonants[rng.below(17)].into());
            word.push(vowels[rng.below(5)].into());
            if rng.below(3) == 0 {
                word.push(consonants[rng.below(17)].into());
            }
        }
        word
    };
    (0..1024).map(word).collect()
});

/// `n` bytes of words, the low-numbered ones more frequent.
pub fn text(rng: &mut SplitMix64, n: usize) -> String {
    let mut out = String::new();
    while out.is_empty() || out.len() < n {
        let (a, b) = (rng.below(1024), rng.below(1024));
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(&VOCABULARY[(a * b) >> 10]);
    }
    out.truncate(n);
    out
}

/// A message of a chat.
#[derive(Debug, Clone, Serialize)]
pub struct Message {
    r#type: &'static str,
    id: String,
    name: Option<String>,
    content: String,
    additional_kwargs: BTreeMap<String, String>,
    response_metadata: ResponseMetadata,
    tool_calls: Vec<String>,
    usage_metadata: Usage,
}

#[derive(Debug, Clone, Serialize)]
struct ResponseMetadata {
    model: &'static str,
    finish_reason: &'static str,
}

#[derive(Debug, Clone, Serialize)]
#[expect(clippy::struct_field_names, reason = "the names are LangChain's")]
struct Usage {
    input_tokens: u64,
    output_tokens: u64,
    total_tokens: u64,
}

/// Message `k` of a chat thread: 500 bytes as compact JSON.
pub fn message(thread: u64, k: u64) -> Message {
    let mut rng = SplitMix64::new(thread.wrapping_mul(1_000_003).wrapping_add(k));
    let (input_tokens, output_tokens) = (rng.next_u64() % 900 + 100, rng.next_u64() % 900 + 100);
    let mut message = Message {
        r#type: if k.is_multiple_of(2) { "human" } else { "ai" },
        id: format!("msg-{thread:08x}-{k:06}"),
        name: None,
        content: String::new(),
        additional_kwargs: BTreeMap::new(),
        response_metadata: ResponseMetadata { model: "bench-1", finish_reason: "stop" },
        tool_calls: Vec::new(),
        usage_metadata: Usage { input_tokens, output_tokens, total_tokens: input_tokens + output_tokens },
    };
    let frame = serde_json::to_string(&message).map_or(0, |json| json.len());
    message.content = text(&mut rng, MESSAGE_BYTES.saturating_sub(frame));
    message
}

/// Big blob `i`: 1 MiB that does not compress.
pub fn big_blob(i: u64) -> Vec<u8> {
    let mut rng = SplitMix64::new(0xB10B + i);
    (0..1 << 17).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use sha2::{Digest, Sha256};

    use super::*;

    fn sha256(data: impl AsRef<[u8]>) -> String {
        Sha256::digest(data).iter().fold(String::new(), |mut out, byte| {
            write!(out, "{byte:02x}").unwrap();
            out
        })
    }

    #[test]
    fn the_generator_is_the_known_one() {
        assert_eq!(SplitMix64::new(1).next_u64(), 10_451_216_379_200_822_465);
    }

    #[test]
    fn data_has_the_hashes_of_the_other_languages() {
        assert_eq!(
            sha256(VOCABULARY.join(" ")),
            "9c6ae9e450a494d2e76e987504085a9f1ca798a6db6aae01129f81b9832e6612"
        );
        let messages: Vec<_> = (0..3)
            .flat_map(|t| (0..=100).map(move |k| serde_json::to_string(&message(t, k)).unwrap()))
            .collect();
        assert!(messages.iter().all(|json| json.len() == MESSAGE_BYTES));
        assert_eq!(
            sha256(messages.join("\n")),
            "1fcecd6afd2d397f3849331d87f02dfcf162df447d44bb28fe62ac03c5e1b61d"
        );
        assert_eq!(sha256(big_blob(0)), "f35b62bf10443f30e63c8732fcc77c7bddd885c0fb8a39dca7af000dd3e7a698");
    }
}
