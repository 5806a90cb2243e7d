//! Envoy's rate-limit service: descriptors are requests, and all of a call are decided together.

mod calls;
mod reported;
mod together;

use prost::Message;
use serde_json::Value;

use super::asked_at;
use crate::support::client::Reply;
use crate::support::http2::Client;
use crate::support::tidegate::Tidegate;

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

#[derive(Clone, PartialEq, Message)]
struct Call {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Answer {
    #[prost(int32, tag = "1")]
    overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<Status>,
    #[prost(message, repeated, tag = "3")]
    response_headers_to_add: Vec<Header>,
    #[prost(message, repeated, tag = "4")]
    request_headers_to_add: Vec<Header>,
    #[prost(bytes = "vec", tag = "5")]
    raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(message, optional, tag = "2")]
    current_limit: Option<CurrentLimit>,
    #[prost(uint32, tag = "3")]
    limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    duration_until_reset: Option<Duration>,
}

#[derive(Clone, PartialEq, Message)]
struct CurrentLimit {
    #[prost(uint32, tag = "1")]
    requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    unit: i32,
    #[prost(string, tag = "3")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Duration {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;

/// The gRPC statuses of calls that are not answered.
const INVALID_ARGUMENT: &str = "3";
const RESOURCE_EXHAUSTED: &str = "8";
const UNIMPLEMENTED: &str = "12";
const UNAVAILABLE: &str = "14";
const UNAUTHENTICATED: &str = "16";

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.response_headers_to_add.iter().find(|header| header.key == name);
        found.map(|header| &*header.value)
    }

    /// Code and remaining tokens of each descriptor.
    fn said(&self) -> Vec<(i32, u32)> {
        self.statuses.iter().map(|status| (status.code, status.limit_remaining)).collect()
    }

    /// The problem that the client is to get.
    fn problem(&self) -> Value {
        serde_json::from_slice(&self.raw_body).unwrap()
    }

    /// The seconds until the reset of a descriptor.
    fn reset(&self, descriptor: usize) -> f64 {
        let reset = self.statuses[descriptor].duration_until_reset.as_ref().unwrap();
        f64::from(i32::try_from(reset.seconds).unwrap()) + f64::from(reset.nanos) / 1e9
    }
}

fn descriptor(entries: &[(&str, &str)]) -> Descriptor {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).to_owned(),
        value: value.as_bytes().to_vec(),
    };
    Descriptor { entries: entries.iter().map(entry).collect(), ..Descriptor::default() }
}

fn with_hits(hits: u64, entries: &[(&str, &str)]) -> Descriptor {
    Descriptor { hits_addend: Some(hits), ..descriptor(entries) }
}

fn call(descriptors: &[Descriptor]) -> Call {
    Call { domain: "any".to_owned(), descriptors: descriptors.to_vec(), hits_addend: 0 }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], message].concat()
}

const GRPC: [(&str, &str); 2] = [("content-type", "application/grpc"), ("te", "trailers")];

fn sent(client: &mut Client, call: &Call) -> Reply {
    client.post(METHOD, &GRPC, &framed(&call.encode_to_vec()))
}

/// The answer to a call that is decided.
fn decided(reply: &Reply) -> Answer {
    assert_eq!(reply.header("content-type").as_deref(), Some("application/grpc"));
    let trailers = [("grpc-status".to_owned(), "0".to_owned())];
    assert_eq!((reply.status, &*reply.trailers), (200, &trailers[..]), "{:?}", reply.headers);
    let (prefix, message) = reply.body.split_at(5);
    assert_eq!(prefix, &framed(message)[..5]);
    Answer::decode(message).unwrap()
}

/// Status and message of a call that is not decided.
fn failed(reply: &Reply) -> (String, String) {
    assert_eq!((reply.status, reply.body.len()), (200, 0), "{}", reply.text());
    let field = |name| reply.header(name).unwrap_or_default();
    (field("grpc-status"), field("grpc-message"))
}

fn ask(client: &mut Client, descriptors: &[Descriptor]) -> Answer {
    decided(&sent(client, &call(descriptors)))
}

/// The status that a client of this address is to get for a request for this path.
pub(super) fn status_of(client: &mut Client, path: &str, address: &str) -> u16 {
    let entries = [("path", path), ("remote_address", address)];
    match sent(client, &call(&[descriptor(&entries)])) {
        reply if reply.header("grpc-status").as_deref() == Some(UNAVAILABLE) => 503,
        reply if decided(&reply).overall_code == OK => 200,
        _ => 429,
    }
}

/// The fields that the client of a request with these entries is to get.
pub(super) fn answer_to(client: &mut Client, entries: &[(&str, &str)]) -> Vec<(String, String)> {
    let fields = ask(client, &[descriptor(entries)]).response_headers_to_add;
    fields.into_iter().map(|field| (field.key, field.value)).collect()
}

fn open(proxy: &Tidegate) -> Client {
    Client::open(asked_at(proxy))
}

const USERS: &str = "[limits.user]\nkey = [\"header:x-user\"]\nrate = \"3/h\"\n\
     [limits.all]\nkey = []\nrate = \"4/m\"\n\
     [[routes]]\npath = \"/u/{*rest}\"\nmethods = [\"POST\"]\nhost = \"api.test\"\nlimits = [\"user\", \"all\"]\n";

fn user(name: &str) -> Descriptor {
    descriptor(&[("method", "POST"), ("host", "api.test"), ("path", "/u/1?x=y"), ("x-user", name)])
}
