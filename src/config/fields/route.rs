//! `[[routes]]` and what stands in it.

use super::Fallback::{Required, Value, Words};
use super::{Kind, Shape, TEXT_LIST, field};

/// `[[routes]]`.
pub(in crate::config) static ROUTE: Shape = Shape {
    title: "[[routes]]",
    fields: &[
        field(
            "name",
            Kind::Text,
            Words("the path, with methods and host where that repeats"),
            "unique; stands in keys, logs and metrics",
        ),
        field(
            "path",
            Kind::Text,
            Required,
            "`/users/{id}`, `/static/{*rest}`; the most specific wins",
        ),
        field("methods", TEXT_LIST, Words("any"), "one of these"),
        field("host", Kind::Text, Words("any"), "`www.example.com`, or `*.example.com`"),
        field("headers", Kind::Texts, Words("any"), "each of these with this value"),
        field("upstream", Kind::Text, Words("required, or `respond`"), "where its requests go"),
        field(
            "respond",
            Kind::Table(&RESPOND),
            Words("none"),
            "an answer from this file, in place of an upstream",
        ),
        field(
            "limits",
            TEXT_LIST,
            Value("[]"),
            "names of limits; all of them are decided together",
        ),
        field(
            "rewrite",
            Kind::Text,
            Words("none"),
            "another path for the upstream: `/v2/{id}`, `/v2/{*rest}`",
        ),
        field(
            "response_timeout",
            Kind::Duration,
            Words("the upstream's"),
            "to the response's head, for this route; 504",
        ),
        field(
            "max_body_size",
            Kind::Size,
            Words("the server's"),
            "bytes of a request's body, for this route; larger: 413",
        ),
        field(
            "request_headers",
            Kind::Table(&HEADERS),
            Words("none"),
            "changes to what goes upstream",
        ),
        field(
            "response_headers",
            Kind::Table(&HEADERS),
            Words("none"),
            "changes to what goes to the client",
        ),
    ],
    later: &[],
};

/// A route's `respond`.
pub(in crate::config) static RESPOND: Shape = Shape {
    title: "respond",
    fields: &[
        field("status", Kind::Whole { min: 200, max: 599 }, Value("200"), "the answer's status"),
        field("body", Kind::Text, Value("\"\""), "the answer's body, as plain text"),
    ],
    later: &[],
};

/// A route's `request_headers` and `response_headers`.
pub(in crate::config) static HEADERS: Shape = Shape {
    title: "header changes",
    fields: &[
        field("set", Kind::Texts, Words("none"), "in place of what is there"),
        field("add", Kind::Texts, Words("none"), "beside what is there"),
        field("remove", TEXT_LIST, Value("[]"), "taken out"),
    ],
    later: &[],
};
