//! `/api/stream`: the status each second, as server-sent events (HTML Standard, section 9.2).

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{Stream, unfold};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::Admin;
use super::answer::{AdminResponse, answer, problem};
use super::status::{self, ProcessReading};
use crate::worker::Published;

/// The most streams at once.
pub(super) const MOST: usize = 64;

const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");

/// The first words of a stream. A browser whose stream breaks asks again after this time, in milliseconds.
const RETRY: &str = "retry: 2000\n";

/// What a stream holds while it lives.
struct StreamReader {
    first: Option<Bytes>,
    event: watch::Receiver<Bytes>,
    ending: watch::Receiver<bool>,
    /// The stream ends with the token by which it was asked for.
    token: Option<String>,
    plan: watch::Receiver<Arc<Published>>,
    _permit: OwnedSemaphorePermit,
}

/// The event that tells the status at a moment.
pub(super) fn event(admin: &Admin, now: &ProcessReading) -> Bytes {
    format!("data: {}\n\n", status::build(admin, now)).into()
}

impl Admin {
    pub(super) fn stream(&self, method: &Method) -> AdminResponse {
        if *method == Method::HEAD {
            return answer(StatusCode::OK, EVENTS, Bytes::new());
        }
        let Ok(permit) = Arc::clone(&self.pulse.streams).try_acquire_owned() else {
            let why = format!("there are {MOST} streams already; close one of them");
            return problem(StatusCode::SERVICE_UNAVAILABLE, &why);
        };
        let [_, last] = self.pulse.readings();
        let first = [RETRY.as_bytes(), &event(self, &last)].concat();
        let listener = StreamReader {
            first: Some(first.into()),
            event: self.pulse.event.subscribe(),
            ending: self.pulse.ending.subscribe(),
            token: self.plan.borrow().plan.admin.token.clone(),
            plan: self.plan.clone(),
            _permit: permit,
        };
        let body = StreamBody::new(listener.events()).boxed_unsync();
        let mut answer = Response::new(body);
        answer.headers_mut().insert(CONTENT_TYPE, EVENTS);
        answer
    }
}

/// The events of a stream, as a body sends them.
type EventStream = Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>;

impl StreamReader {
    fn events(self) -> EventStream {
        Box::pin(unfold(self, |mut listener| async move {
            let event = match listener.first.take() {
                Some(first) => first,
                None => listener.next().await?,
            };
            Some((Ok(Frame::data(event)), listener))
        }))
    }

    /// The next event. `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        tokio::select! {
            biased;
            _ = self.ending.wait_for(|ending| *ending) => None,
            changed = self.event.changed() => {
                changed.ok()?;
                if self.plan.borrow().plan.admin.token != self.token {
                    return None;
                }
                Some(self.event.borrow_and_update().clone())
            }
        }
    }
}
