//! Describes which route a request has, and why.

use http::Method;
use serde_json::json;

use super::explanation::Explanation;
use crate::config::{Spelled as _, duration_text, enumerate};
use crate::limit::Mode;
use crate::limit::key::write_shown;
use crate::request::key::{KeySpec, View};
use crate::request::path::NormalPath;
use crate::request::route::{Conditions, NoRoute, PathParams};
use crate::settings::{Action, KeyDisplay, RouteSpec, Settings};

/// Describes a request without a route. `others` are the routes whose path and host fit.
pub(super) fn describe_none(
    settings: &Settings,
    method: &Method,
    none: &NoRoute,
    others: &[usize],
    text: &mut Explanation,
) {
    let names = others.iter().map(|route| settings.routes[*route].name.to_string());
    let names = names.collect::<Vec<_>>().join(", ");
    // The limits of `[server]` come first, also without a route.
    let if_allowed =
        if settings.no_route.limits.is_empty() { "" } else { ", if the server's limits allow" };
    match none {
        NoRoute::NotFound => {
            let why = match names.is_empty() {
                true => "none has this path and host".to_owned(),
                false => format!("none: the headers do not fit {names}"),
            };
            text.line("route", why);
            text.line("answer", format_args!("404{if_allowed}"));
            text.status = Some(404);
        }
        NoRoute::MethodNotAllowed(allowed) => {
            let each: Vec<_> = allowed.iter().map(ToString::to_string).collect();
            let allowed = each.join(", ");
            text.line("route", format_args!("none for {method}: {names} has {allowed}"));
            text.line("answer", format_args!("405 with allow: {allowed}{if_allowed}"));
            (text.status, text.allow) = (Some(405), Some(each));
        }
    }
}

/// Says where the route's requests go.
pub(super) fn describe_route(
    settings: &Settings,
    (name, route): (&str, &RouteSpec),
    path: &NormalPath<'_>,
    text: &mut Explanation,
) {
    text.line("route", name);
    text.route = Some(name.to_owned());
    match &route.action {
        Action::Respond { status, .. } => {
            let status = status.as_u16();
            text.line("answer", format_args!("{status} from the file, if the limits allow"));
            text.status = Some(status);
        }
        Action::Usage { limits } => {
            let limits = settings.limits_at(limits).filter(|limit| limit.mode == Mode::Enforce);
            let limits = limits.map(|limit| limit.name.as_str());
            let limits = enumerate(limits, "and");
            text.line(
                "answer",
                format_args!("200 with what is left of {limits}, if the limits allow"),
            );
            text.status = Some(200);
        }
        Action::Decide => text.line("upstream", "none: another proxy asks, and forwards it"),
        Action::Forward { upstream, rewrite } => {
            let Some(upstream) = settings.upstream(*upstream) else { return };
            let servers = upstream.servers.iter();
            let servers: Vec<_> = servers.map(|server| &*server.address.url).collect();
            text.line("upstream", format_args!("{} ({})", upstream.name, servers.join(", ")));
            let rewritten = rewrite.as_ref().map(|rewrite| rewrite.apply(path));
            if let Some(path) = &rewritten {
                text.more(format_args!("gets {path}"));
            }
            let sent = rewritten.unwrap_or_else(|| path.upstream().to_owned());
            let name = upstream.name.as_str();
            text.upstream = Some(json!({ "name": name, "servers": servers, "path": sent }));
        }
    }
}

/// Says whose turn the request is while its upstream is full.
pub(super) fn describe_turn(
    settings: &Settings,
    route: &RouteSpec,
    view: &View<'_>,
    plain: bool,
    text: &mut Explanation,
) {
    let spec = route.action.upstream().and_then(|index| settings.upstreams.get(index));
    let Some((spec, max_requests)) = spec.and_then(|it| Some((it, it.max_requests?))) else {
        return;
    };
    let options = route.options();
    let priority = options.priority.spelling();
    let goal = max_requests.goal().map(|goal| options.slower_than.unwrap_or(goal.slower_than));
    let goal = goal.map(duration_text);
    let shown = |shares: &KeySpec| {
        let key = shares.key(view).ok()??;
        let key =
            if plain || settings.log.keys == KeyDisplay::Plain { key } else { shares.hashed(&key) };
        let mut shown = String::new();
        _ = write_shown(key.as_str(), &mut shown);
        Some(shown)
    };
    let key = spec.share_by.as_ref().and_then(shown);
    let slow = goal.as_ref().map_or_else(String::new, |goal| format!(", slow after {goal}"));
    let by = key.as_ref().map_or_else(String::new, |key| format!(", in turns as {key}"));
    text.line("if full", format_args!("priority {priority}{slow}{by}"));
    if let Some(upstream) = &mut text.upstream {
        upstream["priority"] = priority.into();
        upstream["slower_than"] = goal.into();
        upstream["share"] = key.into();
    }
}

/// Says why the request has this route, and not another route whose path and host fit.
pub(super) fn why(
    settings: &Settings,
    found: usize,
    params: &PathParams<'_>,
    candidates: &[usize],
    text: &mut Explanation,
) {
    let pattern = settings.table.pattern(found);
    let params = pattern.params().filter_map(|name| Some((name, params.value(name)?)));
    let params: Vec<_> = params.collect();
    let named = params.iter().map(|(name, value)| ((*name).to_owned(), (*value).into()));
    text.params = Some(named.collect());
    let params: Vec<_> = params.iter().map(|(name, value)| format!("{name} = {value}")).collect();
    let with =
        if params.is_empty() { String::new() } else { format!(", with {}", params.join(", ")) };
    text.line("why", format_args!("path {} fits{with}", pattern.as_str()));
    for condition in conditions(settings.table.conditions(found)) {
        text.more(format_args!("{condition} too"));
    }
    let mut is_before = true;
    for other in candidates {
        let name = &settings.routes[*other].name;
        if *other == found {
            is_before = false;
        } else if is_before {
            let conditions = conditions(settings.table.conditions(*other)).join(" and ");
            text.more(format_args!("{name} is tried first, and requires {conditions}"));
        } else {
            text.more(format_args!("{name} has such a path too, and is less specific"));
        }
    }
}

fn conditions(conditions: &Conditions) -> Vec<String> {
    let mut all = Vec::new();
    if !conditions.methods.is_empty() {
        let methods: Vec<_> = conditions.methods.iter().map(Method::as_str).collect();
        all.push(format!("methods {}", methods.join(", ")));
    }
    if let Some(host) = &conditions.host {
        all.push(format!("host {host}"));
    }
    if !conditions.headers.is_empty() {
        let names: Vec<_> = conditions.headers.iter().map(|(name, _)| name.as_str()).collect();
        all.push(format!("headers {}", names.join(", ")));
    }
    all
}
