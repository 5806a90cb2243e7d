//! The load that wrk cannot make: requests at a fixed rate, a key for each request, idle
//! connections, large bodies, and the upstream that sends and swallows those.
//!
//! One command for each, blocking sockets, one line of JSON as the answer. `benches/peers/load.py`
//! and `scripts/hostile` call it; nothing else does.

#![allow(clippy::disallowed_methods, reason = "it measures real time, and no test moves it")]

use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "\
usage: load rate   ADDRESS REQUESTS_A_SECOND CONNECTIONS SECONDS [PATH]
       load keys   ADDRESS COUNT STEP
       load idle   ADDRESS CONNECTIONS
       load get    ADDRESS BYTES
       load post   ADDRESS BYTES
       load serve  ADDRESS
";

/// The part of a run that is not counted: connections are made, caches filled.
const WARM_UP: Duration = Duration::from_millis(500);
/// Connections on which `keys` has one request each under way: Envoy takes no long pipelines.
const KEY_CONNECTIONS: usize = 64;
const CHUNK: usize = 256 << 10;
/// Longer than any answer here may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the upstream waits for a client under `/hasty`.
const HASTE: Duration = Duration::from_millis(500);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let line = match words.as_slice() {
        ["rate", address, rate, connections, seconds, path @ ..] => {
            let path = path.first().copied();
            fixed_rate(address, number(rate)?, number(connections)?, number(seconds)?, path)?
        }
        ["keys", address, count, step] => keys(address, number(count)?, number(step)?)?,
        ["idle", address, connections] => return idle(address, number(connections)?),
        ["get", address, bytes] => get(address, number(bytes)?)?,
        ["post", address, bytes] => post(address, number(bytes)?)?,
        ["serve", address] => return serve(address),
        _ => USAGE.to_owned(),
    };
    say(&line)
}

fn number<T: FromStr>(word: &str) -> Result<T> {
    word.parse().map_err(|_| format!("`{word}` is not a number that fits here\n{USAGE}").into())
}

fn say(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", line.trim_end())?;
    Ok(out.flush()?)
}

/// Requests that are due at fixed moments, whether or not earlier ones were answered: each
/// connection has its share of the moments, and a latency counts from the moment at which the
/// request was due. So a proxy that stalls is charged for everything that it kept waiting. With a
/// path, each request has a key of its own.
fn fixed_rate(
    address: &str,
    rate: u32,
    connections: u32,
    seconds: u32,
    path: Option<&str>,
) -> Result<String> {
    // Sleeping is otherwise late by 50 µs. Threads inherit it from the one that starts them.
    std::fs::write("/proc/self/timerslack_ns", "1")?;
    let gap = Duration::from_secs(1) / rate.max(1);
    let mut clients = Vec::new();
    for _ in 0..connections.max(1) {
        clients.push(Client::connect(address)?);
    }
    let start = Instant::now() + Duration::from_millis(50);
    let end = start + WARM_UP + Duration::from_secs(u64::from(seconds));
    let share = gap * connections.max(1);
    let threads: Vec<_> = clients
        .into_iter()
        .zip(0..)
        .map(|(client, place)| {
            let first = start + gap * place;
            let (address, path) = (address.to_owned(), path.map(str::to_owned));
            thread::spawn(move || {
                let window = (start + WARM_UP, end);
                on_time(client, &address, path.as_deref(), first, share, window)
            })
        })
        .collect();
    let (mut micros, mut wrong) = (Vec::new(), Vec::new());
    for thread in threads {
        let (latencies, others) = thread.join().map_err(|_| "a client panicked")??;
        micros.extend(latencies);
        wrong.extend(others);
    }
    micros.sort_by(f64::total_cmp);
    let at = |per_mille: usize| {
        let place = (micros.len() * per_mille / 1000).min(micros.len().saturating_sub(1));
        micros.get(place).copied().unwrap_or(f64::NAN)
    };
    Ok(format!(
        r#"{{"requests":{},"wrong":{},"first_wrong":{:?},"p50":{:.1},"p99":{:.1},"p999":{:.1}}}"#,
        micros.len(),
        wrong.len(),
        wrong.first().map_or("", String::as_str),
        at(500),
        at(990),
        at(999)
    ))
}

/// The latencies in microseconds of the requests that were due within the window, and what came
/// in place of the upstream's answers.
fn on_time(
    mut client: Client,
    address: &str,
    path: Option<&str>,
    first: Instant,
    gap: Duration,
    window: (Instant, Instant),
) -> Result<(Vec<f64>, Vec<String>)> {
    let expected = path.map(bytes);
    let (mut latencies, mut wrong) = (Vec::new(), Vec::new());
    let mut due = first;
    while due < window.1 {
        let request = match path {
            None => "GET / HTTP/1.1\r\nhost: bench\r\n\r\n".to_owned(),
            Some(path) => {
                let (process, moment) = (std::process::id(), due.duration_since(first).as_micros());
                let key = format!("{process}-{:?}-{moment}", thread::current().id());
                format!("GET {path} HTTP/1.1\r\nhost: bench\r\nx-api-key: {key}\r\n\r\n")
            }
        };
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let sent = client.stream.write_all(request.as_bytes());
        match sent.map_err(Into::into).and_then(|()| client.answer()) {
            Ok(Answer { status: 200, length }) if expected.is_none_or(|all| all == length) => {}
            Ok(Answer { status, length }) => wrong.push(format!("{status} with {length} bytes")),
            Err(error) => {
                wrong.push(error.to_string());
                client = Client::connect(address)?;
            }
        }
        if due >= window.0 {
            latencies.push(due.elapsed().as_secs_f64() * 1e6);
        }
        due += gap;
    }
    Ok((latencies, wrong))
}

/// One request for every `step`th of `count` keys; says how many passed and how many were refused.
fn keys(address: &str, count: u64, step: u64) -> Result<String> {
    let mut clients = Vec::new();
    for _ in 0..KEY_CONNECTIONS {
        clients.push(Client::connect(address)?);
    }
    let (mut passed, mut refused) = (0_u64, 0_u64);
    let mut left = (0..count).step_by(usize::try_from(step)?.max(1));
    loop {
        let mut sent = 0;
        for (client, key) in clients.iter_mut().zip(&mut left) {
            let request =
                format!("GET / HTTP/1.1\r\nhost: bench\r\nx-api-key: client-{key:07}\r\n\r\n");
            client.stream.write_all(request.as_bytes())?;
            sent += 1;
        }
        for client in clients.iter_mut().take(sent) {
            match client.answer()?.status {
                200 => passed += 1,
                429 => refused += 1,
                other => return Err(format!("answered {other}").into()),
            }
        }
        if sent == 0 {
            return Ok(format!(r#"{{"passed":{passed},"refused":{refused}}}"#));
        }
    }
}

/// Connections that ask once and then stay, until standard input ends.
fn idle(address: &str, connections: usize) -> Result<()> {
    let mut clients = Vec::new();
    for _ in 0..connections {
        let mut client = Client::connect(address)?;
        client.stream.write_all(b"GET / HTTP/1.1\r\nhost: bench\r\n\r\n")?;
        client.answer()?;
        clients.push(client);
    }
    say(&format!(r#"{{"connections":{}}}"#, clients.len()))?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn get(address: &str, bytes: u64) -> Result<String> {
    let mut client = Client::connect(address)?;
    let start = Instant::now();
    write!(client.stream, "GET /{bytes} HTTP/1.1\r\nhost: bench\r\n\r\n")?;
    let answer = client.answer()?;
    report(answer.status, answer.length, bytes, start)
}

fn post(address: &str, bytes: u64) -> Result<String> {
    let mut client = Client::connect(address)?;
    let start = Instant::now();
    write!(client.stream, "POST / HTTP/1.1\r\nhost: bench\r\ncontent-length: {bytes}\r\n\r\n")?;
    send_zeros(&mut client.stream, bytes)?;
    let answer = client.answer()?;
    report(answer.status, bytes, bytes, start)
}

fn report(status: u16, moved: u64, expected: u64, start: Instant) -> Result<String> {
    if status != 200 || moved != expected {
        return Err(format!("answered {status} after {moved} of {expected} bytes").into());
    }
    Ok(format!(r#"{{"bytes":{moved},"seconds":{:.6}}}"#, start.elapsed().as_secs_f64()))
}

fn send_zeros(stream: &mut TcpStream, mut bytes: u64) -> Result<()> {
    let zeros = vec![0; CHUNK];
    while bytes > 0 {
        let part = usize::try_from(bytes).unwrap_or(CHUNK).min(CHUNK);
        stream.write_all(zeros.get(..part).unwrap_or_default())?;
        bytes -= u64::try_from(part)?;
    }
    Ok(())
}

/// The upstream of large bodies: sends as many bytes as the path's end says, swallows what is
/// posted. It never answers `/never`, soon leaves a slow client of `/hasty`, and takes tunnels, in
/// which it says nothing and does not notice that the other side has left.
fn serve(address: &str) -> Result<()> {
    let listener = TcpListener::bind(address)?;
    say(&format!(r#"{{"listening":"{address}"}}"#))?;
    for stream in listener.incoming() {
        let stream = stream?;
        thread::spawn(move || -> Result<()> {
            stream.set_nodelay(true)?;
            let mut client = Client::new(stream);
            while let Some(head) = client.head()? {
                let path = head.split(' ').nth(1).unwrap_or_default();
                let is_tunnel = head.contains("\r\nupgrade: ");
                if is_tunnel {
                    let accepting = "connection: upgrade\r\nupgrade: websocket";
                    write!(
                        client.stream,
                        "HTTP/1.1 101 Switching Protocols\r\n{accepting}\r\n\r\n"
                    )?;
                }
                if is_tunnel || path.starts_with("/never") {
                    io::copy(&mut client.stream, &mut io::sink())?;
                    thread::sleep(if is_tunnel { PATIENCE } else { Duration::ZERO });
                    return Ok(());
                }
                if path.starts_with("/hasty") {
                    client.stream.set_read_timeout(Some(HASTE))?;
                    client.stream.set_write_timeout(Some(HASTE))?;
                }
                client.skip(length(&head)?)?;
                let bytes = if head.starts_with("GET /") { bytes(path) } else { 0 };
                write!(client.stream, "HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n")?;
                send_zeros(&mut client.stream, bytes)?;
            }
            Ok(())
        });
    }
    Ok(())
}

/// The length of the body at a path: the number at its end.
fn bytes(path: &str) -> u64 {
    path.rsplit('/').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// One end of a connection, with what was read from it and not yet used.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    used: usize,
    filled: usize,
}

struct Answer {
    status: u16,
    length: u64,
}

impl Client {
    fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self::new(stream))
    }

    fn new(stream: TcpStream) -> Self {
        Self { stream, buffer: Vec::new(), used: 0, filled: 0 }
    }

    /// Reads one answer and throws its body away.
    fn answer(&mut self) -> Result<Answer> {
        let head = self.head()?.ok_or("the connection was closed before the answer")?;
        let status = head.get(9..12).unwrap_or_default();
        let status = status.parse().map_err(|_| format!("no HTTP answer: {head}"))?;
        let length = length(&head)?;
        self.skip(length)?;
        Ok(Answer { status, length })
    }

    /// A head up to its empty line; nothing where the connection ended before it began.
    fn head(&mut self) -> Result<Option<String>> {
        loop {
            let unread = self.buffer.get(self.used..self.filled).unwrap_or_default();
            if let Some(place) = unread.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(unread.get(..place).unwrap_or_default()).into();
                self.used += place + 4;
                return Ok(Some(head));
            }
            if self.fill()? == 0 {
                return match self.used == self.filled {
                    true => Ok(None),
                    false => Err("the connection was closed within a head".into()),
                };
            }
        }
    }

    fn skip(&mut self, mut bytes: u64) -> Result<()> {
        loop {
            let here = u64::try_from(self.filled - self.used)?.min(bytes);
            self.used += usize::try_from(here)?;
            bytes -= here;
            if bytes == 0 {
                return Ok(());
            }
            if self.buffer.len() < CHUNK && bytes > 4096 {
                self.buffer.resize(CHUNK, 0);
            }
            if self.fill()? == 0 {
                return Err(format!("the connection was closed {bytes} bytes too early").into());
            }
        }
    }

    fn fill(&mut self) -> Result<usize> {
        self.buffer.copy_within(self.used..self.filled, 0);
        self.filled -= self.used;
        self.used = 0;
        if self.filled == self.buffer.len() {
            self.buffer.resize((self.buffer.len() * 2).max(2048), 0);
        }
        loop {
            match self.stream.read(self.buffer.get_mut(self.filled..).unwrap_or_default()) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
                Ok(read) => {
                    self.filled += read;
                    return Ok(read);
                }
            }
        }
    }
}

/// The body's length, which every message here says.
fn length(head: &str) -> Result<u64> {
    let mut lengths = head.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim())
    });
    match lengths.next() {
        Some(length) => Ok(length.parse()?),
        None if head.to_ascii_lowercase().contains("transfer-encoding") => {
            Err(format!("no content-length in: {head}").into())
        }
        None => Ok(0),
    }
}
