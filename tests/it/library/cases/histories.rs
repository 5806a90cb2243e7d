//! Random histories, played everywhere.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::limit::decision::{Decision, Outcome};
use tidegate::limit::rate::EXACT;
use tidegate::settings::LimitSpec;

use super::history::{LIMITS, Played, World, any_history};
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
    for (cases, world, expiry) in [
        (600, World::Wild, Expiry::Never),
        (600, World::Logs, Expiry::Never),
        // Keys that expire change no decision.
        (300, World::Tame, Expiry::ByTheClock),
    ] {
        let server = RedisServer::start();
        let connection = RefCell::new(server.connection());
        proptest!(config(cases), |(played in any_history(world))| {
            check_script(&mut connection.borrow_mut(), &played, expiry)?;
        });
    }
}

#[test]
fn the_process_decides_as_the_pure_functions() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for world in [World::Tame, World::Reloaded] {
        proptest!(config(600), |(played in any_history(world))| {
            runtime.block_on(async {
                let mut place = InStore::new(Bench::memory(), specs());
                let events = played.events.iter().zip(&played.said).enumerate();
                for (number, (event, expected)) in events {
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
