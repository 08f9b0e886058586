//! Channel versions, by which LangGraph detects that a channel has changed.

use std::cmp::Ordering;
use std::fmt;

use indexmap::IndexMap;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};

use crate::Str;
use crate::serde::float;

/// The version of a channel. Database savers use text (`"{:032}.{fraction}"`); older or manually created checkpoints have
/// integers or floats.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ChannelVersion {
    /// A number, as LangGraph's base class counts.
    Int(i64),
    /// A float, which the base class allows too.
    Float(f64),
    /// Text, compared by code point.
    Str(Str),
}

/// The versions of channels, in the order of the checkpoint they came from.
pub type ChannelVersions = IndexMap<Str, ChannelVersion>;

impl ChannelVersion {
    /// The integer part: of a text the part before the first `.`, or 0 if that is no number.
    pub fn major(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            #[expect(
                clippy::cast_possible_truncation,
                reason = "`as` saturates, and a version is a small count"
            )]
            Self::Float(number) => *number as i64,
            Self::Str(text) => text.split('.').next().and_then(|head| head.parse().ok()).unwrap_or_default(),
        }
    }

    /// The newest of some versions, or `None` if there are none.
    pub fn newest<'a>(versions: impl IntoIterator<Item = &'a Self>) -> Option<&'a Self> {
        versions.into_iter().max_by(|a, b| a.order(b))
    }

    /// Whether this version is newer than another, as LangGraph compares them.
    pub fn is_newer_than(&self, other: &Self) -> bool {
        self.order(other) == Ordering::Greater
    }

    /// Numbers compare as numbers, texts as texts. Mixed versions, which Python cannot compare, compare by integer part.
    fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Str(a), Self::Str(b)) => a.cmp(b),
            (Self::Int(a), Self::Int(b)) => a.cmp(b),
            (Self::Float(a), Self::Float(b)) => a.total_cmp(b),
            _ => self.major().cmp(&other.major()),
        }
    }
}

impl fmt::Display for ChannelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(number) => number.fmt(f),
            Self::Float(number) => f.write_str(&float::repr(*number)),
            Self::Str(text) => text.fmt(f),
        }
    }
}

/// Not derived, because serde buffers the values of untagged enums.
impl<'de> Deserialize<'de> for ChannelVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyVersion;

        impl Visitor<'_> for AnyVersion {
            type Value = ChannelVersion;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a channel version: text or a number")
            }

            fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
                Ok(ChannelVersion::Int(number))
            }

            #[expect(clippy::cast_precision_loss, reason = "a larger integer becomes a double, as in JSON")]
            fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
                Ok(i64::try_from(number).map_or(ChannelVersion::Float(number as f64), ChannelVersion::Int))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
                Ok(ChannelVersion::Float(number))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(ChannelVersion::Str(text.into()))
            }
        }

        deserializer.deserialize_any(AnyVersion)
    }
}

impl From<i64> for ChannelVersion {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<f64> for ChannelVersion {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl From<&str> for ChannelVersion {
    fn from(text: &str) -> Self {
        Self::Str(text.into())
    }
}

impl From<String> for ChannelVersion {
    fn from(text: String) -> Self {
        Self::Str(text.into())
    }
}

/// Returns the version after `current`, as the Postgres, SQLite and in-memory savers of LangGraph do: the next integer
/// in 32 digits, a dot, and a random fraction that distinguishes concurrent writers.
///
/// ```
/// use checkpoint_core::version;
/// let first = version::next(None);
/// let second = version::next(Some(&first));
/// assert_eq!((first.major(), second.major()), (1, 2));
/// assert!(second.is_newer_than(&first));
/// ```
pub fn next(current: Option<&ChannelVersion>) -> ChannelVersion {
    let major = current.map_or(0, ChannelVersion::major).saturating_add(1);
    let mut bytes = [0_u8; 8];
    crate::id::random_bytes(&mut bytes);
    // 53 random bits give every double in [0, 1) that Python's random() can return.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
    let fraction = (u64::from_be_bytes(bytes) >> 11) as f64 / (1_u64 << 53) as f64;
    ChannelVersion::Str(format!("{major:032}.{:0>16}", float::repr(fraction)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_form_that_python_wrote() {
        for (version, major) in [
            (ChannelVersion::from("00000000000000000000000000000007.0.39"), 7),
            (ChannelVersion::from("00000000000000000000000000000002."), 2),
            (ChannelVersion::from("00000000000000000000000000000003.d41d8cd98f00b204e9800998ecf8427e"), 3),
            (ChannelVersion::from(""), 0),
            (ChannelVersion::Int(9), 9),
            (ChannelVersion::Float(2.5), 2),
        ] {
            assert_eq!(version.major(), major, "{version}");
            assert_eq!(next(Some(&version)).major(), major + 1);
        }
        let text = next(None).to_string();
        assert!(text.starts_with("00000000000000000000000000000001.") && text.len() >= 32 + 1 + 16, "{text}");
    }

    #[test]
    fn deserializes_texts_and_numbers() {
        let read = |json: &str| serde_json::from_str::<ChannelVersion>(json);
        for (json, version) in [
            ("7", ChannelVersion::Int(7)),
            ("-1", ChannelVersion::Int(-1)),
            ("18446744073709551615", ChannelVersion::Float(18_446_744_073_709_551_615.0)),
            ("2.5", ChannelVersion::Float(2.5)),
            ("\"1.5\"", ChannelVersion::from("1.5")),
        ] {
            assert_eq!(read(json).unwrap(), version, "{json}");
        }
        for json in ["null", "true", "[]", "{}"] {
            assert!(read(json).is_err(), "{json}");
        }
    }

    #[test]
    fn newest_is_the_greatest() {
        let versions = ["00000000000000000000000000000002.0.1", "00000000000000000000000000000010.0.1"]
            .map(ChannelVersion::from);
        assert_eq!(ChannelVersion::newest(&versions).map(ChannelVersion::major), Some(10));
        assert!(ChannelVersion::Int(3).is_newer_than(&ChannelVersion::Int(2)));
        assert_eq!(ChannelVersion::newest([]), None);
    }
}
