//! The answers to throttled clients, with a cache. `answer` asks for them.
//!
//! A crowd of clients may be rejected at once, so rejections must cost little. Most of these clients get
//! the same answer: no token is left, and `retry-after` has the same number of seconds. Such an answer is
//! composed once.

mod sentence;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use smallvec::SmallVec;
use uuid::Uuid;

use super::grpc;
use super::protocol::Protocol;
use super::quotas::{ShownFigures, write_quotas};
use super::response::{OwnResponse, PLAIN_TEXT, own, trailers_only};
use crate::limit::algorithm::Algorithm;
use crate::limit::decision::{whole_milliseconds, whole_seconds};
use crate::limit::name::Name;
use crate::limit::quota::{QUOTA_EXCEEDED, problem};
use crate::settings::{AnswerBody, AnswerSpec, BodyTemplate, LimitSpec, TemplatePiece};
use crate::throttle::{Quota, violated};

/// The problem type of draft-ietf-httpapi-ratelimit-headers-11, section 5, for banned clients, and its title.
const ABNORMAL_USAGE: [&str; 2] = [
    "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
    "Request not satisfied due to detection of abnormal request pattern",
];

/// The wait in milliseconds. The clients of some providers of language models read it before `retry-after`.
pub(super) const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// The wait of a gRPC client in milliseconds. A negative number says that it should not try again (proposal A6 of
/// grpc/proposal).
pub(super) const GRPC_RETRY_PUSHBACK_MS: HeaderName =
    HeaderName::from_static("grpc-retry-pushback-ms");

/// The number of cached answers. It is enough for a few limits, with each `retry-after` of up to a minute.
const KEPT: usize = 256;

/// The number of other answers that are composed for an entry before the last of them replaces the cached answer. To
/// cache an answer costs half as much as to compose it. This cost is wasted if hardly two clients get the same answer.
const OTHERS: u8 = 8;

/// The content of an answer to a throttled client.
#[derive(Clone, Copy)]
pub(super) struct RejectionContent<'r> {
    protocol: Protocol,
    /// The answer settings of the limit that decides.
    spec: &'r Arc<AnswerSpec>,
    /// The answer settings for limits without their own.
    default: &'r Arc<AnswerSpec>,
    /// After how many seconds the client may try again; `None` is never.
    retry_after: Option<u64>,
    /// The same in milliseconds. It is 0 in an answer that does not name it, so that the answer can be cached.
    milliseconds: u64,
    quotas: &'r [Quota<'r>],
    /// The figures of the first limit that refuses. The answer describes it.
    figures: Algorithm,
}

/// What stands for the ID in a composed answer until its own ID is known.
const NO_ID: &str = "????????-????-????-????-????????????";

/// One worker's cached answers under the same settings. The first limit of an answer and its `retry-after` give its
/// entry in the cache.
#[derive(Debug)]
pub(super) struct Rejections {
    entries: RefCell<[CacheEntry; KEPT]>,
}

#[derive(Debug, Default)]
struct CacheEntry {
    kept: Option<Box<CachedAnswer>>,
    /// The number of answers that did not match the cached one, since it was last used.
    others: u8,
}

impl Rejections {
    pub(super) fn new() -> Self {
        Self { entries: RefCell::new(std::array::from_fn(|_| CacheEntry::default())) }
    }

    /// The answer to the rejection with this ID.
    pub(super) fn answer(&self, content: &RejectionContent<'_>, id: Uuid) -> OwnResponse {
        let mut entries = self.entries.borrow_mut();
        let CacheEntry { kept, others } = &mut entries[content.entry()];
        match kept {
            Some(kept) if kept.is_for(content) => {
                *others = 0;
                kept.answer.with_id(id)
            }
            _ => {
                let answer = ComposedAnswer::new(compose(content));
                *others += 1;
                let own = answer.with_id(id);
                if kept.is_none() || *others == OTHERS {
                    (*kept, *others) = (Some(Box::new(CachedAnswer::of(content, answer))), 0);
                }
                own
            }
        }
    }
}

impl<'r> RejectionContent<'r> {
    /// The answer to a rejection. `spec` has the answer settings of the limit that decides, `default` those for limits
    /// without their own. `retry_after` is the wait in the answer. `figures` belong to the first limit that refuses.
    pub(super) fn new(
        protocol: Protocol,
        [spec, default]: [&'r Arc<AnswerSpec>; 2],
        retry_after: Option<Duration>,
        figures: Algorithm,
        quotas: &'r [Quota<'r>],
    ) -> Self {
        let tells = match protocol {
            Protocol::Grpc(_) => true,
            Protocol::Http(_) => spec.headers.retry_after_ms || has_milliseconds(&spec.body),
        };
        let milliseconds = retry_after.filter(|_| tells).map_or(0, whole_milliseconds);
        let retry_after = retry_after.map(whole_seconds);
        Self { protocol, spec, default, retry_after, milliseconds, quotas, figures }
    }

    /// What the answer says in words.
    pub(super) fn detail(&self) -> String {
        let hides =
            |spec: &LimitSpec| !spec.reject.as_ref().unwrap_or(self.default).headers.ratelimit;
        let first = self.quotas.iter().find(|quota| !quota.outcome.passes());
        let told = first
            .filter(|first| !hides(first.limit))
            .map(|first| sentence::limit(first.limit, &self.figures, self.spec.is_for_banned));
        sentence::with_wait(told, self.retry_after)
    }

    fn entry(&self) -> usize {
        let limit = self.quotas.first().map_or(0, |quota| quota.limit.name.fingerprint());
        let entry = limit.wrapping_add(self.retry_after.unwrap_or(0)) % KEPT as u64;
        usize::try_from(entry).unwrap_or_default()
    }
}

/// A composed answer, and the content it was composed from.
#[derive(Debug)]
struct CachedAnswer {
    protocol: Protocol,
    spec: Arc<AnswerSpec>,
    retry_after: Option<u64>,
    milliseconds: u64,
    quotas: Vec<CachedQuota>,
    figures: Algorithm,
    answer: ComposedAnswer,
}

/// An answer that has [`NO_ID`] in place of its ID, with the positions of that text in the body and in gRPC's message.
#[derive(Debug)]
struct ComposedAnswer {
    answer: OwnResponse,
    in_body: SmallVec<[usize; 1]>,
    in_message: SmallVec<[usize; 1]>,
}

impl ComposedAnswer {
    fn new(answer: OwnResponse) -> Self {
        let message = answer.headers().get(grpc::MESSAGE).map_or(&[][..], HeaderValue::as_bytes);
        Self { in_body: places(answer.body()), in_message: places(message), answer }
    }

    /// The answer with this ID.
    fn with_id(&self, id: Uuid) -> OwnResponse {
        let mut answer = Response::new(patched(self.answer.body(), &self.in_body, id));
        *answer.status_mut() = self.answer.status();
        *answer.headers_mut() = self.answer.headers().clone();
        if !self.in_message.is_empty()
            && let Some(message) = answer.headers_mut().get_mut(grpc::MESSAGE)
        {
            let own = patched(&Bytes::copy_from_slice(message.as_bytes()), &self.in_message, id);
            *message = HeaderValue::from_maybe_shared(own).unwrap_or(message.clone());
        }
        answer
    }
}

/// Where [`NO_ID`] stands in a text.
fn places(text: &[u8]) -> SmallVec<[usize; 1]> {
    let all = text.windows(NO_ID.len()).enumerate();
    all.filter(|(_, part)| *part == NO_ID.as_bytes()).map(|(at, _)| at).collect()
}

/// The text with the ID in these places.
fn patched(text: &Bytes, places: &[usize], id: Uuid) -> Bytes {
    if places.is_empty() {
        return text.clone();
    }
    let mut own = text.to_vec();
    for at in places {
        if let Some(place) = own.get_mut(*at..at + NO_ID.len()) {
            id.hyphenated().encode_lower(place);
        }
    }
    own.into()
}

/// What a cached answer says about one limit.
#[derive(Debug)]
struct CachedQuota {
    figures: ShownFigures,
    remaining: u64,
    reset: Option<u64>,
    passes: bool,
}

impl CachedQuota {
    fn of(quota: &Quota<'_>) -> Self {
        Self {
            figures: ShownFigures::of(quota),
            remaining: quota.remaining,
            reset: quota.reset,
            passes: quota.outcome.passes(),
        }
    }

    /// A limit that refuses shows `retry-after` in place of its own time.
    fn is_of(&self, quota: &Quota<'_>) -> bool {
        self.figures.are_of(quota)
            && self.remaining == quota.remaining
            && self.passes == quota.outcome.passes()
            && (!self.passes || self.reset == quota.reset)
    }
}

impl CachedAnswer {
    fn of(content: &RejectionContent<'_>, answer: ComposedAnswer) -> Self {
        Self {
            protocol: content.protocol,
            spec: Arc::clone(content.spec),
            retry_after: content.retry_after,
            milliseconds: content.milliseconds,
            quotas: content.quotas.iter().map(CachedQuota::of).collect(),
            figures: content.figures,
            answer,
        }
    }

    fn is_for(&self, content: &RejectionContent<'_>) -> bool {
        self.retry_after == content.retry_after
            && self.milliseconds == content.milliseconds
            && self.protocol == content.protocol
            && Arc::ptr_eq(&self.spec, content.spec)
            && self.quotas.len() == content.quotas.len()
            && self.quotas.iter().zip(content.quotas).all(|(kept, quota)| kept.is_of(quota))
            && self.figures == content.figures
    }
}

/// Composes an answer for plain HTTP or gRPC. Both have the same `retry-after` and quota fields.
fn compose(content: &RejectionContent<'_>) -> OwnResponse {
    let spec = &**content.spec;
    let (status, kind, body) = match (content.protocol, &spec.body) {
        (Protocol::Grpc(_), _) => (StatusCode::OK, None, Bytes::new()),
        (Protocol::Http(kind), AnswerBody::Problem) => {
            (spec.status, Some(kind.media_type()), body(spec.status, content).into())
        }
        (Protocol::Http(_), AnswerBody::Text) => {
            (spec.status, Some(PLAIN_TEXT), plain_text(content).into())
        }
        (Protocol::Http(_), AnswerBody::Empty) => (spec.status, None, Bytes::new()),
        (Protocol::Http(_), AnswerBody::Custom(template)) => {
            let kind = spec.content_type.clone().unwrap_or(PLAIN_TEXT);
            (spec.status, Some(kind), filled(template, content).into())
        }
    };
    let mut answer = match content.protocol {
        Protocol::Http(_) => own(status, kind, body),
        Protocol::Grpc(kind) => {
            let message = format!("{} (urn:uuid:{NO_ID})", content.detail());
            trailers_only(kind, grpc::Status::ResourceExhausted, &message)
        }
    };
    let headers = answer.headers_mut();
    let longest = spec.longest_retry_after.map_or(u64::MAX, |longest| longest.as_secs());
    if let Some(seconds) = content.retry_after.filter(|seconds| *seconds <= longest) {
        if spec.headers.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if spec.headers.retry_after_ms {
            headers.insert(RETRY_AFTER_MS, content.milliseconds.into());
        }
    }
    if matches!(content.protocol, Protocol::Grpc(_)) {
        let never = HeaderValue::from_static("-1");
        let wait = content.retry_after.map_or(never, |_| content.milliseconds.into());
        headers.insert(GRPC_RETRY_PUSHBACK_MS, wait);
    }
    write_quotas(headers, content.quotas, content.default, content.retry_after);
    answer
}

fn body(status: StatusCode, content: &RejectionContent<'_>) -> String {
    let detail = escaped(&content.detail());
    let kind = if content.spec.is_for_banned { ABNORMAL_USAGE } else { QUOTA_EXCEEDED };
    let names = || violated(content.quotas).map(Name::as_str);
    let more = [r#","detail":""#, &detail, r#"","instance":"urn:uuid:"#, NO_ID, "\""];
    problem(kind, status.as_str(), &more, names)
}

fn has_milliseconds(body: &AnswerBody) -> bool {
    matches!(body, AnswerBody::Custom(template) if template.0.contains(&TemplatePiece::RetryAfterMs))
}

/// The operator's own text, with the values of this rejection in place of its names.
fn filled(template: &BodyTemplate, content: &RejectionContent<'_>) -> String {
    let time = |time: u64| content.retry_after.map(|_| time.to_string()).unwrap_or_default();
    let text = |piece: &TemplatePiece| match piece {
        TemplatePiece::Text(text) => text.clone(),
        TemplatePiece::Limit => {
            violated(content.quotas).next().map(ToString::to_string).unwrap_or_default()
        }
        TemplatePiece::Status => content.spec.status.as_str().to_owned(),
        TemplatePiece::RetryAfter => time(content.retry_after.unwrap_or_default()),
        TemplatePiece::RetryAfterMs => time(content.milliseconds),
        TemplatePiece::Id => NO_ID.to_owned(),
        TemplatePiece::Detail if is_json(content.spec, template) => escaped(&content.detail()),
        TemplatePiece::Detail => content.detail(),
    };
    template.0.iter().map(text).collect()
}

/// Whether an operator's own text is JSON.
fn is_json(spec: &AnswerSpec, template: &BodyTemplate) -> bool {
    match &spec.content_type {
        Some(kind) => kind.to_str().is_ok_and(|kind| kind.contains("json")),
        None => {
            matches!(template.0.first(), Some(TemplatePiece::Text(text)) if text.trim_start().starts_with(['{', '[']))
        }
    }
}

/// The text as it stands between the quotes of JSON.
fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted.get(1..quoted.len() - 1).unwrap_or_default().to_owned()
}

fn plain_text(content: &RejectionContent<'_>) -> String {
    format!("too many requests: {}\n", content.detail())
}

#[cfg(test)]
mod tests;
