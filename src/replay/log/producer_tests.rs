//! Lines as each server writes them.

use proptest::prelude::*;

use super::format::Format;
use super::testing::read;
use crate::request::network::canonical_address;

/// Each line is read in the format that its beginning shows.
#[test]
fn the_lines_of_each_server_are_read() {
    let text = include_str!("lines.txt").lines();
    let mut lines = text.filter(|line| !line.starts_with('#') && !line.is_empty());
    while let Some(line) = lines.next() {
        let record = lines.next().and_then(|said| said.strip_prefix("=> ")).expect(line);
        assert_eq!(read(&Format::Auto, line), record, "{line}");
    }
    for (line, record) in [
        ("\r", "no request: it is empty"),
        (
            "\0\0\x00203.0.113.7 - - [17/May/2015:10:05:03 +0000] \"GET /x HTTP/1.1\" 200 5\r",
            "2015-05-17T10:05:03Z 203.0.113.7 GET /x query=none host=? 200 5B ?s",
        ),
    ] {
        assert_eq!(read(&Format::Auto, line), record, "{line:?}");
    }
}

#[test]
fn a_line_that_is_no_object_is_broken() {
    for line in ["{", "{}x", r#"{"time":1"#, r#"{"a":{"b":[1,2,{}]}"#, "{'a':1}"] {
        assert_eq!(read(&Format::Auto, line), "broken: it is not one JSON object", "{line}");
    }
    for line in ["[]", "1", "\"a\"", "null", "x"] {
        assert_eq!(read(&Format::Json, line), "broken: it is not one JSON object", "{line}");
    }
}

#[test]
fn other_objects_are_no_requests() {
    for line in [
        "{}",
        r#"{"a":null,"host":{"name":"x"},"user_agent":{"original":"y"},"duration":true}"#,
        r#"{"\u0074ime":1,"request":null}"#,
        r#"{"request":[]}"#,
        r#"{"request":{"headers":{"a":[{"b":1},"c",2],"d":{},"e":[]}}}"#,
    ] {
        assert_eq!(read(&Format::Json, line), "no request: it shows no request", "{line}");
    }
}

/// A text that a server may log for a value.
fn text() -> impl Strategy<Value = String> {
    "[ -~\u{80}-\u{ff}\n]{0,20}"
        .prop_filter("means that there is none", |text| !matches!(&**text, "" | "-" | "REDACTED"))
}

/// As nginx writes it in a format that is not JSON.
fn escaped(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'"' | b'\\' | 0..0x20 | 0x7f.. => format!("\\x{byte:02X}"),
        byte => char::from(byte).to_string(),
    };
    text.bytes().map(byte).collect()
}

proptest! {
    #[test]
    fn a_line_of_nginx_is_read_back(
        agent in text(), referer in text(), path in "/[!-~&&[^?]]{0,12}", query in "[!-~]{1,9}",
        address: std::net::IpAddr, status in 100_u16..1000, bytes: u64, second in 0_i64..4_000_000_000,
    ) {
        let time = jiff::Timestamp::from_second(second).unwrap();
        let line = format!(
            "{address} - - [{}] \"{}\" {status} {bytes} \"{}\" \"{}\"",
            time.strftime("%d/%b/%Y:%H:%M:%S +0000"),
            escaped(&format!("GET {path}?{query} HTTP/1.1")),
            escaped(&referer),
            escaped(&agent),
        );
        let expected = format!(
            "{time} {} GET {path} query={query} host=? {status} {bytes}B ?s referer={referer} \
             user_agent={agent}",
            canonical_address(address),
        );
        prop_assert_eq!(read(&Format::Auto, &line), &*expected);
        // A template that leaves out the two words that no record needs.
        let template = r#"$remote_addr [$time_local] "$request" $status $bytes_sent "$http_referer" "$http_user_agent""#;
        let line = line.replacen(" - -", "", 1);
        prop_assert_eq!(read(&template.parse().unwrap(), &line), expected);
    }

    #[test]
    fn a_line_of_json_is_read_back(
        agent in text(), path in "/[!-~&&[^?]]{0,12}", address: std::net::IpAddr, micros in 0_i64..4_000_000_000_000_000,
    ) {
        let time = jiff::Timestamp::from_microsecond(micros).unwrap().to_string();
        let line = serde_json::json!({
            "user_agent": agent, "path": path, "start_time": time, "method": "PUT",
            "downstream_remote_address": std::net::SocketAddr::new(address, 1).to_string(),
        });
        let expected = format!(
            "{time} {} PUT {path} query=none host=? ? ?B ?s user_agent={agent}", canonical_address(address)
        );
        prop_assert_eq!(read(&Format::Auto, &line.to_string()), expected);
    }
}
