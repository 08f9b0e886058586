//! MessagePack to tokens: every length is checked against the bytes that are there.

use crate::{Error, Result};

/// The first token of a value, with the length of what follows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Token<'a> {
    Nil,
    Bool(bool),
    Int(i64),
    /// From 2^63 on.
    UInt(u64),
    Float(f64),
    Str(&'a str),
    Bin(&'a [u8]),
    Array(usize),
    Map(usize),
    Ext(i8, &'a [u8]),
}

/// Walks over MessagePack without copying.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.position..).unwrap_or_default()
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.position).copied()
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        match self.rest().get(..len) {
            Some(bytes) => {
                self.position += len;
                Ok(bytes)
            }
            None => Err(Error::codec("truncated MessagePack").with("at", self.position).with("needed", len)),
        }
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| Error::codec("truncated MessagePack"))
    }

    fn length(&mut self, width: u8) -> Result<usize> {
        let len = match width {
            1 => u32::from(u8::from_be_bytes(self.fixed()?)),
            2 => u32::from(u16::from_be_bytes(self.fixed()?)),
            _ => u32::from_be_bytes(self.fixed()?),
        };
        usize::try_from(len).map_err(|_| Error::codec("a length exceeds this machine's address space"))
    }

    fn str(&mut self, len: usize) -> Result<Token<'a>> {
        let at = self.position;
        let text = std::str::from_utf8(self.take(len)?);
        text.map(Token::Str)
            .map_err(|source| Error::codec("a text is not UTF-8").with("at", at).with_source(source))
    }

    fn ext(&mut self, len: usize) -> Result<Token<'a>> {
        let code = i8::from_be_bytes(self.fixed()?);
        Ok(Token::Ext(code, self.take(len)?))
    }

    /// A container of `len` items with `values` values each. Rejects a length that the remaining bytes cannot contain:
    /// every value has at least one byte.
    fn container(&self, len: usize, values: usize, token: fn(usize) -> Token<'a>) -> Result<Token<'a>> {
        if len.checked_mul(values).is_none_or(|values| values > self.rest().len()) {
            return Err(Error::codec("truncated MessagePack").with("at", self.position).with("items", len));
        }
        Ok(token(len))
    }

    pub(crate) fn token(&mut self) -> Result<Token<'a>> {
        let at = self.position;
        let [marker] = self.fixed()?;
        Ok(match marker {
            0x00..=0x7f => Token::Int(marker.into()),
            0x80..=0x8f => return self.container(usize::from(marker & 0x0f), 2, Token::Map),
            0x90..=0x9f => return self.container(usize::from(marker & 0x0f), 1, Token::Array),
            0xa0..=0xbf => return self.str(usize::from(marker & 0x1f)),
            0xc0 => Token::Nil,
            0xc1 => return Err(Error::codec("byte c1 is invalid in MessagePack").with("at", at)),
            0xc2 => Token::Bool(false),
            0xc3 => Token::Bool(true),
            0xc4..=0xc6 => {
                let len = self.length(1 << (marker - 0xc4))?;
                Token::Bin(self.take(len)?)
            }
            0xc7..=0xc9 => {
                let len = self.length(1 << (marker - 0xc7))?;
                return self.ext(len);
            }
            0xca => Token::Float(f32::from_be_bytes(self.fixed()?).into()),
            0xcb => Token::Float(f64::from_be_bytes(self.fixed()?)),
            0xcc => Token::Int(u8::from_be_bytes(self.fixed()?).into()),
            0xcd => Token::Int(u16::from_be_bytes(self.fixed()?).into()),
            0xce => Token::Int(u32::from_be_bytes(self.fixed()?).into()),
            0xcf => {
                let number = u64::from_be_bytes(self.fixed()?);
                i64::try_from(number).map_or(Token::UInt(number), Token::Int)
            }
            0xd0 => Token::Int(i8::from_be_bytes(self.fixed()?).into()),
            0xd1 => Token::Int(i16::from_be_bytes(self.fixed()?).into()),
            0xd2 => Token::Int(i32::from_be_bytes(self.fixed()?).into()),
            0xd3 => Token::Int(i64::from_be_bytes(self.fixed()?)),
            0xd4..=0xd8 => return self.ext(1 << (marker - 0xd4)),
            0xd9..=0xdb => {
                let len = self.length(1 << (marker - 0xd9))?;
                return self.str(len);
            }
            0xdc | 0xdd => {
                let len = self.length(2 << (marker - 0xdc))?;
                return self.container(len, 1, Token::Array);
            }
            0xde | 0xdf => {
                let len = self.length(2 << (marker - 0xde))?;
                return self.container(len, 2, Token::Map);
            }
            0xe0..=0xff => Token::Int(marker.cast_signed().into()),
        })
    }

    /// Skips one value of any depth, without recursion, and returns its bytes. Text is not checked to be UTF-8.
    pub(crate) fn skip(&mut self) -> Result<&'a [u8]> {
        let start = self.position;
        let mut open = 1_usize;
        while open > 0 {
            open -= 1;
            let width = match self.peek() {
                // Skipped by length, which avoids the costly UTF-8 check of `token`.
                Some(marker @ 0xa0..=0xbf) => Some((1, usize::from(marker & 0x1f))),
                Some(marker @ 0xd9..=0xdb) => {
                    self.position += 1;
                    let len = self.length(1 << (marker - 0xd9))?;
                    Some((0, len))
                }
                _ => None,
            };
            if let Some((head, len)) = width {
                self.take(head + len)?;
                continue;
            }
            match self.token()? {
                // The sum of the declared lengths of nested containers may overflow 32 bits.
                Token::Array(len) => open = open.saturating_add(len),
                Token::Map(len) => open = open.saturating_add(len.saturating_mul(2)),
                _ => {}
            }
        }
        Ok(self.bytes.get(start..self.position).unwrap_or_default())
    }
}
