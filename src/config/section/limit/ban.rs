//! `ban` of a limit: a key that the limit rejects often is banned for a time.

use std::sync::Arc;

use crate::config::reader::{Item, Kind, Required, SettingList, Shape, Span, Words, field, fields};
use crate::limit::algorithm::{Algorithm, sliding_log};
use crate::limit::rate::{Burst, Interval};
use crate::request::key::KeySource;
use crate::settings::{AnswerSpec, BanSpec};

/// The most rejections that a ban may ask for. Each of them is remembered.
const MOST_AFTER: u64 = 1_000;

/// A shorter ban could be over before the other processes read of it.
const LASTS: Kind = Kind::Duration(
    1_000,
    "expected at least \"1s\": other processes read of a ban within a second",
);

/// A limit's `ban`.
pub(crate) static BAN: Shape = Shape::new("ban", || fields(OF_BAN));

#[rustfmt::skip]
static OF_BAN: SettingList<()> = &[
    field("after", Kind::Whole(1, MOST_AFTER), Required, "how many rejections of a key by this process lead to a ban"),
    field("within", Kind::TIME_ABOVE_ZERO, Required, "the time in which these rejections must happen"),
    field("for", LASTS, Required, "how long the ban lasts; at least `\"1s\"`"),
    field("status", Kind::Whole(400, 599), Words("that of `reject`"), "the status of the answer to a banned client"),
];

/// `ban`. `answer` is the limit's answer to other rejections. `None` if a part is wrong.
pub(super) fn ban(
    item: &Item<'_>,
    sources: Option<&[(KeySource, Span)]>,
    answer: &AnswerSpec,
) -> Option<Box<BanSpec>> {
    let mut inner = item.section(&BAN, "ban")?;
    let after = inner.require("after", "20").and_then(|item| item.whole(1..=MOST_AFTER));
    let within =
        inner.require("within", "\"1m\"").and_then(|item| item.duration(&Kind::TIME_ABOVE_ZERO));
    let lasts = inner.require("for", "\"10m\"").and_then(|item| item.duration(&LASTS));
    let status = inner.plain("status");
    inner.finish();
    // If the key is wrong, it may have been meant to say who asks.
    if sources.is_some_and(|sources| sources.iter().all(|(source, _)| !says_who_asks(source))) {
        let title = "a ban of this limit bans all clients together";
        item.doubt(title, "expected a part of its `key` that says who asks, such as `ip`");
    }
    let answer = AnswerSpec {
        status: status.unwrap_or(answer.status),
        is_for_banned: true,
        ..answer.clone()
    };
    let interval = Interval::from_micros(u64::try_from(within?.as_micros()).ok()?)?;
    let rejections = sliding_log::Params { count: Burst::new(after?)?, interval };
    Some(Box::new(BanSpec {
        rejections: Algorithm::SlidingLog(rejections),
        lasts: lasts?,
        answer: Arc::new(answer),
    }))
}

/// Whether different clients may have different values.
fn says_who_asks(part: &KeySource) -> bool {
    use KeySource::{Host, Method, Path, Route};
    let mut alternatives = part.alternatives().iter();
    alternatives.any(|source| !matches!(source, Path | Method | Host | Route))
}
