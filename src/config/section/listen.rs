//! Where the process listens: `listen` of `[server]`, of its `tls`, of `[decide]` and of `[admin]`.
//!
//! It is an error of the file if two settings name the same address. The operating system would refuse the second
//! one too, but its message would say that another process uses the address.

use std::net::SocketAddr;

use super::values::{once, socket_path, suggestion};
use crate::config::reader::{Context, Item, Kind, Span, Wrong};
use crate::settings::{ListenAddress, are_both_wildcards, overlap};

/// An address, or a list of addresses.
pub(super) const LISTEN: Kind = Kind::Either(&[Kind::ADDRESS, Kind::List(0, &Kind::ADDRESS)]);

/// What an address of `server.listen` looks like.
pub(crate) const LISTEN_ADDRESS: &str = "expected an address with a port, as in \"127.0.0.1:8080\", or a \
    socket's absolute path, as in \"unix:/run/tidegate.sock\"";

/// An address that a setting has taken.
pub(crate) struct TakenAddress {
    pub(super) address: ListenAddress,
    /// Empty if the address is the default or the command line's.
    pub(super) span: Span,
    /// The setting, as a message names it.
    pub(super) setting: &'static str,
}

/// The addresses in the `listen` of `setting`. `read` reads one of them.
pub(super) fn addresses(
    item: &Item<'_>,
    read: impl Fn(&Item<'_>) -> Option<ListenAddress>,
    setting: &'static str,
) -> Vec<TakenAddress> {
    let items = item.list_or_one();
    if items.is_empty() {
        item.reject("expected at least one address");
    }
    let addresses = once(&items, read, ListenAddress::fixed, ListenAddress::to_string);
    let taken = |(address, span)| TakenAddress { address, span, setting };
    addresses.into_iter().map(taken).collect()
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

/// Refuses an address that an earlier one covers, such as `127.0.0.1:80` behind `0.0.0.0:80`. The two wildcards of one
/// port may stand together in a list, as IPv4 and IPv6.
pub(crate) fn refuse_overlaps(cx: &Context<'_>, all: &[TakenAddress]) {
    for (index, TakenAddress { address, span, setting }) in all.iter().enumerate() {
        let is_ipv6_alone = |address: SocketAddr| {
            let is_other = |it: &TakenAddress| {
                let other = it.address.tcp().filter(|_| it.setting == *setting);
                other.is_some_and(|other| are_both_wildcards(address, *other))
            };
            address.is_ipv6() && all.iter().any(is_other)
        };
        let meets = |first: &&TakenAddress| match (&first.address, address) {
            (ListenAddress::Tcp(one), ListenAddress::Tcp(other)) => {
                let are_apart = || {
                    first.setting == *setting
                        && (one.is_ipv4() && is_ipv6_alone(*other)
                            || other.is_ipv4() && is_ipv6_alone(*one))
                };
                overlap(*one, *other) && !are_apart()
            }
            (one, other) => one == other,
        };
        let Some(first) = all.iter().take(index).find(meets) else { continue };
        let TakenAddress { address: other, span: first_span, setting: of } = first;
        let title = match other == address {
            true => format!("{of} listens on {address} already"),
            false => format!("{address} and {other} of {of} overlap"),
        };
        let expected = match address {
            ListenAddress::Unix(_) => "expected another path",
            _ if of == setting => "remove one: a wildcard has all addresses of its port",
            ListenAddress::Tcp(_) => "expected another port",
        };
        let problem = cx.error(span, title, expected);
        // The default address, and the command line's address, have no position in the file.
        if !first_span.is_empty() {
            problem.related(first_span, "here");
        }
    }
}
