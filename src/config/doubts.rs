//! Checks across sections. `assembly` calls them when all sections are read. For example: every limit is
//! used, every route can match, and no upstream is tidegate itself.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::reader::{Context, Span};
use super::section::limit::LimitDraft;
use super::section::route::RouteDraft;
use super::section::values::{Named, one_of};
use crate::plan::{Action, Endpoint, ListenAddress, ServerSpec, UpstreamSpec};
use crate::request::key::KeySource;
use crate::request::overrides::Part;
use crate::request::route::Table;

/// All sections that were read.
pub(super) struct Whole<'w> {
    pub(super) cx: &'w Context<'w>,
    pub(super) server: &'w ServerSpec,
    /// Where the admin endpoint listens, and the place of that setting.
    pub(super) admin: Option<(SocketAddr, Span)>,
    pub(super) upstreams: &'w [Named<UpstreamSpec>],
    pub(super) limits: &'w [Named<LimitDraft>],
    /// The limits of `[server]`, which every request meets.
    pub(super) everywhere: &'w [(usize, Span)],
    pub(super) routes: &'w [RouteDraft],
    /// The names of the routes, in the same order.
    pub(super) names: &'w [Arc<str>],
}

impl Whole<'_> {
    pub(super) fn check(&self) {
        self.unknown_params();
        self.loops();
        self.dead_routes();
        self.unknown_routes();
        // A setting with an error is not in the plan. Without this setting these warnings could be false.
        if !self.cx.has_errors() {
            self.unused();
            self.sources_without_values();
            self.admin_address();
        }
    }

    fn unused(&self) {
        let used = self.routes.iter().flat_map(|route| &route.limits).chain(self.everywhere);
        let used: HashSet<usize> = used.map(|(limit, _)| *limit).collect();
        for (place, Named { name, span, value }) in self.limits.iter().enumerate() {
            if value.as_ref().is_some_and(|draft| draft.on) && !used.contains(&place) {
                let title = format!("no route uses the limit \"{name}\"");
                self.cx.warning(span, title, "expected its name in the `limits` of a route").help(
                    format!("add `limits = [\"{name}\"]` to a route, or set `mode = \"off\"`"),
                );
            }
        }
        for (place, Named { name, span, .. }) in self.upstreams.iter().enumerate() {
            let used = self.routes.iter().any(|route| match &route.action {
                Some(Action::Forward { upstream, .. }) => usize::try_from(*upstream) == Ok(place),
                Some(Action::Respond { .. }) | None => false,
            });
            if !used {
                let title = format!("no route uses the upstream \"{name}\"");
                self.cx.warning(span, title, "expected its name as the `upstream` of a route");
            }
        }
    }

    /// A limit that counts by a parameter which the route's path does not have.
    fn unknown_params(&self) {
        let everywhere = self.everywhere.iter().map(|used| (None, used));
        let routes = self.routes.iter().filter_map(|route| Some((route.pattern.as_ref()?, route)));
        let own = routes
            .flat_map(|(path, route)| route.limits.iter().map(move |used| (Some(path), used)));
        for (path, (limit, used_at)) in everywhere.chain(own) {
            let Some(Named { name, value: Some(limit), .. }) = self.limits.get(*limit) else {
                continue;
            };
            for (source, span) in limit.alternatives() {
                let KeySource::Param(param) = source else { continue };
                let (lack, expected) = match path {
                    Some(path) if path.params().any(|known| known == param) => continue,
                    Some(path) => (
                        "this route lacks",
                        format!("expected `{{{param}}}` in its path, {}", path.as_str()),
                    ),
                    None => (
                        "not every request has",
                        "expected a limit of the routes that have it".to_owned(),
                    ),
                };
                let title = format!("\"{name}\" counts by `param:{param}`, which {lack}");
                self.cx.error(used_at, title, expected).related(span, "counted here");
            }
        }
    }

    /// Limits by address where all clients may have the load balancer's address, and limits by certificate
    /// where clients are not asked for one.
    fn sources_without_values(&self) {
        let mut addresses = self.listened().peekable();
        let behind = addresses.peek().is_some() && addresses.all(is_private);
        let hidden = behind && self.server.trust.networks.is_empty();
        let tls = self.server.tls.as_ref();
        let asks_clients = tls.is_some_and(|tls| tls.files.client_ca.is_some());
        for limit in self.limits.iter().filter_map(|limit| limit.value.as_ref()) {
            for (source, span) in limit.alternatives() {
                if *source == KeySource::Ip && hidden {
                    self.cx
                        .warning(
                            span,
                            "the limit counts by address, and `server.listen` is in a private network",
                            "behind a load balancer all clients would share one bucket",
                        )
                        .help("name it: `trusted_proxies = [\"10.0.0.0/8\"]` in [server]");
                }
                if *source == KeySource::Cert && !asks_clients {
                    let what = match limit.override_spans.is_empty() {
                        true => "the limit goes",
                        false => "the limit and its overrides go",
                    };
                    let title = format!(
                        "{what} by a client certificate, and clients are not asked for one"
                    );
                    self.cx
                        .warning(
                            span,
                            title,
                            "no request has it: `missing` decides about all of them",
                        )
                        .help("add `client_ca = \"ca.pem\"` to the `tls` of [server]");
                }
            }
        }
    }

    /// An admin endpoint at an address where the server listens.
    fn admin_address(&self) {
        let Some((address, span)) = &self.admin else { return };
        let clashes = |other: &&SocketAddr| {
            let same =
                address.ip() == other.ip() || covers(address, other) || covers(other, address);
            address.port() != 0 && address.port() == other.port() && same
        };
        if let Some(other) = self.listened().find(clashes) {
            let title = format!("[server] listens on {other} already");
            self.cx.warning(span, title, "expected another port");
        }
    }

    /// An upstream that is tidegate itself.
    fn loops(&self) {
        for Named { name, span, value } in self.upstreams {
            for server in value.iter().flat_map(|spec| &spec.servers) {
                let (host, port) = match &server.address.endpoint {
                    Endpoint::Tcp { host, port } => (host, port),
                    Endpoint::Unix(path) => {
                        let own = ListenAddress::Unix(path.clone());
                        if self.server.listen.contains(&own) {
                            let title = format!("the upstream \"{name}\" is tidegate itself");
                            let expected =
                                format!("{own} is where it listens: expected the API's socket");
                            self.cx.error(span, title, expected);
                        }
                        continue;
                    }
                };
                let is_here = |listen: &&SocketAddr| {
                    let wildcard = listen.ip().is_unspecified();
                    listen.port() == *port
                        && match host.parse::<IpAddr>() {
                            Ok(ip) => ip == listen.ip() || (wildcard && ip.is_loopback()),
                            Err(_) => {
                                host == "localhost" && (wildcard || listen.ip().is_loopback())
                            }
                        }
                };
                let Some(listen) = self.listened().find(is_here) else { continue };
                let clear = self.server.listen.iter().any(|clear| clear.tcp() == Some(listen));
                let field = if clear { "server.listen" } else { "server.tls.listen" };
                let title = format!("the upstream \"{name}\" is tidegate itself");
                let url = &server.address.url;
                self.cx
                    .error(
                        span,
                        title,
                        format!("{url} is where it listens: expected the API's address"),
                    )
                    .help(format!("to listen elsewhere than on {listen}, set `{field}`"));
            }
        }
    }

    /// The addresses on the network that the server listens on, with TLS and without.
    fn listened(&self) -> impl Iterator<Item = &SocketAddr> {
        let clear = self.server.listen.iter().filter_map(ListenAddress::tcp);
        clear.chain(self.server.tls.iter().flat_map(|tls| &tls.listen))
    }

    /// Routes that never match, because another route takes all of their requests first.
    fn dead_routes(&self) {
        let matchers =
            |route: &RouteDraft| Some((route.pattern.clone()?, route.conditions.clone()));
        let Some(all) = self.routes.iter().map(matchers).collect() else { return };
        for shadowed in Table::new(all).shadowed() {
            let (route, by) = (&self.routes[shadowed.route], &self.routes[shadowed.by]);
            let expected = match route.conditions == by.conditions {
                true => "another has the same path and the same conditions",
                false => "another takes all of its requests",
            };
            self.cx
                .error(&route.path_span, "this route never matches", expected)
                .related(&by.path_span, "this one comes first");
        }
    }

    /// An override for a route that does not exist.
    fn unknown_routes(&self) {
        let known = self.names.iter().map(|name| &**name);
        for limit in self.limits.iter().filter_map(|limit| limit.value.as_ref()) {
            for (parts, span) in &limit.override_spans {
                for ((source, _), part) in limit.sources.iter().zip(parts) {
                    let Part::Exact(name) = part else { continue };
                    if *source == KeySource::Route && !known.clone().any(|known| known == name) {
                        let expected = one_of(Some(name), known.clone(), "routes");
                        self.cx.error(span, format!("there is no route \"{name}\""), expected);
                    }
                }
            }
        }
    }
}

/// Whether this is a wildcard that takes the other address too: `0.0.0.0` is for IPv4, `[::]` for both.
fn covers(any: &SocketAddr, other: &SocketAddr) -> bool {
    any.ip().is_unspecified() && (any.is_ipv6() || other.is_ipv4())
}

fn is_private(address: &SocketAddr) -> bool {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => v4.is_private() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}
