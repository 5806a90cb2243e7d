//! The steps of the order of asking, one by one. The tests say what Redis has decided: no Redis answers here.

use super::*;
use crate::limit::algorithm::Receipt;
use crate::limit::decide::Ask;
use crate::limit::decision::{Decision, Outcome};
use crate::limit::key::Key;
use crate::limit::time::Timestamp;
use crate::settings::testing::settings;
use crate::settings::{KeyDisplay, LimitSpec, Settings};
use crate::store::bucket::{BucketAsk, BucketReceipt};
use crate::store::claim::ClaimFailure;
use crate::store::process::ProcessStore;
use crate::store::script::Verb;

const ALLOWED: Decision = Decision { outcome: Outcome::Allow, remaining: 3 };

/// Settings with these limits, whose store is a Redis that is not there.
fn settings_of(limits: &str) -> Settings {
    settings(&format!(
        "[store]\nurl = \"redis://127.0.0.1:1\"\ntimeout = \"5s\"\n{limits}\
                   [[routes]]\npath = \"/\"\nrespond = {{}}\n"
    ))
}

fn store(settings: &Settings) -> Arc<Store> {
    Store::new(ProcessStore::new(&settings.store), &settings.store, KeyDisplay::Plain)
}

fn now() -> Moment {
    Moment::now(Timestamp::from_micros(1_700_000_000_000_000).unwrap())
}

/// A claim for each limit of the settings, in the order of their names.
fn claims<'p>(store: &Store, settings: &'p Settings) -> Vec<Claim<'p>> {
    let claim = |spec: &'p Arc<LimitSpec>| {
        let algorithm = spec.figures.at(Timestamp::MIN).unwrap();
        let ask = Ask { mode: spec.mode, ..Ask::for_one(algorithm) };
        Claim::new(store, spec, Key::of([None]).into(), ask)
    };
    settings.limits.iter().map(claim).collect()
}

fn asking<'q>(store: &'q Arc<Store>) -> Asking<'q> {
    let redis = store.redis.as_ref().unwrap();
    let (receipts, deadline) = (ReceiptUse::Needed, redis.router.deadline());
    Asking { store, redis, moment: now(), deadline, receipts }
}

/// Redis decides on this claim, as it would in answer to a question.
fn redis_decides(claim: &mut Claim<'_>, decision: Decision) {
    claim.decide(decision, Decider::Redis, Some(BucketReceipt::of(Receipt::NONE)));
}

/// What this process's bucket of a claim has left.
fn left(store: &Store, claim: &Claim<'_>) -> u64 {
    let BucketAsk { spec, key, ask } = claim.question();
    store.peek_here(&BucketAsk { spec, key, ask }, now().time).remaining
}

#[tokio::test]
async fn tokens_of_one_limit_go_back_when_another_refuses() {
    let settings =
        settings_of("[limits.a]\nscope = \"node\"\nrate = \"9/h\"\n[limits.b]\nrate = \"9/h\"\n");
    let store = store(&settings);
    for (decision, kept) in [(ALLOWED, 8), (Decision::NEVER, 8), (ALLOWED, 7)] {
        let mut claims = claims(&store, &settings);
        let mut all: Vec<_> = claims.iter_mut().collect();
        let asking = asking(&store);
        asking.ask_process(&mut all);
        redis_decides(all[1], decision);
        asking.keep_or_give_back(&mut all);
        assert_eq!(left(&store, all[0]), kept, "{decision:?}");
        assert_eq!(all[0].decision().unwrap().remaining, kept, "the answer says so");
    }
}

#[tokio::test]
async fn once_a_limit_has_refused_the_later_ones_are_only_asked_what_they_would_say() {
    let settings = settings_of(
        "[limits.a]\nrate = \"9/h\"\n[limits.b]\nrate = \"9/h\"\n\
         [limits.c]\nrate = \"9/h\"\nmode = \"shadow\"\n",
    );
    let store = store(&settings);
    let mut claims = claims(&store, &settings);
    let mut all: Vec<_> = claims.iter_mut().collect();
    assert!(!has_refused(&all));
    redis_decides(all[0], ALLOWED);
    redis_decides(all[2], Decision::NEVER);
    assert!(!has_refused(&all), "a limit in shadow stops nobody");
    redis_decides(all[1], Decision::NEVER);
    assert!(has_refused(&all));
    assert_eq!(verb(all[2], true), Verb::Look);
    all[2].ask.mode = Mode::Candidate;
    assert_eq!(verb(all[2], true), Verb::Take, "a candidate takes all the same");
}

#[tokio::test]
async fn keys_of_one_hash_slot_are_asked_by_one_call() {
    let settings = settings_of(
        "[limits.a]\nrate = \"9/h\"\n[limits.b]\nscope = \"node\"\nrate = \"9/h\"\n\
         [limits.c]\nrate = \"9/h\"\n[limits.d]\nrate = \"9/h\"\n",
    );
    let store = store(&settings);
    let mut claims = claims(&store, &settings);
    redis_decides(&mut claims[3], ALLOWED);
    let mut all: Vec<_> = claims.iter_mut().collect();
    let sizes: Vec<_> = calls(&mut all).iter().map(|call| call.len()).collect();
    assert_eq!(sizes, [2], "`b` is here, and `d` is decided");
}

#[tokio::test]
async fn if_redis_does_not_decide_each_limit_follows_its_on_store_error() {
    let limits =
        "[limits.a]\nrate = \"9/h\"\non_store_error = \"allow\"\n[limits.b]\nrate = \"9/h\"\n";
    let reject = "[limits.c]\nrate = \"9/h\"\non_store_error = \"reject\"\n";
    let settings = settings_of(limits);
    let away = store(&settings);
    let mut open = claims(&away, &settings);
    let mut all: Vec<_> = open.iter_mut().collect();
    assert_eq!(away.take(&mut all, now()).await, Ok(()));
    assert_eq!((all[0].decider(), all[0].failure()), (None, Some(ClaimFailure::Unreachable)));
    assert_eq!(all[1].decider(), Some(Decider::Process));

    let settings = settings_of(&format!("{limits}{reject}"));
    let away = store(&settings);
    let mut open = claims(&away, &settings);
    let mut all: Vec<_> = open.iter_mut().collect();
    assert_eq!(away.take(&mut all, now()).await, Err(Unavailable { by: 2 }));
    assert_eq!(left(&away, all[1]), 9, "nothing was taken");
}
