//! Where the process listens: `listen` of `[server]`, of its `tls`, of `[decide]` and of `[admin]`.
//!
//! It is an error of the file if two settings name the same address. The operating system would refuse the second
//! one too, but its message would say that another process uses the address.

use std::net::SocketAddr;

use super::values::{once, socket_path, suggestion};
use crate::config::reader::{Item, Kind, Span, Wrong};
use crate::settings::{ListenAddress, are_both_wildcards, overlap};

/// An address, or a list of addresses.
pub(super) const LISTEN: Kind = Kind::Either(&[Kind::ADDRESS, Kind::List(&Kind::ADDRESS)]);

/// What an address of `server.listen` looks like.
pub(crate) const LISTEN_ADDRESS: &str = "expected an address with a port, as in \"127.0.0.1:8080\", or a \
    socket's absolute path, as in \"unix:/run/tidegate.sock\"";

/// An address that a setting has taken.
pub(crate) struct TakenAddress {
    pub(super) address: SocketAddr,
    /// Empty if the address is the default or the command line's.
    pub(super) span: Span,
    /// The setting, as a message names it.
    pub(super) setting: &'static str,
}

impl TakenAddress {
    /// The network addresses in the `listen` of `setting`.
    pub(super) fn all<'l>(
        listen: &'l [(ListenAddress, Span)],
        setting: &'static str,
    ) -> impl Iterator<Item = Self> + 'l {
        let tcp = listen.iter().filter_map(|(address, span)| Some((*address.tcp()?, span)));
        tcp.map(move |(address, span)| Self { address, span: span.clone(), setting })
    }
}

/// The addresses of a `listen`. `read` reads one of them. An address in `taken` is refused.
pub(super) fn addresses(
    item: &Item<'_>,
    read: impl Fn(&Item<'_>) -> Option<ListenAddress>,
    taken: &[TakenAddress],
) -> Vec<(ListenAddress, Span)> {
    let items = item.list_or_one();
    if items.is_empty() {
        item.reject("expected at least one address");
    }
    let addresses = once(&items, read, ListenAddress::fixed, ListenAddress::to_string);
    let tcp = addresses.iter().filter_map(|(it, span)| Some((*it.tcp()?, span)));
    let free = tcp.filter(|(address, span)| !refuse_taken(item, *address, span, taken));
    apart(item, &free.collect::<Vec<_>>());
    addresses
}

/// An address with a port, or `unix:/PATH`.
pub(crate) fn listen_address(text: &str) -> Result<ListenAddress, Wrong> {
    match text.strip_prefix("unix:") {
        Some(path) => socket_path(path).map(ListenAddress::Unix).ok_or(Wrong::Expected),
        None => text.parse().map(ListenAddress::Tcp).map_err(|_| Wrong::near(suggestion(text))),
    }
}

/// Checks the `token` of a section with a `listen` of its own. It must be there if other machines reach the address.
pub(super) fn check_token(
    section: &str,
    listen: Option<&Item<'_>>,
    reached: Option<&ListenAddress>,
    token: Option<Item<'_>>,
) {
    let (local, variable) = match section {
        "[admin]" => ("127.0.0.1:9090", "ADMIN_TOKEN"),
        _ => ("127.0.0.1:9091", "DECIDE_TOKEN"),
    };
    match (listen, token) {
        (None, Some(token)) => {
            let title = format!("the `token` of {section} guards nothing: there is no `listen`");
            token.secret().doubt(title, format!("expected `listen = \"{local}\"` beside it"));
        }
        (Some(listen), None) => {
            let Some(address) = reached else { return };
            listen
                .fault(
                    format!("`{section}` listens on {address} without a `token`"),
                    "expected a token where the address is not loopback",
                )
                .help(format!("add `token = \"${{{variable}}}\"` below, or listen on \"{local}\""));
        }
        _ => {}
    }
}

/// Whether another setting has taken the address. If so, notes an error.
pub(super) fn refuse_taken(
    item: &Item<'_>,
    address: SocketAddr,
    span: &Span,
    taken: &[TakenAddress],
) -> bool {
    let Some(first) = taken.iter().find(|it| overlap(it.address, address)) else { return false };
    let TakenAddress { address: other, span: first_span, setting } = first;
    let title = match *other == address {
        true => format!("{setting} listens on {address} already"),
        false => format!("{address} and {other} of {setting} overlap"),
    };
    let problem = item.cx.error(span, title, "expected another port");
    // The default address, and the command line's address, have no position in the file.
    if !first_span.is_empty() {
        problem.related(first_span, "here");
    }
    true
}

/// Refuses an address that another one of the same list covers, such as `127.0.0.1:80` beside `0.0.0.0:80`. The two
/// wildcards of one port may stand together, as IPv4 and IPv6.
fn apart(item: &Item<'_>, addresses: &[(SocketAddr, &Span)]) {
    let ipv6_alone = |address: SocketAddr| {
        address.is_ipv6() && addresses.iter().any(|(other, _)| are_both_wildcards(address, *other))
    };
    for (index, (address, span)) in addresses.iter().enumerate() {
        let meets = |&&(other, _): &&(SocketAddr, &Span)| {
            let are_apart = || {
                address.is_ipv4() && ipv6_alone(other) || other.is_ipv4() && ipv6_alone(*address)
            };
            other != *address && overlap(other, *address) && !are_apart()
        };
        if let Some((before, first)) = addresses.iter().take(index).find(meets) {
            let title = format!("{address} and {before} of `{}` overlap", item.field);
            let expected = "remove one: a wildcard has all addresses of its port";
            item.cx.error(span, title, expected).related(first, "first here");
        }
    }
}
