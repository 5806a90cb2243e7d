//! Checks across sections. `assembly` calls them when all sections are read. For example: every limit is
//! used, every route can match, and no upstream is tidegate itself.

mod goals;
mod keys;
mod plans;
mod preflights;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use super::assembly::Sections;
use super::reader::{Span, enumerate};
use super::section::limit::LimitDraft;
use super::section::route::{RouteDraft, UsedLimit};
use super::section::values::{Named, Names};
use crate::request::key::KeySource;
use crate::request::route::RouteTable;
use crate::settings::{Balance, CostSpec, DecideSpec, Endpoint, ListenAddress};

impl Sections<'_> {
    pub(super) fn check(&self) {
        self.unknown_params();
        self.usage_of_many_buckets();
        self.loops();
        self.dead_routes();
        self.unknown_routes();
        self.claims();
        self.plans_without_rule();
        // A part with an error is missing here. Without that part, these warnings could be wrong.
        let (routes, all_here) = (&self.routes, self.has_all_routes);
        let has_all = |route: &RouteDraft| route.is_whole && route.has_all_limits;
        if all_here && self.is_server_right && self.has_everywhere && routes.iter().all(has_all) {
            self.unused_limits();
        }
        if all_here && routes.iter().all(|route| route.is_whole && route.action.is_some()) {
            self.unused_upstreams();
        }
        self.limits_of_calls();
        self.reports_to_nobody();
        self.addresses_in_headers();
        self.goals_without_meaning();
        self.counted_preflights();
        self.preflights_without_route();
        if self.is_server_right {
            self.sources_without_values();
        }
        // A wrong plan is left out.
        if !self.cx.has_errors() {
            self.doubtful_plans();
            self.doubtful_goals();
            self.costs_of_strangers();
        }
    }

    /// The limits that have no error.
    fn drafts(&self) -> impl Iterator<Item = &LimitDraft> {
        self.limits.iter().filter_map(|limit| limit.value.as_ref())
    }

    /// The sources of these limits' keys, with their positions.
    fn alternatives(&self) -> impl Iterator<Item = (&LimitDraft, &KeySource, &Span)> {
        self.drafts()
            .flat_map(|limit| limit.alternatives().map(move |(source, span)| (limit, source, span)))
    }

    /// The parts of all keys, with their positions, and who reads them: limits, upstreams with a `hash_key` or
    /// `share_by`, and `plans.by`.
    fn parts(&self) -> impl Iterator<Item = (&'static str, &KeySource, &Span)> {
        let limits = self.drafts().flat_map(|limit| &limit.sources);
        let limits = limits.map(|(part, span)| ("the limit counts by", part, span));
        let hashed = self.upstreams.iter().flat_map(|upstream| {
            let balance = upstream.value.as_ref().map(|spec| &spec.balance);
            let key = if let Some(Balance::Hash(key)) = balance { &*key.sources } else { &[] };
            key.iter().map(|part| ("the upstream hashes by", part, &upstream.span))
        });
        let shared = self.upstreams.iter().flat_map(|upstream| {
            let key = upstream.value.iter().filter_map(|spec| spec.share_by.as_ref());
            let sources = key.flat_map(|key| &*key.sources);
            sources.map(|part| ("the upstream shares by", part, &upstream.span))
        });
        let plans = self.plans.as_ref().and_then(|plans| plans.by.as_ref());
        let plans = plans.into_iter();
        let plans = plans.flat_map(|(by, span)| by.sources.iter().map(move |it| (it, span)));
        let plans = plans.map(|(part, span)| ("the plan is read from", part, span));
        limits.chain(hashed).chain(shared).chain(plans)
    }

    /// Reports claims in keys if the file has no `[jwt.NAME]`, a `plans.jwt` that is no table, and tables whose claims no
    /// key has.
    fn claims(&self) {
        let mut is_read = false;
        for (_, part, span) in self.parts() {
            let alternatives = part.alternatives();
            let Some(claim) = alternatives.iter().find(|it| matches!(it, KeySource::Jwt(_))) else {
                continue;
            };
            is_read = true;
            if self.jwt.is_empty() {
                let title =
                    format!("`{claim}` is read from a token, and the file has no `[jwt.NAME]`");
                self.cx.error(span, title, "expected a table that says whose tokens are believed").help(
                    "add `[jwt.main]` with `keys = \"https://login.example.com/keys\"`, where the keys of \
                     the tokens' issuer are",
                );
            }
        }
        let tables = Names::new("jwt", self.jwt.iter().map(|table| table.name.as_str()));
        if let Some((name, span)) = self.plans.as_ref().and_then(|plans| plans.jwt.as_ref())
            && tables.index(name.as_str()).is_none()
        {
            let title = format!("there is no table `[jwt.{name}]`");
            self.cx.error(span, title, tables.instead(Some(name.as_str())));
        }
        if !is_read && !self.cx.has_errors() {
            for table in &self.jwt {
                let title = format!("nothing reads the tokens of `[jwt.{}]`", table.name);
                let expected =
                    "expected a part `jwt:CLAIM` in the `key` of a limit, or as `plans.by`";
                self.cx.warning(&table.span, title, expected);
            }
        }
    }

    /// The limits that routes or all requests have, by their indexes.
    fn used_limits(&self) -> HashSet<usize> {
        let used = self.routes.iter().flat_map(|route| &route.limits).chain(&self.everywhere);
        used.map(|used| used.limit).collect()
    }

    /// Limits that need more than the calls of most proxies say: how a request has ended, or its body.
    fn limits_of_calls(&self) {
        let (DecideSpec { listen: Some(_), .. }, span) = &self.decide else { return };
        let no_end = "slots, costs of responses and `count_when` need the end of a request, which these calls do not report";
        let no_body = "`missing` decides about their requests; `/check` has `body`";
        let specs = self.drafts().filter(|draft| draft.on).map(|draft| &draft.spec);
        let (without_end, others): (Vec<_>, Vec<_>) =
            specs.partition(|it| it.awaits_end() || it.is_ever_settled());
        let by_body = others.into_iter().filter(|it| it.key.body_fields().count() > 0).collect();
        for (lack, expected, limits) in [
            ("leave limits out", no_end, without_end),
            ("have no body for limits", no_body, by_body),
        ] {
            let names: Vec<_> = limits.iter().map(|limit| limit.name.as_str()).collect();
            if !names.is_empty() {
                let names = enumerate(names, "and");
                let title = format!("Envoy, `/auth-request` and `/forward-auth` {lack}: {names}");
                self.cx.warning(span, title, expected);
            }
        }
    }

    /// Limits with `reported` to which nobody can report.
    fn reports_to_nobody(&self) {
        let is_decided = self.decide.0.listen.is_some();
        for Named { name, span, value } in &self.limits {
            let Some(spec) = value.as_ref().filter(|it| it.on).map(|it| &it.spec) else { continue };
            let is_told_used = |cost: &CostSpec| matches!(cost, CostSpec::Response { .. });
            let is_told = !spec.awaits_end() || spec.costs().any(is_told_used);
            if spec.reported && !(is_decided && is_told) {
                let title =
                    format!("nobody reports to the limit \"{name}\": its `reported` has no effect");
                let expected = match is_decided {
                    true => {
                        "Envoy's calls leave out a limit that needs the end of a request: remove `count_when`"
                    }
                    false => "expected `[decide]` with a `listen`, where other proxies report",
                };
                self.cx.warning(span, title, expected);
            }
        }
    }

    fn unused_limits(&self) {
        if self.decide.0.listen.is_some() {
            // A descriptor of Envoy can name any limit.
            return;
        }
        let used = self.used_limits();
        for (index, Named { name, span, value }) in self.limits.iter().enumerate() {
            if value.as_ref().is_some_and(|draft| draft.on) && !used.contains(&index) {
                let title = format!("no route uses the limit \"{name}\"");
                self.cx.warning(span, title, "expected its name in the `limits` of a route").help(
                    format!("add `limits = [\"{name}\"]` to a route, or set `mode = \"off\"`"),
                );
            }
        }
    }

    fn unused_upstreams(&self) {
        let used: HashSet<_> = self.routes.iter().filter_map(upstream_of).collect();
        for (index, Named { name, span, .. }) in self.upstreams.iter().enumerate() {
            if !used.contains(&index) {
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
        for (path, UsedLimit { limit, span: used_at, .. }) in everywhere.chain(own) {
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

    /// Warns of a limit in `usage` if one client may have several of its buckets.
    fn usage_of_many_buckets(&self) {
        for used in self.routes.iter().flat_map(|route| &route.usage) {
            let Some(Named { name, value: Some(limit), .. }) = self.limits.get(used.limit) else {
                continue;
            };
            let mut sources = limit.alternatives();
            let found = sources.find(|(source, _)| {
                use KeySource::{Method, Param, Path, Route};
                matches!(source, Route | Path | Method | Param(_))
            });
            if let Some((source, span)) = found {
                let title =
                    format!("\"{name}\" counts by `{source}`: a client has many buckets of it");
                let expected = "expected a limit whose `key` is the same for all its requests";
                self.cx.error(&used.span, title, expected).related(span, "counted here");
            }
        }
    }

    /// An upstream that is tidegate itself.
    fn loops(&self) {
        let decide = self.decide.0.listen.iter().map(|it| (it.clone(), "decide.listen"));
        let listened: Vec<_> = self.listened().chain(decide).collect();
        for Named { name, span, value } in &self.upstreams {
            for server in value.iter().flat_map(|spec| &spec.servers) {
                let is_it = |(listen, _): &&(ListenAddress, &str)| match &server.address.endpoint {
                    Endpoint::Unix(path) => *listen == ListenAddress::Unix(path.clone()),
                    Endpoint::Tcp { host, port } => {
                        listen.tcp().is_some_and(|listen| is_at(listen, host, *port))
                    }
                };
                let Some((listen, field)) = listened.iter().find(is_it) else { continue };
                let title = format!("the upstream \"{name}\" is tidegate itself");
                let url = &server.address.url;
                let expected = format!("{url} is where it listens: expected the API's address");
                self.cx
                    .error(span, title, expected)
                    .help(format!("to listen elsewhere than on {listen}, set `{field}`"));
            }
        }
    }

    /// The addresses for clients, each with its field.
    fn listened(&self) -> impl Iterator<Item = (ListenAddress, &'static str)> {
        let clear = self.server.listen.iter().map(|it| (it.clone(), "server.listen"));
        let tls = self.server.tls.iter().flat_map(|tls| &tls.listen);
        clear.chain(tls.map(|it| (ListenAddress::Tcp(*it), "server.tls.listen")))
    }

    /// Routes that never match, because another route takes all of their requests first.
    fn dead_routes(&self) {
        let matchers =
            |route: &RouteDraft| Some((route.pattern.clone()?, route.conditions.clone()));
        let Some(all) = self.routes.iter().map(matchers).collect() else { return };
        for shadowed in RouteTable::new(all).shadowed() {
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
        let names = Names::new("routes", self.names.iter().map(|name| &**name));
        for limit in self.drafts() {
            for (parts, span) in &limit.override_spans {
                for ((source, _), part) in limit.sources.iter().zip(parts) {
                    let Some(name) = part.value() else { continue };
                    if *source == KeySource::Route && names.index(name).is_none() {
                        let expected = names.instead(Some(name));
                        self.cx.error(span, format!("there is no route \"{name}\""), expected);
                    }
                }
            }
        }
    }
}

/// Whether a connection to this host and port reaches `listen`.
fn is_at(listen: &SocketAddr, host: &str, port: u16) -> bool {
    let is_wildcard = listen.ip().is_unspecified();
    listen.port() == port
        && match host.parse::<IpAddr>() {
            Ok(ip) => ip == listen.ip() || (is_wildcard && ip.is_loopback()),
            Err(_) => host == "localhost" && (is_wildcard || listen.ip().is_loopback()),
        }
}

/// The index of the upstream to which a route forwards its requests.
fn upstream_of(route: &RouteDraft) -> Option<usize> {
    route.action.as_ref()?.upstream()
}
