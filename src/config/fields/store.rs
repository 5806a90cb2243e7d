//! `[store]`.

use super::Fallback::Value;
use super::{Kind, MAX_KEYS, STORE_ERRORS, Shape, field};

/// `[store]`.
pub(in crate::config) static STORE: Shape = Shape {
    title: "[store]",
    fields: &[
        field(
            "url",
            Kind::Text,
            Value("\"memory:\""),
            "or `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, `redis+unix:///PATH`",
        ),
        field("prefix", Kind::Text, Value("\"tidegate\""), "of every key in Redis"),
        field("timeout", Kind::Duration, Value("\"100ms\""), "for one decision"),
        field(
            "on_error",
            Kind::Word(STORE_ERRORS),
            Value("\"local\""),
            "Redis out of reach: this process's own buckets decide, all pass, or 503",
        ),
        field(
            "max_keys",
            Kind::Whole { min: 1, max: MAX_KEYS },
            Value("1000000"),
            "buckets in this process's memory",
        ),
        field(
            "lease",
            Kind::Word(&["off"]),
            Value("\"off\""),
            "whether tokens are fetched in batches",
        ),
    ],
    later: &["tls", "prefetch"],
};
