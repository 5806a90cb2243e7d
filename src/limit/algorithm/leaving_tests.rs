//! Clients of held requests that leave, and what goes back then.

use proptest::prelude::*;

use super::fixed_window::{self, windows::Windows};
use super::testing::{SECOND, at, micros};
use super::token_bucket::Params;
use super::{Algorithm, Difference, Settlement, Want, leaky_bucket};
use crate::limit::rate::{Burst, Cost, Interval, Rate};
use crate::limit::waiting::MaxWait;

const BEGIN: u64 = 1_700_000_000 * SECOND;
const MAX_WAIT: MaxWait = MaxWait::ENDLESS;

fn burst(tokens: u64) -> Burst {
    Burst::new(tokens).unwrap()
}

fn bucket((count, size, even): (u64, u64, bool)) -> Algorithm {
    let rate = Rate::new(count, SECOND).unwrap();
    match even {
        true => Algorithm::LeakyBucket(leaky_bucket::Params::new(rate, size).unwrap()),
        false => Algorithm::TokenBucket(Params { rate, burst: burst(size) }),
    }
}

/// Requests by the time since the one before, and after how many other ones the client leaves, if it does.
fn any_visits() -> impl Strategy<Value = Vec<(u64, Option<usize>)>> {
    let gap = prop_oneof![4 => Just(0), 3 => 0..SECOND, 1 => 0..5 * SECOND];
    let leaves = prop_oneof![2 => Just(None), 3 => (0_usize..9).prop_map(Some)];
    prop::collection::vec((gap, leaves), 1..80)
}

/// The moments at which the requests go whose clients stay, in their order.
fn moments(algorithm: Algorithm, visits: Vec<(u64, Option<usize>)>) -> Vec<u64> {
    let (mut state, mut now, mut held) = (None, BEGIN, Vec::new());
    for (number, (gap, leaves)) in visits.into_iter().enumerate() {
        now += gap;
        let step = algorithm.decide(state, Want { cost: Cost::ONE, max_wait: MAX_WAIT }, at(now));
        if let Some(taken) = step.taken {
            state = Some(taken);
            let receipt = algorithm.receipt(step.decision.outcome, taken, at(now));
            let goes = now + micros(step.decision.outcome).unwrap();
            held.push((goes, receipt, leaves.map(|after| number + after)));
        }
        held.retain(|(goes, receipt, leaves)| {
            let left = leaves.is_some_and(|leaves| leaves <= number) && *goes > now;
            if left {
                let used = Difference::Less(1);
                let settled = Settlement { used, receipt: *receipt, max_wait: MAX_WAIT };
                state = algorithm.settle(state, &settled, at(now));
            }
            !left
        });
    }
    let mut goes: Vec<_> = held.into_iter().map(|(goes, ..)| goes).collect();
    goes.sort_unstable();
    goes
}

proptest! {
    /// A regression: the tokens of a client that had left went to later requests. These then went at the same moments as
    /// the requests that had waited: three times as many in a second as the rate says.
    #[test]
    fn clients_that_leave_make_no_burst(
        figures in (1_u64..6, 1_u64..6, any::<bool>()),
        visits in any_visits(),
    ) {
        let (count, size, _) = figures;
        let goes = moments(bucket(figures), visits);
        for (first, from) in goes.iter().enumerate() {
            for (last, to) in goes.iter().enumerate().skip(first) {
                let went = (last - first + 1) as u64;
                // Moments are whole microseconds.
                let beyond = went.saturating_sub(size) * SECOND;
                prop_assert!(beyond <= (to - from + 1) * count, "{goes:?}");
            }
        }
    }

    #[test]
    fn no_window_has_more_than_its_count_where_clients_leave(
        count in 1_u64..6,
        seconds in 1_u64..8,
        visits in any_visits(),
    ) {
        let length = seconds * SECOND;
        let windows = Windows::Clock(Interval::from_micros(length).unwrap());
        let window = Algorithm::FixedWindow(fixed_window::Params { count: burst(count), windows });
        let goes = moments(window, visits);
        for window in goes.chunk_by(|a, b| a / length == b / length) {
            prop_assert!(window.len() as u64 <= count, "{window:?} in {goes:?}");
        }
    }
}
