//! How far the sliding window's two counters are from an exact log: `cargo bench --bench windows`.
//!
//! For each kind of traffic: the most that passed in any interval, against the limit's count; and how
//! many decisions an exact log of what had passed would have made otherwise. Nothing is timed, and the
//! same figures come out each time.

#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use tidegate::limit::algorithm::sliding_window::Params;
use tidegate::limit::algorithm::{Algorithm, BucketState, Want};
use tidegate::limit::decision::Outcome;
use tidegate::limit::rate::{Burst, Cost, Interval};
use tidegate::limit::time::Timestamp;
use tidegate::limit::waiting::MaxWait;

const INTERVAL: u64 = 60_000_000;
const WINDOWS: u64 = 2_000;
const BEGIN: u64 = 28_000_000 * INTERVAL;

/// A generator of numbers that are the same each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        #[allow(clippy::cast_precision_loss, reason = "53 bits are exact")]
        let unit = ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
        unit
    }

    /// Microseconds to the next of events that come at random, `mean` apart.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time to come")]
    fn gap(&mut self, mean: f64) -> u64 {
        (-mean * (1.0 - self.next()).ln()).ceil() as u64
    }
}

/// Times of requests, in ascending order.
type Traffic = Vec<u64>;

/// Requests at random, so many times the limit's rate.
fn random(count: u64, load: f64) -> Traffic {
    let mut random = Random(7);
    #[allow(clippy::cast_precision_loss, reason = "small figures")]
    let mean = INTERVAL as f64 / (count as f64 * load);
    let mut now = BEGIN;
    std::iter::from_fn(|| {
        now += random.gap(mean);
        (now < BEGIN + WINDOWS * INTERVAL).then_some(now)
    })
    .collect()
}

/// Requests at even distances.
fn steady(count: u64, tenths: u64) -> Traffic {
    let gap = INTERVAL * 10 / (count * tenths);
    (0..WINDOWS * INTERVAL / gap).map(|place| BEGIN + place * gap).collect()
}

/// Half of the limit's count within a second, at a random time of every minute or so.
fn bursts(count: u64) -> Traffic {
    let mut random = Random(11);
    let mut now = BEGIN;
    let mut traffic = Traffic::new();
    while now < BEGIN + WINDOWS * INTERVAL {
        now += random.gap(40_000_000.0);
        for _ in 0..count / 2 {
            now += random.gap(2_000_000.0 / 100.0);
            traffic.push(now);
        }
    }
    traffic
}

/// Everything just before a window of the clock ends, then without pause for one interval; then
/// nothing until all is forgotten.
fn attack(count: u64) -> Traffic {
    let gap = INTERVAL / (4 * count);
    let round = |place: u64| {
        let edge = BEGIN + 4 * place * INTERVAL;
        let burst = std::iter::repeat_n(edge - 1, usize::try_from(count).unwrap());
        burst.chain((0..4 * count).map(move |step| edge + step * gap))
    };
    (1..WINDOWS / 4).flat_map(round).collect()
}

fn main() {
    println!("traffic                  count    passed  most in an interval  too many  too few");
    for count in [10, 100, 1_000] {
        for (name, traffic) in [
            ("steady, 0.9 of the rate", steady(count, 9)),
            ("random, half the rate", random(count, 0.5)),
            ("random, the rate", random(count, 1.0)),
            ("random, twice the rate", random(count, 2.0)),
            ("bursts of half a minute", bursts(count)),
            ("an attack at the edges", attack(count)),
        ] {
            play(name, count, &traffic);
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "small figures")]
fn play(name: &str, count: u64, traffic: &[u64]) {
    let interval = Interval::from_micros(INTERVAL).unwrap();
    let params = Params::new(Burst::new(count).unwrap(), interval);
    let algorithm = Algorithm::SlidingWindow(params);
    let want = Want { cost: Cost::ONE, max_wait: MaxWait::NONE };
    let mut state: Option<BucketState> = None;
    let mut passed: Vec<u64> = Vec::new();
    // Those before this place are outside the interval that ends now.
    let mut oldest = 0;
    let (mut most, mut too_many, mut too_few) = (0, 0_u64, 0_u64);
    for now in traffic {
        let step = algorithm.decide(state, want, Timestamp::from_micros(*now).unwrap());
        state = step.taken.or(step.kept).or(state);
        while passed.get(oldest).is_some_and(|time| time + INTERVAL <= *now) {
            oldest += 1;
        }
        let inside = (passed.len() - oldest) as u64;
        if step.decision.outcome == Outcome::Allow {
            too_many += u64::from(inside >= count);
            passed.push(*now);
            most = most.max(inside + 1);
        } else {
            too_few += u64::from(inside < count);
        }
    }
    let share = |part: u64| 100.0 * part as f64 / traffic.len() as f64;
    println!(
        "{name:<24} {count:>5}  {:>8}  {most:>10} ({:>+5.1} %)  {:>6.2} %  {:>5.2} %",
        passed.len(),
        100.0 * (most as f64 / count as f64 - 1.0),
        share(too_many),
        share(too_few)
    );
}
