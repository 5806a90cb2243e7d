//! A question to Redis whose client may leave before the answer. `Redis::ask` makes one for each request that takes.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::queue::{Awaited, Queue};
use crate::limit::Mode;
use crate::limit::algorithm::{Algorithm, Difference, Receipt};
use crate::limit::bucket::Holder;
use crate::limit::call::{AskReply, Reply, Verb};
use crate::limit::decide::{self, Ask, PerAsk};
use crate::limit::decision::Outcome;
use crate::redis::{CallError, HashSlot, Router};
use crate::store::bucket::BucketAsk;
use crate::store::name::BucketName;

/// The ask of a call about one bucket.
pub(in crate::store) struct CallAsk<'r> {
    pub(in crate::store) asked: BucketAsk<'r>,
    /// Whether it may take.
    pub(in crate::store) verb: Verb,
    /// The holder of the slot that is asked for, if this is a concurrency limit.
    pub(in crate::store) holder: Option<Holder>,
}

/// A request's question to Redis, until it is answered. If the client leaves, this is dropped early. Then a task waits
/// for the answer and gives back what was taken.
pub(super) struct PendingAsk<'q, 'r> {
    pub(super) queue: &'q Queue,
    pub(super) router: &'q Arc<Router>,
    /// `store.prefix`.
    pub(super) prefix: &'q str,
    pub(super) hash_slot: HashSlot,
    pub(super) asks: &'q [CallAsk<'r>],
    /// The reply to these asks, in their order. `None` once the question is answered.
    pub(super) awaited: Option<Awaited>,
}

/// The name of a bucket's key in Redis.
pub(super) fn key_name(prefix: &str, ask: &BucketAsk<'_>) -> Vec<u8> {
    let name = BucketName { prefix, spec: ask.spec, key: ask.key };
    name.text(&ask.ask.algorithm).into_bytes()
}

impl PendingAsk<'_, '_> {
    /// Waits for the reply.
    pub(super) async fn answer(mut self) -> Result<Reply, CallError> {
        let Some(awaited) = &mut self.awaited else { return Err(CallError::Nonsense) };
        let reply = awaited.answer().await;
        self.awaited = None;
        reply
    }
}

impl Drop for PendingAsk<'_, '_> {
    fn drop(&mut self) {
        // Without a runtime the worker has ended, and with it its connection.
        let (Some(mut awaited), Ok(runtime)) = (self.awaited.take(), Handle::try_current()) else {
            return;
        };
        let bucket = |CallAsk { asked, verb, .. }: &CallAsk<'_>| {
            let ask = Ask { max_wait: asked.spec.wait, ..asked.ask };
            (*verb, ask, key_name(self.prefix, asked))
        };
        let buckets: Vec<(Verb, Ask, Vec<u8>)> = self.asks.iter().map(bucket).collect();
        let (queue, router) = (self.queue.clone(), Arc::clone(self.router));
        let hash_slot = self.hash_slot;
        // `Store::settled` waits for this task, too.
        let counted = queue.count();
        runtime.spawn(async move {
            let _counted = counted;
            let Ok(reply) = awaited.answer().await else { return };
            let took = takers(buckets.iter().map(|(verb, ask, _)| (*verb, ask)), &reply);
            for (((_, ask, name), one), took) in buckets.iter().zip(reply).zip(took) {
                // The grant that was made before the question gives a slot back.
                if !took || matches!(ask.algorithm, Algorithm::Concurrency(_)) {
                    continue;
                }
                let Some(receipt) = receipt(one, ask) else { continue };
                let less = Verb::Settle(Difference::Less(ask.cost.get()), receipt);
                queue.send(hash_slot, router.deadline(), None, |call| {
                    call.ask(less, ask, name.clone());
                });
            }
        });
    }
}

/// The receipt of an ask. If none was asked for, a token bucket can still take its tokens back, because they were taken
/// a moment ago. A window or a list cannot: without a receipt it does not know where they were counted.
fn receipt(reply: AskReply, ask: &Ask) -> Option<Receipt> {
    match ask.algorithm {
        Algorithm::TokenBucket(_) => Some(reply.receipt.unwrap_or(Receipt::NEWEST)),
        _ => reply.receipt,
    }
}

/// Which of a request's asks have taken. If a key is of another type, no ask of the request has taken.
pub(super) fn takers<'a>(
    asks: impl Iterator<Item = (Verb, &'a Ask)> + Clone,
    reply: &Reply,
) -> PerAsk<bool> {
    let outcome =
        |((_, ask), one): ((Verb, &Ask), &AskReply)| Some((ask.mode, one.decision?.outcome));
    let outcomes: Option<PerAsk<(Mode, Outcome)>> = asks.clone().zip(reply).map(outcome).collect();
    match outcomes {
        Some(outcomes) => {
            let takers = decide::takers(outcomes.into_iter()).zip(asks);
            takers.map(|(takes, (verb, ask))| takes && ask.takes && verb == Verb::Take).collect()
        }
        None => PerAsk::from_elem(false, reply.len()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limit::algorithm::token_bucket::Params;
    use crate::limit::decision::Decision;
    use crate::limit::rate::{Burst, Cost};
    use crate::limit::time::Timestamp;
    use crate::limit::waiting::MaxWait;

    #[test]
    fn the_answer_tells_which_tokens_were_taken() {
        use Mode::{Candidate, Enforce, Shadow};
        let (rate, burst) = ("1/s".parse().unwrap(), Burst::new(5).unwrap());
        let algorithm = Algorithm::TokenBucket(Params { rate, burst });
        let (cost, max_wait) = (Cost::ONE, MaxWait::NONE);
        let decided = |outcome| Some(Decision { outcome, remaining: 0 });
        let allow = decided(Outcome::Allow);
        let delay = decided(Outcome::Delay(Duration::from_secs(1)));
        let reject = decided(Outcome::Reject { retry_after: None });
        for (name, modes, said, expected) in [
            ("all pass", &[Enforce, Shadow][..], &[allow, delay][..], &[0, 1][..]),
            ("a shadow refuses", &[Enforce, Shadow], &[delay, reject], &[0]),
            ("one refuses", &[Enforce, Enforce, Shadow], &[allow, reject, allow], &[]),
            ("a candidate allows", &[Enforce, Candidate, Enforce], &[allow, allow, reject], &[1]),
            ("of another type", &[Enforce, Enforce], &[allow, None], &[]),
        ] {
            let ask = |mode: &Mode| Ask { algorithm, cost, max_wait, mode: *mode, takes: true };
            let asks: Vec<_> = modes.iter().map(ask).collect();
            let one = |decision: &Option<Decision>| {
                let (decision, at) = (*decision, Timestamp::MIN);
                AskReply { decision, receipt: None, at }
            };
            let reply: Reply = said.iter().map(one).collect();
            let took =
                takers(asks.iter().map(|ask| (Verb::Take, ask)), &reply).into_iter().enumerate();
            let indices: Vec<usize> = took.filter_map(|(at, took)| took.then_some(at)).collect();
            assert_eq!(indices, expected, "{name}");
        }
    }
}
