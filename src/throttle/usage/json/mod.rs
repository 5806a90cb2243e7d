//! Finds one number in JSON that passes by in pieces.
//!
//! The scanner keeps how many objects on the path are open, how deep it is in other values, and the text of
//! the present key or number. Therefore its memory is bounded for any body, and the cuts between pieces make
//! no difference.
//!
//! If the whole body is a list, its elements are read like documents that follow each other: some APIs send the
//! pieces of an answer as one list.

use std::sync::Arc;

use super::number;
use crate::plan::response::JsonPath;

/// A key or a number of this length or longer is not read.
const LONGEST: usize = 4_096;

/// Looks for the number at a path, in one document after another. The last number counts.
#[derive(Debug)]
pub(super) struct Scanner {
    path: Arc<JsonPath>,
    /// The number of open objects on the path.
    level: usize,
    /// The number of other open objects and lists, inside the innermost object on the path.
    aside: u64,
    /// Whether the whole body is a list of documents.
    listed: bool,
    /// Whether the present key is the path's.
    on_path: bool,
    state: ScanState,
    /// The bytes of the key or the number that is being read, at most [`LONGEST`]. A key has its quotes.
    text: Vec<u8>,
    found: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum ScanState {
    /// A value is to begin.
    Value,
    /// A key is to begin, or the object ends.
    Key,
    /// Within a key.
    InKey,
    /// After a backslash in a key.
    KeyEscape,
    /// A key has ended.
    Colon,
    /// A value has ended.
    After,
    /// Within a text that is no key on the path.
    Text,
    /// After a backslash in such a text.
    Escape,
    /// Within a number on the path.
    Number,
    /// Within any other value that is no text.
    Word,
    /// Within an object or a list that does not lie on the path.
    Aside,
    /// This is no JSON.
    Lost,
}

/// Whether the scanner is done with a character.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScanStep {
    Taken,
    /// The character must be looked at again, in another state.
    Again,
}

impl Scanner {
    pub(super) fn new(path: Arc<JsonPath>) -> Self {
        Self {
            path,
            level: 0,
            aside: 0,
            listed: false,
            on_path: false,
            state: ScanState::Value,
            text: Vec::new(),
            found: None,
        }
    }

    /// The last number at the path so far.
    pub(super) fn found(&self) -> Option<u64> {
        self.found
    }

    /// Another document begins, even if the present one is incomplete or broken.
    pub(super) fn begin(&mut self) {
        (self.level, self.aside, self.listed) = (0, 0, false);
        (self.on_path, self.state) = (false, ScanState::Value);
    }

    /// Reads the next piece of the text.
    pub(super) fn read(&mut self, piece: &[u8]) {
        let mut rest = piece;
        while let Some((byte, next)) = rest.split_first() {
            rest = next;
            while self.step(*byte) == ScanStep::Again {}
            // Bytes that cannot change the state are read at once.
            let dull = match self.state {
                ScanState::Text => rest.iter().position(|byte| matches!(byte, b'"' | b'\\')),
                ScanState::InKey => {
                    let end = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'));
                    keep(&mut self.text, rest.get(..end.unwrap_or(rest.len())).unwrap_or_default());
                    end
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

    fn step(&mut self, byte: u8) -> ScanStep {
        let (state, step) = match self.state {
            ScanState::Text => match byte {
                b'\\' => (ScanState::Escape, ScanStep::Taken),
                b'"' => (self.after_value(), ScanStep::Taken),
                _ => return ScanStep::Taken,
            },
            ScanState::Escape => (ScanState::Text, ScanStep::Taken),
            ScanState::InKey => {
                keep(&mut self.text, &[byte]);
                match byte {
                    b'\\' => (ScanState::KeyEscape, ScanStep::Taken),
                    b'"' => {
                        self.on_path = self.is_at_wanted_key();
                        (ScanState::Colon, ScanStep::Taken)
                    }
                    _ => return ScanStep::Taken,
                }
            }
            ScanState::KeyEscape => {
                keep(&mut self.text, &[byte]);
                (ScanState::InKey, ScanStep::Taken)
            }
            ScanState::Number => match byte {
                b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r' => {
                    let number = self.kept().and_then(number::tokens);
                    self.found = number.or(self.found);
                    (ScanState::After, ScanStep::Again)
                }
                _ => {
                    keep(&mut self.text, &[byte]);
                    return ScanStep::Taken;
                }
            },
            ScanState::Word => match byte {
                b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r' => {
                    (ScanState::After, ScanStep::Again)
                }
                b'"' | b'{' | b'[' | b':' => (ScanState::Lost, ScanStep::Taken),
                _ => return ScanStep::Taken,
            },
            ScanState::Aside => match byte {
                b'"' => (ScanState::Text, ScanStep::Taken),
                b'{' | b'[' => {
                    self.aside = self.aside.saturating_add(1);
                    return ScanStep::Taken;
                }
                b'}' | b']' => {
                    self.aside = self.aside.saturating_sub(1);
                    (self.after_value(), ScanStep::Taken)
                }
                _ => return ScanStep::Taken,
            },
            ScanState::Lost => return ScanStep::Taken,
            ScanState::Value | ScanState::Key | ScanState::Colon | ScanState::After => match byte {
                b' ' | b'\t' | b'\n' | b'\r' => return ScanStep::Taken,
                _ => self.between(byte),
            },
        };
        self.state = state;
        step
    }

    /// The meaning of a character between keys and values.
    fn between(&mut self, byte: u8) -> (ScanState, ScanStep) {
        let state = match (self.state, byte) {
            // A text may begin with a byte order mark.
            (ScanState::Value, b'\xEF' | b'\xBB' | b'\xBF') if self.level == 0 => ScanState::Value,
            (ScanState::Value, b'{') if self.leads_on() => {
                self.level += 1;
                ScanState::Key
            }
            (ScanState::Value, b'[') if self.level == 0 && !self.listed => {
                self.listed = true;
                ScanState::Value
            }
            (ScanState::Value | ScanState::After, b']') if self.level == 0 && self.listed => {
                self.listed = false;
                ScanState::After
            }
            (ScanState::After, b',') if self.level == 0 && self.listed => ScanState::Value,
            (ScanState::Value, b'{' | b'[') => {
                self.aside = 1;
                ScanState::Aside
            }
            (ScanState::Value, b'"') => ScanState::Text,
            (ScanState::Value, b'-' | b'0'..=b'9') if self.is_at_end() => {
                self.text.clear();
                return (ScanState::Number, ScanStep::Again);
            }
            (ScanState::Value, b'-' | b'0'..=b'9' | b'a'..=b'z')
                if self.level > 0 || self.listed =>
            {
                ScanState::Word
            }
            (ScanState::Key, b'"') => {
                self.text.clear();
                self.text.push(byte);
                ScanState::InKey
            }
            (ScanState::Key | ScanState::After, b'}') if self.level > 0 => {
                self.level -= 1;
                ScanState::After
            }
            (ScanState::Colon, b':') => ScanState::Value,
            (ScanState::After, b',') if self.level > 0 => ScanState::Key,
            // Documents may follow each other.
            (ScanState::After, _) if self.level == 0 && !self.listed => {
                return (ScanState::Value, ScanStep::Again);
            }
            _ => ScanState::Lost,
        };
        (state, ScanStep::Taken)
    }

    /// The present key or number; `None` where it is too long.
    fn kept(&self) -> Option<&[u8]> {
        (self.text.len() < LONGEST).then_some(&self.text)
    }

    /// Whether the present key, which has just ended, is the one that the path has at this level.
    fn is_at_wanted_key(&self) -> bool {
        let wanted = self.level.checked_sub(1).and_then(|index| self.path.keys().get(index));
        let (Some(wanted), Some(quoted)) = (wanted, self.kept()) else { return false };
        if quoted.contains(&b'\\') {
            return serde_json::from_slice::<String>(quoted).is_ok_and(|key| *key == **wanted);
        }
        quoted.get(1..quoted.len() - 1) == Some(wanted.as_bytes())
    }

    /// Whether an object here lies on the path.
    fn leads_on(&self) -> bool {
        self.level == 0 || self.on_path && self.level < self.path.keys().len()
    }

    /// Whether a number here is the one at the path's end.
    fn is_at_end(&self) -> bool {
        self.on_path && self.level == self.path.keys().len()
    }

    /// The state after a text, an object or a list.
    fn after_value(&self) -> ScanState {
        if self.aside > 0 { ScanState::Aside } else { ScanState::After }
    }
}

/// Keeps as much of these bytes as there is room for.
fn keep(text: &mut Vec<u8>, bytes: &[u8]) {
    let room = LONGEST - text.len();
    text.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
}

#[cfg(test)]
mod tests;
