//! What Redis keeps of a bucket, byte by byte.

use tidegate::limit::algorithm::{
    Algorithm, BucketState, fixed_window, sliding_window, token_bucket,
};
use tidegate::limit::rate::{EXACT, Rate};
use tidegate::limit::time::Timestamp;

const HALF: u64 = EXACT / 2;

/// A state as Redis keeps it.
pub(crate) fn kept(state: BucketState, algorithm: &Algorithm) -> BucketState {
    match (state, algorithm) {
        (BucketState::Bucket(state), Algorithm::TokenBucket(params)) => {
            BucketState::Bucket(kept_bucket(state, params.rate))
        }
        (BucketState::Bucket(state), Algorithm::LeakyBucket(params)) => {
            BucketState::Bucket(kept_bucket(state, params.rate))
        }
        (state, _) => state,
    }
}

/// As of the last microsecond at which it was less than a microsecond's gain above whole tokens. From
/// then on it is the same state.
pub(crate) fn kept_bucket(state: token_bucket::State, rate: Rate) -> token_bucket::State {
    let (tokens, period, at) = (rate.tokens(), rate.period(), state.at.as_micros());
    let back = (period - state.rest).div_ceil(tokens);
    let one_more_fits = state.missing + 1 < 1 << 40;
    if state.rest == 0 || tokens >= period || back > at || !one_more_fits {
        return state;
    }
    let rest = state.rest + back * tokens - period;
    let at = Timestamp::from_micros(at - back).unwrap();
    token_bucket::State { missing: state.missing + 1, rest, period, at }
}

/// What stands under a key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    /// A state without tokens to spare.
    pub(crate) holds: Vec<u8>,
    /// With its figures; nothing of a list.
    pub(crate) state: Option<(BucketState, Algorithm)>,
    /// The times at which the bucket is full by the figures of later requests, which took nothing.
    pub(crate) aged: Vec<Timestamp>,
}

impl Written {
    pub(crate) fn of(state: BucketState, under: &Algorithm) -> Self {
        let holds = match state {
            BucketState::Bucket(bucket) => {
                bucket_bytes(bucket, under.figures()[3], under.fresh_at(state))
            }
            BucketState::FixedWindow(state) => fixed_bytes(state),
            BucketState::SlidingWindow(state) => sliding_bytes(state),
            BucketState::SlidingLog(_) | BucketState::Concurrency(_) => panic!("it is a list"),
        };
        Self { holds, state: Some((state, *under)), aged: Vec::new() }
    }

    /// The mark of the rate under which a bucket was written, where its bytes have one.
    pub(crate) fn mark(&self) -> Option<u64> {
        match (self.state, &self.holds[..]) {
            (Some((BucketState::Bucket(_), _)), [0..16, .., high, low, _, _, _])
                if self.holds.len() == 12 =>
            {
                Some(u64::from(*high) << 8 | u64::from(*low))
            }
            _ => None,
        }
    }

    /// What a key holds without its tokens to spare, and these.
    pub(crate) fn without_spare(&self, holds: &[u8]) -> (Vec<u8>, u64) {
        let mut bytes = holds.to_vec();
        match (self.state, &mut bytes[..]) {
            (Some((BucketState::Bucket(_), _)), [0..16, _, _, _, _, _, _, _, spare, _, _, _]) => {
                let count = *spare % 64;
                *spare -= count;
                (bytes, count.into())
            }
            _ => (bytes, 0),
        }
    }

    /// The millisecond at which the key goes that could spare so many tokens more.
    pub(crate) fn goes_at(&self, spare: u64) -> Option<u64> {
        let (state, under) = self.state.as_ref()?;
        let longer = if spare > 0 { spare * under.figures()[1] } else { 0 };
        let lives = under.fresh_at(*state).plus_micros(longer);
        // Bytes with a mark tell how long the key lives, so a key with such bytes never lives shorter.
        let is_set = |until: &&Timestamp| self.mark().is_none() || **until > lives;
        let last = self.aged.iter().rfind(is_set).unwrap_or(&lives);
        Some(last.as_micros() / 1_000 + 1)
    }
}

pub(crate) fn fixed_bytes(state: fixed_window::State) -> Vec<u8> {
    let (start, used) = (state.start.as_micros().to_be_bytes(), state.used.to_be_bytes());
    let (beyond, each) = (state.beyond.to_be_bytes(), state.each.to_be_bytes());
    match state.beyond {
        0 => counted_bytes(state.start, &[state.used]),
        _ => [&[4], &start[1..], &used[4..], &beyond[3..], &each[4..]].concat(),
    }
}

pub(crate) fn sliding_bytes(state: sliding_window::State) -> Vec<u8> {
    counted_bytes(state.start, &[state.previous, state.current, state.next])
}

/// A format, a time, and counters in four bytes each, or in five where one needs them.
pub(crate) fn counted_bytes(start: Timestamp, counters: &[u64]) -> Vec<u8> {
    let (format, from) = match counters.iter().all(|counter| *counter < 1 << 32) {
        true => (1, 4),
        false => (2, 3),
    };
    let start = start.as_micros().to_be_bytes();
    let mut bytes = [&[format], &start[1..]].concat();
    for counter in counters {
        bytes.extend_from_slice(&counter.to_be_bytes()[from..]);
    }
    bytes
}

/// Without tokens to spare. The mark is that of the rate.
pub(crate) fn bucket_bytes(state: token_bucket::State, mark: u64, fresh_at: Timestamp) -> Vec<u8> {
    let (missing, at) = (state.missing.to_be_bytes(), state.at.as_micros());
    let (rest, period) = (state.rest.to_be_bytes(), state.period.to_be_bytes());
    if mark < 1 << 16 && state.rest == 0 && state.missing < 1 << 24 && fresh_at.as_micros() < HALF {
        return [&at.to_be_bytes()[1..], &mark.to_be_bytes()[6..], &missing[5..]].concat();
    }
    let marked = (at + HALF).to_be_bytes();
    if at < HALF && state.rest == 0 && state.missing < 1 << 32 {
        return [&marked[1..], &missing[4..]].concat();
    }
    if at < HALF && state.rest < 1 << 8 && state.missing < 1 << 8 && state.period < 1 << 24 {
        return [&marked[1..], &missing[7..], &rest[7..], &period[5..]].concat();
    }
    [&[32], &at.to_be_bytes()[1..], &missing[3..], &rest[1..], &period[1..]].concat()
}
