//! Other figures for some keys.

use ipnet::IpNet;

use crate::limit::key::Key;

/// What one part of an override's key stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// This value.
    Exact(String),
    /// Every address in this network.
    Network(IpNet),
    /// Anything.
    Any,
}

/// Other figures for some keys; the most specific entry wins: an exact value before the longest
/// network before `Any`, part by part from the left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overrides<T> {
    entries: Vec<(Vec<Part>, T)>,
}

impl<T> Overrides<T> {
    /// These entries, in any order.
    pub fn new(entries: Vec<(Vec<Part>, T)>) -> Self {
        Self { entries }
    }

    /// The figures of the most specific entry that fits a plain key.
    pub fn find(&self, key: &Key) -> Option<&T> {
        unimplemented!("{key} {}", self.entries.len())
    }
}

impl<T> Default for Overrides<T> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}
