//! Structs of named fields that preserve unknown fields.

use std::borrow::Cow;
use std::fmt;

use indexmap::IndexMap;
use serde::de::{Deserialize, Deserializer, Visitor};

use crate::{Str, Value};

/// Fields in their order.
pub type Fields = IndexMap<Str, Value>;

/// A field's name, borrowed from the input if the format allows it.
pub(super) struct Name<'de>(pub(super) Cow<'de, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field's name")
            }
            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(name.into()))
            }
            fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(name.to_owned().into()))
            }
        }
        deserializer.deserialize_identifier(NameVisitor)
    }
}

/// Implements `Serialize` and `Deserialize` for a struct as a Python object's fields: those before `type`, the constant
/// `type`, those after it, and `extra`. Missing fields have the default.
macro_rules! record {
    ($type:ident, $class:literal, [$($before:ident),*] $(, $kind:literal)?, [$($after:ident),*]) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                struct Contents<'a>(&'a $type);
                impl serde::Serialize for Contents<'_> {
                    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                        use serde::ser::SerializeMap;
                        let known = [$(stringify!($before),)* $($kind,)? $(stringify!($after),)*].len();
                        let mut map = serializer.serialize_map(Some(known + self.0.extra.len()))?;
                        $(map.serialize_entry(stringify!($before), &self.0.$before)?;)*
                        $(map.serialize_entry("type", $kind)?;)?
                        $(map.serialize_entry(stringify!($after), &self.0.$after)?;)*
                        for (name, value) in &self.0.extra {
                            map.serialize_entry(name, value)?;
                        }
                        map.end()
                    }
                }
                serializer.serialize_newtype_struct($class, &Contents(self))
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct RecordVisitor;
                impl<'de> serde::de::Visitor<'de> for RecordVisitor {
                    type Value = $type;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(concat!("the fields of ", stringify!($type)))
                    }
                    fn visit_newtype_struct<D: serde::Deserializer<'de>>(
                        self,
                        deserializer: D,
                    ) -> Result<$type, D::Error> {
                        deserializer.deserialize_map(self)
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$type, A::Error> {
                        let mut out = $type::default();
                        while let Some($crate::python::record::Name(name)) = map.next_key()? {
                            match &*name {
                                $(stringify!($before) => out.$before = map.next_value()?,)*
                                $("type" => {
                                    let kind: $crate::python::record::Name<'_> = map.next_value()?;
                                    if &*kind.0 != $kind {
                                        return Err(serde::de::Error::custom(
                                            concat!("the type of ", stringify!($type), " must be ", $kind),
                                        ));
                                    }
                                })?
                                $(stringify!($after) => out.$after = map.next_value()?,)*
                                other => {
                                    let name = $crate::Str::from(other);
                                    out.extra.insert(name, map.next_value()?);
                                }
                            }
                        }
                        Ok(out)
                    }
                }
                deserializer.deserialize_newtype_struct($class, RecordVisitor)
            }
        }
    };
}
pub(super) use record;
