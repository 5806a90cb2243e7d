//! Doubts about what limits count by: a part of a key that no request has, or that anybody can write.

use std::collections::BTreeSet;

use crate::config::assembly::Sections;
use crate::request::client::ClientHeader;
use crate::request::key::KeySource;
use crate::request::known_fields::is_claim;
use crate::request::name::are_alike;
use crate::request::network::private_network;

/// Headers in which proxies and content networks name the client. `x-forwarded-for` and the like are not here: no key may
/// have them.
const ADDRESSES: [&str; 6] = [
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "x-cluster-client-ip",
    "fastly-client-ip",
];

impl Sections<'_> {
    /// Limits by address if all clients may have the load balancer's address, and limits by certificate
    /// if clients are not asked for one.
    pub(super) fn sources_without_values(&self) {
        let listened = self.listened().filter_map(|(address, _)| Some(address.tcp()?.ip()));
        let networks: Option<BTreeSet<_>> = listened.map(private_network).collect();
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

    /// Keys and exemptions by a header that says who the client is. `x-forwarded-*` and `forwarded` are the same for all
    /// strangers: the proxy removes them from their requests. Of the other headers with an address, it removes
    /// `client_ip_header` alone, and strangers can write the others.
    pub(super) fn addresses_in_headers(&self) {
        let parts = self.parts().flat_map(|(who, part, span)| {
            part.alternatives().iter().filter_map(move |it| Some((who, it.header()?, span)))
        });
        let exempting = self.limits.iter().flat_map(|limit| {
            let headers = limit.value.iter().flat_map(|it| it.spec.exempt.headers());
            headers.map(move |name| ("the limit exempts by", name, &limit.span))
        });
        let header = &self.server.trust.header;
        for (who, name, span) in parts.chain(exempting) {
            let plain = name.as_str().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
            let is_removed = matches!(header, ClientHeader::Single(it) if are_alike(it, name));
            let expected = match &*plain {
                "x-forwarded-host" => "did you mean `host`?",
                "x-forwarded-for" => "did you mean `ip`?",
                other if other.starts_with("x-forwarded-") => "expected one that they can send",
                _ => "did you mean `ip`?",
            };
            let noted = if is_claim(name) {
                let why = "which tidegate removes from strangers' requests";
                self.cx.error(span, format!("{who} `{name}`, {why}"), expected)
            } else if self.is_server_right && !is_removed && ADDRESSES.contains(&&*plain) {
                self.cx.warning(span, format!("{who} `{name}`, which anybody can write"), expected)
            } else {
                continue;
            };
            if !expected.contains("`ip`") {
                continue;
            }
            noted.help(format!(
                "set `client_ip_header = \"{plain}\"` and `trusted_proxies` in [server]: then `ip` is \
                 the address in it, and only those proxies are believed"
            ));
        }
    }
}
