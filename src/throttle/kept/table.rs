//! The rejections of one worker, by their keys.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::OF_KEY;
use crate::throttle::rejection::Rejection;

/// The newest rejections, and up to a quarter more. Because of this margin, the search for the oldest is seldom needed.
#[derive(Debug)]
pub(super) struct RejectionTable {
    most: usize,
    count: usize,
    /// The number of the last rejection.
    last: u64,
    /// The rejections by the hash of limit and key, the oldest first.
    keys: HashMap<u64, VecDeque<Box<Rejection>>>,
}

impl RejectionTable {
    pub(super) fn new(most: usize) -> Self {
        Self { most, count: 0, last: 0, keys: HashMap::new() }
    }

    /// A place for one more rejection of this key. If the key has no free place, this is the place of its oldest
    /// rejection.
    pub(super) fn place(&mut self, key: u64) -> &mut Rejection {
        if self.count > self.most + self.most / 4 {
            self.forget_oldest();
        }
        let kept = self.keys.entry(key).or_default();
        let oldest = if kept.len() < OF_KEY { None } else { kept.pop_front() };
        self.count += usize::from(oldest.is_none());
        self.last += 1;
        kept.push_back(oldest.unwrap_or_default());
        let newest = kept.len() - 1;
        kept[newest].number = self.last;
        &mut kept[newest]
    }

    fn forget_oldest(&mut self) {
        let mut numbers: Vec<_> = self.all().map(|it| it.number).collect();
        let oldest = *numbers.select_nth_unstable(self.count - self.most).1;
        self.keys.retain(|_, kept| {
            kept.retain(|it| it.number >= oldest);
            kept.shrink_to(2 * kept.len());
            !kept.is_empty()
        });
        self.count = self.most;
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Rejection> {
        self.keys.values().flatten().map(|kept| &**kept)
    }

    /// Whether rejections may have been forgotten to make room for other keys.
    pub(super) fn is_full(&self) -> bool {
        self.count >= self.most
    }
}
