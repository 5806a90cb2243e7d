//! A response's body on its way to the client: watched, never collected.

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::Active;
use super::phase::Phase;
use super::tunnel::Switched;
use crate::observe::events::{self, AccessLine};
use crate::observe::metrics::{NO_ROUTE, WorkerMetrics};
use crate::throttle::Permit;
use crate::upstream::body::{BodyEnd, Patience};
use crate::upstream::fault::Fault;
use crate::upstream::incoming::Incoming;

/// What a client is sent after the head, and what is done when it has been sent.
#[derive(Debug)]
pub(super) struct ResponseBody {
    source: Source,
    /// Behind an answer that changes the protocol.
    switched: Option<Box<Switched>>,
    /// Told when the body has ended or nobody wants it any more.
    ended: Option<Ended>,
}

#[derive(Debug)]
enum Source {
    Whole(Option<Bytes>),
    Streamed { incoming: Incoming, patience: Patience, server: Arc<str> },
}

impl ResponseBody {
    /// A body that is there already.
    pub(super) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self {
            source: Source::Whole(Some(bytes.into()).filter(|b: &Bytes| !b.is_empty())),
            switched: None,
            ended: None,
        }
    }

    /// Nothing of HTTP: what follows is another protocol.
    pub(super) fn switched(switched: Switched) -> Self {
        Self { switched: Some(Box::new(switched)), ..Self::whole(Bytes::new()) }
    }

    /// The server's side of the other protocol, where this response changes to one.
    pub(super) fn take_switched(&mut self) -> Option<Box<Switched>> {
        self.switched.take()
    }

    /// What `server` sends, each read within `patience` of the one before.
    pub(super) fn streamed(incoming: Incoming, patience: Duration, server: Arc<str>) -> Self {
        if incoming.is_end_stream() {
            return Self::whole(Bytes::new());
        }
        let patience = Patience::new(patience);
        let source = Source::Streamed { incoming, patience, server };
        Self { source, switched: None, ended: None }
    }

    /// Sends more of the request's body, for as long as nobody wants more of this one.
    pub(super) fn poll_upload(&mut self, cx: &mut Context<'_>) {
        if let Source::Streamed { incoming, .. } = &mut self.source {
            incoming.poll_upload(cx);
        }
    }

    /// The time at which it ends, if it ends at once: it need not be read again then.
    pub(super) fn ends_at(&mut self, now: Option<Instant>) {
        if let Some(ended) = &mut self.ended {
            ended.now = now;
        }
    }

    /// Says what is to be done at its end.
    pub(super) fn until(&mut self, mut ended: Ended) {
        // What follows goes on when the response is long over.
        if let Some(switched) = &mut self.switched {
            switched.slots = ended.noted.permit.take_slots();
        }
        self.ended = Some(ended);
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = &mut *self;
        let (incoming, patience, server) = match &mut this.source {
            Source::Whole(bytes) => return Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Source::Streamed { incoming, patience, server } => (incoming, patience, server),
        };
        let Poll::Ready(frame) = Pin::new(&mut *incoming).poll_frame(cx) else {
            ready!(patience.poll_over(cx));
            if let Some(ended) = &this.ended {
                ended.broke_off();
                ended.failed(&format_args!("no more of the answer from {server} in time"));
            }
            return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
        };
        patience.renew();
        match frame {
            Some(Err(error)) => {
                if let Some(ended) = &this.ended {
                    ended.broke_off();
                    if !matches!(error, Fault::Request(_)) {
                        ended.failed(&format_args!("the answer from {server} broke off: {error}"));
                    }
                }
                Poll::Ready(Some(Err(io::Error::other(error))))
            }
            Some(Ok(frame)) => {
                if let (Some(ended), Some(piece)) = (&mut this.ended, frame.data_ref()) {
                    ended.noted.permit.read(piece);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Whole(bytes) => bytes.is_none(),
            Source::Streamed { incoming, .. } => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Source::Streamed { incoming, .. } => incoming.size_hint(),
        }
    }
}

/// The end of a request: dropped with its response's body, it counts and logs the request.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) phase: Arc<Phase>,
    pub(super) metrics: Arc<WorkerMetrics>,
    pub(super) began: Instant,
    pub(super) active: Arc<Active>,
    pub(super) status: StatusCode,
    pub(super) noted: Noted,
    /// The client's version: one of HTTP/1.0 may be told a body's end by the connection's end.
    pub(super) version: Version,
    /// How far the request's body has come.
    pub(super) body_end: BodyEnd,
    /// The time, where it is known.
    pub(super) now: Option<Instant>,
}

impl Ended {
    /// The route's name for logs.
    pub(super) fn route(&self) -> &str {
        let route = self.noted.route.and_then(|route| self.active.plan.routes.get(route));
        route.map_or(NO_ROUTE, |route| &route.name)
    }

    /// The upstream did not give all that was asked of it.
    pub(super) fn failed(&self, error: &dyn Display) {
        self.active.failed.exchange(error, self.route(), Instant::now());
    }

    /// The response ends before its body has.
    fn broke_off(&self) {
        if self.version < Version::HTTP_11 {
            self.phase.reset();
        }
    }
}

/// What is found out about a request on its way.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// The place of its route in the plan; `None` where none was found.
    pub(super) route: Option<usize>,
    /// What the limits settle when the response has ended.
    pub(super) permit: Permit,
    pub(super) access: Option<Box<Access>>,
}

/// What the access line says besides.
#[derive(Debug)]
pub(super) struct Access {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) client: IpAddr,
    pub(super) upstream: Option<Arc<str>>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let now = self.now.unwrap_or_else(Instant::now);
        let duration = now.saturating_duration_since(self.began);
        self.phase.end(now);
        if !self.body_end.is_reached() {
            self.phase.unsettle();
            self.phase.linger();
        }
        let counter = self.active.counter(self.noted.route, &self.metrics);
        self.metrics.request(counter, self.status, duration);
        if let Some(access) = &self.noted.access {
            events::access(&AccessLine {
                method: access.method.as_str(),
                path: &access.path,
                status: self.status.as_u16(),
                duration,
                route: self.route(),
                client: access.client,
                upstream: access.upstream.as_deref(),
            });
        }
    }
}
