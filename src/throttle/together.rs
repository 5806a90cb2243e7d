//! Several requests that are decided together: all pass, or none takes anything.
//!
//! Each request has a [`Seat`], and goes through [`Throttle::admit`](super::Throttle::admit) like every request. There
//! it waits until all others have come with their limits. The last one asks the store for all of them at once.

use std::cell::RefCell;
use std::mem;
use std::sync::Arc;

use tokio::sync::Notify;

use super::open::{Open, leave_closed, only_look, only_look_after_refusal};
use super::request_limit::RequestLimit;
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::PerAsk;
use crate::limit::rate::Cost;
use crate::store::{Moment, Store, Unavailable};

/// The most limits of requests that are decided together.
pub(crate) const MOST_LIMITS: usize = 1_000;

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
    /// Whether a request was refused before it came here. Then no request takes anything.
    is_void: bool,
    /// Whether one of the requests asks, or has asked, for all.
    is_asked: bool,
    has_too_many: bool,
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
        let meeting = RefCell::new(Meeting {
            missing: requests,
            opens: Vec::with_capacity(requests),
            is_void: false,
            is_asked: false,
            has_too_many: false,
            asked: Ok(false),
        });
        Self { meeting, decided: Notify::new() }
    }

    pub(crate) fn seat(&self) -> Seat<'_, 'p> {
        Seat { together: self, has_come: false }
    }
}

impl Together<'_> {
    /// Asks for all requests that have come, and wakes them.
    async fn ask(&self, store: &Arc<Store>, moment: Moment) {
        let (mut opens, is_void) = {
            let mut all = self.meeting.borrow_mut();
            (mem::take(&mut all.opens), all.is_void)
        };
        let has_too_many = opens.iter().map(|open| open.limits.len()).sum::<usize>() > MOST_LIMITS;
        let asked = match has_too_many {
            true => Err(Unavailable { by: 0 }),
            // The time of a question that nobody has asked for is not measured.
            false => ask(store, &mut opens, is_void, moment).await.map(|it| it && !is_void),
        };
        note_repeated(&mut opens);
        let mut all = self.meeting.borrow_mut();
        (all.opens, all.asked, all.has_too_many) = (opens, asked, has_too_many);
        self.decided.notify_waiters();
    }

    /// Whether the requests have more limits than are asked about at once. Then nothing was asked.
    pub(crate) fn has_too_many(&self) -> bool {
        self.meeting.borrow().has_too_many
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
        let (place, is_last) = {
            let mut all = meeting.borrow_mut();
            all.opens.push(mem::take(open));
            all.missing -= 1;
            (all.opens.len() - 1, all.missing == 0)
        };
        if !is_last {
            decided.notified().await;
        }
        let asks = !mem::replace(&mut meeting.borrow_mut().is_asked, true);
        if asks {
            self.together.ask(store, moment).await;
        }
        let mut all = meeting.borrow_mut();
        *open = mem::take(&mut all.opens[place]);
        open.is_void = all.is_void;
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
            // One of those who wait asks for all.
            self.together.decided.notify_one();
        }
    }
}

/// Notes which rejections must not count towards a ban: the call counts as one rejection of each key.
fn note_repeated(opens: &mut [Open<'_>]) {
    let mut counted = Vec::new();
    let limits = opens.iter_mut().flat_map(|open| &mut open.limits);
    for limit in limits.filter(|limit| limit.claim.spec.ban.is_some() && limit.rejects()) {
        let RequestLimit { claim, is_repeated, .. } = limit;
        let key = (&claim.spec.name, &claim.key);
        *is_repeated = counted.contains(&key);
        if !*is_repeated {
            counted.push(key);
        }
    }
}

/// Whether figures are stricter than others: lower ones, or those of the smaller bucket if both have a lower one.
fn is_stricter(one: Algorithm, other: Algorithm) -> bool {
    other.is_lowered_by(one) && (!one.is_lowered_by(other) || one.capacity() < other.capacity())
}

/// Asks the store once about the limits of all requests. With `is_void` nothing is taken. Asks about the same bucket become one ask, with the sum of
/// their costs and the strictest of their figures: the store decides about a bucket once. Returns whether the store's time is measured.
async fn ask(
    store: &Arc<Store>,
    opens: &mut [Open<'_>],
    is_void: bool,
    moment: Moment,
) -> Result<bool, Unavailable> {
    leave_closed(opens, store, store.both(moment.time));
    match is_void {
        true => opens.iter_mut().flat_map(Open::claims).for_each(only_look),
        false => only_look_after_refusal(opens),
    }
    let claims = opens.iter_mut().flat_map(Open::claims);
    let mut claims: Vec<_> = claims.collect();
    let mut asked_at = Vec::with_capacity(claims.len());
    for index in 0..claims.len() {
        let (before, after) = claims.split_at_mut(index);
        let same = before.iter().position(|other| other.asks_as(after[0]));
        if let Some(same) = same {
            let (ask, other) = (&mut before[same].ask, after[0].ask);
            if is_stricter(other.algorithm, ask.algorithm) {
                ask.algorithm = other.algorithm;
            }
            let both = [*ask, other].into_iter().filter(|ask| ask.takes);
            let cost = both.map(|ask| ask.cost.get()).sum::<u64>();
            ask.takes |= other.takes;
            match Cost::new(cost.max(1)) {
                Some(cost) => ask.cost = cost,
                // No bucket ever holds so many tokens.
                None => before[same].refuse_forever(),
            }
        }
        asked_at.push(same.unwrap_or(index));
    }
    if claims.iter().any(|claim| claim.decision().is_some()) {
        claims.iter_mut().for_each(|claim| only_look(claim));
    }
    let asked = claims.iter_mut().enumerate();
    let asked =
        asked.filter(|(index, claim)| asked_at[*index] == *index && claim.decision().is_none());
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
