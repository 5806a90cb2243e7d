//! `[upstreams.NAME]`.

mod address;
pub(crate) mod goal;
pub(crate) mod health;

pub(super) use self::address::host_and_port;
pub(crate) use self::address::{URL, server_address};
use self::goal::{GOAL, max_requests};
use self::health::{HEALTH, health};
use super::key::key_source;
use super::tls::{self, UPSTREAM_TLS};
use super::values::{Named, all, named, once, url};
use crate::config::reader::{
    Item, Kind, Required, Section, SettingList, Shape, Span, Value, Words, at, field, fields, read,
    setting, spellings, words,
};
use crate::limit::name::Name;
use crate::request::key::{KeySource, KeySpec, Missing};
use crate::settings::{Balance, OnAbort, Priority, Scheme, UpstreamServer, UpstreamSpec};

type Spec = UpstreamSpec;

pub(crate) static UPSTREAM: Shape = Shape::new("[upstreams.NAME]", || fields(SETTINGS));

#[rustfmt::skip]
pub(crate) static SETTINGS: SettingList<Spec> = &[
    field("servers", Kind::List(1, &Kind::Either(&[Kind::SERVER_URL, Kind::Table(&UPSTREAM_SERVER)])), Required,
        "`http://`, `https://` or `h2c://` URLs without a path, or `unix:/PATH`; or tables with a `weight`"),
    field("balance", Kind::Word(spellings::<BalanceWord>), Value("\"least-requests\""),
        "how a request's server is chosen: of two random servers the one with fewer requests in flight, each in turn, or by `hash_key`"),
    field("hash_key", Kind::KEY_SOURCES, Words("none"),
        "beside `balance = \"hash\"`: parts of the request as in a limit's `key`; requests with equal parts go to the same server"),
    setting(at!(connect_timeout), Kind::TIME_ABOVE_ZERO, Value("\"2s\""),
        "the time to connect to one server; then the others are tried, and at last 504"),
    setting(at!(response_timeout), Kind::TIME_ABOVE_ZERO, Value("\"60s\""), "the time to the response's head; 504 past it"),
    setting(at!(idle_timeout), Kind::TIME_ABOVE_ZERO, Value("\"60s\""), "the time between two reads of a response's body"),
    setting(at!(max_requests, max_requests), Kind::Either(&[Kind::Whole(1, 1_000_000), Kind::Table(&GOAL)]), Words("none"),
        "requests in flight from this process, of one client address at most half while their bodies come; up to 1000 more wait; a tunnel no longer counts once it has begun; or a goal: no limit while the answers come in time, else one that finds itself"),
    setting(at!(queue_timeout), Kind::TIME, Value("\"1s\""),
        "the time for which a request waits because of `max_requests`; 503 past it; in a queue that stands for a second no longer than a quarter of the goal"),
    field("share_by", Kind::KEY_SOURCES, Words("one key for all"),
        "parts of the request as in a limit's `key`: who waits for `max_requests` is served in fair turns between these keys"),
    setting(at!(retries), Kind::Whole(0, 10), Value("1"),
        "further tries where nothing was sent, or where a second try is safe; in all at most a tenth of the requests"),
    setting(at!(on_abort), Kind::Word(spellings::<OnAbort>), Value("\"close\""),
        "a request whose client has left ends; or `\"finish\"`: it goes on to its end and holds what it has taken until then, for APIs that go on working when their caller hangs up"),
    setting(at!(finish_timeout), Kind::TIME_ABOVE_ZERO, Value("\"10m\""),
        "beside `on_abort = \"finish\"`: the time after which a request ends at the latest whose client has left"),
    setting(at!(health, health), Kind::Table(&HEALTH), Words("none"),
        "a request that each server is asked now and then; a server that fails is set aside"),
    setting(at!(respect_retry_after), Kind::Flag, Value("false"),
        "a server that answers 429 or 503 with `retry-after` gets no requests for that time, at most a minute; if all servers have answered so, clients get 503"),
    field("tls", Kind::Table(&UPSTREAM_TLS), Words("the machine's authorities"),
        "how servers by `https` are verified, and the certificate for them"),
];

words!(Priority { "high" => High, "normal" => Normal, "low" => Low });

words!(OnAbort { "close" => Close, "finish" => Finish });

/// The values of `balance` in the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BalanceWord {
    LeastRequests,
    RoundRobin,
    Hash,
}

words!(BalanceWord {
    "least-requests" => LeastRequests,
    "round-robin" => RoundRobin,
    "hash" => Hash,
});

/// One of an upstream's `servers`, written as a table.
pub(crate) static UPSTREAM_SERVER: Shape = Shape::new("a server", || fields(OF_SERVER));

#[rustfmt::skip]
static OF_SERVER: SettingList<()> = &[
    field("url", Kind::SERVER_URL, Required, "as in `servers`"),
    field("weight", Kind::Whole(1, 1_000), Value("1"), "the server's share of the requests, compared with the others'"),
];

pub(crate) fn build(root: &mut Section<'_>) -> Vec<Named<UpstreamSpec>> {
    let system = tls::SystemRoots::new();
    named(root, "upstreams", &UPSTREAM, |section, name| Some(one(section, name, &system)))
}

fn one(mut section: Section<'_>, name: Name, system: &tls::SystemRoots) -> UpstreamSpec {
    let servers = servers(&mut section);
    let secure = servers.iter().filter(|(server, _)| server.address.scheme == Scheme::Https);
    let secure: Vec<_> = secure.map(|(server, span)| (&server.address.endpoint, span)).collect();
    let unused = "none of its servers is reached by `https://`";
    let unused = (!servers.is_empty()).then_some(unused);
    let tls = tls::towards(&mut section, &secure, unused, system);
    let servers = servers.into_iter().map(|(server, _)| server).collect();
    let balance = balance(&mut section).unwrap_or_default();
    if !section.has(|name| name == "max_requests") {
        warn_unused(&section, "queue_timeout", "max_requests = 100");
        let title = "`share_by` means nothing without `max_requests`";
        section.refuse_field("share_by", title, "expected `max_requests` beside it: nobody waits");
    }
    let (prefixes, _) = section.cx.key_form.get();
    let share_by = section.take("share_by").and_then(|item| key_sources(&item, "[\"ip\"]"));
    let share_by = share_by.map(|sources| KeySpec {
        sources: sources.into(),
        missing: Missing::Shared,
        prefixes,
    });
    if !section.has(|name| name == "on_abort") {
        warn_unused(&section, "finish_timeout", "on_abort = \"finish\"");
    }
    let spec = UpstreamSpec { name, servers, balance, share_by, tls, ..UpstreamSpec::default() };
    read(SETTINGS, section, spec)
}

/// `balance` and `hash_key`. `None` if one of them is wrong.
fn balance(section: &mut Section<'_>) -> Option<Balance> {
    const EXAMPLE: &str = "[\"ip\"]";
    let word: BalanceWord = section.plain("balance")?;
    let item = if word == BalanceWord::Hash {
        section.require("hash_key", EXAMPLE)
    } else {
        warn_unused(section, "hash_key", "balance = \"hash\"");
        section.take("hash_key")
    };
    let sources = item.and_then(|item| key_sources(&item, EXAMPLE));
    let (prefixes, _) = section.cx.key_form.get();
    let key =
        |sources: Vec<_>| KeySpec { sources: sources.into(), missing: Missing::Skip, prefixes };
    Some(match word {
        BalanceWord::LeastRequests => Balance::LeastRequests,
        BalanceWord::RoundRobin => Balance::RoundRobin,
        BalanceWord::Hash => Balance::Hash(key(sources?)),
    })
}

/// The parts of a key that is no limit's.
fn key_sources(item: &Item<'_>, example: &str) -> Option<Vec<KeySource>> {
    let items = item.list()?;
    if items.is_empty() {
        item.reject(format!("expected at least one part: `{example}`"));
        return None;
    }
    let sources: Vec<_> = all(items.iter().map(key_source))?;
    let of_body = sources.iter().position(KeySource::reads_body);
    if let Some(part) = of_body.and_then(|at| items.get(at)) {
        part.reject("expected another part: a body is read for limits alone");
        return None;
    }
    Some(sources)
}

/// Warns of a field that changes nothing without the field `without`.
fn warn_unused(section: &Section<'_>, field: &str, without: &str) {
    if let Some(item) = section.item(field) {
        let title = format!("`{field}` changes nothing without `{without}`");
        item.doubt(title, format!("add `{without}`, or remove `{field}`"));
    }
}

fn servers(section: &mut Section<'_>) -> Vec<(UpstreamServer, Span)> {
    let Some(item) = section.require("servers", "[\"http://127.0.0.1:3000\"]") else {
        return Vec::new();
    };
    let Some(items) = item.list() else { return Vec::new() };
    if items.is_empty() {
        item.reject("expected at least one server: `[\"http://127.0.0.1:3000\"]`");
    }
    let endpoint = |server: &UpstreamServer| Some(server.address.endpoint.clone());
    once(&items, server, endpoint, |server| server.address.url.clone())
}

fn server(item: &Item<'_>) -> Option<UpstreamServer> {
    if !item.is_table() {
        return Some(UpstreamServer { address: url(item, URL, server_address)?, weight: 1 });
    }
    let mut section = item.section(&UPSTREAM_SERVER, "a server")?;
    let item = section.require("url", "\"http://127.0.0.1:3000\"");
    let weight = section.plain("weight");
    section.finish();
    Some(UpstreamServer { address: url(&item?, URL, server_address)?, weight: weight? })
}
