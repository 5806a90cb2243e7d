//! `algorithm`: how a limit counts, and so which fields it has.

use crate::config::file::Section;
use crate::config::problem::Problem;

/// How a limit counts, before its figures are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counting {
    TokenBucket,
    SlidingLog,
}

/// `algorithm` of a limit.
pub(super) fn build(section: &mut Section<'_>) -> Counting {
    let item = section.take("algorithm");
    let words = &[("token-bucket", Counting::TokenBucket), ("sliding-log", Counting::SlidingLog)];
    item.and_then(|item| item.word(words, LATER)).unwrap_or(Counting::TokenBucket)
}

const LATER: &[&str] =
    &["leaky-bucket", "fixed-window", "sliding-window", "concurrency", "redisson"];

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
