//! Refusals that a worker knows, so that Redis need not be asked. If Redis refuses a request, it names a moment for each
//! limit that refuses. Until the first of these moments the worker gives the same answer by itself, to each request that
//! wants the same of the same buckets. `order` looks here before it asks Redis.
//!
//! The decision is the same as that of Redis. Only `remaining` may be too low, for requests of several tokens: some
//! tokens may have come back meanwhile. The worker counts the wait from before it sent the question. So the wait never
//! ends later here than in Redis, and no clocks are compared. After the moment each request asks. Those that come at the
//! same time are one call (`script::queue`), and its answer is known to those that come after it.
//!
//! An answer to a client names each limit that refuses. So if another limit of the request had room, the answer is known
//! only for as long as other requests can hardly have used the room up, and for a tenth of a second at most.
//!
//! A refusal is known for at most two seconds, and only as long as the connection lasts. So this worker soon notices
//! that an operator has deleted a key in Redis, or that Redis has lost its data. When this time is over and the moment
//! has not come, one request asks, and the others are still refused meanwhile. A reload, a change of the overrides that
//! is no ban, or a reset of a bucket begins a new generation, which ends all known refusals at once. If tokens of a
//! bucket go back, its known refusals end.

use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::bucket::{BucketAsk, KeyLocation};
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::PerAsk;
use crate::limit::decision::{Decision, Outcome};
use crate::limit::memory::{Identity, Memory};
use crate::limit::rate::Cost;
use crate::limit::time::Timestamp;
use crate::limit::waiting::MaxWait;

/// The longest time for which a refusal is known. In a flood that is refused, one request in this time reaches Redis.
const LONGEST: Duration = Duration::from_secs(2);

/// While one request asks Redis again, others are still refused here for this time at most.
const ASKING: Duration = Duration::from_millis(100);

/// A refusal beside a limit with room is known for this time, multiplied by the number of requests that fit. If 1,000
/// requests fit, that is 5 ms. So only more than 100,000 requests a second could use the room up unnoticed.
const ROOM_PER_REQUEST: Duration = Duration::from_micros(5);

/// The most refusals that a worker knows. One takes a few hundred bytes.
const MOST: usize = 16_384;

/// The refusals that a worker knows.
#[derive(Default)]
pub(super) struct KnownRefusals(Mutex<RefusalTable>);

#[derive(Default)]
struct RefusalTable {
    /// By [`question_number`].
    refusals: HashMap<u128, KnownRefusal>,
    /// Buckets to which tokens went back, with the number of the return.
    returns: HashMap<Identity, u64>,
    /// The number of returns so far.
    returned: u64,
    /// When ended refusals were last removed.
    cleaned: Option<Timestamp>,
}

/// What Redis has said to a request that it refused.
struct KnownRefusal {
    question: PerAsk<AskedBucket>,
    /// The decisions at the time `asked`.
    decisions: PerAsk<Decision>,
    asked: Timestamp,
    /// When the first limit that refuses has enough for this request, by the process's steady clock.
    ends: Timestamp,
    /// Until when the refusal is believed without a question.
    until: Timestamp,
    /// For how long an answer is believed.
    lasts: Duration,
    /// [`RefusalTable::returned`] when the answer came.
    returned: u64,
}

/// A question about a bucket in Redis, and where its key is.
pub(super) type Located<'r> = (BucketAsk<'r>, KeyLocation);

/// What a request wants of one bucket.
#[derive(PartialEq)]
struct AskedBucket {
    bucket: Identity,
    algorithm: Algorithm,
    cost: Cost,
    /// The connection over which Redis is asked, and the generation of overrides and buckets.
    location: KeyLocation,
}

impl KnownRefusals {
    /// The decisions on a request that is known to be refused. `limits` are the request's limits in Redis.
    pub(super) fn look_up<'r>(
        &self,
        memory: &Memory,
        limits: impl Iterator<Item = Located<'r>>,
        now: Timestamp,
    ) -> Option<PerAsk<Decision>> {
        let mut table = self.0.lock();
        if table.refusals.is_empty() {
            return None;
        }
        let question: PerAsk<_> = limits.map(|asked| AskedBucket::of(memory, &asked)).collect();
        let RefusalTable { refusals, returns, .. } = &mut *table;
        let refusal = refusals.get_mut(&question_number(&question))?;
        let may_hold = now < refusal.ends && refusal.question == question;
        (may_hold && !refusal.is_void(returns) && refusal.is_believed(now))
            .then(|| refusal.decisions_at(now))
    }

    /// Tokens went back to the bucket, or Redis did not answer. Its known refusals may no longer hold.
    pub(super) fn forget(&self, memory: &Memory, ask: &BucketAsk<'_>) {
        let mut table = self.0.lock();
        if table.refusals.is_empty() {
            return;
        }
        if table.returns.len() >= MOST {
            return *table = RefusalTable::default();
        }
        table.returned += 1;
        let returned = table.returned;
        table.returns.insert(memory.identity(&ask.keyed()), returned);
    }

    /// Notes what Redis has said to one request. `asked` is a time before the question was sent.
    pub(super) fn note(
        &self,
        memory: &Memory,
        answers: &[(Located<'_>, Decision)],
        asked: Timestamp,
    ) {
        let lasts = lasts(answers);
        let mut table = self.0.lock();
        if lasts.is_none() && table.refusals.is_empty() {
            return;
        }
        let question: PerAsk<_> =
            answers.iter().map(|(asked, _)| AskedBucket::of(memory, asked)).collect();
        let number = question_number(&question);
        table.clean(asked);
        match lasts {
            Some((after, lasts)) if table.refusals.len() < MOST => {
                let decisions = answers.iter().map(|(_, decision)| *decision).collect();
                let (ends, until) = (asked.plus(after), asked.plus(lasts));
                let returned = table.returned;
                let known =
                    KnownRefusal { question, decisions, asked, ends, until, lasts, returned };
                table.refusals.insert(number, known);
            }
            _ => drop(table.refusals.remove(&number)),
        }
    }
}

impl RefusalTable {
    /// Removes entries that are of no more use.
    fn clean(&mut self, now: Timestamp) {
        let pause = if self.refusals.len() >= MOST { ASKING } else { LONGEST };
        if self.cleaned.is_some_and(|cleaned| now < cleaned.plus(pause)) {
            return;
        }
        self.refusals.retain(|_, it| now < it.ends && now < it.until.plus(it.asking()));
        if self.refusals.is_empty() {
            self.returns.clear();
        }
        self.cleaned = Some(now);
    }
}

impl KnownRefusal {
    /// Whether tokens of one of the buckets went back after Redis had answered.
    fn is_void(&self, returns: &HashMap<Identity, u64>) -> bool {
        let has_more =
            |it: &AskedBucket| returns.get(&it.bucket).is_some_and(|at| *at > self.returned);
        !returns.is_empty() && self.question.iter().any(has_more)
    }

    /// Whether the refusal is believed: before `until`. The first request after `until` asks Redis again, and moves
    /// `until` on. So the requests that come meanwhile still believe the refusal.
    fn is_believed(&mut self, now: Timestamp) -> bool {
        let is_believed = now < self.until;
        if !is_believed && now < self.until.plus(self.asking()) {
            self.until = now.plus(self.asking());
        }
        is_believed
    }

    /// How long the refusal is believed while one request asks again.
    fn asking(&self) -> Duration {
        self.lasts.min(ASKING)
    }

    fn decisions_at(&self, now: Timestamp) -> PerAsk<Decision> {
        let passed = Duration::from_micros(now.micros_since(self.asked));
        let at = |decision: &Decision| match decision.outcome {
            Outcome::Reject { retry_after: Some(after) } => {
                let retry_after = Some(after.saturating_sub(passed));
                Decision { outcome: Outcome::Reject { retry_after }, ..*decision }
            }
            _ => *decision,
        };
        self.decisions.iter().map(at).collect()
    }
}

impl AskedBucket {
    fn of(memory: &Memory, (asked, location): &Located<'_>) -> Self {
        let (bucket, ask, location) = (memory.identity(&asked.keyed()), &asked.ask, *location);
        Self { bucket, algorithm: ask.algorithm, cost: ask.cost, location }
    }
}

/// One number for the buckets and costs of a question.
fn question_number(question: &[AskedBucket]) -> u128 {
    question.iter().fold(0, |number: u128, asked| {
        let own = asked.bucket.number().wrapping_add(asked.cost.get().into());
        number.rotate_left(47).wrapping_add(own)
    })
}

/// The time after which the first limit refuses no longer, and for how long the answer is believed. `None` if this is no
/// refusal that may be known.
fn lasts(answers: &[(Located<'_>, Decision)]) -> Option<(Duration, Duration)> {
    let (mut ends, mut lasts) = (None, LONGEST);
    for ((asked, location), Decision { outcome, remaining }) in answers {
        // The connection's number is 0 until the first connection to the server is made.
        let Some(1..) = location.connection else { return None };
        match outcome {
            Outcome::Reject { retry_after: Some(after) } if is_lasting(asked) => {
                ends = Some(ends.map_or(*after, |ends: Duration| ends.min(*after)));
            }
            Outcome::Reject { .. } => return None,
            Outcome::Allow | Outcome::Delay(_) => {
                let requests = remaining / asked.ask.cost.get();
                let requests = u32::try_from(requests).unwrap_or(u32::MAX);
                lasts = lasts.min(ROOM_PER_REQUEST.saturating_mul(requests).min(ASKING));
            }
        }
    }
    Some((ends?, lasts))
}

/// Whether the decision of this limit may be known. A Redisson limiter is asked each time. A limit that holds requests must be asked for how long. A limit in
/// shadow is asked each time, because its decisions are counted.
pub(super) fn may_be_known(ask: &BucketAsk<'_>) -> bool {
    ask.ask.mode == Mode::Enforce
        && !ask.is_limiter()
        && ask.ask.max_wait == MaxWait::NONE
        && ask.spec.wait == MaxWait::NONE
}

/// Whether a refusal lasts until the moment that Redis names. If a limit settles its requests later, tokens may come back
/// earlier. A slot may come back at any time.
fn is_lasting(ask: &BucketAsk<'_>) -> bool {
    !ask.spec.is_ever_settled() && !matches!(ask.ask.algorithm, Algorithm::Concurrency(_))
}

#[cfg(test)]
mod tests;
