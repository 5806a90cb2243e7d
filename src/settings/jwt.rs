//! `[jwt.NAME]`: whose tokens are believed, and where requests have them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use jsonwebtoken::Algorithm;

use super::ServerAddress;
use crate::limit::name::Name;
use crate::request::key::KeySource;
use crate::tls::client;

/// `[jwt.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtSpec {
    pub(crate) name: Name,
    /// Where the keys are. `None` if signatures are not checked.
    pub(crate) keys: Option<KeySetLocation>,
    /// What `iss` must be; `None` is anything.
    pub(crate) issuer: Option<String>,
    /// `aud` must hold one of these; empty is anything.
    pub(crate) audience: Vec<String>,
    /// The algorithms that are allowed, if the key allows them too; empty is all algorithms of the key.
    pub(crate) algorithms: Vec<Algorithm>,
    /// The header or the cookie that has the token.
    pub(crate) place: KeySource,
    /// How far the clock of the issuer may be from ours.
    pub(crate) leeway: Duration,
    /// The time between two fetches of a JWKS. A verified token without `exp` is remembered for this time.
    pub(crate) refresh: Duration,
    /// What happens to a request whose token does not verify.
    pub(crate) invalid: OnInvalid,
}

impl JwtSpec {
    /// The table's name in keys. `None` if the file has no other table.
    pub(crate) fn named_of(&self, tables: usize) -> Option<Arc<str>> {
        (tables > 1).then(|| self.name.as_str().into())
    }

    /// Whether its keys come from the same URL or file.
    pub(crate) fn has_keys_of(&self, other: &Self) -> bool {
        match (&self.keys, &other.keys) {
            (Some(KeySetLocation::Url(one)), Some(KeySetLocation::Url(other))) => {
                one.server == other.server && one.path == other.path
            }
            (one, other) => one.is_some() && one == other,
        }
    }
}

/// Where the keys of a `[jwt.NAME]` are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeySetLocation {
    /// A JWKS (RFC 7517) that is fetched.
    Url(JwksUrl),
    /// A file with a JWKS, or with public keys or certificates in PEM.
    File(PathBuf),
    /// The secret of HS256, HS384 and HS512.
    Secret(Vec<u8>),
}

/// The URL of a JWKS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JwksUrl {
    pub(crate) server: ServerAddress,
    pub(crate) path: PathAndQuery,
    /// How the server is verified; `None` for a URL of `http`.
    pub(crate) tls: Option<Arc<client::ClientTlsSpec>>,
}

/// What happens to a request whose token does not verify.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnInvalid {
    /// The token has no claims.
    #[default]
    Ignore,
    /// The request is refused with 401 if a limit reads the token.
    Reject,
}
