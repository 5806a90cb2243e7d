//! Whole logs: files, streams, compression.

use std::fs;
use std::io::{self, Cursor, Read, Write as _};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::format::Format;
use super::reader::{LogInput, LogReader, ReadError};
use super::record::LineFault;
use super::sorted::SortedLogs;

const LINE: &str =
    r#"203.0.113.7 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5 "-" "-""#;
const OBJECT: &str = r#"{"start_time":"2015-05-17T10:05:03Z","method":"GET","path":"/b"}"#;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 1).unwrap()
}

/// Each line's path, or why it is no record.
fn paths(reader: &mut LogReader) -> Result<Vec<String>, ReadError> {
    let mut paths = Vec::new();
    while let Some(line) = reader.next_record()? {
        paths.push(match line {
            Ok(record) => record.path,
            Err(LineFault::NoRequest(_)) => "no request".to_owned(),
            Err(LineFault::Broken(reason)) => reason.to_owned(),
        });
    }
    Ok(paths)
}

fn over(bytes: impl Into<Vec<u8>>) -> LogReader {
    LogReader::over("a stream", Cursor::new(bytes.into()), Format::Auto).unwrap()
}

/// A file of this folder with this content.
fn file(folder: &Path, name: &str, content: &[u8]) -> LogInput {
    let path = folder.join(name);
    fs::write(&path, content).unwrap();
    LogInput::File(path)
}

#[test]
fn a_log_has_lines_of_any_kind() {
    let text = format!("{LINE}\n{OBJECT}\r\n\nnonsense\n{LINE}\n{OBJECT}");
    let mut reader = over(text);
    let no_match = "it is not in the expected format";
    assert_eq!(paths(&mut reader).unwrap(), ["/a", "/b", "no request", no_match, "/a", "/b"]);
    assert_eq!((&*reader.file, reader.line_number), ("a stream", 6));
}

/// A container's log has each line in the runtime's own form. The program's lines may have any format.
#[test]
fn lines_that_a_container_runtime_wrapped_are_read() {
    let docker = |line: &str, end: &str| {
        let log = serde_json::to_string(&format!("{line}{end}")).unwrap();
        format!(r#"{{"log":{log},"stream":"stdout","time":"2026-01-02T03:04:05.123456789Z"}}"#)
    };
    let cri = |tag: &str, line: &str| format!("2026-01-02T03:04:05.123456789Z stdout {tag} {line}");
    let lines = [docker(LINE, "\n"), docker(OBJECT, "\r\n"), cri("F", LINE), cri("F", OBJECT)];
    let mut reader = over(lines.join("\n"));
    assert_eq!(paths(&mut reader).unwrap(), ["/a", "/b", "/a", "/b"]);
    let split = "the container runtime has split the line in parts";
    let mut reader = over([docker(LINE, ""), cri("P", LINE), LINE.to_owned()].join("\n"));
    assert_eq!(paths(&mut reader).unwrap(), [split, split, "/a"]);
    // A template describes the line that the container runtime has wrapped.
    let template = "$remote_addr - - [$time_local] \"$request\" $status".parse().unwrap();
    let stream = Cursor::new(cri("F", LINE));
    let mut reader = LogReader::over("a stream", stream, template).unwrap();
    assert_eq!(paths(&mut reader).unwrap(), ["/a"]);
}

#[test]
fn bytes_that_are_no_text_are_replaced() {
    let line = [LINE.replace("/a", "/"), "\n".to_owned()].concat();
    let line = line.replace("GET /", "GET /\u{1}");
    let bytes = line.bytes().map(|byte| if byte == 1 { 0xff } else { byte });
    let mut reader = over(bytes.collect::<Vec<_>>());
    assert_eq!(paths(&mut reader).unwrap(), ["/\u{fffd}"]);
}

#[test]
fn a_line_of_two_mebibytes_is_broken_and_counted() {
    let long = LINE.replace("/a", &"/a".repeat(1 << 20));
    let mut reader = over(format!("{LINE}\n{long}\n{OBJECT}\n"));
    assert_eq!(paths(&mut reader).unwrap(), ["/a", "it is longer than 1 MiB", "/b"]);
    assert_eq!(reader.line_number, 3);
}

#[test]
fn an_empty_log_has_no_lines() {
    for bytes in [Vec::new(), gzip(b""), zstd(b"")] {
        assert_eq!(paths(&mut over(bytes)).unwrap(), [""; 0]);
    }
}

#[test]
fn a_short_log_is_no_compressed_one() {
    for bytes in [&b"\x1f"[..], b"(\xb5/", b"\n\n\n"] {
        paths(&mut over(bytes)).unwrap();
    }
}

#[test]
fn compression_is_recognized_by_the_first_bytes() {
    let [line, object] = [LINE, OBJECT].map(|line| format!("{line}\n").into_bytes());
    let skipped = [&[0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    for bytes in [
        [gzip(&line), gzip(&object)].concat(),
        [zstd(&line), zstd(&object)].concat(),
        [skipped, zstd(&line), zstd(&object)].concat(),
    ] {
        assert_eq!(paths(&mut over(bytes)).unwrap(), ["/a", "/b"]);
    }
}

#[test]
fn a_corrupt_file_is_no_broken_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{LINE}\n").repeat(50_000);
    for (name, whole) in [("a.gz", gzip(text.as_bytes())), ("a.zst", zstd(text.as_bytes()))] {
        let mut flipped = whole.clone();
        let middle = flipped.len() / 2;
        flipped[middle..middle + 9].fill(0x55);
        for corrupt in [flipped, whole[..whole.len() / 2].to_vec()] {
            let corrupt = file(folder.path(), name, &corrupt);
            let mut reader = LogReader::open(&corrupt, Format::Auto).unwrap();
            let error = paths(&mut reader).unwrap_err();
            assert_eq!(error.file, corrupt.name());
            assert!(
                error.to_string().starts_with(&format!("cannot read {}", corrupt.name())),
                "{error}"
            );
        }
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named_before_the_first_line() {
    let folder = tempfile::tempdir().unwrap();
    let good = file(folder.path(), "good", LINE.as_bytes());
    let name = folder.path().display();
    for (path, message) in [
        (folder.path().join("none"), format!("cannot read {name}/none")),
        (folder.path().to_owned(), format!("cannot read {name}")),
    ] {
        let inputs = [good.clone(), LogInput::File(path)];
        let error = SortedLogs::open(&inputs, &Format::Auto).err().unwrap();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn a_dash_is_standard_input() {
    let input = |text: &str| LogInput::from(std::ffi::OsString::from(text));
    assert_eq!((input("-"), input("-x")), (LogInput::Stdin, LogInput::File("-x".into())));
}

#[test]
fn an_error_says_after_which_line_it_is() {
    struct Fails;
    impl Read for Fails {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is gone"))
        }
    }
    let stream = Cursor::new(format!("{LINE}\n{LINE}\n")).chain(Fails);
    let mut reader = LogReader::over("a stream", stream, Format::Auto).unwrap();
    let error = paths(&mut reader).unwrap_err();
    assert_eq!(error.to_string(), "cannot read a stream after line 2");
    assert_eq!(error.source.to_string(), "the disk is gone");
}
