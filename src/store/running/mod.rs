//! Overrides that are set while the process runs: other figures for one key of a limit, for a time. Operators set them,
//! and limits with `ban` (`bans`).
//!
//! If limits live in Redis, the overrides do too. `script::overrides` reads them about twice a second, and
//! [`RunningOverrides`] has what was read last. While Redis is away they stay in force until they end. A
//! process without Redis has its own overrides.
//!
//! An override is kept as the operator wrote it. The limit that is in force makes the figures from it. After a reload
//! that removes the limit or changes its key, the override has no effect, and is still listed.

mod bans;
mod entry;
mod table;

use std::collections::BTreeMap;
use std::mem::replace;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

pub(super) use self::bans::MOST_BANNED;
use self::bans::{BanCounts, RejectionCounts, banned};
use self::entry::OverrideId;
pub(super) use self::entry::{KnownOverride, ReadOverrides};
pub(crate) use self::entry::{ListedOverride, MOST_RUNNING, RunningOverride, sources};
pub(super) use self::table::{RunningFigures, RunningTable};
use crate::limit::name::Name;
use crate::limit::time::{Now, Timestamp};
use crate::observe::events::{self, OverrideEvent};
use crate::plan::LimitSpec;
use crate::store::name::{BucketKey, kept};

/// How late an answer of Redis may arrive after a newer one, in microseconds.
const LATE: u64 = 2_000_000;

/// A process ends an override a little early: it counts the time from before its question to Redis. This much later,
/// the override has ended by Redis's clock too.
const SURELY_ENDED: Duration = Duration::from_secs(1);

/// The overrides that run, as all workers of a process see them.
#[derive(Default)]
pub(super) struct RunningOverrides {
    /// The number of the present table. 0 if no override is in force: then a request only reads this number.
    version: AtomicU64,
    /// Whether an override was ever in force here.
    were_any: AtomicBool,
    /// The generation of known refusals. A reload, and any process that resets a bucket or changes an override, begins
    /// a new one. Then known refusals end. A ban begins none: while it runs nobody asks the key's bucket, and what the
    /// bucket refused before stays true.
    generation: AtomicU64,
    /// The rejections that may lead to bans.
    rejections: RejectionCounts,
    /// Locked while bans are on their way to Redis, so that none arrives after an operator has ended it.
    pub(super) sending: tokio::sync::Mutex<()>,
    state: Mutex<RunningState>,
}

#[derive(Default)]
struct RunningState {
    limits: BTreeMap<Name, Arc<LimitSpec>>,
    known: BTreeMap<OverrideId, KnownOverride>,
    /// The overrides that are in force, as they were logged.
    in_force: BTreeMap<OverrideId, Arc<RunningOverride>>,
    table: Arc<RunningTable>,
    /// The number of the last table.
    tables: u64,
    /// When the overrides were read last, by Redis's clock, and their generation there.
    read: Option<(Timestamp, u64)>,
    /// The generation in Redis of the last change that was no ban.
    told: u64,
    /// When an override first ended by its time, after Redis was last read.
    ended: Option<Instant>,
    /// The bans in `known`.
    running_bans: BanCounts,
    /// Whether there was no room for the last ban.
    is_full: bool,
    /// The number of bans by this process since the start, by limit.
    bans: BTreeMap<Name, u64>,
}

impl RunningState {
    /// The generation in Redis that was read last. Without overrides it is 0, and nothing need be read.
    fn generation(&self) -> u64 {
        self.read.map_or(0, |(_, generation)| generation)
    }

    /// Whether there is no room for another ban of this limit for a key of this client. Its bans, and once more those
    /// for this client, must be fewer than the places left. So no limit takes more than half of the places and no client
    /// more than a third, and there is room for the next one: keys can be invented.
    fn has_no_room(&mut self, limit: &str, client: IpAddr) -> bool {
        let left = MOST_BANNED.saturating_sub(self.known.len());
        let is_full = self.running_bans.weight(limit, client) >= left;
        let was_full = replace(&mut self.is_full, is_full);
        if self.is_full && !was_full {
            events::bans_full(limit, MOST_BANNED);
        }
        self.is_full
    }

    /// Logs and counts a ban by this process.
    fn log_ban(&mut self, RunningOverride { limit, key, .. }: &RunningOverride) {
        if let Some(spec) = self.limits.get(limit.as_str())
            && let Some(ban) = &spec.ban
        {
            events::banned(limit, key, ban.rejections.capacity(), ban.lasts);
            *self.bans.entry(spec.name.clone()).or_default() += 1;
        }
    }
}

fn event(entry: &RunningOverride) -> OverrideEvent<'_> {
    let RunningOverride { limit, key, wanted, reason, ends, .. } = entry;
    OverrideEvent { limit, key, wanted, reason: reason.as_deref(), until: *ends }
}

impl RunningOverrides {
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn were_any(&self) -> bool {
        self.were_any.load(Ordering::Relaxed)
    }

    /// The present table with its number.
    pub(super) fn table(&self) -> (u64, Arc<RunningTable>) {
        let state = self.state.lock();
        (self.version(), Arc::clone(&state.table))
    }

    /// The generation of known refusals.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Ends all known refusals of this process.
    pub(super) fn begin_generation(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes over the limits that are in force.
    pub(super) fn put_limits(&self, limits: &[Arc<LimitSpec>]) {
        self.rejections.bound(limits);
        let named = limits.iter().map(|spec| (spec.name.clone(), Arc::clone(spec)));
        let mut state = self.state.lock();
        state.limits = named.collect();
        if !state.known.is_empty() {
            // The table is built again because it has the limits too: each override stands under the limit of its plan.
            self.publish(&mut state, true);
        }
    }

    /// Whether the overrides of this generation in Redis were read.
    pub(super) fn has_read(&self, generation: u64) -> bool {
        self.state.lock().generation() == generation
    }

    /// Whether an override has ended by its time, and Redis was not read since then. The next reading removes it from
    /// Redis. Otherwise it would be in force again if Redis's clock stepped back.
    pub(super) fn has_unread_end(&self) -> bool {
        self.state.lock().ended.is_some_and(|ended| ended.elapsed() >= SURELY_ENDED)
    }

    /// Takes over what Redis has. `asked` is when the question was sent. An answer that was read earlier than
    /// the present overrides is ignored.
    pub(super) fn read(&self, read: ReadOverrides, asked: Instant) {
        let mut state = self.state.lock();
        // If Redis's clock was set back by more than `LATE`, the answer counts. Otherwise no new override would count.
        if state.read.is_some_and(|(last, _)| (1..LATE).contains(&last.micros_since(read.at))) {
            return;
        }
        let is_same = state.read.is_some_and(|(_, generation)| generation == read.generation);
        if state.told != read.told {
            self.begin_generation();
        }
        (state.read, state.told) = (Some((read.at, read.generation)), read.told);
        state.ended = None;
        let before = std::mem::take(&mut state.known);
        for entry in read.entries {
            let (id, entry) = (entry.id(), Arc::new(entry));
            let ends = match before.get(&id) {
                // Two readings may give slightly different ends for one override. The first end is kept, so the
                // table stays as it is.
                Some(before) if before.entry == entry => before.ends,
                // Nobody has changed it. Redis has another end because its clock has stepped back.
                Some(before) if is_same => {
                    if let Some(logged) = state.in_force.get_mut(&id) {
                        *logged = Arc::clone(&entry);
                    }
                    before.ends
                }
                // The override has ended here. Redis's clock is late, or has stepped back.
                None if is_same => continue,
                _ => {
                    let left = |ends: Timestamp| Duration::from_micros(ends.micros_since(read.at));
                    entry.ends.map(|ends| asked + left(ends))
                }
            };
            let client = before.get(&id).and_then(|before| before.client);
            let known = KnownOverride { entry, ends, client, is_here: false, is_unlogged: false };
            state.known.insert(id, known);
        }
        for (id, known) in before.into_iter().filter(|(_, known)| known.is_here) {
            state.known.entry(id).or_insert(known);
        }
        self.publish(&mut state, false);
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
        let key = BucketKey::from(kept(key.shown()).into_owned());
        if !self.rejections.count(spec, &key, now) {
            return;
        }
        let mut state = self.state.lock();
        let id = (spec.name.as_str().to_owned(), key.shown().as_str().to_owned());
        if state.known.get(&id).is_some_and(|known| !known.is_over(Instant::now())) {
            return;
        }
        let Some(ban) = &spec.ban else { return };
        if state.has_no_room(&id.0, client) {
            return;
        }
        let entry = banned(spec, ban, id.clone(), now.wall);
        let ends = Some(Instant::now() + ban.lasts);
        // If another process has banned the key already, Redis says so. That ban has its line in the log.
        if !is_shared {
            state.log_ban(&entry);
        }
        let client = Some(client);
        let known = KnownOverride { entry, ends, client, is_here: true, is_unlogged: is_shared };
        self.add_ban(&mut state, id, known);
    }

    /// Puts one more ban in force, which costs the same however many overrides there are.
    fn add_ban(&self, state: &mut RunningState, id: OverrideId, ban: KnownOverride) {
        let (spec, replaced) = (state.limits.get(id.0.as_str()), state.known.contains_key(&id));
        let Some(spec) = spec.filter(|_| !replaced) else {
            state.known.insert(id, ban);
            return self.publish(state, false);
        };
        if let Some(figures) = ban.entry.figures(spec) {
            self.rejections.forget(spec, &id.1);
            state.table.add(spec, &ban, figures);
            state.in_force.insert(id.clone(), Arc::clone(&ban.entry));
            self.were_any.store(true, Ordering::Relaxed);
            if self.version() == 0 {
                state.tables += 1;
                self.version.store(state.tables, Ordering::Release);
            }
        }
        state.running_bans.add(&ban);
        state.known.insert(id, ban);
    }

    /// The bans that are still to be sent to Redis.
    pub(super) fn unsent_bans(&self) -> Vec<KnownOverride> {
        self.state.lock().known.values().filter(|known| known.is_here).cloned().collect()
    }

    /// A ban was sent to Redis. `done` says whether Redis has set it: it does not if the key has an override.
    pub(super) fn note_sent(&self, ban: &KnownOverride, done: bool) {
        let mut state = self.state.lock();
        if let Some(known) = state.known.get_mut(&ban.entry.id()) {
            (known.is_here, known.is_unlogged) = (false, false);
        }
        if done && ban.is_unlogged {
            state.log_ban(&ban.entry);
        }
    }

    /// The bans cannot be sent to Redis now. They hold here, so they are logged.
    pub(super) fn log_unsent(&self) {
        let mut state = self.state.lock();
        let unlogged = state.known.values_mut().filter(|known| known.is_unlogged);
        let log = |known: &mut KnownOverride| {
            known.is_unlogged = false;
            Arc::clone(&known.entry)
        };
        let unlogged: Vec<_> = unlogged.map(log).collect();
        unlogged.iter().for_each(|entry| state.log_ban(entry));
    }

    /// The bans by this process since its start.
    pub(super) fn bans(&self, limit: &Name) -> u64 {
        self.state.lock().bans.get(limit).copied().unwrap_or_default()
    }

    /// Forgets counts of rejections that are over. To be called about once a second.
    pub(super) fn sweep(&self, now: Now) {
        self.rejections.sweep(now);
    }

    /// Sets an override in this process alone. Returns whether there was room for it.
    pub(super) fn set_here(&self, entry: RunningOverride, lasts: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        let id = entry.id();
        if state.known.len() >= MOST_RUNNING && !state.known.contains_key(&id) {
            return false;
        }
        let ends = lasts.map(|lasts| Instant::now() + lasts);
        let entry = Arc::new(entry);
        let known = KnownOverride { entry, ends, client: None, is_here: true, is_unlogged: false };
        state.known.insert(id, known);
        self.publish(&mut state, false);
        true
    }

    /// Ends an override of this process alone. Returns whether there was one.
    pub(super) fn end_here(&self, limit: &str, key: &str) -> bool {
        let mut state = self.state.lock();
        let id = (limit.to_owned(), key.to_owned());
        if !state.known.get(&id).is_some_and(|known| known.is_here) {
            return false;
        }
        if let Some(known) = state.known.remove(&id).filter(|known| known.is_unlogged) {
            state.log_ban(&known.entry);
        }
        self.publish(&mut state, false);
        true
    }

    /// Ends the overrides whose time is over. To be called about once a second.
    pub(super) fn end_expired(&self) {
        let mut state = self.state.lock();
        let now = Instant::now();
        if state.known.values().any(|known| known.is_over(now)) {
            self.publish(&mut state, false);
        }
    }

    /// All overrides, by limit and key.
    pub(super) fn list(&self) -> Vec<ListedOverride> {
        let state = self.state.lock();
        let listed = |(id, known): (&OverrideId, &KnownOverride)| ListedOverride {
            entry: Arc::clone(&known.entry),
            is_in_force: state.in_force.contains_key(id),
            left: known.left(),
        };
        state.known.iter().map(listed).collect()
    }

    /// Builds the table again, if an override has changed or `anew` is set. Logs each override that begins or ends.
    fn publish(&self, state: &mut RunningState, anew: bool) {
        let now = Instant::now();
        let table = RunningTable::default();
        let mut in_force = BTreeMap::new();
        for (id, known) in state.known.iter().filter(|(_, known)| !known.is_over(now)) {
            let Some(spec) = state.limits.get(id.0.as_str()) else { continue };
            let Some(figures) = known.entry.figures(spec) else { continue };
            let cost = spec.cost.default_cost();
            let capacity = figures.capacity().filter(|capacity| *capacity < cost.get());
            let is_new = anew || state.in_force.get(id) != Some(&known.entry);
            if let Some(capacity) = capacity.filter(|_| is_new) {
                events::override_too_small(&event(&known.entry), capacity, cost);
            }
            table.add(spec, known, figures);
            in_force.insert(id.clone(), Arc::clone(&known.entry));
        }
        let is_same = state.in_force == in_force;
        let mut changes_bans_alone = !anew;
        for (id, entry) in &state.in_force {
            if in_force.get(id) != Some(entry) {
                changes_bans_alone &= entry.is_ban;
            }
            if !in_force.contains_key(id) {
                events::override_ended(&event(entry));
            }
        }
        for (id, entry) in &in_force {
            if state.in_force.get(id) == Some(entry) {
                continue;
            }
            changes_bans_alone &= entry.is_ban;
            match state.limits.get(id.0.as_str()).filter(|_| entry.is_ban) {
                // The process that bans a key logs it. The rejections before the ban lead to no other ban.
                Some(spec) => self.rejections.forget(spec, &id.1),
                None => events::override_set(&event(entry)),
            }
        }
        let known = state.known.len();
        state.known.retain(|_, known| !known.is_over(now));
        if state.known.len() < known {
            state.ended.get_or_insert(now);
        }
        state.running_bans = state.known.values().collect();
        if is_same && !anew {
            return;
        }
        state.tables += 1;
        let version = if in_force.is_empty() { 0 } else { state.tables };
        (state.in_force, state.table) = (in_force, Arc::new(table));
        if version > 0 {
            self.were_any.store(true, Ordering::Relaxed);
        }
        self.version.store(version, Ordering::Release);
        if !changes_bans_alone {
            self.begin_generation();
        }
    }
}

#[cfg(test)]
mod ban_tests;
#[cfg(test)]
mod tests;
