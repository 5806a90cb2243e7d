//! A record while its line is read. It decides which of several times, addresses and requests of the line count.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

use http::StatusCode;
use http::header::{HOST, USER_AGENT};
use serde_json::{Map, Value};

use super::address;
use super::field::{LogField, TimeRank};
use super::record::{ClientOrigin, LineFault, LogRecord, Logged};
use super::request_line::{self, RequestTarget};
use super::time;
use super::told::LoggedCounts;

/// The value of a field of a line.
#[derive(Clone, Debug)]
pub(super) enum LoggedValue<'l> {
    Text(Cow<'l, str>),
    Number(f64),
    /// JSON's `null`.
    Nothing,
}

impl LoggedValue<'_> {
    /// A whole number from 0 to 2^53.
    fn whole(&self) -> Option<u64> {
        match self {
            Self::Text(text) => text.parse().ok(),
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is between 0 and 2^53"
            )]
            Self::Number(number @ 0.0..=9_007_199_254_740_992.0) => Some(*number as u64),
            _ => None,
        }
    }

    fn text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.into_owned()),
            _ => None,
        }
    }

    fn logged(self) -> Logged {
        match self {
            // Caddy and Traefik write this for values that are secret.
            Self::Text(text) if text == "REDACTED" => Logged::Unknown,
            Self::Text(text) => Logged::of(text),
            Self::Number(number) => Logged::Value(number.to_string()),
            Self::Nothing => Logged::Absent,
        }
    }
}

/// tidegate's lines after which its limits may have decided otherwise than a replay, and what they tell.
pub(crate) const CHANGES: [(&str, &str); 5] = [
    ("config loaded", "starts of a process, whose buckets in its memory, if it had any, were new"),
    ("process gone", "processes that died: what was under way in them has no line"),
    ("config reloaded", "reloads, while the given file holds for the whole log"),
    ("store unavailable", "outages of the store, in which the processes decided by themselves"),
    ("banned", "bans, which are not replayed"),
];

/// A record while its line is read.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordDraft {
    record: LogRecord,
    /// The rank of the record's time. `None` before a time is read.
    time: Option<TimeRank>,
    request: Option<String>,
    method: Option<String>,
    target: Option<String>,
    path: Option<String>,
    message: Option<String>,
    module: Option<String>,
}

impl RecordDraft {
    /// Sets a header of the request.
    pub(super) fn set_header(&mut self, name: &str, value: LoggedValue<'_>) {
        self.record.headers.push(name.to_owned(), value.logged());
    }

    /// Sets what the limits counted. `line` is an access line of tidegate.
    pub(super) fn set_counts(&mut self, line: &Map<String, Value>) {
        self.record.counted = LoggedCounts::of(line);
    }

    /// The log has named all headers.
    pub(super) fn has_all_headers(&mut self) {
        self.record.headers.are_all();
    }

    /// Sets the value of a field. If a field has several values, the first one counts.
    pub(super) fn set_field(&mut self, field: &LogField, value: LoggedValue<'_>) {
        let record = &mut self.record;
        match *field {
            LogField::Header(ref name) => self.set_header(name, value),
            LogField::Time(rank) => {
                let time = match &value {
                    LoggedValue::Text(text) => time::parse(text),
                    LoggedValue::Number(number) => time::number(*number),
                    LoggedValue::Nothing => None,
                };
                if let Some(time) = time.filter(|_| self.time < Some(rank)) {
                    (record.time, self.time) = (time, Some(rank));
                }
            }
            LogField::Client(origin) => {
                self.set_client(origin, value.text().and_then(|text| address::parse(&text)));
            }
            LogField::ForwardedFor => {
                if let LoggedValue::Text(list) = &value {
                    self.set_client(ClientOrigin::Forwarded, address::left_most(list));
                }
                self.set_header("x-forwarded-for", value);
            }
            LogField::CombinedHead => self.set_head(&value),
            LogField::Request => set_first(&mut self.request, value),
            LogField::Method => set_first(&mut self.method, value),
            LogField::Target => set_first(&mut self.target, value),
            LogField::Path => set_first(&mut self.path, value),
            LogField::Query if record.query == Logged::Unknown => record.query = query(value),
            LogField::Host if record.host == Logged::Unknown => record.host = value.logged(),
            LogField::User if record.user == Logged::Unknown => record.user = value.logged(),
            LogField::Query | LogField::Host | LogField::User => {}
            LogField::Status => {
                let code = value.whole().and_then(|code| u16::try_from(code).ok());
                let code = code.and_then(|code| StatusCode::from_u16(code).ok());
                record.status = record.status.or(code);
            }
            LogField::Bytes => {
                // Apache writes `-` for no bytes.
                let none = matches!(&value, LoggedValue::Text(text) if text == "-");
                record.bytes = record.bytes.or(if none { Some(0) } else { value.whole() });
            }
            LogField::Duration(per_second) => {
                record.duration = record.duration.or_else(|| duration(&value, per_second));
            }
            LogField::ToHead(per_second) => record.to_head = duration(&value, per_second),
            LogField::Refusal => record.is_refused |= value.text().is_some(),
            LogField::PartialSeconds => {
                if let Some(part) = duration(&value, 1) {
                    record.duration =
                        Some(record.duration.unwrap_or_default().saturating_add(part));
                }
            }
            LogField::Message => set_first(&mut self.message, value),
            LogField::Module => set_first(&mut self.module, value),
        }
    }

    /// Sets the client. If there are several addresses, the address of the highest rank counts.
    fn set_client(&mut self, origin: ClientOrigin, address: Option<IpAddr>) {
        let record = &mut self.record;
        if address.is_some() && (record.client.is_none() || record.client_is < origin) {
            (record.client, record.client_is) = (address, origin);
        }
    }

    /// `ADDRESS - USER`, perhaps with the server's `HOST:PORT` before it. A user's name may have spaces. The `-` is for
    /// the protocol ident (RFC 1413), which hardly anybody uses.
    fn set_head(&mut self, value: &LoggedValue<'_>) {
        let LoggedValue::Text(head) = value else { return };
        let (first, rest) = first_word(head);
        let (second, rest) = first_word(rest);
        let has_host = second != "-" && !first_word(rest).1.is_empty() && has_port(first);
        let client = if has_host { second } else { first };
        self.set_client(ClientOrigin::Peer, address::parse(client));
        let user = if has_host { first_word(rest).1 } else { rest };
        self.record.user = Logged::of(user);
        if has_host {
            self.record.host = Logged::Value(first.to_owned());
        }
    }

    /// The record.
    ///
    /// # Errors
    /// If the line shows no request, or does not say when it was made.
    pub(super) fn finish(mut self) -> Result<LogRecord, LineFault> {
        let mut record = std::mem::take(&mut self.record);
        let is_ours = self.module.as_deref().is_some_and(|module| module.starts_with("tidegate"));
        if is_ours && self.message.as_deref() != Some("request") {
            let told = CHANGES.iter().find(|(it, _)| self.message.as_deref() == Some(*it));
            let other = "it is a line of tidegate about something else";
            return Err(LineFault::NoRequest(told.map_or(other, |(message, _)| *message)));
        }
        record.is_refused &= is_ours;
        let (method, target, has_query) = self.request()?;
        let RequestTarget { host, path, query } = request_line::target(target);
        if self.time.is_none() {
            return Err(LineFault::Broken("it has no time that can be read"));
        }
        (record.method, record.path) = (method.to_owned(), path.to_owned());
        // The host of an absolute target counts, as in the proxy.
        if let Some(host) = host {
            record.host = Logged::Value(host.to_owned());
        }
        match query {
            Some(query) => record.query = Logged::Value(query.to_owned()),
            // tidegate's access line has the path alone.
            None if is_ours || !has_query || record.query != Logged::Unknown => {}
            None => record.query = Logged::Absent,
        }
        let headers = &mut record.headers;
        // The line is written at the end of the request. The limits decided at its begin.
        if is_ours && let Some(duration) = record.duration {
            let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
            record.time = record.time.plus_signed(-micros);
        }
        if is_ours && *headers.get(&USER_AGENT) == Logged::Unknown {
            headers.push("user-agent".to_owned(), Logged::Absent);
        }
        // A log that names all headers may have the host in a field by itself.
        if headers.are_complete && *headers.get(&HOST) == Logged::Absent {
            headers.push("host".to_owned(), record.host.clone());
        }
        Ok(record)
    }

    /// The method, the target, and whether this kind of target includes the query. If a line has both a request line and
    /// fields for method and target, the request line counts. A target counts before a path, because nginx has
    /// normalized the path.
    fn request(&self) -> Result<(&str, &str, bool), LineFault> {
        let target = self.target.as_deref();
        let own = self.method.as_deref().zip(target.or(self.path.as_deref()));
        let has_query = target.is_some() || self.path.is_none();
        let (method, target, has_query) =
            match (self.request.as_deref().map(request_line::split), own) {
                (Some(Ok((method, target))), _) => (method, target, true),
                (_, Some((method, target))) => (method, target, has_query),
                (Some(Err(fault)), None) => return Err(fault),
                (None, None) => return Err(LineFault::NoRequest("it shows no request")),
            };
        if !request_line::is_method(method) || matches!(target, "" | "-") {
            return Err(LineFault::NoRequest("the connection had no request"));
        }
        Ok((method, target, has_query))
    }
}

/// The text before the first space, and the text after it.
fn first_word(text: &str) -> (&str, &str) {
    text.split_once(' ').unwrap_or((text, ""))
}

/// Whether this is `host:port`.
fn has_port(text: &str) -> bool {
    let port = text.rsplit_once(':').map(|(_, port)| port);
    port.is_some_and(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

fn set_first(kept: &mut Option<String>, value: LoggedValue<'_>) {
    if kept.is_none() {
        *kept = value.text();
    }
}

/// A query in a field by itself. Apache writes it with its `?`.
fn query(value: LoggedValue<'_>) -> Logged {
    match value.logged() {
        Logged::Value(text) if text.starts_with('?') => Logged::Value(text[1..].to_owned()),
        other => other,
    }
}

/// A number with or without a unit after it. If it has none, its unit is the second divided by `per_second`. `None` for
/// a negative number.
fn duration(value: &LoggedValue<'_>, per_second: u32) -> Option<Duration> {
    let (number, per_second) = match value {
        LoggedValue::Text(text) => {
            let end = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
            let (number, unit) = text.split_at(end);
            let per_second = match unit {
                "" => per_second,
                "s" => 1,
                "ms" => 1_000,
                "us" | "µs" | "μs" => 1_000_000,
                "ns" => 1_000_000_000,
                _ => return None,
            };
            (number.parse().ok()?, per_second)
        }
        LoggedValue::Number(number) => (*number, per_second),
        LoggedValue::Nothing => return None,
    };
    Duration::try_from_secs_f64(number / f64::from(per_second)).ok()
}
