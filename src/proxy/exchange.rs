//! The parts of a request that is under way.

use http::{Method, Request, Version, request};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::client::{ClientConnection, Switched};
use super::protocol::{GrpcKind, Protocol, plain, protocol};
use super::refusal::Refusal;
use crate::decide::{Form, Question};
use crate::reading::Seen;
use crate::upstream::progress::BodyEnd;
use crate::wire::upload::ClientBody;

/// The parts of a request. A part is taken out when it is used up.
pub(super) struct Exchange {
    pub(super) began: Instant,
    pub(super) head: request::Parts,
    /// What is asked about the request, where somebody else forwards it.
    pub(super) asked: Option<Box<Question>>,
    /// Which fields the request has.
    pub(super) seen: Seen,
    pub(super) protocol: Protocol,
    /// `None` if there is none, or if it was taken.
    pub(super) body: Option<ClientBody>,
    /// How far the request's body has come on its way upstream.
    pub(super) body_end: BodyEnd,
    /// A server may have got the request's head.
    pub(super) is_sent: bool,
    /// Set if the answer changes the connection to another protocol (status 101).
    pub(super) switched: Option<Box<Switched>>,
}

impl Exchange {
    /// Whether the request was refused because of its client after a server may have begun to work on it. A client
    /// must not be able to choose the moment at which what it used goes back.
    pub(super) fn is_cut(&self, refusal: &Refusal<'_>) -> bool {
        match refusal {
            Refusal::Body(_) => true,
            Refusal::Deadline => self.is_sent,
            // The server may have waited for the rest of the body.
            Refusal::Upstream(_) => !self.body_end.is_reached(),
            _ => false,
        }
    }

    pub(super) fn of(request: Request<Incoming>, client: &ClientConnection) -> Self {
        let (head, body) = request.into_parts();
        Self::new(head, (!body.is_end_stream()).then(|| client.body(body)))
    }

    /// The form of a call. From now on its answer is by gRPC only where the caller surely speaks it: others would take
    /// the status 200 of a refusal for a permission.
    pub(super) fn call_form(&mut self) -> Form {
        let is_grpc = self.protocol == Protocol::Grpc(GrpcKind::Native)
            && (&self.head.method, self.head.version) == (&Method::POST, Version::HTTP_2);
        let form = Form::at(self.head.uri.path(), is_grpc);
        if !is_grpc || !matches!(form, Form::Envoy | Form::Unknown) {
            self.protocol = plain(&self.head.headers, self.seen);
        }
        form
    }

    /// A request that somebody else forwards. A refusal of it is never one of gRPC, for the same reason.
    pub(super) fn asked(head: request::Parts, asked: Question) -> Self {
        let mut exchange = Self::new(head, None);
        exchange.protocol = plain(&exchange.head.headers, exchange.seen);
        exchange.asked = Some(Box::new(asked));
        exchange
    }

    fn new(head: request::Parts, body: Option<ClientBody>) -> Self {
        let seen = Seen::of(&head.headers);
        let protocol = protocol(&head.method, &head.headers, seen);
        let body_end = BodyEnd::default();
        let began = Instant::now();
        let (asked, is_sent, switched) = (None, false, None);
        Self { began, head, asked, seen, protocol, body, body_end, is_sent, switched }
    }
}
