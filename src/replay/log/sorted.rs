//! Puts the requests of logs into the order of their time.
//!
//! Servers write a line when a request ends, but most of them write the time at which it began. So the time of a line
//! may be a minute before the time of the line above it. Lines are sorted within [`WINDOW`], and several logs are
//! merged by time. A line that is further back counts at a later time than its own. The times that this module returns
//! never step back: otherwise a bucket would refill twice in the same time. [`MOST_HELD`] bounds the memory, also for
//! gigabytes.

use std::collections::BTreeMap;
use std::mem;

use serde::Serialize;

use super::format::Format;
use super::gaps::LineGaps;
use super::input::LogInput;
use super::reader::{LogReader, ReadError};
use super::record::{LineFault, LogRecord};
use super::told::ToldChange;
use crate::limit::time::Timestamp;

/// The most microseconds by which a line may be earlier than a line before it.
const WINDOW: u64 = 120_000_000;

/// The most bytes of lines that wait for earlier ones. If there are more, the earliest waits no longer, although a line
/// within [`WINDOW`] may be earlier.
const MOST_HELD: usize = 256 << 20;

/// Logs whose requests come in the order of their time.
pub struct SortedLogs {
    /// The logs that have not ended.
    open: Vec<OpenLog>,
    /// The requests that wait for earlier ones, each with about the bytes that it takes. The key is a request's time, and
    /// the numbers of its log and its line.
    waiting: BTreeMap<(Timestamp, usize, u64), (LineContent, usize)>,
    /// The bytes of all requests that wait.
    held: usize,
    /// The time of the last request.
    pub(crate) reached: Timestamp,
    /// How far the lines that were read are from the order of time.
    pub(crate) order: LogOrder,
    /// The numbers that tidegate gave to its lines.
    pub(crate) gaps: LineGaps,
    /// The changes that came before the last request. The caller empties this list.
    pub(crate) changes: Vec<ToldChange>,
}

/// The content of a waiting line.
enum LineContent {
    Request(Box<LogRecord>),
    Change(Box<ToldChange>),
}

/// How far lines are from the order of time, before they are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogOrder {
    /// The lines that are earlier than the line right before them.
    pub(crate) steps_back: u64,
    /// The lines that are too late to be sorted. They count at a later time than their own.
    pub(crate) late: u64,
    /// The longest way back in one log, in milliseconds: from the latest time so far to the time of a line.
    pub(crate) furthest_back_ms: u64,
}

/// A line that shows no request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FaultyLine {
    /// The file's name.
    pub file: String,
    /// The number of the line in its file, from 1.
    pub line: u64,
    /// What is wrong with the line.
    #[serde(rename = "reason")]
    pub fault: LineFault,
}

/// A log that is being read.
struct OpenLog {
    reader: LogReader,
    /// Its number among the logs.
    number: usize,
    /// The latest time of its lines, and the time of its last line.
    latest: Timestamp,
    previous: Timestamp,
}

impl SortedLogs {
    /// The requests of these inputs. Of a log of a later day only the first request waits in memory.
    ///
    /// # Errors
    /// If one of the files is not there or may not be read.
    pub fn open(inputs: &[LogInput], format: &Format) -> Result<Self, ReadError> {
        let open = inputs.iter().enumerate().map(|(number, input)| {
            let reader = LogReader::open(input, format.clone())?;
            Ok(OpenLog { reader, number, latest: Timestamp::MIN, previous: Timestamp::MIN })
        });
        Ok(Self {
            open: open.collect::<Result<_, _>>()?,
            waiting: BTreeMap::new(),
            held: 0,
            reached: Timestamp::MIN,
            order: LogOrder::default(),
            gaps: LineGaps::default(),
            changes: Vec::new(),
        })
    }

    /// The next request in the order of time, or the next line without a request. `None` at the end of all logs.
    ///
    /// # Errors
    /// If a file cannot be read to its end.
    pub fn next_request(&mut self) -> Result<Option<Result<LogRecord, FaultyLine>>, ReadError> {
        loop {
            let earliest = self.waiting.first_key_value().map(|((time, ..), _)| *time);
            let may_be_earlier = |time: Timestamp| {
                earliest.is_none_or(|earliest| time.micros_since(earliest) <= WINDOW)
            };
            // Reads the open log with the lowest time, until its next lines cannot be before `earliest`.
            let least = self.open.iter().enumerate().min_by_key(|(_, log)| log.latest);
            if let Some((index, log)) = least
                && may_be_earlier(log.latest)
                && (self.held <= MOST_HELD || Some(log.latest) < earliest)
            {
                match self.read_line(index)? {
                    Some(faulty) => return Ok(Some(Err(faulty))),
                    None => continue,
                }
            }
            let Some((_, waiting)) = self.waiting.pop_first() else { return Ok(None) };
            let (content, bytes) = waiting;
            self.held -= bytes;
            let mut record = match content {
                LineContent::Request(record) => *record,
                LineContent::Change(change) => {
                    self.changes.push(*change);
                    continue;
                }
            };
            // More than `MOST_HELD` waited, so a later request has come out already.
            self.order.late += u64::from(record.time < self.reached);
            self.reached = self.reached.max(record.time);
            record.time = self.reached;
            return Ok(Some(Ok(record)));
        }
    }

    /// Reads the next line of an open log. A request is added to those that wait. A line without a request is returned.
    fn read_line(&mut self, index: usize) -> Result<Option<FaultyLine>, ReadError> {
        let log = &mut self.open[index];
        let line = log.reader.next_record()?;
        // A line may be numbered, and show no request that can be replayed.
        if matches!(line, Some(Ok(_) | Err(LineFault::NoRequest(_))))
            && let Some((process, n)) = log.reader.process()
        {
            self.gaps.read(process, n);
        }
        let record = match line {
            Some(Ok(record)) => record,
            Some(Err(fault)) => {
                let (file, line) = (log.reader.file.clone(), log.reader.line_number);
                let is_told = matches!(fault, LineFault::NoRequest(_));
                if let Some((time, change)) = log.reader.change().filter(|_| is_told) {
                    let content = LineContent::Change(Box::new(change));
                    self.waiting.insert((time, log.number, line), (content, 0));
                }
                return Ok(Some(FaultyLine { file, line, fault }));
            }
            None => {
                self.open.swap_remove(index);
                return Ok(None);
            }
        };
        let back = log.latest.micros_since(record.time);
        self.order.steps_back += u64::from(record.time < log.previous);
        self.order.late += u64::from(back > WINDOW);
        self.order.furthest_back_ms = self.order.furthest_back_ms.max(back / 1_000);
        log.previous = record.time;
        log.latest = log.latest.max(record.time);
        let time = record.time.plus_micros(back.saturating_sub(WINDOW));
        let record = LogRecord { time, ..record };
        let bytes = mem::size_of::<LogRecord>() + log.reader.line_length();
        self.held += bytes;
        let key = (time, log.number, log.reader.line_number);
        self.waiting.insert(key, (LineContent::Request(Box::new(record)), bytes));
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use proptest::prelude::*;
    use tempfile::{TempDir, tempdir};

    use super::*;

    /// A line of a request at this second, for the path `/NAME`.
    fn line(second: u32, name: &str) -> String {
        format!("{second}.000 192.0.2.1 \"GET /{name} HTTP/1.1\" 200\n")
    }

    fn logs(texts: &[String]) -> (TempDir, Vec<LogInput>) {
        let folder = tempdir().unwrap();
        let inputs = texts.iter().enumerate().map(|(number, text)| {
            let path: PathBuf = folder.path().join(number.to_string());
            fs::write(&path, text).unwrap();
            LogInput::File(path)
        });
        let inputs = inputs.collect();
        (folder, inputs)
    }

    /// The second and the path of each request, in sorted order, and how the lines were ordered before.
    fn sorted(texts: &[String]) -> (Vec<(u64, String)>, LogOrder) {
        let (_folder, inputs) = logs(texts);
        let format = "$msec $remote_addr \"$request\" $status".parse().unwrap();
        let mut logs = SortedLogs::open(&inputs, &format).unwrap();
        let mut all = Vec::new();
        while let Some(record) = logs.next_request().unwrap() {
            let record = record.unwrap();
            all.push((record.time.as_micros() / 1_000_000, record.path));
        }
        assert_eq!(logs.held, 0);
        (all, logs.order)
    }

    fn of(lines: &[(u32, &str)]) -> String {
        lines.iter().map(|(second, name)| line(*second, name)).collect()
    }

    const BEGIN: u32 = 1_700_000_000;

    #[test]
    fn a_log_is_sorted_within_two_minutes_and_later_lines_stay_late() {
        let at = |second| BEGIN + second;
        let text = of(&[
            (at(60), "a"),
            (at(0), "b"),
            (at(60), "c"),
            (at(300), "d"),
            (at(180), "e"),
            (at(400), "f"),
            (at(100), "late"),
            (at(401), "g"),
        ]);
        let (all, order) = sorted(&[text]);
        let all: Vec<_> = all.iter().map(|(second, name)| (*second, name.as_str())).collect();
        let seconds = [0, 60, 60, 180, 280, 300, 400, 401].map(|second| u64::from(at(second)));
        let names = ["/b", "/a", "/c", "/e", "/late", "/d", "/f", "/g"];
        assert_eq!(all, seconds.into_iter().zip(names).collect::<Vec<_>>());
        assert_eq!(order, LogOrder { steps_back: 3, late: 1, furthest_back_ms: 300_000 });
    }

    #[test]
    fn several_logs_come_together_by_time() {
        let at = |second| BEGIN + second;
        let yesterday = of(&[(at(10), "a"), (at(5), "b"), (at(1_000), "f")]);
        let one = of(&[(at(900), "d"), (at(1_010), "g"), (at(1_005), "h")]);
        let other = of(&[(at(890), "c"), (at(950), "e"), (at(5_000), "i")]);
        let expected = ["/b", "/a", "/c", "/d", "/e", "/f", "/h", "/g", "/i"];
        for texts in [[&yesterday, &one, &other], [&other, &one, &yesterday]] {
            let (all, _) = sorted(&texts.map(Clone::clone));
            let names: Vec<_> = all.iter().map(|(_, name)| name.as_str()).collect();
            assert_eq!(names, expected);
        }
    }

    proptest! {
        #[test]
        fn lines_within_the_window_come_in_order_and_none_is_lost(
            ends in prop::collection::vec((0_u32..2_000, 0_u32..=120), 0..200),
            parts in 1_usize..4,
        ) {
            let mut lines: Vec<_> = ends.into_iter().enumerate().collect();
            lines.sort_by_key(|(_, (end, _))| *end);
            let mut texts = vec![String::new(); parts];
            for (number, (end, lasted)) in &lines {
                texts[number % parts] += &line(BEGIN + end - lasted, &number.to_string());
            }
            texts.retain(|text| !text.is_empty());
            let (all, _) = sorted(&texts);
            prop_assert_eq!(all.len(), lines.len());
            prop_assert!(all.is_sorted_by_key(|(second, _)| *second));
        }
    }
}
