//! One worker's rejections, in the order in which they came.

use std::sync::Arc;

use hashbrown::HashMap;

use super::{OF_KEY, RejectionSeries};
use crate::limit::time::Timestamp;
use crate::throttle::rejection::Rejection;

/// No place.
const NONE: usize = usize::MAX;

/// The rejections, as a list of all and as a list for each key. Both lists begin with the oldest.
#[derive(Debug)]
pub(super) struct RejectionTable {
    most: usize,
    places: Vec<RejectionNode>,
    keys: HashMap<u64, KeyList>,
    oldest: usize,
    newest: usize,
    /// The time of the last rejection that gave its place to one of another key.
    lost: Option<Timestamp>,
}

#[derive(Debug)]
struct RejectionNode {
    rejection: Arc<Rejection>,
    key: u64,
    before: usize,
    after: usize,
    /// The next one of the same key.
    next: usize,
}

#[derive(Debug)]
struct KeyList {
    oldest: usize,
    newest: usize,
    count: usize,
    series: RejectionSeries,
}

impl RejectionTable {
    pub(super) fn new(most: usize) -> Self {
        let (places, keys) = (Vec::new(), HashMap::new());
        Self { most, places, keys, oldest: NONE, newest: NONE, lost: None }
    }

    /// Adds a rejection. If the key has as many as it may have, its oldest makes room, and otherwise the oldest of all.
    /// `passed` is when a request of the key last passed, if that is known. `is_early` is whether the rejection came before
    /// the time that the one before was told.
    pub(super) fn push(
        &mut self,
        key: u64,
        rejection: Arc<Rejection>,
        passed: Option<Timestamp>,
        is_early: bool,
    ) {
        let list = self.keys.get(&key);
        let place = match list {
            Some(list) if list.count >= OF_KEY => Some(list.oldest),
            _ if self.places.len() >= self.most => Some(self.oldest),
            _ => None,
        };
        let at = place.unwrap_or(self.places.len());
        let series = list.map(|list| list.series).unwrap_or_default();
        if place.is_some() {
            self.leave(at, key);
        }
        let mut series = series;
        series.add(&rejection, passed.unwrap_or_default(), is_early);
        let new = RejectionNode { rejection, key, before: self.newest, after: NONE, next: NONE };
        match self.places.get_mut(at) {
            Some(old) => *old = new,
            None => self.places.push(new),
        }
        match self.places.get_mut(self.newest) {
            Some(newest) => newest.after = at,
            None => self.oldest = at,
        }
        self.newest = at;
        let empty = KeyList { oldest: at, newest: at, count: 0, series };
        let list = self.keys.entry(key).or_insert(empty);
        if list.count > 0
            && let Some(last) = self.places.get_mut(list.newest)
        {
            last.next = at;
        }
        (list.newest, list.count, list.series) = (at, list.count + 1, series);
    }

    /// Takes the rejection at this place out of both lists. It is the oldest of its key, and makes room for `key`.
    fn leave(&mut self, at: usize, key: u64) {
        let Some(&RejectionNode { key: own, before, after, next, .. }) = self.places.get(at) else {
            return;
        };
        match self.places.get_mut(before) {
            Some(place) => place.after = after,
            None => self.oldest = after,
        }
        match self.places.get_mut(after) {
            Some(place) => place.before = before,
            None => self.newest = before,
        }
        if own != key {
            self.lost = self.places.get(at).map(|place| place.rejection.now.wall);
        }
        if let Some(list) = self.keys.get_mut(&own) {
            (list.oldest, list.count) = (next, list.count - 1);
            if list.count == 0 {
                self.keys.remove(&own);
            }
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Rejection>> {
        self.places.iter().map(|place| &place.rejection)
    }

    pub(super) fn lost(&self) -> Option<Timestamp> {
        self.lost
    }

    pub(super) fn series(&self, key: u64) -> Option<RejectionSeries> {
        self.keys.get(&key).map(|list| list.series)
    }
}
