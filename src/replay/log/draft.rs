//! A record while its line is read. At the end it decides which of several times, addresses and requests count.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

use http::StatusCode;
use http::header::{HOST, USER_AGENT};

use super::address;
use super::field::{DurationUnit, LogField, TimeRank};
use super::record::ClientOrigin;
use super::record::{LineFault, LogRecord, Logged, LoggedHeaders};
use super::request_line::{self, RequestTarget};
use super::time;
use crate::limit::time::Timestamp;

/// The value at a place of a line.
#[derive(Clone, Debug)]
pub(super) enum PlaceValue<'l> {
    Text(Cow<'l, str>),
    Number(f64),
    /// JSON's `null`.
    Nothing,
}

impl<'l> PlaceValue<'l> {
    fn number(&self) -> Option<f64> {
        match self {
            Self::Text(text) => text.parse().ok(),
            Self::Number(number) => Some(*number),
            Self::Nothing => None,
        }
    }

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

    pub(super) fn text(self) -> Option<Cow<'l, str>> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn logged(self) -> Logged<'l> {
        match self {
            Self::Text(text) if is_redacted(&text) => Logged::Untold,
            Self::Text(text) => Logged::of(text),
            Self::Number(number) => Logged::Value(Cow::Owned(number.to_string())),
            Self::Nothing => Logged::Absent,
        }
    }
}

/// Caddy and Traefik write this for values that are secret.
fn is_redacted(text: &str) -> bool {
    text == "REDACTED"
}

/// A record while its line is read.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordDraft<'l> {
    time: Option<(TimeRank, Timestamp)>,
    client: Option<(ClientOrigin, IpAddr)>,
    request: Option<Cow<'l, str>>,
    method: Option<Cow<'l, str>>,
    target: Option<Cow<'l, str>>,
    path: Option<Cow<'l, str>>,
    query: Logged<'l>,
    host: Logged<'l>,
    headers: LoggedHeaders<'l>,
    status: Option<StatusCode>,
    bytes: Option<u64>,
    /// In seconds, or in [`DurationUnit::OfProducer`].
    duration: Option<(f64, DurationUnit)>,
    message: Option<Cow<'l, str>>,
    module: Option<Cow<'l, str>>,
    /// Whether the line has the request in an object of its own, as Caddy's lines do.
    pub(super) is_nested: bool,
}

impl<'l> RecordDraft<'l> {
    /// Notes a header of the request.
    pub(super) fn set_header(&mut self, name: Cow<'l, str>, value: PlaceValue<'l>) {
        self.headers.push(name, value.logged());
    }

    /// The log has named all headers.
    pub(super) fn has_all_headers(&mut self) {
        self.headers.are_all();
    }

    /// Notes the value of a field.
    pub(super) fn set_field(&mut self, field: LogField, value: PlaceValue<'l>) {
        match field {
            LogField::Time(rank) => {
                let found = match &value {
                    PlaceValue::Text(text) => time::parse(text),
                    PlaceValue::Number(number) => time::number(*number),
                    PlaceValue::Nothing => None,
                };
                set_ranked(&mut self.time, rank, found);
            }
            LogField::Client(rank) => {
                let found = value.text().and_then(|text| address::parse(&text));
                set_ranked(&mut self.client, rank, found);
            }
            LogField::ForwardedFor => {
                if let PlaceValue::Text(list) = &value {
                    let found = address::left_most(list);
                    set_ranked(&mut self.client, ClientOrigin::Forwarded, found);
                }
                self.set_header(Cow::Borrowed("x-forwarded-for"), value);
            }
            LogField::CombinedHead => self.set_head(value),
            LogField::Request => set_first(&mut self.request, value),
            LogField::Method => set_first(&mut self.method, value),
            LogField::Target => set_first(&mut self.target, value),
            LogField::Path => set_first(&mut self.path, value),
            LogField::Query if self.query == Logged::Untold => self.query = query(value),
            LogField::Host if self.host == Logged::Untold => self.host = value.logged(),
            LogField::Query | LogField::Host => {}
            LogField::Status => {
                let code = value.whole().and_then(|code| u16::try_from(code).ok());
                let code = code.and_then(|code| StatusCode::from_u16(code).ok());
                self.status = self.status.or(code);
            }
            LogField::Bytes => {
                // Apache writes `-` for no bytes.
                let none = matches!(&value, PlaceValue::Text(text) if text == "-");
                self.bytes = self.bytes.or(if none { Some(0) } else { value.whole() });
            }
            LogField::Duration(unit) => {
                self.duration = self.duration.or_else(|| duration(&value, unit));
            }
            LogField::PartialSeconds => {
                let part = duration(&value, DurationUnit::Seconds);
                self.duration = match (self.duration, part) {
                    (Some((so_far, DurationUnit::Seconds)), Some((part, unit))) => {
                        Some((so_far + part, unit))
                    }
                    (so_far, part) => so_far.or(part),
                };
            }
            LogField::Message => set_first(&mut self.message, value),
            LogField::Module => set_first(&mut self.module, value),
        }
    }

    /// `ADDRESS - USER`, perhaps with the server's `HOST:PORT` in front. Users may have spaces. The second word is for
    /// the protocol ident (RFC 1413), which hardly anybody uses, and is nearly always `-`.
    fn set_head(&mut self, value: PlaceValue<'l>) {
        let PlaceValue::Text(Cow::Borrowed(head)) = value else { return };
        let (first, rest) = first_word(head);
        let (second, rest) = first_word(rest);
        let has_host = second != "-" && !first_word(rest).1.is_empty() && has_port(first);
        let client = if has_host { second } else { first };
        set_ranked(&mut self.client, ClientOrigin::Peer, address::parse(client));
        if has_host {
            self.host = Logged::Value(Cow::Borrowed(first));
        }
    }

    /// The record.
    ///
    /// # Errors
    /// If the line shows no request, or does not tell when it was made.
    pub(super) fn finish(mut self) -> Result<LogRecord<'l>, LineFault> {
        let is_ours = self.module.as_deref().is_some_and(|module| module.starts_with("tidegate"));
        if is_ours && self.message.as_deref() != Some("request") {
            return Err(LineFault::NoRequest("it is a line of tidegate about something else"));
        }
        let (method, RequestTarget { host, path, query }) = self.request()?;
        let (_, time) = self.time.ok_or(LineFault::Broken("it has no time that can be read"))?;
        // The host of an absolute target counts, as in the proxy.
        let host = host.map_or(self.host, Logged::Value);
        let mut headers = self.headers;
        let query = match query {
            Some(query) => Logged::Value(query),
            None if self.query != Logged::Untold => self.query,
            // tidegate's access line has the path alone.
            None if is_ours || self.path.is_some() => Logged::Untold,
            None => Logged::Absent,
        };
        if is_ours && headers.get(&USER_AGENT) == Logged::Untold {
            headers.push(Cow::Borrowed("user-agent"), Logged::Absent);
        }
        // A log that names all headers may have the host in a place of its own.
        if headers.are_complete && headers.get(&HOST) == Logged::Absent {
            headers.push(Cow::Borrowed("host"), host.clone());
        }
        let duration = match self.duration {
            Some((millis, DurationUnit::OfProducer)) if !self.is_nested => Some(millis / 1e3),
            duration => duration.map(|(seconds, _)| seconds),
        };
        Ok(LogRecord {
            time,
            client: self.client.map(|(_, address)| address),
            client_is: self.client.map_or(ClientOrigin::default(), |(origin, _)| origin),
            method,
            path,
            query,
            host,
            headers,
            status: self.status,
            bytes: self.bytes,
            duration: duration.and_then(|it| Duration::try_from_secs_f64(it).ok()),
        })
    }

    /// The method and the target. A line may have both a request line and places for method and target: then the
    /// request line counts. A target counts before a path, because nginx has normalized the path.
    fn request(&mut self) -> Result<(Cow<'l, str>, RequestTarget<'l>), LineFault> {
        let split = self.request.take().map(request_line::split);
        if self.target.is_some() || matches!(split, Some(Ok(_))) {
            self.path = None;
        }
        let own = self.method.take().zip(self.target.take().or_else(|| self.path.clone()));
        let (method, target) = match (split, own) {
            (Some(Ok(request)), _) => request,
            (_, Some(own)) => own,
            (Some(Err(fault)), None) => return Err(fault),
            (None, None) => return Err(LineFault::NoRequest("it shows no request")),
        };
        if !request_line::is_method(&method) || matches!(&*target, "" | "-") {
            return Err(LineFault::NoRequest("the connection had no request"));
        }
        Ok((method, request_line::target(target)))
    }
}

/// The text in front of the first space, and the text behind it.
fn first_word(text: &str) -> (&str, &str) {
    match memchr::memchr(b' ', text.as_bytes()) {
        Some(end) => (&text[..end], &text[end + 1..]),
        None => (text, ""),
    }
}

/// Whether this is `host:port`.
fn has_port(text: &str) -> bool {
    let port = text.rsplit_once(':').map(|(_, port)| port);
    port.is_some_and(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Keeps the value of the highest rank, and of equal ones the first.
fn set_ranked<R: PartialOrd, T>(place: &mut Option<(R, T)>, rank: R, found: Option<T>) {
    let counts = place.as_ref().is_none_or(|(before, _)| rank > *before);
    if let Some(found) = found.filter(|_| counts) {
        *place = Some((rank, found));
    }
}

fn set_first<'l>(place: &mut Option<Cow<'l, str>>, value: PlaceValue<'l>) {
    if place.is_none() {
        *place = value.text();
    }
}

/// A query of its own place. Apache writes it with its `?`.
fn query<'l>(value: PlaceValue<'l>) -> Logged<'l> {
    match value.logged() {
        Logged::Value(text) if text.starts_with('?') => {
            Logged::Value(Cow::Owned(text[1..].to_owned()))
        }
        other => other,
    }
}

/// A number with or without a unit behind it: in seconds, or in [`DurationUnit::OfProducer`]. `None` for a
/// negative number.
fn duration(value: &PlaceValue<'_>, unit: DurationUnit) -> Option<(f64, DurationUnit)> {
    let (number, unit) = match value {
        PlaceValue::Text(text) => {
            let end = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
            let (number, suffix) = text.split_at(end);
            let unit = match suffix {
                "" => unit,
                "s" => DurationUnit::Seconds,
                "ms" => DurationUnit::Milliseconds,
                "us" | "µs" | "μs" => DurationUnit::Microseconds,
                "ns" => DurationUnit::Nanoseconds,
                _ => return None,
            };
            (number.parse().ok()?, unit)
        }
        _ => (value.number()?, unit),
    };
    let known = match unit {
        DurationUnit::Milliseconds => (number / 1e3, DurationUnit::Seconds),
        DurationUnit::Microseconds => (number / 1e6, DurationUnit::Seconds),
        DurationUnit::Nanoseconds => (number / 1e9, DurationUnit::Seconds),
        DurationUnit::Seconds | DurationUnit::OfProducer => (number, unit),
    };
    Some(known).filter(|_| number >= 0.0)
}
