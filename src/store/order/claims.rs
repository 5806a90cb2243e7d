//! What the claims of one request say together.

use super::calls::SlotCall;
use super::failed::is_left_to_process;
use crate::limit::Mode;
use crate::limit::decide::{PerAsk, takers};
use crate::limit::decision::Outcome;
use crate::limit::waiting::MaxWait;
use crate::store::bucket::{ReceiptUse, RedisAnswer, RedisAsk};
use crate::store::claim::{Claim, Decider, Party};
use crate::store::known::LookedUp;
use crate::store::redis::Verb;

/// What the known refusals need of a claim. A candidate is never known: it may take where its limit alone refuses.
pub(super) fn looked_up<'r>(claim: &'r Claim<'_>) -> LookedUp<'r> {
    match claim.party {
        Party::Process if claim.ask.mode == Mode::Candidate => LookedUp::Unknown,
        Party::Process => LookedUp::Here,
        Party::Bucket(place) => LookedUp::InRedis(RedisAsk { ask: claim.question(), place }),
        Party::Limiter(_) => LookedUp::Unknown,
    }
}

/// The claims on which nobody has decided.
pub(super) fn open<'c, 'p>(claims: &'c mut [&mut Claim<'p>]) -> SlotCall<'c, 'p> {
    let claims = claims.iter_mut().map(|claim| &mut **claim);
    claims.filter(|claim| claim.is_open()).collect()
}

/// Whether receipts are noted for these claims. They are needed where a request may be held and its client
/// may leave meanwhile, and where a limit is settled later or holds a slot.
pub(super) fn noting(claims: &[&mut Claim<'_>]) -> ReceiptUse {
    let comes_back = |claim: &&mut Claim<'_>| {
        claim.ask.max_wait > MaxWait::NONE || claim.waits_for_another || claim.is_held_to_the_end()
    };
    if claims.iter().any(comes_back) { ReceiptUse::Needed } else { ReceiptUse::Unneeded }
}

/// What a bucket in Redis has decided on a claim.
pub(super) fn redis_answer<'r>(claim: &'r Claim<'_>) -> Option<RedisAnswer<'r>> {
    let decision = claim.decision().filter(|_| claim.decider() == Some(Decider::Redis))?;
    let asked = RedisAsk { ask: claim.question(), place: claim.place()? };
    Some(RedisAnswer { asked, decision })
}

/// How the next limits are asked: they take nothing where a limit has refused.
pub(super) fn verb(claims: &[&mut Claim<'_>]) -> Verb {
    if claims.iter().any(|claim| claim.refuses()) { Verb::Look } else { Verb::Take }
}

/// Whether the claim's decision comes after those of the buckets in Redis.
pub(super) fn answers_after_redis(claim: &Claim<'_>) -> bool {
    is_left_to_process(claim) || claim.is_open() && matches!(claim.party, Party::Limiter(_))
}

/// Whether each claim takes, by what all have decided.
pub(super) fn takes(claims: &[&mut Claim<'_>]) -> PerAsk<bool> {
    let outcome = |claim: &Claim<'_>| claim.decision().map_or(Outcome::Allow, |it| it.outcome);
    let outcomes: PerAsk<_> = claims.iter().map(|it| (it.ask.mode, outcome(it))).collect();
    takers(outcomes.into_iter()).collect()
}
