//! The process's log: its format, its filter, its way to standard output.

use std::fmt;
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
use crate::plan::{LogFormat, LogSpec};

/// How long the end of the process waits for a slow terminal or pipe.
const FLUSH: Duration = Duration::from_secs(1);

/// Sets up the process's log, once. Lines go to standard output and never make the thread that
/// logs them wait: where the output is too slow they are dropped and counted.
///
/// `rust_log` is the environment's `RUST_LOG`; unless empty it wins over `spec.level`, for good.
///
/// # Errors
/// Where the filter is wrong, or the log is already set up.
pub fn init(
    spec: &LogSpec,
    stdout_is_terminal: bool,
    rust_log: Option<String>,
) -> Result<LogGuard, LogError> {
    let rust_log = rust_log.filter(|filter| !filter.trim().is_empty());
    let (filter, source) = match &rust_log {
        Some(filter) => (filter, LevelSource::Environment),
        None => (&spec.level, LevelSource::File),
    };
    let default = if stdout_is_terminal { LogFormat::Pretty } else { LogFormat::Json };
    check(filter).map_err(|error| match source {
        LevelSource::Environment => LogError::RustLog(error),
        LevelSource::File => LogError::Level(error),
    })?;
    let sink = Sink::start(io::stdout(), events::lines_dropped).map_err(LogError::Thread)?;
    let lines = Lines { format: spec.format.unwrap_or(default), timer: SystemTime };
    let colours = stdout_is_terminal && spec.format != Some(LogFormat::Json);
    let (subscriber, level) = assemble(lines, colours, filter, Arc::clone(&sink))?;
    tracing::subscriber::set_global_default(subscriber).map_err(LogError::Global)?;
    Ok(LogGuard { sink, level, source })
}

/// A subscriber that formats as the process's log does, without colours, and writes to `writer`,
/// one write for each line.
///
/// # Errors
/// Where the filter is wrong.
pub fn subscriber<W>(
    format: LogFormat,
    filter: &str,
    writer: W,
) -> Result<(impl Subscriber + Send + Sync, LevelHandle), LogError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    assemble(Lines { format, timer: SystemTime }, false, filter, writer)
}

fn assemble<W>(
    lines: Lines<SystemTime>,
    colours: bool,
    filter: &str,
    writer: W,
) -> Result<(impl Subscriber + Send + Sync + use<W>, LevelHandle), LogError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(parse(filter)?);
    let output = tracing_subscriber::fmt::layer()
        .event_format(lines)
        .with_ansi(colours)
        .with_writer(writer)
        // It would print to standard error, and panic where that is closed.
        .log_internal_errors(false);
    Ok((Registry::default().with(filter).with(output), LevelHandle(handle)))
}

/// Keeps the log going; dropped at the end of the process, it writes out what still waits, for a
/// second at most.
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

    /// The same count, for whoever reports it.
    pub fn dropped_lines(&self) -> DroppedLines {
        DroppedLines(Arc::clone(&self.sink))
    }

    /// Changes the filter from now on, unless `RUST_LOG` holds.
    ///
    /// # Errors
    /// Where the filter is wrong: the old one stays.
    pub fn set_level(&self, filter: &str) -> Result<(), LogError> {
        match self.source {
            LevelSource::Environment => check(filter).map_err(LogError::Level),
            LevelSource::File => self.level.set(filter),
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
    /// Since the start.
    pub fn count(&self) -> u64 {
        self.0.dropped()
    }
}

/// Changes a subscriber's filter.
#[derive(Debug)]
pub struct LevelHandle(reload::Handle<EnvFilter, Registry>);

impl LevelHandle {
    /// Filters by this from now on.
    ///
    /// # Errors
    /// Where the filter is wrong: the old one stays.
    pub fn set(&self, filter: &str) -> Result<(), LogError> {
        self.0.reload(parse(filter)?).map_err(LogError::Gone)
    }
}

/// Why the log cannot be set up or changed.
#[derive(Debug)]
pub enum LogError {
    /// The environment's filter is wrong.
    RustLog(FilterError),
    /// The file's filter is wrong.
    Level(FilterError),
    /// The thread that writes the log cannot be started.
    Thread(io::Error),
    /// The log was set up before.
    Global(SetGlobalDefaultError),
    /// The subscriber is no more.
    Gone(reload::Error),
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RustLog(_) => "the environment variable RUST_LOG is wrong",
            Self::Level(_) => "log.level is wrong",
            Self::Thread(_) => "cannot start the thread that writes the log",
            Self::Global(_) => "the log is set up twice",
            Self::Gone(_) => "the log has ended",
        })
    }
}

impl std::error::Error for LogError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::RustLog(error) | Self::Level(error) => Some(error),
            Self::Thread(error) => Some(error),
            Self::Global(error) => Some(error),
            Self::Gone(error) => Some(error),
        }
    }
}

/// The part of a filter that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    part: String,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let levels = LEVELS.join(", ");
        write!(f, "`{}` is no log filter: write a level ({levels})", self.part)?;
        f.write_str(", or TARGET=LEVEL such as `info,tidegate::throttle=off`")
    }
}

impl std::error::Error for FilterError {}

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

fn parse(filter: &str) -> Result<EnvFilter, LogError> {
    check(filter).map_err(LogError::Level)?;
    let wrong = |_| LogError::Level(FilterError { part: filter.to_owned() });
    EnvFilter::builder().parse(filter).map_err(wrong)
}

/// Looks at each part of a filter by itself, so that the error can name it.
///
/// # Errors
/// Names the first part that is wrong.
pub fn check(filter: &str) -> Result<(), FilterError> {
    let wrong = |part: &str| Err(FilterError { part: part.to_owned() });
    if filter.trim().is_empty() {
        return wrong(filter);
    }
    filter.split(',').try_for_each(|part| {
        let readable = EnvFilter::builder().parse(part).is_ok();
        if readable && !part.trim().is_empty() && !is_misspelt_level(part) {
            Ok(())
        } else {
            wrong(part)
        }
    })
}

/// A word by itself is read as a target, with all of its lines, and everything else is silent:
/// not what somebody wants who wrote `warning`. Only our own targets may stand alone.
fn is_misspelt_level(part: &str) -> bool {
    let word = part.trim();
    let level = LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    let number = word.len() == 1 && word.bytes().all(|digit| (b'0'..=b'5').contains(&digit));
    let target = word.contains(['=', '[']) || word.starts_with(env!("CARGO_PKG_NAME"));
    !(level || number || target)
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use crate::plan::{KeyDisplay, ThrottleLog};

    #[test]
    fn a_filter_is_a_level_or_says_what_to_write() {
        let good = ["info", "WARN", "off", "3", "tidegate", "info,tidegate::throttle=off"];
        for filter in good {
            assert_eq!(check(filter), Ok(()), "{filter}");
        }
        let bad = [
            ("", ""),
            ("warning", "warning"),
            ("info,debgu", "debgu"),
            ("info,", ""),
            ("tidegate=loud", "tidegate=loud"),
            ("9", "9"),
        ];
        for (filter, part) in bad {
            assert_eq!(check(filter), Err(FilterError { part: part.into() }), "{filter}");
        }
        let error = check("warning").unwrap_err().to_string();
        assert!(error.contains("`warning`") && error.contains("off, error, warn, info"), "{error}");
    }

    #[test]
    fn the_level_changes_while_it_runs_and_a_wrong_one_changes_nothing() {
        let out: Arc<Sink> = Arc::default();
        let (subscriber, level) = subscriber(LogFormat::Json, "warn", out).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            assert!(!tracing::enabled!(tracing::Level::INFO));
            level.set("info").unwrap();
            assert!(tracing::enabled!(tracing::Level::INFO));
            assert!(matches!(level.set("loud"), Err(LogError::Level(_))));
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
    fn a_wrong_filter_is_told_by_the_place_where_it_stands() {
        let spec = LogSpec {
            format: None,
            level: "loud".into(),
            access: false,
            throttle: ThrottleLog::Summary,
            summary_interval: Duration::from_secs(10),
            keys: KeyDisplay::Hashed,
        };
        let error = |rust_log: Option<&str>| init(&spec, false, rust_log.map(Into::into)).err();
        assert!(matches!(error(None), Some(LogError::Level(_))));
        assert!(matches!(error(Some(" ")), Some(LogError::Level(_))), "as if it were unset");
        assert!(matches!(error(Some("silent")), Some(LogError::RustLog(_))), "it wins");
    }
}
