//! What a request holds that is in flight, and what the rule learns from it.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Entered, QueueState, RequestOrigin, RequestQueue};
use crate::upstream::overload::rule::{SentEnd, SentRequest};
use crate::upstream::overload::window::Micros;

/// The right to be one of the requests in flight. Dropping it gives the right to the next request.
#[derive(Debug)]
pub(crate) struct RequestPermit(Arc<RequestPlace>);

/// Counts a request in flight as an upload. To be dropped when the request's body has come.
#[derive(Debug)]
pub(crate) struct UploadPermit(Arc<RequestPlace>);

#[derive(Debug)]
struct RequestPlace {
    queue: Arc<RequestQueue>,
    by: RequestOrigin,
    goal: Micros,
    /// When the key's turn came. `None` if there was no limit.
    turn: Option<Micros>,
    progress: Mutex<PlaceProgress>,
}

#[derive(Clone, Copy, Debug)]
struct PlaceProgress {
    is_in_flight: bool,
    /// Whether the body is still coming. The time of the answer begins when the body has ended.
    uploads: bool,
    is_sent: bool,
    sent: Option<SentRequest>,
}

impl RequestQueue {
    /// Makes the permits of a request that may be sent.
    pub(super) fn begin(
        self: &Arc<Self>,
        state: &mut QueueState,
        by: RequestOrigin,
        turn: Option<Micros>,
    ) -> Entered {
        state.in_flight += 1;
        by.uploads.into_iter().for_each(|client| state.uploads.begin(client));
        let (goal, uploads) = (state.goal(&by), by.uploads.is_some());
        let progress = PlaceProgress { is_in_flight: true, uploads, is_sent: false, sent: None };
        let (queue, progress) = (self.clone(), Mutex::new(progress));
        let place = Arc::new(RequestPlace { queue, by, goal, turn, progress });
        (RequestPermit(place.clone()), uploads.then(|| UploadPermit(place)))
    }
}

impl RequestPlace {
    fn happens(&self, event: impl FnOnce(&mut PlaceProgress, &mut QueueState, Micros)) {
        self.queue.happens(|state, now| event(&mut self.progress.lock(), state, now));
    }

    fn begin(&self, progress: &mut PlaceProgress, state: &mut QueueState, now: Micros) {
        if progress.is_sent && !progress.uploads {
            progress.sent = Some(state.rule.sent(self.goal, state.in_flight, now));
        }
    }
}

impl PlaceProgress {
    /// The request that was sent has ended.
    fn end(&mut self, end: SentEnd, state: &mut QueueState, now: Micros) {
        self.is_sent = false;
        if let Some(sent) = self.sent.take() {
            state.rule.ended(sent, end, state.in_flight, now);
        }
    }

    fn leave(&mut self, state: &mut QueueState) {
        state.in_flight -= usize::from(self.is_in_flight);
        self.is_in_flight = false;
    }
}

impl RequestPermit {
    /// Whether a limit was in force, so that the request may have waited.
    pub(crate) fn has_turn(&self) -> bool {
        self.0.turn.is_some()
    }

    /// The request goes to a server now.
    pub(in crate::upstream) fn send(&mut self) {
        self.0.happens(|progress, state, now| {
            progress.is_sent = true;
            self.0.begin(progress, state, now);
        });
    }

    /// What has come of this sending. A request that is sent again keeps its place.
    pub(in crate::upstream) fn end(&mut self, end: SentEnd) {
        self.0.happens(|progress, state, now| progress.end(end, state, now));
    }

    /// The head of the answer has come. With a goal the place is free now: a stream's life is no load.
    pub(in crate::upstream) fn answered(&mut self, end: SentEnd) {
        self.0.happens(|progress, state, now| {
            if state.rule.goal.is_some() {
                progress.leave(state);
            }
            progress.end(end, state, now);
        });
    }

    /// No server could be connected to.
    pub(in crate::upstream) fn unreached(&mut self) {
        self.send();
        self.end(SentEnd::Failed);
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let place = &*self.0;
        // Most requests have given everything back with the head of their answer.
        if place.turn.is_none() && !place.progress.lock().is_in_flight {
            return;
        }
        place.happens(|progress, state, now| {
            progress.leave(state);
            progress.end(SentEnd::Left, state, now);
            if let Some(since) = place.turn {
                let RequestOrigin { priority, key, .. } = &place.by;
                state.turns.end(*priority, key, now.saturating_sub(since));
            }
        });
    }
}

impl Drop for UploadPermit {
    fn drop(&mut self) {
        self.0.happens(|progress, state, now| {
            self.0.by.uploads.into_iter().for_each(|client| state.uploads.end(client));
            progress.uploads = false;
            self.0.begin(progress, state, now);
        });
    }
}
