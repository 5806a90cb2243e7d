//! Envoy's rate-limit service: the call `ShouldRateLimit`, whose descriptors are requests.
//!
//! The messages are written here by hand, without the fields that tidegate does not use. Names and numbers are those of
//! `envoy/service/ratelimit/v3/rls.proto`, `envoy/extensions/common/ratelimit/v3/ratelimit.proto` and
//! `envoy/config/core/v3/base.proto` in envoyproxy/data-plane-api. [`prost`] reads and writes them.

use std::cmp::Reverse;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Uri, request};
use prost::{Enumeration, Message};

use super::{BadCall, DecideCall, Form, fields};
use crate::limit::decision::Outcome;
use crate::limit::rate::MAX_TOKENS;
use crate::plan::Plan;
use crate::throttle::Quota;

pub(super) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The most descriptors of one call.
const MOST: usize = 100;

/// The bytes before a message: whether it is compressed, and its length (`PROTOCOL-HTTP2.md` of grpc/grpc).
const PREFIX: usize = 5;

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
    entries: Vec<Entry>,
    /// `google.protobuf.UInt64Value`.
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<u64>,
}

/// Both texts are read as bytes: a client may send other bytes than UTF-8, and must not spoil the call by that.
#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct RateLimitResponse {
    #[prost(enumeration = "Code", tag = "1")]
    overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    response_headers_to_add: Vec<Header>,
    #[prost(message, repeated, tag = "4")]
    request_headers_to_add: Vec<Header>,
    #[prost(bytes = "bytes", tag = "5")]
    raw_body: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DescriptorStatus {
    #[prost(enumeration = "Code", tag = "1")]
    code: i32,
    #[prost(message, optional, tag = "2")]
    current_limit: Option<RateLimit>,
    #[prost(uint32, tag = "3")]
    limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    duration_until_reset: Option<ProtoDuration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

#[derive(Clone, PartialEq, Message)]
struct RateLimit {
    #[prost(uint32, tag = "1")]
    requests_per_unit: u32,
    /// `RateLimit.Unit`.
    #[prost(int32, tag = "2")]
    unit: i32,
    #[prost(string, tag = "3")]
    name: String,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
struct ProtoDuration {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// `HeaderValue`.
#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// The requests that a call asks about. `plan` has the limits that a descriptor may name.
///
/// # Errors
/// Where the body is not one message of this form.
pub(crate) fn questions(
    mut body: Bytes,
    plan: &Plan,
) -> Result<Vec<(request::Parts, DecideCall)>, BadCall> {
    let unreadable = |why: &str| BadCall::Body(why.to_owned());
    let is_compressed = body.try_get_u8().is_ok_and(|flag| flag != 0);
    if is_compressed {
        return Err(BadCall::Compressed);
    }
    let length = body.try_get_u32().ok().and_then(|length| usize::try_from(length).ok());
    if length != Some(body.len()) {
        return Err(unreadable("expected one message of gRPC"));
    }
    let asked = RateLimitRequest::decode(body).map_err(|error| unreadable(&error.to_string()))?;
    let RateLimitRequest { descriptors, hits_addend } = asked;
    if !(1..=MOST).contains(&descriptors.len()) {
        return Err(BadCall::Body(format!("a call has 1 to {MOST} descriptors")));
    }
    let hits = (hits_addend > 0).then_some(u64::from(hits_addend));
    let descriptors = descriptors.into_iter().enumerate().map(|(index, descriptor)| {
        question(descriptor, hits, plan)
            .map_err(|fault| BadCall::Body(format!("descriptor {}: {fault}", index + 1)))
    });
    descriptors.collect()
}

/// The head of the request that a descriptor is, and the call that asks about it. `hits` is what the whole call says.
fn question(
    descriptor: RateLimitDescriptor,
    hits: Option<u64>,
    plan: &Plan,
) -> Result<(request::Parts, DecideCall), BadCall> {
    let RateLimitDescriptor { entries, hits_addend } = descriptor;
    let (mut method, mut path, mut host, mut address, mut limit) = (None, None, None, None, None);
    let mut headers = HeaderMap::new();
    for Entry { key, value } in entries {
        let part = match &*key {
            b"method" => &mut method,
            b"path" => &mut path,
            b"host" => &mut host,
            b"remote_address" => &mut address,
            b"limit" => &mut limit,
            name => {
                let name = name.strip_prefix(b"header:").unwrap_or(name);
                let wrong = || BadCall::Entry(String::from_utf8_lossy(&key).into_owned());
                let name = HeaderName::from_bytes(name).map_err(|_| wrong())?;
                let value = HeaderValue::from_maybe_shared(value).map_err(|_| wrong())?;
                headers.try_append(name, value).map_err(|_| BadCall::TooManyFields)?;
                continue;
            }
        };
        if part.replace(value).is_some() {
            return Err(BadCall::Entry(String::from_utf8_lossy(&key).into_owned()));
        }
    }
    let target = path.as_deref().map_or_else(|| Some(Uri::default()), fields::target);
    // Only clients write paths, and none must get past its limits by one that cannot be read: such a request is refused.
    let fault = target.is_none().then_some(BadCall::Unreadable("path"));
    let head =
        fields::head(method.as_deref(), target.unwrap_or_default(), host.as_deref(), headers)?;
    let ip = address.map(|text| std::str::from_utf8(&text).ok()?.parse().ok());
    let ip = ip.map(|ip| ip.ok_or(BadCall::Unreadable("remote_address"))).transpose()?;
    let cost = hits_addend.or(hits);
    if cost.is_some_and(|cost| cost > MAX_TOKENS) {
        return Err(BadCall::Unreadable("hits_addend"));
    }
    let limits = limit.map(|names| named(&names, plan)).transpose()?;
    Ok((head, DecideCall { fault, ip, cost, limits, ..DecideCall::of(Form::Envoy) }))
}

/// The indexes of the limits with these names in the plan. Those that are off are left out.
fn named(names: &[u8], plan: &Plan) -> Result<Vec<u32>, BadCall> {
    let mut indexes = Vec::new();
    for name in String::from_utf8_lossy(names).split(',').map(str::trim) {
        match plan.limits.iter().zip(0..).find(|(limit, _)| limit.name.as_str() == name) {
            // A limit that is named twice counts once.
            Some((_, index)) if indexes.contains(&index) => {}
            Some((_, index)) => indexes.push(index),
            None if plan.off.iter().any(|off| off.as_str() == name) => {}
            None => return Err(BadCall::NoSuchLimit(name.to_owned())),
        }
    }
    Ok(indexes)
}

impl DescriptorStatus {
    /// The status of a descriptor, by what its limits say.
    pub(crate) fn of(quotas: &[Quota<'_>], is_refused: bool) -> Self {
        let wait = |quota: &Quota<'_>| match quota.outcome {
            Outcome::Reject { retry_after } => retry_after.unwrap_or(Duration::MAX),
            Outcome::Allow | Outcome::Delay(_) => Duration::ZERO,
        };
        let decisive = quotas.iter().max_by_key(|quota| (wait(quota), Reverse(quota.remaining)));
        let code = if is_refused { Code::OverLimit } else { Code::Ok };
        let reset = decisive.and_then(|quota| match quota.outcome {
            Outcome::Reject { retry_after } => retry_after,
            Outcome::Allow | Outcome::Delay(_) => quota.full_after(),
        });
        Self {
            code: code.into(),
            current_limit: decisive.map(|quota| RateLimit {
                requests_per_unit: number(quota.burst),
                unit: quota.window.map_or(0, unit),
                name: quota.limit.name.to_string(),
            }),
            limit_remaining: decisive.map_or(0, |quota| number(quota.remaining)),
            duration_until_reset: reset.map(|reset| ProtoDuration {
                seconds: i64::try_from(reset.as_secs()).unwrap_or(i64::MAX),
                nanos: i32::try_from(reset.subsec_nanos()).unwrap_or_default(),
            }),
        }
    }
}

fn number(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

/// The number of `RateLimit.Unit` for a window of so many seconds; 0 where there is none.
fn unit(seconds: u64) -> i32 {
    match seconds {
        1 => 1,
        60 => 2,
        3_600 => 3,
        86_400 => 4,
        604_800 => 7,
        _ => 0,
    }
}

/// What a call is answered about all its descriptors.
pub(crate) struct EnvoyAnswer {
    pub(crate) is_refused: bool,
    pub(crate) statuses: Vec<DescriptorStatus>,
    /// The fields for the client, and those for the API.
    pub(crate) headers: [HeaderMap; 2],
    /// The body for a client that is refused.
    pub(crate) body: Bytes,
}

impl EnvoyAnswer {
    /// The message as gRPC sends it.
    pub(crate) fn message(self) -> Bytes {
        let code = if self.is_refused { Code::OverLimit } else { Code::Ok };
        let [response_headers_to_add, request_headers_to_add] = self.headers.map(|headers| {
            let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
            let headers = headers.iter();
            headers
                .filter_map(|(name, value)| {
                    Some(Header { key: name.to_string(), value: text(value)? })
                })
                .collect()
        });
        let answer = RateLimitResponse {
            overall_code: code.into(),
            statuses: self.statuses,
            response_headers_to_add,
            request_headers_to_add,
            raw_body: self.body,
        };
        let length = answer.encoded_len();
        let mut message = BytesMut::with_capacity(PREFIX + length);
        message.put_u8(0);
        message.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
        // The buffer grows as needed, so there is room.
        let _ = answer.encode(&mut message);
        message.freeze()
    }
}
