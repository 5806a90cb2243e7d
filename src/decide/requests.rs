//! The decision about the requests of a call. Each goes the way of a client's request as far as its limits, and has a
//! record of its own. The store is asked once about all that are decided together: all pass, or none takes anything.

use std::cell::LazyCell;
use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, request};

use super::form::{BadCall, Form};
use super::leases::Lease;
use super::{Asked, DecidedRequest, DecisionService, Question};
use crate::answer::protocol::plain;
use crate::answer::refusal::Refusal;
use crate::exchange::client::ClientConnection;
use crate::exchange::record::{RequestRecord, traced};
use crate::exchange::{Active, Exchange};
use crate::observe::metrics::DecisionKind;
use crate::reading::{self, RequestHead, RequestReading, Seen, Sender, TIDEGATE_OVER, TargetParts};
use crate::request::client::PeerAddress;
use crate::request::key::{BodyFields, Token, TokenReading, View};
use crate::request::network::client_network;
use crate::settings::Settings;
use crate::throttle::{
    Admission, Hits, LimitedRequest, MOST_LIMITS, OpenDecision, Quotas, Refused, Taken,
};

/// A request whose record has begun.
struct AskedRequest {
    head: request::Parts,
    seen: Seen,
    question: Question,
    record: RequestRecord,
}

/// A request whose head was read.
struct ReadRequest<'a, 'p> {
    method: &'a Method,
    headers: &'a HeaderMap,
    /// The request's id.
    id: Option<HeaderValue>,
    question: &'a Question,
    record: &'a mut RequestRecord,
    /// What the head means, the fields of the body, and the token, which is read when a limit first asks for it. `None`
    /// if the request is refused.
    reading: Option<(RequestReading<'p, 'a>, BodyFields<'p>, LazyToken<'a>)>,
    refusal: Option<Refusal<'p>>,
}

type LazyToken<'a> = LazyCell<TokenReading, Box<dyn FnOnce() -> TokenReading + 'a>>;

/// A request whose limits are known.
struct BegunRequest<'b, 'p> {
    view: Option<View<'b>>,
    hits: Hits,
    open: OpenDecision<'p>,
    record: &'b mut RequestRecord,
    refusal: Option<Refusal<'p>>,
    /// Room for what the request holds until its end.
    place: Option<Lease<'p>>,
}

impl DecisionService {
    /// Decides about requests, all together.
    ///
    /// # Errors
    /// If they have too many limits.
    pub(super) async fn decide<'p>(
        &'p self,
        form: Form,
        asked: Vec<Asked>,
        active: &'p Active,
        client: &Rc<ClientConnection>,
    ) -> Result<Vec<DecidedRequest<'p>>, BadCall> {
        let asked = asked.into_iter().map(|one| self.record(form, one, client));
        let mut asked: Vec<_> = asked.collect();
        let read = asked.iter_mut().map(|asked| self.read(form, asked, active));
        let mut read: Vec<_> = read.collect();
        let begun = read.iter_mut().map(|read| self.begin(form, read, &active.settings));
        let mut begun: Vec<_> = begun.collect();
        if begun.iter().map(|begun| begun.open.asked()).sum::<usize>() > MOST_LIMITS {
            // The call is at fault, and is counted as one.
            begun.iter_mut().for_each(|begun| begun.record.is_silent = true);
            return Err(BadCall::TooManyLimits);
        }
        let reported = begun.iter_mut().filter(|begun| begun.refusal.is_none());
        let reported = reported.map(|begun| (&mut begun.open, begun.hits));
        let (throttle, now) = (&self.context.throttle, self.context.clock.now());
        throttle.settle_reported(reported, now).await;
        for begun in begun.iter_mut().filter(|begun| begun.refusal.is_none()) {
            let BegunRequest { view: Some(view), open, record, .. } = begun else { continue };
            let now = self.context.clock.at(record.began);
            throttle.prepare(LimitedRequest { settings: &active.settings, view, now }, open);
        }
        let is_void = begun.iter().any(|begun| begun.refusal.is_some());
        let asking = begun.iter_mut().filter(|begun| begun.refusal.is_none());
        let mut opens: Vec<_> = asking.map(|begun| &mut begun.open).collect();
        let now = self.context.clock.now();
        let mut taken = throttle.take_together(&mut opens, is_void, now).await;
        let mut decided = Vec::with_capacity(begun.len());
        for begun in begun {
            decided.push(self.end(form, begun, taken, active).await);
            // One question is measured once.
            taken = taken.map(|_| None);
        }
        Ok(decided)
    }

    /// Begins the record of a request. A refusal of it is never one of gRPC: a caller would take the status 200 for a
    /// permission.
    fn record(
        &self,
        form: Form,
        (head, question): Asked,
        client: &Rc<ClientConnection>,
    ) -> AskedRequest {
        let mut exchange = Exchange::of_head(head);
        exchange.protocol = plain(&exchange.head.headers, exchange.seen);
        let record = self.context.begin(&mut exchange, client, Some(form.name()));
        let Exchange { head, seen, .. } = exchange;
        AskedRequest { head, seen, question, record }
    }

    fn read<'a, 'p: 'a>(
        &'p self,
        form: Form,
        asked: &'a mut AskedRequest,
        active: &'p Active,
    ) -> ReadRequest<'a, 'p> {
        let AskedRequest { head, seen, question, record } = asked;
        let request::Parts { method, uri, version, headers, .. } = head;
        let (settings, trust) = (&*active.settings, &active.settings.server.trust);
        let sender = match question.ip {
            Some(ip) => Sender::Peer(PeerAddress::Network(ip)),
            // Who asks is a trusted proxy. A client may have written the header that `[server]` names.
            None => {
                let header = form.client_header();
                let caller = record.client.peer.address.as_client();
                let header = header.as_ref().unwrap_or(&trust.header);
                Sender::Client(trust.client_behind(caller, header, headers))
            }
        };
        let reading = match question.fault.take() {
            Some(fault) => Err(fault.into()),
            None => {
                let came = RequestHead {
                    method,
                    target: TargetParts::from(&*uri),
                    version: *version,
                    headers,
                    seen: *seen,
                    sender,
                    goes_as_it_came: true,
                };
                reading::read(settings, came).map_err(|unreadable| record.unread(unreadable))
            }
        };
        let headers: &HeaderMap = headers;
        let (reading, refusal) = match reading {
            Err(refusal) => (None, Some(refusal)),
            Ok(reading) => {
                record.read(&reading);
                let client = client_network(reading.client.address, settings.server.prefixes);
                let (clock, began) = (&self.context.clock, record.began);
                let token: Box<dyn FnOnce() -> TokenReading> = Box::new(move || {
                    let now = clock.wall().at(clock.at(began));
                    active.tokens.read(Some(client), headers, now)
                });
                let names = &*reading.route.options().body_fields;
                let body = BodyFields::told(names, headers, &question.body);
                (Some((reading, body, LazyCell::new(token))), None)
            }
        };
        let id = record.request_id.as_deref().cloned();
        ReadRequest { method, headers, id, question, record, reading, refusal }
    }

    /// Finds the limits of a request.
    fn begin<'b, 'p>(
        &'p self,
        form: Form,
        read: &'b mut ReadRequest<'_, 'p>,
        settings: &'p Settings,
    ) -> BegunRequest<'b, 'p> {
        let ReadRequest { method, headers, id, question, record, reading, refusal } = read;
        let (mut open, mut refusal, mut place) = (OpenDecision::default(), refusal.take(), None);
        let Some((reading, body, token)) = reading else {
            return BegunRequest { view: None, hits: Hits::Asked, open, record, refusal, place };
        };
        let view = View {
            token: Token(token),
            body: Some(body),
            has_end: form.tells_end(),
            may_wait: form != Form::Envoy,
            cost: question.cost,
            id: id.as_ref().and_then(|id| id.to_str().ok()),
            ..reading.view(method, headers)
        };
        let limits = question.limits.as_deref().unwrap_or(&reading.route.limits);
        let (throttle, now) = (&self.context.throttle, self.context.clock.at(record.began));
        let request = LimitedRequest { settings, view: &view, now };
        match throttle.begin(request, limits, &mut open) {
            Err(refused) => refusal = Some(Refusal::Limits(refused)),
            Ok(()) if form.tells_end() && open.is_held_to_the_end() => {
                place = self.leases.reserve();
                refusal = place.is_none().then_some(Refusal::Limits(Refused::TooManyOpen));
            }
            Ok(()) => {}
        }
        // If the caller leaves before the limits have decided, the request counts as held.
        record.decision = DecisionKind::Delayed;
        BegunRequest { view: Some(view), hits: question.hits, open, record, refusal, place }
    }

    /// Ends the decision about a request, and makes the answer for its client.
    async fn end<'p>(
        &'p self,
        form: Form,
        begun: BegunRequest<'_, 'p>,
        taken: Taken,
        active: &'p Active,
    ) -> DecidedRequest<'p> {
        let BegunRequest { view, mut open, record, refusal, place, .. } = begun;
        let mut quotas = Quotas::new();
        let now = self.context.clock.at(record.began);
        let ended = match (refusal, &view) {
            (None, Some(view)) => {
                let traced = traced(&mut record.details);
                let request = LimitedRequest { settings: &active.settings, view, now };
                let throttle = &self.context.throttle;
                let ended = throttle.end(request, &mut open, taken, &mut quotas, traced).await;
                ended.map_err(Refusal::Limits)
            }
            (refusal, _) => Err(refusal.unwrap_or(Refusal::NotFound)),
        };
        record.decision = DecisionKind::default();
        let (mut lease, mut rejection) = (None, None);
        let (answer, refused) = match ended {
            Ok(Admission { permit, decision, over }) => {
                record.decision = decision;
                match place.filter(|_| !permit.is_empty()) {
                    Some(place) => lease = Some(place.keep(permit, self.context.clock.now())),
                    None => record.permit = permit,
                }
                // This is no answer for the client, which gets that of its API.
                let mut answer = Response::new(Bytes::new());
                *answer.status_mut() = form.allowed();
                // The proxy that asks may pass this field on to the API, as tidegate does.
                answer.headers_mut().extend(over.map(|over| (TIDEGATE_OVER.clone(), over)));
                active.answers.write_quotas(answer.headers_mut(), &quotas);
                (answer, None)
            }
            Err(refusal) => {
                let answer = record.refused(&refusal, &quotas);
                rejection = active.answers.in_words(&refusal, &quotas, record.protocol);
                record.permit.refused(answer.status());
                (answer, Some(refusal.meaning().detail))
            }
        };
        record.status = answer.status();
        let decision = record.decision;
        DecidedRequest { decision, quotas, refused, rejection, answer, lease }
    }
}
