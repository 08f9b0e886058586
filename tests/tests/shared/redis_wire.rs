//! What a driver says to a Redis server.

#![allow(dead_code, reason = "each binary uses its part of this")]

use std::collections::VecDeque;

use checkpoint_conformance::wire::{Protocol, Proxy, Sent};
use checkpoint_core::{Error, ErrorKind, Result};

/// Redis's protocol without TLS, in version 2 or 3. Every command is a request, which one reply answers.
///
/// What a driver sends to prepare a new connection is not counted.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    client: Reader,
    server: Reader,
    /// For each command without a reply, whether it is counted.
    unanswered: VecDeque<bool>,
}

/// The commands of a new connection: version of the protocol, password, names, database, reads from replicas.
const PREPARATION: [&str; 5] = ["HELLO", "AUTH", "CLIENT", "SELECT", "READONLY"];

impl Protocol for Wire {
    fn sent(&mut self, bytes: &[u8]) -> Sent {
        let mut sent = Sent::default();
        for message in self.client.read(bytes) {
            let command = String::from_utf8(message.first).unwrap().to_ascii_uppercase();
            let counts = !PREPARATION.contains(&command.as_str());
            self.unanswered.push_back(counts);
            if counts {
                sent.requests += 1;
                sent.statements.push(command);
            }
        }
        sent
    }

    fn answered(&mut self, bytes: &[u8]) -> usize {
        let replies = self.server.read(bytes).into_iter().filter(|message| message.kind != b'>');
        replies.filter(|_| self.unanswered.pop_front().unwrap()).count()
    }
}

/// A complete message.
#[derive(Debug, PartialEq, Eq)]
struct Message {
    /// The first byte, which says what it is.
    kind: u8,
    /// The first text in it, at least the beginning of a long one.
    first: Vec<u8>,
}

/// Finds the ends of messages in a stream, without keeping what is in them.
#[derive(Debug, Default)]
struct Reader {
    /// The beginning of a line.
    line: Vec<u8>,
    /// The rest of the text that is being read, with the end of its line.
    text: Option<usize>,
    /// The numbers of elements that are missing in the open aggregates.
    open: Vec<usize>,
    /// The message that is being read, and whether its first text is complete.
    message: Option<(Message, bool)>,
}

impl Reader {
    fn read(&mut self, mut bytes: &[u8]) -> Vec<Message> {
        let mut complete = Vec::new();
        while !bytes.is_empty() {
            if let Some(rest) = self.text {
                let (now, later) = bytes.split_at(rest.min(bytes.len()));
                bytes = later;
                if let Some((message, false)) = &mut self.message {
                    let room = 32_usize.saturating_sub(message.first.len());
                    // Without the end of the line.
                    let text = rest.saturating_sub(2).min(now.len()).min(room);
                    message.first.extend_from_slice(&now[..text]);
                }
                self.text = (rest > now.len()).then_some(rest - now.len());
                if self.text.is_none() {
                    complete.extend(self.element());
                }
                continue;
            }
            let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
            let (now, later) = bytes.split_at(end);
            bytes = later;
            self.line.extend_from_slice(now);
            if let Some(line) = self.line.strip_suffix(b"\r\n") {
                let line = String::from_utf8_lossy(line).into_owned();
                self.line.clear();
                complete.extend(self.header(&line));
            }
        }
        complete
    }

    /// The line with which every element begins.
    fn header(&mut self, line: &str) -> Option<Message> {
        let kind = line.as_bytes()[0];
        if self.message.is_none() {
            self.message = Some((Message { kind, first: Vec::new() }, false));
        }
        // A missing value has the length -1.
        let length = || line[1..].parse::<i64>().unwrap().max(0).unsigned_abs();
        match kind {
            b'$' | b'=' | b'!' if &line[1..] != "-1" => {
                self.text = Some(usize::try_from(length()).unwrap() + 2);
                None
            }
            b'*' | b'~' | b'>' | b'%' | b'|' => {
                let pairs = usize::from(matches!(kind, b'%' | b'|'));
                // The value that attributes belong to comes after them.
                let elements = (usize::try_from(length()).unwrap() << pairs) + usize::from(kind == b'|');
                if elements == 0 {
                    return self.element();
                }
                self.open.push(elements);
                None
            }
            _ => self.element(),
        }
    }

    /// An element is complete, and with it perhaps the aggregates that it is in.
    fn element(&mut self) -> Option<Message> {
        if let Some((_, is_complete)) = &mut self.message {
            *is_complete = true;
        }
        while let Some(missing) = self.open.last_mut() {
            *missing -= 1;
            if *missing > 0 {
                return None;
            }
            self.open.pop();
        }
        self.message.take().map(|(message, _)| message)
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
    let through = format!("{}{}{}", &url[..host], proxy.address(), &url[end..]);
    Ok((proxy, through))
}

/// Tests of the reader, which need no server.
pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
    let tests: [(&str, fn()); 3] = [
        ("wire::messages_end_where_they_end", messages_end_where_they_end),
        ("wire::the_first_text_is_the_command", the_first_text_is_the_command),
        ("wire::preparation_and_pushes_are_not_counted", preparation_and_pushes_are_not_counted),
    ];
    let trial = |(name, test): (&str, fn())| {
        libtest_mimic::Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    tests.into_iter().map(trial).collect()
}

/// Every kind of reply, cut at every place.
fn messages_end_where_they_end() {
    let replies: [&[u8]; 15] = [
        b"+OK\r\n",
        b"-ERR no\r\n",
        b":1\r\n",
        b"_\r\n",
        b"#t\r\n",
        b",1.5\r\n",
        b"(123\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$4\r\n\r\n*1\r\n",
        b"*-1\r\n",
        b"*3\r\n$1\r\na\r\n*2\r\n:1\r\n*0\r\n%1\r\n+a\r\n*1\r\n$1\r\nb\r\n",
        b"~2\r\n+a\r\n+b\r\n",
        b"|1\r\n+ttl\r\n:1\r\n*1\r\n+a\r\n",
        b">2\r\n+invalidate\r\n*1\r\n$1\r\na\r\n",
    ];
    let all = replies.concat();
    let kinds: Vec<u8> = replies.iter().map(|reply| reply[0]).collect();
    for cut in 0..=all.len() {
        let mut reader = Reader::default();
        let mut found = reader.read(&all[..cut]);
        found.extend(reader.read(&all[cut..]));
        assert_eq!(found.iter().map(|message| message.kind).collect::<Vec<_>>(), kinds, "cut at {cut}");
    }
    let mut reader = Reader::default();
    let bytes = all.iter().flat_map(|byte| reader.read(&[*byte]));
    assert_eq!(bytes.count(), replies.len());
}

fn the_first_text_is_the_command() {
    let commands = b"*2\r\n$4\r\nHGET\r\n$1\r\na\r\n*1\r\n$4\r\nEXEC\r\n";
    for cut in 0..=commands.len() {
        let mut reader = Reader::default();
        let mut found = reader.read(&commands[..cut]);
        found.extend(reader.read(&commands[cut..]));
        let texts: Vec<_> = found.iter().map(|message| message.first.as_slice()).collect();
        assert_eq!(texts, [&b"HGET"[..], b"EXEC"], "cut at {cut}");
    }
}

fn preparation_and_pushes_are_not_counted() {
    let mut wire = Wire::default();
    let sent = wire.sent(b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n*1\r\n$4\r\nping\r\n");
    assert_eq!(sent, Sent { requests: 1, statements: vec!["PING".to_owned()] });
    assert_eq!(wire.answered(b"%0\r\n>1\r\n+message\r\n"), 0);
    assert_eq!(wire.answered(b"+PONG\r\n"), 1);
}
