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
            table.push(key, Arc::new(Rejection::of(&spec, &key.to_string(), at)), None, false);
            if slow.iter().filter(|(own, _)| *own == key).count() == OF_KEY {
                let oldest = slow.iter().position(|(own, _)| *own == key).unwrap();
                slow.remove(oldest);
            } else if slow.len() == most {
                slow.pop_front();
            }
            slow.push_back((key, at));
            let mut kept: Vec<_> = table.all().map(|it| it.now.steady.as_micros()).collect();
            kept.sort_unstable();
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
        kept.keep(usize::from(at > 6_000), Arc::new(Rejection::of(&spec, &key, at)));
    }
    let all = kept.find(|_| true);
    assert_eq!(all.len(), OF_PROCESS);
    assert_eq!(kept.since().as_micros(), 5_001);
    assert_eq!(all[0].now.steady.as_micros(), 15_000);
    let of_key: Vec<_> =
        kept.of_key("a", "key 7").iter().map(|it| it.now.steady.as_micros()).collect();
    assert_eq!(of_key, [10_007, 5_007]);
    let series = kept.series(&all[0]);
    assert_eq!((series.rejected, series.since.as_micros()), (3, 5_000));
}

#[test]
fn a_rejection_has_a_bounded_size() {
    assert!(size_of::<Rejection>() <= 760, "{}", size_of::<Rejection>());
}
