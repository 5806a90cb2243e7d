//! `[log]` and `[admin]`: what an operator sees.

use super::Fallback::{Value, Words};
use super::{Kind, Shape, field};

/// `[log]`.
pub(in crate::config) static LOG: Shape = Shape {
    title: "[log]",
    fields: &[
        field(
            "format",
            Kind::Word(&["pretty", "json"]),
            Words("`\"pretty\"` on a terminal, else `\"json\"`"),
            "how a line looks",
        ),
        field(
            "level",
            Kind::Text,
            Value("\"info\""),
            "or a filter as `RUST_LOG` has it; that variable wins",
        ),
        field("access", Kind::Flag, Value("false"), "a line for each request"),
        field(
            "throttle",
            Kind::Word(&["summary", "each", "off"]),
            Value("\"summary\""),
            "the first rejection of a limit and key at once, then a line each interval",
        ),
        field("summary_interval", Kind::Duration, Value("\"10s\""), "between two summaries"),
        field(
            "keys",
            Kind::Word(&["hashed", "plain"]),
            Value("\"hashed\""),
            "whether values of headers, cookies and query stand in logs and in Redis",
        ),
    ],
    later: &[],
};

/// `[admin]`.
pub(in crate::config) static ADMIN: Shape = Shape {
    title: "[admin]",
    fields: &[
        field(
            "listen",
            Kind::Text,
            Words("none"),
            "an address for `/healthz`, `/readyz`, `/metrics`",
        ),
        field(
            "token",
            Kind::Text,
            Words("none"),
            "a bearer token for everything but the two health checks; required where the address is not loopback",
        ),
    ],
    later: &[],
};
