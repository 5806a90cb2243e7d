//! An API behind the proxy that answers by hand.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::PATIENCE;
use super::port::Port;

/// A request as the API got it.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    /// `GET /path HTTP/1.1`.
    pub(crate) line: String,
    /// In the order in which they came, names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Like the headers.
    pub(crate) trailers: Vec<(String, String)>,
    /// How many requests came before on the same connection.
    pub(crate) earlier: usize,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let values: Vec<_> = self
            .headers
            .iter()
            .filter(|(header, _)| header == name)
            .map(|(_, value)| value.as_str())
            .collect();
        (!values.is_empty()).then(|| values.join(", "))
    }

    pub(crate) fn path(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }
}

/// A server of its own on loopback.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<Got>>>,
}

impl Upstream {
    /// Answers every request with 200 and its path.
    pub(crate) fn echoing() -> Self {
        Self::answering(|got| ok(got.path()))
    }

    /// Answers each request with what `answer` returns; an empty answer closes the connection.
    pub(crate) fn answering(answer: impl Fn(&Got) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::answering_on(TcpListener::bind("127.0.0.1:0").unwrap(), answer)
    }

    /// The same on a socket that is there already.
    pub(crate) fn answering_on(
        listener: TcpListener,
        answer: impl Fn(&Got) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let requests: Arc<Mutex<Vec<Got>>> = Arc::default();
        let kept = requests.clone();
        let server = Self::on(listener, move |mut stream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            for earlier in 0.. {
                let Some(mut got) = read_request(&mut reader) else { return };
                got.earlier = earlier;
                kept.lock().unwrap().push(got.clone());
                let bytes = answer(&got);
                if bytes.is_empty() || stream.write_all(&bytes).is_err() {
                    return;
                }
            }
        });
        Self { requests, ..server }
    }

    /// Answers a request to `/slow` when it is told to, and says that it has it.
    pub(crate) fn slow() -> (Self, Receiver<()>, Sender<()>) {
        let (tell, told) = channel();
        let (go, wait) = channel();
        let wait = Mutex::new(wait);
        let server = Self::answering(move |got| {
            if got.path() == "/slow" {
                let _ = tell.send(());
                let _ = wait.lock().unwrap().recv();
            }
            ok(got.path())
        });
        (server, told, go)
    }

    /// Does as the path says, until its client has gone: it says nothing, or half an answer, or does not wait for the body. It says that it has each
    /// request that it does not answer in full.
    pub(crate) fn holding() -> (Self, Receiver<()>) {
        let (tell, told) = channel();
        let server = Self::raw(move |mut stream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while let Some(got) = read_head(&mut reader) {
                let half = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf.";
                let _ = match got.path() {
                    "/silent" => Ok(()),
                    "/impatient" => {
                        let _ = (reader.read(&mut [0; 100]), tell.send(()));
                        return;
                    }
                    "/half" => stream.write_all(half),
                    "/broken" => {
                        let _ = stream.write_all(half);
                        return;
                    }
                    "/upgrade" => stream.write_all(
                        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                          upgrade: chat\r\n\r\nhello",
                    ),
                    path => {
                        if stream.write_all(&ok(path)).is_err() {
                            return;
                        }
                        continue;
                    }
                };
                let _ = tell.send(());
                while matches!(reader.read(&mut [0; 100]), Ok(1..)) {}
                return;
            }
        });
        (server, told)
    }

    /// Answers the requests of each connection with these bytes, one after the other, whatever
    /// they are, and closes it then.
    pub(crate) fn saying(answers: &[&str]) -> Self {
        let answers: Vec<_> = answers.iter().map(|answer| answer.as_bytes().to_vec()).collect();
        Self::answering(move |got| answers.get(got.earlier).cloned().unwrap_or_default())
    }

    /// Accepts connections and hands over what they say, whole requests or not: one channel for
    /// each connection, which ends with it.
    pub(crate) fn listening() -> (Self, Receiver<Receiver<Vec<u8>>>) {
        let (connections, accepted) = channel();
        let server = Self::raw(move |mut stream| {
            let (pieces, heard) = channel();
            let _ = connections.send(heard);
            let mut space = vec![0; 64 * 1024];
            while let Ok(read @ 1..) = stream.read(&mut space) {
                let _ = pieces.send(space[..read].to_vec());
            }
        });
        (server, accepted)
    }

    /// Answers each connection's first request with a body that does not end, and tells when
    /// nobody takes more of it.
    pub(crate) fn endless() -> (Self, Receiver<()>) {
        let (tell, told) = channel();
        let server = Self::raw(move |mut stream| {
            let _ = read_request(&mut BufReader::new(&stream));
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n");
            while stream.write_all(&[b'x'; 64 * 1024]).is_ok() {}
            let _ = tell.send(());
        });
        (server, told)
    }

    /// Hands each connection on which anything comes to `handle`, on a thread of its own.
    pub(crate) fn raw(handle: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), handle)
    }

    /// The same on a socket that is there already.
    pub(crate) fn on(
        listener: TcpListener,
        handle: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let handle = Arc::new(handle);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let handle = handle.clone();
                thread::spawn(move || match stream.peek(&mut [0]) {
                    // The proxy has looked whether somebody is there.
                    Ok(0) => {}
                    _ => handle(stream),
                });
            }
        });
        Self { address, requests: Arc::default() }
    }

    /// The requests so far.
    pub(crate) fn requests(&self) -> Vec<Got> {
        self.requests.lock().unwrap().clone()
    }

    /// The last request so far.
    pub(crate) fn last(&self) -> Got {
        self.requests().pop().expect("the API got no request")
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl From<&Upstream> for String {
    fn from(server: &Upstream) -> Self {
        server.url()
    }
}

/// Waits until a connection has ended whose bytes come here.
pub(crate) fn until_closed(heard: &Receiver<Vec<u8>>) {
    let end = loop {
        if let Err(end) = heard.recv_timeout(PATIENCE) {
            break end;
        }
    };
    assert_eq!(end, RecvTimeoutError::Disconnected, "the connection is still open");
}

/// A response with this body.
pub(crate) fn ok(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Reads one request with its body, by length or in chunks; `None` at the connection's end.
pub(crate) fn read_request(reader: &mut impl std::io::BufRead) -> Option<Got> {
    let mut got = read_head(reader)?;
    if got.header("transfer-encoding").is_some() {
        loop {
            let size = read_line(reader)?;
            let size = usize::from_str_radix(size.split(';').next()?, 16).ok()?;
            if size == 0 {
                loop {
                    let line = read_line(reader)?;
                    let Some((name, value)) = line.split_once(':') else { break };
                    got.trailers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
                }
                break;
            }
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk).ok()?;
            got.body.extend_from_slice(&chunk[..size]);
        }
    } else if let Some(length) = got.header("content-length") {
        let mut body = vec![0; length.parse().ok()?];
        reader.read_exact(&mut body).ok()?;
        got.body = body;
    }
    Some(got)
}

/// Reads one request's head; `None` at the connection's end.
pub(crate) fn read_head(reader: &mut impl std::io::BufRead) -> Option<Got> {
    let line = read_line(reader)?;
    let mut got =
        Got { line, headers: Vec::new(), body: Vec::new(), trailers: Vec::new(), earlier: 0 };
    loop {
        let header = read_line(reader)?;
        if header.is_empty() {
            return Some(got);
        }
        let (name, value) = header.split_once(':').expect("a header has a colon");
        got.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

fn read_line(reader: &mut impl std::io::BufRead) -> Option<String> {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line).ok().filter(|read| *read > 0)?;
    Some(String::from_utf8_lossy(&line).trim_end().to_owned())
}

/// An address that refuses connections, until the end of the tests.
pub(crate) fn nobody() -> String {
    let port = Port::hold();
    let url = format!("http://{}", port.address);
    std::mem::forget(port);
    url
}

/// A socket whose queue is full: whoever connects waits for ever.
pub(crate) struct Deaf {
    pub(crate) address: SocketAddr,
    _listener: Socket,
    _queue: Vec<TcpStream>,
}

/// A server that never takes a connection.
pub(crate) fn nobody_accepts() -> Deaf {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    let mut queue = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        queue.push(stream);
    }
    Deaf { address, _listener: listener, _queue: queue }
}
