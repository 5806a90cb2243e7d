//! Keys: the values of a request by which a limit counts. `source.rs` has the parts that a key can have,
//! `read.rs` reads them from a request.

mod body;
mod read;
mod source;
mod token;

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, Method};
use smallvec::SmallVec;

use super::counted::CountedRequest;
pub use super::network::ClientPrefixes;
use super::network::client_network;
use super::path::NormalPath;
use super::route::PathParams;
pub(crate) use crate::limit::key::hash;
use crate::limit::key::{Key, KeyBuilder, hash_text, write_shown};

pub(crate) use body::MOST as MOST_OF_BODY;
pub use body::{BodyFields, BodyKind};
pub(crate) use read::token;
pub use source::{KeySource, KeySourceError, KeySources};
pub(crate) use token::read_claims;
pub use token::{Claims, PartFault, Token, TokenFault, TokenReading};

/// How a limit treats a request that lacks a part of the key, such as a header or cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// All such requests share one bucket.
    #[default]
    Shared,
    /// The limit does not apply. A token that does not verify is not missing: it counts as with `Shared`.
    Skip,
    /// The request is refused with 400, or with 401 if a claim or `authorization` is missing.
    Reject,
}

/// The parts of a limit's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySpec {
    /// The parts in order.
    pub sources: KeySources,
    /// The treatment of a request that lacks a part.
    pub missing: Missing,
    /// The networks by which clients are counted.
    pub prefixes: ClientPrefixes,
}

/// The parts of a request from which keys are read.
#[derive(Clone, Copy, Debug)]
pub struct View<'r> {
    /// The path.
    pub path: &'r NormalPath<'r>,
    /// The query, without its question mark.
    pub query: Option<&'r str>,
    /// The method.
    pub method: &'r Method,
    /// The methods that routes name. Such a method counts by its name, as a usual method does.
    pub methods: &'r HashSet<Method>,
    /// The host in its normal form.
    pub host: &'r [u8],
    /// The route's name.
    pub route: &'r str,
    /// The client's address.
    pub client: IpAddr,
    /// The headers.
    pub headers: &'r HeaderMap,
    /// The path's parameters.
    pub params: PathParams<'r>,
    /// The subject of the client's certificate; `None` if the client has shown no certificate.
    pub cert: Option<&'r str>,
    /// The client's token.
    pub token: Token<'r>,
    /// The fields of the body that the limits read, if the body was read for them.
    pub body: Option<&'r BodyFields<'r>>,
    /// The request's id in the log. No limit counts by it.
    pub id: Option<&'r str>,
    /// Whether the limits will learn how the request ended. If not, limits that settle at the end do not apply.
    pub has_end: bool,
    /// Whether a limit may hold the request. Otherwise a request that would be held is refused.
    pub may_wait: bool,
    /// A cost that replaces the limits' `cost`. If the route sets a cost, this number multiplies the route's cost. With
    /// 0, the request takes nothing, and asks about one token or about the route's cost.
    pub cost: Option<u64>,
    /// In a replay: what limits counted of the logged request.
    pub counted: Option<&'r CountedRequest>,
}

/// Why a request has no key. The request is then answered with 400, or with 401 if its token is the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The header, cookie or query parameter comes twice.
    #[error("the {} is there twice", .0.title())]
    Repeated(KeySource),
    /// The header, cookie or query parameter can be read in two ways.
    #[error("the {} can be read in two ways", .0.title())]
    Ambiguous(KeySource),
    /// The header's base64 cannot be decoded.
    #[error("the base64 in the {} cannot be decoded", .0.title())]
    Undecodable(KeySource),
    /// The body cannot be read.
    #[error("the {} cannot be read", .0.title())]
    Unreadable(KeySource),
    /// The part is missing, and the limit demands it.
    #[error("the {} is missing", .0.title())]
    Absent(KeySource),
    /// The limit demands a claim, and the token does not verify.
    #[error("the {} is missing, because the token is not valid: {fault}", .part.title())]
    Unverified {
        /// The part with the claim. (A field with the name `source` would be taken for another error.)
        part: KeySource,
        /// Why the token does not verify.
        fault: TokenFault,
    },
    /// The token does not verify, and such requests are refused.
    #[error("the token is not valid: {0}")]
    Token(TokenFault),
}

impl KeyError {
    /// Whether no keys were read yet, so that the token may be right. The answer is then 503.
    pub(crate) fn is_without_keys(&self) -> bool {
        matches!(
            self,
            Self::Token(TokenFault::NoKeys) | Self::Unverified { fault: TokenFault::NoKeys, .. }
        )
    }

    /// Whether the client has to show who it is, or has shown it in vain. Then the answer is 401.
    pub(crate) fn asks_for_credentials(&self) -> bool {
        let are_credentials = |source: &KeySource| match source {
            KeySource::Jwt(_) => true,
            source => source.header() == Some(&AUTHORIZATION),
        };
        match self {
            Self::Token(_) | Self::Unverified { .. } => true,
            Self::Absent(source) => source.alternatives().iter().any(are_credentials),
            Self::Repeated(_) | Self::Ambiguous(_) | Self::Undecodable(_) | Self::Unreadable(_) => {
                false
            }
        }
    }

    /// The reason for logs and metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            _ if self.is_without_keys() => "no_keys",
            Self::Absent(_) => "missing_key",
            Self::Token(_) | Self::Unverified { .. } => "invalid_token",
            Self::Repeated(_) | Self::Ambiguous(_) | Self::Undecodable(_) | Self::Unreadable(_) => {
                "bad_key"
            }
        }
    }
}

/// Stands for all keys of a limit. No key has this text: in a key, a digit, a letter, `-` or `~` follows a percent sign.
pub(crate) const ALL_KEYS: &str = "%*";

/// A key's text as the log shows it, with `-` for an absent part.
pub(crate) fn shown(key: &str) -> String {
    let mut text = String::new();
    // Writing into a string never fails.
    let _ = write_shown(key, &mut text);
    text
}

impl KeySpec {
    /// The parts of the key, as the file spells them.
    pub(crate) fn parts_text(&self) -> Vec<String> {
        self.sources.iter().map(ToString::to_string).collect()
    }

    /// The key of a request, with plain values. `None` if the limit does not apply to the request. A limit that counts
    /// by a claim always applies to a token that does not verify: the API may take it.
    ///
    /// # Errors
    /// If a part comes twice, can be read in two ways, or is missing with `missing = "reject"`, or if a token
    /// does not verify and the file refuses such tokens. A part that comes twice or can be read in two ways is an error
    /// even if another part is missing and the limit would not apply. So is a refused token.
    pub fn key(&self, request: &View<'_>) -> Result<Option<Key>, KeyError> {
        let mut builder = KeyBuilder::default();
        let mut absent = None;
        for source in &*self.sources {
            match source.push(request, self.prefixes, 0, &mut builder) {
                Ok(true) => {}
                Ok(false) => {
                    builder.alternative(0);
                    builder.push_absent();
                    absent = absent.or(Some(source));
                }
                Err(PartFault::Repeated) => return Err(KeyError::Repeated(source.clone())),
                Err(PartFault::Ambiguous) => return Err(KeyError::Ambiguous(source.clone())),
                Err(PartFault::Undecodable) => return Err(KeyError::Undecodable(source.clone())),
                Err(PartFault::Unreadable) => return Err(KeyError::Unreadable(source.clone())),
                Err(PartFault::Invalid(fault)) => return Err(KeyError::Token(fault)),
            }
        }
        match (absent, self.missing) {
            (None, _) | (Some(_), Missing::Shared) => Ok(Some(builder.finish())),
            (Some(_), Missing::Skip)
                if self.claims().next().is_some() && request.token.is_ignored() =>
            {
                Ok(Some(builder.finish()))
            }
            (Some(_), Missing::Skip) => Ok(None),
            (Some(source), Missing::Reject) => Err(match **request.token.0 {
                TokenReading::Ignored(fault) if source.has_claim() => {
                    KeyError::Unverified { part: source.clone(), fault }
                }
                _ => KeyError::Absent(source.clone()),
            }),
        }
    }

    /// The headers that it reads.
    pub(crate) fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.sources.iter().flat_map(KeySource::alternatives).filter_map(KeySource::header)
    }

    /// The fields of the body that it reads.
    pub(crate) fn body_fields(&self) -> impl Iterator<Item = &String> {
        self.sources.iter().flat_map(KeySource::alternatives).filter_map(|source| match source {
            KeySource::Body(name) => Some(name),
            _ => None,
        })
    }

    /// The claims that it reads.
    pub(crate) fn claims(&self) -> impl Iterator<Item = &String> {
        self.sources.iter().flat_map(KeySource::alternatives).filter_map(|source| match source {
            KeySource::Jwt(claim) => Some(claim),
            _ => None,
        })
    }

    /// Whether a part may hold a secret: whether it comes from a header, a cookie, the query, a token or the
    /// body.
    pub(crate) fn has_secrets(&self) -> bool {
        self.sources.iter().any(KeySource::is_secret)
    }

    /// The same key with each value from a header, a cookie, the query, a token or the body replaced by its hash.
    /// The hash is the first 128 bits of SHA-256 of the value, base64url without padding. An absent value stays absent.
    pub fn hashed(&self, key: &Key) -> Key {
        if !self.has_secrets() {
            return key.clone();
        }
        let mut builder = KeyBuilder::default();
        for (source, (index, value)) in self.sources.iter().zip(key.parts()) {
            let source = source.alternatives().get(index).unwrap_or(source);
            builder.alternative(index);
            match value {
                Some(value) if source.is_secret() => builder.push(&hash_text(&value)),
                Some(value) => builder.push(&value),
                None => builder.push_absent(),
            }
        }
        builder.finish()
    }
}

/// Text on the stack. With it a key by address is built without heap memory.
pub(super) type ShortText = SmallVec<[u8; 48]>;

/// An address as keys write it: as its network, and a single IPv4 address as it is.
///
/// Not inlined: in the loop over sources, part of its work would be done for every source.
#[inline(never)]
pub(crate) fn ip_text(address: IpAddr, prefixes: ClientPrefixes) -> ShortText {
    let network = client_network(address, prefixes);
    let prefix = match network {
        IpAddr::V4(v4) if prefixes.v4 >= 32 => return ipv4_text(v4),
        IpAddr::V4(_) => prefixes.v4,
        IpAddr::V6(_) => prefixes.v6.min(128),
    };
    let mut text = Writer(ShortText::new());
    // This writer never fails.
    let _ = fmt::write(&mut text, format_args!("{network}/{prefix}"));
    text.0
}

/// The same text as `Display` writes, at a tenth of the cost. Most requests need it.
fn ipv4_text(address: Ipv4Addr) -> ShortText {
    let (mut text, mut length) = ([0; 16], 0);
    for octet in address.octets() {
        let (digits, more) = &OCTETS[usize::from(octet)];
        text[length..length + 4].copy_from_slice(digits);
        length += more;
    }
    // The last dot is left out.
    ShortText::from_slice(&text[..length - 1])
}

/// For each octet its text with a dot after it, and the length of this text.
static OCTETS: [([u8; 4], usize); 256] = {
    let mut octets = [([b'.'; 4], 2); 256];
    let (mut octet, mut value) = (0_u8, 0);
    while value < 256 {
        let digits = [b'0' + octet / 100, b'0' + octet / 10 % 10, b'0' + octet % 10];
        octets[value] = match digits {
            [b'0', b'0', one] => ([one, b'.', 0, 0], 2),
            [b'0', ten, one] => ([ten, one, b'.', 0], 3),
            [hundred, ten, one] => ([hundred, ten, one, b'.'], 4),
        };
        octet = octet.wrapping_add(1);
        value += 1;
    }
    octets
};

struct Writer(ShortText);

impl fmt::Write for Writer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Whether a value looks like a [`hash`].
pub(crate) fn is_hash(value: &[u8]) -> bool {
    URL_SAFE_NO_PAD.decode(value).is_ok_and(|bytes| bytes.len() == 16)
}

#[cfg(test)]
mod tests;
