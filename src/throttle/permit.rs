//! What a request that was let pass holds until its response's last byte, its error or its client's
//! leaving: whatever ends it drops this.

use crate::store::Slots;

/// What is to be done at a request's end. Dropped, it is done.
#[derive(Debug, Default)]
pub struct Permit {
    at_end: Vec<AtEnd>,
}

/// One thing to be done when a request ends.
#[derive(Debug)]
pub enum AtEnd {
    /// To give slots back, which they do by themselves.
    Release(#[allow(dead_code, reason = "held for its drop")] Slots),
}

impl Permit {
    /// This too.
    pub fn add(&mut self, at_end: AtEnd) {
        self.at_end.push(at_end);
    }
}
