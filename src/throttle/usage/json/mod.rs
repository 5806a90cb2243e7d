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
    /// Within a key.
    InKey,
    /// After a backslash in a key.
    KeyEscape,
    /// A key has ended.
    Colon,
    /// A value has ended.
    After,
    /// Within a text that is no key of an object on the paths.
    Text,
    /// After a backslash in such a text.
    Escape,
    /// Within a number, `true`, `false` or `null`.
    Word,
    /// Within an object or a list that does not lie on the paths.
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
                        self.key = self.wanted_key();
                        (ScanState::Colon, ScanStep::Taken)
                    }
                    _ => return ScanStep::Taken,
                }
            }
            ScanState::KeyEscape => {
                keep(&mut self.text, &[byte]);
                (ScanState::InKey, ScanStep::Taken)
            }
            ScanState::Word => match byte {
                b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r' => {
                    if let (Some(number), Some(key)) =
                        (self.kept().and_then(number::tokens), self.end_here())
                        && let Some(found) = self.found.get_mut(key)
                    {
                        *found = Some(number);
                    }
                    (ScanState::After, ScanStep::Again)
                }
                b'"' | b'{' | b'[' | b':' => (ScanState::Lost, ScanStep::Taken),
                _ => {
                    keep(&mut self.text, &[byte]);
                    return ScanStep::Taken;
                }
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
            (ScanState::Value, b'"') => ScanState::Text,
            (ScanState::Value, b'-' | b'0'..=b'9' | b'a'..=b'z')
                if self.open.is_some() || self.listed =>
            {
                self.text.clear();
                return (ScanState::Word, ScanStep::Again);
            }
            (ScanState::Key, b'"') => {
                self.text.clear();
                self.text.push(byte);
                ScanState::InKey
            }
            (ScanState::Key | ScanState::After, b'}') if self.open.is_some() => {
                self.open = self.open.and_then(|key| self.paths.parent(key));
                ScanState::After
            }
            (ScanState::Colon, b':') => ScanState::Value,
            (ScanState::After, b',') if self.open.is_some() => ScanState::Key,
            // Documents may follow each other.
            (ScanState::After, _) if self.open.is_none() && !self.listed => {
                return (ScanState::Value, ScanStep::Again);
            }
            _ => ScanState::Lost,
        };
        (state, ScanStep::Taken)
    }

    /// The present key or number; `None` if it is too long.
    fn kept(&self) -> Option<&[u8]> {
        (self.text.len() < LONGEST).then_some(&self.text)
    }

    /// The key of the paths that the present key is, which has just ended.
    fn wanted_key(&self) -> Option<usize> {
        let (open, quoted) = (self.open?, self.kept()?);
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
}

/// Keeps as much of these bytes as there is room for.
fn keep(text: &mut Vec<u8>, bytes: &[u8]) {
    let room = LONGEST - text.len();
    text.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
}

#[cfg(test)]
mod tests;
