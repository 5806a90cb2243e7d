//! Faults that other limiters have, each with the arithmetic that has it as a small model: the check that
//! we pass is one that the model fails.

mod clocks;
mod expiry;

use tidegate::limit::algorithm::redisson::Sharing;
use tidegate::limit::algorithm::{Algorithm, redisson};
use tidegate::limit::decision::Outcome;

use crate::library::cases::algorithms::SECOND;
use crate::library::cases::all_players::{AllPlayers, request};
use crate::library::cases::script;
use crate::support::algorithms::{leaky, log, on_the_clock, rolling, sliding};
use crate::support::limits::bucket;
use crate::support::redis::RedisServer;

/// Calls at a little less than nine in ten of a rate of so many requests a second.
fn steady(per_second: u64) -> impl Iterator<Item = u64> + Clone {
    (0..185).map(move |call| call * (SECOND * 10 / (9 * per_second) + 1))
}

/// A bucket in a hash that gains for the whole seconds since the last call, whether that passed or not.
#[test]
fn a_steady_caller_below_the_rate_is_never_starved() {
    let (mut tokens, mut last) = (5, 0);
    let mut script = |now: u64| {
        tokens = (tokens + (now - last) / SECOND * 10).min(5);
        last = now;
        let passes = tokens > 0;
        tokens -= u64::from(passes);
        passes
    };
    assert_eq!(steady(10).filter(|now| script(*now)).count(), 5);

    let players = AllPlayers::start();
    for algorithm in [
        bucket("10/s", 5),
        bucket("10/s", 1),
        leaky("10/s", 0),
        rolling("10/s"),
        on_the_clock("10/s"),
        sliding("10/s"),
        log("10/s"),
    ] {
        assert_eq!(players.passed(algorithm, steady(10)), 185, "{algorithm}");
    }
    for algorithm in [bucket("1/s", 1), leaky("1/s", 0), rolling("1/s"), log("1/s")] {
        assert_eq!(players.passed(algorithm, steady(1)), 185, "{algorithm}");
    }
}

/// The same of a limiter of Redisson's, whose script has no twin.
#[test]
fn a_steady_caller_of_a_shared_limiter_is_never_starved() {
    let params = redisson::Params::new(Some("10/s".parse().unwrap()), Sharing::Overall).unwrap();
    let server = RedisServer::start();
    let mut connection = server.connection();
    for now in steady(10) {
        let event = request(&[Algorithm::Redisson(params)], now);
        let said = script::ask_limiter(&mut connection, &event);
        assert_eq!(said.outcome, Outcome::Allow, "at {now}");
    }
}

/// Two counters round a part of a request up to a whole one. That is in the documentation: from a count
/// of ten on the tenth that is free is enough for it, below some are refused, and nobody for ever.
#[test]
fn a_sliding_window_of_a_small_count_lets_fewer_through() {
    let players = AllPlayers::start();
    for (count, expected) in [(1, 103), (2, 104), (5, 164), (9, 183), (10, 185), (11, 185)] {
        let passed = players.passed(sliding(&format!("{count}/s")), steady(count));
        assert_eq!(passed, expected, "{count}");
    }
}
