//! What `prefetch` may hold: the part of a burst that is set aside, and whether all processes know of each other.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::limit::Mode;
use crate::limit::algorithm::{Algorithm, token_bucket};
use crate::limit::decide::Ask;
use crate::limit::rate::Burst;
use crate::limit::waiting::MaxWait;
use crate::plan::{CostSpec, LimitSpec};

/// The smallest batch. A smaller one saves too few questions.
pub(super) const SMALLEST: u64 = 8;

/// One part in this many of a burst is the reserve.
const RESERVE: u64 = 8;

/// A process that died counts for this long in Redis, and as long again in each process.
pub(super) const LEASE: Duration = Duration::from_secs(10);

/// A process must be announced for this long before it fetches: longer than an announcement lasts.
const SETTLED: Duration = Duration::from_secs(12);

/// The last announcement must not be older than this.
const FRESH: Duration = Duration::from_secs(3);

/// Without an announcement for this long, the process is new again.
const GAP: Duration = Duration::from_secs(5);

/// Nothing is set aside of a smaller burst: no worker could ever fetch a batch.
const SMALLEST_BURST: u64 = RESERVE * SMALLEST;

/// When this process was announced in Redis.
#[derive(Default)]
pub(super) struct Presence(Mutex<Option<(Instant, Instant)>>);

impl Presence {
    /// The process was announced by a call that was sent at this time.
    pub(super) fn note(&self, sent: Instant) {
        let mut span = self.0.lock();
        let first = span.filter(|(_, last)| sent.duration_since(*last) < GAP);
        *span = Some((first.map_or(sent, |(first, _)| first), sent));
    }

    /// Whether every other process that shares Redis has counted this one.
    pub(super) fn is_settled(&self, now: Instant) -> bool {
        self.0.lock().is_some_and(|(first, last)| {
            now.duration_since(first) >= SETTLED && now.duration_since(last) <= FRESH
        })
    }
}

/// How many tokens are set aside of a bucket with these figures. Nothing where no batches can be taken from it.
pub(super) fn reserve(spec: &LimitSpec, ask: &Ask) -> u64 {
    match ask.algorithm {
        Algorithm::TokenBucket(params)
            if ask.mode == Mode::Enforce
                && spec.wait == MaxWait::NONE
                && !spec.is_settled()
                && params.burst.get() >= SMALLEST_BURST =>
        {
            let (burst, reserve) = (params.burst.get(), params.burst.get() / RESERVE);
            // A request that needs nearly the whole burst must be able to pass.
            match spec.cost {
                CostSpec::Fixed(cost) if cost.get() <= burst - reserve => reserve,
                _ => 0,
            }
        }
        _ => 0,
    }
}

/// The ask as Redis decides on it: without the reserve, where tokens are fetched.
pub(super) fn without_reserve(spec: &LimitSpec, ask: &Ask) -> Ask {
    let reserve = reserve(spec, ask);
    match ask.algorithm {
        Algorithm::TokenBucket(token_bucket::Params { rate, burst }) if reserve > 0 => {
            let burst = Burst::new(burst.get() - reserve).unwrap_or(burst);
            let algorithm = Algorithm::TokenBucket(token_bucket::Params { rate, burst });
            Ask { algorithm, ..*ask }
        }
        _ => *ask,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    /// Announces the process each second, this many times.
    async fn announce(presence: &Presence, times: u32) {
        for _ in 0..times {
            presence.note(Instant::now());
            advance(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_is_settled_after_twelve_seconds_without_a_gap() {
        let presence = Presence::default();
        assert!(!presence.is_settled(Instant::now()), "it was never announced");
        announce(&presence, 11).await;
        assert!(!presence.is_settled(Instant::now()));
        announce(&presence, 2).await;
        assert!(presence.is_settled(Instant::now()));
        advance(FRESH).await;
        assert!(!presence.is_settled(Instant::now()), "the last announcement is too old");
        announce(&presence, 1).await;
        assert!(presence.is_settled(Instant::now()), "a short gap");
        advance(GAP).await;
        announce(&presence, 1).await;
        assert!(!presence.is_settled(Instant::now()), "the others may have forgotten it");
    }
}
