//! `tidegate explain`: what the file means for one request, without sending it.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, header};

use super::{ConfigFile, Ended, Failure, print};
use crate::clock::Clock;
use crate::config;
use crate::limit::algorithm::Algorithm;
use crate::limit::key::Key;
use crate::limit::patience::Patience;
use crate::limit::time::Timestamp;
use crate::limit::{Mode, Scope};
use crate::plan::{
    Action, CostSpec, Figures, KeyDisplay, LimitSpec, Plan, RouteSpec, StoreLocation, Terms,
};
use crate::proxy;
use crate::request::client::{Client, ClientHeader, Trust};
use crate::request::host::Host;
use crate::request::key::{Keyed, View};
use crate::request::path::NormalPath;
use crate::request::route::{Conditions, HostPattern, Match, NoRoute};
use crate::store::{BucketName, LimiterKeys, limiter_name};
use crate::throttle::{self, Refused};

/// Say which route and limits a request meets, and why. Nothing is sent and nothing is counted.
#[derive(Args, Clone, Debug)]
#[command(after_help = "For example:\n  \
    tidegate explain 'GET /users/42'\n  \
    tidegate explain 'POST https://api.example.com/orders?page=2' --ip 203.0.113.7 \\\n      \
    --header 'x-api-key: abc' --header 'cookie: session=xyz'")]
pub(super) struct Explain {
    /// The request: a method and a path or URL, as in 'GET /users/42'; without a method, GET
    request: String,
    /// The address that the connection comes from
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    ip: IpAddr,
    /// A header, as in 'x-api-key: abc'; may be repeated
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE")]
    headers: Vec<String>,
    #[command(flatten)]
    file: ConfigFile,
}

pub(super) fn explain(explain: &Explain) -> Ended {
    let none = config::Overrides::default();
    let loaded = config::load(&explain.file.config, &config::process_environment, &none)
        .map_err(Failure::Config)?;
    let (method, uri) = request_line(&explain.request)?;
    let headers = headers(&explain.headers, &uri)?;
    let asked =
        Asked { method, uri, headers, peer: explain.ip.to_canonical(), now: Clock::new().now() };
    let mut text = Text::default();
    describe(&loaded.plan, &asked, &mut text);
    print(text.0.trim_end());
    Ok(())
}

/// The request that is asked about.
struct Asked {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    peer: IpAddr,
    now: Timestamp,
}

fn request_line(text: &str) -> Result<(Method, Uri), Failure> {
    let wrong = |why: &dyn fmt::Display| {
        Failure::usage(format!("`{text}` is no request as in 'GET /users/42': {why}"))
    };
    let (method, target) = text.trim().split_once(' ').unwrap_or(("GET", text.trim()));
    let method = method.parse().map_err(|error| wrong(&error))?;
    let target = target.trim();
    if !target.starts_with('/') && !target.contains("://") {
        return Err(wrong(&"a path begins with a slash, a URL with http://"));
    }
    // What stands behind a # never leaves a browser.
    let target = target.split('#').next().unwrap_or_default();
    Ok((method, target.parse().map_err(|error| wrong(&error))?))
}

fn headers(given: &[String], uri: &Uri) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    for text in given {
        let wrong = || Failure::usage(format!("`{text}` is no header as in 'x-api-key: abc'"));
        let (name, value) = text.split_once(':').ok_or_else(wrong)?;
        let name: HeaderName = name.trim().parse().map_err(|_| wrong())?;
        headers.append(name, HeaderValue::from_str(value.trim()).map_err(|_| wrong())?);
    }
    if !headers.contains_key(header::HOST) {
        let host = uri.authority().map_or("localhost", |authority| authority.as_str());
        let host = HeaderValue::from_str(host).map_err(Failure::usage)?;
        headers.insert(header::HOST, host);
    }
    Ok(headers)
}

/// Lines with a title in front.
#[derive(Default)]
struct Text(String);

impl Text {
    fn line(&mut self, title: &str, value: impl fmt::Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{title:<9} {value}");
    }

    fn more(&mut self, value: impl fmt::Display) {
        self.line("", value);
    }
}

/// The headers that the API is sent of those that were asked about: no others count.
fn sent(asked: &Asked, client: &Client, trust: &Trust) -> HeaderMap {
    let (mut parts, ()) = http::Request::new(()).into_parts();
    parts.uri = asked.uri.clone();
    parts.headers = asked.headers.clone();
    proxy::leave_sent(&mut parts, client, trust);
    parts.headers
}

/// The same walk as a request's, with words at each step.
fn describe(plan: &Plan, asked: &Asked, text: &mut Text) {
    let Asked { method, uri, headers, peer, now } = asked;
    let host = match Host::of(uri, headers, Version::HTTP_11) {
        Ok(host) => host,
        Err(error) => return text.line("answer", format_args!("400: {error}")),
    };
    let path = match NormalPath::parse(uri.path(), plan.server.merge_slashes) {
        Ok(path) => path,
        Err(error) => return text.line("answer", format_args!("400: {error}")),
    };
    text.line("request", format_args!("{method} {} (host {})", path.upstream(), host.as_str()));
    if path.upstream() != uri.path() {
        text.more(format_args!("goes upstream in this form, not as {}", uri.path()));
    }
    if path.matching() != path.upstream() {
        text.more(format_args!("matched and counted as {}", path.matching()));
    }
    let client = plan.server.trust.client(*peer, headers);
    text.line("client", describe_client(plan, &client, asked));
    let sent = sent(asked, &client, &plan.server.trust);
    for name in headers.keys().filter(|name| !sent.contains_key(*name)) {
        text.more(format_args!("{name} counts for nothing: the API does not get it"));
    }
    let headers = &sent;
    let found = match plan.table.find(&path, method, host.as_str(), headers) {
        Ok(found) => found,
        Err(none) => {
            let others = plan.table.candidates(&path, host.as_str());
            let names = others.iter().map(|place| plan.routes[*place].name.to_string());
            let names = names.collect::<Vec<_>>().join(", ");
            return match none {
                NoRoute::NotFound if names.is_empty() => {
                    text.line("route", "none has this path and host");
                    text.line("answer", "404");
                }
                NoRoute::NotFound => {
                    text.line("route", format_args!("none: the headers do not fit {names}"));
                    text.line("answer", "404");
                }
                NoRoute::MethodNotAllowed(allowed) => {
                    let allowed: Vec<_> = allowed.iter().map(Method::as_str).collect();
                    let allowed = allowed.join(", ");
                    text.line("route", format_args!("none for {method}: {names} has {allowed}"));
                    text.line("answer", format_args!("405 with allow: {allowed}"));
                }
            };
        }
    };
    let route = &plan.routes[found.route];
    describe_route(plan, route, &path, text);
    why(plan, &found, plan.table.candidates(&path, host.as_str()), text);
    let view = View {
        path: &path,
        query: uri.query(),
        method,
        host: host.as_str(),
        route: &route.name,
        client: client.address,
        headers,
        params: &found.params,
    };
    if route.limits.is_empty() {
        text.line("limits", "none: everything passes");
    }
    for limit in plan.limits_of(route) {
        describe_limit(plan, limit, &view, *now, text);
    }
}

fn describe_client(plan: &Plan, client: &Client, asked: &Asked) -> String {
    let Asked { headers, peer, .. } = asked;
    let header = match &plan.server.trust.header {
        ClientHeader::XForwardedFor => "x-forwarded-for",
        ClientHeader::Forwarded => "forwarded",
        ClientHeader::Single(name) => name.as_str(),
    };
    let address = client.address;
    match (client.peer_trusted, headers.contains_key(header)) {
        (false, false) => address.to_string(),
        (false, true) => {
            format!("{address}: {header} is not believed, {peer} is none of trusted_proxies")
        }
        (true, false) => format!("{address}: a trusted proxy, and there is no {header}"),
        (true, true) if address == *peer => {
            format!("{address}: a trusted proxy, and {header} names nobody else")
        }
        (true, true) => format!("{address}: {header} says so, and {peer} is a trusted proxy"),
    }
}

fn describe_route(plan: &Plan, route: &RouteSpec, path: &NormalPath<'_>, text: &mut Text) {
    text.line("route", &route.name);
    match &route.action {
        Action::Respond { status, .. } => {
            text.line(
                "answer",
                format_args!("{} from the file, if the limits allow", status.as_u16()),
            );
        }
        Action::Forward { upstream, rewrite } => {
            let Some(upstream) = plan.upstream(*upstream) else { return };
            let servers: Vec<_> = upstream.servers.iter().map(|server| &*server.url).collect();
            text.line("upstream", format_args!("{} ({})", upstream.name, servers.join(", ")));
            if let Some(rewrite) = rewrite {
                text.more(format_args!("gets {}", rewrite.apply(path)));
            }
        }
    }
}

/// Why it is this route and none of the others with a path and host that fit.
fn why(plan: &Plan, found: &Match<'_>, candidates: Vec<usize>, text: &mut Text) {
    let pattern = plan.table.pattern(found.route);
    let params: Vec<_> = pattern
        .params()
        .filter_map(|name| Some(format!("{name} = {}", found.params.value(name)?)))
        .collect();
    let pattern = pattern.as_str();
    let with =
        if params.is_empty() { String::new() } else { format!(", with {}", params.join(", ")) };
    text.line("why", format_args!("path {pattern} fits{with}"));
    for condition in conditions(plan.table.conditions(found.route)) {
        text.more(format_args!("{condition} too"));
    }
    let place = candidates.iter().position(|place| *place == found.route).unwrap_or_default();
    for (rank, other) in candidates.iter().enumerate() {
        let name = &plan.routes[*other].name;
        match rank.cmp(&place) {
            std::cmp::Ordering::Less => {
                let conditions = conditions(plan.table.conditions(*other)).join(" and ");
                text.more(format_args!("{name} is tried before, and wants {conditions}"));
            }
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Greater => {
                text.more(format_args!("{name} has such a path too, and is less specific"));
            }
        }
    }
}

fn conditions(conditions: &Conditions) -> Vec<String> {
    let mut all = Vec::new();
    if !conditions.methods.is_empty() {
        let methods: Vec<_> = conditions.methods.iter().map(Method::as_str).collect();
        all.push(format!("methods {}", methods.join(", ")));
    }
    match &conditions.host {
        Some(HostPattern::Exact(host)) => all.push(format!("host {host}")),
        Some(HostPattern::Below(end)) => all.push(format!("host *{end}")),
        None => {}
    }
    if !conditions.headers.is_empty() {
        let names: Vec<_> = conditions.headers.iter().map(|(name, _)| name.as_str()).collect();
        all.push(format!("headers {}", names.join(", ")));
    }
    all
}

fn describe_limit(plan: &Plan, spec: &LimitSpec, view: &View<'_>, now: Timestamp, text: &mut Text) {
    let name = &spec.name;
    if spec.exempt.covers(view) {
        return text.line("limit", format_args!("{name} does not apply: the request is exempt"));
    }
    // What a limit in shadow cannot count, it lets pass.
    let refused = |error: &dyn fmt::Display| match spec.mode {
        Mode::Enforce => format!("{name} refuses it with 400: {error}"),
        Mode::Shadow | Mode::Candidate => format!("{name} (shadow) does not count it: {error}"),
    };
    let key = match spec.key.key(view) {
        Ok(Keyed::Key(key)) => key,
        Ok(Keyed::Skip) => {
            let why = "does not apply: a part of its key is missing, and `missing` is \"skip\"";
            return text.line("limit", format_args!("{name} {why}"));
        }
        Err(error) => return text.line("limit", refused(&error)),
    };
    let cost = match throttle::cost(&spec.cost, view.headers) {
        Ok(cost) => cost,
        Err(Refused::Cost { header, max }) => {
            let error = format!("header `{header}` must hold one whole number from 1 to {max}");
            return text.line("limit", refused(&error));
        }
        Err(_) => return text.line("limit", refused(&"its cost cannot be told")),
    };
    let overridden = spec.overrides.find(&key);
    let shadow = if spec.mode == Mode::Shadow { " (shadow: never rejects)" } else { "" };
    let source = if overridden.is_some() { ", an override for this key" } else { "" };
    let figures = overridden.unwrap_or(&spec.figures);
    let algorithm = match figures.at(now) {
        Terms::Unlimited => {
            text.line("limit", format_args!("{name}{shadow}: unlimited{source}"));
            return describe_candidate(plan, spec, &key, (now, text));
        }
        Terms::Nothing => {
            text.line("limit", format_args!("{name}{shadow}: nothing passes{source}"));
            return describe_candidate(plan, spec, &key, (now, text));
        }
        Terms::Limited(algorithm) => algorithm,
    };
    match figures {
        Figures::Calendar(quota) => {
            text.line("limit", format_args!("{name}{shadow}: {quota}{source}"));
        }
        _ => text.line("limit", format_args!("{name}{shadow}: {algorithm}{source}")),
    }
    if cost.get() > algorithm.capacity() {
        text.more(format_args!("costs {cost}, which never passes"));
    } else if let CostSpec::Response { source, max, .. } = &spec.cost {
        let most = max.unwrap_or_else(|| throttle::most_of(&algorithm));
        text.more(format_args!(
            "takes {cost} before, and in the end what {source} says, up to {most}"
        ));
    } else if cost.get() > 1 {
        text.more(format_args!("costs {cost}"));
    }
    describe_wait(spec, text);
    if let Some(when) = &spec.count_when {
        text.more(format_args!("given back unless the response's status is {when}"));
    }
    describe_key(plan, spec, &key, text);
    describe_bucket(plan, spec, &key, &algorithm, text);
    describe_candidate(plan, spec, &key, (now, text));
}

fn describe_wait(spec: &LimitSpec, text: &mut Text) {
    let most = spec.max_waiting;
    match (spec.mode, spec.wait) {
        (_, Patience::NONE) => {}
        (Mode::Shadow | Mode::Candidate, _) => text.more("nobody is held for it"),
        (Mode::Enforce, Patience::ENDLESS) => {
            text.more(format_args!("holds requests until their turn comes, {most} at once"));
        }
        (Mode::Enforce, wait) => {
            let wait = Duration::from_micros(wait.as_micros());
            text.more(format_args!("holds requests for up to {wait:?}, {most} at once"));
        }
    }
}

/// The figures that are tried in place of the limit's own: an override's stay.
fn describe_candidate(
    plan: &Plan,
    spec: &LimitSpec,
    key: &Key,
    (now, text): (Timestamp, &mut Text),
) {
    let overridden = spec.overrides.find(key).is_some();
    let Some(candidate) = spec.candidate.as_ref().filter(|_| !overridden) else { return };
    match candidate.figures.at(now) {
        Terms::Limited(algorithm) => {
            match &candidate.figures {
                Figures::Calendar(quota) => text.more(format_args!("tries {quota} in shadow")),
                _ => text.more(format_args!("tries {algorithm} in shadow")),
            }
            describe_bucket(plan, candidate, key, &algorithm, text);
        }
        Terms::Unlimited => text.more("tries unlimited in shadow"),
        Terms::Nothing => text.more("tries in shadow to let nothing pass"),
    }
}

fn describe_bucket(
    plan: &Plan,
    spec: &LimitSpec,
    key: &Key,
    algorithm: &Algorithm,
    text: &mut Text,
) {
    if let Some(begin) = &spec.limiter {
        let key = Some(key).filter(|_| !spec.key.sources.is_empty());
        return describe_limiter(&limiter_name(begin, key), text);
    }
    let name = BucketName { prefix: &plan.store.prefix, spec, key };
    match (&plan.store.location, spec.scope) {
        (StoreLocation::Redis(_), Scope::Cluster) => {
            text.more(format_args!("in Redis as {}", name.text(algorithm, plan.log.keys)));
        }
        (StoreLocation::Redis(_), Scope::Node) => text.more("in each process by itself"),
        (StoreLocation::Memory, _) => {}
    }
}

fn describe_limiter(name: &[u8], text: &mut Text) {
    let keys = LimiterKeys::new(name, "CLIENT");
    let [name, value, permits] =
        [&keys.hash, &keys.value, &keys.permits].map(|key| String::from_utf8_lossy(key));
    text.more(format_args!("in Redis as the limiter {name}, with {value} and {permits}"));
}

fn describe_key(plan: &Plan, spec: &LimitSpec, key: &Key, text: &mut Text) {
    let sources: Vec<_> = spec.key.sources.iter().map(ToString::to_string).collect();
    if sources.is_empty() {
        return text.more("one bucket for all requests");
    }
    let (shown, hashed) = match plan.log.keys {
        KeyDisplay::Hashed if spec.key.has_secrets() => (spec.key.hashed(key), " (hashed)"),
        KeyDisplay::Hashed | KeyDisplay::Plain => (key.clone(), ""),
    };
    text.more(format_args!("counted by {}: {shown}{hashed}", sources.join(" and ")));
    let mut parts = spec.key.sources.iter().zip(key.values());
    if let Some((source, _)) = parts.find(|(_, value)| value.is_none()) {
        text.more(format_args!("without {source} it shares that bucket with all such requests"));
    }
}
