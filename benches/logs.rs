//! How fast access logs are read: lines a second of each format, and from compressed files.
//!
//! `cargo bench --bench logs`. The times are worth comparing within one run on one machine.

#![allow(clippy::unwrap_used, reason = "a fault in here is a bug")]

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::NamedTempFile;
use tidegate::replay::log::format::Format;
use tidegate::replay::log::reader::{LogInput, LogReader};

const LINES: usize = 100_000;

const TEMPLATE: &str = r#"$remote_addr [$time_local] "$request" $status $body_bytes_sent $request_time "$http_x_api_key""#;

fn main() {
    divan::main();
}

/// A log of this format, of many clients.
fn log(format: &str) -> String {
    let mut text = String::new();
    for number in 0..LINES {
        let (a, b, second) = (number % 7 * 31, number * 17 % 251, number / 100 % 60);
        let agent = "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_9_1) AppleWebKit/537.36 (KHTML, like Gecko) \
                     Chrome/32.0.1700.77 Safari/537.36";
        let path = format!("/v1/projects/{a}/things/{number}");
        match format {
            "combined" => writeln!(
                text,
                "203.0.{a}.{b} - - [17/May/2015:10:05:{second:02} +0000] \"GET {path}?page={b} HTTP/1.1\" 200 \
                 {number} \"https://example.com/start/{a}\" \"{agent}\""
            ),
            "template" => writeln!(
                text,
                "203.0.{a}.{b} [17/May/2015:10:05:{second:02} +0000] \"GET {path}?page={b} HTTP/1.1\" 200 {number} \
                 0.0{a} \"key-{a}\""
            ),
            "tidegate" => writeln!(
                text,
                "{{\"timestamp\":\"2026-01-02T12:00:{second:02}.123456Z\",\"level\":\"INFO\",\
                 \"target\":\"tidegate::access\",\"message\":\"request\",\"method\":\"GET\",\
                 \"host\":\"api.example.com\",\"path\":\"{path}\",\"protocol\":\"HTTP/1.1\",\"status\":200,\
                 \"bytes\":{number},\"duration_ms\":1.25,\"route\":\"v1\",\"client\":\"203.0.{a}.{b}\",\
                 \"user_agent\":\"{agent}\",\"upstream\":\"http://10.0.0.1:3000\"}}"
            ),
            _ => writeln!(
                text,
                "{{\"level\":\"info\",\"ts\":14318571{second:02}.5241024,\"logger\":\"http.log.access\",\
                 \"msg\":\"handled request\",\"request\":{{\"remote_ip\":\"10.0.0.1\",\"remote_port\":\"41342\",\
                 \"client_ip\":\"203.0.{a}.{b}\",\"proto\":\"HTTP/2.0\",\"method\":\"GET\",\
                 \"host\":\"api.example.com\",\"uri\":\"{path}?page={b}\",\"headers\":{{\
                 \"User-Agent\":[\"{agent}\"],\"Accept\":[\"*/*\"],\"Accept-Encoding\":[\"gzip, deflate, br\"],\
                 \"X-Api-Key\":[\"key-{a}\"],\"Cookie\":[\"REDACTED\"]}},\"tls\":{{\"resumed\":false,\
                 \"version\":772,\"cipher_suite\":4865,\"proto\":\"h2\",\"server_name\":\"api.example.com\"}}}},\
                 \"bytes_read\":0,\"user_id\":\"\",\"duration\":0.000929675,\"size\":{number},\"status\":200,\
                 \"resp_headers\":{{\"Server\":[\"Caddy\"],\"Content-Type\":[\"application/json\"]}}}}"
            ),
        }
        .unwrap();
    }
    text
}

/// Reads a whole log with this content.
fn read(bencher: Bencher<'_, '_>, length: usize, content: &[u8], format: &Format) {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(content).unwrap();
    let input = LogInput::File(fs::canonicalize(file.path()).unwrap());
    bencher.counter(ItemsCount::new(LINES)).counter(BytesCount::new(length)).bench(|| {
        let mut reader = LogReader::open(&input, format.clone()).unwrap();
        let mut bytes = 0;
        while let Some(record) = reader.next_record().unwrap() {
            bytes += record.unwrap().bytes.unwrap();
        }
        assert!(bytes > 0);
        bytes
    });
}

#[divan::bench(args = ["combined", "template", "tidegate", "caddy"])]
fn lines(bencher: Bencher<'_, '_>, name: &str) {
    let format = if name == "template" { TEMPLATE.parse().unwrap() } else { Format::Auto };
    let text = log(name);
    read(bencher, text.len(), text.as_bytes(), &format);
}

/// The combined format.
#[divan::bench]
fn gzip(bencher: Bencher<'_, '_>) {
    let text = log("combined");
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    read(bencher, text.len(), &encoder.finish().unwrap(), &Format::Auto);
}

/// The combined format.
#[divan::bench]
fn zstd(bencher: Bencher<'_, '_>) {
    let text = log("combined");
    let content = ::zstd::stream::encode_all(text.as_bytes(), 3).unwrap();
    read(bencher, text.len(), &content, &Format::Auto);
}
