//! Several requests that are decided together: all pass, or none takes anything.
//!
//! Each request has a [`Seat`], and goes through [`Throttle::admit`](super::Throttle::admit) like every request. There
//! it waits until all others have come with their limits. The last one asks the store for all of them at once.

use std::cell::RefCell;
use std::mem;
use std::sync::Arc;

use tokio::sync::Notify;

use super::open::{Open, leave_closed};
use crate::limit::decide::PerAsk;
use crate::limit::rate::{Cost, MAX_TOKENS};
use crate::store::{Moment, Store, Unavailable};

/// The meeting of the requests. All of them are futures of one task.
pub(crate) struct Together<'p> {
    meeting: RefCell<Meeting<'p>>,
    decided: Notify,
}

struct Meeting<'p> {
    /// The number of requests that may still come.
    missing: usize,
    /// The limits of the requests that have come.
    opens: Vec<Open<'p>>,
    /// Whether a request was refused before it came here. Then no request takes anything, and no limit is asked.
    is_void: bool,
    /// Whether the store's time is measured, or why the store does not decide.
    asked: Result<bool, Unavailable>,
}

/// The place of one request.
pub(crate) struct Seat<'t, 'p> {
    together: &'t Together<'p>,
    has_come: bool,
}

impl<'p> Together<'p> {
    /// A meeting of `requests` requests. Each must get a seat.
    pub(crate) fn of(requests: usize) -> Self {
        let (opens, is_void, asked) = (Vec::with_capacity(requests), false, Ok(false));
        let meeting = RefCell::new(Meeting { missing: requests, opens, is_void, asked });
        Self { meeting, decided: Notify::new() }
    }

    pub(crate) fn seat(&self) -> Seat<'_, 'p> {
        Seat { together: self, has_come: false }
    }
}

impl<'p> Seat<'_, 'p> {
    /// Waits until all have come, and the store has decided over the limits of all together. Returns whether this
    /// request notes the time of the store: the one that has asked does, so that one question counts once.
    ///
    /// # Errors
    /// As [`Store::take`].
    pub(super) async fn take(
        mut self,
        store: &Arc<Store>,
        open: &mut Open<'p>,
        moment: Moment,
    ) -> Result<bool, Unavailable> {
        let Together { meeting, decided } = self.together;
        self.has_come = true;
        let (place, is_last, asks) = {
            let mut all = meeting.borrow_mut();
            all.opens.push(mem::take(open));
            all.missing -= 1;
            let is_last = all.missing == 0;
            (all.opens.len() - 1, is_last, is_last && !all.is_void)
        };
        if asks {
            let mut opens = mem::take(&mut meeting.borrow_mut().opens);
            let asked = ask(store, &mut opens, moment).await;
            let mut all = meeting.borrow_mut();
            (all.opens, all.asked) = (opens, asked);
        }
        match is_last {
            true => decided.notify_waiters(),
            false => decided.notified().await,
        }
        let mut all = meeting.borrow_mut();
        *open = mem::take(&mut all.opens[place]);
        if all.is_void {
            *open = Open::default();
        }
        all.asked.map(|is_measured| is_measured && asks)
    }
}

impl Drop for Seat<'_, '_> {
    /// Dropped before [`Seat::take`]: the request was refused earlier.
    fn drop(&mut self) {
        if self.has_come {
            return;
        }
        let mut all = self.together.meeting.borrow_mut();
        (all.missing, all.is_void) = (all.missing - 1, true);
        if all.missing == 0 {
            self.together.decided.notify_waiters();
        }
    }
}

/// Asks the store once about the limits of all requests. Asks about the same bucket become one ask, with the sum of
/// their costs: the store decides about a bucket once. Returns whether the store's time is measured.
async fn ask(
    store: &Arc<Store>,
    opens: &mut [Open<'_>],
    moment: Moment,
) -> Result<bool, Unavailable> {
    leave_closed(opens, store, store.both(moment.time));
    let claims = opens.iter_mut().flat_map(Open::claims);
    let mut claims: Vec<_> = claims.collect();
    let mut asked_at = Vec::with_capacity(claims.len());
    for index in 0..claims.len() {
        let (before, after) = claims.split_at_mut(index);
        let same = before.iter().position(|other| other.asks_as(after[0]));
        if let Some(same) = same {
            let (ask, other) = (&mut before[same].ask, after[0].ask);
            let both = [*ask, other].into_iter().filter(|ask| ask.takes);
            let cost = both.map(|ask| ask.cost.get()).sum::<u64>();
            ask.cost = Cost::new(cost.min(MAX_TOKENS)).unwrap_or(Cost::ONE);
            ask.takes |= other.takes;
        }
        asked_at.push(same.unwrap_or(index));
    }
    let asked = claims.iter_mut().enumerate().filter(|(index, _)| asked_at[*index] == *index);
    let mut asked: PerAsk<_> = asked.map(|(_, claim)| &mut **claim).collect();
    if asked.is_empty() {
        return Ok(false);
    }
    store.take(&mut asked, moment).await?;
    let is_measured = store.is_local() || asked.iter().any(|claim| claim.is_decided_in_redis());
    drop(asked);
    for (index, asked_at) in asked_at.into_iter().enumerate() {
        let (before, after) = claims.split_at_mut(index);
        if let Some(asked) = before.get(asked_at) {
            after[0].decide_as(asked);
        }
    }
    Ok(is_measured)
}
