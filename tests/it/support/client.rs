//! A client that says exactly what a test wants it to say.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::ClientConfig;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::{PATIENCE, tls};

/// A response, as it came.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
}

impl Reply {
    /// A header's value; several of the same name are joined with commas.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let values: Vec<_> = self
            .headers
            .iter()
            .filter(|(header, _)| header.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
            .collect();
        (!values.is_empty()).then(|| values.join(", "))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {:?}", self.text()))
    }

    /// The limits that a problem's JSON says refused.
    pub(crate) fn violated(&self) -> Vec<String> {
        let list = self.json()["violated-policies"].clone();
        list.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    }
}

/// One connection to a server, in clear text unless said otherwise.
pub(crate) struct Connection<S = TcpStream> {
    pub(crate) stream: S,
    /// Read and not yet used.
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self::on(TcpStream::connect(address).unwrap())
    }

    /// A connection from this address of loopback.
    pub(crate) fn open_from(client: [u8; 4], address: SocketAddr) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((client, 0)).into()).unwrap();
        socket.connect(&address.into()).unwrap();
        Self::on(socket.into())
    }

    fn on(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self::of(stream)
    }
}

impl<S> Connection<S> {
    /// What is spoken on this stream from now on.
    pub(crate) fn of(stream: S) -> Self {
        Self { stream, buffer: Vec::new() }
    }
}

impl Connection<tls::Stream> {
    /// By TLS, with a server of this name.
    pub(crate) fn open_tls(address: SocketAddr, config: &Arc<ClientConfig>, name: &str) -> Self {
        Self::of(tls::shake_hands(address, config, name).unwrap())
    }
}

impl<S: Read + Write> Connection<S> {
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Sends a request without a body and reads the answer.
    pub(crate) fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.request("GET", path, headers, b"")
    }

    /// Sends a request (with `host: api.test` unless given, and a content-length where there is a
    /// body) and reads the answer.
    pub(crate) fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str("host: api.test\r\n");
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        // In one piece: whoever refuses the head may close before the body comes.
        self.send([head.as_bytes(), body].concat());
        self.reply(method)
    }

    /// Reads one response to a request with `method`; 1xx responses but 101 are passed over.
    pub(crate) fn reply(&mut self, method: &str) -> Reply {
        loop {
            let reply = self.any_reply(method);
            if reply.status >= 200 || reply.status == 101 {
                return reply;
            }
        }
    }

    /// Reads one response, 1xx too.
    pub(crate) fn any_reply(&mut self, method: &str) -> Reply {
        let head = self.until(b"\r\n\r\n");
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lines = head.trim_end().split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let status = status_line
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap_or_else(|| panic!("no status line: {head:?}"));
        let headers: Vec<_> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect();
        let mut reply = Reply { status, headers, body: Vec::new(), trailers: Vec::new() };
        if method == "HEAD" || status < 200 || status == 204 || status == 304 {
            return reply;
        }
        reply.body = if reply.header("transfer-encoding").is_some() {
            let (body, trailers) = self.chunks();
            reply.trailers = trailers;
            body
        } else if let Some(length) = reply.header("content-length") {
            self.exactly(length.parse().unwrap())
        } else {
            self.rest()
        };
        reply
    }

    /// Reads up to and with `end`.
    pub(crate) fn until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = self.buffer.windows(end.len()).position(|window| window == end) {
                return self.buffer.drain(..at + end.len()).collect();
            }
            let read = self.more();
            assert!(
                read,
                "the connection ended in the middle of {:?}",
                String::from_utf8_lossy(&self.buffer)
            );
        }
    }

    pub(crate) fn exactly(&mut self, length: usize) -> Vec<u8> {
        while self.buffer.len() < length {
            assert!(self.more(), "{} of {length} bytes came", self.buffer.len());
        }
        self.buffer.drain(..length).collect()
    }

    /// Reads until the server closes; a reset counts as an end.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        while self.more() {}
        std::mem::take(&mut self.buffer)
    }

    /// Reads until the server closes, and says how it did.
    pub(crate) fn rest_with_end(&mut self) -> (Vec<u8>, std::io::Result<()>) {
        let end = self.stream.read_to_end(&mut self.buffer).map(|_| ());
        (std::mem::take(&mut self.buffer), end)
    }

    /// Whether the server has closed, or closes within the test's patience, with nothing more said.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.rest().is_empty()
    }

    /// A body in chunks, and its trailers.
    fn chunks(&mut self) -> (Vec<u8>, Vec<(String, String)>) {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            let length = usize::from_str_radix(line.split(';').next().unwrap(), 16).unwrap();
            if length == 0 {
                break;
            }
            body.extend(self.exactly(length));
            assert_eq!(self.exactly(2), b"\r\n");
        }
        let mut trailers = Vec::new();
        while let Some((name, value)) = self.line().split_once(':') {
            trailers.push((name.to_owned(), value.trim().to_owned()));
        }
        (body, trailers)
    }

    fn line(&mut self) -> String {
        String::from_utf8_lossy(&self.until(b"\r\n")).trim().to_owned()
    }

    fn more(&mut self) -> bool {
        let mut space = [0; 64 * 1024];
        match self.stream.read(&mut space) {
            Ok(0) => false,
            Ok(read) => {
                self.buffer.extend_from_slice(&space[..read]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("no answer: {error}"),
        }
    }
}

/// One request on a connection of its own.
pub(crate) fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Reply {
    Connection::open(address).get(path, headers)
}

/// What requests with these headers are answered, each on a connection of its own.
pub(crate) fn statuses(address: SocketAddr, requests: &[&[(&str, &str)]]) -> Vec<u16> {
    requests.iter().map(|headers| get(address, "/", headers).status).collect()
}

/// Sends bytes on a connection of its own and reads until the server closes.
pub(crate) fn raw(address: SocketAddr, bytes: impl AsRef<[u8]>) -> String {
    let mut connection = Connection::open(address);
    connection.send(bytes);
    String::from_utf8_lossy(&connection.rest()).into_owned()
}
