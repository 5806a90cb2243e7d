//! Doubts about what limits count by: a part of a key that no request has, or that anybody can write.

use std::collections::BTreeSet;

use super::Whole;
use crate::request::client::ClientHeader;
use crate::request::key::KeySource;
use crate::request::name::are_alike;
use crate::request::network::private_network;

/// Headers in which proxies and content networks name the client. `x-forwarded-for` and `forwarded` are not here: they
/// are removed from requests of strangers.
const ADDRESSES: [&str; 6] = [
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "x-cluster-client-ip",
    "fastly-client-ip",
];

impl Whole<'_> {
    /// Limits by address if all clients may have the load balancer's address, and limits by certificate
    /// if clients are not asked for one.
    pub(super) fn sources_without_values(&self) {
        let networks: Option<BTreeSet<_>> =
            self.listened().map(|address| private_network(address.ip())).collect();
        // `None` if an address is not in a private network.
        let networks = networks.filter(|networks| !networks.is_empty());
        let hidden = networks.filter(|_| self.server.trust.networks.is_empty());
        let tls = self.server.tls.as_ref();
        let asks_clients = tls.is_some_and(|tls| tls.shown.files.client_ca.is_some());
        for (limit, source, span) in self.alternatives() {
            if *source == KeySource::Ip
                && let Some(networks) = &hidden
            {
                let title =
                    "the limit counts by address, and `server.listen` is in a private network";
                let expected = "behind a load balancer all clients would share one bucket";
                let networks = networks.iter().copied().collect::<Vec<_>>().join(", ");
                self.cx
                    .warning(span, title, expected)
                    .help(format!("name it: `trusted_proxies = [{networks}]` in [server]"));
            }
            if *source == KeySource::Cert && !asks_clients {
                let what = match limit.override_spans.is_empty() {
                    true => "the limit goes",
                    false => "the limit and its overrides go",
                };
                let title =
                    format!("{what} by a client certificate, and clients are not asked for one");
                let expected = "no request has it: `missing` decides about all of them";
                self.cx
                    .warning(span, title, expected)
                    .help("add `client_ca = \"ca.pem\"` to the `tls` of [server]");
            }
        }
    }

    /// Limits by a header that names the client's address, and that strangers can write. From requests of strangers,
    /// the proxy removes `client_ip_header`, but no other such header.
    pub(super) fn forged_addresses(&self) {
        for (_, source, span) in self.alternatives() {
            let KeySource::Header(name) = source else { continue };
            let is_removed = match &self.server.trust.header {
                ClientHeader::Single(single) => are_alike(single, name),
                ClientHeader::XForwardedFor | ClientHeader::Forwarded => false,
            };
            let plain = name.as_str().replace('_', "-");
            if !is_removed && ADDRESSES.contains(&plain.as_str()) {
                let title = format!("the limit counts by `{name}`, which anybody can write");
                self.cx.warning(span, title, "did you mean `ip`?").help(format!(
                    "set `client_ip_header = \"{name}\"` and `trusted_proxies` in [server]: then `ip` is \
                     the address in it, and only those proxies are believed"
                ));
            }
        }
    }
}
