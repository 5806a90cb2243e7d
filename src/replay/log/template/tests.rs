use crate::replay::log::format::Format;
use crate::replay::log::testing::read;

fn template(text: &str) -> Format {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn lines_are_read_by_a_template() {
    for (text, line, record) in [
        (
            "$remote_addr [$time_local] \"$request\" $status $http_x_api_key",
            r#"203.0.113.7 [17/May/2015:10:05:03 +0000] "GET /a?b HTTP/1.1" 200 my key"#,
            "2015-05-17T10:05:03Z 203.0.113.7 GET /a query=b host=? 200 ?B ?s x_api_key=my key",
        ),
        (
            "$remote_addr [$time_local] \"$request\" $status $http_x_api_key",
            r#"203.0.113.7 [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 -"#,
            "2015-05-17T10:05:03Z 203.0.113.7 GET /a query=none host=? 200 ?B ?s x_api_key=none",
        ),
        // No literal stands between host and path, nor between path and query.
        (
            "${msec}|$request_method|$scheme://$host$uri$is_args$args|$upstream_addr$pipe|$request_time",
            "1431857103.250|GET|https://example.com/a/b?c=/d|10.0.0.1:80, 10.0.0.2:80.|0.125",
            "2015-05-17T10:05:03.25Z ? GET /a/b query=c=/d host=example.com ? ?B 125ms",
        ),
        (
            "$time_iso8601 $request_method $uri '$args' $bytes_sent end",
            "2015-05-17T12:05:03+02:00 GET /a 'b' 12 end of line",
            "2015-05-17T10:05:03Z ? GET /a query=b host=? ? 12B ?s",
        ),
        ("$msec $request", "1431857103", "broken: it is not in the expected format"),
        ("$msec $request", "x GET /", "broken: it has no time that can be read"),
        ("<$msec> $request", "1431857103 GET /", "broken: it is not in the expected format"),
        ("$msec \"$request\"", "1431857103 \"GET /", "broken: it is not in the expected format"),
    ] {
        assert_eq!(read(&template(text), line), record, "{text}");
    }
}

#[test]
fn a_template_that_cannot_be_read_says_why() {
    for (text, message) in [
        (
            "$remote_addr $request",
            "the template has no time: add `$time_local`, `$time_iso8601` or `$msec`",
        ),
        ("$msec $status", "the template has no method: add `$request` or `$request_method`"),
        (
            "$time_local $request_method $status",
            "the template has no path: add `$request` or `$request_uri`",
        ),
        (
            "$msec$status $request",
            "nothing stands between `$msec` and `$status`: a reader cannot tell where `$msec` ends",
        ),
        ("$msec ${request", "`${request` is no word of a template"),
        ("$msec $request $", "`$` is no word of a template"),
        (
            "apache",
            "`apache` is no format: use `auto`, `combined`, `json`, `alb`, or a template such as \
             '$remote_addr [$time_local] \"$request\" $status'",
        ),
    ] {
        let error = text.parse::<Format>().expect_err(text);
        assert_eq!(error.to_string(), message, "{text}");
    }
}
