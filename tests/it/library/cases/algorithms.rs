//! Algorithms of every kind and size, the extreme ones often.

use std::ops::RangeInclusive;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::limit::algorithm::fixed_window::windows::{Schedule, Unit, Windows};
use tidegate::limit::algorithm::token_bucket::Params;
use tidegate::limit::algorithm::{Algorithm, leaky_bucket, sliding_log, sliding_window};
use tidegate::limit::rate::{Burst, EXACT, Interval, MAX_INTERVAL, Rate};
use tidegate::limit::time::{STALE, Timestamp};

use crate::support::algorithms::{slots, window};

pub(crate) const SECOND: u64 = 1_000_000;
pub(crate) const HOUR: u64 = 3_600 * SECOND;
pub(crate) const DAY: u64 = 24 * HOUR;

/// Where a clock that is a little behind becomes one that stepped back.
pub(crate) const STALE_BY: RangeInclusive<u64> = STALE - 1..=STALE + 1;

/// Of figures that people use, or any that are allowed.
pub(crate) fn any_algorithm(wild: bool) -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        4 => any_bucket(wild),
        3 => any_fixed_window(wild),
        2 => any_sliding_window(wild),
        3 => any_log(wild),
        2 => any_slots(wild),
    ]
}

/// One to which it makes no difference when something happens, nor that some time passes meanwhile.
pub(crate) fn any_still_algorithm() -> impl Strategy<Value = Algorithm> {
    let hours = || (1_u64..9).prop_map(|hours| hours * HOUR);
    let burst = || (1_u64..20).prop_map(burst);
    prop_oneof![
        (hours(), burst()).prop_map(|(hours, burst)| {
            Algorithm::TokenBucket(Params { rate: Rate::new(1, hours).unwrap(), burst })
        }),
        (hours(), 0_u64..20).prop_map(|(hours, queue)| {
            let rate = Rate::new(1, hours).unwrap();
            Algorithm::LeakyBucket(leaky_bucket::Params::new(rate, queue).unwrap())
        }),
        (hours(), 1_u64..20).prop_map(|(hours, count)| {
            window(count, Windows::Rolling(Interval::from_micros(hours).unwrap()))
        }),
        (hours(), 1_u64..20).prop_map(|(hours, count)| {
            let rate = Rate::new(count, hours).unwrap();
            Algorithm::SlidingLog(sliding_log::Params::new(rate).unwrap())
        }),
        (1_u64..20).prop_map(|limit| slots(limit, Duration::from_micros(HOUR))),
    ]
}

pub(crate) fn any_bucket(wild: bool) -> impl Strategy<Value = Algorithm> {
    let usual = prop_oneof![
        Just((1, DAY)),
        Just((1_000, 600 * SECOND)),
        Just((30, HOUR)),
        Just((10_000_000, SECOND)),
        (1_u64..1_000, Just(SECOND)),
        (1_u64..1_000, Just(60 * SECOND)),
        // One token at a time: several of these meet in one history.
        (
            prop::sample::select(&[1, 2, 5, 10, 100][..]),
            prop::sample::select(&[SECOND, 60 * SECOND, HOUR, DAY][..]),
        ),
    ];
    let odd = prop_oneof![
        Just((1, MAX_INTERVAL)),
        Just((EXACT - 1, 1)),
        // Coprime, their product just below 2^53.
        Just((94_906_265, 94_906_264)),
        (1_u64..1_000, 1_u64..10),
        (1_u64..10_000_000, 1_u64..DAY),
    ];
    let rate = prop_oneof![2 => usual, if wild { 3 } else { 0 } => odd];
    let figures = (rate, any_count())
        .prop_filter_map("a rate that fits", |((count, interval), burst)| {
            Some((Rate::new(count, interval).ok()?, burst))
        });
    (figures, any::<bool>()).prop_map(|((rate, burst), even)| match even {
        true => {
            let params = leaky_bucket::Params::new(rate, burst.get() - 1).unwrap();
            Algorithm::LeakyBucket(params)
        }
        false => Algorithm::TokenBucket(Params { rate, burst }),
    })
}

fn any_fixed_window(wild: bool) -> impl Strategy<Value = Algorithm> {
    let lengths = prop_oneof![Just(DAY), DAY - HOUR..DAY + HOUR, 28 * DAY..31 * DAY, 1_u64..10];
    let calendar = (0_u64..3, prop::collection::vec(lengths, 9), 0_usize..9).prop_map(
        |(far, lengths, around)| {
            let starts: Vec<_> = lengths
                .into_iter()
                .scan(1_700_000_000 * SECOND - far * DAY, |start, length| {
                    *start += length;
                    Some(Timestamp::from_micros(*start).unwrap())
                })
                .collect();
            let now = starts[around];
            Schedule::new(Unit::Day, "Somewhere".into(), starts).unwrap().around(now)
        },
    );
    let windows = prop_oneof![
        any_interval(wild).prop_map(Windows::Rolling),
        any_interval(wild).prop_map(Windows::Clock),
        calendar,
    ];
    (any_count(), windows).prop_map(|(count, windows)| window(count.get(), windows))
}

fn any_sliding_window(wild: bool) -> impl Strategy<Value = Algorithm> {
    (any_count(), any_interval(wild)).prop_map(|(count, interval)| {
        Algorithm::SlidingWindow(sliding_window::Params::new(count, interval))
    })
}

pub(super) fn any_log(wild: bool) -> impl Strategy<Value = Algorithm> {
    let count = prop_oneof![6 => 1_u64..6, 4 => 1_u64..50, 1 => Just(3_000)];
    (count, any_interval(wild)).prop_filter_map("a rate that fits", |(count, interval)| {
        let rate = Rate::new(count, interval.as_micros()).ok()?;
        Some(Algorithm::SlidingLog(sliding_log::Params::new(rate)?))
    })
}

fn any_slots(wild: bool) -> impl Strategy<Value = Algorithm> {
    // In the process a slot has no lease.
    let lease = if wild { (SECOND..DAY).boxed() } else { Just(MAX_INTERVAL).boxed() };
    (1_u64..6, lease).prop_map(|(limit, lease)| slots(limit, Duration::from_micros(lease)))
}

fn any_count() -> impl Strategy<Value = Burst> {
    prop_oneof![1_u64..5, 1_u64..1_000, Just(1_000_000_000)].prop_map(burst)
}

fn burst(tokens: u64) -> Burst {
    Burst::new(tokens).unwrap()
}

fn any_interval(wild: bool) -> impl Strategy<Value = Interval> {
    let usual =
        prop_oneof![Just(SECOND), Just(60 * SECOND), Just(DAY), 1..10 * SECOND, 1..30 * DAY];
    let odd = prop_oneof![Just(MAX_INTERVAL), 1_u64..100];
    prop_oneof![5 => usual, if wild { 2 } else { 0 } => odd]
        .prop_map(|micros| Interval::from_micros(micros).unwrap())
}

/// After which time much is as it was.
pub(crate) fn period(algorithm: &Algorithm) -> u64 {
    match algorithm {
        Algorithm::Redisson(_) | Algorithm::Closed => panic!("it has no twin"),
        Algorithm::TokenBucket(params) => params.rate.period(),
        Algorithm::LeakyBucket(params) => params.rate.period(),
        Algorithm::FixedWindow(params) => match params.windows {
            Windows::Rolling(interval) | Windows::Clock(interval) => interval.as_micros(),
            Windows::Calendar(_) => DAY,
        },
        Algorithm::SlidingWindow(params) => params.interval.as_micros(),
        Algorithm::SlidingLog(params) => params.interval.as_micros(),
        Algorithm::Concurrency(params) => {
            u64::try_from(params.lease().as_micros()).unwrap().min(DAY)
        }
    }
}
