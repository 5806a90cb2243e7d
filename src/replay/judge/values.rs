//! The values of a request: those that the log has, and those that are assumed.

use std::borrow::Cow;
use std::net::IpAddr;

use http::header::COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::Judge;
use crate::replay::fact::{Assumed, Fact};
use crate::replay::log::{LogRecord, Logged};

impl Judge<'_> {
    /// The headers of a request. If the log has all headers, these are all. Otherwise these are the headers that limits
    /// and routes read, with their values in the log or their assumed values.
    pub(super) fn headers(&self, record: &LogRecord) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let is_complete = record.headers.are_complete;
        if is_complete {
            for (name, value) in record.headers.named() {
                let name = HeaderName::from_bytes(name.as_bytes()).ok();
                if let (Some(name), Some(value)) = (name, value.value())
                    && let Ok(value) = HeaderValue::from_bytes(value.as_bytes())
                {
                    headers.append(name, value);
                }
            }
        }
        for name in &self.headers {
            let value = match record.headers.get(name) {
                Logged::Value(value) if !is_complete => {
                    HeaderValue::from_bytes(value.as_bytes()).ok()
                }
                Logged::Value(_) | Logged::Absent => None,
                Logged::Unknown if *name == COOKIE => self.cookies(record),
                Logged::Unknown => {
                    let fact = Fact::Header(name.clone());
                    let value = self.assumed_text(&fact, record, record.client);
                    value.and_then(|value| HeaderValue::from_str(&value).ok())
                }
            };
            if let Some(value) = value {
                headers.insert(name, value);
            }
        }
        headers
    }

    /// A `cookie` header of all cookies that are assumed.
    pub(super) fn cookies(&self, record: &LogRecord) -> Option<HeaderValue> {
        let pairs = self.facts.iter().filter_map(|fact| match fact {
            Fact::Cookie(name) => {
                Some(format!("{name}={}", self.assumed_text(fact, record, record.client)?))
            }
            _ => None,
        });
        let pairs: Vec<_> = pairs.collect();
        if pairs.is_empty() { None } else { HeaderValue::from_str(&pairs.join("; ")).ok() }
    }

    /// The value that the log has, or else the assumed value.
    pub(super) fn text<'v>(
        &self,
        fact: &Fact,
        logged: &'v Logged,
        record: &LogRecord,
        client: Option<IpAddr>,
    ) -> Option<Cow<'v, str>> {
        match logged {
            Logged::Value(value) => Some(Cow::Borrowed(value)),
            Logged::Absent => None,
            Logged::Unknown => self.assumed_text(fact, record, client).map(Cow::Owned),
        }
    }

    /// Whether the fact is assumed, from other facts that the log has about this request.
    pub(super) fn is_assumed(&self, fact: &Fact, record: &LogRecord) -> bool {
        match self.assumed(fact) {
            Some(Assumed::User) => record.user != Logged::Unknown,
            assumed => assumed.is_some(),
        }
    }

    pub(super) fn assumed_text(
        &self,
        fact: &Fact,
        record: &LogRecord,
        client: Option<IpAddr>,
    ) -> Option<String> {
        match self.assumed(fact)? {
            Assumed::Client => client.map(|client| client.to_string()),
            Assumed::User => record.user.value().map(str::to_owned),
            Assumed::Absent => None,
            Assumed::Text(text) => Some(text.clone()),
        }
    }

    pub(super) fn assumed(&self, fact: &Fact) -> Option<&Assumed> {
        let found = self.assumptions.iter().find(|assumption| assumption.fact == *fact);
        found.map(|assumption| &assumption.assumed)
    }
}
