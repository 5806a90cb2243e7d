//! Access logs. The first line of the input names a format, or is a template. The rest is the log.

use std::io::{self, Cursor, Read};

use tidegate::replay::log::container::unwrapped;
use tidegate::replay::log::format::Format;
use tidegate::replay::log::reader::LogReader;
use tidegate::replay::log::record::{LogRecord, Logged};

use super::{Choices, canonical};

/// How compressed streams begin.
const COMPRESSED: [&[u8]; 3] = [b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18"];

pub(super) fn check(input: &[u8]) {
    let mut parts = input.splitn(2, |byte| *byte == b'\n');
    let format = parts.next().and_then(|line| std::str::from_utf8(line).ok()?.parse().ok());
    let (Some(format), Some(log)) = (format, parts.next()) else { return };
    let found = lines(&format, Cursor::new(log.to_vec()));
    let first = log.get(..5).unwrap_or(log);
    let is_there = |start: &&[u8]| first.windows(start.len()).any(|window| window == *start);
    if COMPRESSED.iter().any(is_there) {
        // Whatever it is, it ended.
        return;
    }
    // However it is cut, it is the same log: each line by itself.
    let pieces = Choices::of(input).cut(log, 9);
    let pieces: Vec<Vec<u8>> = pieces.into_iter().map(<[u8]>::to_vec).collect();
    assert_eq!(found, lines(&format, Pieces(pieces)));
    let mut expected: Vec<_> = log.split(|byte| *byte == b'\n').collect();
    if expected.last().is_some_and(|last| last.is_empty()) {
        expected.pop();
    }
    let expected: Vec<_> = expected.into_iter().map(|line| of_line(&format, line)).collect();
    assert_eq!(found, expected.into_iter().map(Ok).collect::<Vec<_>>());
}

/// What a reader finds in a stream, up to its error.
fn lines(format: &Format, stream: impl Read + Send + 'static) -> Vec<Result<String, String>> {
    let mut found = Vec::new();
    let mut reader = match LogReader::over("", stream, format.clone()) {
        Ok(reader) => reader,
        Err(error) => return vec![Err(error.to_string())],
    };
    loop {
        match reader.next_record() {
            Ok(None) => return found,
            Ok(Some(line)) => found.push(Ok(format!("{line:?}"))),
            Err(error) => {
                found.push(Err(error.to_string()));
                return found;
            }
        }
    }
}

fn of_line(format: &Format, line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line);
    let line = unwrapped(&line);
    let read = line.as_ref().map_err(|fault| *fault).and_then(|line| format.read(line));
    if let Ok(record) = &read {
        is_sound(record);
    }
    format!("{read:?}")
}

fn is_sound(record: &LogRecord) {
    assert!(!record.method.is_empty() && record.method.is_ascii(), "{record:?}");
    assert!(!record.path.contains('?'), "{record:?}");
    assert!(record.client.is_none_or(|client| client == canonical(client)), "{record:?}");
    // What a server would log of this request is the same request.
    let Logged::Value(query) = &record.query else { return };
    let time = record.time.as_micros();
    if time < 200_000_000_000_000 {
        // So small a number would be one of another unit.
        return;
    }
    let line = serde_json::json!({
        "msec": time,
        "request_method": record.method,
        "request_uri": format!("{}?{query}", record.path),
        "status": record.status.map(|status| status.as_u16()),
        "remote_addr": record.client,
    });
    let line = line.to_string();
    let again = Format::Json.read(&line);
    let again = again.unwrap_or_else(|fault| panic!("{fault}: {line}"));
    assert_eq!(
        (&again.method, &again.path, &again.query),
        (&record.method, &record.path, &record.query)
    );
    assert_eq!((again.status, again.client), (record.status, record.client));
    assert_eq!(again.time, record.time);
}

/// A stream that comes in pieces.
struct Pieces(Vec<Vec<u8>>);

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            return Ok(0);
        }
        let piece = self.0.remove(0);
        let length = piece.len().min(into.len());
        into[..length].copy_from_slice(&piece[..length]);
        if length < piece.len() {
            self.0.insert(0, piece[length..].to_vec());
        }
        Ok(length)
    }
}
