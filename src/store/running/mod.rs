//! The figures in force: the limits of the last reload, and the overrides that are set while the process runs. An
//! override is other figures for one key of a limit, for a time. Operators set them, and limits with `ban` (`bans`).
//!
//! If limits live in Redis, the overrides do too. `script::overrides` reads them about twice a second, and
//! [`RunningOverrides`] has what was read last. While Redis is away they stay in force until they end. A
//! process without Redis has its own overrides.
//!
//! An override is kept as the operator wrote it. The limit that is in force makes the figures from it. After a reload
//! that removes the limit or changes its key, the override has no effect, and is still listed.

mod bans;
mod entry;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::replace;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::time::Instant;

pub(super) use self::bans::MOST_BANNED;
use self::bans::{RejectionCounts, banned};
use self::entry::{InForce, OverrideId};
pub(super) use self::entry::{KnownOverride, ReadOverrides};
pub(crate) use self::entry::{ListedOverride, MOST_RUNNING, RunningOverride};
use crate::limit::decide::Ask;
use crate::limit::name::Name;
use crate::limit::rate::Cost;
use crate::limit::time::{Now, Timestamp};
use crate::observe::events::{self, OverrideEvent};
use crate::request::key::ALL_KEYS;
use crate::settings::{CostSpec, LimitSpec, RunningFigures};
use crate::store::bucket::BucketAsk;
use crate::store::name::{BucketKey, bounded, stored_text};

/// How late an answer of Redis may arrive after a newer one, in microseconds.
const LATE: u64 = 2_000_000;

/// A process ends an override a little early: it counts the time from before its question to Redis. This much later,
/// the override has ended by Redis's clock too.
const SURELY_ENDED: Duration = Duration::from_secs(1);

/// The overrides that run, as all workers of a process see them.
#[derive(Default)]
pub(super) struct RunningOverrides {
    /// The limits of the last reload and their candidates.
    limits: RwLock<HashMap<Name, Arc<LimitSpec>>>,
    /// How many overrides are in force. If there is none, a request reads only this number.
    count: AtomicUsize,
    /// The generation of known refusals. Any process that resets a bucket, or sets or ends an override, begins a new
    /// one. Then known refusals end. A ban begins none: while it runs nobody asks the key's bucket, and what the bucket
    /// refused before stays true.
    generation: AtomicU64,
    /// Whether an override was ever in force here.
    were_any: AtomicBool,
    /// The rejections that may lead to bans.
    rejections: RejectionCounts,
    /// Locked while bans are on their way to Redis, so that none arrives after an operator has ended it.
    pub(super) sending: tokio::sync::Mutex<()>,
    /// This lock is taken before the lock of `limits`.
    state: RwLock<RunningState>,
}

#[derive(Default)]
struct RunningState {
    /// The overrides, by the limit's name and the key's text.
    known: BTreeMap<String, BTreeMap<String, KnownOverride>>,
    /// When the overrides were read last, by Redis's clock, and their generation there.
    read: Option<(Timestamp, u64)>,
    /// The generation in Redis of the last change that was no ban.
    told: u64,
    /// When an override first ended by its time, after Redis was last read.
    ended: Option<Instant>,
    /// Whether there was no room for the last ban.
    is_full: bool,
    /// The number of bans by this process since the start, by limit.
    bans: BTreeMap<Name, u64>,
}

impl RunningState {
    fn all(&self) -> impl Iterator<Item = &KnownOverride> {
        self.known.values().flat_map(BTreeMap::values)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut KnownOverride> {
        self.known.values_mut().flat_map(BTreeMap::values_mut)
    }

    fn get(&self, limit: &str, key: &str) -> Option<&KnownOverride> {
        self.known.get(limit)?.get(key)
    }

    fn get_mut(&mut self, (limit, key): &OverrideId) -> Option<&mut KnownOverride> {
        self.known.get_mut(limit)?.get_mut(key)
    }

    /// Whether there is no room for another ban of this limit for a key of this client. Its bans, and once more those
    /// for this client, must be fewer than the places left. So no limit takes more than half of the places and no client
    /// more than a third, and there is room for the next one: keys can be invented.
    fn has_no_room(&mut self, limit: &str, client: IpAddr) -> bool {
        let bans = self.all().filter(|it| it.entry.is_ban && it.entry.limit == limit);
        let weights = bans.map(|ban| if ban.client == Some(client) { 2 } else { 1 });
        let is_full = weights.sum::<usize>() >= MOST_BANNED.saturating_sub(self.all().count());
        if is_full && !replace(&mut self.is_full, is_full) {
            events::bans_full(limit, MOST_BANNED);
        }
        self.is_full = is_full;
        is_full
    }
}

fn event(entry: &RunningOverride) -> OverrideEvent<'_> {
    let RunningOverride { limit, wanted, reason, ends, .. } = entry;
    let (key, reason) = (entry.one_key(), reason.as_deref());
    OverrideEvent { limit, key, wanted, reason, until: *ends }
}

impl RunningOverrides {
    /// The figures that were set for this key, or for all keys.
    pub(super) fn find(&self, spec: &LimitSpec, key: &BucketKey) -> Option<RunningFigures> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let state = self.state.read();
        let of_limit = state.known.get(spec.name.as_str())?;
        let running = |key: &str| of_limit.get(key)?.running(spec);
        running(&stored_text(key.shown())).or_else(|| running(ALL_KEYS))
    }

    /// The ask with the figures that are in force now. A settlement must use these: by the figures of its request, the
    /// bucket might refill too fast, or its window might end too early. A client would then get back what it has used.
    /// If the limit, its key or its algorithm has changed, the bucket no longer exists, and the ask stays unchanged.
    pub(super) fn in_force(&self, asked: &BucketAsk<'_>, now: Now) -> Ask {
        let BucketAsk { spec: before, key, ask } = *asked;
        let running = self.find(before, key);
        let limits = self.limits.read();
        let limit = limits.get(&before.name).map_or(before, |spec| &**spec);
        // A request that had the default plan when it took its tokens counts as one that names the plan.
        let in_plan = before.plan.as_ref().and_then(|plan| limit.in_plan(plan, false));
        let spec = in_plan.map_or(limit, |it| &**it.spec);
        let is_same = std::ptr::eq(spec, before) && !self.were_any.load(Ordering::Relaxed);
        if is_same || spec.key.sources != before.key.sources {
            return ask;
        }
        match limit.choose(key.plain(), in_plan, running.as_ref()).figures.at(now) {
            Some(algorithm) if algorithm.number() == ask.algorithm.number() => {
                Ask { algorithm, max_wait: spec.wait, ..ask }
            }
            Some(_) | None => ask,
        }
    }

    /// The generation of known refusals.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Ends all known refusals of this process.
    pub(super) fn begin_generation(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes over the limits that are in force. They make other figures from the overrides' words.
    pub(super) fn put_limits(&self, limits: &[Arc<LimitSpec>]) {
        self.rejections.bound(limits);
        let all = limits.iter().chain(limits.iter().filter_map(|spec| spec.candidate.as_ref()));
        let all = all.map(|spec| (spec.name.clone(), Arc::clone(spec))).collect();
        let state = &mut *self.state.write();
        *self.limits.write() = all;
        let known: Vec<_> = state.all().cloned().collect();
        known.into_iter().for_each(|known| self.put(state, known));
    }

    /// Whether Redis must be read, which has this generation: it is another one than was read last, or an override has
    /// ended by its time since then. The reading removes it from Redis. Otherwise it would be in force again if Redis's
    /// clock stepped back.
    pub(super) fn must_read(&self, generation: u64) -> bool {
        let state = self.state.read();
        // Without overrides the generation is 0, and nothing need be read.
        let read = state.read.map_or(0, |(_, generation)| generation);
        let has_ended = state.ended.is_some_and(|ended| ended.elapsed() >= SURELY_ENDED);
        read != generation || generation > 0 && has_ended
    }

    /// Takes over what Redis has. `asked` is when the question was sent. An answer that was read earlier than
    /// the present overrides is ignored. Overrides of this process alone stay.
    pub(super) fn read(&self, read: ReadOverrides, asked: Instant) {
        let state = &mut *self.state.write();
        // If Redis's clock was set back by more than `LATE`, the answer counts. Otherwise no new override would count.
        if state.read.is_some_and(|(last, _)| (1..LATE).contains(&last.micros_since(read.at))) {
            return;
        }
        let is_same = state.read.is_some_and(|(_, generation)| generation == read.generation);
        if state.told != read.told {
            self.begin_generation();
        }
        (state.read, state.told) = (Some((read.at, read.generation)), read.told);
        let mut gone: BTreeSet<_> = state.all().map(|known| known.entry.id()).collect();
        for entry in read.entries {
            let id = entry.id();
            gone.remove(&id);
            match state.get_mut(&id) {
                // Nobody has changed it. Its first end is kept: another reading may give a slightly different end, and
                // quite another one if Redis's clock has stepped back.
                Some(known) if is_same || *known.entry == entry => {
                    known.entry = Arc::new(entry);
                    (known.is_here, known.is_unlogged) = (false, false);
                }
                // The override has ended here. Redis's clock is late, or has stepped back.
                None if is_same => {}
                before => {
                    let left = |ends: Timestamp| Duration::from_micros(ends.micros_since(read.at));
                    let ends = entry.ends.map(|ends| asked + left(ends));
                    let client = before.and_then(|before| before.client);
                    self.put(state, KnownOverride { client, ..KnownOverride::new(entry, ends) });
                }
            }
        }
        for id in gone {
            if !state.get_mut(&id).is_some_and(|known| known.is_here) {
                self.remove(state, &id);
            }
        }
        self.expire(state);
        state.ended = None;
    }

    /// Counts a rejection of this key by a limit with `ban`, which may ban the key. `client` has sent the request. Redis
    /// is to be told if it `is_shared`.
    pub(super) fn count_rejection(
        &self,
        spec: &Arc<LimitSpec>,
        key: &BucketKey,
        client: IpAddr,
        now: Now,
        is_shared: bool,
    ) {
        let key = BucketKey::from(bounded(key.shown()).into_owned());
        let Some(ban) = spec.ban.as_ref().filter(|_| self.rejections.count(spec, &key, now)) else {
            return;
        };
        let state = &mut *self.state.write();
        let id = (spec.name.as_str().to_owned(), key.shown().as_str().to_owned());
        let is_known = state.get_mut(&id).is_some_and(|known| !known.is_over(Instant::now()));
        if is_known || state.has_no_room(&id.0, client) {
            return;
        }
        let entry = banned(spec, ban, id, now.wall);
        // If another process has banned the key already, Redis says so. That ban has its line in the log.
        if !is_shared {
            self.log_ban(state, &entry);
        }
        let known = KnownOverride::new(entry, Some(Instant::now() + ban.lasts));
        let client = Some(client);
        let known = KnownOverride { client, is_here: true, is_unlogged: is_shared, ..known };
        self.put(state, known);
    }

    /// The bans that are still to be sent to Redis.
    pub(super) fn unsent_bans(&self) -> Vec<KnownOverride> {
        self.state.read().all().filter(|known| known.is_here).cloned().collect()
    }

    /// A ban was sent to Redis. `done` says whether Redis has set it: it does not if the key has an override.
    pub(super) fn note_sent(&self, ban: &KnownOverride, done: bool) {
        let state = &mut *self.state.write();
        if let Some(known) = state.get_mut(&ban.entry.id()) {
            (known.is_here, known.is_unlogged) = (false, false);
        }
        if done && ban.is_unlogged {
            self.log_ban(state, &ban.entry);
        }
    }

    /// The bans cannot be sent to Redis now. They hold here, so they are logged.
    pub(super) fn log_unsent(&self) {
        let state = &mut *self.state.write();
        let log = |known: &mut KnownOverride| {
            replace(&mut known.is_unlogged, false).then(|| Arc::clone(&known.entry))
        };
        let unlogged: Vec<_> = state.all_mut().filter_map(log).collect();
        unlogged.iter().for_each(|entry| self.log_ban(state, entry));
    }

    /// The bans by this process since its start.
    pub(super) fn bans(&self, limit: &Name) -> u64 {
        self.state.read().bans.get(limit).copied().unwrap_or_default()
    }

    /// Sets an override in this process alone. Returns whether there was room for it.
    pub(super) fn set_here(&self, entry: RunningOverride, lasts: Option<Duration>) -> bool {
        let state = &mut *self.state.write();
        let is_known = state.get(&entry.limit, &entry.key).is_some();
        let has_room = is_known || state.all().count() < MOST_RUNNING;
        if has_room {
            let known = KnownOverride::new(entry, lasts.map(|lasts| Instant::now() + lasts));
            self.put(state, KnownOverride { is_here: true, ..known });
        }
        has_room
    }

    /// Ends an override of this process alone. Returns whether there was one.
    pub(super) fn end_here(&self, limit: &str, key: &str) -> bool {
        let state = &mut *self.state.write();
        let id = (limit.to_owned(), key.to_owned());
        if !state.get_mut(&id).is_some_and(|known| known.is_here) {
            return false;
        }
        if let Some(known) = self.remove(state, &id).filter(|known| known.is_unlogged) {
            self.log_ban(state, &known.entry);
        }
        true
    }

    /// Forgets counts of rejections that are over. To be called about once a second.
    pub(super) fn sweep(&self, now: Now) {
        self.rejections.sweep(now);
    }

    /// Ends the overrides whose time is over. To be called about once a second.
    pub(super) fn end_expired(&self) {
        self.expire(&mut self.state.write());
    }

    /// All overrides, by limit and key.
    pub(super) fn list(&self) -> Vec<ListedOverride> {
        self.state.read().all().map(KnownOverride::listed).collect()
    }

    /// The override of this limit for the key with this text.
    pub(super) fn set_for(&self, limit: &str, key: &str) -> Option<ListedOverride> {
        self.state.read().get(limit, key).map(KnownOverride::listed)
    }

    /// Adds an override, and puts it in force if its limit can use it. Logs a new override, and the end of the override
    /// that was in force before.
    fn put(&self, state: &mut RunningState, known: KnownOverride) {
        let ((limit, key), entry) = (known.entry.id(), Arc::clone(&known.entry));
        let limits = self.limits.read();
        let in_force = limits.get(limit.as_str()).and_then(|spec| {
            Some(InForce { figures: entry.figures(spec)?, spec: Arc::clone(spec) })
        });
        let known = KnownOverride { in_force: in_force.clone(), ..known };
        let was = state.known.entry(limit).or_default().insert(key, known);
        self.has_changed(state);
        let was = was.and_then(|was| Some((was.entry, was.in_force?)));
        let Some(InForce { spec, figures }) = in_force else {
            return was.iter().for_each(|(was, _)| events::override_ended(&event(was)));
        };
        self.were_any.store(true, Ordering::Relaxed);
        let dearest = spec.costs().map(CostSpec::default_cost).max();
        let (cost, capacity) = (dearest.unwrap_or(Cost::ONE), figures.capacity());
        let is_new = was.as_ref().is_none_or(|(was, _)| *was != entry);
        if let Some(capacity) = capacity.filter(|capacity| *capacity < cost.get())
            && (is_new || was.as_ref().is_some_and(|(_, was)| !Arc::ptr_eq(&was.spec, &spec)))
        {
            events::override_too_small(&event(&entry), capacity, cost);
        }
        let hides = entry.one_key().is_none().then_some(&spec.figures);
        match hides {
            // The process that bans a key logs it. The rejections before the ban lead to no other ban.
            _ if entry.is_ban => self.rejections.forget(&spec, &entry.key),
            hides if is_new => events::override_set(&event(&entry), hides),
            Some(hides) if was.is_some_and(|(_, was)| was.spec.figures != *hides) => {
                events::override_hides(&event(&entry), hides);
            }
            Some(_) | None => {}
        }
    }

    fn remove(&self, state: &mut RunningState, (limit, key): &OverrideId) -> Option<KnownOverride> {
        let known = state.known.get_mut(limit)?.remove(key)?;
        self.has_changed(state);
        if known.in_force.is_some() {
            events::override_ended(&event(&known.entry));
        }
        Some(known)
    }

    fn has_changed(&self, state: &RunningState) {
        let in_force = state.all().filter(|known| known.in_force.is_some());
        self.count.store(in_force.count(), Ordering::Release);
    }

    fn expire(&self, state: &mut RunningState) {
        let now = Instant::now();
        let over = state.all().filter(|known| known.is_over(now));
        for id in over.map(|known| known.entry.id()).collect::<Vec<_>>() {
            self.remove(state, &id);
            state.ended.get_or_insert(now);
        }
    }

    /// Logs and counts a ban by this process.
    fn log_ban(&self, state: &mut RunningState, entry: &RunningOverride) {
        let RunningOverride { limit, key, .. } = entry;
        if let Some(spec) = self.limits.read().get(limit.as_str())
            && let Some(ban) = &spec.ban
        {
            events::banned(limit, key, ban.rejections.capacity(), ban.lasts);
            *state.bans.entry(spec.name.clone()).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod ban_tests;
#[cfg(test)]
mod figures_tests;
#[cfg(test)]
mod tests;
