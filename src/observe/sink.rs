//! A buffer for log lines in front of a slow terminal or pipe. Requests never wait for the output.
//!
//! A thread that logs appends its line to the buffer in memory. A separate thread writes the buffer to the
//! output. Lines that do not fit are dropped and counted. The published helper for this task is not used:
//! it reports a stuck output by printing to the same output, and the process could then not end.

use parking_lot::{Condvar, Mutex};
use std::borrow::Cow;
use std::io::{self, ErrorKind, Write};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::time::Instant;

/// The most bytes that wait: about 16,384 lines of 256 bytes.
pub(super) const CAPACITY: usize = 4 << 20;

/// The bytes of memory that a buffer keeps when it is empty again.
const KEPT: usize = 64 << 10;

/// If a non-blocking output is full, it is tried again after this time.
const PAUSE: Duration = Duration::from_millis(10);

/// For this time after lines were dropped an operator is told, even if the output takes lines again.
const TOLD: Duration = Duration::from_secs(300);

/// Why lines are dropped that do not fit into the buffer.
const SLOW: &str = "the output is slower than the log grows";

/// Log lines that were dropped, because the buffer was full or the output refused them.
#[derive(Debug, Default)]
pub(crate) struct DroppedLines {
    total: AtomicU64,
    /// The last cause, and when lines were dropped. No time: the output still refuses lines.
    last: Mutex<(Cow<'static, str>, Option<Instant>)>,
}

impl DroppedLines {
    fn count(&self, lines: u64, cause: Cow<'static, str>, at: Option<Instant>) {
        self.total.fetch_add(lines, Ordering::Relaxed);
        *self.last.lock() = (cause, at);
    }

    /// Their number since the start.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Why lines are dropped, while they are and for a time after.
    pub(crate) fn cause(&self) -> Option<String> {
        let (cause, at) = &*self.last.lock();
        let is_told = self.total() > 0 && at.is_none_or(|at| at.elapsed() < TOLD);
        is_told.then(|| cause.to_string())
    }
}

/// Lines on their way to an output.
#[derive(Debug, Default)]
pub(super) struct Sink {
    state: Mutex<SinkState>,
    /// Signals that a line came, or that the sink closes.
    changed: Condvar,
    /// Signals that all lines are written.
    drained: Condvar,
    pub(super) dropped: Arc<DroppedLines>,
    writer: OnceLock<ThreadId>,
}

#[derive(Debug, Default)]
struct SinkState {
    buffer: Vec<u8>,
    writing: bool,
    closing: bool,
}

impl Sink {
    /// Starts a sink, with a thread that writes the lines to `out`. After lines were dropped, and when the
    /// output takes lines again, this thread calls `report` with the number of lines dropped since the last
    /// report, and the last cause. The lines that `report` logs are kept even if the buffer is full.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(
        out: impl Write + Send + 'static,
        report: impl Fn(u64, &str) + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let sink = Arc::new(Self::default());
        let writer = Arc::clone(&sink);
        thread::Builder::new().name("log".into()).spawn(move || writer.run(out, report))?;
        Ok(sink)
    }

    /// Waits until all lines are written, for at most `time_limit`, and ends the thread.
    pub(super) fn close(&self, time_limit: Duration) {
        let mut state = self.state.lock();
        state.closing = true;
        self.changed.notify_all();
        let waits = |state: &mut SinkState| state.writing || !state.buffer.is_empty();
        // After `time_limit`, nothing can be done for the remaining lines.
        self.drained.wait_while_for(&mut state, waits, time_limit);
    }

    fn run(&self, mut out: impl Write, report: impl Fn(u64, &str)) {
        self.writer.get_or_init(|| thread::current().id());
        let (mut batch, mut reported) = (Vec::new(), 0);
        while self.take(&mut batch) {
            let refused = write_lines(&mut out, &batch);
            batch.clear();
            batch.shrink_to(KEPT);
            // If the output has refused lines, there is no report. The output would refuse the report, too, and each
            // report would cause the next one.
            if let Some((lost, error)) = refused {
                self.dropped.count(lost, error.to_string().into(), None);
                continue;
            }
            let dropped = self.dropped.total();
            if dropped > reported {
                self.dropped.last.lock().1 = Some(Instant::now());
                let cause = self.dropped.last.lock().0.clone();
                report(dropped - reported, &cause);
                reported = dropped;
            }
        }
    }

    /// Waits for lines, and exchanges the empty `batch` for them. False when the sink closes and no line
    /// waits.
    fn take(&self, batch: &mut Vec<u8>) -> bool {
        let mut state = self.state.lock();
        state.writing = false;
        while state.buffer.is_empty() {
            self.drained.notify_all();
            if state.closing {
                return false;
            }
            self.changed.wait(&mut state);
        }
        state.writing = true;
        mem::swap(&mut state.buffer, batch);
        true
    }

    fn is_writer(&self) -> bool {
        self.writer.get() == Some(&thread::current().id())
    }
}

/// Each write must be one whole line.
impl Write for &Sink {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.state.lock();
        if state.buffer.len() + line.len() > CAPACITY && !self.is_writer() {
            self.dropped.count(1, SLOW.into(), Some(Instant::now()));
            return Ok(line.len());
        }
        let idle = state.buffer.is_empty();
        state.buffer.extend_from_slice(line);
        drop(state);
        if idle {
            self.changed.notify_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes whole lines. If the output refuses some, returns their number and its error.
fn write_lines(out: &mut impl Write, mut lines: &[u8]) -> Option<(u64, io::Error)> {
    let mut refused = None;
    while !lines.is_empty() && refused.is_none() {
        match out.write(lines) {
            Ok(0) => refused = Some(ErrorKind::WriteZero.into()),
            Ok(written) => lines = lines.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(PAUSE),
            Err(error) => refused = Some(error),
        }
    }
    let lost = lines.iter().filter(|byte| **byte == b'\n').count();
    // A failed flush loses no line here: the output has taken the lines into its own buffer.
    drop(out.flush());
    refused.map(|error| (u64::try_from(lost).unwrap_or(u64::MAX), error))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// An output that shows the bytes it got, and waits for `go` before it takes them.
    struct Gate {
        got: Sender<Vec<u8>>,
        go: Receiver<io::Result<()>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.got.send(bytes.to_vec()).unwrap();
            self.go.recv().unwrap_or(Ok(()))?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A sink that writes through a gate.
    struct Rig {
        sink: Arc<Sink>,
        lines: Receiver<Vec<u8>>,
        open: SyncSender<io::Result<()>>,
        reports: Receiver<(u64, String)>,
    }

    fn gated() -> Rig {
        let ((got, lines), (open, go)) = (channel(), sync_channel(9));
        let (reporter, reports) = channel();
        let own: Arc<OnceLock<Arc<Sink>>> = Arc::default();
        let into = Arc::clone(&own);
        let report = move |count, cause: &str| {
            if let Some(sink) = into.get() {
                sink.as_ref().write_all(b"report\n").unwrap();
            }
            reporter.send((count, cause.to_owned())).unwrap();
        };
        let sink = Sink::start(Gate { got, go }, report).unwrap();
        own.set(Arc::clone(&sink)).unwrap();
        Rig { sink, lines, open, reports }
    }

    fn dropped(sink: &Sink) -> u64 {
        sink.dropped.total()
    }

    fn log(sink: &Sink, line: &[u8]) {
        let mut writer = sink;
        writer.write_all(line).unwrap();
    }

    #[test]
    fn a_stuck_output_drops_lines_and_says_how_many_once_it_moves() {
        let Rig { sink, lines, open, reports } = gated();
        log(&sink, b"first\n");
        assert_eq!(lines.recv().unwrap(), b"first\n");
        let mut full = vec![b'x'; CAPACITY];
        *full.last_mut().unwrap() = b'\n';
        log(&sink, &full);
        for _ in 0..3 {
            log(&sink, b"too much\n");
        }
        assert_eq!(dropped(&sink), 3);
        open.send(Ok(())).unwrap();
        let rest = lines.recv().unwrap();
        assert_eq!(rest.len(), CAPACITY + b"report\n".len());
        assert!(rest.ends_with(b"x\nreport\n"), "the report is not dropped");
        assert_eq!(reports.recv().unwrap(), (3, SLOW.to_owned()));
        drop(open);
        sink.close(LONG);
        assert_eq!(dropped(&sink), 3);
        assert!(reports.try_recv().is_err());
    }

    #[test]
    fn a_closed_output_loses_lines_and_nothing_else() {
        let Rig { sink, lines, open, reports } = gated();
        for _ in 0..2 {
            open.send(Err(ErrorKind::BrokenPipe.into())).unwrap();
        }
        log(&sink, b"one\ntwo\n");
        lines.recv().unwrap();
        log(&sink, b"three\n");
        lines.recv().unwrap();
        sink.close(LONG);
        assert_eq!(dropped(&sink), 3);
        assert!(reports.try_recv().is_err(), "a report would have been lost too");
    }

    /// The line named no cause, so that a full disk looked like a slow reader.
    #[test]
    fn the_cause_of_lost_lines_is_known_while_they_are_lost_and_told_when_they_can_be() {
        let Rig { sink, lines, open, reports } = gated();
        let error = || io::Error::from(ErrorKind::StorageFull);
        open.send(Err(error())).unwrap();
        log(&sink, b"one\n");
        lines.recv().unwrap();
        open.send(Ok(())).unwrap();
        log(&sink, b"two\n");
        lines.recv().unwrap();
        assert_eq!(reports.recv().unwrap(), (1, error().to_string()));
        assert_eq!(sink.dropped.cause(), Some(error().to_string()), "for a time after");
        *sink.dropped.last.lock().1.as_mut().unwrap() -= TOLD;
        assert_eq!(sink.dropped.cause(), None);
    }

    #[test]
    fn closing_writes_what_waits() {
        let Rig { sink, lines, open, reports: _reports } = gated();
        log(&sink, b"one\n");
        assert_eq!(lines.recv().unwrap(), b"one\n");
        log(&sink, b"two\n");
        log(&sink, b"three\n");
        drop(open);
        sink.close(LONG);
        assert_eq!(lines.try_recv().unwrap(), b"two\nthree\n");
    }

    #[test]
    fn closing_does_not_wait_for_a_stuck_output() {
        let Rig { sink, lines, open: _open, reports: _reports } = gated();
        log(&sink, b"one\n");
        lines.recv().unwrap();
        sink.close(Duration::ZERO);
    }

    #[test]
    fn a_full_non_blocking_output_is_tried_again() {
        let Rig { sink, lines, open, reports: _reports } = gated();
        open.send(Err(ErrorKind::WouldBlock.into())).unwrap();
        open.send(Ok(())).unwrap();
        log(&sink, b"one\n");
        assert_eq!(lines.recv().unwrap(), b"one\n");
        assert_eq!(lines.recv().unwrap(), b"one\n");
        sink.close(LONG);
        assert_eq!(dropped(&sink), 0);
    }
}
