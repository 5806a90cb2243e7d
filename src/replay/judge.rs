//! Takes the requests of a log through the steps of a real request: host, path, route, limits.
//! [`Replay`](super::Replay) calls [`Judge::judge`] for each request.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use smallvec::SmallVec;

use super::fact::{Assumed, Assumption, Fact};
use super::log::{ClientOrigin, LogRecord, Logged};
use crate::limit::time::Timestamp;
use crate::plan::{Action, Plan};
use crate::reading::{self, BadHead, RequestHead, Seen, Sender, TargetParts};
use crate::request::client::{Client, PeerAddress};
use crate::request::key::View;
use crate::request::network::canonical_address;
use crate::request::route::NoRoute;
use crate::throttle::{Refused, Rehearsal, RehearsedAnswer, RehearsedRequest};

/// After this many requests, buckets that are like new are looked for and forgotten.
const SWEEP_EVERY: u64 = 1_024;

/// One file's routes and limits, and the buckets of one replay.
pub struct Judge<'p> {
    pub(crate) plan: &'p Plan,
    rehearsal: Rehearsal,
    /// Every fact that a limit or a route reads, and what is assumed of it where the log does not tell the fact. The
    /// lists below name facts by their places here.
    facts: Vec<(Fact, Option<Assumed>)>,
    /// The facts that each limit reads, by the limit's place in the plan.
    limits: Vec<Vec<usize>>,
    /// The facts by which routes are chosen, each with its route's place in the plan.
    routes: Vec<(usize, usize)>,
    /// The headers that are read: by limits and routes, and for each request those that frame it.
    headers: Vec<HeaderName>,
    /// The requests about which the limits decided.
    decided: u64,
}

/// What becomes of a request.
pub struct JudgedRequest<'p> {
    /// The client, where the log tells it.
    pub(crate) client: Option<IpAddr>,
    /// The route's place in the plan; `None` without a route.
    pub route: Option<usize>,
    /// The status of the proxy's own answer to a request that no route takes.
    pub(crate) no_route: Option<StatusCode>,
    /// The answer of the limits, or why the limits do not decide.
    pub answer: Result<RehearsedRequest<'p>, BadRequest>,
}

/// What is wrong with a request that gets an error before the limits decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BadRequest {
    /// It is no method, is not in upper case, or is a method that is never served.
    Method,
    /// The host is malformed.
    Host,
    /// The transfer coding is other than chunked alone.
    Coding,
    /// The length of the body is no number, or is larger than allowed.
    Length,
    /// The path can be read in two ways.
    Path,
    /// A part of a key comes twice, can be read in two ways, or is missing although the limit demands it.
    Key,
    /// The header for the cost has something else than a cost.
    Cost,
}

impl BadRequest {
    /// What is wrong with the request.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::Host => "host",
            Self::Coding => "transfer-encoding",
            Self::Length => "content-length",
            Self::Path => "path",
            Self::Key => "key",
            Self::Cost => "cost",
        }
    }
}

impl From<&BadHead> for BadRequest {
    fn from(head: &BadHead) -> Self {
        match head {
            BadHead::Host(_) => Self::Host,
            BadHead::TransferCoding => Self::Coding,
            BadHead::Length | BadHead::TooLarge { .. } => Self::Length,
            BadHead::MethodCase(_) | BadHead::NeverServed(_) => Self::Method,
            BadHead::Path(_) => Self::Path,
        }
    }
}

impl<'p> Judge<'p> {
    /// A judge with new buckets.
    pub fn new(plan: &'p Plan, assumptions: &[Assumption]) -> Self {
        let mut judge = Self {
            plan,
            rehearsal: Rehearsal::new(plan),
            facts: Vec::new(),
            limits: Vec::new(),
            routes: Vec::new(),
            headers: vec![CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING],
            decided: 0,
        };
        for spec in &plan.limits {
            let facts = Fact::of_limit(spec).into_iter();
            let facts = facts.map(|fact| judge.place(fact, assumptions)).collect();
            judge.limits.push(facts);
        }
        for route in 0..plan.routes.len() {
            for fact in Fact::of_conditions(plan.table.conditions(route)) {
                let fact = judge.place(fact, assumptions);
                judge.routes.push((route, fact));
            }
        }
        if !plan.server.trust.networks.is_empty() {
            judge.place(Fact::Header(plan.server.trust.header.name()), assumptions);
        }
        judge
    }

    /// The place of a fact in the list of facts.
    fn place(&mut self, fact: Fact, assumptions: &[Assumption]) -> usize {
        self.facts.iter().position(|(known, _)| *known == fact).unwrap_or_else(|| {
            let header = match &fact {
                Fact::Header(name) => Some(name),
                Fact::Cookie(_) => Some(&COOKIE),
                _ => None,
            };
            self.headers.extend(header.filter(|name| !self.headers.contains(name)).cloned());
            let assumption = assumptions.iter().find(|assumption| assumption.fact == fact);
            self.facts.push((fact, assumption.map(|assumption| assumption.assumed.clone())));
            self.facts.len() - 1
        })
    }

    /// Whether a limit or a route reads this fact.
    pub(crate) fn reads(&self, fact: &Fact) -> bool {
        self.facts.iter().any(|(known, _)| known == fact)
    }

    /// The kind and the name of a limit that is left out, or of a route that may be missed. The third value is the fact
    /// that the log does not tell.
    pub(crate) fn described(&self, untold: Untold) -> (&'static str, String, &Fact) {
        let (what, name, fact) = match untold {
            Untold::Limit(limit, fact) => ("limit", self.plan.limits[limit].name.to_string(), fact),
            Untold::Route(route, fact) => ("route", self.plan.routes[route].name.to_string(), fact),
        };
        (what, name, &self.facts[fact].0)
    }

    /// Decides about a request at the time `now`, which must not be before the time of the last call. Calls
    /// `untold` for each limit that is left out, with the first fact that is missing, and for each route that may
    /// have been missed.
    pub fn judge(
        &mut self,
        record: &LogRecord<'_>,
        now: Timestamp,
        mut untold: impl FnMut(Untold),
    ) -> JudgedRequest<'p> {
        let mut headers = self.headers(record);
        let client = self.client(record, &headers);
        let told: SmallVec<[bool; 16]> = self
            .facts
            .iter()
            .map(|(fact, assumed)| match fact {
                Fact::Client => client.is_some(),
                fact => assumed.is_some() || fact.is_told(record),
            })
            .collect();
        let address = client.as_ref().map(|client| client.address);
        let refused =
            |why, route| JudgedRequest { client: address, route, no_route: None, answer: Err(why) };
        let Ok(method) = Method::from_bytes(record.method.as_bytes()) else {
            return refused(BadRequest::Method, None);
        };
        let host = self.text(&Fact::Host, &record.host, address);
        let query = match &record.query {
            Logged::Value(query) => Some(&**query),
            Logged::Absent | Logged::Untold => None,
        };
        let target = TargetParts { authority: host.as_deref(), path: &record.path, query };
        let head = RequestHead {
            method: &method,
            target,
            // HTTP/1.0 needs no host, and not every log tells the host.
            version: Version::HTTP_10,
            seen: Seen::of(&headers),
            headers: &mut headers,
            sender: Sender::Client(client.unwrap_or(UNKNOWN)),
        };
        let reading = match reading::read(self.plan, head) {
            Ok(reading) => reading,
            Err(unreadable) => {
                let route = match unreadable.why {
                    BadHead::TooLarge { route, .. } => Some(route),
                    _ => None,
                };
                return refused(BadRequest::from(&unreadable.why), route);
            }
        };
        for (missed, fact) in &self.routes {
            if !told[*fact] && self.plan.table.pattern(*missed).matches(&reading.path) {
                untold(Untold::Route(*missed, *fact));
            }
        }
        let cert = self.text(&Fact::Certificate, &Logged::Untold, address);
        let view = View { cert: cert.as_deref(), ..reading.view(&method, &headers) };
        let spec = reading.route;
        let (plan, limits) = (self.plan, &self.limits);
        let known = spec.limits.iter().filter_map(|place| {
            let place = usize::try_from(*place).ok()?;
            match limits.get(place)?.iter().find(|fact| !told[**fact]) {
                Some(fact) => {
                    untold(Untold::Limit(place, *fact));
                    None
                }
                None => plan.limits.get(place),
            }
        });
        let no_route = reading.found.as_ref().err().map(|none| match none {
            NoRoute::NotFound => StatusCode::NOT_FOUND,
            NoRoute::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
        });
        let answer = match (&spec.action, no_route) {
            (_, Some(status)) => RehearsedAnswer::Refusal(status),
            (Action::Respond { status, body }, None) => {
                let bytes = if method == Method::HEAD { 0 } else { body.len() as u64 };
                let (status, bytes) = (Some(*status), Some(bytes));
                RehearsedAnswer::Given { status, bytes, lasts: Duration::ZERO }
            }
            (Action::Forward { .. }, None) => {
                let LogRecord { status, bytes, .. } = *record;
                let lasts = record.duration.unwrap_or_default();
                RehearsedAnswer::Given { status, bytes, lasts }
            }
        };
        let answer = self.rehearsal.decide(known, &view, answer, now);
        self.decided += 1;
        if self.decided.is_multiple_of(SWEEP_EVERY) {
            self.rehearsal.sweep(now);
        }
        let answer = answer.map_err(|refused| match refused {
            Refused::Cost { .. } => BadRequest::Cost,
            _ => BadRequest::Key,
        });
        JudgedRequest { client: address, route: reading.found.ok(), no_route, answer }
    }

    /// The client, by the rules of `server.trusted_proxies`. `None` where the log has no address, or only the
    /// address of a trusted proxy.
    fn client(&self, record: &LogRecord<'_>, headers: &HeaderMap) -> Option<Client> {
        let trust = &self.plan.server.trust;
        let address = canonical_address(record.client?);
        let itself = || Client { address, via: Vec::new(), peer_trusted: false };
        let header = trust.header.name();
        match record.client_is {
            ClientOrigin::Client => Some(itself()),
            // A log that does not tell the header of a trusted proxy does not tell the client.
            ClientOrigin::Peer if trust.trusts(address) && !headers.contains_key(&header) => {
                let sends_itself = record.headers.get(&header) == Logged::Absent;
                sends_itself.then(|| trust.client(PeerAddress::Network(address), headers))
            }
            ClientOrigin::Peer => Some(trust.client(PeerAddress::Network(address), headers)),
            ClientOrigin::Forwarded
                if trust.networks.is_empty() || !headers.contains_key(&header) =>
            {
                Some(itself())
            }
            // A trusted proxy wrote the end of the list.
            ClientOrigin::Forwarded => Some(trust.client(PeerAddress::UnixSocket, headers)),
        }
    }

    /// The headers of a request. If the log has all headers, these are all. Otherwise they are those that limits
    /// and routes read, as the log tells them or as they are assumed.
    fn headers(&self, record: &LogRecord<'_>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let is_complete = record.headers.are_complete;
        if is_complete {
            for (name, value) in record.headers.named() {
                let name = HeaderName::from_bytes(name.as_bytes()).ok();
                if let (Some(name), Logged::Value(value)) = (name, value)
                    && let Ok(value) = HeaderValue::from_bytes(value.as_bytes())
                {
                    headers.append(name, value);
                }
            }
        }
        for name in &self.headers {
            let value = match record.headers.get(name) {
                Logged::Value(value) if !is_complete => {
                    HeaderValue::from_bytes(value.as_bytes()).ok()
                }
                Logged::Value(_) | Logged::Absent => None,
                Logged::Untold if *name == COOKIE => self.cookies(record.client),
                Logged::Untold => {
                    let value = self.assumed_text(&Fact::Header(name.clone()), record.client);
                    value.and_then(|value| HeaderValue::from_str(&value).ok())
                }
            };
            if let Some(value) = value {
                headers.insert(name, value);
            }
        }
        headers
    }

    /// A `cookie` header of all cookies that are assumed.
    fn cookies(&self, client: Option<IpAddr>) -> Option<HeaderValue> {
        let pairs = self.facts.iter().filter_map(|(fact, _)| match fact {
            Fact::Cookie(name) => Some(format!("{name}={}", self.assumed_text(fact, client)?)),
            _ => None,
        });
        let pairs: Vec<_> = pairs.collect();
        if pairs.is_empty() { None } else { HeaderValue::from_str(&pairs.join("; ")).ok() }
    }

    /// The value that the log tells, or else the assumed value.
    fn text<'v>(
        &self,
        fact: &Fact,
        told: &'v Logged<'_>,
        client: Option<IpAddr>,
    ) -> Option<Cow<'v, str>> {
        match told {
            Logged::Value(value) => Some(Cow::Borrowed(value)),
            Logged::Absent => None,
            Logged::Untold => self.assumed_text(fact, client).map(Cow::Owned),
        }
    }

    fn assumed_text(&self, fact: &Fact, client: Option<IpAddr>) -> Option<String> {
        let (_, assumed) = self.facts.iter().find(|(known, _)| known == fact)?;
        match assumed.as_ref()? {
            Assumed::Client => client.map(|client| client.to_string()),
            Assumed::Absent => None,
            Assumed::Text(text) => Some(text.clone()),
        }
    }
}

/// The client of a request whose log does not tell it. Nobody knows whether its peer is a trusted proxy, so what it says
/// of the client stays.
const UNKNOWN: Client =
    Client { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), via: Vec::new(), peer_trusted: true };

/// A limit or a route that needs a fact which the log does not tell. The second number is the place of the fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Untold {
    /// The limit at this place of the plan is left out.
    Limit(usize, usize),
    /// The route at this place of the plan may be the request's route, but was not found.
    Route(usize, usize),
}
