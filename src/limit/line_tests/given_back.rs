//! Clients of held requests that leave, and what goes back then.

use std::time::Duration;

use proptest::prelude::*;

use super::super::algorithm::fixed_window::{self, windows::Windows};
use super::super::algorithm::token_bucket::Params;
use super::super::algorithm::{Algorithm, Receipt, leaky_bucket};
use super::super::decide::{Ask, decide};
use super::super::decision::Verdict;
use super::super::rate::{Cost, Interval};
use super::super::time::Timestamp;
use super::super::waiting::MaxWait;
use super::{BEGIN, Buckets, SECOND, at, burst, patient, rate};

fn held_for_a_minute() -> MaxWait {
    MaxWait::of(Duration::from_secs(60))
}

/// Limits that let far more pass than the one that holds requests.
fn generous() -> [Algorithm; 3] {
    let windows = Windows::Rolling(Interval::from_micros(SECOND).unwrap());
    [
        Algorithm::TokenBucket(Params { rate: rate(100, 1), burst: burst(100) }),
        Algorithm::LeakyBucket(leaky_bucket::Params::new(rate(100, 1), 60).unwrap()),
        Algorithm::FixedWindow(fixed_window::Params { count: burst(100), windows }),
    ]
}

/// A bucket that is ahead of the clock does not know what was taken before. If it became a new bucket, a client
/// could send a burst, hang up, and send the next burst.
#[test]
fn where_all_clients_have_left_nothing_goes_before_their_last_moment() {
    let slow = Algorithm::TokenBucket(Params { rate: rate(1, 1), burst: burst(1) });
    for algorithm in generous() {
        let asks =
            [slow, algorithm].map(|algorithm| Ask { algorithm, ..patient(held_for_a_minute()) });
        let mut buckets = Buckets::new(2);
        let held: Vec<_> = (0..50).map(|_| buckets.hold(&asks, at(BEGIN)).1).collect();
        let left = at(BEGIN + SECOND / 10);
        for receipts in &held {
            for (place, (ask, receipt)) in asks.iter().zip(receipts).enumerate() {
                buckets.give_back(place, ask, (1, *receipt), left);
            }
        }
        let (wait, _) = buckets.hold(&asks, at(BEGIN + 2 * SECOND));
        assert_eq!(wait, Duration::from_secs(47), "{algorithm}");
        let (wait, _) = buckets.hold(&asks, at(BEGIN + 60 * SECOND));
        assert_eq!(wait, Duration::ZERO, "{algorithm}");
    }
}

#[test]
fn bursts_of_clients_that_hang_up_let_no_more_pass() {
    let windows = Windows::Clock(Interval::from_micros(5 * SECOND).unwrap());
    let window = Algorithm::FixedWindow(fixed_window::Params { count: burst(6), windows });
    let bucket = Algorithm::TokenBucket(Params { rate: rate(2, 1), burst: burst(2) });
    let max_wait = MaxWait::of(Duration::from_secs(8));
    let asks = [bucket, window].map(|algorithm| Ask { algorithm, ..patient(max_wait) });
    let (mut buckets, mut passed) = (Buckets::new(2), 0);
    for round in 0..20 {
        let now = BEGIN + round * SECOND / 4;
        let mut held = Vec::new();
        for _ in 0..7 {
            if decide(&asks, &buckets.states, at(now).into()).verdict.passes() {
                held.push(buckets.hold(&asks, at(now)));
            }
        }
        for (wait, receipts) in held {
            if wait <= Duration::from_millis(150) {
                passed += 1;
                continue;
            }
            let left = at(now + 150_000);
            for (place, (ask, receipt)) in asks.iter().zip(receipts).enumerate() {
                buckets.give_back(place, ask, (1, receipt), left);
            }
        }
    }
    assert!(passed <= 6, "{passed} in one window");
}

/// Requests that come, and after how many later ones their clients leave.
fn any_visits() -> impl Strategy<Value = Vec<(u64, Option<usize>)>> {
    let gap = prop_oneof![4 => Just(0), 3 => 0..SECOND, 1 => 0..5 * SECOND];
    prop::collection::vec(
        (gap, prop_oneof![2 => Just(None), 3 => (0_usize..9).prop_map(Some)]),
        1..80,
    )
}

proptest! {
    #[test]
    fn clients_that_leave_let_no_more_pass(
        windows in prop::collection::vec((1_u64..6, 1_u64..8), 1..3),
        (count, size, even) in (1_u64..6, 1_u64..6, any::<bool>()),
        visits in any_visits(),
    ) {
        let window = |(count, seconds): (u64, u64)| {
            let windows = Windows::Clock(Interval::from_micros(seconds * SECOND).unwrap());
            fixed_window::Params { count: burst(count), windows }
        };
        let bucket = match even {
            true => Algorithm::LeakyBucket(leaky_bucket::Params::new(rate(count, 1), size).unwrap()),
            false => Algorithm::TokenBucket(Params { rate: rate(count, 1), burst: burst(size) }),
        };
        let algorithms = windows.iter().map(|it| Algorithm::FixedWindow(window(*it))).chain([bucket]);
        let asks: Vec<_> =
            algorithms.map(|algorithm| Ask { algorithm, ..patient(held_for_a_minute()) }).collect();
        let (mut buckets, mut now) = (Buckets::new(asks.len()), BEGIN);
        // The moments, with what is given back where the client leaves, and when it leaves.
        let mut held: Vec<(Timestamp, Vec<Receipt>, Option<usize>)> = Vec::new();
        for (number, (gap, leaves)) in visits.into_iter().enumerate() {
            now += gap;
            let decided = decide(&asks, &buckets.states, at(now).into());
            if let Verdict::Pass { wait } = decided.verdict {
                let (_, receipts) = buckets.hold(&asks, at(now));
                held.push((at(now).plus(wait), receipts, leaves.map(|after| number + after)));
            }
            held.retain(|(goes, receipts, leaves)| {
                let left = leaves.is_some_and(|leaves| leaves <= number) && *goes > at(now);
                if left {
                    for (place, (ask, receipt)) in asks.iter().zip(receipts).enumerate() {
                        buckets.give_back(place, ask, (1, *receipt), at(now));
                    }
                }
                !left
            });
        }
        let mut goes: Vec<_> = held.iter().map(|(goes, ..)| goes.as_micros()).collect();
        goes.sort_unstable();
        for (count, seconds) in windows {
            for window in goes.chunk_by(|a, b| a / (seconds * SECOND) == b / (seconds * SECOND)) {
                prop_assert!(window.len() as u64 <= count, "{window:?} in {goes:?}");
            }
        }
        for (number, goes) in goes.iter().enumerate() {
            let most = size.max(1) + count * (goes - BEGIN) / SECOND + 1;
            prop_assert!((number as u64) < most, "request {number} at {goes}");
        }
    }
}

proptest! {
    /// A regression: the tokens of a client that had left went to later requests. These then went at the same moments as
    /// the requests that had waited: three times as many in a second as the rate says.
    #[test]
    fn clients_that_leave_make_no_burst(
        (count, size, even) in (1_u64..6, 1_u64..6, any::<bool>()),
        visits in any_visits(),
    ) {
        let algorithm = match even {
            true => Algorithm::LeakyBucket(leaky_bucket::Params::new(rate(count, 1), size).unwrap()),
            false => Algorithm::TokenBucket(Params { rate: rate(count, 1), burst: burst(size) }),
        };
        let asks = [Ask { algorithm, ..patient(held_for_a_minute()) }];
        let (mut buckets, mut now) = (Buckets::new(1), BEGIN);
        let mut held: Vec<(Timestamp, Receipt, Option<usize>)> = Vec::new();
        for (number, (gap, leaves)) in visits.into_iter().enumerate() {
            now += gap;
            if let Verdict::Pass { wait } = decide(&asks, &buckets.states, at(now).into()).verdict {
                let (_, receipts) = buckets.hold(&asks, at(now));
                held.push((at(now).plus(wait), receipts[0], leaves.map(|after| number + after)));
            }
            held.retain(|(goes, receipt, leaves)| {
                let left = leaves.is_some_and(|leaves| leaves <= number) && *goes > at(now);
                if left {
                    buckets.give_back(0, &asks[0], (1, *receipt), at(now));
                }
                !left
            });
        }
        let mut goes: Vec<_> = held.iter().map(|(goes, ..)| goes.as_micros()).collect();
        goes.sort_unstable();
        for (first, from) in goes.iter().enumerate() {
            for (last, to) in goes.iter().enumerate().skip(first) {
                let went = (last - first + 1) as u64;
                // Moments are whole microseconds.
                let beyond = went.saturating_sub(size) * SECOND;
                prop_assert!(beyond <= (to - from + 1) * count, "{goes:?}");
            }
        }
    }
}

#[test]
fn a_lowered_rate_does_not_make_the_time_before_a_held_request_longer() {
    let interval = Interval::from_micros(60 * SECOND).unwrap();
    let windows = Windows::Clock(interval);
    let window = Algorithm::FixedWindow(fixed_window::Params { count: burst(1), windows });
    for algorithm in generous() {
        let asks =
            [window, algorithm].map(|algorithm| Ask { algorithm, ..patient(held_for_a_minute()) });
        let (mut buckets, begin) = (Buckets::new(2), BEGIN - BEGIN % (60 * SECOND));
        assert_eq!(buckets.hold(&asks, at(begin)).0, Duration::ZERO);
        assert_eq!(buckets.hold(&asks, at(begin)).0, Duration::from_secs(60));
        let lowered = match algorithm {
            Algorithm::TokenBucket(params) => {
                Algorithm::TokenBucket(Params { rate: rate(1, 1), ..params })
            }
            Algorithm::LeakyBucket(_) => {
                Algorithm::LeakyBucket(leaky_bucket::Params::new(rate(1, 1), 60).unwrap())
            }
            _ => Algorithm::FixedWindow(fixed_window::Params {
                count: burst(1),
                windows: Windows::Rolling(Interval::from_micros(SECOND).unwrap()),
            }),
        };
        let asks = [asks[0], Ask { algorithm: lowered, ..asks[1] }];
        assert_eq!(buckets.hold(&asks, at(begin + 120 * SECOND)).0, Duration::ZERO, "{algorithm}");
    }
}

/// What goes back would have come back long before the held requests go.
#[test]
fn a_settlement_makes_no_room_behind_held_requests() {
    let interval = Interval::from_micros(60 * SECOND).unwrap();
    let windows = Windows::Clock(interval);
    let window = Algorithm::FixedWindow(fixed_window::Params { count: burst(30), windows });
    let bucket = Algorithm::TokenBucket(Params { rate: rate(10, 1), burst: burst(10) });
    let asks = [window, bucket].map(|algorithm| Ask { algorithm, ..patient(MaxWait::ENDLESS) });
    let (mut buckets, begin) = (Buckets::new(2), BEGIN - BEGIN % (60 * SECOND));
    let of = |tokens, ask: Ask| Ask { cost: Cost::new(tokens).unwrap(), ..ask };
    buckets.take(0, &of(30, asks[0]), at(begin));
    let first = buckets.take(1, &of(10, asks[1]), at(begin));
    let mut waits = Vec::new();
    waits.extend((0..10).map(|_| buckets.hold(&asks, at(begin)).0));
    buckets.give_back(1, &asks[1], (9, first), at(begin + SECOND / 5));
    waits.extend((0..15).map(|_| buckets.hold(&asks, at(begin)).0));
    let next = Duration::from_secs(60);
    assert_eq!(waits.iter().filter(|wait| **wait == next).count(), 10);
    assert_eq!(waits.last(), Some(&(next + Duration::from_millis(1_500))));
}
