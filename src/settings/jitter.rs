//! The spread of `retry-after`. Without it, all clients that must wait until the same moment would come back at once.
//!
//! Each key waits a little longer than it must. Its part of the spread is a hash of the limit's name and the
//! key. The hash has no secret, so that a key has the same part each time and on every proxy.

use std::hash::Hasher;
use std::time::Duration;

use siphasher::sip::SipHasher13;

use crate::limit::key::Key;
use crate::limit::name::Name;

/// A byte that no name of a limit has. It stands between the name and the key.
const BETWEEN: u8 = 0xFF;

/// The largest part by which a `retry-after` is longer than the wait: from 0 to 100 percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RetryJitter(u8);

impl RetryJitter {
    /// `None` above 100 percent.
    pub(crate) fn of_percent(percent: u8) -> Option<Self> {
        (percent <= 100).then_some(Self(percent))
    }

    /// The wait that the answer names for a key that has to wait for `wait`. It is never shorter than `wait`, and
    /// longer by at most this share. The parts of different keys are spread evenly.
    pub(crate) fn spread(self, wait: Duration, limit: &Name, key: &Key) -> Duration {
        if self.0 == 0 {
            return wait;
        }
        let mut hasher = SipHasher13::new();
        hasher.write(limit.as_str().as_bytes());
        hasher.write(&[BETWEEN]);
        hasher.write(key.as_bytes());
        let most = wait.as_micros() * u128::from(self.0) / 100;
        // The product cannot overflow: a duration in microseconds is below 2^84, and the half hash below 2^32.
        let more = (most * u128::from(hasher.finish() >> 32)) >> 32;
        wait.saturating_add(Duration::from_micros(u64::try_from(more).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn key(text: &str) -> Key {
        Key::of([Some(text.as_bytes())])
    }

    fn jitter(percent: u8) -> RetryJitter {
        RetryJitter::of_percent(percent).unwrap()
    }

    /// The hash must be the same in each version and on each machine. Otherwise proxies would tell one key different
    /// times.
    #[test]
    fn a_key_has_the_same_part_on_every_proxy() {
        let hour = Duration::from_secs(3_600);
        for (limit, client, answer) in [
            ("per-client", "192.0.2.7", 4_084_937_991),
            ("per-client", "192.0.2.8", 3_735_210_060),
            ("other", "192.0.2.7", 3_929_205_751),
        ] {
            let answer = Duration::from_micros(answer);
            assert_eq!(
                jitter(20).spread(hour, &name(limit), &key(client)),
                answer,
                "{limit} {client}"
            );
        }
    }

    #[test]
    fn there_is_no_more_than_a_hundred_percent() {
        assert_eq!(RetryJitter::of_percent(101), None);
        let longest = jitter(100).spread(Duration::MAX, &name("a"), &key("b"));
        assert_eq!(longest, Duration::MAX);
    }

    /// A crowd of 1,000 keys that all wait for 100 s comes back over 20 s, about 50 keys in each second.
    #[test]
    fn a_crowd_comes_back_evenly() {
        let mut seconds = [0_u32; 21];
        for n in 0..1_000 {
            let answer =
                jitter(20).spread(Duration::from_secs(100), &name("a"), &key(&n.to_string()));
            let second = answer.as_secs() - 100;
            seconds[usize::try_from(second).unwrap()] += 1;
        }
        assert_eq!(seconds[20], 0, "the whole share is reached by none");
        assert!(seconds[..20].iter().all(|keys| (25..=80).contains(keys)), "{seconds:?}");
    }

    proptest! {
        #[test]
        fn a_spread_wait_is_never_too_early_and_never_beyond_the_share(
            percent in 0..=100_u8, micros in 0..1_u64 << 53, limit in "[a-z]{1,9}", client in ".{0,9}",
        ) {
            let (wait, limit, client) = (Duration::from_micros(micros), name(&limit), key(&client));
            let answer = jitter(percent).spread(wait, &limit, &client);
            prop_assert_eq!(answer, jitter(percent).spread(wait, &limit, &client), "the same each time");
            prop_assert!(answer >= wait);
            prop_assert!((answer - wait).as_micros() * 100 <= wait.as_micros() * u128::from(percent));
        }
    }
}
