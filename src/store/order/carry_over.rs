//! Copies the state that Redis reports about a bucket into a bucket of this process. While Redis is away, the process
//! decides by its own buckets. Without the copy these buckets would begin full. `order` calls this file.

use std::sync::atomic::Ordering;

use crate::limit::algorithm::Algorithm;
use crate::limit::decide::Ask;
use crate::limit::decision::Decision;
use crate::limit::time::Timestamp;
use crate::plan::OnStoreError;
use crate::store::bucket::{BucketAsk, LimiterFigures};
use crate::store::claim::{Claim, Decider};
use crate::store::process::ProcessStore;

/// Writes what Redis has decided on these claims.
pub(super) fn note(shared: &ProcessStore, claims: &[&mut Claim<'_>], now: Timestamp) {
    for claim in claims {
        let Some(Decision { remaining, .. }) = claim.decision() else { continue };
        let capacity = match (claim.decider(), &claim.ask.algorithm) {
            // Only Redis knows the times of a list's entries and the holders of slots.
            (Some(Decider::Redis), Algorithm::SlidingLog(_) | Algorithm::Concurrency(_)) => {
                continue;
            }
            (Some(Decider::Redis), algorithm) => algorithm.capacity(),
            (Some(Decider::Limiter(LimiterFigures { capacity, .. })), _) => capacity,
            _ => continue,
        };
        let used = capacity.saturating_sub(remaining);
        write_share(shared, &claim.question(), used, capacity, now);
    }
}

/// Writes this process's share of what is used of a bucket that holds `capacity` tokens in Redis.
fn write_share(
    shared: &ProcessStore,
    ask: &BucketAsk<'_>,
    used: u64,
    capacity: u64,
    now: Timestamp,
) {
    let cost = ask.ask.cost;
    // A bucket that only this request has used would cost memory and say little.
    if ask.spec.on_store_error != OnStoreError::Local || used <= cost.get() {
        return;
    }
    let share = ask.ask.algorithm.share(shared.processes.load(Ordering::Relaxed), cost);
    let used = u128::from(used) * u128::from(share.capacity());
    let used = u64::try_from(used.div_ceil(u128::from(capacity.max(1)))).unwrap_or(u64::MAX);
    let ask = BucketAsk { ask: Ask { algorithm: share, ..ask.ask }, ..*ask };
    shared.memory.write_used(&ask, used, shared.wall.both(now));
}
