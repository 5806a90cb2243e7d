//! `[reject]`, and a limit's own.

use bytes::Bytes;
use http::StatusCode;

use crate::config::file::{Item, Section};
use crate::config::problem::{Problem, nearest};
use crate::plan::{AnswerBody, AnswerSpec};

#[derive(Clone, Copy, PartialEq, Eq)]
enum HeaderField {
    RetryAfter,
    RateLimit,
    XRateLimit,
}

const FIELDS: &[(&str, HeaderField)] = &[
    ("retry-after", HeaderField::RetryAfter),
    ("ratelimit", HeaderField::RateLimit),
    ("x-ratelimit", HeaderField::XRateLimit),
];

/// The answer where the file says nothing.
pub(super) fn default() -> AnswerSpec {
    AnswerSpec {
        status: StatusCode::TOO_MANY_REQUESTS,
        body: AnswerBody::Problem,
        retry_after: true,
        ratelimit: true,
        x_ratelimit: false,
    }
}

/// The answer of a section; what it does not say is as in `base`.
pub(super) fn build(mut section: Section<'_>, base: &AnswerSpec) -> AnswerSpec {
    let mut answer = base.clone();
    if let Some(status) = section.take("status").and_then(|item| status(&item, 400)) {
        answer.status = status;
    }
    if let Some(body) = section.take("body").and_then(|item| body(&item)) {
        answer.body = body;
    }
    if let Some(items) = section.take("headers").and_then(|item| item.list()) {
        let chosen: Vec<HeaderField> =
            items.iter().filter_map(|item| item.word(FIELDS, &[])).collect();
        for (place, field) in chosen.iter().enumerate() {
            if chosen.len() == items.len() && chosen[..place].contains(field) {
                items[place].reject("it is in the list already: remove it");
            }
        }
        answer.retry_after = chosen.contains(&HeaderField::RetryAfter);
        answer.ratelimit = chosen.contains(&HeaderField::RateLimit);
        answer.x_ratelimit = chosen.contains(&HeaderField::XRateLimit);
    }
    section.finish();
    answer
}

/// A status from `lowest` to 599.
pub(super) fn status(item: &Item<'_>, lowest: u64) -> Option<StatusCode> {
    let number = item.whole(lowest..=599)?;
    StatusCode::from_u16(u16::try_from(number).ok()?).ok()
}

fn body(item: &Item<'_>) -> Option<AnswerBody> {
    let text = item.text_as("expected `problem`, `text`, `empty` or a text of your own")?;
    Some(match text.text.as_str() {
        "problem" => AnswerBody::Problem,
        "text" => AnswerBody::Text,
        "empty" => AnswerBody::Empty,
        own => {
            if let Some(near) = nearest(own, ["problem", "text", "empty"]) {
                item.cx.note(Problem::warning(
                    item.span.clone(),
                    "`body` is sent as it stands here",
                    format!("did you mean `{near}`?"),
                ));
            }
            AnswerBody::Custom(Bytes::from(text.text))
        }
    })
}
