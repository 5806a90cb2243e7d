//! `[reject]`, and `reject` of a limit.

use http::HeaderValue;
use mediatype::MediaType;

use super::values::once;
use crate::config::reader::{
    Item, Kind, Section, SettingList, Shape, Spelled as _, Value, Words, at, enumerate, fields,
    nearest, one_word, read, setting, spellings, words,
};
use crate::settings::RetryJitter;
use crate::settings::{AnswerBody, AnswerHeaders, AnswerSpec, BodyTemplate};

type Spec = AnswerSpec;

pub(crate) static REJECT: Shape = Shape::new("[reject]", || fields(SETTINGS));

#[rustfmt::skip]
pub(crate) static SETTINGS: SettingList<Spec> = &[
    setting(at!(status), Kind::Whole(400, 599), Value("429"), "the status of the answer to a throttled client"),
    setting(at!(body, body), Kind::WordOrText(&["problem", "text", "empty"]), Value("\"problem\""),
        "RFC 9457 JSON, a line of text, nothing, or a text of your own, in which `{limit}`, `{status}`, `{retry_after}`, `{retry_after_ms}`, `{id}` and `{detail}` are replaced (the first limit that rejects, in the route's order; times are empty where nothing will ever pass; other braces stay)"),
    setting(at!(content_type, content_type), Kind::Text, Words("`text/plain; charset=utf-8`"),
        "the media type of a text of your own, such as `\"application/json\"`"),
    setting(at!(longest_retry_after), Kind::TIME_ABOVE_ZERO, Words("none"),
        "a longer wait is left out of `retry-after`, since many clients sleep for as long as it says; the `ratelimit` fields still have it"),
    setting(at!(headers, headers), Kind::List(0, &Kind::Word(spellings::<HeaderField>)), Value("[\"retry-after\", \"ratelimit\"]"),
        "`\"retry-after-ms\"` is the exact wait; the last two are on allowed answers too"),
    setting(at!(jitter, jitter), Kind::Percent, Value("\"0%\""),
        "adds up to this share to `retry-after`, the same for a key each time, so that a crowd does not come back in one second; never a shorter time than the true one"),
];

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum HeaderField {
    RetryAfter,
    RetryAfterMs,
    RateLimit,
    XRateLimit,
}

words!(HeaderField {
    "retry-after" => RetryAfter,
    "retry-after-ms" => RetryAfterMs,
    "ratelimit" => RateLimit,
    "x-ratelimit" => XRateLimit,
});

/// The answer of a limit's own `reject`. A missing field is as in `base`.
pub(super) fn of_limit(section: Section<'_>, base: &AnswerSpec) -> AnswerSpec {
    read(SETTINGS, section.without_defaults(), base.clone())
}

fn headers(item: &Item<'_>) -> Option<AnswerHeaders> {
    let read = one_word::<HeaderField>;
    let name = |field: &HeaderField| field.spelling().to_owned();
    let chosen = once(&item.list()?, read, |field| Some(*field), name);
    let has = |field| chosen.iter().any(|(chosen, _)| *chosen == field);
    Some(AnswerHeaders {
        retry_after: has(HeaderField::RetryAfter),
        retry_after_ms: has(HeaderField::RetryAfterMs),
        ratelimit: has(HeaderField::RateLimit),
        x_ratelimit: has(HeaderField::XRateLimit),
    })
}

fn jitter(item: &Item<'_>) -> Option<RetryJitter> {
    percent(item).and_then(RetryJitter::of_percent)
}

/// A whole percentage.
pub(super) fn percent(item: &Item<'_>) -> Option<u8> {
    item.form("expected a whole percentage from \"0%\" to \"100%\", as in \"20%\"", |text| {
        let digits =
            text.strip_suffix('%').filter(|it| it.bytes().all(|byte| byte.is_ascii_digit()));
        let percent = digits.and_then(|digits| digits.parse().ok());
        percent.filter(|percent| *percent <= 100)
    })
}

fn body(item: &Item<'_>) -> Option<AnswerBody> {
    let text = item.text_as("expected `problem`, `text`, `empty` or a text of your own")?;
    Some(match text.as_str() {
        "problem" => AnswerBody::Problem,
        "text" => AnswerBody::Text,
        "empty" => AnswerBody::Empty,
        own => {
            if let Some(near) = nearest(own, ["problem", "text", "empty"]) {
                let expected = format!("did you mean `{near}`?");
                item.doubt("`body` is sent as it stands here", expected);
            }
            for word in unknown_names(own).filter(|_| item.is_shown()) {
                let names = BodyTemplate::NAMES.map(|(name, _)| name);
                let expected = format!("{} are replaced", enumerate(names, "and"));
                item.doubt(format!("`{{{word}}}` is sent as it stands here"), expected);
            }
            AnswerBody::Custom(BodyTemplate::new(own))
        }
    })
}

/// Words in braces that were probably meant as one of the names that are replaced.
fn unknown_names(text: &str) -> impl Iterator<Item = &str> {
    let names = BodyTemplate::NAMES.map(|(name, _)| name.trim_matches(['{', '}']));
    let words =
        text.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(word, _)| word);
    words.filter(move |word| !names.contains(word) && nearest(word, names).is_some())
}

fn content_type(item: &Item<'_>) -> Option<HeaderValue> {
    item.form("expected a media type, as in \"application/json\"", |text| {
        HeaderValue::from_str(text).ok().filter(|_| MediaType::parse(text).is_ok())
    })
}
