//! The keys of one limit leave the other limits their share of the table.

use super::*;

/// Two limits on one table.
struct TwoLimits {
    memory: Memory,
    invented: Name,
    login: Name,
}

impl TwoLimits {
    fn of(max_keys: usize) -> Self {
        let (invented, login) = (limit("invented"), limit("login"));
        Self { memory: Memory::new(max_keys), invented, login }
    }

    fn take(&self, spec: &Name, name: usize, ask: Ask) -> bool {
        let key = key(&name.to_string());
        let ask = KeyedAsk { limit: id(spec), key: &key, ask };
        self.memory.decide(&[&ask], at(HOUR)).verdict == Verdict::PASS
    }

    /// The number of tokens that each of these new keys gets, one key after the other. A key asks for one token at a
    /// time.
    fn given(&self, spec: &Name, names: std::ops::Range<usize>) -> Vec<usize> {
        let taken = |name| (0..20).filter(|_| self.take(spec, name, ask(1))).count();
        names.map(taken).collect()
    }

    fn shared(&self) -> u64 {
        self.memory.full.shared.load(Ordering::Relaxed)
    }
}

/// A regression: buckets below zero filled the table, and all new keys of another limit shared one bucket.
#[test]
fn debts_of_one_limit_leave_another_its_share() {
    for max_keys in [2, 20, 2_000] {
        let limits = TwoLimits::of(max_keys);
        for name in 0..max_keys {
            assert!(limits.take(&limits.invented, name, ask_of(20, 20)));
            assert!(!limits.take(&limits.invented, name, ask(1)), "it owes ten tokens");
        }
        assert_eq!(limits.given(&limits.login, 0..max_keys / 2), vec![10; max_keys / 2]);
        assert_eq!(limits.shared(), 0, "{max_keys}");
        assert!(limits.memory.keys() < 2 * max_keys);
        // Its next keys are more than its share, and no key has used less than another.
        limits.given(&limits.invented, max_keys..max_keys + 5);
        assert_eq!(limits.shared(), 5 * 20, "the limit that fills the table shares one bucket");
        for name in 0..max_keys {
            assert!(!limits.take(&limits.invented, name, ask(1)), "its debts stay");
        }
    }
}

/// A regression: invented keys that were used up pushed out a login bucket that was used up, which then admitted
/// ten more.
#[test]
fn a_limit_within_its_share_loses_no_bucket_to_the_keys_of_another() {
    for max_keys in [2, 20, 2_000] {
        let limits = TwoLimits::of(max_keys);
        assert_eq!(limits.given(&limits.login, 0..1), [10]);
        for name in 0..5 * max_keys {
            assert!(limits.take(&limits.invented, name, ask(10)), "{name} of {max_keys}");
            assert!(!limits.take(&limits.login, 0, ask(1)), "after {name} of {max_keys}");
        }
        assert_eq!((limits.memory.keys(), limits.shared()), (max_keys, 0));
    }
}

/// Other limits may use the room that a limit does not use, until the limit needs it.
#[test]
fn a_limit_gets_its_share_back_from_limits_with_more() {
    let limits = TwoLimits::of(2_000);
    for name in 0..2_000 {
        assert!(limits.take(&limits.invented, name, ask(5)));
    }
    assert_eq!(limits.given(&limits.login, 0..1_000), vec![10; 1_000]);
    let used = limits.given(&limits.login, 0..1_000);
    assert_eq!(used.iter().sum::<usize>(), 0, "all of them stay");
    assert!(limits.memory.keys() <= 2_100, "{} of 2000", limits.memory.keys());
}
