//! The facts about a request that limits and routes read, and what is assumed if a log does not have them.
//! `judge` asks for each request which facts its log has.

use std::fmt;
use std::str::FromStr;

use http::HeaderName;
use http::header::{CONTENT_LENGTH, COOKIE};
use serde::{Serialize, Serializer};

use super::log::{LogRecord, Logged};
use crate::limit::algorithm::Algorithm;
use crate::plans::PlanRule;
use crate::request::key::{KeySource, KeySpec};
use crate::request::route::Conditions;
use crate::settings::response::UsedSource;
use crate::settings::{CostSpec, Figures, LimitSpec};

/// A fact about a request that a log may leave out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fact {
    /// The client's address.
    Client,
    Host,
    Query,
    /// The value of this header, or that the request had none.
    Header(HeaderName),
    /// The value of this cookie, or that the request had none.
    Cookie(String),
    /// The subject of the client's certificate.
    Certificate,
    /// This claim of the client's token, or that the request had none.
    Claim(String),
    /// This field of the body, or that the request had none.
    Body(String),
    /// The status of the answer.
    Status,
    /// The bytes of the answer's body.
    Bytes,
    /// How long the request took.
    Duration,
    /// The used tokens, which the answer names in a header or in its body.
    Use,
    /// The figures of a Redisson limiter whose rate the file does not have.
    LimiterFigures,
}

/// A fact that a limit reads, with the parts of a request beside it: see [`Fact::of_limit`].
pub(crate) type LimitFact<'p> = (Fact, &'p [KeySource]);

/// What is assumed about a fact that the log does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Assumed {
    /// Each client has its own value: its address.
    Client,
    /// It is the user's name, which the log has.
    User,
    /// No request has it.
    Absent,
    /// Every request has this value.
    Text(String),
}

/// A fact with its assumed value, as in `header:x-api-key=ip`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumption {
    /// The fact: a header, a cookie, the host, the certificate, a claim, or a field of the body.
    pub(crate) fact: Fact,
    /// The assumed value.
    pub(crate) assumed: Assumed,
}

impl Fact {
    /// The facts that a limit reads. `rule` says how the plan of a request is found. A request that has one of the parts
    /// beside a fact is counted without this fact.
    pub(super) fn of_limit<'p>(
        spec: &'p LimitSpec,
        rule: Option<&'p PlanRule>,
    ) -> Vec<LimitFact<'p>> {
        let rule = rule.filter(|_| !spec.plans.is_empty());
        let of_keys =
            Self::of_key(&spec.key).chain(rule.into_iter().flat_map(|it| Self::of_key(&it.by)));
        let mut facts = Vec::new();
        facts.extend(spec.exempt.has_networks().then_some(Self::Client));
        facts.extend(spec.exempt.headers().cloned().map(Self::Header));
        facts.extend(spec.count_when.as_ref().map(|_| Self::Status));
        match &spec.cost {
            CostSpec::Fixed(_) => {}
            CostSpec::Header { name, .. } => facts.push(Self::Header((**name).clone())),
            CostSpec::Response { source, estimate, .. } => {
                facts.push(match **source {
                    UsedSource::Header(_) | UsedSource::Json(_) => Self::Use,
                    UsedSource::Bytes => Self::Bytes,
                });
                facts.extend(estimate.per_byte.map(|_| Self::Header(CONTENT_LENGTH)));
            }
        }
        match &spec.figures {
            Figures::Limited(Algorithm::Concurrency(_)) => facts.push(Self::Duration),
            Figures::Limited(Algorithm::Redisson(params)) if params.rate().is_none() => {
                facts.push(Self::LimiterFigures);
            }
            Figures::Limited(_) | Figures::Calendar(_) | Figures::Unlimited => {}
        }
        of_keys.chain(facts.into_iter().map(|fact| (fact, &[][..]))).collect()
    }

    /// The facts that a key reads, each with the alternatives before it.
    fn of_key(key: &KeySpec) -> impl Iterator<Item = LimitFact<'_>> {
        key.sources.iter().map(KeySource::alternatives).flat_map(|all| {
            let facts = all.iter().enumerate();
            facts.filter_map(|(index, source)| Some((Self::of_source(source)?, &all[..index])))
        })
    }

    /// The facts by which a route is chosen, besides the method and the path.
    pub(super) fn of_conditions(conditions: &Conditions) -> impl Iterator<Item = Self> {
        let host = conditions.host.as_ref().map(|_| Self::Host);
        let headers = conditions.headers.iter().map(|(name, _)| Self::Header(name.clone()));
        host.into_iter().chain(headers)
    }

    /// The fact that this source reads. `None` if every log has it.
    pub(super) fn of_source(source: &KeySource) -> Option<Self> {
        match source {
            KeySource::Ip => Some(Self::Client),
            KeySource::Host => Some(Self::Host),
            KeySource::Query(_) => Some(Self::Query),
            KeySource::Header(name) => Some(Self::Header(name.clone())),
            KeySource::Cookie(name) => Some(Self::Cookie(name.clone())),
            KeySource::Cert => Some(Self::Certificate),
            KeySource::Jwt(claim) => Some(Self::Claim(claim.clone())),
            KeySource::Body(name) => Some(Self::Body(name.clone())),
            // `of_key` calls this for each alternative of a `FirstOf`.
            KeySource::Path
            | KeySource::Method
            | KeySource::Route
            | KeySource::Param(_)
            | KeySource::FirstOf(_) => None,
        }
    }

    /// Whether `--assume` can be about this fact.
    pub(super) fn can_be_assumed(&self) -> bool {
        matches!(self, Self::Header(_) | Self::Cookie(_) | Self::Host | Self::Certificate)
            || matches!(self, Self::Claim(_) | Self::Body(_))
    }

    /// Whether the log has this fact about the request.
    pub(super) fn is_known(&self, record: &LogRecord) -> bool {
        match self {
            Self::Client => record.client.is_some(),
            Self::Host => record.host != Logged::Unknown,
            Self::Query => record.query != Logged::Unknown,
            Self::Header(name) => *record.headers.get(name) != Logged::Unknown,
            Self::Cookie(_) => *record.headers.get(&COOKIE) != Logged::Unknown,
            Self::Status => record.status.is_some(),
            Self::Bytes => record.bytes.is_some(),
            Self::Duration => record.duration.is_some(),
            // No log has others.
            _ => false,
        }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client => f.write_str("the client's address"),
            Self::Host => f.write_str("the host"),
            Self::Query => f.write_str("the query"),
            Self::Header(name) => write!(f, "the header {name}"),
            Self::Cookie(name) => write!(f, "the cookie {name}"),
            Self::Certificate => f.write_str("the client's certificate"),
            Self::Claim(claim) => write!(f, "the claim {claim} of a token"),
            Self::Body(name) => write!(f, "the field {name} of the body"),
            Self::Status => f.write_str("the status"),
            Self::Bytes => f.write_str("the size of the answer's body"),
            Self::Duration => f.write_str("how long the request took"),
            Self::Use => f.write_str("the use that the answer names"),
            Self::LimiterFigures => f.write_str("the limiter's figures, which are in Redis"),
        }
    }
}

impl Serialize for Fact {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Assumption {
    type Err = String;

    /// The error says what is wrong.
    fn from_str(text: &str) -> Result<Self, String> {
        const SHAPE: &str = "write it as in 'header:x-api-key=ip', 'cookie:session=none', \
                             'jwt:sub=user', 'body:name=user' or 'host=api.example.com'";
        let (fact, value) =
            text.split_once('=').ok_or_else(|| format!("`{text}` assumes nothing: {SHAPE}"))?;
        let source: KeySource = fact.trim().parse().map_err(|error| format!("{error}"))?;
        let source = Fact::of_source(&source).filter(Fact::can_be_assumed);
        let fact = source.ok_or_else(|| {
            format!(
                "nothing can be assumed of `{}`, only of a header, a cookie, a claim, a field of the body, `host` and `cert`",
                fact.trim()
            )
        })?;
        let assumed = match value.trim() {
            "ip" => Assumed::Client,
            "user" => Assumed::User,
            "none" => Assumed::Absent,
            "" => return Err(format!("`{text}` has no value: {SHAPE}")),
            value => Assumed::Text(value.to_owned()),
        };
        Ok(Self { fact, assumed })
    }
}
