//! Reads a log record by record.

use std::io;

use super::container;
use super::format::Format;
pub use super::input::LogInput;
use super::input::{self, LogBytes};
use super::lines::{NextLine, next_line};
use super::record::{LineFault, LogRecord};
use super::told::ToldChange;
use crate::limit::time::Timestamp;

/// A log that cannot be read, because a file is missing or corrupt. A single line that cannot be read is a
/// [`LineFault`].
#[derive(Debug, thiserror::Error)]
#[error("cannot read {file}{}", after(*.lines))]
pub struct ReadError {
    /// The file's name.
    pub(crate) file: String,
    /// The number of lines that were read before.
    pub(crate) lines: u64,
    /// What happened.
    pub(crate) source: io::Error,
}

fn after(lines: u64) -> String {
    if lines == 0 { String::new() } else { format!(" after line {lines}") }
}

/// Reads a log record by record. The memory is bounded: only one line is kept, and lines of over 1 MiB are skipped.
pub struct LogReader {
    format: Format,
    source: LogBytes,
    /// The present line, without its line feed.
    line: Vec<u8>,
    /// The file's name.
    pub(crate) file: String,
    /// The number of the last line, from 1.
    pub(crate) line_number: u64,
}

impl LogReader {
    /// A reader of this input.
    ///
    /// # Errors
    /// If its beginning cannot be read.
    pub fn open(input: &LogInput, format: Format) -> Result<Self, ReadError> {
        Self::new(input.name(), input.open(), format)
    }

    /// A reader of a stream, which messages call `name`.
    ///
    /// # Errors
    /// If its beginning cannot be read.
    pub fn over(
        name: &str,
        stream: impl io::Read + 'static,
        format: Format,
    ) -> Result<Self, ReadError> {
        Self::new(name.to_owned(), input::plain(stream), format)
    }

    fn new(file: String, source: io::Result<LogBytes>, format: Format) -> Result<Self, ReadError> {
        let source = match source {
            Ok(source) => source,
            Err(source) => return Err(ReadError { file, lines: 0, source }),
        };
        Ok(Self { format, source, line: Vec::new(), file, line_number: 0 })
    }

    /// The next line: its record, or why the line is not a record. `None` at the end.
    ///
    /// # Errors
    /// If the log cannot be read to its end.
    pub fn next_record(&mut self) -> Result<Option<Result<LogRecord, LineFault>>, ReadError> {
        let next = next_line(&mut self.source, &mut self.line).map_err(|source| ReadError {
            file: self.file.clone(),
            lines: self.line_number,
            source,
        })?;
        if next == NextLine::End {
            return Ok(None);
        }
        self.line_number += 1;
        if next == NextLine::TooLong {
            return Ok(Some(Err(LineFault::Broken("it is longer than 1 MiB"))));
        }
        // Bytes that are no UTF-8 are replaced.
        let line = String::from_utf8_lossy(&self.line);
        Ok(Some(container::unwrapped(&line).and_then(|line| self.format.read(&line))))
    }

    /// The process that wrote the present line, and the number that it gave to it, if it is an access line of tidegate.
    pub(super) fn process(&self) -> Option<(&str, u64)> {
        // In a JSON string, the quotes have backslashes before them.
        let (_, rest) = std::str::from_utf8(&self.line).ok()?.split_once(r#""process":""#)?;
        let (process, rest) = rest.split_once(r#"","n":"#)?;
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        Some((process, rest.get(..end)?.parse().ok()?))
    }

    /// If the present line is a change that tidegate logged: its time, and the change.
    pub(super) fn change(&self) -> Option<(Timestamp, ToldChange)> {
        let line = String::from_utf8_lossy(&self.line);
        ToldChange::read(&container::unwrapped(&line).ok()?)
    }

    /// The bytes of the present line.
    pub(super) fn line_length(&self) -> usize {
        self.line.len()
    }
}
