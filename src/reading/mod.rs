//! What a request's head means under some settings: its host, path, client and route, and the header fields that count.
//!
//! [`read`] has the order of these steps and their errors. The proxy calls it for each request, `replay` for the
//! requests of logs and of the tests in a file, and `tidegate explain` for the request that it explains. `fields` knows
//! the header fields that the proxy deals with, `strip` removes those that the API does not get.

mod fields;
mod strip;

use std::net::IpAddr;

use http::header::ACCESS_CONTROL_REQUEST_METHOD;
use http::{HeaderMap, Method, Uri, Version};

use self::fields::has_malformed_length;
pub(crate) use self::fields::{
    GRPC_TIMEOUT, Seen, TIDEGATE_OVER, has_unknown_coding, listed, remove_connection_fields,
    remove_named,
};
use self::strip::strip_unforwarded;
use crate::request::body_length;
use crate::request::client::{Client, PeerAddress};
use crate::request::host::{Host, HostError};
use crate::request::key::{Token, View};
use crate::request::method::has_lower_case;
use crate::request::path::{AmbiguousPath, NormalPath};
use crate::request::route::{NoRoute, PathParams};
use crate::request::value::is_undecodable;
use crate::settings::{RouteSpec, Settings};

/// A request's head, as it came.
pub(crate) struct RequestHead<'h, 't> {
    pub(crate) method: &'h Method,
    pub(crate) target: TargetParts<'t>,
    pub(crate) version: Version,
    /// The fields. [`read`] removes those that the API does not get.
    pub(crate) headers: &'h mut HeaderMap,
    /// Which fields there are.
    pub(crate) seen: Seen,
    pub(crate) sender: Sender,
    /// Whether somebody else forwards the request. Then the API gets the path as it came.
    pub(crate) goes_as_it_came: bool,
}

/// The parts of a request's target.
#[derive(Clone, Copy)]
pub(crate) struct TargetParts<'t> {
    /// The host of an absolute target, perhaps with a port.
    pub(crate) authority: Option<&'t str>,
    /// The path without the query.
    pub(crate) path: &'t str,
    pub(crate) query: Option<&'t str>,
}

impl<'t> From<&'t Uri> for TargetParts<'t> {
    fn from(uri: &'t Uri) -> Self {
        let authority = uri.authority().map(|authority| authority.as_str());
        Self { authority, path: uri.path(), query: uri.query() }
    }
}

/// Who sends a request.
pub(crate) enum Sender {
    /// The other end of the connection. If it is a trusted proxy, the header fields name the client.
    Peer(PeerAddress),
    /// This client. A log may name the client itself.
    Client(Client),
}

/// What a request's head means.
pub(crate) struct RequestReading<'p, 't> {
    settings: &'p Settings,
    pub(crate) host: Host,
    pub(crate) path: NormalPath<'t>,
    query: Option<&'t str>,
    pub(crate) client: Client,
    /// The index of the request's route in the settings. A request without a route meets the limits of `[server]` before
    /// this is its answer.
    pub(crate) found: Result<usize, NoRoute>,
    /// The route, or that of requests without a route.
    pub(crate) route: &'p RouteSpec,
    /// Whether it is a preflight of an allowed origin that the proxy answers itself: no API is behind the route.
    pub(crate) is_own_preflight: bool,
}

/// The error for a request that meets no limit.
#[derive(Debug)]
pub(crate) struct Unreadable {
    /// The host, if it could be read.
    pub(crate) host: Option<Host>,
    pub(crate) why: BadHead,
}

/// What is wrong with the head of a request that meets no limit.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadHead {
    /// The host is missing, repeated or malformed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The transfer coding is other than chunked alone. The proxy would pass the body on wrongly.
    #[error("the only transfer coding supported here is chunked")]
    TransferCoding,
    /// A `content-length` is not a number.
    #[error("content-length must be a whole number")]
    Length,
    /// The method has lower-case letters. Many APIs take it for the same method in upper case.
    #[error("the method is not in upper case")]
    MethodCase,
    /// The method is TRACE or CONNECT. The path has routes for these other methods. The list is empty if the path has
    /// no routes or cannot be read.
    #[error("no route for this method")]
    NeverServed(Vec<Method>),
    /// The base64 in a header by which routes are chosen cannot be decoded.
    #[error("the base64 in mcp-name or mcp-method cannot be decoded")]
    CodedName,
    /// The path can be read in two ways.
    #[error(transparent)]
    Path(#[from] AmbiguousPath),
    /// The body is announced to be larger than this route allows.
    #[error("the body is larger than allowed")]
    TooLarge {
        /// The client's address.
        client: IpAddr,
        /// The index of the route in the settings.
        route: usize,
    },
}

impl BadHead {
    /// The status of the answer.
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::NeverServed(_) => 405,
            Self::TooLarge { .. } => 413,
            _ => 400,
        }
    }
}

/// Reads a request's head: host, framing, method, path, client, route. Before the route is looked for, the fields that
/// the API does not get are removed. Otherwise a route or a limit could use a field that the API does not see.
///
/// # Errors
/// If the request is refused before its limits are asked. The first of several faults is the error.
pub(crate) fn read<'p, 't>(
    settings: &'p Settings,
    head: RequestHead<'_, 't>,
) -> Result<RequestReading<'p, 't>, Unreadable> {
    let TargetParts { authority, query, .. } = head.target;
    let host = match Host::of(authority, head.headers, head.version) {
        Ok(host) => host,
        Err(error) => return Err(Unreadable { host: None, why: error.into() }),
    };
    let path = match check(settings, &head, &host) {
        Ok(path) => path,
        Err(why) => return Err(Unreadable { host: Some(host), why }),
    };
    let RequestHead { method, version, headers, seen, sender, goes_as_it_came, .. } = head;
    let trust = &settings.server.trust;
    let client = match sender {
        Sender::Peer(peer) => trust.client(peer, headers),
        Sender::Client(client) => client,
    };
    strip_unforwarded(authority, version, headers, seen, &client, settings);
    let asked = asked_by_preflight(settings, method, headers).filter(|_| !goes_as_it_came);
    let own = asked.and_then(|asked| responding(settings, &path, host.as_str(), &asked));
    let found = || settings.table.find(&path, method, host.as_str(), headers);
    let found = own.map_or_else(found, Ok);
    let route = found.as_ref().map_or(&settings.no_route, |it| &settings.routes[*it]);
    let is_own_preflight = own.is_some();
    if let Ok(index) = found
        && let Some(most) = most_bytes(settings, route)
        && body_length(headers).is_some_and(|length| length > most)
    {
        let why = BadHead::TooLarge { client: client.address, route: index };
        return Err(Unreadable { host: Some(host), why });
    }
    Ok(RequestReading { settings, host, path, query, client, found, route, is_own_preflight })
}

/// The method of the request for which a preflight of an allowed origin asks (Fetch standard, "CORS-preflight request").
fn asked_by_preflight(settings: &Settings, method: &Method, headers: &HeaderMap) -> Option<Method> {
    if *method != Method::OPTIONS || settings.cors.as_ref()?.granted(headers).is_none() {
        return None;
    }
    Method::from_bytes(headers.get(ACCESS_CONTROL_REQUEST_METHOD)?.as_bytes()).ok()
}

/// The first route that may take a request, if the proxy answers the request itself whatever its headers are. Otherwise
/// an API has to say whether a page may send the request. A route that the operator wrote for `OPTIONS` comes first.
fn responding(
    settings: &Settings,
    path: &NormalPath<'_>,
    host: &str,
    method: &Method,
) -> Option<usize> {
    let mut first = None;
    let candidates = settings.table.candidates(path, host);
    for route in candidates.iter().copied() {
        let conditions = settings.table.conditions(route);
        if !conditions.allow_method(method) {
            continue;
        }
        if !settings.routes[route].action.responds() {
            return None;
        }
        first = first.or(Some(route));
        if conditions.headers.is_empty() {
            break;
        }
    }
    let first = first?;
    let pattern = settings.table.pattern(first);
    let before = candidates.iter().position(|route| *route == first)?;
    let is_written = candidates.iter().enumerate().any(|(place, route)| {
        settings.table.conditions(*route).methods.contains(&Method::OPTIONS)
            && *route != first
            && (place < before || settings.table.pattern(*route) == pattern)
    });
    (!is_written).then_some(first)
}

/// Checks that the proxy and the API read the framing and the method alike, and returns the path.
fn check<'t>(
    settings: &Settings,
    head: &RequestHead<'_, 't>,
    host: &Host,
) -> Result<NormalPath<'t>, BadHead> {
    let RequestHead { method, target, headers, seen, .. } = head;
    if has_unknown_coding(headers, *seen) {
        return Err(BadHead::TransferCoding);
    }
    if has_malformed_length(headers, *seen) {
        return Err(BadHead::Length);
    }
    if has_lower_case(method) {
        return Err(BadHead::MethodCase);
    }
    if is_undecodable(headers, &settings.coded_conditions) {
        return Err(BadHead::CodedName);
    }
    let path = settings.server.path(target.path);
    if matches!(**method, Method::TRACE | Method::CONNECT) {
        let methods = |path| settings.table.methods(&path, host.as_str(), headers);
        return Err(BadHead::NeverServed(path.ok().map(methods).unwrap_or_default()));
    }
    if head.goes_as_it_came {
        NormalPath::check_as_it_came(target.path)?;
    }
    Ok(path?)
}

/// The most bytes of a request's body; `None` is no limit.
pub(crate) fn most_bytes(settings: &Settings, route: &RouteSpec) -> Option<u64> {
    route.options().max_body_size.or(settings.server.max_body_size)
}

impl RequestReading<'_, '_> {
    /// The view of a request that has no certificate, no token, no body and no id. The method and the headers are those of the
    /// head that was read.
    pub(crate) fn view<'v>(&'v self, method: &'v Method, headers: &'v HeaderMap) -> View<'v> {
        let pattern = self.found.as_ref().map(|route| self.settings.table.pattern(*route));
        View {
            path: &self.path,
            query: self.query,
            method,
            methods: &self.settings.methods,
            host: self.host.as_bytes(),
            route: &self.route.name,
            client: self.client.address,
            headers,
            params: pattern
                .map_or(PathParams::none(), |pattern| PathParams::of(pattern, &self.path)),
            cert: None,
            token: Token::NONE,
            body: None,
            id: None,
            has_end: true,
            may_wait: true,
            cost: None,
            counted: None,
        }
    }
}
