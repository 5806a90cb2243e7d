//! The parts of a request that is under way.

use http::{Method, Request, Version, request};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::client::Switched;
use super::protocol::{GrpcKind, Protocol, plain, protocol};
use crate::decide::{DecideCall, Form};
use crate::reading::Seen;
use crate::upstream::progress::BodyEnd;

/// The parts of a request. A part is taken out when it is used up.
pub(super) struct Exchange {
    pub(super) began: Instant,
    /// The head. If another proxy asks for a decision, this is the head of the request that it asks about.
    pub(super) head: request::Parts,
    /// The call, if another proxy asks for a decision.
    pub(super) call: Option<Box<DecideCall>>,
    /// Which fields the request has.
    pub(super) seen: Seen,
    pub(super) protocol: Protocol,
    pub(super) body: Option<Incoming>,
    /// How far the request's body has come on its way upstream.
    pub(super) body_end: BodyEnd,
    /// Set where the answer changes the connection to another protocol (status 101).
    pub(super) switched: Option<Box<Switched>>,
}

impl Exchange {
    pub(super) fn of(request: Request<Incoming>) -> Self {
        let (head, body) = request.into_parts();
        Self::new(head, Some(body))
    }

    pub(super) fn new(head: request::Parts, body: Option<Incoming>) -> Self {
        let seen = Seen::of(&head.headers);
        let (protocol, body_end) = (protocol(&head.headers, seen), BodyEnd::default());
        let began = Instant::now();
        Self { began, head, call: None, seen, protocol, body, body_end, switched: None }
    }

    /// Another proxy asks for a decision. From now on, the head is the head of the request that it asks about. `token`
    /// is `decide.token`.
    pub(super) fn ask(&mut self, token: Option<&str>) {
        let is_grpc = self.protocol == Protocol::Grpc(GrpcKind::Native)
            && (&self.head.method, self.head.version) == (&Method::POST, Version::HTTP_2);
        let call = DecideCall::read(&mut self.head, token, is_grpc);
        if !is_grpc || call.form.is_some_and(|form| form != Form::Envoy) {
            // The status of a gRPC answer is 200, and the proxy would take a refusal for a permission.
            self.protocol = plain(&self.head.headers, self.seen);
        }
        self.call = Some(Box::new(call));
    }

    /// The method by which the answer is framed.
    pub(super) fn method(&self) -> &Method {
        self.call.as_ref().map_or(&self.head.method, |call| &call.method)
    }
}
