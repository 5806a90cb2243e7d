//! Takes the requests of a log through the steps of a real request: host, path, route, limits.
//! [`Replay`](super::Replay) calls [`Judge::judge`] for each request.

mod values;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, Method, StatusCode, Version};
use serde_json::{Map, Value};
use smallvec::SmallVec;

use super::fact::{Assumption, Fact, LimitFact};
use super::log::{ClientOrigin, LogRecord, Logged, ToldChange};
use super::told::{ToldCounts, tells};
use crate::reading::{self, BadHead, RequestHead, Seen, Sender, TargetParts};
use crate::request::client::{Client, PeerAddress};
use crate::request::key::{BodyFields, BodyKind, Token, TokenFault, TokenReading, View, token};
use crate::request::network::canonical_address;
use crate::request::route::NoRoute;
use crate::settings::{Action, Settings};
use crate::throttle::{Refused, Rehearsal, RehearsedAnswer, RehearsedRequest};

/// The number of requests after which the buckets that are like new are removed.
const SWEEP_EVERY: u64 = 1_024;

/// One file's routes and limits, and the buckets of one replay.
pub struct Judge<'p> {
    pub(crate) settings: &'p Settings,
    rehearsal: Rehearsal,
    /// The facts that each limit reads, by the limit's index in [`Settings::used`]: see [`Fact::of_limit`].
    limits: Vec<Vec<LimitFact<'p>>>,
    /// The decisions and changes that tidegate logged.
    told: ToldCounts,
    /// The facts that choose a route. Each stands beside the index of its route in the settings.
    routes: Vec<(usize, Fact)>,
    /// All facts that are read.
    facts: Vec<Fact>,
    /// What is assumed about facts that the log does not have.
    assumptions: Vec<Assumption>,
    /// The claims in the token of every request. `None` if the assumptions give the claims.
    pub(super) token: Option<Map<String, Value>>,
    /// The body of every request. `None` if the assumptions give its fields.
    pub(super) body: Option<String>,
    /// The headers that limits and routes read, and the headers that frame a request.
    headers: Vec<HeaderName>,
    /// The number of requests about which the limits decided.
    decided: u64,
}

/// The result for a request.
pub struct JudgedRequest<'p> {
    /// The client, if the log has it.
    pub(crate) client: Option<IpAddr>,
    /// The route's index in the settings; `None` without a route.
    pub route: Option<usize>,
    /// The status of the proxy's own answer to a request that no route takes.
    pub(crate) no_route: Option<StatusCode>,
    /// The limits that are left out, each with the first missing fact, and the routes that the request may have taken.
    pub missing: SmallVec<[MissingFact; 2]>,
    /// The answer of the limits. For a request that gets an error before the limits decide: the part of it that is
    /// wrong.
    pub answer: Result<RehearsedRequest<'p>, &'static str>,
    /// The answer, in words, of the first limit that cannot count the request. A limit in shadow would give it.
    pub(crate) refused: Option<String>,
}

/// A fact that the log does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MissingFact {
    /// A limit is left out because it reads a missing fact. The first number is the limit's index in
    /// [`Settings::used`]. The second is the index of the fact in the limit's list.
    Limit(usize, usize),
    /// A condition of a route reads the fact, and the route may be the request's route. The number is the index of both
    /// in `routes`.
    Route(usize),
}

/// The client of a request, if the log does not have it. The peer counts as a trusted proxy, so that the headers about
/// the client are not removed.
const UNKNOWN: Client =
    Client { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), via: Vec::new(), peer_trusted: true };

/// The part of a head that is wrong, and the request's route, if it is known.
fn wrong_part(head: &BadHead) -> (&'static str, Option<usize>) {
    match head {
        BadHead::Host(_) => ("host", None),
        BadHead::TransferCoding => ("transfer-encoding", None),
        BadHead::Length => ("content-length", None),
        BadHead::TooLarge { route, .. } => ("content-length", Some(*route)),
        BadHead::MethodCase | BadHead::NeverServed(_) => ("method", None),
        BadHead::CodedName => ("mcp-name", None),
        BadHead::Path(_) => ("path", None),
    }
}

/// The answer to a request that its limits let pass.
fn given(action: &Action, method: &Method, record: &LogRecord) -> RehearsedAnswer {
    match action {
        Action::Respond { status, body } => {
            let bytes = if *method == Method::HEAD { 0 } else { body.len() as u64 };
            let (status, bytes) = (Some(*status), Some(bytes));
            RehearsedAnswer::Given { status, bytes, lasts: Duration::ZERO }
        }
        // The length of this answer depends on its numbers. So the logged length is used.
        Action::Usage { .. } => {
            let status = Some(StatusCode::OK);
            RehearsedAnswer::Given { status, bytes: record.bytes, lasts: Duration::ZERO }
        }
        Action::Forward { .. } | Action::Decide => RehearsedAnswer::Given {
            status: record.status,
            bytes: record.bytes,
            lasts: record.duration.unwrap_or_default(),
        },
    }
}

impl<'p> Judge<'p> {
    /// A judge with new buckets.
    pub fn new(settings: &'p Settings, assumptions: &[Assumption]) -> Self {
        let limits: Vec<_> = settings
            .used
            .iter()
            .map(|spec| Fact::of_limit(spec, settings.plans.as_deref()))
            .collect();
        let conditions =
            (0..settings.routes.len()).map(|route| (route, settings.table.conditions(route)));
        let routes = conditions.flat_map(|(route, conditions)| {
            Fact::of_conditions(conditions).map(move |fact| (route, fact))
        });
        let routes: Vec<_> = routes.collect();
        let trust = &settings.server.trust;
        let of_client = Fact::Header(trust.header.name());
        let of_client = (!trust.networks.is_empty()).then_some(&of_client);
        let of_routes = routes.iter().map(|(_, fact)| fact);
        let of_limits = limits.iter().flatten().map(|(fact, _)| fact);
        let all = of_limits.chain(of_routes).chain(of_client);
        let mut known = HashSet::new();
        let facts: Vec<_> = all.filter(|fact| known.insert(*fact)).cloned().collect();
        let of_facts = facts.iter().filter_map(|fact| match fact {
            Fact::Header(name) => Some(name.clone()),
            Fact::Cookie(_) => Some(COOKIE),
            _ => None,
        });
        let framing = [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING];
        let headers: HashSet<_> = of_facts.chain(framing).collect();
        Self {
            settings,
            rehearsal: Rehearsal::new(settings),
            limits,
            told: ToldCounts::default(),
            routes,
            facts,
            assumptions: assumptions.to_vec(),
            token: None,
            body: None,
            headers: headers.into_iter().collect(),
            decided: 0,
        }
    }

    /// Whether a limit or a route reads this fact.
    pub(crate) fn reads(&self, fact: &Fact) -> bool {
        self.facts.contains(fact)
    }

    /// Names a missing fact: the kind and the name of the limit or route that reads it, and the fact itself.
    pub(crate) fn described(&self, missing: MissingFact) -> (&'static str, &'p str, &Fact) {
        match missing {
            MissingFact::Limit(limit, fact) => {
                ("limit", self.settings.used[limit].name.as_str(), &self.limits[limit][fact].0)
            }
            MissingFact::Route(index) => {
                let (route, fact) = &self.routes[index];
                ("route", &*self.settings.routes[*route].name, fact)
            }
        }
    }

    /// Applies a change that tidegate logged. It holds for all later requests.
    pub(crate) fn change(&mut self, change: &ToldChange) {
        self.told.change(change, self.settings, &self.rehearsal);
    }

    /// Decides about a request at its time, which must not be before the time of the last call.
    pub fn judge(&mut self, record: &LogRecord) -> JudgedRequest<'p> {
        self.told.begin(record, &self.rehearsal);
        let mut headers = self.headers(record);
        let client = self.client(record, &headers);
        let address = client.as_ref().map(|client| client.address);
        let client = client.unwrap_or(UNKNOWN);
        self.decide(record, &mut headers, client, address).unwrap_or_else(|(part, route)| {
            let (no_route, missing) = Default::default();
            let refused = record.counted.as_ref().and_then(|counts| {
                let reason = counts.refused_part().and(counts.reason.as_ref())?;
                Some(format!("{}: {reason}", record.status.unwrap_or_default()))
            });
            JudgedRequest { client: address, route, no_route, missing, answer: Err(part), refused }
        })
    }

    /// Takes a request with these headers through the steps. `address` is that of `client`, if the log has it.
    ///
    /// # Errors
    /// If the proxy refuses the request before its limits decide: the part of it that is wrong, and its route.
    fn decide(
        &mut self,
        record: &LogRecord,
        headers: &mut HeaderMap,
        client: Client,
        address: Option<IpAddr>,
    ) -> Result<JudgedRequest<'p>, (&'static str, Option<usize>)> {
        let knows_headers = record.headers.are_all_known();
        let is_known = |fact: &Fact| match fact {
            Fact::Client => address.is_some(),
            Fact::Header(_) | Fact::Cookie(_) if knows_headers => true,
            Fact::Claim(_) if self.token.is_some() => true,
            Fact::Body(_) if self.body.is_some() => true,
            fact => fact.is_known(record) || self.is_assumed(fact, record),
        };
        let method = Method::from_bytes(record.method.as_bytes()).map_err(|_| ("method", None))?;
        let host = self.text(&Fact::Host, &record.host, record, address);
        let query = record.query.value();
        // The proxy refuses such a target as a whole.
        if query.is_some_and(|query| query.contains('#')) {
            return Err(("path", None));
        }
        let target = TargetParts { authority: host.as_deref(), path: &record.path, query };
        let head = RequestHead {
            method: &method,
            target,
            // HTTP/1.0 needs no host, and not every log has the host.
            version: Version::HTTP_10,
            seen: Seen::of(headers),
            headers: &mut *headers,
            sender: Sender::Client(client),
            goes_as_it_came: self.settings.only_decides(),
        };
        let reading = reading::read(self.settings, head).map_err(|it| wrong_part(&it.why))?;
        if let Some(part) = record.counted.as_ref().and_then(|counts| counts.refused_part()) {
            return Err((part, reading.found.ok()));
        }
        let mut missing = SmallVec::new();
        for (index, (route, fact)) in self.routes.iter().enumerate() {
            if !is_known(fact) && self.settings.table.pattern(*route).matches(&reading.path) {
                missing.push(MissingFact::Route(index));
            }
        }
        let cert = self.text(&Fact::Certificate, &Logged::Unknown, record, address);
        let token = self.token(record, headers, address);
        let (cert, token) = (cert.as_deref(), Token(&&token));
        let body = self.body(&reading.route.options().body_fields, record, headers, address);
        let specs = self.settings.limits_of(reading.route);
        let counted = record.counted.as_ref().map(|counts| self.told.of_request(counts, specs));
        let counted = counted.as_ref();
        let view =
            View { cert, token, counted, body: Some(&body), ..reading.view(&method, headers) };
        let (route, rule) = (reading.route, self.settings.plans.as_deref());
        let mut known = SmallVec::<[_; 4]>::new();
        for limit in route.limits.iter().filter_map(|limit| usize::try_from(*limit).ok()) {
            let spec = &self.settings.used[limit];
            let by = rule.filter(|_| !spec.plans.is_empty()).map(|rule| &rule.by);
            let is_lacking = |(fact, instead): &LimitFact<'_>| {
                !is_known(fact)
                    && !instead.iter().any(|source| source.is_in(&view))
                    && !counted.is_some_and(|counted| tells(counted, spec, by, fact))
            };
            match self.limits[limit].iter().position(is_lacking) {
                Some(fact) => missing.push(MissingFact::Limit(limit, fact)),
                None => known.push(spec),
            }
        }
        let no_route = reading.found.as_ref().err().map(|none| match none {
            NoRoute::NotFound => StatusCode::NOT_FOUND,
            NoRoute::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
        });
        let answer = match no_route {
            Some(status) => RehearsedAnswer::Refusal(status),
            None => given(&route.action, &method, record),
        };
        let answer = self.rehearsal.decide(known.into_iter(), &view, rule, answer, record.time);
        self.decided += 1;
        if self.decided.is_multiple_of(SWEEP_EVERY) {
            self.rehearsal.sweep(record.time);
        }
        let refused = match &answer {
            Ok(answer) => answer.refused.clone(),
            Err(refused) => Some(refused.in_words()),
        };
        let answer = answer.map_err(|refused| match refused {
            Refused::Cost { .. } => "cost",
            _ => "key",
        });
        let route = reading.found.ok();
        Ok(JudgedRequest { client: address, route, no_route, missing, answer, refused })
    }

    /// How the token of a request counts. No log has tokens.
    fn token(
        &self,
        record: &LogRecord,
        headers: &HeaderMap,
        client: Option<IpAddr>,
    ) -> TokenReading {
        let claims = self.facts.iter().filter_map(|fact| match fact {
            Fact::Claim(claim) => {
                Some((claim.clone(), self.assumed_text(fact, record, client)?.into()))
            }
            _ => None,
        });
        let claims = self.token.clone().unwrap_or_else(|| claims.collect());
        // Nobody gives the claims of this token. So it counts as in the proxy if it does not verify.
        let is_unverified = claims.is_empty()
            && self.settings.jwt.iter().any(|table| token(&table.place, headers) != Ok(None));
        match is_unverified {
            true => TokenReading::Ignored(TokenFault::NoKeys),
            false => TokenReading::of_claims(claims, self.settings.first_issuer()),
        }
    }

    /// The fields of a body that have these names. No log has bodies.
    fn body<'n>(
        &self,
        names: &'n [String],
        record: &LogRecord,
        headers: &HeaderMap,
        client: Option<IpAddr>,
    ) -> BodyFields<'n> {
        let Some(text) = &self.body else {
            let value = |name: &String| {
                let fact = Fact::Body(name.clone());
                Some((name.clone(), self.assumed_text(&fact, record, client)?))
            };
            let fields: Value = names.iter().filter_map(value).collect();
            return BodyFields::read(names, BodyKind::Json, fields.to_string().as_bytes());
        };
        BodyFields::told(names, headers, text.as_bytes())
    }

    /// The client, by the rules of `server.trusted_proxies`. `None` if the log has no address, or only the
    /// address of a trusted proxy.
    fn client(&self, record: &LogRecord, headers: &HeaderMap) -> Option<Client> {
        let trust = &self.settings.server.trust;
        let address = canonical_address(record.client?);
        let itself = || Client { address, via: Vec::new(), peer_trusted: false };
        let header = trust.header.name();
        match record.client_is {
            ClientOrigin::Client => Some(itself()),
            // A log without the header of a trusted proxy does not have the client.
            ClientOrigin::Peer if trust.trusts(address) && !headers.contains_key(&header) => {
                let sends_itself = *record.headers.get(&header) == Logged::Absent;
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
}
