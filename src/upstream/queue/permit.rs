//! What a request holds that is in flight, and what the rule learns from it.

use std::cell::Cell;
use std::mem;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use super::{Entered, RequestOrigin, RequestQueue};
use crate::limit::key::Key;
use crate::settings::Priority;
use crate::upstream::overload::rule::{SentEnd, SentRequest};
use crate::upstream::overload::window::Micros;

/// The right to be one of the requests in flight. Dropping it gives the right to the next request.
#[derive(Debug)]
pub(crate) struct RequestPermit(Box<HeldPermit>);

#[derive(Debug)]
struct HeldPermit {
    queue: Arc<RequestQueue>,
    goal: Micros,
    /// Whose turn it was, and when; `None` if there was no limit.
    turn: Option<(Priority, Key, Micros)>,
    is_in_flight: bool,
    sent: Option<SentRequest>,
    upload: Option<Rc<Cell<UploadProgress>>>,
}

/// How far the body of a request has come. Its answer's time begins with its end.
#[derive(Clone, Copy, Debug)]
enum UploadProgress {
    Coming { is_sent: bool },
    Over(Option<SentRequest>),
}

/// Counts a request in flight as an upload. To be dropped when the request's body has come.
#[derive(Debug)]
pub(crate) struct UploadPermit {
    queue: Arc<RequestQueue>,
    client: IpAddr,
    goal: Micros,
    upload: Rc<Cell<UploadProgress>>,
}

impl RequestQueue {
    /// The permits of a request that has begun.
    pub(super) fn permits(
        self: &Arc<Self>,
        by: &RequestOrigin,
        goal: Micros,
        turn: Option<(Priority, Key, Micros)>,
    ) -> Entered {
        let coming = || Rc::new(Cell::new(UploadProgress::Coming { is_sent: false }));
        let upload = by.uploads.map(|client| (client, coming()));
        let held = HeldPermit {
            queue: self.clone(),
            goal,
            turn,
            is_in_flight: true,
            sent: None,
            upload: upload.as_ref().map(|(_, upload)| upload.clone()),
        };
        let upload = upload.map(|(client, upload)| {
            let queue = self.clone();
            UploadPermit { queue, client, goal, upload }
        });
        (RequestPermit(Box::new(held)), upload)
    }
}

impl RequestPermit {
    /// The request goes to a server now. With a body that still comes, its time begins when the body has gone.
    pub(in crate::upstream) fn send(&mut self) {
        let HeldPermit { queue, goal, sent, upload, .. } = &mut *self.0;
        if let Some(upload) = upload
            && let UploadProgress::Coming { .. } = upload.get()
        {
            return upload.set(UploadProgress::Coming { is_sent: true });
        }
        let mut state = queue.state.lock();
        let in_flight = state.in_flight;
        *sent = Some(state.rule.sent(*goal, in_flight, queue.now()));
    }

    /// What has come of this sending. A request that is sent again keeps its place.
    pub(in crate::upstream) fn end(&mut self, end: SentEnd) {
        let sent = self.0.take_sent();
        self.0.queue.ended(&mut self.0.queue.state.lock(), sent, end);
    }

    /// The head of the answer has come. With a goal the place is free now: a stream's life is no load.
    pub(in crate::upstream) fn answered(&mut self, end: SentEnd) {
        let sent = self.0.take_sent();
        let HeldPermit { queue, is_in_flight, .. } = &mut *self.0;
        let mut state = queue.state.lock();
        if !state.is_number() && mem::replace(is_in_flight, false) {
            state.in_flight -= 1;
        }
        queue.ended(&mut state, sent, end);
        queue.advance(&mut state);
    }

    /// No server could be connected to.
    pub(in crate::upstream) fn unreached(&mut self) {
        self.send();
        self.end(SentEnd::Failed);
    }
}

impl HeldPermit {
    /// The sending of which something has come now.
    fn take_sent(&mut self) -> Option<SentRequest> {
        let upload = self.upload.as_ref();
        let of_upload = upload.and_then(|upload| match upload.get() {
            UploadProgress::Coming { .. } => {
                upload.set(UploadProgress::Coming { is_sent: false });
                None
            }
            UploadProgress::Over(sent) => {
                upload.set(UploadProgress::Over(None));
                sent
            }
        });
        self.sent.take().or(of_upload)
    }
}

impl Drop for HeldPermit {
    fn drop(&mut self) {
        // Most requests have given everything back with the head of their answer.
        if !self.is_in_flight && self.turn.is_none() && self.upload.is_none() {
            return;
        }
        let (sent, queue) = (self.take_sent(), &self.queue);
        let mut state = queue.state.lock();
        state.in_flight -= usize::from(self.is_in_flight);
        queue.ended(&mut state, sent, SentEnd::Left);
        if let Some((priority, key, since)) = &self.turn {
            state.turns.end(*priority, key, queue.now().saturating_sub(*since));
        }
        queue.advance(&mut state);
    }
}

impl Drop for UploadPermit {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.uploads.end(self.client);
        let sent = match self.upload.get() {
            UploadProgress::Coming { is_sent: true } => {
                let in_flight = state.in_flight;
                Some(state.rule.sent(self.goal, in_flight, self.queue.now()))
            }
            UploadProgress::Coming { is_sent: false } | UploadProgress::Over(_) => None,
        };
        self.upload.set(UploadProgress::Over(sent));
        self.queue.advance(&mut state);
    }
}
