//! Random histories, played everywhere.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::limit::Mode;
use tidegate::limit::algorithm::{Algorithm, Difference, sliding_log};
use tidegate::limit::decide::Ask;
use tidegate::limit::decision::{Decision, Outcome};
use tidegate::limit::rate::{Cost, EXACT, Rate};
use tidegate::limit::waiting::MaxWait;
use tidegate::settings::LimitSpec;

use super::algorithms::SECOND;
use super::bytes::Written;
use super::history::{Clock, LIMITS, Played, START, Step, World, any_history, play};
use super::players::InStore;
use super::script::{self, Expiry};
use crate::support::bench::Bench;
use crate::support::limits::settled;
use crate::support::redis::RedisServer;

fn specs() -> Vec<Arc<LimitSpec>> {
    (0..LIMITS).map(|number| Arc::new(settled(&format!("bucket-{number}")))).collect()
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// A wait of 285 years is sent two microseconds shorter: what stands for it is a double below -2^53.
fn as_sent(decision: &Decision) -> Decision {
    let longest = Duration::from_micros(EXACT - 3);
    let outcome = match decision.outcome {
        Outcome::Reject { retry_after: Some(wait) } if wait > longest => {
            Outcome::Reject { retry_after: Some(longest) }
        }
        Outcome::Delay(wait) => Outcome::Delay(wait.min(longest)),
        outcome => outcome,
    };
    Decision { outcome, ..*decision }
}

fn check_script(
    connection: &mut redis::Connection,
    played: &Played,
    expiry: Expiry,
) -> Result<(), TestCaseError> {
    let mut from = 0;
    for (size, answer) in script::play(connection, &played.events, &played.known, expiry) {
        let events = from..from + size;
        let expected: Vec<_> = played.said[events.clone()].iter().flatten().map(as_sent).collect();
        let said: Vec<_> = answer.decisions.iter().map(as_sent).collect();
        prop_assert_eq!(said, expected, "events {:?}", events);
        for key in answer.kept.iter().filter(|_| expiry == Expiry::Never) {
            let mut touched = played.kept[events.clone()].iter().flatten();
            let (_, last) = touched.rfind(|(name, _)| *name == key.name).unwrap();
            let (holds, spare) = last.without_spare(&key.holds);
            prop_assert_eq!(holds, &last.holds[..], "{} after events {:?}", key.name, events);
            if let Some(goes_at) = last.goes_at(spare) {
                prop_assert_eq!(key.goes_at, goes_at, "{} after events {:?}", key.name, events);
            }
        }
        from += size;
    }
    prop_assert_eq!(from, played.events.len());
    Ok(())
}

#[test]
fn the_script_has_the_functions_decisions_and_bytes() {
    let server = RedisServer::start();
    let connection = RefCell::new(server.connection());
    proptest!(config(600), |(played in any_history(World::Wild))| {
        check_script(&mut connection.borrow_mut(), &played, Expiry::Never)?;
    });
}

#[test]
fn the_scripts_sliding_logs_are_those_of_the_pure_functions() {
    let server = RedisServer::start();
    let connection = RefCell::new(server.connection());
    proptest!(config(600), |(played in any_history(World::Logs))| {
        check_script(&mut connection.borrow_mut(), &played, Expiry::Never)?;
    });
}

#[test]
fn keys_that_expire_change_no_decision() {
    let server = RedisServer::start();
    let connection = RefCell::new(server.connection());
    proptest!(config(300), |(played in any_history(World::Tame))| {
        check_script(&mut connection.borrow_mut(), &played, Expiry::ByTheClock)?;
    });
}

#[test]
fn the_process_decides_as_the_pure_functions() {
    check_process(World::Tame);
}

#[test]
fn the_process_follows_the_functions_to_other_figures() {
    check_process(World::Reloaded);
}

fn check_process(world: World) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    proptest!(config(600), |(played in any_history(world))| {
        runtime.block_on(async {
            let mut place = InStore::new(Bench::memory(), specs());
            for (number, (event, expected)) in played.events.iter().zip(&played.said).enumerate() {
                prop_assert_eq!(&place.play(event).await, expected, "event {}", number);
                // What is swept is as good as new under the figures under which it was written.
                if world == World::Tame {
                    place.sweep(event.now);
                }
            }
            Ok(())
        })?;
    });
}

/// With rates at which the time that the test takes makes no difference but to the waits.
#[test]
fn redis_decides_as_the_pure_functions() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = RedisServer::start();
    proptest!(config(30), |(played in any_history(World::Still))| {
        let () = server.run(&["FLUSHALL"]);
        runtime.block_on(async {
            let mut place = InStore::new(Bench::of(&server), specs());
            for (number, (event, expected)) in played.events.iter().zip(&played.said).enumerate() {
                for (said, expected) in place.play(event).await.iter().zip(expected) {
                    let agrees = said.remaining == expected.remaining
                        && place.bench.agrees(said.outcome, expected.outcome);
                    prop_assert!(agrees, "event {}: {:?} instead of {:?}", number, said, expected);
                }
            }
            Ok(())
        })?;
    });
}

/// However many come in one microsecond, whatever was given back or waits: a second entry of the same
/// name would take the place of the first.
#[test]
fn every_permit_has_an_entry_of_its_own() {
    let rate = Rate::new(50, SECOND).unwrap();
    let algorithm = Algorithm::SlidingLog(sliding_log::Params::new(rate).unwrap());
    let max_wait = MaxWait::ENDLESS;
    let ask = |cost| {
        let cost = Cost::new(cost).unwrap();
        Step::Request(vec![Ask { algorithm, cost, max_wait, mode: Mode::Enforce, takes: true }])
    };
    let used = |request, used| Step::Settle(request, 0, used, false);
    let steps = vec![
        ask(30),
        ask(19),
        used(0, Difference::More(2)),
        ask(7),
        ask(3),
        used(1, Difference::More(3)),
        ask(1),
        used(2, Difference::Less(2)),
        used(3, Difference::More(1)),
        ask(2),
    ];
    let steps = steps.into_iter().map(|step| (Clock::Forward(0), step)).collect();
    let played = play(World::Tame, START, &[], steps);
    let server = RedisServer::start();
    check_script(&mut server.connection(), &played, Expiry::Never).unwrap();
    let count = |kept: &Vec<(String, Written)>| {
        str::from_utf8(&kept[0].1.holds).unwrap().split(' ').count()
    };
    let counts: Vec<_> = played.kept.iter().map(count).collect();
    assert_eq!(counts, [30, 49, 51, 58, 61, 64, 65, 63, 64, 66]);
}
