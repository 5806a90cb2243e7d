//! Reads `rate`, `burst`, `queue` and `limit`, and checks that they fit the algorithm and each other.

use super::algorithm::{Counting, Family, refuse};
use super::rate::{no_month, problem, rate_text, warn_of_quota, warn_of_zero};
use crate::config::reader::{Count, Item, Kind, NotedProblem, Section, SettingList, Words, field};
use crate::limit::algorithm::{Algorithm, concurrency};
use crate::limit::rate::{Burst, Interval, MAX_TOKENS};
use crate::settings::{Figures, FiguresError, WantedFigures, WindowLength, window_rate};

/// The fields of figures. A plan has these alone, and an override has others too.
#[rustfmt::skip]
pub(super) static FIGURES: SettingList<()> = &[
    field("rate", Kind::Rate, Words("required, but for `concurrency`"), "as in the limit"),
    field("burst", Kind::Whole(1, MAX_TOKENS), Count("its own count"), "as in the limit"),
    field("queue", Kind::Whole(0, MAX_TOKENS - 1), Count("its own count"), "as in the limit"),
    field("limit", Kind::Whole(1, MAX_TOKENS), Words("required for `concurrency`"), "as in the limit"),
];

/// The figures of an override, a plan or a candidate. Fields of other algorithms are refused, and fields that are left.
pub(super) fn inner(mut section: Section<'_>, counting: Option<&Counting>) -> Option<Figures> {
    refuse(&mut section, counting.map(|counting| counting.family));
    let figures = figures(&mut section, counting);
    section.finish();
    figures
}

/// The figures of a limit. `counting` is `None` if its algorithm is wrong. The figures of a Redisson
/// limiter are read in `redisson`.
pub(super) fn figures(section: &mut Section<'_>, counting: Option<&Counting>) -> Option<Figures> {
    let counting = counting?;
    if counting.family == Family::Concurrency {
        let limit = section.require("limit", "10")?.whole(1..=MAX_TOKENS)?;
        let params = concurrency::Params::new(Burst::new(limit)?, counting.lease);
        return Some(Figures::Limited(Algorithm::Concurrency(params)));
    }
    let rate = section.require("rate", "\"100/s\"");
    // `burst` and `queue` are read before `rate?`, to report their problems too.
    let burst = section.take("burst").map(|item| item.whole(1..=MAX_TOKENS));
    let queue = section.take("queue").map(|item| item.whole(0..=MAX_TOKENS - 1));
    // A default stands in for a wrong size, so that the rate is still checked.
    let is_wrong = burst == Some(None) || queue == Some(None);
    let size = |size: Option<Option<u64>>| size.map(|size| size.unwrap_or(1));
    of_sizes(&rate?, (size(burst), size(queue)), counting).filter(|_| !is_wrong)
}

/// The figures of a rate alone, without a table around it.
pub(super) fn of_rate(rate: &Item<'_>, counting: Option<&Counting>) -> Option<Figures> {
    let counting = counting?;
    if counting.family == Family::Concurrency {
        rate.reject("a limit with slots has no rate: expected a table, as in `{ limit = 10 }`");
        return None;
    }
    of_sizes(rate, (None, None), counting)
}

/// The figures of a rate with this burst and this queue.
fn of_sizes(
    rate: &Item<'_>,
    (burst, queue): (Option<u64>, Option<u64>),
    counting: &Counting,
) -> Option<Figures> {
    let (kind, text) = (counting.kind()?, rate_text(rate)?);
    if has_no_zone(counting, rate, &text) {
        return None;
    }
    match kind.figures(&WantedFigures { rate: text.clone(), burst, queue }) {
        Ok(figures) => {
            if figures == Figures::Limited(Algorithm::Closed) {
                warn_of_zero(rate);
            }
            if counting.family == Family::TokenBucket && !counting.is_named && burst.is_none() {
                warn_of_quota(rate, &text);
            }
            Some(figures)
        }
        Err(error) => {
            refuse_rate(rate, &text, counting.family, error);
            None
        }
    }
}

/// Refuses a named time zone if windows are shorter than a day.
fn has_no_zone(counting: &Counting, rate: &Item<'_>, text: &str) -> bool {
    let (_, Some(zone)) = &counting.windows else { return false };
    let Ok((_, WindowLength::Interval(interval))) = window_rate(text) else { return false };
    let is_short = interval < Interval::DAY;
    if is_short {
        rate.fault(
            "windows of less than a day know no time zone",
            "they begin at the multiples of their length since 1970 UTC: expected `d`, `w` \
             or `month`, or no `timezone`",
        )
        .related(zone, "the time zone");
    }
    is_short
}

fn refuse_rate<'c>(
    item: &Item<'c>,
    text: &str,
    family: Family,
    error: FiguresError,
) -> NotedProblem<'c> {
    match (error, family) {
        (FiguresError::Rate(_, error), _) => problem(item, text, error),
        (FiguresError::Size(_), Family::TokenBucket) => item.reject(format!(
            "its count is the burst by default, and a bucket holds at most {MAX_TOKENS}: \
             expected `burst` beside it"
        )),
        (FiguresError::Size(_), Family::LeakyBucket) => item.reject(format!(
            "its count is the queue by default, and that holds at most {}: expected `queue` \
             beside it",
            MAX_TOKENS - 1
        )),
        (FiguresError::Size(_), _) => {
            item.reject(format!("expected a count of at most {MAX_TOKENS}"))
        }
        (FiguresError::MonthOffClock, _) => {
            no_month(item, "expected `align = \"clock\"` beside it")
        }
        (error, _) => item.reject(error.to_string()),
    }
}
