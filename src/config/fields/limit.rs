//! `[limits.NAME]` and what stands in it.

use super::Fallback::{Required, Value, Words};
use super::{Kind, MAX_TOKENS, MAX_WAITING, REJECT, STORE_ERRORS, Shape, TEXT_LIST, field};

/// `[limits.NAME]`.
pub(in crate::config) static LIMIT: Shape = Shape {
    title: "[limits.NAME]",
    fields: &[
        field(
            "key",
            TEXT_LIST,
            Value("[]"),
            "what it counts by: `\"ip\"`, `\"path\"`, `\"method\"`, `\"host\"`, `\"route\"`, `\"header:NAME\"`, `\"cookie:NAME\"`, `\"query:NAME\"`, `\"param:NAME\"`, `\"cert\"` (the subject of the client's certificate, as in `CN=alice,O=Example`); `[]` is one bucket for all; `\"header:x-api-key | ip\"` is the first of them that the request has, and values of different ones never meet",
        ),
        field(
            "missing",
            Kind::Word(&["shared", "skip", "reject"]),
            Value("\"shared\""),
            "a request without that header, cookie …: one bucket for all of them, no limit, or 400",
        ),
        field(
            "algorithm",
            Kind::Word(&[
                "token-bucket",
                "leaky-bucket",
                "fixed-window",
                "sliding-window",
                "sliding-log",
                "concurrency",
                "redisson",
            ]),
            Value("\"token-bucket\""),
            "how it counts",
        ),
        field(
            "align",
            Kind::Word(&["first-request", "clock"]),
            Words("`\"first-request\"`"),
            "of a fixed window: it opens at a key's first request, or with the clock",
        ),
        field(
            "timezone",
            Kind::Text,
            Words("`\"UTC\"`"),
            "of `align = \"clock\"`: whose days, weeks (from Monday) and months, as in `\"Europe/Berlin\"`",
        ),
        field(
            "rate",
            Kind::Rate,
            Words("required, but for `concurrency` and `redisson`"),
            "tokens each interval: `\"100/s\"`, `\"1000/10m\"`, `\"unlimited\"`, `\"0/s\"`; a fixed window on the clock has `\"100000/month\"` too",
        ),
        field(
            "burst",
            Kind::Whole { min: 1, max: MAX_TOKENS },
            Words("the rate's count"),
            "the bucket's size",
        ),
        field(
            "queue",
            Kind::Whole { min: 0, max: MAX_TOKENS - 1 },
            Words("the rate's count"),
            "of a leaky bucket: how many requests are held at most; one more is rejected",
        ),
        field(
            "limit",
            Kind::Whole { min: 1, max: MAX_TOKENS },
            Words("required for `concurrency`"),
            "requests that may be under way at once",
        ),
        field(
            "lease",
            Kind::Duration,
            Value("\"60s\""),
            "of `concurrency`: in Redis, a slot whose proxy died is free again after this time; at least `\"1s\"`",
        ),
        field(
            "cost",
            Kind::Either(&[
                Kind::Whole { min: 1, max: MAX_TOKENS },
                Kind::Table(&COST),
                Kind::Table(&RESPONSE_COST),
            ]),
            Value("1"),
            "what a request takes: a number, or what a header or the response says",
        ),
        field(
            "count_when",
            Kind::Table(&COUNT_WHEN),
            Words("every request"),
            "only responses with these statuses count; what others had taken is given back",
        ),
        field(
            "wait",
            Kind::Duration,
            Value("\"0s\""),
            "a request that would be allowed within this time is held until then; a leaky bucket holds as long as its queue needs, or at most so long",
        ),
        field(
            "max_waiting",
            Kind::Whole { min: 0, max: MAX_WAITING },
            Value("1000"),
            "requests that this process holds at once for this limit; more are rejected",
        ),
        field(
            "exempt",
            Kind::Table(&EXEMPT),
            Words("none"),
            "what this limit never looks at; any one entry suffices",
        ),
        field(
            "scope",
            Kind::Word(&["cluster", "node"]),
            Value("\"cluster\""),
            "one bucket for all processes that share the store, or for each its own",
        ),
        field(
            "mode",
            Kind::Word(&["enforce", "shadow", "off"]),
            Value("\"enforce\""),
            "shadow: checked, counted, logged, and never rejects",
        ),
        field(
            "candidate",
            Kind::Table(&CANDIDATE),
            Words("none"),
            "other figures, tried in shadow in place of the limit's own on the same traffic",
        ),
        field(
            "on_store_error",
            Kind::Word(STORE_ERRORS),
            Words("the store's `on_error`"),
            "while Redis is out of reach",
        ),
        field(
            "overrides",
            Kind::List(&Kind::Table(&OVERRIDE)),
            Value("[]"),
            "other figures for some keys",
        ),
        field("reject", Kind::Table(&REJECT), Words("the file's"), "this limit's own `[reject]`"),
        field(
            "name",
            Kind::Text,
            Words("required for `redisson`"),
            "of `redisson`: the name of the `RRateLimiter`; with a `key` the name is this, a colon and the key's values joined by colons",
        ),
        field(
            "type",
            Kind::Word(&["overall", "per-client"]),
            Words("`\"overall\"`"),
            "of `redisson`: one budget for all who use the limiter, or for each process its own; where Redis has none yet",
        ),
    ],
    later: &["ramp"],
};

/// A limit's `cost`, written as a table.
pub(in crate::config) static COST: Shape = Shape {
    title: "cost",
    fields: &[
        field("header", Kind::Text, Required, "the request's header that says what it takes"),
        field(
            "default",
            Kind::Whole { min: 1, max: MAX_TOKENS },
            Value("1"),
            "where the request does not have it",
        ),
        field(
            "max",
            Kind::Whole { min: 1, max: MAX_TOKENS },
            Words("the burst"),
            "the most it may say; more is refused with 400",
        ),
    ],
    later: &[],
};

/// The same, where the response tells.
pub(in crate::config) static RESPONSE_COST: Shape = Shape {
    title: "cost by response",
    fields: &[
        field(
            "response_header",
            Kind::Text,
            Words("required, or `response_json`"),
            "the response's header that says what was used",
        ),
        field(
            "response_json",
            Kind::Text,
            Words("none"),
            "keys with dots between them, to the number in a response of JSON or in the last data of server-sent events that has it",
        ),
        field(
            "response_bytes",
            Kind::Flag,
            Words("`false`"),
            "`true`: the bytes of the response's body are what was used",
        ),
        field(
            "unknown",
            Kind::Word(&["estimate", "max"]),
            Value("\"estimate\""),
            "what is taken in the end where the response does not say, as where the client leaves before",
        ),
        field(
            "estimate",
            Kind::Whole { min: 1, max: MAX_TOKENS },
            Required,
            "what is taken before the response",
        ),
        field(
            "max",
            Kind::Whole { min: 1, max: MAX_TOKENS },
            Words("100 bursts"),
            "the most that one response takes, whatever it says",
        ),
    ],
    later: &[],
};

/// A limit's `count_when`.
pub(in crate::config) static COUNT_WHEN: Shape = Shape {
    title: "count_when",
    fields: &[field(
        "status",
        TEXT_LIST,
        Required,
        "statuses as the client gets them: `\"401\"`, `\"5xx\"`",
    )],
    later: &[],
};

/// A limit's `exempt`.
pub(in crate::config) static EXEMPT: Shape = Shape {
    title: "exempt",
    fields: &[
        field("ip", Kind::List(&Kind::Network), Value("[]"), "clients' networks"),
        field("path", TEXT_LIST, Value("[]"), "path patterns as in routes"),
        field("header", Kind::Texts, Words("none"), "headers with exactly this value"),
    ],
    later: &[],
};

/// A limit's `candidate`.
pub(in crate::config) static CANDIDATE: Shape = Shape {
    title: "candidate",
    fields: &[
        field("rate", Kind::Rate, Required, "as in the limit"),
        field(
            "burst",
            Kind::Whole { min: 1, max: MAX_TOKENS },
            Words("the candidate's own count"),
            "as in the limit",
        ),
        field(
            "queue",
            Kind::Whole { min: 0, max: MAX_TOKENS - 1 },
            Words("the candidate's own count"),
            "as in the limit",
        ),
    ],
    later: &[],
};

/// One of a limit's `overrides`.
pub(in crate::config) static OVERRIDE: Shape = Shape {
    title: "overrides",
    fields: &[
        field(
            "key",
            TEXT_LIST,
            Required,
            "a value for each part of the limit's key; `\"*\"` is any, an `ip` may be a network",
        ),
        field("rate", Kind::Rate, Words("required, but for `concurrency`"), "as in the limit"),
        field(
            "burst",
            Kind::Whole { min: 1, max: MAX_TOKENS },
            Words("the override's own count"),
            "as in the limit",
        ),
        field(
            "queue",
            Kind::Whole { min: 0, max: MAX_TOKENS - 1 },
            Words("the override's own count"),
            "as in the limit",
        ),
        field(
            "limit",
            Kind::Whole { min: 1, max: MAX_TOKENS },
            Words("required for `concurrency`"),
            "as in the limit",
        ),
    ],
    later: &[],
};
