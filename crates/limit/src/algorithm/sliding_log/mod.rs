//! The sliding log: no interval of the rate's length has more permits than the rate's count, wherever the
//! interval starts. (An interval includes its end and not its beginning.)
//!
//! The list has one entry for each permit: the time at which the permit's request goes. A held request has
//! entries in the future. No request goes before the newest entry. An entry also has the time at which it was
//! made. That time shows whether an entry in the future is a reserved place, or the clock stepped back.
//!
//! [`Log::seen`] reads a [`State`] from the list, [`decide`] says what to add, [`Log::write`] adds it. The
//! twin in `sliding_log.lua` has a sorted set with one member for each permit.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use super::{BucketState, Difference, Settlement, Step, Want};
use crate::rate::{Burst, Cost, Interval, Rate};
use crate::time::{STALE, Timestamp};

/// The largest count of a rate. The bound exists because each permit has an entry.
pub const MOST: u64 = 100_000;

/// The highest cost of a request that the file or a header may name. A request writes an entry for each permit.
pub const MOST_COST: u64 = 32;

/// The most entries that are written or removed at once: for hits that another proxy counts, and for settlements.
pub(crate) const MOST_ENTRIES: u64 = 1_000;

/// The least number of entries that a list may keep beyond its count.
const MOST_BEYOND: u64 = 100;

/// The figures of one sliding log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The permits of an interval, at most [`MOST`].
    pub count: Burst,
    /// The interval's length.
    pub interval: Interval,
}

impl Params {
    /// `None` if the count is above [`MOST`].
    pub fn new(rate: Rate) -> Option<Self> {
        let count = Burst::new(rate.count()).filter(|count| count.get() <= MOST)?;
        Some(Self { count, interval: Interval::from_micros(rate.interval())? })
    }

    /// The most entries that are kept: twice the count. So permits used beyond the count still count when others are
    /// given back. A small count gets more than twice, for held requests.
    fn most(&self) -> u64 {
        self.count.get() + self.count.get().max(MOST_BEYOND)
    }
}

/// The facts about a list that a decision needs. After the decision, also the entries that are to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The time on the clock when the newest entry was made.
    pub(crate) arrived: Timestamp,
    /// The time of the newest entry.
    pub(crate) newest: Timestamp,
    /// The time from which the list has room for the request's cost.
    pub(crate) room_at: Timestamp,
    /// The number of entries in the interval that ends now. After the decision this includes `added`.
    pub used: u32,
    /// The number of entries to add at `newest`.
    pub(crate) added: u32,
}

impl State {
    /// The state of an empty list.
    pub(crate) fn of_none(now: Timestamp) -> Self {
        Self { arrived: now, newest: now, room_at: Timestamp::MIN, used: 0, added: 0 }
    }
}

/// Decides on a request at `now`.
pub(crate) fn decide(params: &Params, seen: Option<State>, want: Want, now: Timestamp) -> Step {
    let (count, cost) = (params.count.get(), want.cost.get());
    let (state, kept) = follow(seen, now);
    let held_back = state.newest > state.arrived;
    let untouched = if held_back { 0 } else { count.saturating_sub(state.used.into()) };
    let kept = kept.map(BucketState::SlidingLog);
    if cost > count || cost > MOST_ENTRIES {
        return Step::of(want, untouched, None, None, kept);
    }
    let moment = state.newest.max(state.room_at);
    let lead = moment.micros_since(state.arrived);
    let wait = if lead == 0 { 0 } else { moment.micros_since(now) };
    let added = u32::try_from(cost).unwrap_or(u32::MAX);
    let used = state.used.saturating_add(added);
    let taken = BucketState::SlidingLog(State { newest: moment, used, added, ..state });
    Step::of(want, untouched, Some(wait), (lead <= MOST_LEAD).then_some(taken), kept)
}

/// A place is reserved for at most 71 minutes later. The unit is microseconds. The Lua twin has the same bound.
pub const MOST_LEAD: u64 = u32::MAX as u64;

/// The state at `now`, or at its own clock if `now` is a little before it. If the clock has stepped
/// back, the state is moved back too. The second value is then the moved state, which must be kept.
fn follow(seen: Option<State>, now: Timestamp) -> (State, Option<State>) {
    let Some(state) = seen else { return (State::of_none(now), None) };
    let ahead = state.arrived.micros_since(now);
    if ahead > STALE {
        let newest = earlier(state.newest, ahead);
        let room_at = earlier(state.room_at, ahead);
        let moved = State { arrived: now, newest, room_at, ..state };
        return (moved, Some(moved));
    }
    let arrived = state.arrived.max(now);
    (State { arrived, newest: state.newest.max(arrived), ..state }, None)
}

/// The time from which no interval includes an entry.
pub(crate) fn fresh_at(params: &Params, state: State) -> Timestamp {
    state.newest.plus_micros(params.interval.as_micros())
}

/// Whether places are reserved, or more permits were used than the count.
pub(crate) fn in_debt(params: &Params, state: State) -> bool {
    u64::from(state.used) > params.count.get() || state.newest > state.arrived
}

/// The entries of one bucket, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    entries: VecDeque<Entry>,
}

/// The entry of one permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// When the permit's request goes.
    at: Timestamp,
    /// The time on the clock when the entry was made.
    arrived: Timestamp,
}

impl Log {
    /// The state for a request of this cost; `None` for an empty list.
    pub fn seen(&self, params: &Params, cost: Cost, now: Timestamp) -> Option<State> {
        let Entry { at: newest, arrived } = *self.entries.back()?;
        let interval = params.interval.as_micros();
        let base = arrived.max(now);
        // The request fits as soon as at most `others` entries are in the interval.
        let others = index(params.count.get().saturating_sub(cost.get()));
        let last_in_the_way = self.entries.len().checked_sub(others + 1);
        let room_at = last_in_the_way
            .and_then(|index| self.entries.get(index))
            .map_or(Timestamp::MIN, |entry| entry.at.plus_micros(interval));
        let used = self.entries.len() - self.expired(params, base);
        let used = u32::try_from(used).unwrap_or(u32::MAX);
        Some(State { arrived, newest, room_at, used, added: 0 })
    }

    /// Writes the decided state: follows the clock, adds the entries, forgets those outside the interval.
    pub fn write(&mut self, params: &Params, state: State) {
        self.back_to(state.arrived);
        self.add(Entry { at: state.newest, arrived: state.arrived }, state.added.into());
        self.forget(params, state.arrived);
    }

    /// Corrects the list for a request that used more or less than it took. If the request used more, entries
    /// of the present time are added: at most [`MOST_ENTRIES`], even beyond the count. If it used less, entries
    /// of its moment are removed, if the list still has them. For [`Receipt::NEWEST`](super::Receipt::NEWEST) these are
    /// the newest entries that are not in the future. Returns the new state: `None` for an empty list.
    pub fn settle(
        &mut self,
        params: &Params,
        settled: &Settlement,
        now: Timestamp,
    ) -> Option<State> {
        let arrived = self.entries.back().map_or(now, |newest| newest.arrived);
        if arrived.micros_since(now) > STALE {
            self.back_to(now);
        }
        let base = self.entries.back().map_or(now, |newest| newest.arrived.max(now));
        self.forget(params, base);
        let moment = settled.receipt.time();
        let newest = self.entries.back().map(|newest| newest.at);
        match settled.used {
            Difference::More(permits) => {
                self.add(Entry { at: base, arrived: base }, permits.min(MOST_ENTRIES));
            }
            // No request goes before the newest entry. So nobody could use the place of this request.
            Difference::Less(_)
                if moment > base && newest.is_some_and(|newest| newest > moment) => {}
            // A list of full length may have forgotten entries that still count, so none is given back.
            Difference::Less(_) if self.entries.len() >= index(params.most()) => {}
            Difference::Less(permits) => {
                let moments = match settled.receipt.is_newest() {
                    true => Timestamp::MIN..=base,
                    false => moment..=moment,
                };
                self.remove(moments, permits.min(MOST_ENTRIES));
            }
        }
        self.forget(params, base);
        self.seen(params, Cost::ONE, base)
    }

    /// Forgets the entries that are in no interval that ends at `now` or later. If too many entries are
    /// left, the oldest of them are forgotten too.
    pub(crate) fn forget(&mut self, params: &Params, now: Timestamp) {
        let excess = self.entries.len().saturating_sub(index(params.most()));
        self.entries.drain(..self.expired(params, now).max(excess));
        if self.entries.capacity() > 2 * self.entries.len() + SPARE {
            self.entries.shrink_to(self.entries.len() + self.entries.len() / 4);
        }
    }

    /// For each entry its time, and the time on the clock when it was made. Oldest first.
    pub fn entries(&self) -> impl Iterator<Item = (Timestamp, Timestamp)> + '_ {
        self.entries.iter().map(|entry| (entry.at, entry.arrived))
    }

    /// The bytes of the list on the heap.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// The number of entries that are in no interval that ends at `now` or later.
    fn expired(&self, params: &Params, now: Timestamp) -> usize {
        let Some(since) = now.as_micros().checked_sub(params.interval.as_micros()) else {
            return 0;
        };
        // Every write forgets them, so there are few. A binary search would cost more.
        self.entries.iter().take_while(|entry| entry.at.as_micros() <= since).count()
    }

    fn add(&mut self, entry: Entry, permits: u64) {
        if self.entries.capacity() - self.entries.len() < index(permits) {
            // If lists grew by doubling, about a quarter of their memory would be unused.
            self.entries.reserve_exact(index(permits).max(self.entries.len() / 4 + 1));
        }
        let index = match self.entries.back() {
            Some(newest) if *newest > entry => self.entries.partition_point(|it| *it <= entry),
            _ => self.entries.len(),
        };
        for _ in 0..permits {
            self.entries.insert(index, entry);
        }
    }

    /// Removes up to `permits` entries of these moments, the last entries first.
    fn remove(&mut self, moments: RangeInclusive<Timestamp>, permits: u64) {
        let begin = self.entries.partition_point(|entry| entry.at < *moments.start());
        let end = self.entries.partition_point(|entry| entry.at <= *moments.end());
        self.entries.drain(begin.max(end.saturating_sub(index(permits)))..end);
    }

    /// Moves all entries back by the same time: the newest entry then looks as if it was made at `now`.
    fn back_to(&mut self, now: Timestamp) {
        let by = self.entries.back().map_or(0, |newest| newest.arrived.micros_since(now));
        if by == 0 {
            return;
        }
        self.entries.retain(|entry| entry.arrived.as_micros() >= by);
        for entry in &mut self.entries {
            *entry = Entry { at: earlier(entry.at, by), arrived: earlier(entry.arrived, by) };
        }
    }
}

/// The number of entries for which a list of any length may have unused room.
const SPARE: usize = 8;

fn earlier(time: Timestamp, micros: u64) -> Timestamp {
    Timestamp::from_micros(time.as_micros().saturating_sub(micros)).unwrap_or(Timestamp::MIN)
}

fn index(permits: u64) -> usize {
    usize::try_from(permits).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
