//! A strict reader of HTTP/1.1 messages (RFC 9112). It takes only what has one meaning for every reader.

/// A message, read to its end.
#[derive(Debug)]
pub(super) struct Message {
    /// The first line.
    pub(super) start: String,
    /// The fields, names in lower case.
    pub(super) fields: Vec<(String, Vec<u8>)>,
    pub(super) body: Vec<u8>,
    /// Nothing but the connection's end says where the body ends.
    pub(super) ends_with_connection: bool,
}

/// What bytes are, read as messages.
#[derive(Debug)]
pub(super) enum Framed {
    /// Whole messages, and nothing behind them.
    Whole(Vec<Message>),
    /// Whole messages, and then one that is cut. Whether its head is whole.
    Cut(Vec<Message>, bool),
    /// Something is no message, and why.
    Faulty(&'static str),
}

/// Why a message could not be read to its end.
enum Stop {
    /// It may go on. Whether its head is whole.
    Cut(bool),
    Faulty(&'static str),
}

use Stop::{Cut, Faulty};

impl Message {
    pub(super) fn method(&self) -> &str {
        self.start.split(' ').next().unwrap_or_default()
    }

    pub(super) fn status(&self) -> u16 {
        self.start.split(' ').nth(1).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.values(name).next().is_some()
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.fields.iter().filter(move |(found, _)| found == name).map(|(_, value)| &**value)
    }
}

/// Requests, one after another.
pub(super) fn requests(bytes: &[u8]) -> Framed {
    all(bytes, |rest, _| {
        let mut message = head(rest)?;
        let words: Vec<&str> = message.start.split(' ').collect();
        let [method, target, version] = words[..] else { return Err(Faulty("no request line")) };
        // Paths are passed on with the characters beyond ASCII that clients send.
        let is_target = target.bytes().all(|byte| byte > b' ' && byte != 0x7f && byte != b'#');
        if !method.bytes().all(is_token) || method.is_empty() || target.is_empty() || !is_target {
            return Err(Faulty("no request line"));
        }
        if version != "HTTP/1.1" {
            return Err(Faulty("another version"));
        }
        if message.values("host").count() != 1 {
            return Err(Faulty("not one host"));
        }
        message.body = match (length(&message)?, is_chunked(&message)?) {
            (None, false) => Vec::new(),
            (Some(length), false) => take(rest, length)?,
            (None, true) => chunks(rest)?,
            (Some(_), true) => return Err(Faulty("a length beside chunks")),
        };
        Ok(message)
    })
}

/// Answers, one after another, to requests of these methods. Further requests are taken for GET.
pub(super) fn answers(bytes: &[u8], methods: &[String]) -> Framed {
    let mut switched = false;
    all(bytes, |rest, before| {
        let answered = before.iter().filter(|answer| answer.status() >= 200).count();
        let method = methods.get(answered).map_or("GET", String::as_str);
        let mut message = head(rest)?;
        let mut words = message.start.splitn(3, ' ');
        let version = words.next().unwrap_or_default();
        let is_http10 = version == "HTTP/1.0";
        let status = words.next().unwrap_or_default();
        if !is_http10 && version != "HTTP/1.1" {
            return Err(Faulty("no status line"));
        }
        if status.len() != 3 || !status.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Faulty("no status"));
        }
        let status = message.status();
        if status == 101 {
            switched = true;
        }
        let (length, chunked) = (length(&message)?, is_chunked(&message)?);
        if length.is_some() && chunked {
            return Err(Faulty("a length beside chunks"));
        }
        if switched {
            message.body = std::mem::take(rest).to_vec();
        } else if method == "HEAD" || status < 200 || status == 204 || status == 304 {
            // No body.
        } else if let Some(length) = length {
            message.body = take(rest, length)?;
        } else if chunked {
            message.body = chunks(rest)?;
        } else {
            message.ends_with_connection = true;
            message.body = std::mem::take(rest).to_vec();
        }
        Ok(message)
    })
}

fn all(
    bytes: &[u8],
    mut next: impl FnMut(&mut &[u8], &[Message]) -> Result<Message, Stop>,
) -> Framed {
    let (mut rest, mut messages) = (bytes, Vec::new());
    while !rest.is_empty() {
        match next(&mut rest, &messages) {
            Ok(message) => messages.push(message),
            Err(Cut(has_head)) => return Framed::Cut(messages, has_head),
            Err(Faulty(why)) => return Framed::Faulty(why),
        }
    }
    Framed::Whole(messages)
}

fn head(rest: &mut &[u8]) -> Result<Message, Stop> {
    let start = line(rest, false)?;
    let start = std::str::from_utf8(start).map_err(|_| Faulty("a line is not UTF-8"))?;
    Ok(Message {
        start: start.to_owned(),
        fields: fields(rest, false)?,
        body: Vec::new(),
        ends_with_connection: false,
    })
}

fn fields(rest: &mut &[u8], has_head: bool) -> Result<Vec<(String, Vec<u8>)>, Stop> {
    let mut fields = Vec::new();
    loop {
        let line = line(rest, has_head)?;
        if line.is_empty() {
            return Ok(fields);
        }
        let colon = line.iter().position(|byte| *byte == b':').ok_or(Faulty("no colon"))?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if name.is_empty() || !name.iter().copied().all(is_token) {
            return Err(Faulty("no name of a field"));
        }
        if value.iter().any(|byte| matches!(byte, 0..=8 | 10..=31 | 127)) {
            return Err(Faulty("a control character in a value"));
        }
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        fields.push((name, value.trim_ascii().to_vec()));
    }
}

/// A line up to CR LF.
fn line<'b>(rest: &mut &'b [u8], has_head: bool) -> Result<&'b [u8], Stop> {
    let end = rest.iter().position(|byte| *byte == b'\n').ok_or(Cut(has_head))?;
    let line = rest[..end].strip_suffix(b"\r").ok_or(Faulty("a line without CR"))?;
    if line.iter().any(|byte| matches!(byte, b'\r' | 0)) {
        return Err(Faulty("CR or NUL in a line"));
    }
    *rest = &rest[end + 1..];
    Ok(line)
}

fn length(message: &Message) -> Result<Option<usize>, Stop> {
    let mut lengths = message.values("content-length");
    let Some(length) = lengths.next() else { return Ok(None) };
    if lengths.next().is_some() {
        return Err(Faulty("two lengths"));
    }
    let is_number = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
    let length = std::str::from_utf8(length).ok().filter(|_| is_number);
    length.and_then(|text| text.parse().ok()).map(Some).ok_or(Faulty("a length is no number"))
}

fn is_chunked(message: &Message) -> Result<bool, Stop> {
    match message.values("transfer-encoding").collect::<Vec<_>>()[..] {
        [] => Ok(false),
        [coding] if coding.eq_ignore_ascii_case(b"chunked") => Ok(true),
        _ => Err(Faulty("another transfer coding")),
    }
}

fn chunks(rest: &mut &[u8]) -> Result<Vec<u8>, Stop> {
    let mut body = Vec::new();
    loop {
        let size = line(rest, true)?;
        let is_number = (1..=8).contains(&size.len()) && size.iter().all(u8::is_ascii_hexdigit);
        let size = std::str::from_utf8(size).ok().filter(|_| is_number);
        let size = size.and_then(|text| usize::from_str_radix(text, 16).ok());
        let size = size.ok_or(Faulty("a chunk's size is no number"))?;
        if size == 0 {
            fields(rest, true)?;
            return Ok(body);
        }
        body.extend(take(rest, size)?);
        if !line(rest, true)?.is_empty() {
            return Err(Faulty("more behind a chunk than its size"));
        }
    }
}

fn take(rest: &mut &[u8], length: usize) -> Result<Vec<u8>, Stop> {
    let (taken, behind) = rest.split_at_checked(length).ok_or(Cut(true))?;
    *rest = behind;
    Ok(taken.to_vec())
}

/// Whether a name can have this byte (RFC 9110, 5.6.2).
pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
