//! How large a burst the keys of a log need at each rate, and the limits that suffice. [`Suggest`](super::Suggest)
//! adds each request.

use std::hash::{Hash as _, Hasher as _};
use std::sync::LazyLock;

use hashbrown::{HashMap, HashSet};
use siphasher::sip::SipHasher13;

use crate::limit::key::Key;
use crate::limit::time::Timestamp;

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// The rates that are tried, as tokens for each interval. Each rate is higher than the one before.
static RATES: LazyLock<Vec<(u64, u64)>> = LazyLock::new(|| {
    let of_units: [(u64, &[u64]); 3] = [
        (HOUR, &[1, 2, 5, 10, 20, 30]),
        (MINUTE, &[1, 2, 5, 10, 20, 30]),
        (SECOND, &[1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000]),
    ];
    let rates = of_units.iter().flat_map(|(unit, all)| all.iter().map(|tokens| (*tokens, *unit)));
    rates.collect()
});

/// The most keys of one limit whose demand is kept. If there are more, only a part is kept. The hashes of the keys
/// decide which keys.
const MOST_KEYS: usize = 200_000;

/// The limit that is suggested gives a key the fewest tokens within this time. They are the burst, and the tokens that
/// come back meanwhile. A shorter time would favour high rates with small bursts. A longer time would favour low
/// rates with large bursts.
const PERIOD: u64 = 10 * MINUTE;

/// The demands of the keys of one limit.
#[derive(Default)]
pub(super) struct Demands {
    pub(super) keys: HashMap<Key, Demand>,
    /// A key is kept if its hash ends with at least this number of zero bits.
    pub(super) sampling: u32,
    pub(super) requests: u64,
}

/// What one key demands of a bucket of each rate. Tokens are counted in small units, so that all numbers are whole:
/// a token has as many units as the rate's interval has microseconds. In each microsecond as many units come back
/// as the rate has tokens in its interval.
#[derive(Clone)]
pub(super) struct Demand {
    pub(super) requests: u64,
    at: Timestamp,
    /// For each rate: the units that are missing now from a full bucket, and the most that were ever missing.
    missing: Box<[(u64, u64)]>,
}

/// A limit that is suggested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Its index in [`RATES`].
    pub(super) rate: usize,
    pub(super) burst: u64,
}

impl Demand {
    fn add(&mut self, now: Timestamp) {
        let passed = now.micros_since(self.at);
        self.at = now;
        self.requests += 1;
        for ((missing, most), (tokens, interval)) in self.missing.iter_mut().zip(&*RATES) {
            let back = passed.saturating_mul(*tokens);
            *missing = missing.saturating_sub(back).saturating_add(*interval);
            *most = (*most).max(*missing);
        }
    }

    /// The smallest burst at this rate with which no request is rejected.
    pub(super) fn burst(&self, rate: usize) -> u64 {
        self.missing[rate].1.div_ceil(RATES[rate].1).max(1)
    }
}

impl Demands {
    pub(super) fn add(&mut self, key: &Key, now: Timestamp) {
        self.requests += 1;
        if let Some(demand) = self.keys.get_mut(key) {
            return demand.add(now);
        }
        if zeros(key) < self.sampling {
            return;
        }
        let missing = vec![(0, 0); RATES.len()].into();
        let mut demand = Demand { requests: 0, at: now, missing };
        demand.add(now);
        self.keys.insert(key.clone(), demand);
        if self.keys.len() > MOST_KEYS {
            self.sampling += 1;
            let sampling = self.sampling;
            self.keys.retain(|key, _| zeros(key) >= sampling);
        }
    }

    /// The smallest limit of this rate that touches at most `allowed` keys.
    fn choice(&self, rate: usize, allowed: usize) -> Choice {
        let bursts = self.bursts(rate);
        Choice { rate, burst: bursts.get(allowed).copied().unwrap_or(1) }
    }

    /// The smallest burst of each key, the largest first.
    pub(super) fn bursts(&self, rate: usize) -> Vec<u64> {
        let mut bursts: Vec<_> = self.keys.values().map(|demand| demand.burst(rate)).collect();
        bursts.sort_unstable_by(|a, b| b.cmp(a));
        bursts
    }

    /// The limit to suggest, if it may touch this percentage of the keys.
    pub(super) fn best(&self, percent: f64) -> Option<Choice> {
        self.choices(percent).into_iter().min_by_key(Choice::within_period)
    }

    /// The keys above this limit.
    fn touched(&self, choice: Choice) -> impl Iterator<Item = &Key> {
        let is_above = move |demand: &Demand| demand.burst(choice.rate) > choice.burst;
        self.keys.iter().filter(move |(_, demand)| is_above(demand)).map(|(key, _)| key)
    }

    /// The smallest limit of each rate that touches at most this percentage of the keys. A limit is left out if
    /// another one has a lower rate and no larger burst.
    pub(super) fn choices(&self, percent: f64) -> Vec<Choice> {
        let allowed = share_of(self.keys.len(), percent);
        let mut choices: Vec<Choice> = Vec::new();
        for rate in 0..RATES.len() {
            let choice = self.choice(rate, allowed);
            if choices.last().is_none_or(|last| choice.burst < last.burst) {
                choices.push(choice);
            }
        }
        choices
    }
}

impl Choice {
    /// The most tokens that the limit gives a key within [`PERIOD`].
    pub(super) fn within_period(&self) -> u64 {
        let (tokens, interval) = RATES[self.rate];
        self.burst.saturating_add((tokens * PERIOD).div_ceil(interval))
    }

    pub(super) fn rate(&self) -> String {
        let (tokens, interval) = RATES[self.rate];
        let unit = match interval {
            SECOND => 's',
            MINUTE => 'm',
            _ => 'h',
        };
        format!("{tokens}/{unit}")
    }
}

/// The percentage of its keys that each of these limits may touch. The limits have the same sources of keys. All
/// limits together touch at most `percent` of the keys that they have seen.
pub(super) fn percent_of_each(limits: &[&Demands], percent: f64) -> f64 {
    let sampling = limits.iter().map(|limit| limit.sampling).max().unwrap_or_default();
    let is_kept = |key: &&Key| zeros(key) >= sampling;
    let seen: HashSet<&Key> = limits.iter().flat_map(|it| it.keys.keys()).filter(is_kept).collect();
    let allowed = share_of(seen.len(), percent);
    let suffices = |percent: f64| {
        let choices = limits.iter().filter_map(|limit| Some((limit, limit.best(percent)?)));
        let touched = choices.flat_map(|(limit, choice)| limit.touched(choice)).filter(is_kept);
        touched.collect::<HashSet<_>>().len() <= allowed
    };
    // If no halving suffices, the limits touch no key.
    let halves = std::iter::successors(Some(percent), |percent| Some(percent / 2.0)).take(8);
    halves.into_iter().find(|percent| suffices(*percent)).unwrap_or_default()
}

/// The most keys that are at most this percentage of all.
fn share_of(keys: usize, percent: f64) -> usize {
    // The percentage is from 0 to 100, so the number is at most that of the keys.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "rounded down on purpose"
    )]
    let share = (keys as f64 * percent / 100.0) as usize;
    share.min(keys)
}

/// The number of zero bits at the end of a key's hash. The hash is the same each time, so a log always gives the
/// same answer.
fn zeros(key: &Key) -> u32 {
    let mut hasher = SipHasher13::new();
    key.hash(&mut hasher);
    hasher.finish().trailing_zeros()
}
