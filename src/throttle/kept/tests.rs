use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::settings::testing::limit;

proptest! {
    /// A second table, which is slow and simple: the newest of each key, and of all.
    #[test]
    fn a_table_keeps_the_newest_of_each_key_and_of_all(
        keys in prop::collection::vec(0_u64..6, 1..600),
        most in 20_usize..200,
    ) {
        let spec = limit("rate = \"1/s\"");
        let mut table = RejectionTable::new(most);
        let mut slow: VecDeque<(u64, u64)> = VecDeque::new();
        for (at, key) in (1..).zip(keys) {
            let number = at;
            *table.place(key) = Rejection { number, ..Rejection::of(&spec, &key.to_string(), at) };
            if slow.iter().filter(|(own, _)| *own == key).count() == OF_KEY {
                let oldest = slow.iter().position(|(own, _)| *own == key).unwrap();
                slow.remove(oldest);
            } else if slow.len() == most {
                slow.pop_front();
            }
            slow.push_back((key, at));
            let mut kept: Vec<_> = table.all().map(|it| it.now.steady.as_micros()).collect();
            kept.sort_unstable();
            kept.drain(..kept.len().saturating_sub(most));
            prop_assert_eq!(kept, slow.iter().map(|(_, at)| *at).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_process_tells_its_newest_rejections_and_since_when_nothing_is_lost() {
    let spec = limit("rate = \"1/s\"");
    let kept = KeptRejections::new(2, Timestamp::MIN);
    for at in 1..=15_000_u64 {
        let key = format!("key {}", at % 5_000);
        let rejection = Rejection::of(&spec, &key, at);
        let told = (rejection.now.steady, rejection.wait.told);
        let key = Key::of([Some(key.as_bytes())]);
        kept.keep(usize::from(at > 6_000), (&spec.name, &key), told, |kept| {
            *kept = Rejection { number: kept.number, ..rejection };
        });
    }
    let all = kept.find(|_| true);
    assert_eq!(all.len(), OF_PROCESS);
    assert_eq!(kept.since().as_micros(), 5_001);
    assert_eq!(all[0].now.steady.as_micros(), 15_000);
    let of_key: Vec<_> =
        kept.of_key("a", "key 7").iter().map(|it| it.now.steady.as_micros()).collect();
    assert_eq!(of_key, [10_007, 5_007]);
}

#[test]
fn a_series_begins_anew_when_a_request_passes() {
    let spec = limit("rate = \"1/s\"");
    let kept = KeptRejections::new(2, Timestamp::MIN);
    let [own, other] = ["a", "b"].map(|key| Key::of([Some(key.as_bytes())]));
    let reject = |worker, at| {
        let now = Timestamp::from_micros(at).unwrap();
        let told = (now, Some(Duration::from_micros(10)));
        kept.keep(worker, (&spec.name, &own), told, |_| {});
        let RejectionSeries { since, rejected, early } = kept.series(hash(&spec.name, &own));
        (since.as_micros(), rejected, early)
    };
    assert_eq!([reject(0, 5), reject(1, 14), reject(0, 24)], [(5, 1, 0), (5, 2, 1), (5, 3, 1)]);
    kept.passed(&spec.name, &other);
    assert_eq!(reject(1, 33), (5, 4, 2), "it is another key");
    kept.passed(&spec.name, &own);
    assert_eq!(reject(1, 34), (34, 1, 0));
}

#[test]
fn a_rejection_has_a_bounded_size() {
    assert!(size_of::<Rejection>() <= 512, "{}", size_of::<Rejection>());
}
