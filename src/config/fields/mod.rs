//! The one list of everything that `proxy.toml` may say: the reader knows its fields from here,
//! and so do the JSON Schema and the README's tables.

mod limit;
mod route;
mod upstream;

use Fallback::{Value, Words};

pub(super) use self::limit::{CANDIDATE, COST, COUNT_WHEN, EXEMPT, LIMIT, OVERRIDE, RESPONSE_COST};
pub(super) use self::route::{HEADERS, RESPOND, ROUTE};
pub(super) use self::upstream::{UPSTREAM, UPSTREAM_SERVER};

/// A table of the file: its fields, and the ones that a later version will have.
#[derive(Debug)]
pub(super) struct Shape {
    /// As messages and headings name it.
    pub(super) title: &'static str,
    pub(super) fields: &'static [Field],
    /// Fields that are refused with "not supported yet".
    pub(super) later: &'static [&'static str],
}

/// One field of a table.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) default: Fallback,
    /// In one line.
    pub(super) meaning: &'static str,
}

/// What holds where a field is not there.
#[derive(Debug)]
pub(super) enum Fallback {
    /// It must be there.
    Required,
    /// This value, in TOML.
    Value(&'static str),
    /// What these words say.
    Words(&'static str),
}

/// What a field may hold.
#[derive(Debug)]
pub(super) enum Kind {
    Flag,
    Whole {
        min: u64,
        max: u64,
    },
    Duration,
    Size,
    Rate,
    Network,
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// One of these words, or any other text.
    WordOrText(&'static [&'static str]),
    /// A table of any names, each with a text.
    Texts,
    Table(&'static Shape),
    /// A table of names, each with such a table: `[limits.NAME]`.
    Named(&'static Shape),
    List(&'static Self),
    /// Any of these.
    Either(&'static [Self]),
}

/// The tables of the file, in the order in which README has them.
pub(super) static SECTIONS: [&Shape; 16] = [
    &SERVER,
    &UPSTREAM,
    &LIMIT,
    &COST,
    &RESPONSE_COST,
    &COUNT_WHEN,
    &EXEMPT,
    &CANDIDATE,
    &OVERRIDE,
    &ROUTE,
    &RESPOND,
    &HEADERS,
    &STORE,
    &REJECT,
    &LOG,
    &ADMIN,
];

const fn field(name: &'static str, kind: Kind, default: Fallback, meaning: &'static str) -> Field {
    Field { name, kind, default, meaning }
}

/// The most worker threads.
pub(super) const MAX_WORKERS: u64 = 1_024;
/// The most client connections.
pub(super) const MAX_CONNECTIONS: u64 = 10_000_000;
/// The most requests that are held for a limit.
pub(super) const MAX_WAITING: u64 = 1_000_000;
/// The most further tries.
pub(super) const MAX_RETRIES: u64 = 10;
/// The most buckets in memory.
pub(super) const MAX_KEYS: u64 = 1_000_000_000;
/// The most tokens of a burst or a cost.
pub(super) const MAX_TOKENS: u64 = crate::limit::rate::MAX_TOKENS;

const TEXT_LIST: Kind = Kind::List(&Kind::Text);
const STORE_ERRORS: &[&str] = &["local", "allow", "reject"];

/// The file.
pub(super) static ROOT: Shape = Shape {
    title: "the file",
    fields: &[
        field(
            "server",
            Kind::Table(&SERVER),
            Words("its defaults"),
            "where to listen, timeouts, sizes, trust",
        ),
        field(
            "upstreams",
            Kind::Named(&UPSTREAM),
            Words("none"),
            "the existing API: one or more servers",
        ),
        field(
            "limits",
            Kind::Named(&LIMIT),
            Words("none"),
            "how much, how often, counted per what",
        ),
        field(
            "routes",
            Kind::List(&Kind::Table(&ROUTE)),
            Words("none"),
            "which requests, where they go, which limits apply",
        ),
        field("store", Kind::Table(&STORE), Words("its defaults"), "where buckets live"),
        field(
            "reject",
            Kind::Table(&REJECT),
            Words("its defaults"),
            "the answer to a throttled client",
        ),
        field("log", Kind::Table(&LOG), Words("its defaults"), "what is logged, and how"),
        field("admin", Kind::Table(&ADMIN), Words("none"), "health checks and metrics"),
    ],
    later: &[],
};

/// `[server]`.
pub(super) static SERVER: Shape = Shape {
    title: "[server]",
    fields: &[
        field(
            "listen",
            Kind::Either(&[Kind::Text, TEXT_LIST]),
            Value("\"127.0.0.1:8080\""),
            "an address or a list of them",
        ),
        field(
            "workers",
            Kind::Whole { min: 1, max: MAX_WORKERS },
            Words("one for each core"),
            "threads that serve",
        ),
        field("header_timeout", Kind::Duration, Value("\"10s\""), "to receive a request's head"),
        field(
            "body_timeout",
            Kind::Duration,
            Value("\"30s\""),
            "between two reads of a request's body or two writes of a response",
        ),
        field(
            "idle_timeout",
            Kind::Duration,
            Value("\"75s\""),
            "a keep-alive connection without a request",
        ),
        field(
            "tunnel_timeout",
            Kind::Duration,
            Value("\"1h\""),
            "an upgraded connection on which nothing moves",
        ),
        field(
            "shutdown_delay",
            Kind::Duration,
            Value("\"0s\""),
            "after SIGTERM, go on taking connections this long with `/readyz` already 503",
        ),
        field(
            "drain_timeout",
            Kind::Duration,
            Value("\"30s\""),
            "then stop accepting and finish what is under way",
        ),
        field(
            "max_connections",
            Kind::Whole { min: 1, max: MAX_CONNECTIONS },
            Value("20000"),
            "more wait in the accept queue",
        ),
        field("max_header_size", Kind::Size, Value("\"32KiB\""), "a request's head; larger: 431"),
        field("max_body_size", Kind::Size, Words("none"), "a request's body; larger: 413"),
        field(
            "trusted_proxies",
            Kind::List(&Kind::Network),
            Value("[]"),
            "networks whose `client_ip_header` is believed",
        ),
        field(
            "client_ip_header",
            Kind::WordOrText(&["x-forwarded-for", "forwarded"]),
            Value("\"x-forwarded-for\""),
            "where they name the client; or a header that holds one address",
        ),
        field(
            "merge_slashes",
            Kind::Flag,
            Value("true"),
            "`false` leaves doubled slashes in what goes upstream",
        ),
        field(
            "ipv6_prefix",
            Kind::Whole { min: 1, max: 128 },
            Value("64"),
            "IPv6 clients are counted by this prefix",
        ),
    ],
    later: &["tls", "proxy_protocol"],
};

/// `[store]`.
pub(super) static STORE: Shape = Shape {
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
    later: &[],
};

/// `[reject]`, and a limit's own.
pub(super) static REJECT: Shape = Shape {
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
    later: &[],
};

/// `[log]`.
pub(super) static LOG: Shape = Shape {
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
pub(super) static ADMIN: Shape = Shape {
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
