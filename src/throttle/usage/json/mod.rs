//! Finds numbers in JSON that passes by in pieces.
//!
//! The scanner keeps which object on the paths is open, how deep it is in other values, the text of the present key or
//! number, and the last number of each path. Therefore its memory is bounded for any body, and the cuts between pieces
//! make no difference.
//!
//! If the whole body is a list, its elements are read like documents that follow each other: some APIs send the
//! pieces of an answer as one list.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::number;
use crate::settings::weights::WeightedPaths;

/// A key or a number of this length or longer is not read.
const LONGEST: usize = 4_096;

/// Looks for the numbers at some paths, in one document after another. The last number of each path counts.
#[derive(Debug)]
pub(super) struct Scanner {
    paths: Arc<WeightedPaths>,
    /// The key of the innermost open object on the paths. `None` between documents.
    open: Option<usize>,
    /// The number of other open objects and lists, inside that object.
    aside: u64,
    /// Whether the whole body is a list of documents.
    listed: bool,
    /// The present key, if a path has it.
    key: Option<usize>,
    state: ScanState,
    /// The bytes of the key or the number that is being read, at most [`LONGEST`]. A key has its quotes.
    text: Vec<u8>,
    /// The last number at each key of the paths. Most limits have few keys.
    found: SmallVec<[Option<u64>; 4]>,
}

#[derive(Clone, Copy, Debug)]
enum ScanState {
    /// A value is to begin.
    Value,
    /// A key is to begin, or the object ends.
    Key,
    /// A key has ended.
    Colon,
    /// A value has ended.
    After,
    /// Within a text. It may be a key of an object on the paths.
    Text { is_key: bool },
    /// After a backslash in such a text.
    Escape { is_key: bool },
    /// Within a number, `true`, `false` or `null`.
    Word,
    /// Within an object or a list that does not lie on the paths.
    Aside,
    /// This is no JSON.
    Lost,
}

impl Scanner {
    pub(super) fn new(paths: Arc<WeightedPaths>) -> Self {
        Self {
            open: None,
            aside: 0,
            listed: false,
            key: None,
            state: ScanState::Value,
            text: Vec::new(),
            found: smallvec![None; paths.count()],
            paths,
        }
    }

    /// The sum of the last numbers so far.
    pub(super) fn found(&self) -> Option<u64> {
        self.paths.sum(&self.found)
    }

    /// Another document begins, even if the present one is incomplete or broken.
    pub(super) fn begin(&mut self) {
        (self.open, self.aside, self.listed) = (None, 0, false);
        (self.key, self.state) = (None, ScanState::Value);
    }

    /// Reads the next piece of the text.
    pub(super) fn read(&mut self, piece: &[u8]) {
        let mut rest = piece;
        while let Some((byte, next)) = rest.split_first() {
            rest = next;
            while !self.takes(*byte) {}
            // Bytes that cannot change the state are read at once.
            let dull = match self.state {
                ScanState::Text { is_key } => {
                    let end = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'));
                    if is_key {
                        self.append(rest.get(..end.unwrap_or(rest.len())).unwrap_or_default());
                    }
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

    /// Reads a character. If this returns `false`, the same character must be read again, in another state.
    fn takes(&mut self, byte: u8) -> bool {
        if let ScanState::Text { is_key: true } | ScanState::Escape { is_key: true } = self.state {
            self.append(&[byte]);
        }
        let (state, is_taken) = match self.state {
            ScanState::Text { is_key } => match byte {
                b'\\' => (ScanState::Escape { is_key }, true),
                b'"' if is_key => {
                    self.key = self.wanted_key();
                    (ScanState::Colon, true)
                }
                b'"' => (self.after_value(), true),
                _ => return true,
            },
            ScanState::Escape { is_key } => (ScanState::Text { is_key }, true),
            ScanState::Word => match byte {
                b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r' => {
                    if let (Some(number), Some(key)) =
                        (self.token().and_then(number::tokens), self.end_here())
                        && let Some(found) = self.found.get_mut(key)
                    {
                        *found = Some(number);
                    }
                    (ScanState::After, false)
                }
                b'"' | b'{' | b'[' | b':' => (ScanState::Lost, true),
                _ => {
                    self.append(&[byte]);
                    return true;
                }
            },
            ScanState::Aside => match byte {
                b'"' => (ScanState::Text { is_key: false }, true),
                b'{' | b'[' => {
                    self.aside = self.aside.saturating_add(1);
                    return true;
                }
                b'}' | b']' => {
                    self.aside = self.aside.saturating_sub(1);
                    (self.after_value(), true)
                }
                _ => return true,
            },
            ScanState::Lost => return true,
            ScanState::Value | ScanState::Key | ScanState::Colon | ScanState::After => match byte {
                b' ' | b'\t' | b'\n' | b'\r' => return true,
                _ => self.between(byte),
            },
        };
        self.state = state;
        is_taken
    }

    /// The meaning of a character between keys and values.
    fn between(&mut self, byte: u8) -> (ScanState, bool) {
        let state = match (self.state, byte) {
            // A text may begin with a byte order mark.
            (ScanState::Value, b'\xEF' | b'\xBB' | b'\xBF') if self.open.is_none() => {
                ScanState::Value
            }
            (ScanState::Value, b'{') if self.object_here().is_some() => {
                self.open = self.object_here();
                ScanState::Key
            }
            (ScanState::Value, b'[') if self.open.is_none() && !self.listed => {
                self.listed = true;
                ScanState::Value
            }
            (ScanState::Value | ScanState::After, b']') if self.open.is_none() && self.listed => {
                self.listed = false;
                ScanState::After
            }
            (ScanState::After, b',') if self.open.is_none() && self.listed => ScanState::Value,
            (ScanState::Value, b'{' | b'[') => {
                self.aside = 1;
                ScanState::Aside
            }
            (ScanState::Value, b'"') => ScanState::Text { is_key: false },
            (ScanState::Value, b'-' | b'0'..=b'9' | b'a'..=b'z')
                if self.open.is_some() || self.listed =>
            {
                self.text.clear();
                return (ScanState::Word, false);
            }
            (ScanState::Key, b'"') => {
                self.text.clear();
                self.text.push(byte);
                ScanState::Text { is_key: true }
            }
            (ScanState::Key | ScanState::After, b'}') if self.open.is_some() => {
                self.open = self.open.and_then(|key| self.paths.parent(key));
                ScanState::After
            }
            (ScanState::Colon, b':') => ScanState::Value,
            (ScanState::After, b',') if self.open.is_some() => ScanState::Key,
            // Documents may follow each other.
            (ScanState::After, _) if self.open.is_none() && !self.listed => {
                return (ScanState::Value, false);
            }
            _ => ScanState::Lost,
        };
        (state, true)
    }

    /// The present key or number; `None` if it is too long.
    fn token(&self) -> Option<&[u8]> {
        (self.text.len() < LONGEST).then_some(&self.text)
    }

    /// The key of the paths that the present key is, which has just ended.
    fn wanted_key(&self) -> Option<usize> {
        let (open, quoted) = (self.open?, self.token()?);
        if quoted.contains(&b'\\') {
            let name = serde_json::from_slice::<String>(quoted).ok()?;
            return self.paths.child(open, name.as_bytes());
        }
        self.paths.child(open, quoted.get(1..quoted.len() - 1)?)
    }

    /// The key of an object that begins here, if it lies on a path.
    fn object_here(&self) -> Option<usize> {
        match self.open {
            None => Some(WeightedPaths::DOCUMENT),
            Some(_) => self.key.filter(|key| self.paths.leads_on(*key)),
        }
    }

    /// The key of a number that begins here, if a path ends at it.
    fn end_here(&self) -> Option<usize> {
        self.open.and(self.key).filter(|key| self.paths.is_end(*key))
    }

    /// The state after a text, an object or a list.
    fn after_value(&self) -> ScanState {
        if self.aside > 0 { ScanState::Aside } else { ScanState::After }
    }

    /// Keeps as much of these bytes as there is room for.
    fn append(&mut self, bytes: &[u8]) {
        let room = LONGEST - self.text.len();
        self.text.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }
}

#[cfg(test)]
mod tests;
