//! The parts that a key can have, and their spellings in `proxy.toml`.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::str::FromStr;

use http::HeaderName;

use crate::limit::key::MOST_ALTERNATIVES;

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeySource {
    /// The client's address (IPv6: its network).
    Ip,
    /// The path in its matching form.
    Path,
    /// The method.
    Method,
    /// The host in its normal form.
    Host,
    /// The route's name.
    Route,
    /// A header.
    Header(HeaderName),
    /// A cookie.
    Cookie(String),
    /// A query parameter, by its decoded name.
    Query(String),
    /// A parameter of the route's path.
    Param(String),
    /// The subject of the client's verified certificate.
    Cert,
    /// A claim of the client's verified token: a name, or names with dots between them.
    Jwt(String),
    /// A field of the body, which is a form or a JSON object: a name, or names with dots between them.
    Body(String),
    /// The first of these sources that the request has. There are two to [`MOST_ALTERNATIVES`] sources, and
    /// none of them is a `FirstOf`.
    FirstOf(Box<[Self]>),
}

/// Why a text is no key source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeySourceError {
    /// The text names no source.
    #[error("`{0}` is nothing that a limit can count by: {spellings}", spellings = KeySource::SPELLINGS.map(|text| format!("`{text}`")).join(", "))]
    Unknown(String),
    /// The text begins as a source, and this is wrong with it.
    #[error("`{0}`: {1}")]
    Wrong(String, String),
}

impl KeySource {
    /// The spellings of all sources, for error messages.
    pub(crate) const SPELLINGS: [&'static str; 12] = [
        "ip",
        "path",
        "method",
        "host",
        "route",
        "header:NAME",
        "cookie:NAME",
        "query:NAME",
        "param:NAME",
        "cert",
        "jwt:CLAIM",
        "body:NAME",
    ];

    /// The spelling in this list that begins with this word.
    pub(crate) fn spelling(kind: &str) -> &'static str {
        let is_it = |text: &&str| text.split(':').next() == Some(kind);
        Self::SPELLINGS.into_iter().find(is_it).unwrap_or_default()
    }

    /// Whether the source's values may be a client's secrets: values from a header, a cookie, the query, a token or
    /// the body.
    /// A certificate's subject is no secret: it names the client, but proves nothing.
    pub(crate) fn is_secret(&self) -> bool {
        match self {
            Self::Header(_) | Self::Cookie(_) | Self::Query(_) | Self::Jwt(_) | Self::Body(_) => {
                true
            }
            Self::FirstOf(sources) => sources.iter().any(Self::is_secret),
            _ => false,
        }
    }

    /// The header that it reads, if it reads one.
    pub(crate) fn header(&self) -> Option<&HeaderName> {
        match self {
            Self::Header(name) => Some(name),
            _ => None,
        }
    }

    /// Whether it reads a claim.
    pub(super) fn has_claim(&self) -> bool {
        self.alternatives().iter().any(|source| matches!(source, Self::Jwt(_)))
    }

    /// Whether it reads the body.
    pub(crate) fn reads_body(&self) -> bool {
        self.alternatives().iter().any(|source| matches!(source, Self::Body(_)))
    }

    /// The source's alternatives; the source itself if it has none.
    pub(crate) fn alternatives(&self) -> &[Self] {
        match self {
            Self::FirstOf(sources) => sources,
            source => std::slice::from_ref(source),
        }
    }

    /// The source's name in messages to clients.
    pub(super) fn title(&self) -> String {
        match (self, self.words()) {
            (Self::FirstOf(sources), _) => {
                sources.iter().map(Self::title).collect::<Vec<_>>().join(" or ")
            }
            (Self::Body(_), (_, name, _)) => format!("field `{name}` of the body"),
            (_, (_, "", title)) => title.to_owned(),
            (_, (_, name, title)) => format!("{title} `{name}`"),
        }
    }

    /// The word of its kind, the name behind this word, and the kind in messages to clients.
    fn words(&self) -> (&'static str, &str, &'static str) {
        match self {
            Self::Ip => ("ip", "", "client address"),
            Self::Path => ("path", "", "path"),
            Self::Method => ("method", "", "method"),
            Self::Host => ("host", "", "host"),
            Self::Route => ("route", "", "route"),
            Self::Header(name) => ("header", name.as_str(), "header"),
            Self::Cookie(name) => ("cookie", name, "cookie"),
            Self::Query(name) => ("query", name, "query parameter"),
            Self::Param(name) => ("param", name, "path parameter"),
            Self::Cert => ("cert", "", "client certificate"),
            Self::Jwt(claim) => ("jwt", claim, "token with the claim"),
            Self::Body(name) => ("body", name, "field of the body"),
            Self::FirstOf(_) => ("", "", ""),
        }
    }
}

/// The parts of a key in order. A key without parts is one bucket for all requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySources {
    sources: Vec<KeySource>,
    fingerprint: u64,
}

impl KeySources {
    /// A hash of the sources, valid in this process alone. Different sources count as having different hashes:
    /// collisions need an attack, and only the operator writes sources.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

impl From<Vec<KeySource>> for KeySources {
    fn from(sources: Vec<KeySource>) -> Self {
        let mut hasher = DefaultHasher::new();
        sources.hash(&mut hasher);
        Self { sources, fingerprint: hasher.finish() }
    }
}

impl Deref for KeySources {
    type Target = [KeySource];

    fn deref(&self) -> &[KeySource] {
        &self.sources
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.words()) {
            (Self::FirstOf(sources), _) => {
                let sources: Vec<_> = sources.iter().map(Self::to_string).collect();
                f.write_str(&sources.join(" | "))
            }
            (_, (kind, "", _)) => f.write_str(kind),
            (_, (kind, name, _)) => write!(f, "{kind}:{name}"),
        }
    }
}

impl FromStr for KeySource {
    type Err = KeySourceError;

    fn from_str(text: &str) -> Result<Self, KeySourceError> {
        const NAMELESS: [KeySource; 6] = [
            KeySource::Ip,
            KeySource::Path,
            KeySource::Method,
            KeySource::Host,
            KeySource::Route,
            KeySource::Cert,
        ];
        let wrong = |why: &str| Err(KeySourceError::Wrong(text.to_owned(), why.to_owned()));
        if text.contains('|') {
            let sources = text.split('|').map(|source| source.trim().parse());
            let sources = sources.collect::<Result<Vec<Self>, _>>()?;
            let twice = (1..sources.len()).any(|index| sources[..index].contains(&sources[index]));
            return match twice || sources.len() > MOST_ALTERNATIVES {
                true => wrong(&format!(
                    "expected at most {MOST_ALTERNATIVES} alternatives, and none of them twice"
                )),
                false => Ok(Self::FirstOf(sources.into())),
            };
        }
        if let Some(source) = NAMELESS.into_iter().find(|source| source.words().0 == text) {
            return Ok(source);
        }
        let (kind, name) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "header" | "cookie" | "query" | "param" | "jwt" | "body" if name.is_empty() => {
                wrong(&format!("expected a name after it: `{}`", Self::spelling(kind)))
            }
            "header" => match name.parse() {
                Ok(name) => Ok(Self::Header(name)),
                Err(_) => wrong("expected the name of a header"),
            },
            "cookie" if !is_cookie_name(name) => wrong("expected the name of a cookie"),
            "body" if is_in_list(name) => wrong(
                "expected the name of one value: lists are no values, and dots lead into objects",
            ),
            "cookie" => Ok(Self::Cookie(name.to_owned())),
            "query" => Ok(Self::Query(name.to_owned())),
            "param" => Ok(Self::Param(name.to_owned())),
            "jwt" => Ok(Self::Jwt(name.to_owned())),
            "body" => Ok(Self::Body(name.to_owned())),
            _ => Err(KeySourceError::Unknown(text.to_owned())),
        }
    }
}

/// Whether a cookie of this name could ever be found in a `cookie` header.
fn is_cookie_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'=' | b';' | b',' | b'"'))
}

/// Whether a name ends in a place of a list, as in `user[]` and `user[0]`. A form may have `user[name]`.
fn is_in_list(name: &str) -> bool {
    let index =
        |rest: &str| rest.split(']').next().map(|it| it.bytes().all(|b| b.is_ascii_digit()));
    name.split('[').skip(1).any(|rest| index(rest) == Some(true))
}
