//! `tidegate explain`: what the file means for one request, without sending it.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, header};

use super::{ConfigFile, Ended, Failure, print};
use crate::config;
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::plan::{Action, CostSpec, Figures, KeyDisplay, LimitSpec, Plan};
use crate::request::host::Host;
use crate::request::key::{Keyed, View};
use crate::request::path::NormalPath;
use crate::request::route::NoRoute;

/// Say which route and limits a request meets, and why.
#[derive(Args, Clone, Debug)]
pub(super) struct Explain {
    /// The request: a method and a path or URL, as in 'GET /users/42'; the method may be left out
    request: String,
    /// The address that the request comes from
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    ip: IpAddr,
    /// A header, as in 'x-api-key: abc'; may be repeated
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    #[command(flatten)]
    file: ConfigFile,
}

pub(super) fn explain(explain: &Explain) -> Ended {
    let loaded = config::load(
        &explain.file.config,
        &config::process_environment,
        &config::Overrides::default(),
    )
    .map_err(Failure::Config)?;
    let (method, uri) = request_line(&explain.request)?;
    let headers = headers(&explain.headers, &uri)?;
    print(describe(&loaded.plan, &method, &uri, &headers, explain.ip).trim_end());
    Ok(())
}

fn request_line(text: &str) -> Result<(Method, Uri), Failure> {
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::Usage(format!("`{text}` is no request as in 'GET /users/42': {why}"))
    };
    let (method, target) = text.trim().split_once(' ').unwrap_or(("GET", text.trim()));
    let method = method.parse().map_err(|error| wrong(&error))?;
    let uri = target.trim().parse().map_err(|error| wrong(&error))?;
    Ok((method, uri))
}

fn headers(given: &[String], uri: &Uri) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    for text in given {
        let wrong = || Failure::Usage(format!("`{text}` is no header as in 'x-api-key: abc'"));
        let (name, value) = text.split_once(':').ok_or_else(wrong)?;
        let name: HeaderName = name.trim().parse().map_err(|_| wrong())?;
        headers.append(name, HeaderValue::from_str(value.trim()).map_err(|_| wrong())?);
    }
    if uri.authority().is_none() && !headers.contains_key(header::HOST) {
        headers.insert(header::HOST, HeaderValue::from_static("localhost"));
    }
    Ok(headers)
}

/// The same walk as a request's, with words at each step.
fn describe(plan: &Plan, method: &Method, uri: &Uri, headers: &HeaderMap, peer: IpAddr) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let mut line = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "{name:<9} {value}");
    };
    let host = match Host::of(uri, headers, Version::HTTP_11) {
        Ok(host) => host,
        Err(error) => {
            line("answer", &format_args!("400, {error}"));
            return text;
        }
    };
    let path = match NormalPath::parse(uri.path(), plan.server.merge_slashes) {
        Ok(path) => path,
        Err(error) => {
            line("answer", &format_args!("400, {error}"));
            return text;
        }
    };
    line("request", &format_args!("{method} {} (host {})", path.upstream(), host.as_str()));
    if path.matching() != path.upstream() {
        line("", &format_args!("matched and counted as {}", path.matching()));
    }
    let client = plan.server.trust.client(peer, headers);
    match client.address == peer.to_canonical() {
        true => line("client", &client.address),
        false => {
            line("client", &format_args!("{}, as {peer} says, which is trusted", client.address))
        }
    }
    let found = match plan.table.find(&path, method, host.as_str(), headers) {
        Ok(found) => found,
        Err(NoRoute::NotFound) => {
            line("route", &"none matches");
            line("answer", &"404");
            return text;
        }
        Err(NoRoute::MethodNotAllowed(allowed)) => {
            let allowed: Vec<_> = allowed.iter().map(Method::as_str).collect();
            line("route", &format_args!("none for {method}, only for {}", allowed.join(", ")));
            line("answer", &"405");
            return text;
        }
    };
    let route = &plan.routes[found.route];
    line("route", &route.name);
    match &route.action {
        Action::Respond { status, .. } => {
            line("answer", &format_args!("{} from the file", status.as_u16()))
        }
        Action::Forward { upstream, rewrite } => {
            let upstream = &plan.upstreams[*upstream];
            let servers: Vec<_> = upstream.servers.iter().map(|server| &*server.url).collect();
            line("upstream", &format_args!("{} ({})", upstream.name, servers.join(", ")));
            if let Some(rewrite) = rewrite {
                line("", &format_args!("as {}", rewrite.apply(&path)));
            }
        }
    }
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
        line("limits", &"none");
    }
    for limit in &route.limits {
        let spec = &plan.limits[*limit];
        line("limit", &explain_limit(plan, spec, &view));
    }
    text
}

fn explain_limit(plan: &Plan, spec: &LimitSpec, view: &View<'_>) -> String {
    let name = &spec.name;
    if spec.exempt.covers(view) {
        return format!("{name}: exempt");
    }
    let key = match spec.key.key(view) {
        Ok(Keyed::Key(key)) => key,
        Ok(Keyed::Skip) => return format!("{name}: does not apply, a part of its key is missing"),
        Err(error) => return format!("{name}: 400, {error}"),
    };
    let overridden = spec.overrides.find(&key);
    let figures = match overridden.unwrap_or(&spec.figures) {
        Figures::Unlimited => "unlimited".to_owned(),
        Figures::Nothing => "nothing passes".to_owned(),
        Figures::Limited(Algorithm::TokenBucket(params)) => {
            format!("{} with a burst of {}", params.rate, params.burst)
        }
    };
    let mut text = format!("{name}: {figures}");
    if overridden.is_some() {
        text.push_str(" (an override)");
    }
    if spec.mode == Mode::Shadow {
        text.push_str(", in shadow");
    }
    match &spec.cost {
        CostSpec::Fixed(cost) if cost.get() == 1 => {}
        CostSpec::Fixed(cost) => text.push_str(&format!(", costs {cost}")),
        CostSpec::Header { name, default, max } => {
            text.push_str(&format!(
                ", costs what header {name} says (else {default}, at most {max})"
            ));
        }
    }
    let sources: Vec<_> = spec.key.sources.iter().map(ToString::to_string).collect();
    match sources.is_empty() {
        true => text.push_str("\n          one bucket for all"),
        false => text.push_str(&format!("\n          counted by {}", sources.join(" and "))),
    }
    let shown = match plan.log.keys {
        KeyDisplay::Hashed if spec.key.has_secrets() => spec.key.hashed(&key),
        _ => key,
    };
    if !sources.is_empty() {
        text.push_str(&format!(": {shown}"));
    }
    text
}
