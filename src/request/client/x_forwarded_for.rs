//! The `x-forwarded-for` header, read from its right end. `mod.rs` says why.

use std::net::IpAddr;

use http::HeaderMap;

use super::address;

/// The addresses of the header's elements, `None` for each unreadable element. An empty element is unreadable
/// too: a proxy that did not know its client may have written it.
pub(super) fn nearest_first(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all("x-forwarded-for").iter().rev();
    lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b',').map(address))
}
