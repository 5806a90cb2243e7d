//! The calls that have requests in their bodies: `/check` and `/settle`.

use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::Value as Json;
use tokio::time::{Instant, timeout};

use super::active::Active;
use super::body::{Answer, ResponseBody};
use super::client::ClientConnection;
use super::refusal::Refusal;
use super::{Exchange, Proxy, answer, request_id, response};
use crate::decide::{BadCall, DecideCall, Decided, Form, Questions, RequestEnd};
use crate::throttle::Quotas;
use crate::upstream::progress::BodyFault;

/// The most bytes of a call's body.
const MOST: usize = 1024 * 1024;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

impl Proxy {
    /// Answers a call whose requests are in its body.
    pub(super) async fn answer_call(
        &self,
        active: &Active,
        client: &Rc<ClientConnection>,
        exchange: &mut Exchange,
    ) -> Result<Answer, Refusal<'static>> {
        let time_limit = active.plan.server.body_timeout;
        let body = match exchange.body.take() {
            Some(body) => read_body(body, time_limit).await?,
            None => Bytes::new(),
        };
        if exchange.call.as_ref().is_some_and(|call| call.form == Some(Form::Settle)) {
            let end = RequestEnd::read(&body).map_err(Refusal::Call)?;
            return match self.leases.settle(&end) {
                true => {
                    let answer = response::own(StatusCode::NO_CONTENT, None, Bytes::new());
                    Ok(answer.map(ResponseBody::whole))
                }
                false => Err(Refusal::Call(BadCall::Ended)),
            };
        }
        let Questions { asked, is_list } = Questions::read(&body).map_err(Refusal::Call)?;
        let mut answers = Vec::with_capacity(asked.len());
        for (head, call) in asked {
            answers.push(Box::pin(self.decide(head, call, client)).await?);
        }
        let answer = match (is_list, answers.pop()) {
            (false, Some(answer)) => answer,
            (_, last) => answers.into_iter().chain(last).collect(),
        };
        let answer = response::own(StatusCode::OK, Some(JSON), answer.to_string());
        Ok(answer.map(ResponseBody::whole))
    }

    /// Decides about one request of a call.
    ///
    /// # Errors
    /// If the caller has left.
    async fn decide(
        &self,
        head: Parts,
        call: DecideCall,
        client: &Rc<ClientConnection>,
    ) -> Result<Json, Refusal<'static>> {
        let began = Instant::now();
        let mut exchange = Exchange::new(head, None);
        exchange.call = Some(Box::new(call));
        let protocol = exchange.protocol;
        // The record ends what begins here.
        client.begin(began);
        let mut record = self.begin(client, began, &mut exchange.head, protocol);
        record.via = Some(Form::Check.name());
        let (active, findings) = (record.active.clone(), &mut record.findings);
        record.request_id = request_id::name(
            &self.clock,
            &active.plan.server,
            client,
            began,
            &mut exchange.head.headers,
        );
        let mut quotas = Quotas::new();
        let request_id = record.request_id.as_deref();
        let passing = self.pass(&active, client, &mut exchange, request_id, findings, &mut quotas);
        let mut outcome = passing.await;
        let mut id = None;
        if outcome.is_ok() && !findings.permit.is_empty() {
            match self.leases.keep(std::mem::take(&mut findings.permit), began) {
                Ok(kept) => id = Some(kept),
                Err(permit) => {
                    findings.permit = permit;
                    outcome = Err(Refusal::Call(BadCall::TooManyOpen));
                }
            }
        }
        let route = findings.route.map(|route| &active.plan.routes[route]);
        let (status, mut headers, reason) = match &outcome {
            Ok(answer) => (answer.status(), answer.headers().clone(), None),
            Err(Refusal::ClientLeft) => return Err(Refusal::ClientLeft),
            Err(refusal) => {
                findings.refused(refusal);
                let answer = answer::respond(refusal, &quotas, &active, protocol, route);
                findings.permit.refused(answer.status());
                (answer.status(), answer.headers().clone(), Some(refusal.meaning().detail))
            }
        };
        // The body is not among what the caller gets.
        headers.remove(CONTENT_TYPE);
        record.status = status;
        let refused = reason.as_deref().map(|reason| (status, reason));
        let decision = record.findings.decision;
        Ok(Decided { decision, quotas: &quotas, refused, headers: &headers, id }.json())
    }
}

/// Reads the whole body of a call. Each piece must come within `time_limit`.
async fn read_body(mut body: Incoming, time_limit: Duration) -> Result<Bytes, Refusal<'static>> {
    let mut whole = BytesMut::new();
    loop {
        let frame = timeout(time_limit, body.frame()).await;
        let frame = frame.map_err(|_| Refusal::Body(BodyFault::Stalled))?;
        let Some(frame) = frame else { return Ok(whole.freeze()) };
        let frame = frame.map_err(|error| Refusal::Body(BodyFault::of(&error)))?;
        let Some(piece) = frame.data_ref() else { continue };
        if whole.len() + piece.len() > MOST {
            return Err(Refusal::Body(BodyFault::TooLarge));
        }
        whole.extend_from_slice(piece);
    }
}
