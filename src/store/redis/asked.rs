//! A question for which somebody waits, and what is done where nobody does any more.

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::call::{Reply, Said, Verb};
use super::queue::Awaited;
use super::{BucketAsk, PerAsk, Redis, StoreError};
use crate::limit::algorithm::{Algorithm, Difference, Receipt};
use crate::limit::decide::{Ask, Refusers};
use crate::limit::time::Timestamp;

/// A request's question to Redis. Dropped before it is answered, because its client has left, it leaves a
/// task behind that hears the answer and gives back what was taken.
pub(super) struct Asked<'q> {
    redis: &'q Redis,
    asks: &'q [&'q BucketAsk<'q>],
    /// `None` once it has been answered.
    awaited: Option<Awaited>,
}

impl<'q> Asked<'q> {
    /// What `asks` may take is asked for by the call that is awaited.
    pub(super) fn new(redis: &'q Redis, asks: &'q [&'q BucketAsk<'q>], awaited: Awaited) -> Self {
        Self { redis, asks, awaited: Some(awaited) }
    }

    /// What is said to it.
    pub(super) async fn answer(mut self) -> Result<Reply, StoreError> {
        let Some(awaited) = &mut self.awaited else { return Err(StoreError::Nonsense) };
        let said = awaited.answer().await;
        self.awaited = None;
        said
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        // Without a runtime the worker has ended, and with it its connection.
        let (Some(mut awaited), Ok(runtime)) = (self.awaited.take(), Handle::try_current()) else {
            return;
        };
        let named = |ask: &&BucketAsk<'_>| {
            let mut name = Vec::new();
            self.redis.write_name(ask, &mut name);
            (Ask { patience: ask.spec.wait, ..ask.ask }, name)
        };
        let asked: Vec<(Ask, Vec<u8>)> = self.asks.iter().map(named).collect();
        let (teller, timeout) = (self.redis.queue.teller(), self.redis.shared.timeout());
        // Who waits until Redis was told of everything waits for this, too.
        let counted = teller.about_to();
        runtime.spawn(async move {
            let _counted = counted;
            let Ok(reply) = awaited.answer().await else { return };
            for (place, ask, name) in taken(&asked, &reply.said) {
                let Some(receipt) = receipt(&reply, place, ask) else { continue };
                let less = Verb::Settle(Difference::Less(ask.cost.get()), receipt);
                teller.tell(Instant::now() + timeout, None, |call| {
                    call.ask(less, ask, |key| key.extend_from_slice(name));
                });
            }
        });
    }
}

/// What was noted of the ask at this place. Where nobody had asked for that, a token bucket has back what
/// was taken a moment ago; which window it was, or which entry, is not known.
fn receipt(reply: &Reply, place: usize, ask: &Ask) -> Option<Receipt> {
    match ask.algorithm {
        Algorithm::TokenBucket(_) if reply.receipts.is_empty() => {
            Some(Receipt::new(Timestamp::MAX))
        }
        _ => reply.receipts.get(place).copied(),
    }
}

/// Those of a request's asks that have taken, with their places, but for slots, which are given back by
/// their names.
fn taken<'a, N>(
    asked: &'a [(Ask, N)],
    said: &'a [Said],
) -> impl Iterator<Item = (usize, &'a Ask, &'a N)> {
    let outcome = |said: &Said| match said {
        Said::Decided(decision) => Some(decision.outcome),
        Said::WrongType => None,
    };
    let outcomes: Option<PerAsk<_>> = said.iter().map(outcome).collect();
    // Where one of them is of another type nothing was taken.
    let outcomes = outcomes.unwrap_or_default();
    let modes = asked.iter().zip(&outcomes).enumerate();
    let refusers =
        Refusers::of(modes.map(|(place, ((ask, _), outcome))| (place, ask.mode, *outcome)));
    asked.iter().zip(outcomes).enumerate().filter_map(move |(place, ((ask, name), outcome))| {
        let took = outcome.passes() && refusers.let_take(place, ask.mode);
        let is_slot = matches!(ask.algorithm, Algorithm::Concurrency(_));
        (took && !is_slot).then_some((place, ask, name))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limit::Mode;
    use crate::limit::algorithm::token_bucket::Params;
    use crate::limit::decision::{Decision, Outcome};
    use crate::limit::patience::Patience;
    use crate::limit::rate::{Burst, Cost};

    #[test]
    fn what_was_taken_is_known_by_what_was_said() {
        use Mode::{Candidate, Enforce, Shadow};
        let (rate, burst) = ("1/s".parse().unwrap(), Burst::new(5).unwrap());
        let algorithm = Algorithm::TokenBucket(Params { rate, burst });
        let (cost, patience) = (Cost::ONE, Patience::NONE);
        let decided = |outcome| Said::Decided(Decision { outcome, remaining: 0 });
        let allow = decided(Outcome::Allow);
        let delay = decided(Outcome::Delay(Duration::from_secs(1)));
        let reject = decided(Outcome::Reject { retry_after: None });
        for (name, modes, said, expected) in [
            ("all pass", &[Enforce, Shadow][..], &[allow, delay][..], &[0, 1][..]),
            ("a shadow refuses", &[Enforce, Shadow], &[delay, reject], &[0]),
            ("one refuses", &[Enforce, Enforce, Shadow], &[allow, reject, allow], &[]),
            ("one stands in", &[Enforce, Enforce, Candidate], &[allow, reject, allow], &[2]),
            ("of another type", &[Enforce, Enforce], &[allow, Said::WrongType], &[]),
        ] {
            let ask = |mode: &Mode| Ask { algorithm, cost, patience, mode: *mode };
            let asked: Vec<_> =
                modes.iter().enumerate().map(|(place, mode)| (ask(mode), place)).collect();
            let places: Vec<usize> = taken(&asked, said).map(|(_, _, place)| *place).collect();
            assert_eq!(places, expected, "{name}");
        }
    }
}
