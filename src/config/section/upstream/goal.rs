//! `max_requests` of an upstream: a number, or the goal of a limit that finds itself.

use std::time::Duration;

use crate::config::reader::{
    Item, Kind, Required, SettingList, Shape, Value, at, field, fields, read, setting, spellings,
    words,
};
use crate::settings::{AnswerGoal, GoalMode, MaxRequests};

type Spec = AnswerGoal;

/// An upstream's `max_requests`, written as a table.
pub(crate) static GOAL: Shape = Shape::new("max_requests", || fields(OF_GOAL));

#[rustfmt::skip]
static OF_GOAL: SettingList<Spec> = &[
    field("slower_than", Kind::TIME_ABOVE_ZERO, Required,
        "the goal: an answer is slow if its head comes later than this after the request; near twice the slowest hundredth of the healthy API"),
    setting(at!(at_least), Kind::Whole(1, 100_000), Value("2"),
        "the limit never falls below it, for each process: what the API surely bears, divided by the number of proxies"),
    setting(at!(mode), Kind::Word(spellings::<GoalMode>), Value("\"enforce\""),
        "`\"shadow\"`: tells when a limit would begin, and holds and refuses nothing"),
];

words!(GoalMode { "enforce" => Enforce, "shadow" => Shadow });

/// The goals that the rule can keep.
const GOALS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(300);

/// A number of requests, or a goal.
pub(super) fn max_requests(item: &Item<'_>) -> Option<MaxRequests> {
    if !item.is_table() {
        let number = item.whole(1..=1_000_000)?;
        return usize::try_from(number).ok().map(MaxRequests::Number);
    }
    let mut section = item.section(&GOAL, "max_requests")?;
    let slower_than = section.require("slower_than", "\"300ms\"");
    let slower_than = slower_than.and_then(|item| goal(&item));
    let goal = read(OF_GOAL, section, AnswerGoal::default());
    Some(MaxRequests::Goal(AnswerGoal { slower_than: slower_than?, ..goal }))
}

/// The time after which an answer is slow.
pub(crate) fn goal(item: &Item<'_>) -> Option<Duration> {
    let goal = item.duration(&Kind::TIME_ABOVE_ZERO)?;
    if !GOALS.contains(&goal) {
        item.reject("expected a duration from \"1ms\" to \"5m\"");
        return None;
    }
    Some(goal)
}
