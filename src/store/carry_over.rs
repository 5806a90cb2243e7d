//! Copies what Redis says of a bucket into a bucket of this process. While Redis is away, the process decides
//! by its own buckets. Because of the copy these buckets do not begin full. `outage` and `prefetch` call
//! this file.

use std::sync::atomic::Ordering;

use super::claim::{BucketAsk, Claim, LimiterFigures, Party};
use super::process::ProcessStore;
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::Ask;
use crate::limit::decision::Decision;
use crate::limit::time::Timestamp;
use crate::plan::OnStoreError;

/// Writes what Redis has decided on these claims.
pub(super) fn note(shared: &ProcessStore, claims: &[&mut Claim<'_>], now: Timestamp) {
    for claim in claims {
        let Some(Decision { remaining, .. }) = claim.decision else { continue };
        match (claim.party, claim.figures) {
            (Party::Redis, _) => write_known(shared, &claim.question(), remaining, now),
            (Party::Limiter, Some(LimiterFigures { capacity, .. })) => {
                let used = capacity.saturating_sub(remaining);
                write_share(shared, &claim.question(), used, capacity, now);
            }
            _ => {}
        }
    }
}

/// Notes that this many tokens remain in Redis. If the limit's `on_store_error` is `local`, the bucket of this
/// process gets this process's share of the used tokens.
pub(super) fn write_known(
    shared: &ProcessStore,
    ask: &BucketAsk<'_>,
    remaining: u64,
    now: Timestamp,
) {
    let Ask { algorithm, cost, .. } = ask.ask;
    // Only Redis knows the times of a list's entries and the holders of slots.
    let is_list = matches!(algorithm, Algorithm::SlidingLog(_) | Algorithm::Concurrency(_));
    let used = shared.asked(ask.spec, &ask.ask).algorithm.capacity().saturating_sub(remaining);
    if !is_list && used > cost.get() {
        // The reserve (see `reserve`) counts as used.
        let capacity = algorithm.capacity();
        write_share(shared, ask, capacity.saturating_sub(remaining), capacity, now);
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
