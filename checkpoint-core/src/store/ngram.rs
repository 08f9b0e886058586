//! Embeddings without a model.

use std::collections::BTreeMap;

use async_trait::async_trait;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Embeddings;
use crate::Result;

/// Added before and after a word, so that n-grams at its ends differ from those in its middle.
const EDGE: char = '\u{2}';

/// Vectors of the words of a text and of their character n-grams, for demos and tests: no model, no network, the same on
/// every machine.
///
/// **It knows spelling, not meaning.** Texts that share words, or forms of a word, are near each other, even with
/// spelling mistakes; `car` and `automobile` are not. To find memories by meaning, use the embeddings of a language
/// model.
///
/// Case is ignored, characters other than letters and digits separate words, and the order of words counts little. With
/// a few hundred dimensions, unrelated texts are rarely near by chance. Vectors have the length 1; only that of an empty
/// text is zero.
///
/// ```
/// use checkpoint_core::store::{Distance, Embeddings, NgramEmbeddings};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> checkpoint_core::Result<()> {
/// let texts = ["The cat sleeps on the sofa", "a cat sleeping on a sofa", "Quarterly revenue grew"];
/// let vectors = NgramEmbeddings::new(256).embed_documents(&texts).await?;
/// let near = |a: usize, b: usize| Distance::Cosine.score(&vectors[a], &vectors[b]);
/// assert!(near(0, 1) > 0.5 && near(0, 2) < 0.2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NgramEmbeddings {
    dims: usize,
}

impl NgramEmbeddings {
    /// The weight of a word.
    const WORD_WEIGHT: f32 = 1.0;

    /// The weight of two adjacent words.
    const BIGRAM_WEIGHT: f32 = 0.3;

    /// The lengths of character n-grams, and their weights.
    const NGRAM_WEIGHTS: [(usize, f32); 3] = [(2, 0.15), (3, 0.4), (4, 0.4)];

    /// The weight of two characters in scripts such as Chinese, Japanese and Thai, which often write a word with two
    /// characters and without spaces. Their characters take three or more bytes.
    const IDEOGRAPHS_WEIGHT: f32 = 0.8;

    /// Creates embeddings with vectors of this length: that of the [`IndexConfig`](super::IndexConfig).
    pub const fn new(dims: usize) -> Self {
        Self { dims }
    }

    fn embed(self, text: &str) -> Vec<f32> {
        let mut vector = vec![0.0; self.dims];
        for (hash, Feature { weight, count }) in features(text) {
            // Repetitions count less than the first occurrence.
            let weight = weight * (1.0 + count.ln());
            add(&mut vector, hash, if hash >> 63 == 0 { weight } else { -weight });
        }
        let mut length = length(&vector);
        if length == 0.0 && !text.is_empty() {
            // Only punctuation, or features that cancelled each other out.
            add(&mut vector, xxh3_64_with_seed(text.as_bytes(), 0), 1.0);
            length = 1.0;
        }
        if length > 0.0 {
            for number in &mut vector {
                *number /= length;
            }
        }
        vector
    }
}

fn add(vector: &mut [f32], hash: u64, weight: f32) {
    let dims = u64::try_from(vector.len()).unwrap_or(u64::MAX);
    let at = hash.checked_rem(dims).and_then(|at| usize::try_from(at).ok());
    if let Some(number) = at.and_then(|at| vector.get_mut(at)) {
        *number += weight;
    }
}

fn length(vector: &[f32]) -> f32 {
    vector.iter().map(|number| number * number).sum::<f32>().sqrt()
}

struct Feature {
    weight: f32,
    count: f32,
}

/// The features of a text by hash; sorted, because the order of summation affects rounding.
fn features(text: &str) -> BTreeMap<u64, Feature> {
    let mut features = BTreeMap::new();
    let mut add = |part: &str, kind: usize, weight: f32| {
        let seed = u64::try_from(kind).unwrap_or(u64::MAX);
        let feature = features
            .entry(xxh3_64_with_seed(part.as_bytes(), seed))
            .or_insert(Feature { weight, count: 0.0 });
        feature.count += 1.0;
    };
    let text = text.to_lowercase();
    let mut earlier: Option<&str> = None;
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        add(word, 0, NgramEmbeddings::WORD_WEIGHT);
        if let Some(earlier) = earlier.replace(word) {
            add(&format!("{earlier} {word}"), 1, NgramEmbeddings::BIGRAM_WEIGHT);
        }
        let edged = format!("{EDGE}{word}{EDGE}");
        let boundaries: Vec<usize> = edged.char_indices().map(|(at, _)| at).chain([edged.len()]).collect();
        for (size, weight) in NgramEmbeddings::NGRAM_WEIGHTS {
            for ngram in boundaries.windows(size + 1) {
                if let (Some(from), Some(to)) = (ngram.first(), ngram.last())
                    && let Some(ngram) = edged.get(*from..*to)
                {
                    let ideographs = size == 2 && ngram.chars().all(|c| c.len_utf8() > 2);
                    add(ngram, size, if ideographs { NgramEmbeddings::IDEOGRAPHS_WEIGHT } else { weight });
                }
            }
        }
    }
    features
}

#[async_trait]
impl Embeddings for NgramEmbeddings {
    async fn embed_documents(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        Ok(texts.iter().map(|text| self.embed(text)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Distance;

    /// Sentences, each with a paraphrase or a misspelt variant.
    const PAIRS: [(&str, &str); 22] = [
        ("The user likes pizza with olives and cheese", "which pizza does the user like"),
        ("Ann lives in a small house by the sea", "where is the house in which Ann lives"),
        ("The meeting was moved to Thursday afternoon", "when is the meeting, thursday?"),
        ("Send invoices to the accounting department", "where do I send an invoice"),
        ("Bob is allergic to peanuts", "peanut allergy of bob"),
        ("Our database runs on PostgreSQL in Frankfurt", "postgres database location"),
        ("The cat sleeps on the sofa all day", "a sleeping cat on a sofa"),
        ("Quarterly revenue grew by twelve percent", "how did revenue grow this quarter"),
        ("She prefers trains over flights when travelling", "does she prefer to travel by train"),
        ("The password policy requires sixteen characters", "required characters of a password"),
        ("Deploy the service only after the tests pass", "test before deployment of a service"),
        ("The garden needs watering every evening", "how often must the garden be watered"),
        ("He speaks German, French and a little Polish", "speaking french or german"),
        ("My favourite colour is dark green", "favorite color: green"),
        ("The server crashed because the disk was full", "full disks crash servers"),
        ("Customers complain about slow checkout pages", "customer complaint on a slow page"),
        ("The library closes at nine on weekdays", "closing time of the library"),
        ("Grandmother baked an apple cake with cinnamon", "recipe of grandmothers apple cakes"),
        ("La réunion est reportée à lundi prochain", "reunion reportée lundi"),
        ("Das Fahrrad steht im Keller neben der Heizung", "Wo steht mein Fahrrad? Im Keller"),
        ("東京の天気は晴れです", "東京天気"),
        ("Bitte keine Anrufe vor zehn Uhr morgens", "anruf vor 10 uhr morgens"),
    ];

    #[tokio::test]
    async fn texts_that_share_words_are_nearest() {
        for dims in [128, 256, 384, 1024] {
            let embeddings = NgramEmbeddings::new(dims);
            let texts: Vec<_> = PAIRS.iter().map(|(text, _)| *text).collect();
            let vectors = embeddings.embed_documents(&texts).await.unwrap();
            for (text, query) in PAIRS {
                let query_vector = embeddings.embed_query(query).await.unwrap();
                let score = |at: usize| Distance::Cosine.score(&query_vector, &vectors[at]);
                let best = (0..vectors.len()).max_by(|a, b| score(*a).total_cmp(&score(*b))).unwrap();
                assert_eq!(PAIRS[best].0, text, "{query} with {dims} dimensions");
            }
        }
    }

    #[tokio::test]
    async fn vectors_are_of_length_one_and_never_zero() {
        let texts = ["a", "?!", " ", "word word word", "\u{2}", "ß", "👩‍👩‍👧", &"long text ".repeat(10_000)];
        for dims in [1, 2, 3, 256] {
            let embeddings = NgramEmbeddings::new(dims);
            let vectors = embeddings.embed_documents(&texts).await.unwrap();
            for (text, vector) in texts.iter().zip(&vectors) {
                assert_eq!(vector.len(), dims);
                assert!((length(vector) - 1.0).abs() < 1e-5, "{text:.20}: {}", length(vector));
            }
            assert_eq!(vectors, embeddings.embed_documents(&texts).await.unwrap(), "the same again");
            assert_eq!(embeddings.embed_query("").await.unwrap(), vec![0.0; dims]);
        }
        assert_eq!(NgramEmbeddings::new(0).embed_query("text").await.unwrap(), Vec::<f32>::new());
    }

    #[tokio::test]
    async fn case_and_punctuation_are_ignored() {
        let embeddings = NgramEmbeddings::new(64);
        let vectors = embeddings.embed_documents(&["Olives, cheese!", "olives CHEESE"]).await.unwrap();
        assert_eq!(vectors[0], vectors[1]);
    }
}
