//! What a driver says to a MongoDB server, and a relay between the two that counts and cuts by documents.

#![allow(dead_code, reason = "each binary uses its part of this")]

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use checkpoint_conformance::wire::{Protocol, Proxy, Sent};
use checkpoint_core::{Error, ErrorKind, Result};
use mongodb::bson::raw::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

/// What drivers send to prepare and to watch a connection, and to end it. It is neither counted nor cut.
const PREPARATION: [&str; 7] =
    ["hello", "isMaster", "ismaster", "saslStart", "saslContinue", "buildInfo", "endSessions"];

/// The lists of a command: what it inserts, and the statements of an update or a delete.
const LISTS: [&str; 3] = ["documents", "updates", "deletes"];

/// The operation codes of a message, and of a query, with which some drivers greet the server.
const MESSAGE: i32 = 2013;
const QUERY: i32 = 2004;

/// The length of a message's header.
const HEADER: usize = 16;

/// The flags of a message: a checksum comes after it; no answer comes, or for an answer, more come.
const CHECKSUM: u32 = 1;
const MORE: u32 = 2;

/// A complete message.
#[derive(Debug)]
struct Message(Vec<u8>);

/// A part of a message: its body, or a list of documents outside of the body.
enum Section<'a> {
    Body(&'a RawDocument),
    List(&'a str, Vec<&'a RawDocument>),
}

fn number(bytes: &[u8], at: usize) -> i32 {
    i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn length(bytes: &[u8], at: usize) -> usize {
    usize::try_from(number(bytes, at)).unwrap()
}

/// The document at the beginning of some bytes, and what comes after it.
fn document(bytes: &[u8]) -> (&RawDocument, &[u8]) {
    let (document, rest) = bytes.split_at(length(bytes, 0));
    (RawDocument::from_bytes(document).unwrap(), rest)
}

/// The text at the beginning of some bytes, which ends with a zero, and what comes after it.
fn text(bytes: &[u8]) -> (&str, &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap();
    (std::str::from_utf8(&bytes[..end]).unwrap(), &bytes[end + 1..])
}

impl Message {
    fn id(&self) -> i32 {
        number(&self.0, 4)
    }

    /// The request that this answers.
    fn answers(&self) -> i32 {
        number(&self.0, 8)
    }

    fn code(&self) -> i32 {
        number(&self.0, 12)
    }

    /// Whether no answer comes, or for an answer, more come.
    fn has_more(&self) -> bool {
        self.code() == MESSAGE && self.flags() & MORE != 0
    }

    fn flags(&self) -> u32 {
        u32::from_le_bytes(self.0[HEADER..HEADER + 4].try_into().unwrap())
    }

    fn sections(&self) -> Vec<Section<'_>> {
        assert_eq!(self.code(), MESSAGE, "a message of a kind that the tests do not know");
        let end = self.0.len() - if self.flags() & CHECKSUM == 0 { 0 } else { 4 };
        let mut rest = &self.0[HEADER + 4..end];
        let mut sections = Vec::new();
        while let Some((kind, after)) = rest.split_first() {
            if *kind == 0 {
                let (body, after) = document(after);
                sections.push(Section::Body(body));
                rest = after;
                continue;
            }
            let (list, after) = after.split_at(length(after, 0));
            let (name, mut list) = text(&list[4..]);
            let mut documents = Vec::new();
            while !list.is_empty() {
                let (next, after) = document(list);
                documents.push(next);
                list = after;
            }
            sections.push(Section::List(name, documents));
            rest = after;
        }
        sections
    }

    /// The command, if it is one that counts.
    fn command(&self) -> Option<String> {
        if self.code() == QUERY {
            return None;
        }
        let name = self.sections().iter().find_map(|section| match section {
            Section::Body(body) => body.iter().next().map(|first| first.unwrap().0.to_string()),
            Section::List(..) => None,
        });
        name.filter(|name| !PREPARATION.contains(&name.as_str()))
    }

    /// What the command inserts, or the statements of an update or a delete, with the name of the list.
    fn listed(&self) -> Vec<(String, &RawDocument)> {
        let mut all = Vec::new();
        for section in self.sections() {
            match section {
                Section::Body(body) => all.extend(lists(body)),
                Section::List(name, documents) => {
                    all.extend(documents.into_iter().map(|document| (name.to_owned(), document)));
                }
            }
        }
        all
    }

    /// The same with the first documents only.
    fn first(&self, documents: usize) -> Self {
        let mut parts = self.0[..HEADER].to_vec();
        parts.extend_from_slice(&(self.flags() & !CHECKSUM).to_le_bytes());
        let mut left = documents;
        for section in self.sections() {
            match section {
                Section::Body(body) => {
                    parts.push(0);
                    parts.extend_from_slice(shortened(body, &mut left).as_bytes());
                }
                Section::List(name, documents) => {
                    let kept = &documents[..left.min(documents.len())];
                    left -= kept.len();
                    let mut list = [name.as_bytes(), &[0]].concat();
                    for document in kept {
                        list.extend_from_slice(document.as_bytes());
                    }
                    parts.push(1);
                    parts.extend_from_slice(&u32::try_from(list.len() + 4).unwrap().to_le_bytes());
                    parts.extend_from_slice(&list);
                }
            }
        }
        let length = u32::try_from(parts.len()).unwrap();
        parts[..4].copy_from_slice(&length.to_le_bytes());
        Self(parts)
    }
}

/// The documents in the lists of a body.
fn lists(body: &RawDocument) -> Vec<(String, &RawDocument)> {
    let mut all = Vec::new();
    for element in body {
        let (name, value) = element.unwrap();
        if let Some(array) = value.as_array().filter(|_| LISTS.contains(&name.as_str())) {
            let documents = array.into_iter().map(|document| document.unwrap().as_document().unwrap());
            all.extend(documents.map(|document| (name.to_string(), document)));
        }
    }
    all
}

/// A body with the first documents of its lists.
fn shortened(body: &RawDocument, left: &mut usize) -> RawDocumentBuf {
    let mut made = RawDocumentBuf::new();
    for element in body {
        let (name, value) = element.unwrap();
        match value.as_array().filter(|_| LISTS.contains(&name.as_str())) {
            Some(array) => {
                let mut kept = RawArrayBuf::new();
                for document in array.into_iter().take(*left) {
                    kept.push(document.unwrap());
                    *left -= 1;
                }
                made.append(name, &kept);
            }
            None => made.append(name, value),
        }
    }
    made
}

/// Calls a function with the name of every field, at every depth.
fn each_name(document: &RawDocument, call: &mut impl FnMut(&str)) {
    for element in document {
        let (name, value) = element.unwrap();
        call(name.as_str());
        each_name_within(value, call);
    }
}

fn each_name_within(value: RawBsonRef<'_>, call: &mut impl FnMut(&str)) {
    match value {
        RawBsonRef::Document(document) => each_name(document, call),
        RawBsonRef::Array(array) => {
            for value in array {
                each_name_within(value.unwrap(), call);
            }
        }
        _ => {}
    }
}

/// Finds the messages in a stream.
#[derive(Debug, Default)]
struct Reader(Vec<u8>);

impl Reader {
    fn read(&mut self, bytes: &[u8]) -> Vec<Message> {
        self.0.extend_from_slice(bytes);
        let mut complete = Vec::new();
        while self.0.len() >= HEADER && self.0.len() >= length(&self.0, 0) {
            let rest = self.0.split_off(length(&self.0, 0));
            complete.push(Message(std::mem::replace(&mut self.0, rest)));
        }
        complete
    }
}

/// MongoDB's protocol without TLS and compression. Every command is a request and a statement, which is its name.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    client: Reader,
    server: Reader,
    /// The commands that count and have no answer.
    unanswered: HashSet<i32>,
}

impl Protocol for Wire {
    fn sent(&mut self, bytes: &[u8]) -> Sent {
        let mut sent = Sent::default();
        for message in self.client.read(bytes) {
            let Some(command) = message.command() else { continue };
            sent.statements.push(command);
            if !message.has_more() {
                sent.requests += 1;
                self.unanswered.insert(message.id());
            }
        }
        sent
    }

    fn answered(&mut self, bytes: &[u8]) -> usize {
        let answers = self.server.read(bytes);
        let last = answers.into_iter().filter(|answer| !answer.has_more());
        last.filter(|answer| self.unanswered.remove(&answer.answers())).count()
    }

    fn spans_connections(&self) -> bool {
        true
    }
}

fn broken(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Backend, "the test cannot start its proxy").with_source(error)
}

/// The address of a URL's server, and what is before and after it in the URL.
async fn server_of(url: &str) -> Result<(SocketAddr, &str, &str)> {
    let begin = url.find("//").map_or(0, |at| at + 2);
    let end = url[begin..].find(['/', '?']).map_or(url.len(), |at| begin + at);
    let host = url[..end].rfind('@').map_or(begin, |at| at + 1);
    let server = tokio::net::lookup_host(&url[host..end]).await.map_err(broken)?.next().unwrap();
    Ok((server, &url[..host], &url[end..]))
}

/// Starts a proxy to the server of a URL. Returns it with a URL that leads to it.
pub(crate) async fn proxy(url: &str) -> Result<(Proxy, String)> {
    let (server, before, after) = server_of(url).await?;
    let proxy = Proxy::start(server, Wire::default).await.map_err(broken)?;
    let through = format!("{before}{}{after}", proxy.address());
    Ok((proxy, through))
}

/// What went through a [`Relay`], without the preparation of connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// How often each command was sent.
    pub(crate) commands: BTreeMap<String, usize>,
    /// The names that begin with a dollar sign, at any depth, in queries and statements.
    pub(crate) operators: BTreeSet<String>,
    /// The names of fields in inserted documents, at any depth.
    pub(crate) fields: BTreeSet<String>,
    /// How many documents were inserted, and how many statements updates and deletes had.
    pub(crate) documents: usize,
    /// The bytes of the commands and of the answers.
    pub(crate) sent: usize,
    pub(crate) received: usize,
    /// The bytes of the largest inserted document.
    pub(crate) largest: usize,
}

impl Seen {
    fn count(&mut self, command: String, message: &Message) {
        *self.commands.entry(command).or_default() += 1;
        self.sent += message.0.len();
        let operators = &mut self.operators;
        let mut operator = |name: &str| {
            if name.starts_with('$') {
                operators.insert(name.to_owned());
            }
        };
        for section in message.sections() {
            if let Section::Body(body) = section {
                for element in body {
                    let (name, value) = element.unwrap();
                    operator(name.as_str());
                    if !LISTS.contains(&name.as_str()) {
                        each_name_within(value, &mut operator);
                    }
                }
            }
        }
        for (list, document) in message.listed() {
            self.documents += 1;
            if list == "documents" {
                self.largest = self.largest.max(document.as_bytes().len());
                each_name(document, &mut |name| _ = self.fields.insert(name.to_owned()));
            } else {
                each_name(document, &mut operator);
            }
        }
    }
}

/// Where a [`Relay`] cuts the connection. Everything is counted from 0, from the moment that it is told to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The server does not get this command.
    Command(usize),
    /// The server executes this command, and its answer is lost.
    Answer(usize),
    /// The server gets this many documents and statements, counted over all commands. It does not get the rest of the
    /// command, or if that was all of it, the answer is lost.
    Documents(usize),
}

/// What happens after a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// The next connection works: it was the network.
    GoOn,
    /// Nothing works any more until [`Relay::heal`]: the client is dead.
    Die,
}

/// A TCP proxy on its own port that knows MongoDB's messages. It stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    url: String,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    died: Notify,
}

#[derive(Debug, Default)]
struct State {
    seen: Seen,
    cut: Option<(Cut, Then)>,
    dead: bool,
    cuts: usize,
}

/// What is done with a command.
enum Verdict {
    Forward,
    Lose,
    /// This is forwarded instead, and the answer is lost.
    Last(Message),
}

impl State {
    fn judge(&mut self, message: &Message) -> Verdict {
        let Some(command) = message.command() else {
            return if self.dead { Verdict::Lose } else { Verdict::Forward };
        };
        if self.dead {
            return Verdict::Lose;
        }
        self.seen.count(command, message);
        let Some((cut, then)) = &mut self.cut else { return Verdict::Forward };
        let verdict = match cut {
            Cut::Command(0) => Verdict::Lose,
            Cut::Answer(0) => Verdict::Last(Message(message.0.clone())),
            Cut::Command(left) | Cut::Answer(left) => {
                *left -= 1;
                return Verdict::Forward;
            }
            Cut::Documents(left) => match message.listed().len() {
                0 => return Verdict::Forward,
                documents if documents < *left => {
                    *left -= documents;
                    return Verdict::Forward;
                }
                _ if *left == 0 => Verdict::Lose,
                _ => Verdict::Last(message.first(*left)),
            },
        };
        self.dead = *then == Then::Die;
        self.cut = None;
        self.cuts += 1;
        verdict
    }
}

impl Relay {
    /// Starts a relay to the server of a URL.
    pub(crate) async fn start(url: &str) -> Result<Self> {
        let (server, before, after) = server_of(url).await?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(broken)?;
        let address = listener.local_addr().map_err(broken)?;
        let shared = Arc::<Shared>::default();
        let accepting = tokio::spawn({
            let shared = shared.clone();
            async move {
                let mut connections = JoinSet::new();
                while let Ok((client, _)) = listener.accept().await {
                    let shared = shared.clone();
                    connections.spawn(async move { connection(client, server, &shared).await });
                    while connections.try_join_next().is_some() {}
                }
            }
        });
        let url = format!("{before}{address}{after}");
        Ok(Self { url, shared, accepting: accepting.abort_handle() })
    }

    /// The URL that leads to it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns what was seen since the last call.
    pub(crate) fn take(&self) -> Seen {
        std::mem::take(&mut self.shared.state.lock().unwrap().seen)
    }

    /// Cuts a connection, once.
    pub(crate) fn cut(&self, cut: Cut, then: Then) {
        self.shared.state.lock().unwrap().cut = Some((cut, then));
    }

    /// How many connections were cut. A test that wanted a cut after the last command finds the number unchanged.
    pub(crate) fn cuts(&self) -> usize {
        self.shared.state.lock().unwrap().cuts
    }

    /// Lets new connections work again, and forgets a cut that did not happen.
    pub(crate) fn heal(&self) {
        let mut state = self.shared.state.lock().unwrap();
        state.dead = false;
        state.cut = None;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The end of a connection.
fn ended() -> std::io::Error {
    std::io::ErrorKind::ConnectionReset.into()
}

async fn connection(client: TcpStream, server: SocketAddr, shared: &Shared) -> std::io::Result<()> {
    let died = shared.died.notified();
    if shared.state.lock().unwrap().dead {
        return Ok(());
    }
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (counted, lost) = (Mutex::default(), Mutex::default());
    // Whatever ends first ends the connection.
    tokio::select! {
        ended = requests(from_client, to_server, shared, &counted, &lost) => ended,
        ended = answers(from_server, to_client, shared, &counted, &lost) => ended,
        () = died => Ok(()),
    }
}

async fn read(from: &mut OwnedReadHalf) -> std::io::Result<Message> {
    let mut message = vec![0; HEADER];
    from.read_exact(&mut message).await?;
    message.resize(length(&message, 0), 0);
    from.read_exact(&mut message[HEADER..]).await?;
    Ok(Message(message))
}

async fn requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    shared: &Shared,
    counted: &Mutex<HashSet<i32>>,
    lost: &Mutex<Option<i32>>,
) -> std::io::Result<()> {
    loop {
        let message = read(&mut client).await?;
        let verdict = shared.state.lock().unwrap().judge(&message);
        if message.command().is_some() {
            counted.lock().unwrap().insert(message.id());
        }
        match verdict {
            Verdict::Forward => server.write_all(&message.0).await?,
            Verdict::Lose => {
                if shared.state.lock().unwrap().dead {
                    shared.died.notify_waiters();
                }
                return Err(ended());
            }
            Verdict::Last(message) => {
                *lost.lock().unwrap() = Some(message.id());
                server.write_all(&message.0).await?;
            }
        }
    }
}

async fn answers(
    mut server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    shared: &Shared,
    counted: &Mutex<HashSet<i32>>,
    lost: &Mutex<Option<i32>>,
) -> std::io::Result<()> {
    loop {
        let message = read(&mut server).await?;
        if *lost.lock().unwrap() == Some(message.answers()) {
            if shared.state.lock().unwrap().dead {
                shared.died.notify_waiters();
            }
            return Err(ended());
        }
        if counted.lock().unwrap().contains(&message.answers()) {
            shared.state.lock().unwrap().seen.received += message.0.len();
        }
        client.write_all(&message.0).await?;
    }
}
