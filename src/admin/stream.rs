//! `/api/stream`: the status each second, as server-sent events (HTML Standard, section 9.2).

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{Stream, StreamExt as _, once, unfold};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::Admin;
use super::answer::{AdminResponse, answer, problem};
use super::status;
use crate::worker::Published;

/// The most streams at once.
pub(super) const MOST: usize = 64;

const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");

/// The beginning of each stream. If the stream breaks, a browser asks again after this time in milliseconds.
const RETRY: &str = "retry: 2000\n";

/// What a stream holds while it lives.
struct StreamReader {
    event: watch::Receiver<Option<Bytes>>,
    /// The token when the stream began. The stream ends if a reload changes the token.
    token: Option<String>,
    published: watch::Receiver<Arc<Published>>,
    _permit: OwnedSemaphorePermit,
}

/// The event with the status at the last reading.
pub(super) fn event(admin: &Admin) -> Bytes {
    let [.., last] = admin.pulse.readings();
    format!("data: {}\n\n", status::build(admin, &last)).into()
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
        let first = [RETRY.as_bytes(), &event(self)].concat();
        let reader = StreamReader {
            event: self.pulse.event.subscribe(),
            token: self.published.borrow().settings.admin.token.clone(),
            published: self.published.clone(),
            _permit: permit,
        };
        let body = StreamBody::new(reader.events(first.into())).boxed_unsync();
        let mut answer = Response::new(body);
        answer.headers_mut().insert(CONTENT_TYPE, EVENTS);
        answer
    }
}

impl StreamReader {
    /// The events of the stream, as a body sends them.
    fn events(self, first: Bytes) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
        let later = unfold(self, |mut reader| async move { Some((reader.next().await?, reader)) });
        once(ready(first)).chain(later).map(|event| Ok(Frame::data(event)))
    }

    /// The next event. `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        if self.event.borrow().is_some() {
            self.event.changed().await.ok()?;
        }
        let has_token = self.published.borrow().settings.admin.token == self.token;
        self.event.borrow_and_update().clone().filter(|_| has_token)
    }
}
