//! What may happen to a store, and the figures of its limits.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;
use tidegate::limit::algorithm::fixed_window::windows::Windows;
use tidegate::limit::algorithm::{Algorithm, sliding_log, sliding_window};
use tidegate::limit::rate::{Burst, Interval, MAX_INTERVAL};
use tidegate::limit::waiting::MaxWait;
use tidegate::settings::{Figures, LimitSpec};

use crate::support::algorithms::{leaky, slots, window};
use crate::support::limits::{bucket, limit, settled};

pub(super) const KINDS: usize = 6;
pub(super) const LEAKY: usize = 1;
pub(super) const SLOTS: usize = 5;

/// So slow that the time that a test takes gives nothing back, each with the seconds for one token.
pub(super) const RATES: [(&str, u64); 4] =
    [("1/d", 86_400), ("2/h", 1_800), ("300/7h", 84), ("100/h", 36)];

pub(super) const MOST: u64 = 80;

/// The figures of all limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) tokens: [u64; KINDS],
    pub(super) rates: [usize; 2],
}

impl Sizes {
    pub(super) fn algorithm(&self, kind: usize) -> Algorithm {
        let size = self.tokens[kind];
        let count = Burst::new(size).unwrap();
        let interval = Interval::from_micros(MAX_INTERVAL).unwrap();
        let rate = |kind: usize| RATES[self.rates[kind]].0;
        match kind {
            0 => bucket(rate(0), size),
            LEAKY => leaky(rate(1), size - 1),
            2 => window(size, Windows::Rolling(interval)),
            3 => Algorithm::SlidingWindow(sliding_window::Params::new(count, interval)),
            4 => Algorithm::SlidingLog(sliding_log::Params { count, interval }),
            _ => slots(size, Duration::from_secs(3_600)),
        }
    }

    pub(super) fn spec(&self, kind: usize) -> Arc<LimitSpec> {
        let name = ["tokens", "even", "window", "sliding", "log", "slots"][kind];
        let spec = if kind == SLOTS { limit(name) } else { settled(name) };
        let wait = if kind == LEAKY { MaxWait::ENDLESS } else { MaxWait::NONE };
        let figures = Figures::Limited(self.algorithm(kind));
        Arc::new(LimitSpec { wait, figures, ..spec })
    }
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A request asks these limits, by bits, with this cost. If it is cut, the client leaves before the answer.
    Take(u8, u64, bool),
    /// A request ends that used so many tokens, or whose client leaves before it goes on.
    End(Index, Option<u64>),
    Reload(Sizes),
    /// The store ends with all its requests, and another one goes on.
    Drain,
    Wait(u64),
}

pub(super) fn any_sizes() -> impl Strategy<Value = Sizes> {
    let figures = (prop::array::uniform6(40_u64..MOST), prop::array::uniform2(0..RATES.len()));
    figures.prop_map(|(mut tokens, rates)| {
        tokens[SLOTS] /= 13;
        Sizes { tokens, rates }
    })
}

/// The clock moves by at most so many microseconds at once.
pub(super) fn any_steps(most: u64) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        10 => (1_u8..1 << KINDS, 1_u64..=20, prop::bool::weighted(0.1))
            .prop_map(|(limits, cost, cut)| Step::Take(limits, cost, cut)),
        6 => (any::<Index>(), prop::option::weighted(0.7, 0_u64..=22))
            .prop_map(|(which, used)| Step::End(which, used)),
        2 => any_sizes().prop_map(Step::Reload),
        1 => Just(Step::Drain),
        2 => (0..=most).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..50)
}
