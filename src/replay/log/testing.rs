//! What the tests of logs share.

use super::format::Format;
use super::record::{LineFault, LogRecord, Logged};

fn logged(sign: &str, value: &Logged) -> String {
    match value {
        Logged::Unknown => format!("{sign}?"),
        Logged::Absent => format!("{sign}none"),
        Logged::Value(value) => format!("{sign}{value}"),
    }
}

/// A record in one line: time, client, method, path, query, host, status, bytes, duration, headers. `?` stands for what
/// the log does not have.
pub(super) fn shown(record: &LogRecord) -> String {
    let micros = i64::try_from(record.time.as_micros()).unwrap();
    let mut parts = vec![
        jiff::Timestamp::from_microsecond(micros).unwrap().to_string(),
        record.client.map_or("?".to_owned(), |client| client.to_string()),
        record.method.clone(),
        record.path.clone(),
        logged("query=", &record.query),
        logged("host=", &record.host),
        record.status.map_or("?".to_owned(), |status| status.as_u16().to_string()),
        record.bytes.map_or("?B".to_owned(), |bytes| format!("{bytes}B")),
        record.duration.map_or("?s".to_owned(), |duration| format!("{duration:?}")),
    ];
    parts.extend(record.headers.named().map(|(name, value)| logged(&format!("{name}="), value)));
    if record.headers.are_complete {
        parts.push("no others".to_owned());
    }
    parts.join(" ")
}

/// What a line says in this format: its record, `no request` or `broken`.
pub(super) fn read(format: &Format, line: &str) -> String {
    match format.read(line) {
        Ok(record) => shown(&record),
        Err(LineFault::NoRequest(reason)) => format!("no request: {reason}"),
        Err(LineFault::Broken(reason)) => format!("broken: {reason}"),
    }
}
