//! A request that is under way, whoever answers it: its parts, its client's connection, its record, and the body of its
//! response.
//!
//! `downstream` makes an [`Exchange`] of each request and hands it to the service of its port: `proxy`, which forwards
//! it, or `decide`, which only decides. Both begin a record of it by [`WorkerContext::begin`], and end with
//! [`Exchange::refuse`] and [`Exchange::finish`]. `record` counts and logs the request when the response has ended.

mod active;
pub(crate) mod body;
pub(crate) mod client;
mod context;
mod discard;
mod pace;
pub(crate) mod peer;
pub(crate) mod record;
mod request_id;
mod tasks;
mod trace;
mod trailers;

use std::mem;

use http::{Request, Version, request};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::Instant;

pub(crate) use self::active::Active;
use self::body::{Answer, ResponseBody, withhold_body};
use self::client::{ClientConnection, Switched};
pub(crate) use self::context::WorkerContext;
use self::discard::discard;
use self::record::RequestRecord;
pub(crate) use self::tasks::WorkerTasks;
use crate::answer::protocol::{Protocol, protocol};
use crate::answer::refusal::{Refusal, is_authority_form};
use crate::answer::{grpc, response};
use crate::reading::Seen;
use crate::throttle::Quota;
use crate::upstream::progress::{BodyEnd, BodyFault};
use crate::wire::upload::ClientBody;

/// The client has left before its answer.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the client has left")]
pub(crate) struct ClientLeft;

/// The parts of a request. A part is taken out when it is used up.
pub(crate) struct Exchange {
    pub(crate) began: Instant,
    pub(crate) head: request::Parts,
    /// Which fields the request has.
    pub(crate) seen: Seen,
    pub(crate) protocol: Protocol,
    /// `None` if there is none, or if it was taken.
    pub(crate) body: Option<ClientBody>,
    /// How far the request's body has come on its way upstream.
    pub(crate) body_end: BodyEnd,
    /// A server may have got the request's head.
    pub(crate) is_sent: bool,
    /// Set if the answer changes the connection to another protocol (status 101).
    pub(crate) switched: Option<Box<Switched>>,
    /// Whether the client has another request under way on the same connection.
    is_second: bool,
    /// Whether the target is a host and a port.
    is_authority_form: bool,
}

impl Exchange {
    /// A client's request.
    pub(crate) fn of(request: Request<Incoming>, client: &ClientConnection) -> Self {
        let (head, body) = request.into_parts();
        Self { body: (!body.is_end_stream()).then(|| client.body(body)), ..Self::of_head(head) }
    }

    /// A request of which only the head is here.
    pub(crate) fn of_head(head: request::Parts) -> Self {
        let seen = Seen::of(&head.headers);
        Self {
            began: Instant::now(),
            seen,
            protocol: protocol(&head.method, &head.headers, seen),
            body: None,
            body_end: BodyEnd::default(),
            is_sent: false,
            switched: None,
            is_second: false,
            is_authority_form: is_authority_form(&head),
            head,
        }
    }

    /// Waits until the connection has room for the request.
    pub(crate) async fn wait_for_room(&self, client: &ClientConnection) {
        client.phase.wait_for_room(self.is_second).await;
    }

    /// Answers a request that is refused, and settles what it holds. `quotas` is what its limits say. Returns whether
    /// an HTTP/1.1 connection must close, too.
    pub(crate) fn refuse(
        &self,
        refusal: &Refusal<'_>,
        quotas: &[Quota<'_>],
        record: &mut RequestRecord,
    ) -> (Answer, bool) {
        if let Refusal::Upstream(error) = refusal {
            record.failed(error.server(), error.kind(), error);
        }
        if let Refusal::Body(BodyFault::Stalled) = refusal {
            record.client.phase.overdue.set(true);
        }
        let answer = record.refused(refusal, quotas);
        match self.is_cut(refusal) {
            // As if the client had left.
            true => drop(mem::take(&mut record.permit)),
            false => record.permit.refused(record.status),
        }
        let closes = refusal.closes() || self.is_authority_form || !self.body_end.is_reached();
        (answer.map(ResponseBody::whole), closes)
    }

    /// Whether the request was refused because of its client after a server may have begun to work on it. A client
    /// must not be able to choose the moment at which what it used goes back.
    fn is_cut(&self, refusal: &Refusal<'_>) -> bool {
        match refusal {
            Refusal::Body(_) => true,
            Refusal::Deadline => self.is_sent,
            // The server may have waited for the rest of the body.
            Refusal::Upstream(_) => !self.body_end.is_reached(),
            _ => false,
        }
    }

    /// Hands over the answer. What is left of the request's body is thrown away, or the connection closes. The record
    /// ends with the answer's body.
    pub(crate) async fn finish(
        &mut self,
        mut answer: Answer,
        mut closes: bool,
        mut record: RequestRecord,
    ) -> Answer {
        withhold_body(&mut answer, &self.head.method);
        let client = &record.client;
        let is_awaited = |body: &ClientBody| self.seen.has(Seen::EXPECT) && !body.is_begun();
        if client.phase.is_multiplexed() {
            // The rest of a body is thrown away when the body is dropped. A client that was not told to send its
            // body sends none.
            if let Some(body) = self.body.as_mut().filter(|body| is_awaited(body)) {
                body.give_up();
            }
        } else {
            if let Some(body) = self.body.take() {
                let awaited = is_awaited(&body);
                let time_limit = record.active.settings.server.body_timeout;
                closes |= !Box::pin(discard(body, awaited, client, time_limit)).await;
            }
            if closes {
                client.phase.lingers.set(true);
            }
            // An HTTP/1.0 client knows the end of a body without a length by the connection's end.
            let is_old = self.head.version < Version::HTTP_11;
            let ends = client.phase.ending.get()
                || (is_old && answer.body().size_hint().exact().is_none());
            if closes || (ends && self.switched.is_none()) {
                response::close(&mut answer, self.head.version);
            }
        }
        let name = &record.active.settings.server.request_id;
        if let Some((name, id)) = name.as_ref().zip(record.request_id.as_deref()) {
            answer.headers_mut().insert(name, id.clone());
        }
        if let Some(details) = &mut record.details {
            details.grpc_status = grpc::status(answer.headers());
        }
        record.body_end = mem::take(&mut self.body_end);
        if let Some(mut switched) = self.switched.take() {
            switched.permit = record.permit.take_for_tunnel();
            record.client.switch(switched);
        }
        answer.body_mut().record(record);
        answer
    }
}
