//! One process with one worker: the parts of `store` that decide without Redis, in the order in which `outage`
//! asks them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Limit, Strategy};
use crate::limit::algorithm::Receipt;
use crate::limit::decide::PerAsk;
use crate::limit::decision::{Decision, Outcome};
use crate::limit::key::Key;
use crate::plan::{PrefetchMode, StoreSpec};
use crate::store::ProcessStore;
use crate::store::claim::{Claim, Moment};
use crate::store::known::KnownRefusals;
use crate::store::prefetch::{BusyKeys, Fetch, Fetched, Return, is_fetched};

pub(super) struct SimulatedNode {
    mode: Strategy,
    pub(super) shared: Arc<ProcessStore>,
    known: KnownRefusals,
    busy: BusyKeys,
}

/// What a node says about a request without a question.
pub(super) enum NodeAnswer {
    /// Tokens that are held let the request pass. These batches are to be fetched now.
    Passes(Vec<Fetch>),
    /// The refusal is known.
    Refuses { retry_after: Duration },
    /// The server is to be asked.
    Asks,
}

/// Tokens that a node gives back: the bucket's number, how many, and their receipt.
pub(super) type Returned = (usize, u64, Receipt);

impl SimulatedNode {
    pub(super) fn start(mode: Strategy) -> Self {
        let prefetch =
            if mode == Strategy::Prefetch { PrefetchMode::Auto } else { PrefetchMode::Off };
        let shared =
            ProcessStore::new(&StoreSpec { prefetch, max_keys: 1, ..StoreSpec::default() });
        let (known, busy) = (KnownRefusals::default(), BusyKeys::default());
        Self { mode, shared, known, busy }
    }

    pub(super) fn ask(&mut self, limit: &Limit, key: usize, moment: Moment) -> NodeAnswer {
        let mut claim = limit.claim(key);
        if self.fetches(&claim)
            && let Some(to_fetch) =
                self.busy.spend(&self.shared, &mut [&mut claim], moment, moment.at)
        {
            return NodeAnswer::Passes(to_fetch.into_vec());
        }
        let shared = &self.shared;
        // An asker that is dropped at once lets all others ask too. Messages are lost here, and nobody waits.
        if self.mode != Strategy::Exact
            && self.known.refuse(shared, &mut [&mut claim], moment.time).is_none()
        {
            match claim.decision.map(|decision| decision.outcome) {
                Some(Outcome::Reject { retry_after: Some(retry_after) }) => {
                    return NodeAnswer::Refuses { retry_after };
                }
                told => panic!("a known refusal is {told:?}"),
            }
        }
        NodeAnswer::Asks
    }

    /// The server's answer to a request that came at `moment`. Returns the batches that are to be fetched.
    pub(super) fn hear(
        &mut self,
        limit: &Limit,
        key: usize,
        decision: Decision,
        moment: Moment,
        now: Instant,
    ) -> PerAsk<Fetch> {
        let mut claim = limit.claim(key);
        claim.decision = Some(decision);
        if self.mode != Strategy::Exact {
            self.known.note(&self.shared.memory, &[&mut claim], moment.time, None);
        }
        if !self.fetches(&claim) {
            return PerAsk::new();
        }
        let never = |_: Return<'_>| panic!("the figures never change");
        self.busy.note(&self.shared, &[&mut claim], moment, now, never)
    }

    /// The server did not answer in time.
    pub(super) fn hear_nothing(&mut self, limit: &Limit, key: usize) {
        self.known.forget(&self.shared.memory, &limit.claim(key));
    }

    /// A batch has come, or will not come. Returns what goes back at once.
    pub(super) fn end_fetch(
        &mut self,
        fetch: &Fetch,
        fetched: Option<Fetched>,
    ) -> Option<Returned> {
        let receipt = self.busy.end_fetch(fetch, fetched)?;
        let ask = fetch.question();
        Some((number(ask.key.shown()), ask.ask.cost.get(), receipt))
    }

    /// The tokens that go back now, in the order of their keys: hash tables have another order each time.
    pub(super) fn sweep(&mut self, now: Instant) -> Vec<Returned> {
        let mut returned = Vec::new();
        let is_on = self.mode == Strategy::Prefetch;
        self.busy.sweep(is_on, now, |it| {
            returned.push((number(it.ask.key.shown()), it.tokens, it.receipt));
        });
        returned.sort_by_key(|(key, ..)| *key);
        returned
    }

    /// The server has counted this many processes.
    pub(super) fn count(&mut self, held: u64, sent: Instant, now: Instant) {
        self.shared.count_processes(held, sent, now);
    }

    fn fetches(&self, claim: &Claim<'_>) -> bool {
        self.mode == Strategy::Prefetch && is_fetched(claim)
    }
}

/// The number of a key that [`Limit`] has made.
pub(super) fn number(key: &Key) -> usize {
    key.as_str().parse().unwrap()
}
