//! `algorithm`: how a limit counts, and so which fields it has.

use std::time::Duration;

use super::redisson;
use super::window::{self, Align};
use crate::config::file::{Section, Zero};

/// The algorithms by the figures that they have.
pub(super) enum Family {
    /// `rate` and `burst`.
    TokenBucket,
    /// `rate` and `queue`.
    LeakyBucket,
    /// `rate` alone.
    FixedWindow(Align),
    /// The same.
    SlidingWindow,
    /// The same.
    SlidingLog,
    /// `limit` alone.
    Concurrency { lease: Duration },
}

#[derive(Clone, Copy)]
enum Word {
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    Concurrency,
    Redisson,
}

/// What a limit says of how it counts.
pub(super) enum AlgorithmChoice {
    /// As one of ours; `None` where that is wrong.
    Ours(Option<Family>),
    /// As a limiter of Redisson's.
    Redisson,
}

const WORDS: &[(&str, Word)] = &[
    ("token-bucket", Word::TokenBucket),
    ("leaky-bucket", Word::LeakyBucket),
    ("fixed-window", Word::FixedWindow),
    ("sliding-window", Word::SlidingWindow),
    ("sliding-log", Word::SlidingLog),
    ("concurrency", Word::Concurrency),
    ("redisson", Word::Redisson),
];

const LEASE: Duration = Duration::from_secs(60);
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// `algorithm` of a limit, with what else says how it counts and holds for its overrides too.
pub(super) fn build(section: &mut Section<'_>) -> AlgorithmChoice {
    let word = match section.take("algorithm") {
        Some(item) => item.word(WORDS, &[]),
        None => Some(Word::TokenBucket),
    };
    let Some(word) = word else {
        // Nobody knows what was meant.
        for name in ["align", "timezone", "limit", "lease", "name", "type"] {
            section.take(name);
        }
        return AlgorithmChoice::Ours(None);
    };
    match word {
        Word::Redisson => AlgorithmChoice::Redisson,
        word => AlgorithmChoice::Ours(family(section, word)),
    }
}

fn family(section: &mut Section<'_>, word: Word) -> Option<Family> {
    redisson::refuse_fields(section);
    if !matches!(word, Word::FixedWindow) {
        window::refuse(section);
    }
    if !matches!(word, Word::Concurrency) {
        refuse(section, "limit");
        refuse(section, "lease");
    }
    Some(match word {
        Word::TokenBucket => Family::TokenBucket,
        Word::LeakyBucket => Family::LeakyBucket,
        Word::FixedWindow => Family::FixedWindow(window::align(section)?),
        Word::SlidingWindow => Family::SlidingWindow,
        Word::SlidingLog => Family::SlidingLog,
        Word::Concurrency => Family::Concurrency { lease: lease(section) },
        Word::Redisson => return None,
    })
}

/// That an override's `limit` has nothing to say beside another algorithm, where it is there.
pub(super) fn refuse_limit(section: &mut Section<'_>, family: Option<&Family>) {
    match family {
        Some(Family::Concurrency { .. }) => {}
        Some(_) => refuse(section, "limit"),
        None => drop(section.take("limit")),
    }
}

fn refuse(section: &mut Section<'_>, field: &str) {
    if let Some(item) = section.take(field) {
        item.fault(
            format!("`{field}` belongs to `algorithm = \"concurrency\"`"),
            "remove it, or set that algorithm",
        );
    }
}

fn lease(section: &mut Section<'_>) -> Duration {
    let Some(item) = section.take("lease") else { return LEASE };
    match item.duration(Zero::Allowed) {
        Some(lease) if lease < SHORTEST_LEASE => {
            item.reject("expected at least \"1s\": it is renewed three times in that time");
            LEASE
        }
        lease => lease.unwrap_or(LEASE),
    }
}

impl Section<'_> {
    /// Notes that a field means nothing beside this algorithm, if it is there. Whether it is not.
    pub(super) fn refuse_for(&mut self, field: &str, algorithm: &str, why: &str) -> bool {
        let Some(item) = self.take(field) else { return true };
        item.fault(
            format!("`{field}` means nothing beside `algorithm = \"{algorithm}\"`"),
            format!("remove it: {why}"),
        );
        false
    }
}
