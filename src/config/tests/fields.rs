//! The list of fields and the reader agree.

use super::super::reader::{Fallback, Kind, Shape};
use super::super::section::ROOT;
use super::super::section::admin::ADMIN;
use super::super::section::limit::LIMIT;
use super::super::section::route::ROUTE;
use super::super::section::server::SERVER;
use super::super::section::store::STORE;
use super::super::section::trace::TRACE;
use super::super::section::upstream::UPSTREAM;
use super::reference::TABLES;
use super::sample::{certificates, pem};
use super::*;

fn shapes() -> impl Iterator<Item = &'static Shape> {
    TABLES.into_iter().map(|(shape, _)| shape)
}

fn assert_same(one: &Loaded, other: &Loaded, what: &str) {
    assert_eq!(one.changes_to(other, &no_env), Changes::default(), "{what}");
    let (one, other) = (&one.settings, &other.settings);
    assert_eq!(one.server, other.server, "{what}");
    assert_eq!(one.upstreams, other.upstreams, "{what}");
    assert_eq!(one.limits, other.limits, "{what}");
    assert_eq!(one.routes, other.routes, "{what}");
    assert_eq!(one.store, other.store, "{what}");
    assert_eq!(one.reject, other.reject, "{what}");
    assert_eq!(one.cors, other.cors, "{what}");
    assert_eq!(one.log, other.log, "{what}");
    assert_eq!(one.admin, other.admin, "{what}");
    assert_eq!(one.decide, other.decide, "{what}");
    assert_eq!(one.trace, other.trace, "{what}");
    assert_eq!(one.tests, other.tests, "{what}");
    assert_eq!(one.jwt, other.jwt, "{what}");
}

#[test]
fn every_default_of_the_list_is_the_one_that_is_built() {
    for shape in shapes() {
        let without = parsed(&with(shape, ""));
        for field in (shape.fields)() {
            let Fallback::Value(value) = field.default else { continue };
            let line = format!("{} = {value}", field.name);
            let without = match (shape.title, field.name) {
                // These fields do not belong to the default algorithm, or to the default source of a cost.
                ("[limits.NAME]", "lease" | "align" | "timezone" | "type")
                | ("cost", "unknown") => &parsed(&with(shape, &line).replace(&line, "")),
                _ => &without,
            };
            // The base file has these already.
            if matches!(
                (shape.title, field.name),
                ("[limits.NAME]", "key") | ("[[routes]]", "limits")
            ) {
                continue;
            }
            let text = with(shape, &line);
            let loaded = parse("proxy.toml", &text, &no_env, &Overrides::default());
            let loaded = loaded.unwrap_or_else(|problems| panic!("{text}\n{problems}"));
            assert_same(without, &loaded, &format!("{} {line}", shape.title));
        }
    }
}

#[test]
fn every_default_is_json_and_toml() {
    for shape in shapes().chain([&ROOT]) {
        for field in (shape.fields)() {
            if let Fallback::Value(value) = field.default {
                let name = format!("{} {}", shape.title, field.name);
                assert!(serde_json::from_str::<serde_json::Value>(value).is_ok(), "{name}");
                assert!(toml::de::DeValue::parse(value).is_ok(), "{name}");
            }
        }
    }
}

#[test]
fn every_field_of_the_list_is_read() {
    for shape in shapes() {
        for field in (shape.fields)() {
            let tls = match (shape.title, field.name) {
                ("[server]", "tls") => {
                    format!("{{ listen = \"127.0.0.1:2\", {} }}", certificates())
                }
                ("[decide]", "tls") => format!("{{ {} }}", certificates()),
                ("server.tls" | "decide.tls", "certificates") => {
                    certificates().split_off("certificates = ".len())
                }
                ("[upstreams.NAME]" | "[store]", "tls") => format!("{{ {} }}", pem("ca", "ca.pem")),
                ("[plans]", "file") => pem("", "plans.txt").split_off(" = ".len()),
                (_, "ca" | "client_ca") => pem("", "ca.pem").split_off(" = ".len()),
                (_, "cert") => pem("", "api.pem").split_off(" = ".len()),
                ("a certificate" | "tls of an upstream", "key") => {
                    pem("", "api.key").split_off(" = ".len())
                }
                _ => String::new(),
            };
            let example = match (shape.title, field.name, &field.kind) {
                _ if !tls.is_empty() => &tls,
                (_, "path" | "rewrite", Kind::Form(_)) => "\"/a\"",
                (_, "response_rate", Kind::Form(_)) => "\"1MB/s\"",
                ("[[routes]]", "upstream", _) => "\"api\"",
                (_, "proxy_protocol", _) => "true\ntrusted_proxies = [\"10.0.0.0/8\"]",
                (_, "request_id", _) => "\"x-request-id\"",
                ("[[routes]]" | "[server]", "limits", _) | ("respond", "usage", _) => {
                    "[\"per-client\"]"
                }
                ("one of `limits`", "name", _) | ("expect", "limit", _) => "\"per-client\"",
                ("[[routes]]", "methods", _) => "[\"GET\"]",
                (_, "path", _) => "[\"/a\"]",
                ("overrides", "key", _) => "[\"*\"]",
                (_, "key" | "hash_key" | "share_by", _) => "[\"ip\"]",
                (_, "max_requests", _) => "5",
                (_, "keys", _) => "\"http://127.0.0.1:1/keys\"",
                (_, "origins", _) => "[\"https://a.test\"]",
                (_, "method", _) => "[\"OPTIONS\"]",
                (_, "algorithms", _) => "[\"RS256\"]",
                (_, "remove", _) => "[\"x-a\"]",
                (_, "listen", _) => "\"127.0.0.1:1\"",
                (_, "url", _) if shape.title == "[store]" => "\"memory:\"",
                (_, "url" | "otlp", _) => "\"http://a\"",
                (_, "servers", _) => "[\"http://a\"]",
                (_, "level", _) => "\"debug\"",
                ("count_when", "status", _) => "[\"401\"]",
                (_, "count_when", _) => "{ status = [\"401\"] }",
                (_, "status", _) => "500",
                ("[reject]", "headers", _) => "[\"ratelimit\"]",
                (_, "content_type", _) => "\"application/json\"",
                (_, "cost" | "estimate", _) => "1",
                (_, "content_length", _) => "\"0.25\"",
                (_, "health", _) => "{ path = \"/a\" }",
                (_, "timezone", _) => "\"Europe/Berlin\"",
                (_, "reject", _) => "{ status = 503 }",
                (_, "respond", _) => "{ status = 404 }",
                (_, "exempt", _) => "{ path = [\"/a\"] }",
                (_, "candidate", _) => "{ rate = \"1/s\" }",
                (_, "ban", _) => "{ after = 1, within = \"1s\", for = \"1s\" }",
                (_, "send", _) => "\"GET /a\"",
                (_, "from", _) => "\"10.0.0.1\"",
                (_, "expect", _) => "{ allowed = 1 }",
                ("expect", "route", _) => "\"none\"",
                (_, "overrides", _) => "[{ key = [\"*\"], rate = \"1/s\" }]",
                (_, "plans", _) => "{ pro = \"1/s\" }",
                (_, "by", _) => "\"ip\"",
                (_, "jwt", _) => "\"main\"",
                (_, "request_headers" | "response_headers", _) => "{ set = { x-a = \"b\" } }",
                (_, _, Kind::Flag) => "true",
                (_, _, Kind::Whole(..)) => "1",
                (_, _, Kind::Share) => "0.5",
                (_, _, Kind::Percent) => "\"20%\"",
                (_, _, Kind::Duration(..)) => "\"3s\"",
                (_, _, Kind::Size(..)) => "\"64KiB\"",
                (_, _, Kind::Rate) => "\"7/s\"",
                (_, _, Kind::List(..)) => "[\"10.0.0.0/8\"]",
                (_, _, Kind::TableOf(_, Kind::Text)) => "{ x-a = \"b\" }",
                (_, _, Kind::Object) => "{ sub = \"a\", org = { id = 1 } }",
                _ => "\"text\"",
            };
            let example = match &field.kind {
                Kind::Word(words) => format!("\"{}\"", words().first().unwrap()),
                _ => example.to_owned(),
            };
            let text = with(shape, &format!("{} = {example}", field.name));
            let loaded = parse("proxy.toml", &text, &no_env, &Overrides::default());
            if let Err(problems) = loaded {
                panic!("{} {}: {text}\n{problems}", shape.title, field.name);
            }
        }
    }
}

/// What editors take is what the file takes.
#[test]
fn a_list_is_empty_only_where_its_kind_says_so() {
    let mut wrong = Vec::new();
    for shape in shapes() {
        for field in (shape.fields)() {
            let Kind::List(least, _) = field.kind else { continue };
            let text = with(shape, &format!("{} = []", field.name));
            let loaded = parse("proxy.toml", &text, &no_env, &Overrides::default());
            let problems = loaded.err().map_or(String::new(), |problems| problems.to_string());
            // An override has as many parts as the key of its limit, which may have none.
            let is_key = (shape.title, field.name) == ("overrides", "key");
            if !is_key && problems.contains("empty list") != (least > 0) {
                wrong.push((shape.title, field.name, problems));
            }
        }
    }
    assert_eq!(wrong, []);
}

/// A regression: if the time zone was wrong, the message said that `rate` is an unknown field.
#[test]
fn a_wrong_value_makes_no_field_unknown() {
    for shape in shapes() {
        for field in (shape.fields)() {
            for wrong in ["false", "-1", "\"\"", "[[]]"] {
                let text = with(shape, &format!("{} = {wrong}", field.name));
                let loaded = parse("proxy.toml", &text, &no_env, &Overrides::default());
                let problems = loaded.err().map_or(String::new(), |problems| problems.to_string());
                assert!(!problems.contains("unknown field"), "{text}\n{problems}");
            }
        }
    }
}

#[test]
fn every_section_refuses_unknown_fields() {
    for shape in shapes() {
        let problems = refused(&with(shape, "zzzzzzzz = 1"));
        assert!(problems.contains("unknown field `zzzzzzzz`"), "{}: {problems}", shape.title);
    }
}

#[test]
fn no_problem_shows_a_secret() {
    let env = |name: &str| {
        // Values of the right kind that are wrong for another reason.
        Some(match name {
            "B" => "s3cret".to_owned(),
            "C" => "/s3cret/:id\\".to_owned(),
            "D" => "10.9.8.7/8-s3cret".to_owned(),
            "E" => "http://s3cret.test".to_owned(),
            _ => "s3cret value \u{1}".to_owned(),
        })
    };
    let anywhere = shapes().flat_map(|shape| {
        let values = ["\"${A}\"", "[\"${A}\"]"];
        let lines = move |name| values.map(|value| (shape, format!("{name} = {value}")));
        (shape.fields)().into_iter().flat_map(move |field| lines(field.name))
    });
    let chosen = [
        (&STORE, "url = \"redis://u:s3cret@[\""),
        (&STORE, "url = \"redis://u:s3cret@a:99999\""),
        (&ADMIN, "token = \"s3cret ä\""),
        (&UPSTREAM, "servers = [\"http://u:s3cret@a\"]"),
        (&UPSTREAM, "servers = [{ url = \"http://u:s3cret@a\" }]"),
        (&UPSTREAM, "servers = [\"${E}\", \"${E}\"]"),
        (&LIMIT, "key = [\"header:${B}\", \"header:${B}\"]"),
        (&LIMIT, "exempt = { header = { x-a = \"${A}\" } }"),
        (&ROUTE, "path = \"${C}\""),
        (&SERVER, "trusted_proxies = [\"${D}\"]"),
        (&TRACE, "otlp = \"http://u:s3cret@a\""),
    ];
    let mut refused = 0;
    for (shape, line) in anywhere.chain(chosen.map(|(shape, line)| (shape, line.to_owned()))) {
        let text = with(shape, &line);
        let loaded = parse("proxy.toml", &text, &env, &Overrides::default());
        let Err(problems) = loaded else { continue };
        refused += 1;
        assert!(!problems.to_string().contains("s3cret"), "{line}: {problems}");
        let shown = problems.render(Colour::Never);
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    assert!(refused > 200, "only {refused} were refused");
}
