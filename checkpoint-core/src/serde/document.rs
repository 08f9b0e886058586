//! A whole checkpoint as one MessagePack map, as Python's SQLite saver stores it.
//!
//! Channel values are not decoded: encoding copies their bytes, decoding returns slices of the row's bytes.

use bytes::Bytes;

use super::Encoder;
use super::decode::{Reader, Token};
use crate::version::{ChannelVersion, ChannelVersions};
use crate::{ChannelValue, ChannelValues, Checkpoint, Error, Result, Str};

/// Encodes a checkpoint with the keys in LangGraph's order.
///
/// # Errors
/// [`Codec`](crate::ErrorKind::Codec) when a channel's bytes are not one complete value, and for `pickle`;
/// [`Crypto`](crate::ErrorKind::Crypto) when they are ciphertext. The error names the channel.
/// [`Crypto`](crate::ErrorKind::Crypto) for a checkpoint that could not be decrypted, and
/// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for one that is a value of another serializer.
pub fn encode_checkpoint(checkpoint: &Checkpoint) -> Result<Vec<u8>> {
    checkpoint.require_channels()?;
    let extra = checkpoint.extra.iter().filter(|(key, _)| !is_own_field(checkpoint, key));
    let mut encoder = Encoder::new();
    encoder.map(6 + usize::from(checkpoint.updated_channels.is_some()) + extra.clone().count())?;
    encoder.str("v")?;
    encoder.int(checkpoint.v);
    encoder.str("ts")?;
    encoder.str(&checkpoint.ts)?;
    encoder.str("id")?;
    encoder.str(&checkpoint.id)?;
    encoder.str("channel_values")?;
    encoder.map(checkpoint.channel_values.len())?;
    for (channel, value) in &checkpoint.channel_values {
        splice(&mut encoder, channel, value)?;
    }
    encoder.str("channel_versions")?;
    versions(&mut encoder, &checkpoint.channel_versions)?;
    encoder.str("versions_seen")?;
    encoder.map(checkpoint.versions_seen.len())?;
    for (node, seen) in &checkpoint.versions_seen {
        encoder.str(node)?;
        versions(&mut encoder, seen)?;
    }
    if let Some(channels) = &checkpoint.updated_channels {
        encoder.str("updated_channels")?;
        encoder.array(channels.len())?;
        for channel in channels {
            encoder.str(channel)?;
        }
    }
    for (key, value) in extra {
        splice(&mut encoder, key, value)?;
    }
    Ok(encoder.into_bytes())
}

/// Whether a key of `extra` is shadowed by a field of the struct.
fn is_own_field(checkpoint: &Checkpoint, key: &str) -> bool {
    matches!(key, "v" | "ts" | "id" | "channel_values" | "channel_versions" | "versions_seen")
        || (key == "updated_channels" && checkpoint.updated_channels.is_some())
}

fn splice(encoder: &mut Encoder, key: &str, value: &ChannelValue) -> Result<()> {
    encoder.str(key)?;
    encoder.channel_value(value).map_err(|error| error.with("channel", key))
}

fn versions(encoder: &mut Encoder, versions: &ChannelVersions) -> Result<()> {
    encoder.map(versions.len())?;
    for (channel, version) in versions {
        encoder.str(channel)?;
        match version {
            ChannelVersion::Int(number) => encoder.int(*number),
            ChannelVersion::Float(number) => encoder.float(*number),
            ChannelVersion::Str(text) => encoder.str(text)?,
        }
    }
    Ok(())
}

/// Decodes a checkpoint; blobs are slices of `document`.
///
/// # Errors
/// [`Codec`](crate::ErrorKind::Codec) for malformed bytes and for a map that is no checkpoint.
pub fn decode_checkpoint(document: &Bytes) -> Result<Checkpoint> {
    let mut reader = Reader::new(document);
    let mut checkpoint = Checkpoint::undecoded();
    for_each_entry(&mut reader, |reader, key| {
        match key {
            "v" => checkpoint.v = integer(reader)?,
            "id" => checkpoint.id = text(reader)?,
            "ts" => checkpoint.ts = text(reader)?,
            "channel_values" => checkpoint.channel_values = read_values(reader, document)?,
            "channel_versions" => checkpoint.channel_versions = read_versions(reader)?,
            "versions_seen" => {
                for_each_entry(reader, |reader, node| {
                    let seen = read_versions(reader)?;
                    checkpoint.versions_seen.insert(node.into(), seen);
                    Ok(())
                })?;
            }
            "updated_channels" if matches!(reader.clone().token()?, Token::Array(_)) => {
                let Token::Array(len) = reader.token()? else { return Err(malformed(reader)) };
                let channels = (0..len).map(|_| text(reader)).collect::<Result<_>>()?;
                checkpoint.updated_channels = Some(channels);
            }
            other => {
                let value = slice(reader, document)?;
                checkpoint.extra.insert(other.into(), value);
            }
        }
        Ok(())
    })?;
    Ok(checkpoint)
}

/// Splits a map into its entries, which are slices of it.
pub(crate) fn split_map(document: &Bytes) -> Result<ChannelValues> {
    read_values(&mut Reader::new(document), document)
}

fn read_values(reader: &mut Reader<'_>, document: &Bytes) -> Result<ChannelValues> {
    let mut values = ChannelValues::new();
    for_each_entry(reader, |reader, channel| {
        let value = slice(reader, document)?;
        values.insert(channel.into(), value);
        Ok(())
    })?;
    Ok(values)
}

/// Looks up the values of some channels without decoding the checkpoint: `None` for a channel without a value.
///
/// # Errors
/// Those of [`decode_checkpoint`].
pub fn find_channels(document: &Bytes, channels: &[&str]) -> Result<Vec<Option<ChannelValue>>> {
    let mut found = vec![None; channels.len()];
    for_each_entry(&mut Reader::new(document), |reader, key| {
        if key != "channel_values" {
            return reader.skip().map(|_| ());
        }
        for_each_entry(reader, |reader, channel| {
            match channels.iter().position(|wanted| *wanted == channel).and_then(|at| found.get_mut(at)) {
                Some(slot) => *slot = Some(slice(reader, document)?),
                None => {
                    reader.skip()?;
                }
            }
            Ok(())
        })
    })?;
    Ok(found)
}

fn for_each_entry<'a>(
    reader: &mut Reader<'a>,
    mut read: impl FnMut(&mut Reader<'a>, &'a str) -> Result<()>,
) -> Result<()> {
    let Token::Map(len) = reader.token()? else { return Err(malformed(reader)) };
    for _ in 0..len {
        let Token::Str(key) = reader.token()? else { return Err(malformed(reader)) };
        read(reader, key)?;
    }
    Ok(())
}

fn slice(reader: &mut Reader<'_>, document: &Bytes) -> Result<ChannelValue> {
    let start = reader.position();
    reader.skip()?;
    ChannelValue::from_msgpack(document.slice(start..reader.position()))
}

fn text(reader: &mut Reader<'_>) -> Result<Str> {
    match reader.token()? {
        Token::Str(text) => Ok(text.into()),
        _ => Err(malformed(reader)),
    }
}

fn integer(reader: &mut Reader<'_>) -> Result<i64> {
    match reader.token()? {
        Token::Int(number) => Ok(number),
        _ => Err(malformed(reader)),
    }
}

fn read_versions(reader: &mut Reader<'_>) -> Result<ChannelVersions> {
    let mut out = ChannelVersions::new();
    for_each_entry(reader, |reader, channel| {
        let version = match reader.token()? {
            Token::Int(number) => ChannelVersion::Int(number),
            Token::Float(number) => ChannelVersion::Float(number),
            Token::Str(text) => ChannelVersion::Str(text.into()),
            _ => return Err(malformed(reader)),
        };
        out.insert(channel.into(), version);
        Ok(())
    })?;
    Ok(out)
}

fn malformed(reader: &Reader<'_>) -> Error {
    Error::codec("the stored checkpoint does not have LangGraph's format").with("at", reader.position())
}
