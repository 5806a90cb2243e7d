//! `[upstreams.NAME]` and what stands in it.

use super::Fallback::{Required, Value, Words};
use super::{Kind, MAX_RETRIES, Shape, field};

/// `[upstreams.NAME]`.
pub(in crate::config) static UPSTREAM: Shape = Shape {
    title: "[upstreams.NAME]",
    fields: &[
        field(
            "servers",
            Kind::List(&Kind::Either(&[Kind::Text, Kind::Table(&UPSTREAM_SERVER)])),
            Required,
            "`http://`, `https://` or `h2c://` URLs without a path, or `unix:/PATH`",
        ),
        field(
            "balance",
            Kind::Word(&["least-requests", "round-robin"]),
            Value("\"least-requests\""),
            "how a request's server is chosen",
        ),
        field(
            "connect_timeout",
            Kind::Duration,
            Value("\"2s\""),
            "to connect to one server; 504 past it, after trying the others",
        ),
        field("response_timeout", Kind::Duration, Value("\"30s\""), "to the response's head; 504"),
        field("idle_timeout", Kind::Duration, Value("\"60s\""), "between two reads of a body"),
        field(
            "retries",
            Kind::Whole { min: 0, max: MAX_RETRIES },
            Value("1"),
            "further tries where nothing was sent, or where a second try is safe",
        ),
        field(
            "tls",
            Kind::Table(&UPSTREAM_TLS),
            Words("the machine's authorities"),
            "how servers by `https` are verified, and what they are shown",
        ),
    ],
    later: &["max_requests", "queue_timeout", "health", "hash_key", "respect_retry_after"],
};

/// One of an upstream's `servers`, written as a table.
pub(in crate::config) static UPSTREAM_SERVER: Shape = Shape {
    title: "a server",
    fields: &[field("url", Kind::Text, Required, "as in `servers`")],
    later: &["weight"],
};

/// `tls` of `[upstreams.NAME]`.
pub(in crate::config) static UPSTREAM_TLS: Shape = Shape {
    title: "tls of an upstream",
    fields: &[
        field(
            "ca",
            Kind::Text,
            Words("the machine's authorities"),
            "PEM: who signs the servers' certificates, and nobody else",
        ),
        field(
            "server_name",
            Kind::Text,
            Words("the URL's host"),
            "the name in the servers' certificates",
        ),
        field("cert", Kind::Text, Words("none"), "PEM: a certificate for servers that ask for one"),
        field("key", Kind::Text, Words("none"), "PEM: its private key, without a password"),
    ],
    later: &[],
};
