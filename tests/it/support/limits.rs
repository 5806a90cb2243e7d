//! Limits, keys and asks in few words.

use http::HeaderName;
use tidegate::limit::algorithm::Algorithm;
use tidegate::limit::algorithm::token_bucket::Params;
use tidegate::limit::decide::Ask;
use tidegate::limit::key::Key;
use tidegate::limit::name::Name;
use tidegate::limit::rate::{Burst, Cost, Rate};
use tidegate::request::key::{ClientPrefixes, KeySource, KeySpec, Missing};
use tidegate::settings::response::{UnknownUse, UsedSource};
use tidegate::settings::{CostSpec, Estimate, Figures, LimitSpec};
use tidegate::store::{BucketAsk, BucketKey};

/// A limit by client address that takes one token and decides locally where it must.
pub(crate) fn limit(name: &str) -> LimitSpec {
    let key = KeySpec {
        sources: vec![KeySource::Ip].into(),
        missing: Missing::Shared,
        prefixes: ClientPrefixes::default(),
    };
    LimitSpec {
        key,
        figures: Figures::Limited(bucket("1/h", 10)),
        max_waiting: 1_000,
        ..LimitSpec::new(Name::new(name).unwrap())
    }
}

/// One whose requests cost what their response says.
pub(crate) fn settled(name: &str) -> LimitSpec {
    let source = Box::new(UsedSource::Header(HeaderName::from_static("x-used")));
    let cost = CostSpec::Response {
        source,
        estimate: Estimate { at_least: Cost::ONE, per_byte: None },
        max: None,
        unknown: UnknownUse::Estimate,
    };
    LimitSpec { cost, ..limit(name) }
}

pub(crate) fn bucket(rate: &str, burst: u64) -> Algorithm {
    let rate: Rate = rate.parse().unwrap();
    Algorithm::TokenBucket(Params { rate, burst: Burst::new(burst).unwrap() })
}

pub(crate) fn key(value: &str) -> BucketKey {
    Key::of([Some(value.as_bytes())]).into()
}

/// The key of a limit that counts everything in one bucket.
pub(crate) fn no_key() -> BucketKey {
    Key::empty().into()
}

/// The names of the limits in a file's text.
pub(crate) fn names(text: &str) -> Vec<&str> {
    let headings = text.lines().filter_map(|line| line.strip_prefix("[limits.")?.split_once(']'));
    // A table of a limit is no limit.
    headings.map(|(name, _)| name).filter(|name| !name.contains('.')).collect()
}

/// The ask of a limit whose bucket holds so many tokens and gains one an hour.
pub(crate) fn ask<'r>(spec: &'r LimitSpec, key: &'r BucketKey, burst: u64) -> BucketAsk<'r> {
    let algorithm = bucket("1/h", burst);
    BucketAsk { spec, key, ask: Ask { mode: spec.mode, ..Ask::for_one(algorithm) } }
}
