//! Sets up the process's log: format, filter and output.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tracing::Subscriber;
use tracing::subscriber::SetGlobalDefaultError;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

use super::format::Lines;
use super::sink::{DroppedLines, Sink};
use super::{events, panics};
use crate::settings::filter::{LogFilter, LogFilterError};
use crate::settings::{LogFormat, LogSpec};

/// How long the end of the process waits for a slow terminal or pipe.
const FLUSH: Duration = Duration::from_secs(1);

/// The kind of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terminal {
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
pub(crate) fn init(
    spec: &LogSpec,
    stdout: Terminal,
    rust_log: Option<String>,
) -> Result<LogGuard, LogError> {
    let rust_log = rust_log.filter(|filter| !filter.trim().is_empty());
    let filter = match &rust_log {
        Some(filter) => filter.parse().map_err(LogError::RustLog)?,
        None => spec.level.clone(),
    };
    let default = match stdout {
        Terminal::None => LogFormat::Json,
        Terminal::Plain | Terminal::Colour => LogFormat::Pretty,
    };
    let sink = Sink::start(io::stdout(), events::lines_dropped).map_err(LogError::Thread)?;
    let format = spec.format.unwrap_or(default);
    let colours = stdout == Terminal::Colour && format == LogFormat::Pretty;
    let (subscriber, level) = assemble(format, colours, &filter, Arc::clone(&sink));
    tracing::subscriber::set_global_default(subscriber).map_err(LogError::Global)?;
    panics::log();
    Ok(LogGuard { sink, level: rust_log.is_none().then_some(level) })
}

type FilterHandle = reload::Handle<EnvFilter, Registry>;

/// A subscriber that writes to `writer`, one write for each line.
pub(super) fn assemble<W>(
    format: LogFormat,
    colours: bool,
    filter: &LogFilter,
    writer: W,
) -> (impl Subscriber + Send + Sync + use<W>, FilterHandle)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(filter.to_env_filter());
    let output = tracing_subscriber::fmt::layer()
        .event_format(Lines(format))
        .with_ansi(colours)
        .with_writer(writer)
        // The layer would print to standard error, and panic if standard error is closed.
        .log_internal_errors(false);
    (Registry::default().with(filter).with(output), handle)
}

/// Keeps the log running. The process drops it at its end. The drop writes the lines that still wait, but
/// takes a second at most.
#[derive(Debug)]
pub(crate) struct LogGuard {
    sink: Arc<Sink>,
    /// `None` if the filter came from `RUST_LOG`, which stays in force.
    level: Option<FilterHandle>,
}

impl LogGuard {
    /// The lines that were dropped since the start.
    pub(crate) fn dropped_lines(&self) -> Arc<DroppedLines> {
        Arc::clone(&self.sink.dropped)
    }

    /// Changes the filter from now on, unless the filter came from `RUST_LOG`.
    pub(crate) fn set_level(&self, filter: &LogFilter) {
        if let Some(level) = &self.level {
            // `reload` fails only if the subscriber is gone. Then there is nothing to filter.
            let _ = level.reload(filter.to_env_filter());
        }
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.sink.close(FLUSH);
    }
}

/// Why the log cannot be set up or changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
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
    use super::*;
    use crate::settings::{KeyDisplay, ThrottleLog};

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
