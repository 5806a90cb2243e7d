//! How many buckets each limit has in the table, and which limits have more than their share of it. Without
//! shares, keys that clients invent for one limit would take the room of all the others.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use smallvec::SmallVec;

use super::identity::{Identity, LimitMark};

/// The buckets of each limit. The share of a limit is the table's bound divided by the number of limits that have
/// buckets.
pub(super) struct Shares {
    max_keys: AtomicUsize,
    counts: RwLock<Vec<(LimitMark, AtomicUsize)>>,
}

/// Some limits. Files have few limits.
pub(super) type LimitMarks = SmallVec<[LimitMark; 8]>;

impl Shares {
    pub(super) fn new(max_keys: usize) -> Self {
        let shares = Self { max_keys: AtomicUsize::new(0), counts: RwLock::default() };
        shares.set_max_keys(max_keys);
        shares
    }

    pub(super) fn max_keys(&self) -> usize {
        self.max_keys.load(Ordering::Relaxed)
    }

    pub(super) fn set_max_keys(&self, max_keys: usize) {
        self.max_keys.store(max_keys.max(1), Ordering::Relaxed);
    }

    /// A bucket of this limit is new in the table.
    pub(super) fn added(&self, limit: LimitMark) {
        if let Some((_, count)) = self.counts.read().iter().find(|(mark, _)| *mark == limit) {
            count.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut counts = self.counts.write();
        counts.retain_mut(|(mark, count)| *mark == limit || *count.get_mut() > 0);
        match counts.iter_mut().find(|(mark, _)| *mark == limit) {
            Some((_, count)) => *count.get_mut() += 1,
            None => counts.push((limit, AtomicUsize::new(1))),
        }
    }

    /// A bucket of this limit has left the table.
    pub(super) fn removed(&self, limit: LimitMark) {
        if let Some((_, count)) = self.counts.read().iter().find(|(mark, _)| *mark == limit) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The limits that would have more buckets than their share if the limit `asker` got one more. A limit of `request`
    /// gets a share even if it has no bucket yet.
    pub(super) fn exceeded(&self, asker: Option<Identity>, request: &[Identity]) -> LimitMarks {
        let counts = self.counts.read();
        let counts = counts.iter().map(|(mark, count)| (*mark, count.load(Ordering::Relaxed)));
        let mut present: SmallVec<[(LimitMark, usize); 8]> =
            counts.filter(|(_, count)| *count > 0).collect();
        for limit in request.iter().map(|id| id.limit()) {
            if present.iter().all(|(mark, _)| *mark != limit) {
                present.push((limit, 0));
            }
        }
        let share = self.max_keys() / present.len().max(1);
        let asker = asker.map(Identity::limit);
        let has_more =
            |(mark, count): &(LimitMark, usize)| *count + usize::from(asker == Some(*mark)) > share;
        present.into_iter().filter(has_more).map(|(mark, _)| mark).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_with_more_than_its_share_gives_first() {
        let [a, b, c] = [1, 2, 3].map(|name| LimitMark::of(name, 0, 0));
        let bucket = |limit| Identity::new(limit, 0, 0);
        let shares = Shares::new(10);
        let exceeded = |asker: Option<LimitMark>| {
            let asker = asker.map(bucket);
            shares.exceeded(asker, asker.as_slice()).into_vec()
        };
        (0..10).for_each(|_| shares.added(a));
        assert_eq!(exceeded(None), [], "one limit may have all");
        assert_eq!(exceeded(Some(a)), [a]);
        assert_eq!(exceeded(Some(b)), [a], "a new limit has a share at once");
        (0..5).for_each(|_| shares.removed(a));
        (0..5).for_each(|_| shares.added(b));
        assert_eq!(exceeded(None), []);
        assert_eq!(exceeded(Some(b)), [b]);
        assert_eq!(exceeded(Some(c)), [a, b], "a third of ten is three");
        (0..5).for_each(|_| shares.removed(a));
        shares.added(c);
        assert_eq!(exceeded(Some(b)), [b], "five for each of two");
        shares.set_max_keys(2);
        assert_eq!(exceeded(None), [b]);
    }
}
