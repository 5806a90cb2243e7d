//! `[server]`.

use std::net::SocketAddr;
use std::time::Duration;

use http::HeaderName;

use super::tls;
use crate::config::Overrides;
use crate::config::fields::{MAX_CONNECTIONS, MAX_WORKERS};
use crate::config::file::{Context, Item, Section, Text, Zero};
use crate::config::problem::{Problem, Span};
use crate::config::value::{NETWORK, NetworkError, network};
use crate::plan::ServerSpec;
use crate::request::client::{ClientHeader, Trust};

/// Heads of less than 8 KiB are nothing unusual.
const HEADER_SIZES: std::ops::RangeInclusive<u64> = 8 << 10..=16 << 20;

/// What an address looks like.
const ADDRESS: &str = "expected an address with a port, as in \"127.0.0.1:8080\" or \"[::]:8080\"";

/// What the section says, and whether clients are asked for a certificate.
pub(super) fn build(mut section: Section<'_>, overrides: &Overrides) -> (ServerSpec, bool) {
    use Zero::{Allowed, Refused};
    let mut listen = listen(&mut section);
    if let Some(text) = &overrides.listen {
        listen = override_listen(section.cx, text).map(|at| (at, 0..0)).into_iter().collect();
    }
    let tls = tls::server(&mut section, &listen);
    let spec = ServerSpec {
        listen: listen.into_iter().map(|(address, _)| address).collect(),
        tls: tls.spec,
        workers: section.take("workers").and_then(|item| item.whole(1..=MAX_WORKERS)).map(to_usize),
        header_timeout: section.duration("header_timeout", Refused, Duration::from_secs(10)),
        body_timeout: section.duration("body_timeout", Refused, Duration::from_secs(30)),
        idle_timeout: section.duration("idle_timeout", Refused, Duration::from_secs(75)),
        tunnel_timeout: section.duration("tunnel_timeout", Refused, Duration::from_secs(3_600)),
        shutdown_delay: section.duration("shutdown_delay", Allowed, Duration::ZERO),
        drain_timeout: section.duration("drain_timeout", Allowed, Duration::from_secs(30)),
        max_connections: to_usize(section.whole("max_connections", 1..=MAX_CONNECTIONS, 20_000)),
        max_header_size: to_usize(
            section
                .take("max_header_size")
                .and_then(|item| item.size(HEADER_SIZES, "from \"8KiB\" to \"16MiB\""))
                .unwrap_or(32 << 10),
        ),
        max_body_size: section
            .take("max_body_size")
            .and_then(|item| item.size(1..=u64::MAX, "more than zero")),
        request_id: section.take("request_id").and_then(|item| request_id(&item)),
        trust: Trust {
            networks: section.list("trusted_proxies").iter().filter_map(network_item).collect(),
            header: section
                .take("client_ip_header")
                .and_then(|item| client_header(&item))
                .unwrap_or(ClientHeader::XForwardedFor),
        },
        merge_slashes: section.flag("merge_slashes", true),
        ipv6_prefix: u8::try_from(section.whole("ipv6_prefix", 1..=128, 64)).unwrap_or(64),
    };
    section.finish();
    (spec, tls.asks_clients)
}

/// The header that names a request: none that means something else to this proxy or to the API.
fn request_id(item: &Item<'_>) -> Option<HeaderName> {
    const EXPECTED: &str = "expected a header of its own, as in \"x-request-id\"";
    let text = item.text_as(EXPECTED)?;
    let name = HeaderName::from_bytes(text.text.as_bytes()).ok();
    let own = |name: &HeaderName| {
        let name = name.as_str();
        name.starts_with("x-") && !name.starts_with("x-forwarded-") || name.ends_with("-id")
    };
    text.parsed(name.filter(own), EXPECTED)
}

fn listen(section: &mut Section<'_>) -> Vec<(SocketAddr, Span)> {
    let Some(item) = section.take("listen") else {
        return vec![(SocketAddr::from(([127, 0, 0, 1], 8080)), 0..0)];
    };
    // By TLS alone.
    if section.has(|name| name == "tls") && item.list_or_one().is_empty() {
        return Vec::new();
    }
    addresses(&item, &[])
}

/// The addresses of a `listen`, none of which may be among `taken`.
pub(super) fn addresses(item: &Item<'_>, taken: &[(SocketAddr, Span)]) -> Vec<(SocketAddr, Span)> {
    let items = item.list_or_one();
    if items.is_empty() {
        item.reject("expected at least one address");
    }
    let mut addresses: Vec<(SocketAddr, Span)> = Vec::new();
    for item in items {
        let Some(address) = address(&item) else { continue };
        let same = |(other, _): &&(SocketAddr, Span)| address.port() != 0 && *other == address;
        if addresses.iter().any(|other| same(&other)) {
            item.fault(format!("`listen` has {address} twice"), "remove it");
        } else if let Some((_, first)) = taken.iter().find(same) {
            let title = format!("{address} is listened on without TLS already");
            let mut problem = Problem::error(item.span.clone(), title, "expected another port");
            // The default, and the command line's, have no place.
            if !first.is_empty() {
                problem = problem.related(first.clone(), "here");
            }
            item.cx.note(problem);
        }
        addresses.push((address, item.span.clone()));
    }
    addresses
}

fn override_listen(cx: &Context<'_>, text: &str) -> Option<SocketAddr> {
    let address = text.parse().ok();
    if address.is_none() {
        cx.note(Problem::general(format!("`--listen` cannot be \"{text}\": {ADDRESS}")));
    }
    address
}

/// An address with a port.
pub(super) fn address(item: &Item<'_>) -> Option<SocketAddr> {
    let text = item.text_as(ADDRESS)?;
    let address = text.text.parse().ok();
    if address.is_none() {
        item.cx.note(match suggestion(&text) {
            Some(near) => text.refuse(format!("{ADDRESS}; did you mean \"{near}\"?")),
            None => text.refuse(ADDRESS),
        });
    }
    address
}

/// A port alone, or a port at a name that everybody knows.
fn suggestion(text: &Text<'_>) -> Option<String> {
    let (host, port) = text.shown()?.rsplit_once(':').unwrap_or(("", text.shown()?));
    let port: u16 = port.parse().ok()?;
    let host = match host {
        "" | "*" => "0.0.0.0",
        "localhost" => "127.0.0.1",
        _ => return None,
    };
    Some(format!("{host}:{port}"))
}

/// A network, or an address that stands for itself.
pub(super) fn network_item(item: &Item<'_>) -> Option<ipnet::IpNet> {
    let expected = format!("expected {NETWORK}");
    let text = item.text_as(&expected)?;
    match network(&text.text) {
        Ok(network) => Some(network),
        Err(NetworkError::Syntax) => {
            text.refuse_here(expected);
            None
        }
        Err(NetworkError::HostBits(network)) => {
            text.refuse_here(format!(
                "expected the network's first address; did you mean \"{network}\"?"
            ));
            None
        }
    }
}

fn client_header(item: &Item<'_>) -> Option<ClientHeader> {
    const EXPECTED: &str = "expected `x-forwarded-for`, `forwarded` or another header's name";
    let text = item.text_as(EXPECTED)?;
    let name = HeaderName::from_bytes(text.text.as_bytes()).ok();
    Some(match text.parsed(name, EXPECTED)? {
        name if name == "x-forwarded-for" => ClientHeader::XForwardedFor,
        http::header::FORWARDED => ClientHeader::Forwarded,
        name => ClientHeader::Single(name),
    })
}

/// For figures whose bound lies far below every `usize` that this runs on.
pub(super) fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
