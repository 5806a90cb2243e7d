//! Bans: overrides of `0/s` that this process sets itself, for keys that limits with `ban` reject often.
//!
//! `throttle` reports each rejection by such a limit. A sliding log for each key counts them, in a table that only
//! these rejections touch. A ban holds in this process at once. If limits live in Redis, `script::overrides` tells
//! Redis of the ban within a second, and the other processes read it there. While Redis is away, the ban holds here
//! alone, and Redis is told when it is back.
//!
//! A ban never replaces another override of its key: neither an operator's, nor a ban by another process.

use std::collections::BTreeMap;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::entry::{KnownOverride, MOST_RUNNING, OverrideId, RunningOverride, sources};
use crate::limit::decide::Ask;
use crate::limit::decision::{Decision, Outcome};
use crate::limit::name::Name;
use crate::limit::time::{Now, Timestamp};
use crate::observe::events;
use crate::plan::{LimitSpec, WantedFigures};
use crate::store::bucket::{BucketAsk, ReceiptUse};
use crate::store::memory::Memory;
use crate::store::name::{BucketKey, stored_key};

/// The most keys whose rejections are counted at once. If one more key is rejected, the key goes that is furthest from
/// a ban. So a flood of new keys cannot hide a key that is rejected again and again.
pub(super) const MOST_COUNTED: usize = 10_000;

/// A key is banned only while fewer overrides than this run. So bans leave room for operators.
pub(in crate::store) const MOST_BANNED: usize = MOST_RUNNING - 100;

/// The reason that operators see in lists.
const REASON: &str = "banned";

/// How often each key was rejected lately by limits with `ban`.
pub(super) struct RejectionCounts(Memory);

impl Default for RejectionCounts {
    fn default() -> Self {
        Self(Memory::unreported(MOST_COUNTED))
    }
}

impl RejectionCounts {
    /// Counts a rejection of this key. Returns whether it is the one that leads to a ban.
    pub(super) fn count(&self, spec: &LimitSpec, key: &BucketKey, now: Now) -> bool {
        let Some(ban) = &spec.ban else { return false };
        let ask = BucketAsk { spec, key, ask: Ask::for_one(ban.rejections) };
        let answer = self.0.take_one(&ask, ReceiptUse::Unneeded, now);
        let last = Decision { outcome: Outcome::Allow, remaining: 0 };
        answer.is_some_and(|(answer, _)| answer.decision == last)
    }

    /// The count for the key with this stored text begins anew.
    pub(super) fn forget(&self, spec: &LimitSpec, key: &str) {
        if let (Some(ban), Some(key)) = (&spec.ban, stored_key(key)) {
            self.0.forget(&BucketAsk { spec, key: &key, ask: Ask::for_one(ban.rejections) });
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

/// The bans by this process.
#[derive(Default)]
pub(super) struct Bans {
    /// Those of which Redis does not know yet.
    unsent: BTreeMap<OverrideId, UnsentBan>,
    /// Whether there was no room for the last one.
    is_full: bool,
    /// How many there were since the start, by limit.
    counts: BTreeMap<Name, u64>,
}

/// A ban of which Redis does not know yet.
#[derive(Clone)]
pub(in crate::store) struct UnsentBan {
    pub(in crate::store) entry: Arc<RunningOverride>,
    spec: Arc<LimitSpec>,
    ends: Instant,
    is_logged: bool,
}

impl UnsentBan {
    /// How long the ban still lasts.
    pub(in crate::store) fn left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }

    fn known(&self) -> KnownOverride {
        KnownOverride { entry: Arc::clone(&self.entry), ends: Some(self.ends) }
    }

    /// Logs and counts the ban once.
    fn log(&mut self, counts: &mut BTreeMap<Name, u64>) {
        let is_logged = replace(&mut self.is_logged, true);
        if let Some(ban) = self.spec.ban.as_ref().filter(|_| !is_logged) {
            let RunningOverride { limit, key, .. } = &*self.entry;
            events::banned(limit, key, ban.rejections.capacity(), ban.lasts);
            *counts.entry(self.spec.name.clone()).or_default() += 1;
        }
    }
}

impl Bans {
    /// Bans a key at the time of day `wall`, while `running` overrides run. `None` if there is no room. Redis is to be
    /// told if it `is_shared`.
    pub(super) fn begin(
        &mut self,
        spec: &Arc<LimitSpec>,
        id: &OverrideId,
        running: usize,
        wall: Timestamp,
        is_shared: bool,
    ) -> Option<KnownOverride> {
        let lasts = spec.ban.as_ref()?.lasts;
        let was_full = replace(&mut self.is_full, running >= MOST_BANNED);
        if self.is_full {
            if !was_full {
                events::bans_full(&id.0, MOST_BANNED);
            }
            return None;
        }
        let entry = RunningOverride {
            limit: id.0.clone(),
            key: id.1.clone(),
            sources: sources(spec),
            wanted: WantedFigures { rate: "0/s".to_owned(), ..WantedFigures::default() },
            reason: Some(REASON.to_owned()),
            ends: Some(wall.plus(lasts)),
            is_ban: true,
        };
        let (entry, spec, ends) = (Arc::new(entry), Arc::clone(spec), Instant::now() + lasts);
        let mut ban = UnsentBan { entry, spec, ends, is_logged: false };
        let known = ban.known();
        match is_shared {
            // Another process may have banned the key already. Then Redis says so, and this is no new ban.
            true => drop(self.unsent.insert(id.clone(), ban)),
            false => ban.log(&mut self.counts),
        }
        Some(known)
    }

    /// The bans of which Redis is to be told.
    pub(super) fn unsent(&self) -> Vec<UnsentBan> {
        self.unsent.values().cloned().collect()
    }

    /// Adds the bans of which Redis does not know to what was read there.
    pub(super) fn add_unsent(&self, known: &mut BTreeMap<OverrideId, KnownOverride>) {
        for (id, ban) in &self.unsent {
            known.entry(id.clone()).or_insert_with(|| ban.known());
        }
    }

    /// Redis was told of a ban, and has set it if `done`.
    pub(super) fn note_sent(&mut self, id: &OverrideId, done: bool) {
        if let Some(mut ban) = self.unsent.remove(id).filter(|_| done) {
            ban.log(&mut self.counts);
        }
    }

    /// Redis cannot be told of the bans now. They hold here, so they are logged, and those that are over are forgotten.
    pub(super) fn log_unsent(&mut self) {
        self.unsent.values_mut().for_each(|ban| ban.log(&mut self.counts));
        self.unsent.retain(|_, ban| !ban.left().is_zero());
    }

    /// An operator ends a ban of which Redis does not know yet. Returns whether there was one.
    pub(super) fn end_unsent(&mut self, id: &OverrideId) -> bool {
        let Some(mut ban) = self.unsent.remove(id) else { return false };
        ban.log(&mut self.counts);
        true
    }

    pub(super) fn count(&self, limit: &Name) -> u64 {
        self.counts.get(limit).copied().unwrap_or_default()
    }
}
