//! The steps of the order of asking, one by one. The tests say what Redis has decided: no Redis answers here.

use std::time::Duration;

use super::*;
use crate::limit::algorithm::Receipt;
use crate::limit::bucket::BucketReceipt;
use crate::limit::call::Verb;
use crate::limit::decide::Ask;
use crate::limit::decision::{Decision, Outcome};
use crate::limit::key::Key;
use crate::limit::time::Timestamp;
use crate::settings::testing::settings;
use crate::settings::{KeyDisplay, LimitSpec, Settings};
use crate::store::process::ProcessStore;

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

/// A claim for each limit of the settings, in the order of their names.
fn claims<'p>(store: &Store, settings: &'p Settings) -> Vec<Claim<'p>> {
    let claim = |spec: &'p Arc<LimitSpec>| {
        let algorithm = spec.figures.at(Timestamp::MIN).unwrap();
        let ask = Ask { mode: spec.mode, ..Ask::for_one(algorithm) };
        Claim::new(store, spec, Key::of([None]).into(), ask)
    };
    settings.limits.iter().map(claim).collect()
}

/// Redis decides on this claim, as it would in answer to a question.
fn redis_decides(claim: &mut Claim<'_>, decision: Decision) {
    claim.decide(decision, Decider::Redis, Some(BucketReceipt::of(Receipt::NONE)));
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

/// A regression: once Redis counted as away, no request was counted that this process decided.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_decided_here_during_an_outage_is_counted() {
    let settings = settings_of("[limits.a]\nrate = \"9/h\"\n");
    let store = store(&settings);
    store.connected(Duration::from_secs(60)).await;
    assert_eq!(store.shared.counters().redis_up, Some(false));
    let mut claims = claims(&store, &settings);
    let mut all: Vec<_> = claims.iter_mut().collect();
    store.take(&mut all, ClockReading::now(Timestamp::MIN)).await.unwrap();
    assert_eq!(claims[0].decider(), Some(Decider::Process));
    assert_eq!(store.shared.counters().decided_without, 1);
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
