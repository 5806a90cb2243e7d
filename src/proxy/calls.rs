//! The calls that have requests in their bodies: `/check` and `/settle`, and Envoy's.

use std::cell::LazyCell;
use std::mem;
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
use super::headers::quotas::is_tighter;
use super::protocol::{GrpcKind, Protocol};
use super::record::RequestRecord;
use super::refusal::Refusal;
use super::{Exchange, Proxy, answer, response, write_quotas};
use crate::decide::envoy::{self, DescriptorStatus, EnvoyAnswer};
use crate::decide::{BadCall, DecideCall, Decided, Form, Questions, RequestEnd, UntoldLeases};
use crate::reading::TIDEGATE_OVER;
use crate::request::key::Token;
use crate::throttle::{Admission, Quota, Quotas, Refused, TogetherRequest};
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
        match exchange.form() {
            Some(Form::Settle) => {
                let end = RequestEnd::read(&body).map_err(Refusal::Call)?;
                return match self.leases.settle(&end) {
                    true => {
                        let answer = response::own(StatusCode::NO_CONTENT, None, Bytes::new());
                        Ok(answer.map(ResponseBody::whole))
                    }
                    false => Err(Refusal::Call(BadCall::Ended)),
                };
            }
            Some(Form::Envoy) => return self.decide_together(body, client).await,
            _ => {}
        }
        let Questions { asked, is_list } = Questions::read(&body).map_err(Refusal::Call)?;
        let mut answers = Vec::with_capacity(asked.len());
        let mut leases = self.leases.untold();
        for (head, call) in asked {
            answers.push(Box::pin(self.decide(head, call, client, &mut leases)).await?);
        }
        leases.tell();
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
        leases: &mut UntoldLeases<'_>,
    ) -> Result<Json, Refusal<'static>> {
        let mut exchange = Exchange::asked(head, call);
        let (began, protocol) = (exchange.began, exchange.protocol);
        // The record ends what begins here.
        let (_, mut record) = self.begin(client, &mut exchange);
        let (active, findings) = (record.active.clone(), &mut record.findings);
        let mut quotas = Quotas::new();
        let request_id = record.request_id.as_deref();
        let passing = self.pass(&active, client, &mut exchange, request_id, findings, &mut quotas);
        let mut outcome = passing.await;
        let mut id = None;
        if outcome.is_ok() && !findings.permit.is_empty() {
            match leases.keep(std::mem::take(&mut findings.permit), began) {
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

    /// Decides about all descriptors of a call of Envoy.
    async fn decide_together(
        &self,
        body: Bytes,
        client: &Rc<ClientConnection>,
    ) -> Result<Answer, Refusal<'static>> {
        let active = self.active();
        let plan = &*active.plan;
        let asked = envoy::questions(body, plan).map_err(Refusal::Call)?;
        let now = self.clock.at(Instant::now());
        let (mut exchanges, mut uris, mut records) = (Vec::new(), Vec::new(), Vec::new());
        for (head, call) in asked {
            let mut exchange = Exchange::asked(head, call);
            records.push(self.begin(client, &mut exchange).1);
            uris.push(mem::take(&mut exchange.head.uri));
            exchanges.push(exchange);
        }
        let readings =
            exchanges.iter_mut().zip(&uris).zip(&mut records).map(|((it, uri), record)| {
                self.read(&active, client, it, uri, &mut record.findings)
            });
        let readings: Vec<_> = readings.collect();
        let tokens = exchanges.iter().map(|it| LazyCell::new(|| self.token(&active, it)));
        let tokens: Vec<_> = tokens.collect();
        let asked = exchanges.iter().zip(&readings).zip(&tokens).zip(&mut records);
        let requests = asked.map(|(((exchange, reading), token), record)| {
            let reading = reading.as_ref().ok()?;
            let RequestRecord { findings, request_id, .. } = record;
            let named = exchange.call.as_ref().and_then(|call| call.limits.as_deref());
            Some(TogetherRequest {
                view: exchange.view(reading, client, Token(token), request_id.as_deref()),
                limits: named.unwrap_or(&reading.route.limits),
                traced: findings.span().map(|span| &mut span.limits),
            })
        });
        let answers: Vec<(Quotas<'_>, Result<Admission, Refusal<'_>>)> =
            match requests.collect::<Option<Vec<_>>>() {
                Some(mut requests) => {
                    let answers = self.throttle.admit_together(plan, &mut requests, now).await;
                    let answers = answers.into_iter();
                    answers.map(|(quotas, it)| (quotas, it.map_err(Refusal::Limits))).collect()
                }
                // One cannot be read, and so none takes.
                None => {
                    let answers = readings.into_iter().map(|it| it.map(|_| Admission::default()));
                    answers.map(|it| (Quotas::new(), it)).collect()
                }
            };
        for (record, (_, answer)) in records.iter_mut().zip(&answers) {
            match answer {
                Ok(admission) => {
                    (record.status, record.findings.decision) =
                        (StatusCode::OK, admission.decision);
                }
                Err(refusal) => {
                    record.findings.refused(refusal);
                    record.status = match refusal {
                        Refusal::Limits(Refused::Throttled { answer, .. }) => answer.status,
                        _ => refusal.meaning().status,
                    };
                }
            }
        }
        Ok(self.compose(&active, &records, &answers))
    }

    /// The answer to a call of Envoy. `answers` is what was said to each of its requests.
    fn compose(
        &self,
        active: &Active,
        records: &[RequestRecord],
        answers: &[(Quotas<'_>, Result<Admission, Refusal<'_>>)],
    ) -> Answer {
        let grpc = Protocol::Grpc(GrpcKind::Native);
        let refused = answers.iter().zip(records);
        let refused = refused.filter_map(|((_, it), record)| Some((it.as_ref().err()?, record)));
        // A request that can never pass waits for ever.
        let longest = refused.max_by_key(|(refusal, _)| match refusal {
            Refusal::Limits(Refused::Throttled { retry_after, .. }) => {
                retry_after.unwrap_or(Duration::MAX)
            }
            _ => Duration::MAX,
        });
        if let Some((refusal @ Refusal::Limits(Refused::StoreUnavailable), _)) = longest {
            let answer = answer::respond(refusal, &[], active, grpc, None);
            return answer.map(ResponseBody::whole);
        }
        let quotas = tightest(answers.iter().flat_map(|(quotas, _)| quotas));
        let answer = match longest {
            Some((refusal, record)) => {
                let route = record.findings.route.map(|route| &active.plan.routes[route]);
                answer::respond(refusal, &quotas, active, record.protocol, route)
            }
            None => {
                let mut answer = response::own(StatusCode::OK, None, Bytes::new());
                write_quotas(answer.headers_mut(), active, &quotas);
                answer
            }
        };
        let over = answers.iter().filter_map(|(_, it)| it.as_ref().ok()?.over.clone());
        let (head, body) = answer.into_parts();
        let message = EnvoyAnswer {
            is_refused: longest.is_some(),
            statuses: answers
                .iter()
                .map(|(quotas, it)| DescriptorStatus::of(quotas, it.is_err()))
                .collect(),
            headers: [head.headers, over.map(|over| (TIDEGATE_OVER.clone(), over)).collect()],
            body,
        };
        let kind = Some(GrpcKind::Native.media_type());
        let answer = response::own(StatusCode::OK, kind, message.message());
        answer.map(ResponseBody::message)
    }
}

/// What clients are told of each limit: where several requests meet it, by the one that leaves the least.
fn tightest<'q, 'p: 'q>(all: impl Iterator<Item = &'q Quota<'p>>) -> Quotas<'p> {
    let mut quotas = Quotas::new();
    for quota in all {
        match quotas.iter_mut().find(|other: &&mut Quota<'p>| other.limit.name == quota.limit.name)
        {
            Some(other) if is_tighter(quota, other) => *other = *quota,
            Some(_) => {}
            None => quotas.push(*quota),
        }
    }
    quotas
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
