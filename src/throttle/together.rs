//! Several requests that are decided together: all pass, or none takes anything.

use super::open::{OpenDecision, leave_closed, only_peek, only_peek_after_refusal};
use super::request_limit::RequestLimit;
use super::{Taken, Throttle};
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::PerAsk;
use crate::limit::rate::Cost;
use crate::limit::time::Timestamp;
use crate::store::ClockReading;

/// The most limits of requests that are decided together.
pub(crate) const MOST_LIMITS: usize = 1_000;

impl Throttle {
    /// Asks the store once about the limits of all these requests, which have begun. With `is_void` another request of
    /// the same call was refused already: then these take nothing, and count nowhere. Returns the time that the store
    /// needed, if it is measured.
    ///
    /// # Errors
    /// As `Store::take`.
    pub(crate) async fn take_together(
        &self,
        opens: &mut [&mut OpenDecision<'_>],
        is_void: bool,
        now: Timestamp,
    ) -> Taken {
        if opens.len() > 1 {
            leave_closed(opens, &self.store, now);
        }
        let reading = ClockReading::now(now);
        opens.iter_mut().for_each(|open| open.is_void = is_void);
        let taken = self.take_once(opens, reading).await;
        note_repeated(opens);
        // The time of a question that nobody has asked for is not measured.
        Ok(taken?.filter(|_| !is_void))
    }

    /// Asks about the same bucket become one ask, with the sum of their costs and the strictest of their figures: the store
    /// decides about a bucket once.
    async fn take_once(&self, opens: &mut [&mut OpenDecision<'_>], reading: ClockReading) -> Taken {
        match opens.iter().any(|open| open.is_void) {
            true => opens.iter_mut().flat_map(|open| open.claims()).for_each(only_peek),
            false => only_peek_after_refusal(opens),
        }
        let mut claims: Vec<_> = opens.iter_mut().flat_map(|open| open.claims()).collect();
        let mut asked_at = Vec::with_capacity(claims.len());
        for index in 0..claims.len() {
            let (before, after) = claims.split_at_mut(index);
            let same = before.iter().position(|other| other.asks_as(after[0]));
            if let Some(same) = same {
                let (ask, other) = (&mut before[same].ask, after[0].ask);
                if is_stricter(other.algorithm, ask.algorithm) {
                    ask.algorithm = other.algorithm;
                }
                // The window beside the limit of another plan does not enforce.
                if other.mode == Mode::Enforce {
                    ask.mode = Mode::Enforce;
                }
                let both = [*ask, other].into_iter().filter(|ask| ask.takes);
                let cost = both.map(|ask| ask.cost.get()).sum::<u64>();
                ask.takes |= other.takes;
                match Cost::new(cost.max(1)) {
                    Some(cost) => ask.cost = cost,
                    // No bucket ever holds so many tokens.
                    None => before[same].refuse(None),
                }
            }
            asked_at.push(same.unwrap_or(index));
        }
        if claims.iter().any(|claim| claim.decision().is_some()) {
            claims.iter_mut().for_each(|claim| only_peek(claim));
        }
        let asked = claims.iter_mut().enumerate();
        let asked =
            asked.filter(|(index, claim)| asked_at[*index] == *index && claim.decision().is_none());
        let mut asked: PerAsk<_> = asked.map(|(_, claim)| &mut **claim).collect();
        let taken = self.take(&mut asked, reading).await?;
        drop(asked);
        for (index, asked_at) in asked_at.into_iter().enumerate() {
            let (before, after) = claims.split_at_mut(index);
            if let Some(asked) = before.get(asked_at) {
                after[0].decide_as(asked);
            }
        }
        Ok(taken)
    }
}

/// Notes which rejections must not count towards a ban: the call counts as one rejection of each key.
fn note_repeated(opens: &mut [&mut OpenDecision<'_>]) {
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

/// Whether `one` is stricter than `other` for the same bucket. The smaller size is stricter. If the sizes are equal,
/// the slower rate is.
fn is_stricter(one: Algorithm, other: Algorithm) -> bool {
    let [one, other] = [one, other].map(|it| (it.capacity(), it.per_second()));
    one < other
}
