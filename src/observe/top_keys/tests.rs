use super::*;
use crate::observe::key_hash;

fn limit(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000 + seconds * 1_000_000).unwrap()
}

fn workers(count: usize) -> Vec<TopKeys> {
    (0..count).map(|_| TopKeys::default()).collect()
}

fn reject(worker: &TopKeys, name: &str, key: &str, now: Timestamp) {
    worker.rejected(&limit(name), key_hash(key.as_bytes()), label(key), now);
}

fn label(text: &str) -> KeyLabel<'_> {
    KeyLabel { text: text.as_bytes(), name: None }
}

fn rejected(workers: &[TopKeys], name: &str, now: Timestamp) -> Vec<(String, u64)> {
    let read = read(workers, &limit(name), now, 3);
    read.into_iter().map(|key| (key.label.text, key.count)).collect()
}

fn pairs(pairs: &[(&str, u64)]) -> Vec<(String, u64)> {
    pairs.iter().map(|(text, count)| ((*text).to_owned(), *count)).collect()
}

#[test]
fn workers_are_merged_and_limits_are_apart() {
    let workers = workers(2);
    for (worker, name, key) in
        [(0, "a", "x"), (1, "a", "x"), (0, "a", "y"), (1, "b", "y"), (1, "a", "x")]
    {
        reject(&workers[worker], name, key, at(0));
    }
    assert_eq!(rejected(&workers, "a", at(1)), pairs(&[("x", 3), ("y", 1)]));
    assert_eq!(rejected(&workers, "b", at(1)), pairs(&[("y", 1)]));
    assert_eq!(rejected(&workers, "c", at(1)), []);
}

#[test]
fn rejections_count_for_one_to_two_periods() {
    let workers = workers(1);
    reject(&workers[0], "a", "x", at(299));
    assert_eq!(rejected(&workers, "a", at(299)), pairs(&[("x", 1)]));
    reject(&workers[0], "a", "x", at(300));
    assert_eq!(rejected(&workers, "a", at(599)), pairs(&[("x", 2)]));
    assert_eq!(rejected(&workers, "a", at(600)), pairs(&[("x", 1)]));
    assert_eq!(rejected(&workers, "a", at(900)), []);
    reject(&workers[0], "a", "x", at(1_000));
    assert_eq!(rejected(&workers, "a", at(5_000)), [], "nobody looked for many periods");
    assert_eq!((window(at(0)).as_secs(), window(at(299)).as_secs()), (300, 599));
}

#[test]
fn limits_beyond_the_last_one_are_left_out_until_others_are_quiet() {
    let workers = workers(1);
    for n in 0..LIMITS + 1 {
        reject(&workers[0], &format!("l{n}"), "x", at(0));
    }
    let last = format!("l{LIMITS}");
    assert_eq!(rejected(&workers, &last, at(0)), []);
    reject(&workers[0], "l0", "x", at(310));
    assert_eq!(rejected(&workers, "l1", at(310)), pairs(&[("x", 1)]), "it is seen still");
    reject(&workers[0], &last, "x", at(310));
    assert_eq!(rejected(&workers, &last, at(310)), []);
    reject(&workers[0], &last, "x", at(610));
    assert_eq!(rejected(&workers, &last, at(610)), pairs(&[("x", 1)]));
    assert_eq!(rejected(&workers, "l0", at(610)), pairs(&[("x", 1)]), "it was used lately");
    assert_eq!(workers[0].table.lock().limits.len(), 2);
}

/// A regression: counts add up over minutes, so nobody saw which keys are rejected now.
#[test]
fn a_key_has_the_rate_of_the_last_seconds_and_comes_into_the_list_by_it() {
    let workers = workers(2);
    for n in 0..3_u64 {
        (0..100).for_each(|_| reject(&workers[0], "a", &format!("old{n}"), at(0)));
    }
    for n in 0..10 {
        reject(&workers[n % 2], "a", "new", at(60));
    }
    let read = read(&workers, &limit("a"), at(60), 3);
    let rates: Vec<_> =
        read.iter().map(|key| (key.label.text.as_str(), key.recent.per_second(at(60)))).collect();
    assert_eq!(rates, [("old0", 0.0), ("old1", 0.0), ("new", 2.0)]);
    let new = read[2].recent;
    assert_eq!([65, 70].map(|second| new.per_second(at(second))), [2.0, 0.0]);
    assert!(new.per_second(at(69)) < 0.5, "those of the window before count by what is left of it");
}
