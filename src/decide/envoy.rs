//! Envoy's rate-limit service: the call `ShouldRateLimit`, whose descriptors are requests.
//!
//! The messages are written here by hand, without the fields that tidegate does not use. Names and numbers are those of
//! `envoy/service/ratelimit/v3/rls.proto`, `envoy/extensions/common/ratelimit/v3/ratelimit.proto` and
//! `envoy/config/core/v3/base.proto` in envoyproxy/data-plane-api. [`prost`] reads and writes them.

use std::cmp::Reverse;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use prost::Message;

use super::fields::{self, OF_BODY};
use super::form::BadCall;
use super::{Asked, DecidedRequest, Question};
use crate::limit::decision::Outcome;
use crate::limit::rate::MAX_TOKENS;
use crate::reading::TIDEGATE_OVER;
use crate::settings::Settings;
use crate::throttle::{Hits, MOST_LIMITS, Quota};

/// The most descriptors of one call.
const MOST: usize = 100;

/// `RateLimitResponse.Code`.
const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;

#[derive(Clone, PartialEq, Message)]
struct RateLimitRequest {
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<RateLimitDescriptor>,
    /// Envoy leaves it out for one hit.
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Pair>,
    /// `google.protobuf.UInt64Value`.
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    is_negative_hits: bool,
}

/// `Entry` of a descriptor, and `HeaderValue`. The texts are read as bytes: a client may send other bytes than UTF-8,
/// and must not spoil the call by that.
#[derive(Clone, PartialEq, Message)]
struct Pair {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    response_headers_to_add: Vec<Pair>,
    #[prost(message, repeated, tag = "4")]
    request_headers_to_add: Vec<Pair>,
    #[prost(bytes = "bytes", tag = "5")]
    raw_body: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct DescriptorStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(message, optional, tag = "2")]
    current_limit: Option<CurrentLimit>,
    #[prost(uint32, tag = "3")]
    limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    duration_until_reset: Option<ProtoDuration>,
}

/// `RateLimitResponse.RateLimit`, by which Envoy writes its own `x-ratelimit` fields.
#[derive(Clone, PartialEq, Message)]
struct CurrentLimit {
    #[prost(uint32, tag = "1")]
    requests_per_unit: u32,
    /// 0 is unknown.
    #[prost(int32, tag = "2")]
    unit: i32,
    #[prost(string, tag = "3")]
    name: String,
}

/// The seconds of each `RateLimitResponse.RateLimit.Unit`. Envoy takes 30 days for a month.
const UNITS: [(u64, i32); 7] = [
    (1, 1),
    (60, 2),
    (3_600, 3),
    (86_400, 4),
    (30 * 86_400, 5),
    (365 * 86_400, 6),
    (7 * 86_400, 7),
];

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
struct ProtoDuration {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// The requests that a call asks about. `settings` have the limits that a descriptor may name.
///
/// # Errors
/// Where the body is not one message of this form.
pub(super) fn questions(mut body: Bytes, settings: &Settings) -> Result<Vec<Asked>, BadCall> {
    // The prefix of a message: whether it is compressed, and its length (`PROTOCOL-HTTP2.md` of grpc/grpc).
    if body.try_get_u8().is_ok_and(|flag| flag != 0) {
        return Err(BadCall::Compressed);
    }
    if body.try_get_u32().ok().map(usize::try_from) != Some(Ok(body.len())) {
        return Err(BadCall::Body("expected one message of gRPC".to_owned()));
    }
    let asked = RateLimitRequest::decode(body).map_err(|error| BadCall::Body(error.to_string()))?;
    let RateLimitRequest { descriptors, hits_addend } = asked;
    if !(1..=MOST).contains(&descriptors.len()) {
        return Err(BadCall::Body(format!("a call has 1 to {MOST} descriptors")));
    }
    let hits = (hits_addend > 0).then_some(hits_addend.into());
    let descriptors = descriptors.into_iter().enumerate().map(|(index, descriptor)| {
        let wrong = |why| BadCall::Body(format!("descriptor {}: {why}", index + 1));
        question(descriptor, hits, settings).map_err(wrong)
    });
    let asked = descriptors.collect::<Result<Vec<Asked>, _>>()?;
    let named = asked.iter().filter_map(|(_, question)| Some(question.limits.as_ref()?.len()));
    if named.sum::<usize>() > MOST_LIMITS {
        return Err(BadCall::TooManyLimits);
    }
    Ok(asked)
}

/// What a descriptor asks. `hits` is what the whole call says.
fn question(
    descriptor: RateLimitDescriptor,
    hits: Option<u64>,
    settings: &Settings,
) -> Result<Asked, String> {
    let (mut method, mut path, mut host, mut address, mut limit) = (None, None, None, None, None);
    let (mut headers, mut has_odd) = (HeaderMap::new(), false);
    for Pair { key, value } in descriptor.entries {
        let wrong = |why| format!("the entry `{}` {why}", String::from_utf8_lossy(&key));
        let part = match &*key {
            b"method" => &mut method,
            b"path" => &mut path,
            b"host" => &mut host,
            b"remote_address" => &mut address,
            b"limit" => &mut limit,
            name => {
                let name = name.strip_prefix(b"header:").unwrap_or(name);
                let name = HeaderName::from_bytes(name);
                let name = name.map_err(|_| wrong("cannot be a header field"))?;
                let Ok(value) = HeaderValue::from_maybe_shared(value) else {
                    // Clients write values, as they write paths: Envoy decodes parameters of a query, for example.
                    has_odd = true;
                    continue;
                };
                headers.try_append(name, value).map_err(|_| BadCall::TooManyFields.to_string())?;
                continue;
            }
        };
        if part.replace(value).is_some() {
            return Err(wrong("comes twice"));
        }
    }
    let (method, path, host) = (method.as_deref(), path.as_deref(), host.as_deref());
    let (head, fault) = fields::head(&OF_BODY, method, path, host, headers);
    // The names of the entries are those of Envoy's configuration.
    if let Some(fault @ BadCall::TooManyFields) = fault {
        return Err(fault.to_string());
    }
    let fault = fault.or(has_odd.then_some(BadCall::Unreadable("headers")));
    let ip = address.as_ref().and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    // It may come from a field that the client has written.
    let is_odd_address = address.is_some() && ip.is_none();
    let fault = fault.or(is_odd_address.then_some(BadCall::Unreadable("remote_address")));
    let limits =
        limit.map(|names| named(&String::from_utf8_lossy(&names), settings)).transpose()?;
    let cost = descriptor.hits_addend.or(hits).map(|hits| hits.min(MAX_TOKENS));
    let hits = match descriptor.is_negative_hits {
        _ if cost == Some(0) => Hits::Asked,
        true => Hits::GivenBack,
        false => Hits::Reported,
    };
    Ok((head, Question { fault, ip, cost, hits, limits, ..Question::default() }))
}

/// The indexes of the limits with these names in the settings. Those that are off are left out.
fn named(names: &str, settings: &Settings) -> Result<Vec<u32>, String> {
    let mut indexes = Vec::new();
    for name in names.split(',').map(str::trim) {
        match settings.limits.iter().zip(0..).find(|(limit, _)| limit.name.as_str() == name) {
            // A limit that is named twice counts once.
            Some((_, index)) if indexes.contains(&index) => {}
            Some((_, index)) => indexes.push(index),
            None if settings.off.iter().any(|off| off.as_str() == name) => {}
            None => return Err(format!("no limit has the name `{name}`")),
        }
    }
    Ok(indexes)
}

/// The message that answers a call, as gRPC sends it. The client gets the fields and the body of the descriptor that
/// decides: the one that is refused for the longest time, or has the fewest tokens left.
pub(super) fn answer(all: &[DecidedRequest<'_>]) -> Bytes {
    let decisive = all.iter().max_by_key(|it| {
        (it.refused.is_some(), decisive(&it.quotas).map(|quota| strictness(quota)))
    });
    let (mut response_headers_to_add, mut raw_body, mut code) = (Vec::new(), Bytes::new(), OK);
    if let Some(DecidedRequest { answer, refused, .. }) = decisive {
        let fields = answer.headers().iter().filter(|(name, _)| **name != TIDEGATE_OVER);
        response_headers_to_add.extend(fields.filter_map(pair));
        raw_body = answer.body().clone();
        code = if refused.is_some() { OVER_LIMIT } else { OK };
    }
    let over = all.iter().filter_map(|it| it.answer.headers().get(&TIDEGATE_OVER));
    let answer = RateLimitResponse {
        overall_code: code,
        statuses: all.iter().map(status).collect(),
        response_headers_to_add,
        request_headers_to_add: over.filter_map(|it| pair((&TIDEGATE_OVER, it))).collect(),
        raw_body,
    };
    let length = answer.encoded_len();
    let mut message = BytesMut::with_capacity(5 + length);
    message.put_u8(0);
    message.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // The buffer grows as needed, so there is room.
    let _ = answer.encode(&mut message);
    message.freeze()
}

/// A field as a message has it, where its value is text.
fn pair((name, value): (&HeaderName, &HeaderValue)) -> Option<Pair> {
    let copy = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    Some(Pair { key: copy(name.as_str()), value: copy(value.to_str().ok()?) })
}

fn status(decided: &DecidedRequest<'_>) -> DescriptorStatus {
    let quota = decisive(&decided.quotas);
    let reset = quota.and_then(|quota| match quota.outcome {
        Outcome::Reject { retry_after } => retry_after,
        Outcome::Allow | Outcome::Delay(_) => quota.full_after(),
    });
    DescriptorStatus {
        code: if decided.refused.is_some() { OVER_LIMIT } else { OK },
        current_limit: quota.map(current_limit),
        limit_remaining: quota.map_or(0, |it| u32::try_from(it.remaining).unwrap_or(u32::MAX)),
        duration_until_reset: reset.map(|reset| ProtoDuration {
            seconds: i64::try_from(reset.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(reset.subsec_nanos()).unwrap_or_default(),
        }),
    }
}

/// What a full bucket holds, and the time in which it refills, if Envoy has a word for that.
fn current_limit(quota: &Quota<'_>) -> CurrentLimit {
    let unit = UNITS.iter().find(|(seconds, _)| quota.window == Some(*seconds));
    CurrentLimit {
        requests_per_unit: u32::try_from(quota.burst).unwrap_or(u32::MAX),
        unit: unit.map_or(0, |(_, unit)| *unit),
        name: quota.limit.name.as_str().to_owned(),
    }
}

/// The limit that refuses for the longest time, or else the one with the fewest tokens left.
fn decisive<'q, 'p>(quotas: &'q [Quota<'p>]) -> Option<&'q Quota<'p>> {
    quotas.iter().max_by_key(|quota| strictness(quota))
}

fn strictness(quota: &Quota<'_>) -> (Duration, Reverse<u64>) {
    let wait = match quota.outcome {
        Outcome::Reject { retry_after } => retry_after.unwrap_or(Duration::MAX),
        Outcome::Allow | Outcome::Delay(_) => Duration::ZERO,
    };
    (wait, Reverse(quota.remaining))
}
