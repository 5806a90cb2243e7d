//! Finds one number in JSON that passes by in pieces.
//!
//! The scanner keeps no text. It keeps how many objects on the path are open, how deep it is in other
//! values, and how far the present key agrees with the wanted key. Therefore its memory is the same for any
//! body, and the cuts between pieces make no difference.

use std::sync::Arc;

use super::number::Number;
use crate::plan::response::JsonPath;

/// Looks for the number at a path, in one document after another. The last number counts.
#[derive(Debug)]
pub(super) struct Scanner {
    path: Arc<JsonPath>,
    /// The number of open objects on the path.
    level: usize,
    /// The number of other open objects and lists, inside the innermost object on the path.
    aside: u64,
    /// Whether the present key is the path's.
    on_path: bool,
    state: ScanState,
    found: Option<u64>,
}

#[derive(Debug)]
enum ScanState {
    /// A value is to begin.
    Value,
    /// A key is to begin, or the object ends.
    Key,
    /// Within a key.
    InKey(KeyMatch),
    /// A key has ended.
    Colon,
    /// A value has ended.
    After,
    /// Within a text that is no key on the path.
    Text { escaped: bool },
    /// Within a number on the path.
    Number(Number),
    /// Within any other value that is no text.
    Word,
    /// Within an object or a list that does not lie on the path.
    Aside,
    /// This is no JSON.
    Lost,
}

/// Whether the scanner is done with a character.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Taken,
    /// The character must be looked at again, in another state.
    Again,
}

impl Scanner {
    pub(super) fn new(path: Arc<JsonPath>) -> Self {
        Self { path, level: 0, aside: 0, on_path: false, state: ScanState::Value, found: None }
    }

    /// The last number at the path so far.
    pub(super) fn found(&self) -> Option<u64> {
        self.found
    }

    /// Another document begins, even if the present one is incomplete or broken.
    pub(super) fn begin(&mut self) {
        (self.level, self.aside, self.on_path, self.state) = (0, 0, false, ScanState::Value);
    }

    /// Reads the next piece of the text.
    pub(super) fn read(&mut self, piece: &[u8]) {
        let mut rest = piece;
        while let Some((byte, behind)) = rest.split_first() {
            rest = behind;
            while self.step(*byte) == Step::Again {}
            // Bytes that cannot change the state are skipped at once.
            let dull = match self.state {
                ScanState::Text { escaped: false } => {
                    rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))
                }
                ScanState::Aside => {
                    rest.iter().position(|byte| matches!(byte, b'"' | b'{' | b'[' | b'}' | b']'))
                }
                ScanState::Lost => return,
                _ => Some(0),
            };
            rest = rest.get(dull.unwrap_or(rest.len())..).unwrap_or_default();
        }
    }

    fn step(&mut self, byte: u8) -> Step {
        let (state, step) = match &mut self.state {
            ScanState::InKey(key) => {
                // Keys are read only within objects on the path. There are at most as many of these as the
                // path has keys.
                let place = self.level.saturating_sub(1);
                let wanted = self.path.keys().get(place).map_or("", |key| key);
                match key.push(byte, wanted.as_bytes()) {
                    Some(same) => {
                        self.on_path = same;
                        (ScanState::Colon, Step::Taken)
                    }
                    None => return Step::Taken,
                }
            }
            ScanState::Text { escaped } => match byte {
                _ if std::mem::take(escaped) => return Step::Taken,
                b'\\' => {
                    *escaped = true;
                    return Step::Taken;
                }
                b'"' => (self.behind(), Step::Taken),
                _ => return Step::Taken,
            },
            ScanState::Number(number) => match byte {
                b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r' => {
                    self.found = number.value().or(self.found);
                    (ScanState::After, Step::Again)
                }
                _ => {
                    number.push(byte);
                    return Step::Taken;
                }
            },
            ScanState::Word => match byte {
                b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r' => {
                    (ScanState::After, Step::Again)
                }
                b'"' | b'{' | b'[' | b':' => (ScanState::Lost, Step::Taken),
                _ => return Step::Taken,
            },
            ScanState::Aside => match byte {
                b'"' => (ScanState::Text { escaped: false }, Step::Taken),
                b'{' | b'[' => {
                    self.aside = self.aside.saturating_add(1);
                    return Step::Taken;
                }
                b'}' | b']' => {
                    self.aside = self.aside.saturating_sub(1);
                    (self.behind(), Step::Taken)
                }
                _ => return Step::Taken,
            },
            ScanState::Lost => return Step::Taken,
            ScanState::Value | ScanState::Key | ScanState::Colon | ScanState::After => match byte {
                b' ' | b'\t' | b'\n' | b'\r' => return Step::Taken,
                _ => self.between(byte),
            },
        };
        self.state = state;
        step
    }

    /// The meaning of a character between keys and values.
    fn between(&mut self, byte: u8) -> (ScanState, Step) {
        let state = match (&self.state, byte) {
            // A byte order mark, which a text may begin with.
            (ScanState::Value, b'\xEF' | b'\xBB' | b'\xBF') if self.level == 0 => ScanState::Value,
            (ScanState::Value, b'{') if self.leads_on() => {
                self.level += 1;
                ScanState::Key
            }
            (ScanState::Value, b'{' | b'[') => {
                self.aside = 1;
                ScanState::Aside
            }
            (ScanState::Value, b'"') => ScanState::Text { escaped: false },
            (ScanState::Value, b'-' | b'0'..=b'9') if self.is_at_end() => {
                return (ScanState::Number(Number::default()), Step::Again);
            }
            (ScanState::Value, b'-' | b'0'..=b'9' | b'a'..=b'z') if self.level > 0 => {
                ScanState::Word
            }
            (ScanState::Key, b'"') => ScanState::InKey(KeyMatch::default()),
            (ScanState::Key | ScanState::After, b'}') if self.level > 0 => {
                self.level -= 1;
                ScanState::After
            }
            (ScanState::Colon, b':') => ScanState::Value,
            (ScanState::After, b',') if self.level > 0 => ScanState::Key,
            // Documents may follow each other.
            (ScanState::After, _) if self.level == 0 => return (ScanState::Value, Step::Again),
            _ => ScanState::Lost,
        };
        (state, Step::Taken)
    }

    /// Whether an object here lies on the path.
    fn leads_on(&self) -> bool {
        self.level == 0 || self.on_path && self.level < self.path.keys().len()
    }

    /// Whether a number here is the one at the path's end.
    fn is_at_end(&self) -> bool {
        self.on_path && self.level == self.path.keys().len()
    }

    /// The state behind a text, an object or a list.
    fn behind(&self) -> ScanState {
        if self.aside > 0 { ScanState::Aside } else { ScanState::After }
    }
}

/// How far the present key agrees with the wanted key.
#[derive(Debug, Default)]
struct KeyMatch {
    /// This many bytes agree.
    at: usize,
    /// A byte was different.
    differs: bool,
    escape: Escape,
    /// The first half of a character that is written as a pair of UTF-16 codes.
    high: Option<u32>,
}

#[derive(Debug, Default)]
enum Escape {
    #[default]
    None,
    Begun,
    /// Within `\uXXXX`: the digits so far, and their value.
    Code {
        digits: u8,
        code: u32,
    },
}

impl KeyMatch {
    /// Reads the next byte of the key as written. At the closing quote, returns whether the key is
    /// `wanted`.
    fn push(&mut self, byte: u8, wanted: &[u8]) -> Option<bool> {
        match (&self.escape, byte) {
            (Escape::None, b'"') => {
                return Some(!self.differs && self.high.is_none() && self.at == wanted.len());
            }
            (Escape::None, b'\\') => self.escape = Escape::Begun,
            (Escape::None, _) => self.compare(&[byte], wanted),
            (Escape::Begun, b'u') => self.escape = Escape::Code { digits: 0, code: 0 },
            (Escape::Begun, _) => {
                self.escape = Escape::None;
                match byte {
                    b'"' | b'\\' | b'/' => self.compare(&[byte], wanted),
                    b'b' => self.compare(&[8], wanted),
                    b'f' => self.compare(&[12], wanted),
                    b'n' => self.compare(b"\n", wanted),
                    b'r' => self.compare(b"\r", wanted),
                    b't' => self.compare(b"\t", wanted),
                    _ => self.differs = true,
                }
            }
            (Escape::Code { digits, code }, _) => {
                let digit = char::from(byte).to_digit(16);
                self.differs |= digit.is_none();
                let code = code * 16 + digit.unwrap_or_default();
                if *digits < 3 {
                    self.escape = Escape::Code { digits: digits + 1, code };
                } else {
                    self.escape = Escape::None;
                    self.character(code, wanted);
                }
            }
        }
        None
    }

    /// Compares a character that is written by its code in UTF-16, or keeps the first half of it.
    fn character(&mut self, code: u32, wanted: &[u8]) {
        let whole = match (self.high.take(), code) {
            (None, 0xD800..=0xDBFF) => {
                self.high = Some(code);
                return;
            }
            (Some(high), 0xDC00..=0xDFFF) => {
                char::from_u32(0x1_0000 + (high - 0xD800) * 0x400 + (code - 0xDC00))
            }
            (None, _) => char::from_u32(code),
            (Some(_), _) => None,
        };
        match whole {
            Some(whole) => self.compare(whole.encode_utf8(&mut [0; 4]).as_bytes(), wanted),
            None => self.differs = true,
        }
    }

    fn compare(&mut self, bytes: &[u8], wanted: &[u8]) {
        let end = self.at + bytes.len();
        // Behind the first half of a character only the second half may stand.
        if self.differs || self.high.is_some() || wanted.get(self.at..end) != Some(bytes) {
            self.differs = true;
        } else {
            self.at = end;
        }
    }
}

#[cfg(test)]
mod tests;
