//! `tidegate explain`: what the file means for one request, without sending it.

mod explanation;
mod limit;
mod route;
mod token;

use std::net::{IpAddr, Ipv4Addr};

use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, header};
use serde_json::{Map, Value};

use self::explanation::Explanation;
use self::limit::{describe_calls, describe_limit, describe_plan};
use self::route::{describe_none, describe_route, describe_turn, why};
use self::token::describe_token;
use super::{CommandResult, ConfigFile, Failure, load, print};
use crate::clock::Clock;
use crate::limit::time::Timestamp;
use crate::reading::{
    self, BadHead, RequestHead, RequestReading, Seen, Sender, TargetParts, Unreadable,
};
use crate::request::client::{Client, PeerAddress};
use crate::request::key::{BodyFields, Token, View, read_claims};
use crate::request::line::{WrittenTarget, request_line};
use crate::request::network::canonical_address;
use crate::request::path::NormalPath;
use crate::settings::Settings;

/// Show which route and which limits apply to a request, and why. Nothing is sent and nothing is counted.
#[derive(Args, Clone, Debug)]
#[command(after_help = "For example:\n  \
    tidegate explain 'GET /users/42'\n  \
    tidegate explain 'POST https://api.example.com/orders?page=2' --ip 203.0.113.7 \\\n      \
    --header 'x-api-key: abc' --header 'cookie: session=xyz'\n  \
    tidegate explain 'GET /orders' --claims '{\"sub\":\"a\"}' --plain")]
pub(super) struct Explain {
    /// The request: a method and a path or URL, as in 'GET /users/42'; without a method, GET
    #[arg(required = true, num_args = 1..=2)]
    request: Vec<String>,
    /// The address that the connection comes from
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    ip: IpAddr,
    /// A header, as in 'x-api-key: abc'; may be repeated
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// The claims of a token that counts as verified, as in '{"sub":"a"}'
    #[arg(long, value_name = "JSON", value_parser = claims)]
    claims: Option<Map<String, Value>>,
    /// The body of the request; without a content-type JSON if it begins with a brace, else a form
    #[arg(long, value_name = "TEXT", default_value_t, hide_default_value = true)]
    body: String,
    /// Show keys and claims as they are, not as the log shows them
    #[arg(long)]
    plain: bool,
    #[command(flatten)]
    file: ConfigFile,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn explain(explain: &Explain) -> CommandResult {
    let settings = load(&explain.file.config)?.settings;
    let text = explain.request.join(" ");
    let (method, target) = request_line(&text).map_err(|why| {
        Failure::usage(format!("`{text}` is no request as in 'GET /users/42': {why}"))
    })?;
    let headers = headers(&explain.headers, &target.uri)?;
    let (peer, now) = (canonical_address(explain.ip), Clock::new().now());
    let request = ExplainedRequest { told: explain, method, target, headers, peer, now };
    let mut text = Explanation { method: request.method.to_string(), ..Explanation::default() };
    if let Err(unreadable) = describe(&settings, &request, &mut text) {
        describe_unreadable(&settings, &request.method, &unreadable, &mut text);
    }
    match explain.json {
        true => print(serde_json::to_string(&text).map_err(Failure::run)?),
        false => print(text.to_string().trim_end()),
    }
}

/// The request to explain.
struct ExplainedRequest<'e> {
    told: &'e Explain,
    method: Method,
    target: WrittenTarget,
    headers: HeaderMap,
    peer: IpAddr,
    now: Timestamp,
}

/// The claims of a token, as JSON.
fn claims(text: &str) -> Result<Map<String, Value>, String> {
    read_claims(text).map_err(|error| format!("expected a JSON object: {error}"))
}

fn headers(given: &[String], uri: &Uri) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    for text in given {
        let wrong = || Failure::usage(format!("`{text}` is no header as in 'x-api-key: abc'"));
        let (name, value) = text.split_once(':').ok_or_else(wrong)?;
        let name: HeaderName = name.trim().parse().map_err(|_| wrong())?;
        headers
            .append(name, HeaderValue::from_bytes(value.trim().as_bytes()).map_err(|_| wrong())?);
    }
    if !headers.contains_key(header::HOST) {
        let host = uri.authority().map_or("localhost", |authority| authority.as_str());
        let host = HeaderValue::from_str(host).map_err(Failure::usage)?;
        headers.insert(header::HOST, host);
    }
    Ok(headers)
}

/// Reads the request as the proxy does, and describes what it means.
///
/// # Errors
/// If the request is refused before its limits are asked.
fn describe(
    settings: &Settings,
    request: &ExplainedRequest<'_>,
    text: &mut Explanation,
) -> Result<(), Unreadable> {
    let ExplainedRequest { told: Explain { plain, body: sent_body, .. }, .. } = request;
    let ExplainedRequest { method, target, headers, peer, now, .. } = request;
    let mut sent = headers.clone();
    let reading = reading::read(
        settings,
        RequestHead {
            method,
            target: TargetParts { path: target.path(), ..TargetParts::from(&target.uri) },
            version: Version::HTTP_11,
            seen: Seen::of(headers),
            headers: &mut sent,
            sender: Sender::Peer(PeerAddress::Network(*peer)),
            goes_as_it_came: settings.only_decides(),
        },
    )?;
    let RequestReading { host, path, client, found, route, .. } = &reading;
    text.host = Some(host.as_str().to_owned());
    text.path = Some(path.upstream().to_owned());
    text.client = Some(client.address);
    text.line("request", format_args!("{method} {} (host {})", path.upstream(), host.as_str()));
    if path.upstream() != target.path() {
        text.more(format_args!("goes upstream in this form, not as {}", target.path()));
    }
    if path.matching() != path.upstream() {
        text.more(format_args!("matched and counted as {}", path.matching()));
    }
    text.line("client", describe_client(settings, client, request));
    for name in headers.keys().filter(|name| !sent.contains_key(*name)) {
        text.more(format_args!("{name} is left out: the API does not get it"));
    }
    let view = reading.view(method, &sent);
    let candidates = settings.table.candidates(path, host.as_str());
    match found {
        Ok(found) => {
            describe_route(settings, (&settings.routes[*found].name, route), path, text);
            why(settings, *found, &view.params, &candidates, text);
            if route.limits.is_empty() {
                text.line("limits", "none: everything passes");
            }
        }
        Err(none) => describe_none(settings, method, none, &candidates, text),
    }
    let token = describe_token(settings, route, request, &sent, text);
    let names = &*route.options().body_fields;
    let body = BodyFields::told(names, &sent, sent_body.as_bytes());
    if !names.is_empty() && !sent_body.is_empty() && body.is_unread() {
        let why = "has no fields: it is not JSON or a form, or it is coded or longer than 64 KiB";
        text.line("body", why);
    }
    let view = View { token: Token(&&token), body: Some(&body), ..view };
    describe_turn(settings, route, &view, *plain, text);
    describe_plan(settings.plans_of(route), &view, *plain, text);
    let limits = settings.limits_of(route);
    let explained = |limit| describe_limit(settings, limit, &view, (*now, *plain));
    text.add_limits(limits.map(explained).collect());
    if settings.decide.listen.is_some() {
        describe_calls(settings.limits_of(route), found.is_err(), text);
        if let Err(why) = NormalPath::check_as_it_came(target.path()) {
            text.more(format_args!("where another proxy forwards it, 400: {why}"));
        }
    }
    Ok(())
}

/// Describes the answer to a request that meets no limit.
fn describe_unreadable(
    settings: &Settings,
    method: &Method,
    unreadable: &Unreadable,
    text: &mut Explanation,
) {
    let Unreadable { host, why } = unreadable;
    text.host = host.as_ref().map(|host| host.as_str().to_owned());
    let status = why.status();
    text.status = Some(status);
    if let BadHead::NeverServed(allowed) = why {
        text.line("answer", format_args!("{status}: {method} is never passed on"));
        let allowed: Vec<_> = allowed.iter().map(ToString::to_string).collect();
        text.more(format_args!("allow: {}", allowed.join(", ")));
        text.allow = Some(allowed);
    } else {
        text.line("answer", format_args!("{status}: {why}"));
    }
    if let BadHead::TooLarge { client, route } = why {
        text.client = Some(*client);
        text.route = Some(settings.routes[*route].name.to_string());
    }
}

fn describe_client(settings: &Settings, client: &Client, request: &ExplainedRequest<'_>) -> String {
    let ExplainedRequest { headers, peer, .. } = request;
    let header = settings.server.trust.header.name();
    let address = client.address;
    match (client.peer_trusted, headers.contains_key(&header)) {
        (false, false) => address.to_string(),
        (false, true) => {
            format!("{address}: {header} is not believed, because {peer} is not in trusted_proxies")
        }
        (true, false) => format!("{address}: a trusted proxy, and there is no {header}"),
        (true, true) if address == *peer => {
            format!("{address}: a trusted proxy, and {header} names no other client")
        }
        (true, true) => format!("{address}: from {header}, because {peer} is a trusted proxy"),
    }
}
