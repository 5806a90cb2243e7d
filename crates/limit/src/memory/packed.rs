//! A bucket's state in four words, as `shard` keeps it. A Rust enum would need one more word for the kind: eight bytes
//! for each of a million buckets.

use crate::algorithm::{
    BucketState, concurrency, fixed_window, sliding_log, sliding_window, token_bucket,
};
use crate::time::Timestamp;

/// Three figures, and a time with the state's kind in its highest byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packed {
    figures: [u64; 3],
    timed: u64,
}

/// Times are below 2^53, so the highest byte is free for the kind.
const KIND: u32 = 56;

const BUCKET: u64 = 0;
const FIXED_WINDOW: u64 = 1;
const SLIDING_WINDOW: u64 = 2;
const SLIDING_LOG: u64 = 3;
const CONCURRENCY: u64 = 4;

impl Packed {
    pub(super) fn of(state: BucketState) -> Self {
        let (kind, (time, figures)) = match state {
            BucketState::Bucket(state) => {
                (BUCKET, (state.at, [state.missing, state.rest, state.period]))
            }
            BucketState::FixedWindow(state) => {
                (FIXED_WINDOW, (state.start, [state.used, state.beyond, state.each]))
            }
            BucketState::SlidingWindow(state) => {
                (SLIDING_WINDOW, (state.start, [state.previous, state.current, state.next]))
            }
            BucketState::SlidingLog(state) => {
                let counts = u64::from(state.used) << 32 | u64::from(state.added);
                let (newest, room_at) = (state.newest.as_micros(), state.room_at.as_micros());
                (SLIDING_LOG, (state.arrived, [newest, room_at, counts]))
            }
            BucketState::Concurrency(state) => (CONCURRENCY, (Timestamp::MIN, [state.held, 0, 0])),
        };
        Self { figures, timed: time.as_micros() | kind << KIND }
    }

    pub(super) fn state(self) -> BucketState {
        let [first, second, third] = self.figures;
        let time = at(self.timed & !(u64::MAX << KIND));
        let bucket = token_bucket::State { missing: first, rest: second, period: third, at: time };
        match self.timed >> KIND {
            FIXED_WINDOW => BucketState::FixedWindow(fixed_window::State {
                start: time,
                used: first,
                beyond: second,
                each: third,
            }),
            SLIDING_WINDOW => BucketState::SlidingWindow(sliding_window::State {
                start: time,
                previous: first,
                current: second,
                next: third,
            }),
            SLIDING_LOG => {
                let half =
                    |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(u32::MAX);
                BucketState::SlidingLog(sliding_log::State {
                    arrived: time,
                    newest: at(first),
                    room_at: at(second),
                    used: half(third >> 32),
                    added: half(third),
                })
            }
            CONCURRENCY => BucketState::Concurrency(concurrency::State { held: first }),
            // `BUCKET` is the only kind left.
            _ => BucketState::Bucket(bucket),
        }
    }

    /// Whether the state is that of a sliding log, which also has a list.
    pub(super) fn is_log(self) -> bool {
        self.timed >> KIND == SLIDING_LOG
    }
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_state_is_the_same_again(
            words in any::<[u64; 3]>(),
            times in prop::array::uniform3(0..1_u64 << 53),
            counts in any::<[u32; 2]>(),
        ) {
            let [start, newest, room_at] = times.map(at);
            let [missing, rest, period] = words;
            let bucket = token_bucket::State { missing, rest, period, at: start };
            let [used, beyond, each] = words;
            let fixed = fixed_window::State { start, used, beyond, each };
            let [previous, current, next] = words;
            let sliding = sliding_window::State { start, previous, current, next };
            let [used, added] = counts;
            let log = sliding_log::State { arrived: start, newest, room_at, used, added };
            for state in [
                BucketState::Bucket(bucket),
                BucketState::FixedWindow(fixed),
                BucketState::SlidingWindow(sliding),
                BucketState::SlidingLog(log),
                BucketState::Concurrency(concurrency::State { held: words[0] }),
            ] {
                prop_assert_eq!(Packed::of(state).state(), state);
                let is_log = matches!(state, BucketState::SlidingLog(_));
                prop_assert_eq!(Packed::of(state).is_log(), is_log);
            }
        }
    }
}
