//! The calls of those who ask whether a request may go. Each request that is asked about goes the way of every request,
//! as far as its limits, and has a record of its own.

use std::mem;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use http::StatusCode;
use http::header::{CACHE_CONTROL, HeaderValue};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, timeout};

use super::active::Active;
use super::body::{Answer, ResponseBody};
use super::client::ClientConnection;
use super::exchange::Exchange;
use super::protocol::GrpcKind;
use super::record::RequestRecord;
use super::refusal::Refusal;
use super::{Proxy, answer, request_id, response};
use crate::decide::check::{self, RequestEnd};
use crate::decide::{Asked, BadCall, DecidedRequest, Form, envoy, fields};
use crate::observe::metrics::DecisionKind;
use crate::throttle::{LimitQuestion, Refused, Seat, Together};
use crate::upstream::progress::BodyFault;
use crate::wire::upload::ClientBody;

/// The most bytes of a call's body.
const MOST: usize = 1024 * 1024;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

impl Proxy {
    /// Answers a call.
    ///
    /// # Errors
    /// Where it asks nothing, or the caller has left, or nobody decides.
    pub(super) async fn answer_call(
        &self,
        active: &Rc<Active>,
        client: &Rc<ClientConnection>,
        form: Form,
        exchange: &mut Exchange,
    ) -> Result<Answer, Refusal<'static>> {
        form.admit(&mut exchange.head, active.plan.decide.token.as_deref())?;
        let time_limit = active.plan.server.body_timeout;
        let body = match exchange.body.take_if(|_| form.has_body()) {
            Some(body) => read_body(body, time_limit).await?,
            None => Bytes::new(),
        };
        let answer = match form {
            Form::Settle => {
                let is_open = self.leases.settle(&RequestEnd::read(&body)?);
                is_open.then_some(()).ok_or(BadCall::Ended)?;
                response::own(StatusCode::NO_CONTENT, None, Bytes::new())
            }
            Form::Envoy => {
                let asked = envoy::questions(body, &active.plan)?;
                let decided = self.decide_together(active, client, asked).await?;
                let kind = Some(GrpcKind::Native.media_type());
                let answer = response::own(StatusCode::OK, kind, envoy::answer(&decided));
                return Ok(answer.map(ResponseBody::message));
            }
            Form::Check => {
                let mut decided = Vec::new();
                for one in check::questions(&body)? {
                    decided.push(Box::pin(self.decide(active, client, one, None)).await?);
                }
                response::own(StatusCode::OK, Some(JSON), check::answer(decided, &body))
            }
            Form::AuthRequest | Form::ForwardAuth | Form::Unknown => {
                let asked = fields::question(form, &mut exchange.head)?;
                let mut answer =
                    fields::answer(form, self.decide(active, client, asked, None).await?);
                answer.headers_mut().insert(CACHE_CONTROL, response::NO_STORE);
                answer
            }
        };
        Ok(answer.map(ResponseBody::whole))
    }

    /// Decides about all descriptors of a call of Envoy.
    ///
    /// # Errors
    /// If the store does not decide, the call fails: then Envoy does what its configuration says.
    async fn decide_together<'p>(
        &'p self,
        active: &'p Rc<Active>,
        client: &Rc<ClientConnection>,
        asked: Vec<Asked>,
    ) -> Result<Vec<DecidedRequest<'p>>, Refusal<'static>> {
        // A request that is alone waits for no other.
        let together = (asked.len() > 1).then(|| Together::of(asked.len()));
        let deciding = asked.into_iter().map(|one| {
            let seat = together.as_ref().map(Together::seat);
            Box::pin(self.decide(active, client, one, seat))
        });
        let decided = try_join_all(deciding).await?;
        if together.as_ref().is_some_and(Together::has_too_many) {
            return Err(BadCall::TooManyLimits.into());
        }
        let is_failed =
            |it: &DecidedRequest<'_>| it.refused.is_some() && it.decision == DecisionKind::Error;
        match decided.iter().any(is_failed) {
            true => Err(Refusal::Limits(Refused::StoreUnavailable)),
            false => Ok(decided),
        }
    }

    /// Decides about one request of a call.
    ///
    /// # Errors
    /// If the caller has left.
    async fn decide<'p>(
        &'p self,
        active: &'p Rc<Active>,
        client: &Rc<ClientConnection>,
        (head, asked): Asked,
        seat: Option<Seat<'_, 'p>>,
    ) -> Result<DecidedRequest<'p>, Refusal<'static>> {
        let began = Instant::now();
        let (form, hits) = (asked.form, asked.hits);
        let mut exchange = Exchange::asked(head, asked);
        let protocol = exchange.protocol;
        // The record ends the request that begins here.
        client.begin(began);
        let head = &mut exchange.head;
        let mut record = RequestRecord::begin(Rc::clone(active), client, began, head, protocol);
        record.via = Some(form.name());
        let server = &active.plan.server;
        let headers = &mut exchange.head.headers;
        record.request_id = request_id::name(&self.clock, server, client, began, headers);
        let (findings, request_id) = (&mut record.findings, record.request_id.as_deref());
        let mut question = LimitQuestion { seat, hits, ..LimitQuestion::default() };
        let passing = self.pass(active, client, &mut exchange, request_id, findings, &mut question);
        let mut outcome = passing.await;
        let LimitQuestion { quotas, seat, .. } = question;
        // If the request was refused before its limits, the others no longer wait for it.
        drop(seat);
        let mut lease = None;
        if form.tells_end() && outcome.is_ok() && !findings.permit.is_empty() {
            let now = self.clock.at(Instant::now());
            match self.leases.keep(mem::take(&mut findings.permit), now) {
                Ok(kept) => lease = Some(kept),
                Err(permit) => {
                    // The request does not go on.
                    permit.give_back();
                    outcome = Err(Refusal::Call(BadCall::TooManyOpen));
                }
            }
        }
        let (answer, refused) = match outcome {
            Ok(answer) => (answer.map(|_| Bytes::new()), None),
            Err(Refusal::ClientLeft) => return Err(Refusal::ClientLeft),
            Err(refusal) => {
                findings.refused(&refusal, active, client.peer.address);
                let route = findings.route.map(|route| &active.plan.routes[route]);
                let answer = answer::respond(&refusal, &quotas, active, protocol, route);
                findings.permit.refused(answer.status());
                (answer, Some(refusal.meaning().detail))
            }
        };
        record.status = answer.status();
        let decision = record.findings.decision;
        Ok(DecidedRequest { decision, quotas, refused, answer, lease })
    }
}

/// Reads the whole body of a call. Each piece must come within `time_limit`.
async fn read_body(mut body: ClientBody, time_limit: Duration) -> Result<Bytes, Refusal<'static>> {
    let mut whole = BytesMut::new();
    loop {
        let frame = timeout(time_limit, body.frame()).await;
        let Ok(frame) = frame else {
            body.give_up();
            return Err(Refusal::Body(BodyFault::Stalled));
        };
        let Some(frame) = frame else { return Ok(whole.freeze()) };
        let frame = frame.map_err(|error| Refusal::Body(BodyFault::of(&*error)))?;
        let Some(piece) = frame.data_ref() else { continue };
        if whole.len() + piece.len() > MOST {
            return Err(Refusal::Body(BodyFault::TooLarge));
        }
        whole.extend_from_slice(piece);
    }
}
