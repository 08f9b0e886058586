//! A local server whose responses a test defines.

#![allow(dead_code, reason = "each test binary uses some of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }

    pub(crate) fn inputs(&self) -> Vec<&str> {
        self.body["input"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
    }
}

/// The response to a request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// Status, further headers, body.
    Http(u16, &'static str, String),
    /// These bytes, then the connection is closed.
    Bytes(Vec<u8>),
    /// No response, until the client disconnects.
    Silence,
}

impl Reply {
    pub(crate) fn json(status: u16, body: &Value) -> Self {
        Self::Http(status, "", body.to_string())
    }

    /// An error response with a message that must not be repeated.
    pub(crate) fn refusal(status: u16, code: &str, request: &Request) -> Self {
        let words = format!("no: {} {:?}", request.body, request.header("authorization"));
        Self::json(status, &json!({ "error": { "message": words, "type": "some_error", "code": code } }))
    }

    /// Vectors of `dims` dimensions, in reverse order: the length of the text, then ones.
    pub(crate) fn vectors(request: &Request, dims: usize) -> Self {
        let vector = |text: &str| -> Vec<f64> {
            let length = text.len() as f64;
            std::iter::once(length).chain(std::iter::repeat(1.0)).take(dims).collect()
        };
        let inputs = request.inputs();
        let entry = |(at, text): (usize, &&str)| json!({ "index": at, "embedding": vector(text) });
        let data: Vec<_> = inputs.iter().enumerate().rev().map(entry).collect();
        Self::json(200, &json!({ "object": "list", "data": data, "model": "m" }))
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Http(status, headers, body) => {
                format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len())
                    .into_bytes()
            }
            Self::Bytes(bytes) => bytes.clone(),
            Self::Silence => Vec::new(),
        }
    }
}

type Handler = dyn Fn(usize, &Request) -> Reply + Send + Sync;

/// Accepts connections until the test binary ends.
pub(crate) struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    /// The number of clients that disconnected while they got no response.
    pub(crate) gone: Arc<Mutex<usize>>,
}

impl Server {
    /// Handles requests with a function, which gets the number of earlier requests.
    pub(crate) fn new(handler: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static) -> Self {
        Self::with(Stream::Plain, handler)
    }

    pub(crate) fn with(
        wrap: fn(TcpStream) -> Stream,
        handler: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server =
            Self { address: listener.local_addr().unwrap(), requests: Arc::default(), gone: Arc::default() };
        let (requests, gone, handler): (_, _, Arc<Handler>) =
            (server.requests.clone(), server.gone.clone(), Arc::new(handler));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (requests, gone, handler) = (requests.clone(), gone.clone(), handler.clone());
                std::thread::spawn(move || serve(wrap(stream.unwrap()), &requests, &gone, &*handler));
            }
        });
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<rustls::StreamOwned<rustls::ServerConnection, TcpStream>>),
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(bytes),
            Self::Tls(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// Serves one connection. A client may close it at any time.
fn serve(stream: Stream, requests: &Mutex<Vec<Request>>, gone: &Mutex<usize>, handler: &Handler) {
    let mut stream = BufReader::new(stream);
    while let Ok(Some(request)) = read(&mut stream) {
        let before = {
            let mut requests = requests.lock().unwrap();
            requests.push(request.clone());
            requests.len() - 1
        };
        let reply = handler(before, &request);
        let sent = stream.get_mut().write_all(&reply.bytes()).and_then(|()| stream.get_mut().flush());
        if sent.is_err() || matches!(reply, Reply::Bytes(_)) {
            return;
        }
        if matches!(reply, Reply::Silence) {
            let _ = stream.read(&mut [0]);
            *gone.lock().unwrap() += 1;
            return;
        }
    }
}

fn read(stream: &mut BufReader<Stream>) -> std::io::Result<Option<Request>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let headers: Vec<(String, String)> = lines[1..]
        .iter()
        .map(|line| line.split_once(':').unwrap())
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    let mut request = Request { line: lines.swap_remove(0), headers, body: Value::Null };
    let mut body = vec![0; request.header("content-length").unwrap().parse().unwrap()];
    stream.read_exact(&mut body)?;
    request.body = serde_json::from_slice(&body).unwrap();
    Ok(Some(request))
}
