//! Checks across sections. `assembly` calls them when all sections are read. For example: every limit is
//! used, every route can match, and no upstream is tidegate itself.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::reader::{Context, Problem, Span};
use super::section::limit::LimitDraft;
use super::section::route::RouteDraft;
use super::section::values::{Named, one_of};
use crate::plan::{Action, Endpoint, ServerSpec, UpstreamSpec};
use crate::request::key::KeySource;
use crate::request::overrides::Part;
use crate::request::route::Table;

/// All sections that were read.
pub(super) struct Whole<'w> {
    pub(super) server: &'w ServerSpec,
    /// Where the admin endpoint listens, and the place of that setting.
    pub(super) admin: Option<(SocketAddr, Span)>,
    /// Whether clients are asked for a certificate.
    pub(super) asks_clients: bool,
    pub(super) upstreams: &'w [Named<UpstreamSpec>],
    pub(super) limits: &'w [Named<LimitDraft>],
    /// The limits of `[server]`, which every request meets. Then the names of limits that wrong names in
    /// this list probably meant.
    pub(super) everywhere: (&'w [(usize, Span)], &'w [String]),
    pub(super) routes: &'w [RouteDraft],
}

pub(super) fn check(cx: &Context<'_>, whole: &Whole<'_>) {
    unused(cx, whole);
    unknown_params(cx, whole);
    hidden_clients(cx, whole);
    strangers(cx, whole);
    loops(cx, whole);
    admin_address(cx, whole);
    dead_routes(cx, whole.routes);
}

fn unused(cx: &Context<'_>, whole: &Whole<'_>) {
    let (everywhere, meant_everywhere) = whole.everywhere;
    let used = whole.routes.iter().flat_map(|route| &route.limits).chain(everywhere);
    let used: HashSet<usize> = used.map(|(limit, _)| *limit).collect();
    let meant = whole.routes.iter().flat_map(|route| &route.limits_meant).chain(meant_everywhere);
    let meant: HashSet<&str> = meant.map(String::as_str).collect();
    for (place, limit) in whole.limits.iter().enumerate() {
        let on = limit.value.as_ref().is_none_or(|draft| draft.on);
        if on && !used.contains(&place) && !meant.contains(limit.name.as_str()) {
            cx.note(
                Problem::warning(
                    limit.span.clone(),
                    format!("no route uses the limit \"{}\"", limit.name),
                    "expected its name in the `limits` of a route",
                )
                .help(format!(
                    "add `limits = [\"{}\"]` to a route, or set `mode = \"off\"`",
                    limit.name
                )),
            );
        }
    }
    for (place, upstream) in whole.upstreams.iter().enumerate() {
        let used = whole.routes.iter().any(|route| match &route.action {
            Some(Action::Forward { upstream, .. }) => usize::try_from(*upstream) == Ok(place),
            // The route has an error. The route may have been meant to use this upstream.
            None => true,
            Some(Action::Respond { .. }) => false,
        });
        if !used {
            cx.note(Problem::warning(
                upstream.span.clone(),
                format!("no route uses the upstream \"{}\"", upstream.name),
                "expected its name as the `upstream` of a route",
            ));
        }
    }
}

/// A limit that counts by a parameter which the route's path does not have.
fn unknown_params(cx: &Context<'_>, whole: &Whole<'_>) {
    for (limit, used_at) in whole.everywhere.0 {
        let Some(Named { name, value: Some(limit), .. }) = whole.limits.get(*limit) else {
            continue;
        };
        for (source, span) in &limit.sources {
            for source in source.alternatives() {
                let KeySource::Param(param) = source else { continue };
                cx.note(
                    Problem::error(
                        used_at.clone(),
                        format!(
                            "\"{name}\" counts by `param:{param}`, which not every request has"
                        ),
                        "expected a limit of the routes that have it",
                    )
                    .related(span.clone(), "counted here"),
                );
            }
        }
    }
    for route in whole.routes {
        let Some(pattern) = &route.pattern else { continue };
        for (limit, used_at) in &route.limits {
            let Some(Named { name, value: Some(limit), .. }) = whole.limits.get(*limit) else {
                continue;
            };
            let all = limit.sources.iter();
            for (source, span) in
                all.flat_map(|(it, span)| it.alternatives().iter().map(move |it| (it, span)))
            {
                let KeySource::Param(param) = source else { continue };
                if !pattern.params().any(|known| known == param) {
                    cx.note(
                        Problem::error(
                            used_at.clone(),
                            format!("\"{name}\" counts by `param:{param}`, which this route lacks"),
                            format!("expected `{{{param}}}` in its path, {}", pattern.as_str()),
                        )
                        .related(span.clone(), "counted here"),
                    );
                }
            }
        }
    }
}

/// A limit by address where all clients may have the load balancer's address.
fn hidden_clients(cx: &Context<'_>, whole: &Whole<'_>) {
    let server = whole.server;
    let mut addresses = listened(server).peekable();
    let behind = addresses.peek().is_some() && addresses.all(is_private);
    if !behind || !server.trust.networks.is_empty() {
        return;
    }
    for limit in whole.limits.iter().filter_map(|limit| limit.value.as_ref()) {
        for (_, span) in
            limit.sources.iter().filter(|(it, _)| it.alternatives().contains(&KeySource::Ip))
        {
            cx.note(
                Problem::warning(
                    span.clone(),
                    "the limit counts by address, and `server.listen` is in a private network",
                    "behind a load balancer all clients would share one bucket",
                )
                .help("name it: `trusted_proxies = [\"10.0.0.0/8\"]` in [server]"),
            );
        }
    }
}

/// Whether this is a wildcard that takes the other address too: `0.0.0.0` is for IPv4, `[::]` for both.
fn covers(any: &SocketAddr, other: &SocketAddr) -> bool {
    any.ip().is_unspecified() && (any.is_ipv6() || other.is_ipv4())
}

/// An admin endpoint at an address where the server listens.
fn admin_address(cx: &Context<'_>, whole: &Whole<'_>) {
    let Some((address, span)) = &whole.admin else { return };
    let clashes = |other: &&SocketAddr| {
        let same = address.ip() == other.ip() || covers(address, other) || covers(other, address);
        address.port() != 0 && address.port() == other.port() && same
    };
    if let Some(other) = listened(whole.server).find(clashes) {
        cx.note(Problem::warning(
            span.clone(),
            format!("[server] listens on {other} already"),
            "expected another port",
        ));
    }
}

/// The addresses that the server listens on, with TLS and without.
fn listened(server: &ServerSpec) -> impl Iterator<Item = &SocketAddr> {
    server.listen.iter().chain(server.tls.iter().flat_map(|tls| &tls.listen))
}

/// A limit by certificate where clients are not asked for a certificate.
fn strangers(cx: &Context<'_>, whole: &Whole<'_>) {
    if whole.asks_clients {
        return;
    }
    for limit in whole.limits.iter().filter_map(|limit| limit.value.as_ref()) {
        let has_overrides = limit.override_spans.iter().any(|(parts, _)| !parts.is_empty());
        for (_, span) in
            limit.sources.iter().filter(|(it, _)| it.alternatives().contains(&KeySource::Cert))
        {
            let what =
                if has_overrides { "the limit and its overrides go" } else { "the limit goes" };
            cx.note(
                Problem::warning(
                    span.clone(),
                    format!("{what} by a client certificate, and clients are not asked for one"),
                    "no request has it: `missing` decides about all of them",
                )
                .help("add `client_ca = \"ca.pem\"` to the `tls` of [server]"),
            );
        }
    }
}

fn is_private(address: &SocketAddr) -> bool {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => v4.is_private() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}

/// An upstream that is tidegate itself.
fn loops(cx: &Context<'_>, whole: &Whole<'_>) {
    for upstream in whole.upstreams {
        let servers = upstream.value.iter().flat_map(|spec| &spec.servers);
        for server in servers {
            let Endpoint::Tcp { host, port } = &server.endpoint else { continue };
            let itself = listened(whole.server).find(|listen| {
                let wildcard = listen.ip().is_unspecified();
                listen.port() == *port
                    && match host.parse::<IpAddr>() {
                        Ok(ip) => ip == listen.ip() || (wildcard && ip.is_loopback()),
                        Err(_) => host == "localhost" && (wildcard || listen.ip().is_loopback()),
                    }
            });
            if let Some(listen) = itself {
                let clear = whole.server.listen.contains(listen);
                let field = if clear { "server.listen" } else { "server.tls.listen" };
                cx.note(
                    Problem::error(
                        upstream.span.clone(),
                        format!("the upstream \"{}\" is tidegate itself", upstream.name),
                        format!("{} is where it listens: expected the API's address", server.url),
                    )
                    .help(format!("to listen elsewhere than on {listen}, set `{field}`")),
                );
            }
        }
    }
}

/// Routes that never match, because another route takes all of their requests first.
fn dead_routes(cx: &Context<'_>, routes: &[RouteDraft]) {
    let matchers = |route: &RouteDraft| Some((route.pattern.clone()?, route.conditions.clone()));
    let Some(all) = routes.iter().map(matchers).collect::<Option<Vec<_>>>() else { return };
    for shadowed in Table::new(all).shadowed() {
        let (Some(route), Some(by)) = (routes.get(shadowed.route), routes.get(shadowed.by)) else {
            continue;
        };
        let same = route.conditions == by.conditions;
        cx.note(
            Problem::error(
                route.path_span.clone(),
                "this route never matches",
                if same {
                    "another has the same path and the same conditions"
                } else {
                    "another takes all of its requests"
                },
            )
            .related(by.path_span.clone(), "this one comes first"),
        );
    }
}

/// An override for a route that does not exist.
pub(super) fn override_routes(cx: &Context<'_>, limits: &[Named<LimitDraft>], names: &[Arc<str>]) {
    let known = names.iter().map(|name| &**name);
    for limit in limits.iter().filter_map(|limit| limit.value.as_ref()) {
        for (parts, span) in &limit.override_spans {
            for ((source, _), part) in limit.sources.iter().zip(parts) {
                let Part::Exact(name) = part else { continue };
                if *source == KeySource::Route && !known.clone().any(|known| known == name) {
                    cx.note(Problem::error(
                        span.clone(),
                        format!("there is no route \"{name}\""),
                        one_of(Some(name), known.clone(), "routes"),
                    ));
                }
            }
        }
    }
}
