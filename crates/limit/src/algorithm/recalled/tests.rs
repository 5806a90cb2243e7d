use proptest::prelude::*;

use super::*;
use crate::algorithm::leaky_bucket;
use crate::algorithm::sliding_log::Log;
use crate::decide::Ask;
use crate::rate::Burst;
use crate::rate::{Interval, Rate};
use crate::waiting::MaxWait;

const SECOND: u64 = 1_000_000;

/// A bucket as it is, with its whole list if it has one.
#[derive(Clone, Default)]
struct RealBucket {
    state: Option<BucketState>,
    log: Log,
}

impl RealBucket {
    fn decide(&self, ask: &Ask, now: Timestamp) -> Decision {
        let state = match ask.algorithm {
            Algorithm::SlidingLog(params) => {
                self.log.seen(&params, ask.cost, now).map(BucketState::SlidingLog)
            }
            _ => self.state,
        };
        ask.step(state, now.into()).decision
    }

    fn take(&mut self, ask: &Ask, now: Timestamp) {
        if let Algorithm::SlidingLog(params) = ask.algorithm {
            let seen = self.log.seen(&params, ask.cost, now).map(BucketState::SlidingLog);
            if let Some(BucketState::SlidingLog(state)) = ask.step(seen, now.into()).taken {
                self.log.write(&params, state);
            }
        } else if let Some(state) = ask.step(self.state, now.into()).taken {
            self.state = Some(state);
        }
    }
}

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    (0..7_u8, 1_u64..40, 1_u64..40, 1_u64..90_000_000).prop_map(|(kind, count, burst, micros)| {
        let rate = Rate::new(count, (micros / SECOND + 1) * SECOND).unwrap();
        let interval = Interval::from_micros(rate.interval()).unwrap();
        let (count, size) = (Burst::new(count).unwrap(), Burst::new(burst).unwrap());
        match kind {
            0 => Algorithm::TokenBucket(token_bucket::Params { rate, burst: size }),
            1 => Algorithm::LeakyBucket(leaky_bucket::Params::new(rate, burst).unwrap()),
            2 => Algorithm::FixedWindow(fixed_window::Params {
                count,
                windows: Windows::Rolling(interval),
            }),
            3 => Algorithm::FixedWindow(fixed_window::Params {
                count,
                windows: Windows::Clock(interval),
            }),
            4 => Algorithm::SlidingWindow(sliding_window::Params::new(count, interval)),
            5 => Algorithm::SlidingLog(sliding_log::Params { count, interval }),
            _ => Algorithm::Concurrency(concurrency::Params::new(
                size,
                std::time::Duration::from_secs(60),
            )),
        }
    })
}

proptest! {
    /// Each change is applied to a copy of the bucket itself. One step less does not help.
    #[test]
    fn what_would_have_let_it_pass_lets_exactly_this_request_pass(
        algorithm in any_algorithm(),
        requests in prop::collection::vec((1_u64..12, 0_u64..3_000_000), 1..60),
    ) {
        let (mut bucket, mut now) = (RealBucket::default(), Timestamp::from_micros(1 << 50).unwrap());
        for (cost, after) in requests {
            now = now.plus_micros(after);
            let max_wait = match algorithm {
                Algorithm::LeakyBucket(_) => MaxWait::ENDLESS,
                _ => MaxWait::NONE,
            };
            let ask = Ask { cost: Cost::new(cost).unwrap(), max_wait, ..Ask::for_one(algorithm) };
            let decision = bucket.decide(&ask, now);
            if decision.outcome.passes() {
                bucket.take(&ask, now);
                continue;
            }
            let recalled = RecalledBucket::new(algorithm, Want { cost: ask.cost, max_wait }, decision, false, now.into());
            prop_assert!(recalled.is_some(), "{:?} {:?}", bucket.state, decision);
            let recalled = recalled.unwrap();
            let passes = |ask: &Ask| bucket.decide(ask, now).outcome.passes();
            let burst = recalled.burst();
            prop_assert!(burst.is_some());
            let sized = |size| Ask { algorithm: algorithm.sized(size).unwrap(), ..ask };
            prop_assert!(passes(&sized(burst.unwrap())), "{:?} {:?}", burst, bucket.state);
            prop_assert!(!passes(&sized(burst.unwrap() - 1)), "{:?} {:?}", burst, bucket.state);
            let costing = |cost| Ask { cost: Cost::new(cost).unwrap(), ..ask };
            match recalled.cost() {
                Some(cost) => {
                    prop_assert!(passes(&costing(cost)), "{} {:?}", cost, bucket.state);
                    prop_assert!(!passes(&costing(cost + 1)), "{} {:?}", cost, bucket.state);
                }
                None => {
                    let is_slot = matches!(algorithm, Algorithm::Concurrency(_));
                    prop_assert!(is_slot || !passes(&costing(1)), "{:?}", bucket.state);
                }
            }
        }
    }
}
