//! What stands for Redis: the shared buckets, decided on by the algorithms, and the processes' slots.

use super::bound::Bound;
use super::time;
use crate::limit::algorithm::{Difference, Receipt, Settlement, State};
use crate::limit::decide::{Ask, decide_one};
use crate::limit::decision::{Decision, Outcome};
use crate::limit::rate::Cost;
use crate::store::reserve::LEASE;

/// The shared buckets, by the numbers of their keys.
pub(super) struct SimulatedServer {
    /// As Redis is asked: without the reserve, where tokens are fetched.
    asked: Ask,
    /// As the limit is written. Settlements have these figures.
    written: Ask,
    buckets: Vec<Option<State>>,
    /// The processes that are announced, and when their leases end.
    slots: Vec<(u64, u64)>,
}

impl SimulatedServer {
    pub(super) fn new(asked: Ask, written: Ask, keys: usize) -> Self {
        Self { asked, written, buckets: vec![None; keys], slots: Vec::new() }
    }

    pub(super) fn take(&mut self, key: usize, cost: Cost, now: u64) -> (Decision, Option<Receipt>) {
        let (ask, now) = (Ask { cost, ..self.asked }, time(now).into());
        let (decision, change, _) = decide_one(&ask, self.buckets[key], now);
        let taken = change.state();
        self.buckets[key] = taken.or(self.buckets[key]);
        let passed = decision.outcome == Outcome::Allow;
        let receipt = taken.filter(|_| passed).map(|it| ask.receipt(decision.outcome, it, now));
        (decision, receipt)
    }

    pub(super) fn give_back(&mut self, key: usize, tokens: u64, receipt: Receipt, now: u64) {
        let used = Difference::Less(tokens);
        let settled = Settlement { used, receipt, max_wait: self.written.max_wait };
        let algorithm = self.written.algorithm;
        self.buckets[key] = algorithm.settle(self.buckets[key], &settled, time(now));
    }

    /// What a request for one token would be told. Nothing is taken.
    pub(super) fn look(&self, key: usize, now: u64) -> Decision {
        decide_one(&self.asked, self.buckets[key], time(now).into()).0
    }

    /// Renews the slot of this process. Returns how many are held.
    pub(super) fn announce(&mut self, process: u64, now: u64) -> u64 {
        self.slots.retain(|(holder, ends)| *holder != process && *ends > now);
        self.slots.push((process, now + super::micros(LEASE)));
        u64::try_from(self.slots.len()).unwrap()
    }

    /// Checks what is admitted from a new bucket on, by the figures as they are written.
    pub(super) fn bound(&self) -> Bound {
        Bound::of(&self.written.algorithm)
    }
}
