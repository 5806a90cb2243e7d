//! Finds the keys that come most often, in fixed memory.
//!
//! The algorithm is Space-Saving: A. Metwally, D. Agrawal, A. El Abbadi, "Efficient Computation of Frequent
//! and Top-k Elements in Data Streams", ICDT 2005. Sketches are merged as in P. Agarwal and others,
//! "Mergeable Summaries", PODS 2012.

use std::cmp::Reverse;

use hashbrown::HashMap;

use crate::limit::time::Timestamp;
use crate::observe::start;

/// The number of keys for which a sketch has counters. After `n` events, it surely has a counter for each key with more
/// than `n / KEYS` of these events.
const KEYS: usize = 64;

/// The most bytes of a key's text. Clients choose these texts, and the memory is fixed.
pub(super) const TEXT: usize = 512;

/// Counts events by key. A new key replaces the key with the fewest events, and takes over its count. Therefore a
/// count may be too high, but never too low.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeySketch {
    /// The hashes of the keys. They stand apart from the counts, because each event searches them.
    ids: Vec<u64>,
    counts: Vec<KeyCount>,
}

/// A key as people see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyLabel<'k> {
    /// The key's text, hashed if `log.keys` says so. The text is UTF-8. It is kept as bytes, because
    /// a check in each request would cost time.
    pub(crate) text: &'k [u8],
    /// The name that an override of the file gives the key.
    pub(crate) name: Option<&'k str>,
}

/// A copy of a [`KeyLabel`], with at most [`TEXT`] bytes of the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnedLabel {
    pub(crate) text: String,
    pub(crate) name: Option<Box<str>>,
}

impl OwnedLabel {
    pub(super) fn write(&mut self, key: KeyLabel<'_>) {
        start(&String::from_utf8_lossy(key.text), TEXT).clone_into(&mut self.text);
        self.name = key.name.map(Into::into);
    }
}

/// How often a key came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyCount {
    pub(crate) label: OwnedLabel,
    /// The number of events. It is never too low.
    pub(crate) count: u64,
    /// By how much `count` may be too high.
    pub(crate) at_most_over: u64,
    pub(crate) recent: Recent,
}

/// The time over which a key's present rate is taken, in microseconds.
const WINDOW: u64 = 5_000_000;

/// The events of the running window, and of the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recent {
    window: u64,
    counts: [u64; 2],
}

impl Recent {
    /// Begins a new window if the last one is over.
    fn until(mut self, now: Timestamp) -> Self {
        let window = now.as_micros() / WINDOW;
        self.counts = match window.saturating_sub(self.window) {
            0 => return self,
            1 => [0, self.counts[0]],
            _ => [0, 0],
        };
        self.window = window;
        self
    }

    /// The events a second in the last [`WINDOW`]. Of the window before, only the part inside this time counts.
    pub(crate) fn per_second(self, now: Timestamp) -> f64 {
        let [running, before] = self.until(now).counts.map(|count| count as f64);
        let past = (now.as_micros() % WINDOW) as f64 / WINDOW as f64;
        (running + before * (1.0 - past)) / (WINDOW as f64 / 1e6)
    }
}

impl KeySketch {
    /// Counts an event of the key with this hash.
    pub(super) fn record(&mut self, id: u64, now: Timestamp, key: KeyLabel<'_>) {
        if let Some(index) = self.ids.iter().position(|known| *known == id) {
            if let Some(counted) = self.counts.get_mut(index) {
                counted.count(now);
            }
            return;
        }
        let mut counted = KeyCount::default();
        if self.ids.len() >= KEYS {
            let counts = self.counts.iter().enumerate();
            let least = counts.min_by_key(|(_, it)| it.count).map_or(0, |(index, _)| index);
            self.ids.swap_remove(least);
            counted = self.counts.swap_remove(least);
            (counted.at_most_over, counted.recent) = (counted.count, Recent::default());
        }
        counted.count(now);
        counted.label.write(key);
        self.ids.push(id);
        self.counts.push(counted);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The most events that a key without a count may have had.
    fn unseen(&self) -> u64 {
        if self.ids.len() < KEYS {
            return 0;
        }
        self.counts.iter().map(|counted| counted.count).min().unwrap_or_default()
    }
}

impl KeyCount {
    fn count(&mut self, now: Timestamp) {
        self.count += 1;
        self.recent = self.recent.until(now);
        self.recent.counts[0] += 1;
    }
}

/// The keys of all these sketches, the most frequent first. All sketches use the same hash.
pub(super) fn merged<'s>(
    sketches: impl IntoIterator<Item = &'s KeySketch>,
    now: Timestamp,
) -> Vec<KeyCount> {
    let mut sum: HashMap<u64, (KeyCount, u64)> = HashMap::default();
    let mut unseen = 0;
    for sketch in sketches {
        for (id, counted) in sketch.ids.iter().zip(&sketch.counts) {
            let (total, known) = sum.entry(*id).or_insert_with(|| {
                (KeyCount { label: counted.label.clone(), ..KeyCount::default() }, 0)
            });
            total.count += counted.count;
            total.at_most_over += counted.at_most_over;
            let (recent, more) = (total.recent.until(now), counted.recent.until(now).counts);
            let counts = [recent.counts[0] + more[0], recent.counts[1] + more[1]];
            total.recent = Recent { counts, ..recent };
            // Other sketches do not count the key, but it may have had events there. They are added below.
            *known += sketch.unseen();
        }
        unseen += sketch.unseen();
    }
    let mut keys: Vec<_> = sum
        .into_values()
        .map(|(mut total, known)| {
            total.count += unseen - known;
            total.at_most_over += unseen - known;
            total
        })
        .collect();
    keys.sort_by(|a, b| (Reverse(a.count), &a.label.text).cmp(&(Reverse(b.count), &b.label.text)));
    keys
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn sketch(keys: &[u64]) -> KeySketch {
        let mut sketch = KeySketch::default();
        for key in keys {
            let text = &key.to_string();
            sketch.record(*key, Timestamp::MIN, KeyLabel { text: text.as_bytes(), name: None });
        }
        sketch
    }

    fn truth<'k>(keys: impl IntoIterator<Item = &'k u64>) -> BTreeMap<u64, u64> {
        let mut truth = BTreeMap::new();
        keys.into_iter().for_each(|key| *truth.entry(*key).or_default() += 1);
        truth
    }

    /// The counts are right within their stated errors, and no frequent key is left out.
    fn check(parts: &[Vec<u64>]) {
        let sketches: Vec<_> = parts.iter().map(|part| sketch(part)).collect();
        let counts = merged(&sketches, Timestamp::MIN);
        let unseen: u64 = sketches.iter().map(KeySketch::unseen).sum();
        for (key, count) in truth(parts.iter().flatten()) {
            match counts.iter().find(|it| it.label.text == key.to_string()) {
                Some(it) => assert!(
                    it.count - it.at_most_over <= count && count <= it.count,
                    "{key} came {count} times: {it:?}"
                ),
                None => assert!(count <= unseen, "{key} came {count} times, at most {unseen}"),
            }
        }
        let events: usize = parts.iter().map(Vec::len).sum();
        assert!(unseen <= (events / KEYS) as u64, "{unseen} of {events}");
        assert!(counts.is_sorted_by_key(|it| Reverse(it.count)));
        assert!(sketches.iter().all(|it| it.ids.len() <= KEYS && it.counts.len() == it.ids.len()));
    }

    /// Keys. Some of them come far more often than others.
    fn keys() -> impl Strategy<Value = Vec<u64>> {
        let key = prop_oneof![0..10_u64, 0..200_u64, 0..100_000_u64];
        prop::collection::vec(key, 0..2_000)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_count_is_never_too_low_and_its_error_is_stated(
            parts in prop::collection::vec(keys(), 0..4),
        ) {
            check(&parts);
        }
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let counts = merged([&sketch(&[7, 8, 7, 9, 7, 8]), &sketch(&[8, 8])], Timestamp::MIN);
        let counts: Vec<_> =
            counts.iter().map(|it| (it.label.text.as_str(), it.count, it.at_most_over)).collect();
        assert_eq!(counts, [("8", 4, 0), ("7", 3, 0), ("9", 1, 0)]);
    }

    #[test]
    fn the_memory_is_fixed_whatever_comes() {
        let mut sketch = KeySketch::default();
        let long = "ü".repeat(TEXT);
        for id in 0..100_000 {
            sketch.record(id, Timestamp::MIN, KeyLabel { text: long.as_bytes(), name: None });
        }
        assert_eq!((sketch.ids.len(), sketch.ids.capacity()), (KEYS, KEYS));
        assert!(sketch.counts.capacity() <= KEYS);
        for counted in &sketch.counts {
            let text = &counted.label.text;
            assert!(text.len() <= TEXT && text.capacity() <= 2 * TEXT);
        }
    }
}
