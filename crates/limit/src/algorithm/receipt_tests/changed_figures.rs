//! Giving back after the figures have changed while the request ran.

use super::*;

fn settle_under(history: &mut BucketHistory, after: Algorithm, index: usize, tokens: u64) {
    let Passed { asked, receipt, .. } = history.passed[index];
    let receipt = receipt.under(&history.algorithm, at(asked));
    history.algorithm = after;
    history.settle(Difference::Less(tokens), receipt);
}

fn any_rate() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![(1_u64..5, 1_u64..60), (1_u64..100, 1_u64..4), Just((1, 1_000))]
}

proptest! {
    /// Whichever rate is the faster one, and whenever it changed, other requests take only if they could also take
    /// without the request that gives back.
    #[test]
    fn a_changed_rate_gives_nothing_back_twice(
        (before, after) in (any_rate(), any_rate()),
        burst in 1_u64..40,
        first in prop::collection::vec((0_u64..40, 1_u64..6), 0..10),
        cost in 1_u64..40,
        between in prop::collection::vec((0_u64..40, 1_u64..6), 0..8),
        then in prop::collection::vec((0_u64..40, 1_u64..6), 0..8),
        (gap, part) in (0_u64..100, 1_u64..40),
    ) {
        let params = tokens(after.0, after.1, burst);
        let (old, new) =
            (Algorithm::TokenBucket(tokens(before.0, before.1, burst)), Algorithm::TokenBucket(params));
        let mut with = BucketHistory::new(old, MaxWait::NONE);
        let mut without = BucketHistory::new(old, MaxWait::NONE);
        let others = |both: [&mut BucketHistory; 2], algorithm, events: &[(u64, u64)]| {
            let [with, without] = both;
            (with.algorithm, without.algorithm) = (algorithm, algorithm);
            for (gap, cost) in events {
                with.now += gap;
                without.now += gap;
                assert!(!with.ask(*cost, 0) || without.ask(*cost, 0));
            }
        };
        others([&mut with, &mut without], old, &first);
        if !with.ask(cost, 0) {
            return Ok(());
        }
        let (taken, part) = (with.passed.len() - 1, part.min(cost));
        if cost > part {
            without.ask(cost - part, 0);
        }
        others([&mut with, &mut without], old, &between);
        others([&mut with, &mut without], new, &then);
        with.now += gap;
        with.algorithm = old;
        settle_under(&mut with, new, taken, part);
        let now = with.now;
        // Rates are kept to the microsecond.
        prop_assert!(missing(with.state, &params, now) >= missing(without.state, &params, now + 1));
    }

    /// Nobody else came. Then all is given back but what came back by itself at the faster rate.
    #[test]
    fn a_lowered_rate_keeps_no_estimate(
        ((count, slower), interval) in ((2_u64..100, 2_u64..1_000), 1_u64..60),
        (cost, burst, even) in (1_u64..1_000, 1_000_u64..2_000, any::<bool>()),
        gap in 0_u64..200,
    ) {
        let (fast, slow) = (tokens(count, interval, burst), tokens(count, interval * slower, burst));
        let kind = |params: token_bucket::Params| match even {
            true => leaky(params.rate.tokens(), params.rate.period(), burst - 1),
            false => Algorithm::TokenBucket(params),
        };
        let mut history = BucketHistory::new(kind(fast), MaxWait::NONE);
        prop_assert!(history.ask(cost, 0));
        history.now += gap;
        settle_under(&mut history, kind(slow), 0, cost);
        let came_back = gap * count / interval;
        prop_assert!(missing(history.state, &slow, history.now).0 <= came_back + 1);
    }
}

#[test]
fn a_window_that_was_over_before_it_got_longer_gives_nothing_back() {
    const MINUTE: u64 = 60;
    let sliding = |length| {
        let count = Burst::new(100).unwrap();
        Algorithm::SlidingWindow(sliding_window::Params::new(count, interval(length)))
    };
    let clock = |length| fixed(100, Windows::Clock(interval(length)));
    for (short, long, apart) in [
        (clock(MINUTE), clock(60 * MINUTE), MINUTE),
        (sliding(MINUTE), sliding(60 * MINUTE), 2 * MINUTE),
    ] {
        let mut history = BucketHistory::new(short, MaxWait::NONE);
        history.now = BEGIN - BEGIN % (60 * MINUTE);
        assert!(history.ask(5, 0));
        history.now += apart;
        assert!(history.ask(3, 0));
        settle_under(&mut history, long, 0, 5);
        let seen = history.seen(Cost::ONE);
        let step =
            long.decide(seen, Want { cost: Cost::ONE, max_wait: MaxWait::NONE }, at(history.now));
        assert_eq!(step.untouched, 97, "{short}");
        settle_under(&mut history, long, 1, 3);
        assert_eq!(history.state, None, "{short}: it still counts");
    }
}
