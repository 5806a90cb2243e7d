//! Finds numbers in a body that passes by in pieces: in JSON, or in server-sent events.
//!
//! The lines of an event's `data` are one JSON document (WHATWG HTML, 9.2.6). Other data contains no number. The data
//! `[DONE]` ends the answer of many LLM APIs, and an event of the names [`LAST`] that of others. Nothing follows, and
//! their clients then close the connection at once.

use smallvec::SmallVec;

use super::json::Scanner;

/// Reads numbers out of a body that passes by. The last number of each path counts.
#[derive(Debug)]
pub struct Reader {
    data: Scanner,
    line: Line,
    /// The last byte was a carriage return. A line feed after it does not end another line.
    returned: bool,
    /// The beginning of the line's value, without blanks in front.
    value: SmallVec<[u8; MOST]>,
    /// Whether the event that has begun is the last one.
    is_last: bool,
    is_done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// The line so far is a beginning of this field's name, of this length.
    Begins(&'static [u8], usize),
    /// After [`DATA`].
    Data,
    /// After [`EVENT`].
    Event,
    /// A line of another field, or a comment.
    Other,
    /// The body has no events: it is JSON.
    Document,
}

const DATA: &[u8] = b"data:";
const EVENT: &[u8] = b"event:";

const EMPTY: Line = Line::Begins(DATA, 0);

/// The names of events that end an answer: of Anthropic's messages, and of OpenAI's responses.
const LAST: [&[u8]; 4] =
    [b"message_stop", b"response.completed", b"response.incomplete", b"response.failed"];

/// The most bytes of a value that are compared: enough for such a name as the first field of JSON.
const MOST: usize = 40;

/// The data that ends an answer.
const DONE: &[u8] = b"[DONE]";

/// A stream may begin with this byte order mark.
const MARK: &[u8] = "\u{FEFF}".as_bytes();

impl Reader {
    /// Reads each event's data.
    pub(super) fn of_events(data: Scanner) -> Self {
        let value = SmallVec::new();
        Self { data, line: EMPTY, returned: false, value, is_last: false, is_done: false }
    }

    /// Reads one document after another.
    pub(super) fn of_documents(data: Scanner) -> Self {
        Self { line: Line::Document, ..Self::of_events(data) }
    }

    /// The sum of the last numbers so far. `None` if there are none.
    pub fn found(&self) -> Option<u64> {
        self.data.found()
    }

    /// Whether the body has said that nothing more follows.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Reads the next piece of the body.
    pub fn read(&mut self, piece: &[u8]) {
        if self.line == Line::Document {
            return self.data.read(piece);
        }
        let mut rest = piece;
        while let Some((byte, next)) = rest.split_first() {
            let returned = std::mem::take(&mut self.returned);
            match (*byte, self.line) {
                (b'\n', _) if returned => {}
                (b'\n' | b'\r', _) => {
                    self.returned = *byte == b'\r';
                    self.end_line();
                }
                (_, Line::Begins(_, 0)) if MARK.contains(byte) => {}
                (b'e', Line::Begins(_, 0)) => self.line = Line::Begins(EVENT, 1),
                (_, Line::Begins(name, same)) if name.get(same) == Some(byte) => {
                    self.line = match same + 1 {
                        whole if whole < name.len() => Line::Begins(name, whole),
                        _ if name == EVENT => Line::Event,
                        _ => Line::Data,
                    };
                }
                (_, Line::Begins(..)) => self.line = Line::Other,
                (_, Line::Data | Line::Event | Line::Other | Line::Document) => {
                    let ends = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
                    let (line, next) = rest.split_at(ends.unwrap_or(rest.len()));
                    if self.line != Line::Other {
                        self.append(line);
                    }
                    if self.line == Line::Data {
                        self.data.read(line);
                    }
                    rest = next;
                    continue;
                }
            }
            rest = next;
        }
    }

    /// Keeps the beginning of a line's value.
    fn append(&mut self, piece: &[u8]) {
        let piece = if self.value.is_empty() { piece.trim_ascii_start() } else { piece };
        let room = MOST - self.value.len();
        self.value.extend_from_slice(piece.get(..room).unwrap_or(piece));
    }

    fn end_line(&mut self) {
        match self.line {
            // An empty line ends the event.
            Line::Begins(_, 0) => {
                self.is_done |= std::mem::take(&mut self.is_last);
                self.data.begin();
            }
            Line::Data => {
                self.is_done |= *self.value == *DONE;
                self.is_last |= is_typed_last(&self.value);
                self.data.read(b"\n");
            }
            Line::Event => self.is_last |= LAST.contains(&self.value.trim_ascii_end()),
            Line::Begins(..) | Line::Other | Line::Document => {}
        }
        self.value.clear();
        self.line = EMPTY;
    }
}

/// Whether JSON that begins so has the name of a last event as its first field, `type`. Some servers leave out the
/// event's own name.
fn is_typed_last(value: &[u8]) -> bool {
    let mut text = value.iter().filter(|byte| !byte.is_ascii_whitespace());
    let mut begins = |with: &[u8]| with.iter().all(|byte| text.next() == Some(byte));
    if !begins(b"{\"type\":\"") {
        return false;
    }
    let rest: SmallVec<[u8; MOST]> = text.copied().collect();
    let name = rest.split(|byte| *byte == b'"').next().unwrap_or_default();
    name.len() < rest.len() && LAST.contains(&name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn scan<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Option<u64> {
        let mut events = Reader::of_events(Scanner::new(Arc::new("usage.total".parse().unwrap())));
        pieces.into_iter().for_each(|piece| events.read(piece));
        events.found()
    }

    const ANSWER: &str = "data: {\"choices\":[{\"text\":\"a\"}],\"usage\":null}\n\n\
        data: {\"choices\":[],\"usage\":{\"total\":57}}\n\ndata: [DONE]\n\n";

    #[test]
    fn finds_the_number_in_the_last_data_that_has_it() {
        for (name, text, found) in [
            ("an answer", ANSWER, Some(57)),
            (
                "several",
                "data:{\"usage\":{\"total\":1}}\n\ndata:{\"usage\":{\"total\":2}}\n\n",
                Some(2),
            ),
            ("returns", "data: {\"usage\":{\"total\":1}}\r\rdata: [DONE]\r\r", Some(1)),
            ("both", "event: x\r\ndata: {\"usage\":\r\ndata: {\"total\":1}}\r\n\r\n", Some(1)),
            ("in several lines", "data: {\"usage\":\nid: 1\ndata: {\"total\":1}}\n\n", Some(1)),
            ("cut by an event's end", "data: {\"usage\":\n\ndata: {\"total\":1}}\n\n", None),
            (
                "after a broken event",
                "data: {\"a\":\"\n\ndata: {\"usage\":{\"total\":1}}\n\n",
                Some(1),
            ),
            ("no end", "data: {\"usage\":{\"total\":1}}", Some(1)),
            ("in a comment", ": {\"usage\":{\"total\":1}}\n\n", None),
            ("another field", "dat: {\"usage\":{\"total\":1}}\n\n", None),
            ("a longer field", "datas: {\"usage\":{\"total\":1}}\n\n", None),
            ("no field", "{\"usage\":{\"total\":1}}\n\n", None),
            ("a mark", "\u{FEFF}data: {\"usage\":{\"total\":1}}\n\n", Some(1)),
            ("data alone", "data\ndata:\ndata: {\"usage\":{\"total\":1}}\n\n", Some(1)),
        ] {
            assert_eq!(scan([text.as_bytes()]), found, "{name}");
            assert_eq!(scan(text.as_bytes().chunks(1)), found, "{name}, byte by byte");
        }
    }

    #[test]
    fn an_answer_ends_with_done() {
        for (text, is_done) in [
            (ANSWER, true),
            ("data:[DONE]\n", true),
            ("data:   [DONE]\r\n\r\n", true),
            ("event: done\ndata: [DONE]\n\ndata: {}\n\n", true),
            ("data: [DONE]", false),
            ("data: [DON", false),
            ("data: [DON\ndata: E]\n\n", false),
            ("data: [done]\n\n", false),
            ("data: [DONE]]\n\n", false),
            ("data: \"[DONE]\"\n\n", false),
            ("data: {\"text\":\"[DONE]\"}\n\n", false),
            ("data: x [DONE]\n\n", false),
            (": [DONE]\n\n", false),
            ("event: [DONE]\n\n", false),
            ("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", true),
            ("event:response.completed\r\ndata: {}\r\n\r\n", true),
            ("data: {\"type\": \"response.incomplete\", \"n\": 1}\n\n", true),
            ("data: {\"type\":\"response.failed\"}\n\n", true),
            ("event: message_stop\ndata: {\"type\":\"message_stop\"}\n", false),
            ("event: message_stopped\ndata: {}\n\n", false),
            ("event: message_delta\ndata: {\"text\":\"message_stop\"}\n\n", false),
            ("data: {\"type\":\"message_stop", false),
            ("data: message_stop\n\n", false),
            ("event: response.created\ndata: {\"type\":\"response.created\"}\n\n", false),
            ("", false),
        ] {
            for size in [1, 2, 3, 1_000] {
                let mut events = Reader::of_events(Scanner::new(Arc::new("n".parse().unwrap())));
                text.as_bytes().chunks(size).for_each(|piece| events.read(piece));
                assert_eq!(events.is_done(), is_done, "{text:?} in pieces of {size}");
            }
        }
    }
}
