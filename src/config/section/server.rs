//! `[server]`.

use http::HeaderName;

use super::listen::{LISTEN, TakenAddress, addresses};
pub(crate) use super::listen::{LISTEN_ADDRESS, listen_address};
use super::route::USED_LIMITS;
use super::tls::{self, SERVER_TLS};
use super::values::{network_item, once_each};
use crate::config::reader::{
    Item, Kind, Section, SettingList, Shape, Value, Words, Wrong, at, field, fields, read, setting,
};
use crate::request::client::ClientHeader;
use crate::request::network::Networks;
use crate::settings::ServerSpec;

type Spec = ServerSpec;

pub(crate) static SERVER: Shape = Shape::new("[server]", || fields(SETTINGS));

#[rustfmt::skip]
pub(crate) static SETTINGS: SettingList<Spec> = &[
    field("listen", LISTEN, Value("\"127.0.0.1:8080\""),
        "an address or a list of them, for clear text, also `\"unix:/PATH\"`; `[]` beside `tls` or `[decide]` for none. `\"[::]:80\"` takes IPv4 as well, unless `\"0.0.0.0:80\"` stands beside it").restart(),
    field("tls", Kind::Table(&SERVER_TLS), Words("none"),
        "the addresses and the certificates for TLS"),
    setting(at!(workers), Kind::Whole(1, 1_024), Words("one for each core"),
        "threads that serve").restart(),
    setting(at!(header_timeout), Kind::TIME_ABOVE_ZERO, Value("\"10s\""),
        "the time to receive a request's head"),
    setting(at!(body_timeout), Kind::TIME_ABOVE_ZERO, Value("\"30s\""),
        "the time between two reads of a request's body or two writes of a response"),
    setting(at!(idle_timeout), Kind::TIME_ABOVE_ZERO, Value("\"75s\""),
        "the time for which a keep-alive connection may have no request"),
    setting(at!(tunnel_timeout), Kind::TIME_ABOVE_ZERO, Value("\"1h\""),
        "the time for which nothing may move on an upgraded connection; once one side has ended, `body_timeout` counts"),
    setting(at!(shutdown_delay), Kind::TIME, Value("\"0s\""),
        "the time after SIGTERM in which connections are still accepted, with `/readyz` already 503"),
    setting(at!(drain_timeout), Kind::TIME, Value("\"30s\""),
        "the time to finish the requests under way, after `shutdown_delay`; no connection is accepted then"),
    setting(at!(max_connections), Kind::Whole(1, 10_000_000), Value("20000"),
        "client connections at once, and as many of proxies that ask (`[decide]`); for each further one the connection that has been idle longest is closed, and more wait in the accept queue"),
    setting(at!(max_connections_per_client), Kind::Whole(1, 10_000_000), Words("none"),
        "connections of one client address (by `ipv4_prefix` and `ipv6_prefix`) at once; more are closed. Trusted proxies are not counted"),
    field("limits", USED_LIMITS, Value("[]"),
        "limits of every request, beside those of its route; also of a request that no route takes. `{ name = \"budget\", cost = 5 }` as in a route"),
    setting(at!(request_id, request_id), Kind::HEADER, Words("none"),
        "a header such as `\"x-request-id\"`: taken from `trusted_proxies`, made where there is none, sent upstream and to the client, and in the log"),
    // With the smallest size, usual heads still fit.
    setting(at!(max_header_size), Kind::Size(8 << 10, 16 << 20), Value("\"32KiB\""),
        "a request's head, `\"8KiB\"` to `\"16MiB\"`; larger: 431. Over HTTP/1.1 a head has at most 100 fields"),
    setting(at!(max_body_size), Kind::SIZE_ABOVE_ZERO, Words("none"),
        "a request's body; larger: 413"),
    setting(at!("trusted_proxies", trust.networks, networks), Kind::List(0, &Kind::Network), Value("[]"),
        "networks whose `client_ip_header` is believed"),
    setting(at!("client_ip_header", trust.header, client_header), Kind::WordOrText(&["x-forwarded-for", "forwarded"]), Value("\"x-forwarded-for\""),
        "the header in which `trusted_proxies` name the client; or another header, which holds one address"),
    setting(at!(proxy_protocol), Kind::Flag, Value("false"),
        "`trusted_proxies` must begin each connection with a PROXY header, version 1 or 2"),
    setting(at!(loose_paths), Kind::Flag, Value("false"),
        "`true`: routes and keys take paths without regard to case and to a slash at the end (`/Login` and `/login/` are `/login`), as many frameworks do; what goes upstream stays as it came"),
    setting(at!(merge_slashes), Kind::Flag, Value("true"),
        "`false` leaves doubled slashes in what goes upstream"),
    setting(at!("ipv4_prefix", prefixes.v4), Kind::Whole(1, 32), Value("32"), "IPv4 clients are counted by this prefix"),
    setting(at!("ipv6_prefix", prefixes.v6), Kind::Whole(1, 128), Value("64"),
        "IPv6 clients are counted by this prefix; an address that carries an IPv4 address (`::ffff:0:0/96`, `::ffff:0:0:0/96`, `64:ff9b::/96`) counts as the IPv4 address"),
];

/// The settings, and the addresses that they take. `decides` says that the file has `[decide]`.
pub(crate) fn build(mut section: Section<'_>, decides: bool) -> (ServerSpec, Vec<TakenAddress>) {
    let mut taken = listen(&mut section, decides);
    let listen: Vec<_> = taken.iter().map(|it| it.address.clone()).collect();
    // A client at a Unix socket, or one that asks for decisions, is a trusted proxy.
    let has_local_proxies = listen.iter().any(|address| address.tcp().is_none());
    let has_proxies = has_local_proxies || decides;
    let tls = tls::server(&mut section, &mut taken);
    let proxy_protocol = section.item("proxy_protocol");
    let header = section.item("client_ip_header");
    let proxies = section.item("trusted_proxies");
    // `assembly` has taken `limits` already: the limits are read later than this section.
    let spec = read(SETTINGS, section, ServerSpec { listen, tls, ..ServerSpec::default() });
    // `networks` leaves wrong networks out. With an error, the list may therefore be empty by mistake.
    if spec.trust.networks.is_empty() {
        const EXPECTED: &str =
            "expected `trusted_proxies` with the load balancers' networks beside it";
        const HELP: &str = "add `trusted_proxies = [\"10.0.0.0/8\"]`";
        if let Some(item) = header.filter(|item| !has_proxies && !item.cx.has_errors()) {
            item.doubt("`client_ip_header` is believed from nobody", EXPECTED).help(HELP);
        }
        if let Some(item) = proxy_protocol.filter(|_| spec.proxy_protocol && !has_local_proxies) {
            let title = "`proxy_protocol` is on, but no client may send a PROXY header";
            item.fault(title, EXPECTED).help(HELP);
        }
    }
    if let Some(item) = proxies.filter(|_| spec.trust.networks.are_all()) {
        item.doubt("`trusted_proxies` hold every address", "expected the load balancers' networks alone")
            .help("any client can now write an address into `client_ip_header`, and has a new bucket by it");
    }
    (spec, taken)
}

/// The header that identifies a request. A header with another meaning for the proxy or the API is refused.
fn request_id(item: &Item<'_>) -> Option<HeaderName> {
    item.parse("expected a header of its own, as in \"x-request-id\"", |text| {
        let name: HeaderName = text.parse().map_err(|_| Wrong::Expected)?;
        let lower = name.as_str();
        let own =
            lower.starts_with("x-") && !lower.starts_with("x-forwarded-") || lower.ends_with("-id");
        own.then_some(name).ok_or(Wrong::Expected)
    })
}

fn networks(item: &Item<'_>) -> Option<Networks> {
    Some(once_each(&item.list()?, network_item))
}

fn listen(section: &mut Section<'_>, decides: bool) -> Vec<TakenAddress> {
    let may_lack = decides || section.has(|name| name == "tls");
    // The command line's address has no position in the file.
    let is_replaced = section.item("listen").is_some_and(|item| item.span.is_empty());
    let setting = if is_replaced { "`--listen`" } else { "`server.listen`" };
    let listen = section.value("listen", |item| {
        let none = may_lack && item.list_or_one().is_empty();
        let read = |item: &Item<'_>| item.parse(LISTEN_ADDRESS, listen_address);
        Some(if none { Vec::new() } else { addresses(item, read, setting) })
    });
    listen.unwrap_or_default()
}

fn client_header(item: &Item<'_>) -> Option<ClientHeader> {
    const EXPECTED: &str = "expected `x-forwarded-for`, `forwarded` or another header's name";
    item.parse(EXPECTED, |text| match text.parse() {
        Ok(name) if name == "x-forwarded-for" => Ok(ClientHeader::XForwardedFor),
        Ok(http::header::FORWARDED) => Ok(ClientHeader::Forwarded),
        Ok(name) => Ok(ClientHeader::Single(name)),
        Err(_) => Err(Wrong::Expected),
    })
}
