//! The entries of known refusals, and when they may be believed.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::Ask;
use crate::limit::decision::{Decision, Outcome};
use crate::limit::rate::Cost;
use crate::limit::time::Timestamp;
use crate::limit::waiting::MaxWait;
use crate::store::bucket::{BucketAsk, KeyLocation, RedisAnswer, RedisAsk};
use crate::store::memory::{Identity, Memory};

/// The longest time for which a refusal is known. In a flood that is refused, one request in this time reaches Redis.
const LONGEST: Duration = Duration::from_secs(2);

/// While one request asks Redis again, others are still refused here for this time.
const ASKING: Duration = Duration::from_millis(100);

/// The longest time for which a limit that had room counts as having room.
const LONGEST_ROOM: Duration = Duration::from_millis(100);

/// The worker believes in a limit's room for this time, multiplied by the number of requests that fit. If 1,000
/// requests fit, that is 5 ms. Then one request asks Redis, and the others believe in the room for the same time once
/// more. So only more than 100,000 requests a second could use the room up unnoticed.
const ROOM_PER_REQUEST: Duration = Duration::from_micros(5);

/// The most refusals that a worker knows. One takes about a hundred bytes.
const MOST: usize = 16_384;

/// The most known refusals of one bucket, each of another cost. For a token bucket one cost tells about all others.
const MOST_COSTS: usize = 4;

/// What a worker knows.
#[derive(Default)]
pub(super) struct RefusalTable {
    /// One refusal for each cost that a bucket has refused.
    pub(super) refusals: HashMap<Identity, SmallVec<[KnownRefusal; 1]>>,
    /// The limits that had room when they were asked together with a limit that refused.
    pub(super) rooms: HashMap<Identity, KnownRoom>,
    /// When ended refusals were last removed from a full table.
    cleaned: Option<Timestamp>,
}

/// A refusal of one cost.
pub(super) struct KnownRefusal {
    /// The figures that refused. With other figures the bucket might not refuse.
    algorithm: Algorithm,
    pub(super) cost: Cost,
    /// The tokens that were left: fewer than the cost.
    remaining: u64,
    /// When the bucket has enough for this cost, by the process's steady clock.
    ends: Timestamp,
    /// Until when the refusal is believed.
    until: Timestamp,
    /// The connection over which Redis refused, and the generation of overrides and buckets at that time.
    location: KeyLocation,
    /// `Some` while a request asks Redis after the wait. Wakes the requests that wait for the answer.
    asked_by: Option<Arc<Notify>>,
}

/// What a limit with room said.
pub(super) struct KnownRoom {
    algorithm: Algorithm,
    /// The tokens that were left.
    remaining: u64,
    /// For how long an answer with this room is believed.
    lasts: Duration,
    /// Until when the room is believed.
    until: Timestamp,
    location: KeyLocation,
}

/// What the worker knows about one limit of a request.
pub(super) enum KnownAnswer {
    /// It refuses.
    Refusal(Decision),
    /// It has room.
    Room(Decision),
    /// The wait after which it no longer refuses has ended.
    Ended,
    /// Its bucket is in this process.
    Here,
}

/// What a request for a bucket does after the wait: one request asks Redis, and all others wait for it.
pub(super) enum Flight {
    /// This request asks. It wakes the others when Redis has answered.
    Lead(Arc<Notify>),
    /// Another request asks, and wakes this one.
    Follow(OwnedNotified),
}

impl KnownRefusal {
    /// Made from an answer that refuses. `after` is the wait that Redis named, counted from the time `asked`.
    pub(super) fn of(answer: &RedisAnswer<'_>, after: Duration, asked: Timestamp) -> Self {
        let Ask { algorithm, cost, .. } = answer.asked.ask.ask;
        let (ends, until) = (asked.plus(after), asked.plus(after.min(LONGEST)));
        let remaining = answer.decision.remaining;
        let (location, asked_by) = (answer.asked.location, None);
        Self { algorithm, cost, remaining, ends, until, location, asked_by }
    }

    /// When the bucket has enough for this request. `None` if this refusal does not say when: the bucket has other
    /// figures, or enough was left, or the cost is another one and the bucket is no token bucket. For another cost the
    /// moment may be a microsecond too late. It is never too early, because an answer names it.
    fn ends_for(&self, asked: &RedisAsk<'_>) -> Option<Timestamp> {
        let Ask { algorithm, cost, .. } = asked.ask.ask;
        let is_of = (self.algorithm, self.location) == (algorithm, asked.location);
        if !is_of || cost == self.cost {
            return is_of.then_some(self.ends);
        }
        let Algorithm::TokenBucket(params) = algorithm else { return None };
        if cost.get() <= self.remaining || cost.get() > params.burst.get() {
            return None;
        }
        let more = params.micros_for(cost.get().saturating_sub(self.cost.get()));
        let less = params.micros_for(self.cost.get().saturating_sub(cost.get()));
        // `more` was rounded down, so the wait may be a microsecond longer.
        let more = if params.rate.tokens() > 1 && more > 0 { more + 1 } else { more };
        let ends = self.ends.as_micros().saturating_add(more).saturating_sub(less);
        Timestamp::from_micros(ends)
    }

    /// Whether the request that is asking wakes the others through `wakes`.
    pub(super) fn is_asked_by(&self, wakes: &Arc<Notify>) -> bool {
        self.asked_by.as_ref().is_some_and(|own| Arc::ptr_eq(own, wakes))
    }

    /// The request that asked has taken `cost`, and too little remains for another request.
    pub(super) fn took(&mut self, cost: Cost, remaining: u64, asked: Timestamp) {
        let next = self.algorithm.time_for(cost).unwrap_or_default();
        (self.ends, self.until) = (self.ends.plus(next), asked.plus(LONGEST));
        (self.remaining, self.asked_by) = (remaining, None);
    }
}

impl RefusalTable {
    /// What the worker knows about a limit. `None` if Redis has to be asked.
    pub(super) fn find(
        &mut self,
        memory: &Memory,
        asked: &RedisAsk<'_>,
        now: Timestamp,
    ) -> Option<KnownAnswer> {
        let bucket = memory.identity(&asked.ask);
        let refusals = self.refusals.get_mut(&bucket).filter(|_| is_lasting(&asked.ask));
        let refusal =
            refusals.and_then(|all| all.iter_mut().find_map(|it| Some((it.ends_for(asked)?, it))));
        let Some((ends, refusal)) = refusal else {
            let room = self.rooms.get_mut(&bucket).filter(|room| room.is_for(asked))?;
            let remaining = room.remaining;
            let is_believed = is_believed(&mut room.until, now, room.lasts);
            return is_believed
                .then_some(KnownAnswer::Room(Decision { outcome: Outcome::Allow, remaining }));
        };
        if now >= ends {
            return Some(KnownAnswer::Ended);
        }
        let retry_after = Some(Duration::from_micros(ends.micros_since(now)));
        let (outcome, remaining) = (Outcome::Reject { retry_after }, refusal.remaining);
        is_believed(&mut refusal.until, now, ASKING)
            .then_some(KnownAnswer::Refusal(Decision { outcome, remaining }))
    }

    /// Notes whether the bucket has room for one more request of this cost. An entry is only added if another limit
    /// `refuses` the request.
    pub(super) fn note_room(
        &mut self,
        bucket: Identity,
        answer: &RedisAnswer<'_>,
        refuses: bool,
        asked: Timestamp,
    ) {
        let Decision { outcome, remaining } = answer.decision;
        let Ask { algorithm, cost, .. } = answer.asked.ask.ask;
        if outcome != Outcome::Allow || remaining < cost.get() {
            self.rooms.remove(&bucket);
        } else if self.rooms.contains_key(&bucket) || refuses && self.has_space(asked) {
            let requests = u32::try_from(remaining / cost.get()).unwrap_or(u32::MAX);
            let lasts = ROOM_PER_REQUEST.saturating_mul(requests).min(LONGEST_ROOM);
            let (until, location) = (asked.plus(lasts), answer.asked.location);
            self.rooms.insert(bucket, KnownRoom { algorithm, remaining, lasts, until, location });
        }
    }

    /// Whether this request asks Redis about the bucket, or waits until another request has the answer.
    pub(super) fn join_flight(
        &mut self,
        bucket: &Identity,
        asked: &RedisAsk<'_>,
        now: Timestamp,
    ) -> Option<Flight> {
        let ended = |it: &&mut KnownRefusal| it.ends_for(asked).is_some_and(|ends| now >= ends);
        let refusal = self.refusals.get_mut(bucket)?.iter_mut().find(ended)?;
        if let Some(wakes) = &refusal.asked_by {
            return Some(Flight::Follow(Arc::clone(wakes).notified_owned()));
        }
        let wakes = Arc::new(Notify::new());
        refusal.asked_by = Some(Arc::clone(&wakes));
        Some(Flight::Lead(wakes))
    }

    /// The request that wakes others through `wakes` asks no longer.
    pub(super) fn end_flight(&mut self, bucket: &Identity, wakes: &Arc<Notify>) {
        let mut refusals = self.refusals.get_mut(bucket).into_iter().flatten();
        if let Some(refusal) = refusals.find(|refusal| refusal.is_asked_by(wakes)) {
            refusal.asked_by = None;
        }
        wakes.notify_waiters();
    }

    /// Adds the refusal of one cost. It replaces an older one of the same cost. For a token
    /// bucket it replaces all older ones.
    pub(super) fn add(&mut self, bucket: Identity, refusal: KnownRefusal) {
        let refusals = self.refusals.entry(bucket).or_default();
        let tells_all = matches!(refusal.algorithm, Algorithm::TokenBucket(_));
        refusals.retain(|known| !tells_all && known.cost != refusal.cost);
        if refusals.len() >= MOST_COSTS {
            refusals.remove(0);
        }
        refusals.push(refusal);
    }

    /// Whether there is space for one more entry.
    pub(super) fn has_space(&mut self, now: Timestamp) -> bool {
        self.clean(now);
        self.len() < MOST
    }

    /// Removes entries that are of no more use.
    pub(super) fn clean(&mut self, now: Timestamp) {
        let is_full = self.len() >= MOST;
        let pause = if is_full { ASKING } else { LONGEST };
        if self.cleaned.is_some_and(|cleaned| now < cleaned.plus(pause)) {
            return;
        }
        self.rooms.retain(|_, room| now < room.until.plus(room.lasts));
        // After its end a refusal is still needed for a moment: one request asks Redis for all others.
        let is_of_use = |refusal: &KnownRefusal| {
            now < refusal.until || !is_full && now < refusal.ends.plus(LONGEST)
        };
        self.refusals.retain(|_, of| of.iter().any(is_of_use));
        self.cleaned = Some(now);
    }

    fn len(&self) -> usize {
        self.refusals.len() + self.rooms.len()
    }
}

impl KnownRoom {
    fn is_for(&self, asked: &RedisAsk<'_>) -> bool {
        let Ask { algorithm, cost, .. } = asked.ask.ask;
        (self.algorithm, self.location) == (algorithm, asked.location)
            && cost.get() <= self.remaining
    }
}

/// Whether an entry is believed: before `until`. The first request after `until` asks Redis again, and moves `until`
/// on by the time `asking`. So the requests that come meanwhile still believe the entry.
fn is_believed(until: &mut Timestamp, now: Timestamp, asking: Duration) -> bool {
    let is_believed = now < *until;
    if !is_believed && now < until.plus(asking) {
        *until = now.plus(asking);
    }
    is_believed
}

/// Whether the decision of this limit may be known. A limit that holds requests must be asked for how long. A limit in
/// shadow is asked each time, because its decisions are counted.
pub(super) fn may_be_known(ask: &BucketAsk<'_>) -> bool {
    ask.ask.mode == Mode::Enforce
        && ask.ask.max_wait == MaxWait::NONE
        && ask.spec.wait == MaxWait::NONE
}

/// Whether a refusal lasts until the moment that Redis names. If a limit holds requests or settles them later, tokens
/// may come back earlier. A slot may come back at any time.
pub(super) fn is_lasting(ask: &BucketAsk<'_>) -> bool {
    may_be_known(ask)
        && !ask.spec.is_settled()
        && !matches!(ask.ask.algorithm, Algorithm::Concurrency(_))
}
