//! The leaky bucket as a queue. Requests go one after the other at the even spacing of `rate`, and up to
//! `queue` requests are held until their moment. The next request is refused. (nginx does the same with
//! `limit_req`, a `burst` and no `nodelay`.)
//!
//! This is a token bucket of `queue + 1` tokens with one difference: a request that is let in waits until
//! the requests before it have leaked, that is, until the bucket would be full without it. State,
//! decision and Lua twin are those of the token bucket.

use super::token_bucket;
use crate::rate::{Burst, Rate};

/// The figures of one leaky bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// How fast requests go.
    pub rate: Rate,
    /// One request that goes, and `queue` requests that are held.
    capacity: Burst,
}

impl Params {
    /// `None` if `queue` is larger than a burst can be.
    pub fn new(rate: Rate, queue: u64) -> Option<Self> {
        Some(Self { rate, capacity: Burst::new(queue.checked_add(1)?)? })
    }

    /// The most requests of cost one that are held at once.
    pub fn queue(&self) -> u64 {
        self.capacity.get() - 1
    }

    /// The token bucket that decides which requests are let in.
    pub(crate) fn bucket(&self) -> token_bucket::Params {
        token_bucket::Params { rate: self.rate, burst: self.capacity }
    }
}
