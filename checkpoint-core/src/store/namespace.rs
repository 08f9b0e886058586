//! Namespaces, and patterns that choose among them.

use std::fmt;

use crate::{Error, Result, Str};

/// What the labels of a namespace are joined with where it is stored.
const SEPARATOR: char = '.';

/// The label of a pattern that stands for any one label.
const ANY: &str = "*";

/// The first label that is kept for LangGraph itself.
const RESERVED: &str = "langgraph";

/// A path of labels under which items are kept, such as `("users", "ann")`.
///
/// It is made from arrays and vectors of texts. Any labels can be put together; a store refuses those that it cannot
/// keep apart: see [`check`](Self::check). Namespaces compare by their dotted text, by code point, which is the order
/// in which stores list them.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Namespace(Vec<Str>);

impl Namespace {
    /// The namespace of no labels: the prefix of all others. No item can be put there.
    pub const fn root() -> Self {
        Self(Vec::new())
    }

    /// Splits dotted text; without text it is the root.
    pub fn from_text(text: &str) -> Self {
        if text.is_empty() { Self::root() } else { text.split(SEPARATOR).collect() }
    }

    /// The labels joined by dots, as databases keep them.
    pub fn to_text(&self) -> String {
        self.0.join(".")
    }

    /// The bytes of the dotted text.
    fn text_bytes(&self) -> impl Iterator<Item = u8> {
        const DOT: &str = ".";
        let dots = std::iter::once("").chain(std::iter::repeat(DOT));
        dots.zip(&self.0).flat_map(|(dot, label)| dot.bytes().chain(label.bytes()))
    }

    /// The labels.
    pub fn labels(&self) -> &[Str] {
        &self.0
    }

    /// Whether there is no label.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The namespace cut to so many labels.
    #[must_use]
    pub fn truncated(&self, max_depth: usize) -> Self {
        Self(self.0.iter().take(max_depth).cloned().collect())
    }

    /// Whether this namespace is the given one or below it, label by label.
    pub fn is_within(&self, prefix: &Self) -> bool {
        self.0.starts_with(&prefix.0)
    }

    /// Refuses labels that are empty or have a dot or U+0000 in them, as LangGraph does in every operation.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) that names the label.
    pub fn check(&self) -> Result<()> {
        for label in &self.0 {
            let wrong = if label.is_empty() {
                "a label of a namespace is not empty"
            } else if label.contains(SEPARATOR) {
                "a label of a namespace has no dot in it: dots join the labels"
            } else if label.contains('\0') {
                "a label of a namespace has no U+0000 in it"
            } else {
                continue;
            };
            return Err(Error::invalid_argument(wrong).with("label", label).with("namespace", self));
        }
        Ok(())
    }

    /// Refuses, besides, what no item can be put under: no labels at all, and the first label `langgraph`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) that says what is wrong.
    pub fn check_for_put(&self) -> Result<()> {
        self.check()?;
        match self.0.first() {
            None => Err(Error::invalid_argument("an item's namespace has at least one label")),
            Some(first) if &**first == RESERVED => Err(Error::invalid_argument(
                "namespaces whose first label is `langgraph` are kept for LangGraph itself",
            )
            .with("namespace", self)),
            Some(_) => Ok(()),
        }
    }
}

impl Ord for Namespace {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // Labels with dots, which no store keeps, must not make different namespaces equal.
        self.text_bytes().cmp(other.text_bytes()).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Namespace {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<L: Into<Str>> FromIterator<L> for Namespace {
    fn from_iter<I: IntoIterator<Item = L>>(labels: I) -> Self {
        Self(labels.into_iter().map(Into::into).collect())
    }
}

impl<L: Into<Str>, const N: usize> From<[L; N]> for Namespace {
    fn from(labels: [L; N]) -> Self {
        labels.into_iter().collect()
    }
}

impl<L: Into<Str>> From<Vec<L>> for Namespace {
    fn from(labels: Vec<L>) -> Self {
        labels.into_iter().collect()
    }
}

impl<L: Into<Str> + Clone> From<&[L]> for Namespace {
    fn from(labels: &[L]) -> Self {
        labels.iter().cloned().collect()
    }
}

impl From<()> for Namespace {
    fn from((): ()) -> Self {
        Self::root()
    }
}

impl From<&Self> for Namespace {
    fn from(namespace: &Self) -> Self {
        namespace.clone()
    }
}

/// Chooses namespaces by their first or last labels. A label `*` of the pattern stands for any one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MatchCondition {
    /// The namespace begins with these labels.
    Prefix(Namespace),
    /// The namespace ends with these labels.
    Suffix(Namespace),
}

impl MatchCondition {
    /// The labels, of which some may be `*`.
    pub fn pattern(&self) -> &Namespace {
        match self {
            Self::Prefix(pattern) | Self::Suffix(pattern) => pattern,
        }
    }

    /// Whether a namespace is chosen. A pattern without labels chooses all.
    pub fn matches(&self, namespace: &Namespace) -> bool {
        let (labels, pattern) = (namespace.labels(), self.pattern().labels());
        let Some(rest) = labels.len().checked_sub(pattern.len()) else { return false };
        let skipped = match self {
            Self::Prefix(_) => 0,
            Self::Suffix(_) => rest,
        };
        labels.iter().skip(skipped).zip(pattern).all(|(label, wanted)| &**wanted == ANY || label == wanted)
    }

    /// The labels of a [`Prefix`](Self::Prefix) before the first `*`: what all namespaces begin with that it chooses.
    pub fn literal_prefix(&self) -> Namespace {
        match self {
            Self::Prefix(pattern) => {
                pattern.labels().iter().take_while(|label| &***label != ANY).cloned().collect()
            }
            Self::Suffix(_) => Namespace::root(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_label_by_label() {
        let namespace = Namespace::from(["u", "1", "deep"]);
        let prefix = |text| MatchCondition::Prefix(Namespace::from_text(text));
        let suffix = |text| MatchCondition::Suffix(Namespace::from_text(text));
        for chosen in
            [prefix(""), prefix("u"), prefix("u.*"), prefix("*.1"), suffix("deep"), suffix("*.deep")]
        {
            assert!(chosen.matches(&namespace), "{chosen:?}");
        }
        for other in [prefix("1"), prefix("u.*.*.*"), suffix("1"), suffix("ep"), prefix("u.1.dee")] {
            assert!(!other.matches(&namespace), "{other:?}");
        }
        assert_eq!(prefix("u.1.*.x").literal_prefix(), Namespace::from(["u", "1"]));
    }

    #[test]
    fn order_is_that_of_the_dotted_text() {
        let mut all = [Namespace::from(["a", "b"]), Namespace::from(["a-b"]), Namespace::from(["a"])];
        all.sort();
        assert_eq!(all.map(|namespace| namespace.to_text()), ["a", "a-b", "a.b"]);
    }
}
