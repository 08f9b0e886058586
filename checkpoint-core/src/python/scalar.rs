//! UUIDs, decimals, paths and sets.

use std::fmt;
use std::path::PathBuf;

use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A UUID (`uuid.UUID`; also decoded from LangGraph's own class for version 6).
///
/// Decoded from text with or without dashes, encoded as 32 hex digits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub uuid::Uuid);

const UUID: &str = "py:0:uuid:UUID";

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<uuid::Uuid> for Uuid {
    fn from(uuid: uuid::Uuid) -> Self {
        Self(uuid)
    }
}

impl Serialize for Uuid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut buffer = [0; 32];
        let text: &str = self.0.simple().encode_lower(&mut buffer);
        serializer.serialize_newtype_struct(UUID, text)
    }
}

impl<'de> Deserialize<'de> for Uuid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UuidVisitor;
        impl<'de> Visitor<'de> for UuidVisitor {
            type Value = Uuid;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a UUID")
            }
            fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Uuid, D::Error> {
                deserializer.deserialize_str(self)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Uuid, E> {
                uuid::Uuid::try_parse(text).map(Uuid).map_err(|_| E::custom("the text is no UUID"))
            }
        }
        deserializer.deserialize_newtype_struct(UUID, UuidVisitor)
    }
}

/// A decimal number as text (`decimal.Decimal`); digits and exponent are preserved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename = "py:0:decimal:Decimal")]
pub struct Decimal(pub String);

impl Decimal {
    /// Creates a decimal from the text of a number.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A set; the items keep the order in which they are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename = "py:0:builtins:set")]
pub struct Set<T>(pub Vec<T>);

/// An immutable set; the items keep the order in which they are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename = "py:0:builtins:frozenset")]
pub struct FrozenSet<T>(pub Vec<T>);

macro_rules! collect {
    ($($type:ident),*) => {$(
        impl<T> FromIterator<T> for $type<T> {
            fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
                Self(items.into_iter().collect())
            }
        }

        impl<T> IntoIterator for $type<T> {
            type Item = T;
            type IntoIter = std::vec::IntoIter<T>;
            fn into_iter(self) -> Self::IntoIter {
                self.0.into_iter()
            }
        }
    )*};
}

collect!(Set, FrozenSet);

/// A path as its parts, with the root `/` first (`pathlib.PosixPath`).
///
/// Also decoded from Windows paths, from those of Python 3.13's `pathlib._local`, and from text as a POSIX path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename = "py:1:pathlib:PosixPath")]
pub struct Path(Vec<String>);

impl Path {
    /// Splits a path as `PosixPath` does: empty parts and `.` are removed, `..` is kept.
    pub fn new(path: &str) -> Self {
        // In POSIX exactly two leading slashes are a special root; three or more are equivalent to one.
        let root = match path.len() - path.trim_start_matches('/').len() {
            0 => None,
            2 => Some("//"),
            _ => Some("/"),
        };
        let parts = path.split('/').filter(|part| !part.is_empty() && *part != ".");
        Self(root.into_iter().chain(parts).map(str::to_owned).collect())
    }

    /// The parts.
    pub fn parts(&self) -> &[String] {
        &self.0
    }
}

impl From<Path> for PathBuf {
    fn from(path: Path) -> Self {
        path.0.into_iter().collect()
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_first() {
            None => f.write_str("."),
            Some((root, rest)) if root.ends_with(['/', '\\']) => {
                write!(f, "{root}{}", rest.join(if root.ends_with('\\') { "\\" } else { "/" }))
            }
            Some(_) => f.write_str(&self.0.join("/")),
        }
    }
}

impl<'de> Deserialize<'de> for Path {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PathVisitor;
        impl<'de> Visitor<'de> for PathVisitor {
            type Value = Path;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path or its parts")
            }
            fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Path, D::Error> {
                deserializer.deserialize_any(self)
            }
            fn visit_str<E>(self, path: &str) -> Result<Path, E> {
                Ok(Path::new(path))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Path, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = items.next_element()? {
                    parts.push(part);
                }
                Ok(Path(parts))
            }
        }
        deserializer.deserialize_newtype_struct("py:1:pathlib:PosixPath", PathVisitor)
    }
}
