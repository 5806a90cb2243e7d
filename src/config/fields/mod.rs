//! The one list of everything that `proxy.toml` may say, a file for each section: the reader knows its
//! fields from here, and so do the JSON Schema and the tables of docs/reference.md.

mod answer;
mod limit;
mod log;
mod route;
mod server;
mod store;
mod upstream;

use Fallback::Words;

pub(super) use self::answer::REJECT;
pub(super) use self::limit::{CANDIDATE, COST, COUNT_WHEN, EXEMPT, LIMIT, OVERRIDE, RESPONSE_COST};
pub(super) use self::log::{ADMIN, LOG};
pub(super) use self::route::{HEADERS, RESPOND, ROUTE};
pub(super) use self::server::{CERTIFICATE, SERVER, SERVER_TLS};
pub(super) use self::store::STORE;
pub(super) use self::upstream::{UPSTREAM, UPSTREAM_SERVER, UPSTREAM_TLS};

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

/// The tables of the file, in the order in which docs/reference.md has them.
pub(super) static SECTIONS: [&Shape; 19] = [
    &SERVER,
    &SERVER_TLS,
    &CERTIFICATE,
    &UPSTREAM,
    &UPSTREAM_TLS,
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
    later: &["trace", "tests"],
};
