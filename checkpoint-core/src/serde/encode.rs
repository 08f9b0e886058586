//! The MessagePack encoder, byte for byte compatible with Python's (ormsgpack with LangGraph's options).

mod hashed;

use std::cell::Cell;

use serde::ser::{self, Serialize};

use super::decode::{Reader, Token};
use super::{EXT_NAME, MAX_DEPTH, PythonClass, Value};
use crate::{ChannelValue, Error, Result};

/// The nesting limit of Python's encoder within one extension payload or top-level value. An empty list or map may be one
/// level deeper.
const PYTHON_DEPTH: usize = 254;

/// Values up to this size are copied out of the thread's buffer, which is faster than growing a new one.
const MAX_COPIED: usize = 256 << 10;

thread_local! {
    /// A reusable buffer; empty while an encoder uses it.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Encodes any `Serialize` value as Python would encode its counterpart: structs and maps as maps, sequences and
/// tuples as lists, unit variants as text, `f32` as double, integers in the fewest bytes.
///
/// Types that name a Python class (see [`crate::python`]) become extensions.
///
/// A `HashMap` or `HashSet` (of the standard library or hashbrown) is written in the order of its encoded keys or items, so
/// equal values have equal bytes. All other collections keep their order. A hash map that serde passes on entry by entry,
/// because it is `#[serde(flatten)]`ed or the content of an internally tagged enum, has no such order: use a `BTreeMap`
/// there.
///
/// # Errors
/// [`ErrorKind::Codec`](crate::ErrorKind::Codec) for what Python could not encode: nesting beyond 254 containers (not
/// counting an empty innermost one), integers beyond 64 bits, keys that are maps or extensions, lengths beyond 32 bits.
pub fn to_msgpack<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>> {
    to_msgpack_within(value, 0)
}

/// Encodes a value that will be nested in this many containers, which count towards Python's nesting limit.
pub(crate) fn to_msgpack_within<T: Serialize + ?Sized>(value: &T, containers: usize) -> Result<Vec<u8>> {
    let mut encoder = Encoder { depth: containers, ..Encoder::new() };
    value.serialize(&mut encoder)?;
    Ok(encoder.into_bytes())
}

/// Writes MessagePack into one buffer.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    out: Vec<u8>,
    /// Open containers within the current payload.
    depth: usize,
    /// All open containers.
    total: usize,
}

impl Encoder {
    pub(crate) fn new() -> Self {
        // While the thread ends, the buffer may be destroyed already.
        Self { out: BUFFER.try_with(Cell::take).unwrap_or_default(), depth: 0, total: 0 }
    }

    /// Returns the bytes. Small values are copied to an allocation of their size, and the buffer is reused.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        if self.out.len() > MAX_COPIED {
            return self.out;
        }
        let exact = self.out.as_slice().to_vec();
        if self.out.capacity() <= 2 * MAX_COPIED {
            self.out.clear();
            let _ = BUFFER.try_with(|buffer| buffer.set(self.out));
        }
        exact
    }

    pub(crate) fn nil(&mut self) {
        self.out.push(0xc0);
    }

    pub(crate) fn bool(&mut self, flag: bool) {
        self.out.push(if flag { 0xc3 } else { 0xc2 });
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "each cast is within its range arm"
    )]
    pub(crate) fn int(&mut self, number: i64) {
        match number {
            0.. => self.uint(number as u64),
            -32..0 => self.out.push(number as u8),
            -128..-32 => self.out.extend([0xd0, number as u8]),
            -0x8000..-128 => self.head(0xd1, &(number as i16).to_be_bytes()),
            -0x8000_0000..-0x8000 => self.head(0xd2, &(number as i32).to_be_bytes()),
            _ => self.head(0xd3, &number.to_be_bytes()),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "each cast is within its range arm")]
    pub(crate) fn uint(&mut self, number: u64) {
        match number {
            0..0x80 => self.out.push(number as u8),
            0x80..0x100 => self.out.extend([0xcc, number as u8]),
            0x100..0x1_0000 => self.head(0xcd, &(number as u16).to_be_bytes()),
            0x1_0000..0x1_0000_0000 => self.head(0xce, &(number as u32).to_be_bytes()),
            _ => self.head(0xcf, &number.to_be_bytes()),
        }
    }

    pub(crate) fn float(&mut self, number: f64) {
        self.head(0xcb, &number.to_be_bytes());
    }

    pub(crate) fn str(&mut self, text: &str) -> Result<()> {
        self.length(text.len(), Some((0xa0, 32)), [Some(0xd9), Some(0xda), Some(0xdb)])?;
        self.out.extend_from_slice(text.as_bytes());
        Ok(())
    }

    pub(crate) fn bin(&mut self, data: &[u8]) -> Result<()> {
        self.length(data.len(), None, [Some(0xc4), Some(0xc5), Some(0xc6)])?;
        self.out.extend_from_slice(data);
        Ok(())
    }

    pub(crate) fn array(&mut self, len: usize) -> Result<()> {
        self.length(len, Some((0x90, 16)), [None, Some(0xdc), Some(0xdd)])
    }

    pub(crate) fn map(&mut self, len: usize) -> Result<()> {
        self.length(len, Some((0x80, 16)), [None, Some(0xde), Some(0xdf)])
    }

    pub(crate) fn ext(&mut self, code: i8, payload: &[u8]) -> Result<()> {
        self.ext_head(code, payload.len())?;
        self.out.extend_from_slice(payload);
        Ok(())
    }

    /// Appends bytes that are already MessagePack.
    pub(crate) fn raw(&mut self, msgpack: &[u8]) {
        self.out.extend_from_slice(msgpack);
    }

    /// Appends the value of a channel; blobs are not decoded.
    pub(crate) fn channel_value(&mut self, value: &ChannelValue) -> Result<()> {
        match value {
            ChannelValue::Null => self.nil(),
            ChannelValue::Bool(flag) => self.bool(*flag),
            ChannelValue::Int(number) => self.int(*number),
            ChannelValue::Float(number) => self.float(*number),
            ChannelValue::Str(text) => self.str(text)?,
            ChannelValue::Blob(blob) => self.raw(&blob.to_msgpack()?),
        }
        Ok(())
    }

    pub(crate) fn value(&mut self, value: &Value) -> Result<()> {
        match value {
            Value::Nil => self.nil(),
            Value::Bool(flag) => self.bool(*flag),
            Value::Int(number) => self.int(*number),
            Value::UInt(number) => self.uint(*number),
            Value::Float(number) => self.float(*number),
            Value::Str(text) => self.str(text)?,
            Value::Bin(data) => self.bin(data)?,
            Value::Ext(code, data) => self.ext(*code, data)?,
            Value::Array(items) => {
                self.array(items.len())?;
                if items.is_empty() {
                    return Ok(());
                }
                self.enter()?;
                for item in items {
                    self.value(item)?;
                }
                self.leave();
            }
            Value::Map(entries) => {
                self.map(entries.len())?;
                if entries.is_empty() {
                    return Ok(());
                }
                self.enter()?;
                for (key, value) in entries {
                    let start = self.out.len();
                    self.value(key)?;
                    self.check_key(start)?;
                    self.value(value)?;
                }
                self.leave();
            }
        }
        Ok(())
    }

    fn head(&mut self, marker: u8, bytes: &[u8]) {
        self.out.push(marker);
        self.out.extend_from_slice(bytes);
    }

    #[expect(clippy::cast_possible_truncation, reason = "each cast is below the bound just checked")]
    fn length(&mut self, len: usize, fix: Option<(u8, usize)>, wide: [Option<u8>; 3]) -> Result<()> {
        match (fix, wide) {
            (Some((marker, below)), _) if len < below => self.out.push(marker | len as u8),
            (_, [Some(marker), ..]) if len < 0x100 => self.out.extend([marker, len as u8]),
            (_, [_, Some(marker), _]) if len < 0x1_0000 => self.head(marker, &(len as u16).to_be_bytes()),
            (_, [_, _, Some(marker)]) if u32::try_from(len).is_ok() => {
                self.head(marker, &(len as u32).to_be_bytes());
            }
            _ => return Err(Error::codec("a value of 4 GiB or more cannot be encoded").with("length", len)),
        }
        Ok(())
    }

    fn ext_head(&mut self, code: i8, len: usize) -> Result<()> {
        match len {
            1 => self.out.push(0xd4),
            2 => self.out.push(0xd5),
            4 => self.out.push(0xd6),
            8 => self.out.push(0xd7),
            16 => self.out.push(0xd8),
            _ => self.length(len, None, [Some(0xc7), Some(0xc8), Some(0xc9)])?,
        }
        self.out.push(code.cast_unsigned());
        Ok(())
    }

    pub(crate) fn enter(&mut self) -> Result<()> {
        self.depth += 1;
        self.total += 1;
        if self.depth > PYTHON_DEPTH || self.total > MAX_DEPTH {
            return Err(
                Error::codec("the value is nested too deeply to be encoded").with("limit", PYTHON_DEPTH)
            );
        }
        Ok(())
    }

    fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.total = self.total.saturating_sub(1);
    }

    /// Rejects a key that Python could not use; `start` is the position of the key.
    fn check_key(&self, start: usize) -> Result<()> {
        match self.out.get(start) {
            Some(0x80..=0x8f | 0xde | 0xdf | 0xc7..=0xc9 | 0xd4..=0xd8) => Err(Error::codec(
                "a map's key must be text, a number, a boolean, bytes, null or a list of those",
            )),
            _ => Ok(()),
        }
    }

    /// Begins the extension of a Python class: `[module, name, …`, or the bare payload of a class without a path.
    fn open_object(&mut self, class: PythonClass<'static>) -> Result<Object> {
        // Reserves the most common header (16-bit length); other widths move the payload once.
        let object = Object { class, start: self.out.len(), outer_depth: std::mem::take(&mut self.depth) };
        self.out.extend([0; RESERVED_HEADER]);
        if let Some((module, name)) = class.path {
            self.array(if class.trailer().is_some() { 4 } else { 3 })?;
            self.enter()?;
            self.str(module)?;
            self.str(name)?;
        }
        Ok(object)
    }

    fn close_object(&mut self, object: &Object) -> Result<()> {
        if object.class.path.is_some() {
            self.leave();
        }
        if let Some(trailer) = object.class.trailer() {
            self.str(trailer)?;
        }
        self.depth = object.outer_depth;
        let mut header = Self::default();
        header.ext_head(object.class.code, self.out.len() - object.start - RESERVED_HEADER)?;
        self.out.splice(object.start..object.start + RESERVED_HEADER, header.out);
        Ok(())
    }
}

/// The bytes reserved for an extension's header.
const RESERVED_HEADER: usize = 4;

/// An extension whose payload is being written.
#[derive(Debug)]
struct Object {
    class: PythonClass<'static>,
    start: usize,
    outer_depth: usize,
}

impl ser::Error for Error {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self::codec(format!("the value cannot be encoded: {message}"))
    }
}

/// Writes the items of a list or map. If their number is not known in advance, the header is inserted at the end.
#[derive(Debug)]
pub(crate) struct Compound<'a> {
    encoder: &'a mut Encoder,
    /// The position of the header.
    start: usize,
    /// The length in the header, if it is written already.
    declared: Option<usize>,
    count: usize,
    is_map: bool,
    /// The Python object whose contents these are.
    object: Option<Object>,
    /// Whether this is the value of an enum variant: the only entry of an enclosing map.
    variant: bool,
}

impl<'a> Compound<'a> {
    fn open(encoder: &'a mut Encoder, declared: Option<usize>, is_map: bool) -> Result<Self> {
        let start = encoder.out.len();
        match declared {
            Some(len) if is_map => encoder.map(len)?,
            Some(len) => encoder.array(len)?,
            None => {}
        }
        if declared != Some(0) {
            encoder.enter()?;
        }
        Ok(Self { encoder, start, declared, count: 0, is_map, object: None, variant: false })
    }

    fn close(self) -> Result<()> {
        let Self { encoder, start, declared, count, is_map, object, variant } = self;
        if declared != Some(0) {
            encoder.leave();
        }
        match declared {
            Some(len) if len == count => {}
            Some(_) => return Err(Error::codec("a sequence or map had another length than it declared")),
            None => {
                let mut header = Encoder::default();
                if is_map {
                    header.map(count)?;
                } else {
                    header.array(count)?;
                }
                encoder.out.splice(start..start, header.out);
            }
        }
        if variant {
            encoder.leave();
        }
        object.map_or(Ok(()), |object| encoder.close_object(&object))
    }

    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.count += 1;
        value.serialize(&mut *self.encoder)
    }

    fn field<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> Result<()> {
        self.count += 1;
        self.encoder.str(name)?;
        value.serialize(&mut *self.encoder)
    }
}

impl<'a> ser::Serializer for &'a mut Encoder {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Compound<'a>;
    type SerializeTuple = Compound<'a>;
    type SerializeTupleStruct = Compound<'a>;
    type SerializeTupleVariant = Compound<'a>;
    type SerializeMap = Compound<'a>;
    type SerializeStruct = Compound<'a>;
    type SerializeStructVariant = Compound<'a>;

    fn serialize_bool(self, flag: bool) -> Result<()> {
        self.bool(flag);
        Ok(())
    }
    fn serialize_i8(self, number: i8) -> Result<()> {
        self.serialize_i64(number.into())
    }
    fn serialize_i16(self, number: i16) -> Result<()> {
        self.serialize_i64(number.into())
    }
    fn serialize_i32(self, number: i32) -> Result<()> {
        self.serialize_i64(number.into())
    }
    fn serialize_i64(self, number: i64) -> Result<()> {
        self.int(number);
        Ok(())
    }
    fn serialize_i128(self, number: i128) -> Result<()> {
        match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) => self.int(number),
            (_, Ok(number)) => self.uint(number),
            _ => return Err(Error::codec("an integer exceeds 64 bits, the limit of Python's encoder")),
        }
        Ok(())
    }
    fn serialize_u8(self, number: u8) -> Result<()> {
        self.serialize_u64(number.into())
    }
    fn serialize_u16(self, number: u16) -> Result<()> {
        self.serialize_u64(number.into())
    }
    fn serialize_u32(self, number: u32) -> Result<()> {
        self.serialize_u64(number.into())
    }
    fn serialize_u64(self, number: u64) -> Result<()> {
        self.uint(number);
        Ok(())
    }
    fn serialize_u128(self, number: u128) -> Result<()> {
        let number = u64::try_from(number)
            .map_err(|_| Error::codec("an integer exceeds 64 bits, the limit of Python's encoder"))?;
        self.serialize_u64(number)
    }
    fn serialize_f32(self, number: f32) -> Result<()> {
        self.serialize_f64(number.into())
    }
    fn serialize_f64(self, number: f64) -> Result<()> {
        self.float(number);
        Ok(())
    }
    fn serialize_char(self, character: char) -> Result<()> {
        self.str(character.encode_utf8(&mut [0; 4]))
    }
    fn serialize_str(self, text: &str) -> Result<()> {
        self.str(text)
    }
    fn serialize_bytes(self, data: &[u8]) -> Result<()> {
        self.bin(data)
    }
    fn serialize_none(self) -> Result<()> {
        self.serialize_unit()
    }
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<()> {
        value.serialize(self)
    }
    fn serialize_unit(self) -> Result<()> {
        self.nil();
        Ok(())
    }
    fn serialize_unit_struct(self, _name: &'static str) -> Result<()> {
        self.serialize_unit()
    }
    fn serialize_unit_variant(self, _name: &'static str, _index: u32, variant: &'static str) -> Result<()> {
        self.str(variant)
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Result<()> {
        if name == EXT_NAME {
            let mut pair = Encoder::new();
            value.serialize(&mut pair)?;
            let mut pair = Reader::new(&pair.out);
            return match (pair.token()?, pair.token()?, pair.token()?) {
                (Token::Array(2), Token::Int(code), Token::Bin(data)) => {
                    let code =
                        i8::try_from(code).map_err(|_| Error::codec("an extension code must fit 8 bits"))?;
                    self.ext(code, data)
                }
                _ => Err(Error::codec("an extension must be a code and bytes")),
            };
        }
        match PythonClass::parse(name) {
            Some(class) => {
                let object = self.open_object(class)?;
                value.serialize(&mut *self)?;
                self.close_object(&object)
            }
            None => value.serialize(self),
        }
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<()> {
        self.map(1)?;
        self.enter()?;
        self.str(variant)?;
        value.serialize(&mut *self)?;
        self.leave();
        Ok(())
    }
    fn serialize_seq(self, len: Option<usize>) -> Result<Compound<'a>> {
        Compound::open(self, len, false)
    }
    fn serialize_tuple(self, len: usize) -> Result<Compound<'a>> {
        Compound::open(self, Some(len), false)
    }
    fn serialize_tuple_struct(self, name: &'static str, len: usize) -> Result<Compound<'a>> {
        let object = PythonClass::parse(name).map(|class| self.open_object(class)).transpose()?;
        Ok(Compound { object, ..Compound::open(self, Some(len), false)? })
    }
    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Compound<'a>> {
        self.map(1)?;
        self.enter()?;
        self.str(variant)?;
        Ok(Compound { variant: true, ..Compound::open(self, Some(len), false)? })
    }
    fn serialize_map(self, len: Option<usize>) -> Result<Compound<'a>> {
        Compound::open(self, len, true)
    }
    fn collect_seq<I: IntoIterator<Item: Serialize>>(self, items: I) -> Result<()> {
        self.list(items)
    }
    fn collect_map<K: Serialize, V: Serialize, I>(self, entries: I) -> Result<()>
    where
        I: IntoIterator<Item = (K, V)>,
    {
        self.entries(entries)
    }
    fn serialize_struct(self, name: &'static str, len: usize) -> Result<Compound<'a>> {
        let object = PythonClass::parse(name).map(|class| self.open_object(class)).transpose()?;
        Ok(Compound { object, ..Compound::open(self, Some(len), true)? })
    }
    fn serialize_struct_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Compound<'a>> {
        self.map(1)?;
        self.enter()?;
        self.str(variant)?;
        Ok(Compound { variant: true, ..Compound::open(self, Some(len), true)? })
    }
}

macro_rules! items {
    ($($trait:ident :: $method:ident),*) => {$(
        impl ser::$trait for Compound<'_> {
            type Ok = ();
            type Error = Error;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
                self.item(value)
            }
            fn end(self) -> Result<()> {
                self.close()
            }
        }
    )*};
}
items!(
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field
);

macro_rules! fields {
    ($($trait:ident),*) => {$(
        impl ser::$trait for Compound<'_> {
            type Ok = ();
            type Error = Error;
            fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<()> {
                self.field(name, value)
            }
            fn end(self) -> Result<()> {
                self.close()
            }
        }
    )*};
}
fields!(SerializeStruct, SerializeStructVariant);

impl ser::SerializeMap for Compound<'_> {
    type Ok = ();
    type Error = Error;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<()> {
        self.count += 1;
        let start = self.encoder.out.len();
        key.serialize(&mut *self.encoder)?;
        self.encoder.check_key(start)
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        value.serialize(&mut *self.encoder)
    }
    fn end(self) -> Result<()> {
        self.close()
    }
}
