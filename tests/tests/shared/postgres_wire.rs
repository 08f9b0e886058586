//! What a driver says to a PostgreSQL server, or to a pooler before it.

#![allow(dead_code, reason = "each binary uses its part of this")]

use std::collections::HashMap;

use checkpoint_conformance::wire::{Protocol, Proxy, Sent};
use checkpoint_core::{Error, ErrorKind, Result};

/// PostgreSQL's protocol without TLS. A request ends with `Sync` or is a simple query, and `ReadyForQuery` answers it.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    client: Vec<u8>,
    server: Vec<u8>,
    /// Whether the first message, which has no type, was sent.
    started: bool,
    /// The SQL of prepared statements and of portals, by name.
    prepared: HashMap<Vec<u8>, String>,
    portals: HashMap<Vec<u8>, String>,
}

/// Splits off the first message, if it is complete: its type and its contents. A message without a type has a length of
/// four bytes alone before it.
fn split(bytes: &[u8], typed: bool) -> Option<(u8, &[u8], &[u8])> {
    let (kind, rest) = if typed { bytes.split_first()? } else { (&0, bytes) };
    let length = u32::from_be_bytes(*rest.first_chunk()?);
    let (message, rest) = rest.split_at_checked(usize::try_from(length).unwrap())?;
    Some((*kind, &message[4..], rest))
}

/// Splits off a text that ends with a zero byte.
fn text(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap();
    (&bytes[..end], &bytes[end + 1..])
}

fn sql(bytes: &[u8]) -> String {
    String::from_utf8(text(bytes).0.to_vec()).unwrap()
}

impl Protocol for Wire {
    fn sent(&mut self, bytes: &[u8]) -> Sent {
        self.client.extend_from_slice(bytes);
        let mut sent = Sent::default();
        let mut rest = self.client.as_slice();
        while let Some((kind, message, after)) = split(rest, self.started) {
            rest = after;
            match kind {
                0 => {
                    // Version 3 of the protocol. Requests for TLS have other numbers.
                    assert_eq!(message.get(..2), Some(&[0, 3][..]), "the connection has to be unencrypted");
                    self.started = true;
                    sent.requests += 1;
                }
                b'P' => {
                    let (name, rest) = text(message);
                    self.prepared.insert(name.to_vec(), sql(rest));
                }
                b'B' => {
                    let (portal, rest) = text(message);
                    self.portals.insert(portal.to_vec(), self.prepared[text(rest).0].clone());
                }
                b'E' => sent.statements.push(self.portals[text(message).0].clone()),
                b'Q' => {
                    sent.statements.push(sql(message));
                    sent.requests += 1;
                }
                b'S' => sent.requests += 1,
                _ => {}
            }
        }
        let done = self.client.len() - rest.len();
        self.client.drain(..done);
        sent
    }

    fn answered(&mut self, bytes: &[u8]) -> usize {
        self.server.extend_from_slice(bytes);
        let mut answered = 0;
        let mut rest = self.server.as_slice();
        while let Some((kind, _, after)) = split(rest, true) {
            rest = after;
            answered += usize::from(kind == b'Z');
        }
        let done = self.server.len() - rest.len();
        self.server.drain(..done);
        answered
    }
}

/// Starts a proxy to the server of a URL. Returns it with a URL that leads to it.
pub(crate) async fn proxy(url: &str) -> Result<(Proxy, String)> {
    let broken = |error| Error::new(ErrorKind::Backend, "the test cannot start its proxy").with_source(error);
    let begin = url.find("//").map_or(0, |at| at + 2);
    let end = url[begin..].find(['/', '?']).map_or(url.len(), |at| begin + at);
    let host = url[..end].rfind('@').map_or(begin, |at| at + 1);
    let server = tokio::net::lookup_host(&url[host..end]).await.map_err(broken)?.next().unwrap();
    let proxy = Proxy::start(server, Wire::default).await.map_err(broken)?;
    let separator = if url[end..].contains('?') { '&' } else { '?' };
    let through = format!("{}{}{}{separator}sslmode=disable", &url[..host], proxy.address(), &url[end..]);
    Ok((proxy, through))
}
