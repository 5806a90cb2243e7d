//! The calls that have requests in their bodies: `/check` and `/settle`, and Envoy's.

use std::mem;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use http::StatusCode;
use http::header::HeaderValue;
use http::request::Parts;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use super::active::Active;
use super::body::{Answer, ResponseBody};
use super::client::ClientConnection;
use super::exchange::Exchange;
use super::protocol::{GrpcKind, Protocol, plain};
use super::record::RequestRecord;
use super::refusal::Refusal;
use super::{Proxy, answer, request_id, response};
use crate::decide::{
    BadCall, DecideCall, DecidedRequest, Form, Questions, RequestEnd, UntoldLeases, envoy,
};
use crate::observe::metrics::DecisionKind;
use crate::throttle::{LimitQuestion, Refused, Seat, Together};
use crate::upstream::progress::BodyFault;

/// The most bytes of a call's body.
const MOST: usize = 1024 * 1024;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

impl Proxy {
    /// Answers a call whose requests are in its body.
    pub(super) async fn answer_call(
        &self,
        active: &Rc<Active>,
        client: &Rc<ClientConnection>,
        exchange: &mut Exchange,
    ) -> Result<Answer, Refusal<'static>> {
        let time_limit = active.plan.server.body_timeout;
        let body = match exchange.body.take() {
            Some(body) => read_body(body, client, time_limit).await?,
            None => Bytes::new(),
        };
        match exchange.call.as_ref().and_then(|call| call.form) {
            Some(Form::Settle) => {
                let end = RequestEnd::read(&body).map_err(Refusal::Call)?;
                match self.leases.settle(&end) {
                    true => {
                        let answer = response::own(StatusCode::NO_CONTENT, None, Bytes::new());
                        Ok(answer.map(ResponseBody::whole))
                    }
                    false => Err(Refusal::Call(BadCall::Ended)),
                }
            }
            Some(Form::Envoy) => self.decide_together(active, client, body).await,
            _ => {
                let Questions { asked, is_list } = Questions::read(&body).map_err(Refusal::Call)?;
                let mut answers = Vec::with_capacity(asked.len());
                let mut leases = self.leases.untold();
                for one in asked {
                    let deciding = self.decide(active, client, one, None, Some(&mut leases));
                    answers.push(Box::pin(deciding).await?.json());
                }
                leases.tell();
                let answer = match (is_list, answers.pop()) {
                    (false, Some(answer)) => answer,
                    (_, last) => answers.into_iter().chain(last).collect(),
                };
                let answer = response::own(StatusCode::OK, Some(JSON), answer.to_string());
                Ok(answer.map(ResponseBody::whole))
            }
        }
    }

    /// Decides about all descriptors of a call of Envoy. If the store does not decide, the call fails: then Envoy does
    /// what its configuration says.
    async fn decide_together(
        &self,
        active: &Rc<Active>,
        client: &Rc<ClientConnection>,
        body: Bytes,
    ) -> Result<Answer, Refusal<'static>> {
        let asked = envoy::questions(body, &active.plan).map_err(Refusal::Call)?;
        let (together, is_alone) = (Together::of(asked.len()), asked.len() == 1);
        let deciding = asked.into_iter().map(|one| {
            // A request that is alone waits for no other, and needs no seat.
            let seat = (!is_alone).then(|| together.seat());
            Box::pin(self.decide(active, client, one, seat, None))
        });
        let decided = try_join_all(deciding).await?;
        let is_failed =
            |it: &DecidedRequest<'_>| it.refused.is_some() && it.decision == DecisionKind::Error;
        if decided.iter().any(is_failed) {
            let (refusal, kind) = (Refusal::Limits(Refused::StoreUnavailable), GrpcKind::Native);
            let answer = answer::respond(&refusal, &[], active, Protocol::Grpc(kind), None);
            return Ok(answer.map(ResponseBody::whole));
        }
        let kind = Some(GrpcKind::Native.media_type());
        let answer = response::own(StatusCode::OK, kind, envoy::answer(&decided));
        Ok(answer.map(ResponseBody::message))
    }

    /// Decides about one request of a call.
    ///
    /// # Errors
    /// If the caller has left.
    async fn decide<'p>(
        &self,
        active: &'p Rc<Active>,
        client: &Rc<ClientConnection>,
        (head, call): (Parts, DecideCall),
        seat: Option<Seat<'_, 'p>>,
        leases: Option<&mut UntoldLeases<'_>>,
    ) -> Result<DecidedRequest<'p>, Refusal<'static>> {
        let began = Instant::now();
        let mut exchange = Exchange::new(head, None);
        // A refusal of gRPC would have the status 200, and the caller would take it for a permission.
        exchange.protocol = plain(&exchange.head.headers, exchange.seen);
        let (via, protocol) = (call.via(), exchange.protocol);
        exchange.call = Some(Box::new(call));
        // The record ends the request that begins here.
        client.begin(began);
        let head = &mut exchange.head;
        let mut record = RequestRecord::begin(Rc::clone(active), client, began, head, protocol);
        record.via = Some(via);
        let server = &active.plan.server;
        let headers = &mut exchange.head.headers;
        record.request_id = request_id::name(&self.clock, server, client, began, headers);
        let (findings, request_id) = (&mut record.findings, record.request_id.as_deref());
        let mut question = LimitQuestion { seat, ..LimitQuestion::default() };
        let passing = self.pass(active, client, &mut exchange, request_id, findings, &mut question);
        let mut outcome = passing.await;
        let LimitQuestion { quotas, seat } = question;
        // Where the request was refused before its limits, the others no longer wait for it.
        drop(seat);
        let mut id = None;
        if let Some(leases) = leases
            && outcome.is_ok()
            && !findings.permit.is_empty()
        {
            match leases.keep(mem::take(&mut findings.permit), began) {
                Ok(kept) => id = Some(kept),
                Err(permit) => {
                    findings.permit = permit;
                    outcome = Err(Refusal::Call(BadCall::TooManyOpen));
                }
            }
        }
        let (answer, refused) = match outcome {
            Ok(answer) => (answer.map(|_| Bytes::new()), None),
            Err(Refusal::ClientLeft) => return Err(Refusal::ClientLeft),
            Err(refusal) => {
                findings.refused(&refusal);
                let route = findings.route.map(|route| &active.plan.routes[route]);
                let answer = answer::respond(&refusal, &quotas, active, protocol, route);
                findings.permit.refused(answer.status());
                (answer, Some(refusal.meaning().detail))
            }
        };
        record.status = answer.status();
        Ok(DecidedRequest { decision: record.findings.decision, quotas, refused, answer, id })
    }
}

/// Reads the whole body of a call. Each piece must come within `time_limit`.
async fn read_body(
    mut body: Incoming,
    client: &ClientConnection,
    time_limit: Duration,
) -> Result<Bytes, Refusal<'static>> {
    let mut whole = BytesMut::new();
    loop {
        let frame = timeout(time_limit, body.frame()).await;
        let frame = frame.map_err(|_| Refusal::Body(BodyFault::Stalled))?;
        let Some(frame) = frame else { return Ok(whole.freeze()) };
        let frame = frame.map_err(|error| Refusal::Body(BodyFault::of(&error)))?;
        let Some(piece) = frame.data_ref() else { continue };
        client.overhead.piece(piece.len());
        if whole.len() + piece.len() > MOST {
            return Err(Refusal::Body(BodyFault::TooLarge));
        }
        whole.extend_from_slice(piece);
    }
}
