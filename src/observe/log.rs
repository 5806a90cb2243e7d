//! Sets up the process's log: format, filter and output.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tracing::Subscriber;
use tracing::subscriber::SetGlobalDefaultError;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::time::SystemTime;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

use super::events;
use super::format::Lines;
use super::sink::Sink;
use crate::plan::filter::{LogFilter, LogFilterError};
use crate::plan::{LogFormat, LogSpec};

/// How long the end of the process waits for a slow terminal or pipe.
const FLUSH: Duration = Duration::from_secs(1);

/// The kind of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    /// No terminal: a file or a pipe.
    None,
    /// A terminal that is to show no colours.
    Plain,
    /// A terminal with colours.
    Colour,
}

/// Sets up the process's log, once. Lines go to standard output. A thread that logs never waits: if the
/// output is too slow, lines are dropped and counted.
///
/// `rust_log` is the environment's `RUST_LOG`. Unless empty, it replaces `spec.level`, also after a reload.
///
/// # Errors
/// If `rust_log` is not a filter, the writing thread cannot be started, or the log is already set up.
pub fn init(
    spec: &LogSpec,
    stdout: Terminal,
    rust_log: Option<String>,
) -> Result<LogGuard, LogError> {
    let rust_log = rust_log.filter(|filter| !filter.trim().is_empty());
    let (filter, source) = match rust_log {
        Some(filter) => (filter.parse().map_err(LogError::RustLog)?, LevelSource::Environment),
        None => (spec.level.clone(), LevelSource::File),
    };
    let default = match stdout {
        Terminal::None => LogFormat::Json,
        Terminal::Plain | Terminal::Colour => LogFormat::Pretty,
    };
    let sink = Sink::start(io::stdout(), events::lines_dropped).map_err(LogError::Thread)?;
    let lines = Lines { format: spec.format.unwrap_or(default), timer: SystemTime };
    let colours = stdout == Terminal::Colour && spec.format != Some(LogFormat::Json);
    let (subscriber, level) = assemble(lines, colours, &filter, Arc::clone(&sink));
    tracing::subscriber::set_global_default(subscriber).map_err(LogError::Global)?;
    Ok(LogGuard { sink, level, source })
}

/// A subscriber that formats as the process's log does, without colours, and writes to `writer`,
/// one write for each line.
pub fn subscriber<W>(
    format: LogFormat,
    filter: &LogFilter,
    writer: W,
) -> (impl Subscriber + Send + Sync, LevelHandle)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    assemble(Lines { format, timer: SystemTime }, false, filter, writer)
}

fn assemble<W>(
    lines: Lines<SystemTime>,
    colours: bool,
    filter: &LogFilter,
    writer: W,
) -> (impl Subscriber + Send + Sync + use<W>, LevelHandle)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(filter.to_env_filter());
    let output = tracing_subscriber::fmt::layer()
        .event_format(lines)
        .with_ansi(colours)
        .with_writer(writer)
        // The layer would print to standard error, and panic where standard error is closed.
        .log_internal_errors(false);
    (Registry::default().with(filter).with(output), LevelHandle(handle))
}

/// Keeps the log running. To be dropped at the end of the process: the drop writes the lines that still
/// wait, for a second at most.
#[derive(Debug)]
pub struct LogGuard {
    sink: Arc<Sink>,
    level: LevelHandle,
    source: LevelSource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LevelSource {
    Environment,
    File,
}

impl LogGuard {
    /// Lines that were dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.sink.dropped()
    }

    /// The same count, for the metrics.
    pub(crate) fn dropped_lines(&self) -> DroppedLines {
        DroppedLines(Arc::clone(&self.sink))
    }

    /// Changes the filter from now on, unless the filter came from `RUST_LOG`.
    pub(crate) fn set_level(&self, filter: &LogFilter) {
        if self.source == LevelSource::File {
            self.level.set(filter);
        }
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.sink.close(FLUSH);
    }
}

/// Counts the log lines that were dropped.
#[derive(Clone, Debug)]
pub struct DroppedLines(Arc<Sink>);

impl DroppedLines {
    /// The number of dropped lines since the start.
    pub fn count(&self) -> u64 {
        self.0.dropped()
    }
}

/// Changes a subscriber's filter.
#[derive(Debug)]
pub struct LevelHandle(reload::Handle<EnvFilter, Registry>);

impl LevelHandle {
    /// Uses this filter from now on.
    pub fn set(&self, filter: &LogFilter) {
        // `reload` fails only if the subscriber is gone. Then there is nothing to filter.
        let _ = self.0.reload(filter.to_env_filter());
    }
}

/// Why the log cannot be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The environment's filter is wrong.
    #[error("the environment variable RUST_LOG is wrong")]
    RustLog(#[source] LogFilterError),
    /// The thread that writes the log cannot be started.
    #[error("cannot start the thread that writes the log")]
    Thread(#[source] io::Error),
    /// The log was set up before.
    #[error("the log is set up twice")]
    Global(#[source] SetGlobalDefaultError),
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use crate::plan::{KeyDisplay, ThrottleLog};

    #[test]
    fn the_level_changes_while_it_runs() {
        let out: Arc<Sink> = Arc::default();
        let (subscriber, level) = subscriber(LogFormat::Json, &"warn".parse().unwrap(), out);
        tracing::subscriber::with_default(subscriber, || {
            assert!(!tracing::enabled!(tracing::Level::INFO));
            level.set(&"info".parse().unwrap());
            assert!(tracing::enabled!(tracing::Level::INFO));
        });
    }

    #[test]
    fn lines_carry_the_time() {
        let lines = testing::lines(|| tracing::info!("now"));
        let time = lines[0]["timestamp"].as_str().unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    }

    #[test]
    fn a_wrong_filter_of_the_environment_stops_the_start() {
        let spec = LogSpec {
            format: None,
            level: LogFilter::default(),
            access: false,
            throttle: ThrottleLog::Summary,
            summary_interval: Duration::from_secs(10),
            keys: KeyDisplay::Hashed,
        };
        let error = init(&spec, Terminal::None, Some("silent".into())).err();
        assert!(matches!(error, Some(LogError::RustLog(_))), "{error:?}");
    }
}
