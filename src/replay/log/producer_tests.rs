//! Lines as each server writes them.

use proptest::prelude::*;

use super::format::Format;
use super::testing::read;
use crate::request::network::canonical_address;

/// Each line, in the format that the line's beginning shows.
fn check(lines: &[(&str, &str)]) {
    for (line, record) in lines {
        assert_eq!(read(&Format::Auto, line), *record, "{line}");
    }
}

#[test]
fn combined() {
    check(&[
        (
            r#"203.0.113.7 - - [17/May/2015:10:05:03 +0000] "GET /a/b.png HTTP/1.1" 200 203023 "http://example.com/" "Mozilla/5.0 (X11)""#,
            "2015-05-17T10:05:03Z 203.0.113.7 GET /a/b.png query=none host=? 200 203023B ?s \
             referer=http://example.com/ user_agent=Mozilla/5.0 (X11)",
        ),
        // The common format, with a name for the client, and Apache's `-` for no bytes.
        (
            r#"crawl.example.com ident Jane Doe [17/May/2015:12:05:03 +0200] "HEAD /a?b=c&d HTTP/1.0" 304 -"#,
            "2015-05-17T10:05:03Z ? HEAD /a query=b=c&d host=? 304 0B ?s",
        ),
        // Apache's vhost_combined.
        (
            r#"www.example.com:443 2001:db8::7 - jane [17/May/2015:10:05:03 +0000] "GET / HTTP/2.0" 200 5 "-" "a \"b\" \\""#,
            "2015-05-17T10:05:03Z 2001:db8::7 GET / query=none host=www.example.com:443 200 5B ?s \
             referer=none user_agent=a \"b\" \\",
        ),
        // Nginx's escapes, a port of another format's client, and more after it.
        (
            r#"[2001:db8::7]:2817 - - [17/May/2015:10:05:03 +0000] "GET /\xC3\xA4?\x22 HTTP/1.1" 200 5 "" "x" 0.005 "y" z"#,
            "2015-05-17T10:05:03Z 2001:db8::7 GET /ä query=\" host=? 200 5B ?s referer=none user_agent=x",
        ),
        // Traefik's common format.
        (
            r#"203.0.113.7 - - [17/May/2015:10:05:03 +0000] "GET /x HTTP/1.1" 200 5 "-" "-" 12 "api@file" "http://10.0.0.1:80" 4ms"#,
            "2015-05-17T10:05:03Z 203.0.113.7 GET /x query=none host=? 200 5B ?s referer=none user_agent=none",
        ),
        // The common format with a duration after it.
        (
            r#"203.0.113.7 - - [17/May/2015:10:05:03 +0000] "GET /x HTTP/1.1" 200 5 0.005 "a" "b""#,
            "2015-05-17T10:05:03Z 203.0.113.7 GET /x query=none host=? 200 5B ?s",
        ),
        // A quote that nobody escaped, and a status that no server sends.
        (
            r#"203.0.113.7 - - [17/May/2015:10:05:03 +0000] "GET /x"y HTTP/1.1" 000 5 "-" "a "b" c""#,
            "2015-05-17T10:05:03Z 203.0.113.7 GET /x\"y query=none host=? ? 5B ?s \
             referer=none user_agent=a ",
        ),
        // Cut off.
        (
            r#"203.0.113.7 - - [17/May/2015:10:05:03 +0000] "GET /x HTTP/1.1" 200 5 "http://exam"#,
            "2015-05-17T10:05:03Z 203.0.113.7 GET /x query=none host=? 200 5B ?s",
        ),
        (
            r#"203.0.113.7 - - [17/May/2015:10:05:03 +0000] "GET /x HTTP/1.1" 20"#,
            "broken: it is not in the expected format",
        ),
        (
            r#"203.0.113.7 - - [17/May/2015:10:05:03 +0000] "-" 408 0 "-" "-""#,
            "no request: the connection had no request",
        ),
        (
            r#"203.0.113.7 - - [17/May/2015:10:05:03 +0000] "\x16\x03\x01\x02\x00\x01" 400 157 "-" "-""#,
            "no request: what the client sent is no HTTP request",
        ),
        (
            r#"203.0.113.7 - - [yesterday] "GET / HTTP/1.1" 200 5"#,
            "broken: it has no time that can be read",
        ),
        ("Starting up.", "broken: it is not in the expected format"),
        ("\r", "no request: it is empty"),
        (
            "\0\0\x00203.0.113.7 - - [17/May/2015:10:05:03 +0000] \"GET /x HTTP/1.1\" 200 5\r",
            "2015-05-17T10:05:03Z 203.0.113.7 GET /x query=none host=? 200 5B ?s",
        ),
    ]);
}

#[test]
fn caddy() {
    check(&[
        (
            r#"{"level":"info","ts":1646861401.5241024,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"10.0.0.1","remote_port":"41342","client_ip":"203.0.113.7","proto":"HTTP/2.0","method":"GET","host":"localhost","uri":"/a%20b?x=1","headers":{"User-Agent":["curl/7.82.0"],"Accept":["*/*","text/html"],"Cookie":["REDACTED"]},"tls":{"resumed":false,"version":772,"server_name":"example.com"}},"bytes_read":0,"user_id":"","duration":0.000929675,"size":10900,"status":200,"resp_headers":{"Server":["Caddy"],"Content-Type":["text/html"]}}"#,
            "2022-03-09T21:30:01.524103Z 203.0.113.7 GET /a%20b query=x=1 host=localhost 200 10900B 929.675µs \
             Accept=*/* Accept=text/html Cookie=? User-Agent=curl/7.82.0 host=localhost no others",
        ),
        // An older version, with times as text.
        (
            r#"{"ts":"2022/03/09 21:30:01.524","request":{"remote_addr":"[2001:db8::7]:41342","method":"POST","host":"a:8080","uri":"/","headers":{}},"duration":"1.5ms","size":0,"status":0}"#,
            "2022-03-09T21:30:01.524Z 2001:db8::7 POST / query=none host=a:8080 ? 0B 1.5ms host=a:8080 no others",
        ),
        (
            r#"{"level":"info","ts":1646861401.5,"logger":"tls","msg":"cleaning storage unit"}"#,
            "no request: it shows no request",
        ),
    ]);
}

#[test]
fn nginx_json() {
    check(&[
        (
            r#"{"remote_addr":"203.0.113.7","time_iso8601":"2015-05-17T12:05:03+02:00","msec":"1431857103.250","request":"GET /a?b=c HTTP/1.1","status":"200","body_bytes_sent":"17","request_time":"0.005","content_length":"42","http_user_agent":"curl/8 \"x\"","http_x_api_key":"","http_x_forwarded_for":"192.0.2.1, 10.0.0.1","host":"example.com","request_length":"77"}"#,
            "2015-05-17T10:05:03.25Z 203.0.113.7 GET /a query=b=c host=example.com 200 17B 5ms \
             content_length=42 user_agent=curl/8 \"x\" x_api_key=none x-forwarded-for=192.0.2.1, 10.0.0.1",
        ),
        // The path as nginx has normalized it, numbers without quotes.
        (
            r#"{"time_local":"17/May/2015:10:05:03 +0000","request_method":"GET","uri":"/a b","args":"-","status":499,"bytes_sent":0,"request_time":1.25}"#,
            "2015-05-17T10:05:03Z ? GET /a b query=none host=? 499 0B 1.25s",
        ),
        (
            r#"{"time_local":"17/May/2015:10:05:03 +0000","request_method":"GET","uri":"/a"}"#,
            "2015-05-17T10:05:03Z ? GET /a query=? host=? ? ?B ?s",
        ),
        // The target as sent counts before the path that was normalized.
        (
            r#"{"uri":"/b","time":"2015-05-17T10:05:03Z","request_method":"GET","request_uri":"/a/../b"}"#,
            "2015-05-17T10:05:03Z ? GET /a/../b query=none host=? ? ?B ?s",
        ),
        (
            r#"{"time":"2015-05-17T10:05:03Z","http_x_forwarded_for":"192.0.2.1, 10.0.0.1","request":"GET / HTTP/1.1"}"#,
            "2015-05-17T10:05:03Z 192.0.2.1 GET / query=none host=? ? ?B ?s x-forwarded-for=192.0.2.1, 10.0.0.1",
        ),
        (
            r#"{"time":"2015-05-17T10:05:03Z","request":"","status":"400"}"#,
            "no request: the connection had no request",
        ),
    ]);
}

#[test]
fn envoy() {
    check(&[
        (
            r#"{"start_time":"2015-05-17T10:05:03.123Z","method":"GET","path":"/a?b","protocol":"HTTP/2","response_code":200,"response_flags":"-","bytes_received":0,"bytes_sent":135,"duration":4,"upstream_service_time":"3","x_forwarded_for":"192.0.2.1","user_agent":null,"request_id":"x","authority":"example.com","downstream_remote_address":"203.0.113.7:40212","upstream_host":"10.0.0.1:80"}"#,
            "2015-05-17T10:05:03.123Z 203.0.113.7 GET /a query=b host=example.com 200 135B 4ms \
             user_agent=none x-forwarded-for=192.0.2.1",
        ),
        (
            r#"{"start_time":"2015-05-17T10:05:03.123Z","method":"GET","x-envoy-origin-path":"/a","response_code":"0","duration":"12","x-forwarded-for":"[2001:db8::7]:80,10.0.0.1","user-agent":"curl",":authority":"a"}"#,
            "2015-05-17T10:05:03.123Z 2001:db8::7 GET /a query=none host=a ? ?B 12ms \
             user-agent=curl x-forwarded-for=[2001:db8::7]:80,10.0.0.1",
        ),
        (
            r#"{"start_time":"2015-05-17T10:05:03.123Z","method":null,"path":null,"response_code":0}"#,
            "no request: it shows no request",
        ),
    ]);
}

#[test]
fn traefik() {
    check(&[(
        r#"{"ClientAddr":"10.0.0.9:53324","ClientHost":"203.0.113.7","ClientPort":"53324","ClientUsername":"-","DownstreamContentSize":1259,"DownstreamStatus":200,"Duration":1500000,"OriginContentSize":1,"OriginStatus":201,"RequestAddr":"example.com","RequestContentSize":0,"RequestCount":1,"RequestHost":"example.com","RequestMethod":"GET","RequestPath":"/a?b=c","RequestPort":"-","RequestProtocol":"HTTP/1.1","StartLocal":"2015-05-17T12:05:03.5+02:00","StartUTC":"2015-05-17T10:05:03.5Z","entryPointName":"web","level":"info","msg":"","request_User-Agent":"curl/8","request_Authorization":"REDACTED","time":"2015-05-17T10:05:04Z"}"#,
        "2015-05-17T10:05:03.5Z 203.0.113.7 GET /a query=b=c host=example.com 200 1259B 1.5ms \
         Authorization=? User-Agent=curl/8",
    )]);
}

#[test]
fn tidegate_itself() {
    check(&[
        (
            r#"{"timestamp":"2026-01-02T12:00:00.123456Z","level":"INFO","target":"tidegate::access","message":"request","method":"GET","host":"api.example.com","path":"/v1/things","protocol":"HTTP/1.1","status":429,"bytes":64,"duration_ms":0.25,"route":"v1","client":"203.0.113.7","user_agent":"curl/8","limit":"per-ip"}"#,
            "2026-01-02T12:00:00.123206Z 203.0.113.7 GET /v1/things query=? host=api.example.com 429 64B 250µs \
             user_agent=curl/8",
        ),
        (
            r#"{"timestamp":"2026-01-02T12:00:00Z","level":"INFO","target":"tidegate::access","message":"request","method":"GET","host":"-","path":"/","status":200,"bytes":0,"duration_ms":1,"client":"::1"}"#,
            "2026-01-02T11:59:59.999Z ::1 GET / query=? host=none 200 0B 1ms user-agent=none",
        ),
        (
            r#"{"timestamp":"2026-01-02T12:00:00Z","target":"tidegate::access","message":"request","method":"-","host":"-","path":"-","status":400,"client":"::1"}"#,
            "no request: the connection had no request",
        ),
        (
            r#"{"timestamp":"2026-01-02T12:00:00Z","target":"tidegate::throttle","message":"throttled","method":"GET","path":"/"}"#,
            "no request: it is a line of tidegate about something else",
        ),
    ]);
}

#[test]
fn aws_load_balancer() {
    check(&[
        (
            r#"https 2018-07-02T22:23:00.186641Z app/my-lb/50dc6c495c0c9188 203.0.113.7:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57 "GET https://www.example.com:443/a?b=c HTTP/1.1" "curl/7.46.0" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 "Root=1-58337281-1d84f3d73c47ec4e58577259" "www.example.com" "arn:aws:acm:us-east-2:123456789012:certificate/12345678" 1 2018-07-02T22:22:48.364000Z "authenticate,forward" "-" "-" "10.0.0.1:80" "200" "-" "-" TID_123"#,
            "2018-07-02T22:22:48.364Z 203.0.113.7 GET /a query=b=c host=www.example.com:443 200 57B 171ms \
             user_agent=curl/7.46.0",
        ),
        // No target answered, and the line ends early, as old versions write it.
        (
            r#"h2 2018-07-02T22:23:00.186641Z app/my-lb/50dc 203.0.113.7:2817 - -1 -1 -1 503 - 34 366 "POST http://example.com:80/ HTTP/2.0" "-" - - "#,
            "2018-07-02T22:23:00.186641Z 203.0.113.7 POST / query=none host=example.com:80 503 366B ?s \
             user_agent=none",
        ),
        (
            r#"http 2018-07-02T22:23:00.186641Z app/my-lb/50dc 203.0.113.7:2817 - -1 -1 -1 400 - 0 272 "- http://example.com:80- -" "-" - - - "-" "-" "-" - 2018-07-02T22:23:00.000000Z "-""#,
            "no request: what the client sent is no HTTP request",
        ),
    ]);
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
