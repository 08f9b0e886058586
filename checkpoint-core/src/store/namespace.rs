//! Namespaces and patterns that match them.

use std::fmt;

use crate::{Error, Result, Str};

/// Joins the labels of a stored namespace.
const SEPARATOR: char = '.';

/// The label of a pattern that matches any one label.
const ANY: &str = "*";

/// The first label that is reserved for LangGraph itself.
const RESERVED: &str = "langgraph";

/// A path of labels under which items are stored, such as `("users", "ann")`.
///
/// It is created from arrays and vectors of texts. Creating it accepts any labels; stores reject ambiguous ones: see
/// [`check`](Self::check). Namespaces compare by their dotted text, by code point, which is the order in which stores
/// list them.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Namespace(Vec<Str>);

impl Namespace {
    /// The namespace without labels: the prefix of all others. It cannot contain items itself.
    pub const fn root() -> Self {
        Self(Vec::new())
    }

    /// Splits dotted text; the empty text is the root.
    pub fn from_text(text: &str) -> Self {
        if text.is_empty() { Self::root() } else { text.split(SEPARATOR).collect() }
    }

    /// Joins the labels by dots, as databases store them.
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

    /// Truncates the namespace to this many labels.
    #[must_use]
    pub(crate) fn truncated(&self, max_depth: usize) -> Self {
        Self(self.0.iter().take(max_depth).cloned().collect())
    }

    /// Whether this namespace is the given one or a descendant of it.
    pub fn is_within(&self, prefix: &Self) -> bool {
        self.0.starts_with(&prefix.0)
    }

    /// Rejects labels that are empty or contain a dot or U+0000, as LangGraph does in every operation.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) that names the label.
    pub fn check(&self) -> Result<()> {
        for label in &self.0 {
            let message = if label.is_empty() {
                "a namespace label must not be empty"
            } else if label.contains(SEPARATOR) {
                "a namespace label must not contain a dot: dots join the labels"
            } else if label.contains('\0') {
                "a namespace label must not contain U+0000"
            } else {
                continue;
            };
            return Err(Error::invalid_argument(message).with("label", label).with("namespace", self));
        }
        Ok(())
    }

    /// Also rejects namespaces that cannot contain items: the root, and those with the first label `langgraph`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) that says what is wrong.
    pub fn check_for_put(&self) -> Result<()> {
        self.check()?;
        match self.0.first() {
            None => Err(Error::invalid_argument("an item's namespace must have at least one label")),
            Some(first) if &**first == RESERVED => Err(Error::invalid_argument(
                "namespaces whose first label is `langgraph` are reserved for LangGraph itself",
            )
            .with("namespace", self)),
            Some(_) => Ok(()),
        }
    }
}

impl Ord for Namespace {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // Labels with dots, which stores reject, must not make different namespaces equal.
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

/// Matches namespaces by their first or last labels. A label `*` of the pattern matches any one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MatchCondition {
    /// The namespace begins with these labels.
    Prefix(Namespace),
    /// The namespace ends with these labels.
    Suffix(Namespace),
}

impl MatchCondition {
    /// The pattern's labels, any of which may be `*`.
    pub fn pattern(&self) -> &Namespace {
        match self {
            Self::Prefix(pattern) | Self::Suffix(pattern) => pattern,
        }
    }

    /// Whether a namespace matches. A pattern without labels matches all.
    pub fn matches(&self, namespace: &Namespace) -> bool {
        let (labels, pattern) = (namespace.labels(), self.pattern().labels());
        let Some(rest) = labels.len().checked_sub(pattern.len()) else { return false };
        let skipped = match self {
            Self::Prefix(_) => 0,
            Self::Suffix(_) => rest,
        };
        labels.iter().skip(skipped).zip(pattern).all(|(label, wanted)| &**wanted == ANY || label == wanted)
    }

    /// The labels of a [`Prefix`](Self::Prefix) before the first `*`: all matching namespaces begin with them.
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
        for matching in
            [prefix(""), prefix("u"), prefix("u.*"), prefix("*.1"), suffix("deep"), suffix("*.deep")]
        {
            assert!(matching.matches(&namespace), "{matching:?}");
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
