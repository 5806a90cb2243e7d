//! Reads logs record by record.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::container;
use super::format::Format;
pub use super::input::LogInput;
use super::input::{self, LogBytes};
use super::lines::{NextLine, next_line};
use super::record::{LineFault, LogRecord};
use crate::limit::time::Timestamp;

/// The first request of a log is among this many lines.
const FIRST_LINES: usize = 1_000;

/// A log that cannot be read, because a file is missing or corrupt. A single line that cannot be read is a
/// [`LineFault`].
#[derive(Debug, thiserror::Error)]
#[error("cannot read {file}{}", after(*.lines))]
pub struct ReadError {
    /// The file's name.
    pub(crate) file: String,
    /// This many lines of the file were read before.
    pub(crate) lines: u64,
    /// What happened.
    pub(crate) source: io::Error,
}

fn after(lines: u64) -> String {
    if lines == 0 { String::new() } else { format!(" after line {lines}") }
}

/// How far a log has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogProgress {
    /// Bytes that were read, of compressed files as they are stored.
    pub(crate) read: u64,
    /// Bytes of all files. `None` if a pipe is among them.
    pub(crate) total: Option<u64>,
}

/// Reads logs record by record, one file after the other. The memory is bounded: only one line is kept, and lines of
/// more than 1 MiB are skipped.
pub struct LogReader {
    format: Format,
    /// The files that are still to be read.
    inputs: VecDeque<LogInput>,
    current: Option<LogBytes>,
    /// The present line, without its line feed.
    line: Vec<u8>,
    /// The name of the file from which the last line came.
    pub(crate) file: String,
    /// The number of the last line in its file, from 1.
    pub(crate) line_number: u64,
    /// The present line, if it is not UTF-8: here its wrong bytes are replaced.
    mended: String,
    /// The present line without the object that Docker had put around it.
    unwrapped: String,
    read: Arc<AtomicU64>,
    total: Option<u64>,
}

impl LogReader {
    /// A reader of these inputs, in this order.
    ///
    /// # Errors
    /// If one of the files is not there or may not be read.
    pub fn open(inputs: &[LogInput], format: Format) -> Result<Self, ReadError> {
        let mut total = Some(0);
        for input in inputs {
            let size = input.size();
            let size = size.map_err(|source| ReadError { file: input.name(), lines: 0, source })?;
            total = total.zip(size).map(|(total, size): (u64, u64)| total.saturating_add(size));
        }
        Ok(Self {
            format,
            inputs: inputs.iter().cloned().collect(),
            current: None,
            line: Vec::new(),
            file: String::new(),
            line_number: 0,
            mended: String::new(),
            unwrapped: String::new(),
            read: Arc::default(),
            total,
        })
    }

    /// A reader of a stream, which messages call `name`.
    ///
    /// # Errors
    /// If its beginning cannot be read.
    pub fn over(
        name: &str,
        stream: impl io::Read + Send + 'static,
        format: Format,
    ) -> Result<Self, ReadError> {
        let mut reader = Self::open(&[], format)?;
        reader.file = name.to_owned();
        reader.total = None;
        let opened = input::plain(stream, &reader.read);
        reader.current = Some(opened.map_err(|source| reader.error(source))?);
        Ok(reader)
    }

    /// The next line: its record, or why the line is not a record. `None` at the end of the last file.
    ///
    /// # Errors
    /// If a file cannot be read to its end. Nothing is read after that.
    pub fn next_record(&mut self) -> Result<Option<Result<LogRecord<'_>, LineFault>>, ReadError> {
        loop {
            match self.next_line()? {
                Some(NextLine::Line) => break,
                Some(NextLine::TooLong) => {
                    self.line_number += 1;
                    return Ok(Some(Err(LineFault::Broken("it is longer than 1 MiB"))));
                }
                Some(NextLine::End) => self.current = None,
                None => return Ok(None),
            }
        }
        self.line_number += 1;
        let line = match std::str::from_utf8(&self.line) {
            Ok(line) => line,
            Err(_) => {
                self.mended = String::from_utf8_lossy(&self.line).into_owned();
                &self.mended
            }
        };
        Ok(Some(match container::unwrapped(line) {
            Ok(Cow::Borrowed(line)) => self.format.read(line),
            Ok(Cow::Owned(line)) => {
                self.unwrapped = line;
                self.format.read(&self.unwrapped)
            }
            Err(fault) => Err(fault),
        }))
    }

    /// The time of the first request, if one is among the first lines.
    pub(super) fn first_time(&mut self) -> Result<Option<Timestamp>, ReadError> {
        for _ in 0..FIRST_LINES {
            match self.next_record()? {
                Some(Ok(record)) => return Ok(Some(record.time)),
                Some(Err(_)) => {}
                None => break,
            }
        }
        Ok(None)
    }

    /// The next line of the file. `None` if all files have been read.
    fn next_line(&mut self) -> Result<Option<NextLine>, ReadError> {
        if self.current.is_none() {
            let Some(input) = self.inputs.pop_front() else { return Ok(None) };
            self.file = input.name();
            self.line_number = 0;
            let opened = input.open(&self.read).map_err(|source| self.error(source))?;
            self.current = Some(opened);
        }
        let next = self.current.as_mut().map(|source| next_line(source, &mut self.line));
        next.transpose().map_err(|source| self.error(source))
    }

    /// The error for this file. After it nothing more is read.
    fn error(&mut self, source: io::Error) -> ReadError {
        self.current = None;
        self.inputs.clear();
        ReadError { file: self.file.clone(), lines: self.line_number, source }
    }

    /// How far the files have been read.
    pub(crate) fn progress(&self) -> LogProgress {
        LogProgress { read: self.read.load(Ordering::Relaxed), total: self.total }
    }
}
