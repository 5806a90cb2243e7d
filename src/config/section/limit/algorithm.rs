//! `algorithm`: how a limit counts, and which fields the limit can therefore have.

use std::time::Duration;

use super::{rate, window};
use crate::config::reader::{Section, Span, Spelled as _, one_word, words};
use crate::settings::{CountingKind, WindowStart};

/// The algorithms, as the file names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    Concurrency,
    Redisson,
}

use Family::{
    Concurrency, FixedWindow, LeakyBucket, Redisson, SlidingLog, SlidingWindow, TokenBucket,
};

words!(Family {
    "token-bucket" => TokenBucket,
    "leaky-bucket" => LeakyBucket,
    "fixed-window" => FixedWindow,
    "sliding-window" => SlidingWindow,
    "sliding-log" => SlidingLog,
    "concurrency" => Concurrency,
    "redisson" => Redisson,
});

/// Algorithms with a rate, whose figures come only from the file.
const BY_RATE: &[Family] = &[TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog];
/// Algorithms that count requests, and not requests under way.
const BY_REQUEST: &[Family] =
    &[TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog, Redisson];
/// Algorithms whose figures come only from the file, and not from Redis.
const HERE: &[Family] =
    &[TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog, Concurrency];

/// The fields that only some algorithms have: the field, its algorithms, and the advice if a limit of
/// another algorithm has the field. A field that is not in this table belongs to all algorithms.
#[rustfmt::skip]
const FIELDS: &[(&str, &[Family], &str)] = &[
    ("rate",        BY_REQUEST,     "remove it: `limit` says how many requests may be under way"),
    ("burst",       &[TokenBucket], "remove it: only a token bucket has a burst of its own; a leaky bucket has `queue`"),
    ("queue",       &[LeakyBucket], "remove it, or set `algorithm = \"leaky-bucket\"`; most others hold requests with `wait`"),
    ("limit",       &[Concurrency], "remove it, or set `algorithm = \"concurrency\"`"),
    ("lease",       &[Concurrency], "remove it, or set `algorithm = \"concurrency\"`"),
    ("align",       &[FixedWindow], "remove it, or set `algorithm = \"fixed-window\"`"),
    ("timezone",    &[FixedWindow], "remove it, or set `algorithm = \"fixed-window\"`"),
    ("wait",        BY_REQUEST,     "remove it: nobody knows when a slot is free"),
    ("max_waiting", BY_REQUEST,     "remove it: nobody knows when a slot is free"),
    ("cost",        BY_REQUEST,     "remove it: a request holds one slot"),
    ("count_when",  BY_REQUEST,     "remove it: a slot is held until its response has ended"),
    ("reported",    BY_RATE,        "remove it: slots end with their requests, and Redis has the figures of such a limiter"),
    ("ban",         BY_RATE,        "remove it: a ban sets the rate to 0/s, and a limit with slots, or with figures in Redis, has no rate here"),
    ("candidate",   BY_RATE,        "remove it: slots, and figures in Redis, cannot be tried"),
    ("overrides",   HERE,           "remove it, and set the figures of this key's limiter in Redis"),
    ("plans",       HERE,           "remove it: the figures of such a limiter are in Redis, and are the same for all plans"),
    ("name",        &[Redisson],    "remove it, or set `algorithm = \"redisson\"`"),
    ("type",        &[Redisson],    "remove it, or set `algorithm = \"redisson\"`"),
    ("keep_alive",  &[Redisson],    "remove it: only the keys of a Redisson limiter need it, and others expire by themselves"),
];

/// The fields that cannot be read if the algorithm is wrong.
const FIGURES: [&str; 10] =
    ["rate", "burst", "queue", "limit", "lease", "align", "timezone", "name", "type", "keep_alive"];

/// How a limit counts, without its figures. The limit's overrides and its candidate count in the same way.
pub(super) struct Counting {
    pub(super) family: Family,
    /// Whether the limit names its algorithm.
    pub(super) is_named: bool,
    /// For a fixed window: when windows begin, and the position where a time zone is named.
    pub(super) windows: (WindowStart, Option<Span>),
    /// For slots: how long a slot stays taken after its proxy died.
    pub(super) lease: Duration,
}

impl Counting {
    /// The same, as the settings keep it. `None` if Redis has the figures.
    pub(super) fn kind(&self) -> Option<CountingKind> {
        Some(match self.family {
            TokenBucket => CountingKind::TokenBucket,
            LeakyBucket => CountingKind::LeakyBucket,
            FixedWindow => CountingKind::FixedWindow(self.windows.0.clone()),
            SlidingWindow => CountingKind::SlidingWindow,
            SlidingLog => CountingKind::SlidingLog,
            Concurrency => CountingKind::Concurrency(self.lease),
            Redisson => return None,
        })
    }
}

/// Reads `algorithm` and the other fields that say how a limit counts. Refuses the fields that the algorithm does not
/// have. If one of these fields is wrong, takes the figures without reading them. If `algorithm` itself is wrong,
/// the rate is still checked.
pub(super) fn counting(section: &mut Section<'_>) -> Option<Counting> {
    let is_named = section.has(|field| field == "algorithm");
    let family = section.exact("algorithm", one_word::<Family>);
    if family.is_none() {
        rate::check(section);
    }
    refuse(section, family);
    let windows = window::start(section);
    let counting = family.zip(windows).and_then(|(family, windows)| {
        Some(Counting { family, is_named, windows, lease: section.plain("lease")? })
    });
    if counting.is_none() {
        refuse(section, None);
    }
    counting
}

/// Refuses the fields of a section that the algorithm does not have. If `family` is `None`, takes the
/// figures without reading them.
pub(super) fn refuse(section: &mut Section<'_>, family: Option<Family>) {
    for (field, families, advice) in FIELDS {
        match family {
            Some(family) if !families.contains(&family) => {
                let algorithm = family.spelling();
                let title = format!("a limit with `algorithm = \"{algorithm}\"` has no `{field}`");
                section.refuse_field(field, &title, advice);
            }
            None if FIGURES.contains(field) => section.skip(field),
            Some(_) | None => {}
        }
    }
}

/// Whether a limit with this algorithm has this field, or a default of it. A word that names no algorithm
/// counts as the default one.
pub(crate) fn has_field(algorithm: &str, field: &str, is_written: bool) -> bool {
    let family = Family::WORDS.iter().find(|(word, _)| *word == algorithm);
    let family = family.map_or(TokenBucket, |(_, family)| *family);
    let of = FIELDS.iter().find(|(name, ..)| *name == field);
    // A leaky bucket without `wait` holds requests for as long as its queue needs.
    let is_known = is_written || (family, field) != (LeakyBucket, "wait");
    is_known && of.is_none_or(|(_, families, _)| families.contains(&family))
}

/// The algorithms that have this field, in the words of the reference. `None` if all algorithms have it.
pub(crate) fn whose(field: &str) -> Option<String> {
    let (_, families, _) = FIELDS.iter().find(|(name, ..)| *name == field)?;
    let all = Family::WORDS.iter();
    let (have, lack): (Vec<_>, Vec<_>) = all.partition(|(_, family)| families.contains(family));
    let names = |families: Vec<&(&str, Family)>| {
        let names: Vec<_> = families.iter().map(|(name, _)| format!("`{name}`")).collect();
        names.join(" and ")
    };
    Some(match have.len() <= lack.len() {
        true => format!("of {}", names(have)),
        false => format!("not of {}", names(lack)),
    })
}
