//! Puts the requests of logs into the order of their time.
//!
//! Servers write a line when a request ends, and most of them date it by its begin. So a line may be a minute or
//! more earlier than the line before it. Each log is sorted within [`WINDOW`], and several logs are merged by time. A
//! line that is later than that counts at the time that was reached. The times that come out never step back:
//! otherwise a bucket would refill twice in the same time. The memory is bounded: gigabytes need no more of it than
//! [`MOST_HELD`].

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::mem;

use super::format::Format;
use super::input::LogInput;
use super::reader::{LogReader, ReadError};
use super::record::{LineFault, LogRecord};
use crate::limit::time::Timestamp;

/// A line may be this much earlier than a line before it. In microseconds.
const WINDOW: u64 = 120_000_000;

/// The most bytes of requests that wait for earlier ones. When there are more, the earliest goes on, also within
/// [`WINDOW`].
const MOST_HELD: usize = 256 << 20;

/// Logs, whose requests come in the order of their time.
pub struct SortedLogs {
    /// The logs that are still to be opened, and the time of their first request. The earliest comes first.
    waiting: VecDeque<(Option<Timestamp>, LogInput)>,
    format: Format,
    open: Vec<SortedLog>,
    /// The bytes of all requests that wait.
    held: usize,
    /// The time of the last request.
    reached: Timestamp,
    /// What logs that have ended say of their order, and how much was read of them.
    ended: (LogOrder, u64),
    total: Option<u64>,
}

/// How far logs have been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogProgress {
    /// Bytes that were read, of compressed files as they are stored.
    pub(crate) read: u64,
    /// Bytes of all files. `None` if a pipe is among them.
    pub(crate) total: Option<u64>,
}

/// How far lines are from the order of time, before they are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogOrder {
    /// The lines that are earlier than the line right before them.
    pub(crate) steps_back: u64,
    /// How far a line is behind the latest time of its log at most, in microseconds.
    pub(crate) furthest_back: u64,
    /// The lines that come too late to be sorted, and count at a later time than theirs.
    pub(crate) late: u64,
}

/// A line that shows no request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultyLine {
    /// The file's name.
    pub file: String,
    /// The number of the line in its file, from 1.
    pub number: u64,
    /// What is wrong with the line.
    pub fault: LineFault,
}

/// One log, and its requests that wait for earlier ones.
struct SortedLog {
    reader: LogReader,
    has_ended: bool,
    waiting: BinaryHeap<Reverse<WaitingRecord>>,
    latest: Timestamp,
    previous: Timestamp,
    lines: u64,
    order: LogOrder,
}

/// A request that waits. Of two with the same time, the earlier line comes first.
struct WaitingRecord {
    key: (Timestamp, u64),
    record: Box<LogRecord<'static>>,
}

impl PartialEq for WaitingRecord {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for WaitingRecord {}

impl PartialOrd for WaitingRecord {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for WaitingRecord {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl SortedLogs {
    /// The requests of these inputs. Of each input that can be read twice, the first request is read now: a log of
    /// yesterday is opened, and its requests wait, only when its time has come.
    ///
    /// # Errors
    /// If one of the files is not there or may not be read.
    pub fn open(inputs: &[LogInput], format: &Format) -> Result<Self, ReadError> {
        let mut total = Some(0_u64);
        let mut waiting = Vec::with_capacity(inputs.len());
        for input in inputs {
            let size = input.size();
            let size = size.map_err(|source| ReadError { file: input.name(), lines: 0, source })?;
            total = total.zip(size).map(|(total, size)| total.saturating_add(size));
            let first = match size {
                Some(_) if inputs.len() > 1 => {
                    LogReader::open(input, format.clone())?.first_time()?
                }
                _ => None,
            };
            waiting.push((first, input.clone()));
        }
        waiting.sort_by_key(|(first, _)| *first);
        Ok(Self {
            waiting: waiting.into(),
            format: format.clone(),
            open: Vec::new(),
            held: 0,
            reached: Timestamp::MIN,
            ended: (LogOrder::default(), 0),
            total,
        })
    }

    /// The next request in the order of time, or the next line that shows none. `None` at the end of all logs.
    ///
    /// # Errors
    /// If a file cannot be read to its end. Nothing is read after that.
    pub fn next_request(
        &mut self,
    ) -> Result<Option<Result<Box<LogRecord<'static>>, FaultyLine>>, ReadError> {
        loop {
            for log in &mut self.open {
                if let Some(fault) = log.fill(&mut self.held)? {
                    return Ok(Some(Err(fault)));
                }
            }
            let next = self.open.iter().enumerate();
            let next = next.filter_map(|(place, log)| Some((log.earliest()?, place))).min();
            let is_due = |first: Timestamp| {
                next.is_none_or(|(next, _)| first <= next || first.micros_since(next) <= WINDOW)
            };
            if self.waiting.front().is_some_and(|(first, _)| first.is_none_or(is_due))
                && let Some((_, input)) = self.waiting.pop_front()
            {
                let reader = LogReader::open(&input, self.format.clone())?;
                self.open.push(SortedLog::of(reader));
                continue;
            }
            let Some((_, place)) = next else { return Ok(None) };
            let log = &mut self.open[place];
            let record = log.waiting.pop().map(|Reverse(waiting)| waiting.record);
            if log.has_ended && log.waiting.is_empty() {
                let log = self.open.swap_remove(place);
                self.ended.0.add(log.order);
                self.ended.1 += log.reader.bytes_read();
            }
            let Some(mut record) = record else { continue };
            self.held = self.held.saturating_sub(size(&record));
            // So it is where too many requests had to wait.
            if record.time < self.reached {
                record.time = self.reached;
                self.ended.0.late += 1;
            }
            self.reached = record.time;
            return Ok(Some(Ok(record)));
        }
    }

    /// How far the lines that were read are from the order of time.
    pub(crate) fn order(&self) -> LogOrder {
        let mut order = self.ended.0;
        self.open.iter().for_each(|log| order.add(log.order));
        order
    }

    /// How far the files have been read.
    pub(crate) fn progress(&self) -> LogProgress {
        let open: u64 = self.open.iter().map(|log| log.reader.bytes_read()).sum();
        LogProgress { read: self.ended.1 + open, total: self.total }
    }
}

impl LogOrder {
    fn add(&mut self, other: Self) {
        self.steps_back += other.steps_back;
        self.furthest_back = self.furthest_back.max(other.furthest_back);
        self.late += other.late;
    }
}

impl SortedLog {
    fn of(reader: LogReader) -> Self {
        Self {
            reader,
            has_ended: false,
            waiting: BinaryHeap::new(),
            latest: Timestamp::MIN,
            previous: Timestamp::MIN,
            lines: 0,
            order: LogOrder::default(),
        }
    }

    fn earliest(&self) -> Option<Timestamp> {
        self.waiting.peek().map(|Reverse(waiting)| waiting.key.0)
    }

    /// Reads lines until no later line can be earlier than the earliest request, or until a line shows no request.
    fn fill(&mut self, held: &mut usize) -> Result<Option<FaultyLine>, ReadError> {
        while !self.has_ended {
            if let Some(earliest) = self.earliest()
                && (self.latest.micros_since(earliest) > WINDOW || *held > MOST_HELD)
            {
                break;
            }
            let fault = match self.reader.next_record()? {
                None => {
                    self.has_ended = true;
                    break;
                }
                Some(Ok(record)) => {
                    let mut record = Box::new(record.into_owned());
                    let (time, behind) = (record.time, self.latest.micros_since(record.time));
                    self.order.add(LogOrder {
                        steps_back: u64::from(time < self.previous),
                        furthest_back: behind,
                        late: u64::from(behind > WINDOW),
                    });
                    self.previous = time;
                    self.latest = self.latest.max(time);
                    record.time = time.plus_micros(behind.saturating_sub(WINDOW));
                    let time = record.time;
                    self.lines += 1;
                    *held += size(&record);
                    self.waiting.push(Reverse(WaitingRecord { key: (time, self.lines), record }));
                    continue;
                }
                Some(Err(fault)) => fault,
            };
            let (file, number) = (self.reader.file.clone(), self.reader.line_number);
            return Ok(Some(FaultyLine { file, number, fault }));
        }
        Ok(None)
    }
}

/// About the bytes that a request takes in memory.
fn size(record: &LogRecord<'_>) -> usize {
    mem::size_of::<LogRecord<'_>>() + mem::size_of::<WaitingRecord>() + record.text_length()
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

    /// The seconds and paths in the order in which they come, and what is said of the order of the lines.
    fn sorted(texts: &[String]) -> (Vec<(u64, String)>, LogOrder) {
        let (_folder, inputs) = logs(texts);
        let format = "$msec $remote_addr \"$request\" $status".parse().unwrap();
        let mut logs = SortedLogs::open(&inputs, &format).unwrap();
        let mut all = Vec::new();
        while let Some(record) = logs.next_request().unwrap() {
            let record = record.unwrap();
            all.push((record.time.as_micros() / 1_000_000, record.path.into_owned()));
        }
        assert_eq!(logs.held, 0);
        (all, logs.order())
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
        assert_eq!(order, LogOrder { steps_back: 3, furthest_back: 300_000_000, late: 1 });
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
