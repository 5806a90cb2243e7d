//! A head that has been taken apart: where its parts stand, before anybody asks what they mean.

use std::ops::Range;

use http::{Method, StatusCode, Version};
use smallvec::SmallVec;

use super::fields;

/// The most fields of a head.
pub const MOST_FIELDS: usize = 100;

/// A request's head: what its first line says, and where its target stands.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) method: Method,
    pub(super) target: Range<usize>,
    pub(super) version: Version,
    /// Bytes of the whole head.
    pub(super) length: usize,
}

/// Where a field stands in a head: name and value.
pub(super) type Place = (Range<usize>, Range<usize>);

/// The places of a head's fields: most heads have fewer.
pub(super) type Places = SmallVec<[Place; 32]>;

/// A response's head: what its first line says, and where its fields stand, with names in lower case.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) version: Version,
    pub(super) status: StatusCode,
    /// Where the words behind the status stand, if they are not the usual ones.
    pub(super) reason: Option<Range<usize>>,
    pub(super) places: Vec<fields::Place>,
    /// Bytes of the whole head.
    pub(super) length: usize,
}
