//! The data: deterministic, and the same bytes in every language.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use checkpoint_core::Bytes;
use serde::{Deserialize, Serialize};

/// The length of a message's compact JSON.
pub const MESSAGE_BYTES: usize = 500;

/// The size of a big blob.
pub const BIG_BYTES: usize = 1 << 20;

const CONSONANTS: &[u8; 17] = b"bcdfghjklmnprstvw";
const VOWELS: &[u8; 5] = b"aeiou";

/// The generator behind all data.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Starts with a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = self.0;
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn pick<T: Copy, const N: usize>(&mut self, from: &[T; N]) -> T {
        from[self.below(N)]
    }

    /// Returns a number below a bound, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // The remainder is below a `usize`, so nothing is lost.
        usize::try_from(self.next_u64() % bound as u64).unwrap_or_default()
    }
}

/// The 1,024 words of texts.
pub static VOCABULARY: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut random = SplitMix64::new(0x5EED);
    let mut word = || {
        let mut word = String::new();
        for _ in 0..=random.below(3) {
            word.push(char::from(random.pick(CONSONANTS)));
            word.push(char::from(random.pick(VOWELS)));
            if random.below(3) == 0 {
                word.push(char::from(random.pick(CONSONANTS)));
            }
        }
        word
    };
    (0..1024).map(|_| word()).collect()
});

/// Returns `bytes` bytes of words; the first words of the vocabulary are the most frequent.
pub fn text(random: &mut SplitMix64, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        if !text.is_empty() {
            text.push(' ');
        }
        let (a, b) = (random.below(1024), random.below(1024));
        text.push_str(&VOCABULARY[(a * b) >> 10]);
    }
    text.truncate(bytes);
    text
}

/// A message of a chat, as a map with these keys in this order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `human` or `ai`.
    pub r#type: String,
    /// Contains thread and number.
    pub id: String,
    /// Always null, and encoded.
    pub name: Option<String>,
    /// The text.
    pub content: String,
    /// Always empty.
    pub additional_kwargs: BTreeMap<String, String>,
    /// Metadata of the response.
    pub response_metadata: ResponseMetadata,
    /// Always empty.
    pub tool_calls: Vec<String>,
    /// The token usage.
    pub usage_metadata: UsageMetadata,
}

/// Metadata of a model's response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResponseMetadata {
    /// The model.
    pub model: String,
    /// The finish reason.
    pub finish_reason: String,
}

/// The token usage of a response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UsageMetadata {
    /// Tokens of the input.
    pub input_tokens: u64,
    /// Tokens of the output.
    pub output_tokens: u64,
    /// The sum of both.
    pub total_tokens: u64,
}

/// Returns message `k` of a thread: 500 bytes of compact JSON.
pub fn message(thread: u64, k: u64) -> Message {
    let mut random = SplitMix64::new(thread.wrapping_mul(1_000_003).wrapping_add(k));
    let input_tokens = random.next_u64() % 900 + 100;
    let output_tokens = random.next_u64() % 900 + 100;
    let mut message = Message {
        r#type: if k.is_multiple_of(2) { "human" } else { "ai" }.to_owned(),
        id: format!("msg-{thread:08x}-{k:06}"),
        name: None,
        content: String::new(),
        additional_kwargs: BTreeMap::new(),
        response_metadata: ResponseMetadata { model: "bench-1".to_owned(), finish_reason: "stop".to_owned() },
        tool_calls: Vec::new(),
        usage_metadata: UsageMetadata {
            input_tokens,
            output_tokens,
            total_tokens: input_tokens + output_tokens,
        },
    };
    // Serialization of a message cannot fail.
    let frame = serde_json::to_string(&message).map_or(0, |json| json.len());
    message.content = text(&mut random, MESSAGE_BYTES.saturating_sub(frame));
    message
}

/// Returns the first messages of a thread.
pub fn messages(thread: u64, count: u64) -> Vec<Message> {
    (0..count).map(|k| message(thread, k)).collect()
}

/// The value of the channel `settings`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    theme: String,
    units: String,
    max_tokens: u32,
    stream: bool,
    stop: Vec<String>,
    safety: Safety,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Safety {
    level: String,
    block: bool,
}

impl Settings {
    /// The settings of every thread.
    pub fn of_every_thread() -> Self {
        Self {
            theme: "dark".to_owned(),
            units: "metric".to_owned(),
            max_tokens: 1024,
            stream: true,
            stop: vec!["END".to_owned()],
            safety: Safety { level: "default".to_owned(), block: false },
        }
    }
}

/// The value of the channel `tools`.
pub const TOOLS: [&str; 3] = ["search", "calculator", "calendar"];

/// Returns 1 MiB of incompressible bytes.
pub fn big_blob(i: u64) -> Bytes {
    let mut random = SplitMix64::new(0xB10B + i);
    (0..BIG_BYTES / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}

/// The value of an item of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemValue {
    /// One of ten.
    pub kind: String,
    /// Below a thousand.
    pub score: u64,
    /// Three words.
    pub tags: Vec<String>,
    /// 200 bytes of words.
    pub text: String,
}

/// Returns the value of item `i` of a store.
pub fn item_value(i: u64) -> ItemValue {
    let mut random = SplitMix64::new(0x570E + i);
    ItemValue {
        kind: format!("k{}", random.next_u64() % 10),
        score: random.next_u64() % 1000,
        tags: (0..3).map(|_| VOCABULARY[random.below(1024)].clone()).collect(),
        text: text(&mut random, 200),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use sha2::{Digest, Sha256};

    use super::*;

    fn sha256(bytes: impl AsRef<[u8]>) -> String {
        let mut hex = String::new();
        for byte in Sha256::digest(bytes) {
            write!(hex, "{byte:02x}").unwrap();
        }
        hex
    }

    #[test]
    fn the_generator_is_split_mix_64() {
        assert_eq!(SplitMix64::new(1).next_u64(), 10_451_216_379_200_822_465);
    }

    #[test]
    fn the_vocabulary_is_the_workloads() {
        assert_eq!(VOCABULARY.len(), 1024);
        assert_eq!(
            sha256(VOCABULARY.join(" ")),
            "9c6ae9e450a494d2e76e987504085a9f1ca798a6db6aae01129f81b9832e6612"
        );
    }

    #[test]
    fn messages_are_the_workloads() {
        let json: Vec<_> = (0..3)
            .flat_map(|thread| messages(thread, 101))
            .map(|message| serde_json::to_string(&message).unwrap())
            .collect();
        assert!(json.iter().all(|message| message.len() == MESSAGE_BYTES));
        assert_eq!(
            sha256(json.join("\n")),
            "1fcecd6afd2d397f3849331d87f02dfcf162df447d44bb28fe62ac03c5e1b61d"
        );
    }

    #[test]
    fn items_are_the_workloads() {
        let json: Vec<_> = (0..1000).map(|i| serde_json::to_string(&item_value(i)).unwrap()).collect();
        assert_eq!(
            sha256(json.join("\n")),
            "5f8ddd85a68be903f07095482eb4b030b2d23779cbd8331e50ba8aeb80f3c9a4"
        );
    }

    #[test]
    fn big_blobs_are_the_workloads() {
        assert_eq!(sha256(big_blob(0)), "f35b62bf10443f30e63c8732fcc77c7bddd885c0fb8a39dca7af000dd3e7a698");
        assert_ne!(big_blob(1), big_blob(0));
    }

    #[test]
    fn settings_are_the_workloads() {
        assert_eq!(
            serde_json::to_string(&Settings::of_every_thread()).unwrap(),
            r#"{"theme":"dark","units":"metric","max_tokens":1024,"stream":true,"stop":["END"],"safety":{"level":"default","block":false}}"#
        );
    }
}
