//! `algorithm`: how a limit counts, and so which fields it has.

use std::time::Duration;

use crate::config::file::Section;
use crate::config::item::Zero;
use crate::config::problem::Problem;

/// How a limit counts, before its figures are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counting {
    TokenBucket,
    SlidingLog,
    Concurrency { lease: Duration },
}

#[derive(Clone, Copy)]
enum Word {
    TokenBucket,
    SlidingLog,
    Concurrency,
}

/// `algorithm` of a limit, and what belongs to one alone and holds for its overrides too.
pub(super) fn build(section: &mut Section<'_>) -> Counting {
    let item = section.take("algorithm");
    let words = &[
        ("token-bucket", Word::TokenBucket),
        ("sliding-log", Word::SlidingLog),
        ("concurrency", Word::Concurrency),
    ];
    let word = item.as_ref().and_then(|item| item.word(words, LATER));
    let counting = match word {
        None | Some(Word::TokenBucket) => Counting::TokenBucket,
        Some(Word::SlidingLog) => Counting::SlidingLog,
        Some(Word::Concurrency) => return Counting::Concurrency { lease: lease(section) },
    };
    // Beside a word that is wrong nobody knows what was meant.
    let known = item.is_none() || word.is_some();
    for field in ["limit", "lease"] {
        if let Some(item) = section.take(field).filter(|_| known) {
            section.cx.note(Problem::error(
                item.span,
                format!("`{field}` belongs to `algorithm = \"concurrency\"`"),
                "remove it, or set that algorithm",
            ));
        }
    }
    counting
}

const LATER: &[&str] = &["leaky-bucket", "fixed-window", "sliding-window", "redisson"];

const LEASE: Duration = Duration::from_secs(60);
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

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
        self.cx.note(Problem::error(
            item.span,
            format!("`{field}` means nothing beside `algorithm = \"{algorithm}\"`"),
            format!("remove it: {why}"),
        ));
        false
    }
}
