//! `[reject]`: the answer to a throttled client.

use super::Fallback::Value;
use super::{Kind, Shape, field};

/// `[reject]`, and a limit's own.
pub(in crate::config) static REJECT: Shape = Shape {
    title: "[reject]",
    fields: &[
        field(
            "status",
            Kind::Whole { min: 400, max: 599 },
            Value("429"),
            "of the answer to a throttled client",
        ),
        field(
            "body",
            Kind::WordOrText(&["problem", "text", "empty"]),
            Value("\"problem\""),
            "RFC 9457 JSON, a line of text, nothing, or a text of your own",
        ),
        field(
            "headers",
            Kind::List(&Kind::Word(&["retry-after", "ratelimit", "x-ratelimit"])),
            Value("[\"retry-after\", \"ratelimit\"]"),
            "the last two are on allowed answers too",
        ),
    ],
    later: &["jitter"],
};
