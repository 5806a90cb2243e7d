//! Bans: overrides of `0/s` that this process sets itself, for keys that limits with `ban` reject often.
//!
//! `throttle` reports each rejection by such a limit. A sliding log for each key counts them, in a table that only
//! these rejections touch. A ban holds in this process at once. If limits live in Redis, `script::overrides` sends the
//! ban to Redis within a second, and the other processes read it there. While Redis is away, the ban holds here alone.
//! It is sent to Redis when Redis is back.
//!
//! A ban never replaces another override of its key: neither an operator's, nor a ban by another process.

use std::sync::Arc;

use super::entry::{MOST_RUNNING, OverrideId, RunningOverride};
use crate::limit::bucket::ReceiptUse;
use crate::limit::decide::Ask;
use crate::limit::decision::{Decision, Outcome};
use crate::limit::memory::Memory;
use crate::limit::time::{Now, Timestamp};
use crate::settings::{BanSpec, LimitSpec, WantedFigures};
use crate::store::bucket::BucketAsk;
use crate::store::name::{BucketKey, stored_key};

/// The most keys whose rejections are counted at once. If one more key is rejected, the key goes that is furthest from
/// a ban. So a flood of new keys cannot hide a key that is rejected again and again.
pub(super) const MOST_COUNTED: usize = 10_000;

/// The most rejections that are remembered at once. Each takes 16 bytes.
const MOST_REMEMBERED: u64 = 1_000_000;

/// A key is banned only while fewer overrides than this run. So bans leave room for operators.
pub(in crate::store) const MOST_BANNED: usize = MOST_RUNNING - 100;

/// The reason that operators see in lists.
const REASON: &str = "banned";

/// How often each key was rejected lately by limits with `ban`.
pub(super) struct RejectionCounts(Memory);

impl Default for RejectionCounts {
    fn default() -> Self {
        Self(Memory::new(MOST_COUNTED))
    }
}

impl RejectionCounts {
    /// Counts fewer keys if a ban of these limits asks for many rejections.
    pub(super) fn bound(&self, limits: &[Arc<LimitSpec>]) {
        let bans = limits.iter().filter_map(|spec| spec.ban.as_ref());
        let most = bans.map(|ban| ban.rejections.capacity()).max().unwrap_or(1).max(1);
        let keys = usize::try_from(MOST_REMEMBERED / most).unwrap_or(MOST_COUNTED);
        self.0.set_max_keys(keys.min(MOST_COUNTED));
    }

    /// Counts a rejection of this key. Returns whether it is the one that leads to a ban.
    pub(super) fn count(&self, spec: &LimitSpec, key: &BucketKey, now: Now) -> bool {
        let Some(ban) = &spec.ban else { return false };
        let ask = BucketAsk { spec, key, ask: Ask::for_one(ban.rejections) };
        let answer = self.0.take_one(&ask.keyed(), ReceiptUse::Unneeded, now);
        let last = Decision { outcome: Outcome::Allow, remaining: 0 };
        answer.is_some_and(|(answer, _)| answer.decision == last)
    }

    /// The count for the key with this stored text begins anew.
    pub(super) fn forget(&self, spec: &LimitSpec, key: &str) {
        if let (Some(ban), Some(key)) = (&spec.ban, stored_key(key).map(BucketKey::from)) {
            let ask = BucketAsk { spec, key: &key, ask: Ask::for_one(ban.rejections) };
            self.0.forget(&ask.keyed());
        }
    }

    /// Forgets counts that are over.
    pub(super) fn sweep(&self, now: Now) {
        self.0.sweep(now);
    }

    #[cfg(test)]
    pub(super) fn keys(&self) -> usize {
        self.0.keys()
    }
}

/// The override that bans a key with `ban` from the time of day `wall` on.
pub(super) fn banned(
    spec: &LimitSpec,
    ban: &BanSpec,
    (limit, key): OverrideId,
    wall: Timestamp,
) -> RunningOverride {
    RunningOverride {
        limit,
        key,
        sources: spec.key.parts_text(),
        wanted: WantedFigures { rate: "0/s".to_owned(), ..WantedFigures::default() },
        reason: Some(REASON.to_owned()),
        ends: Some(wall.plus(ban.lasts)),
        is_ban: true,
    }
}
