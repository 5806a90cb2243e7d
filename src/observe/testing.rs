//! Captures log lines in tests.

use std::io;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::log;
use crate::settings::LogFormat;
use crate::settings::filter::LogFilter;

#[derive(Default)]
struct Captured(Mutex<Vec<u8>>);

impl io::Write for &Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The text that `run` logs in this format, at the level `info`.
pub(crate) fn text(format: LogFormat, colours: bool, run: impl FnOnce()) -> String {
    let captured = Arc::new(Captured::default());
    let filter = LogFilter::default();
    let (subscriber, _) = log::assemble(format, colours, &filter, Arc::clone(&captured));
    tracing::subscriber::with_default(subscriber, run);
    let bytes = captured.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

/// The lines that `run` logs as JSON.
pub(crate) fn lines(run: impl FnOnce()) -> Vec<Value> {
    text(LogFormat::Json, false, run)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}
