//! The token of a request and its claims, as keys read them. `jwt` verifies tokens.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// The claims of a verified token.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims {
    /// The place in the file, from 0, of the `[jwt.NAME]` that has verified the token.
    pub(crate) table: usize,
    /// The name of that table, if there are several. Keys have it in front of a value, so that values of different
    /// tables never meet, whatever the order of the tables is.
    pub(crate) issuer: Option<Arc<str>>,
    /// The claims, as the token has them.
    pub(crate) values: Map<String, Value>,
}

/// Why a token does not verify. The texts say nothing of what is in the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenFault {
    /// It is too long.
    #[error("it is longer than 16 KiB")]
    TooLong,
    /// It does not have the form of a signed token.
    #[error("it is no signed JWT")]
    Malformed,
    /// Its header names extensions that must be understood.
    #[error("its header has `crit`")]
    Critical,
    /// No key of the table, or `algorithms`, allows its `alg`.
    #[error("its `alg` fits no key")]
    Algorithm,
    /// No keys have been read.
    #[error("no keys have been read yet")]
    NoKeys,
    /// No key has its `kid`.
    #[error("no key has its `kid`")]
    UnknownKey,
    /// The signature is not that of a key.
    #[error("its signature is wrong")]
    Signature,
    /// It was not looked at: its client has sent too many tokens with wrong signatures in this second.
    #[error("this client has sent too many tokens whose signature is wrong")]
    TooMany,
    /// Its `iss` is that of no table.
    #[error("its `iss` is another issuer")]
    Issuer,
    /// Its `aud` does not hold what it must.
    #[error("its `aud` is another audience")]
    Audience,
    /// It has expired.
    #[error("it has expired")]
    Expired,
    /// It is valid only from a later time on.
    #[error("it is not valid yet")]
    Early,
    /// A time in it cannot be read.
    #[error("its `exp` or `nbf` is no time")]
    Time,
}

/// Why nobody can say what value a part of a request has. The request is then refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartFault {
    /// The part comes more than once. The API may read any of the values.
    Repeated,
    /// The API may or may not see the part, or may read another value in it.
    Ambiguous,
    /// The part is a name of MCP in base64 that cannot be decoded.
    Undecodable,
    /// The part is a field of a body that is no document of its type.
    Unreadable,
    /// The part is a claim of a token that does not verify, and such requests are refused.
    Invalid(TokenFault),
}

/// The result of reading the token of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenReading {
    /// The request has no token.
    Absent,
    /// The token does not verify, and has no claims.
    Ignored(TokenFault),
    /// A limit that reads the token refuses the request.
    Refused(PartFault),
    /// The token is verified.
    Verified(Rc<Claims>),
}

impl TokenReading {
    /// A token with these claims, as if the first `[jwt.NAME]` had verified it. If there are several, `issuer` is its
    /// name.
    pub(crate) fn of_claims(values: Map<String, Value>, issuer: Option<Arc<str>>) -> Self {
        Self::Verified(Rc::new(Claims { table: 0, issuer, values }))
    }
}

/// The token of a request. The token is read when a limit first asks for it, and then kept.
#[derive(Clone, Copy)]
pub struct Token<'r>(pub &'r dyn Deref<Target = TokenReading>);

impl Token<'_> {
    /// No token.
    pub const NONE: Token<'static> = Token(&&TokenReading::Absent);

    /// Whether there is a token that does not verify, and the request is not refused for it.
    pub(super) fn is_ignored(self) -> bool {
        matches!(**self.0, TokenReading::Ignored(_))
    }
}

impl fmt::Debug for Token<'_> {
    /// Neither verifies the token nor shows it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Claims {
    /// The value of a claim as keys have it.
    pub(super) fn counted(&self, claim: &str) -> Option<Cow<'_, str>> {
        let value = self.value(claim)?;
        Some(match &self.issuer {
            Some(issuer) => Cow::Owned(format!("{issuer}:{value}")),
            None => value,
        })
    }

    /// The value of a claim. Lists and objects are no values.
    pub(crate) fn value(&self, claim: &str) -> Option<Cow<'_, str>> {
        match find(&self.values, claim)? {
            Value::String(text) => Some(Cow::Borrowed(text)),
            value @ (Value::Number(_) | Value::Bool(_)) => Some(Cow::Owned(value.to_string())),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }
}

/// Reads claims as JSON has them. A whole number that is too large for 64 bits is kept as its text: as a floating-point
/// number it would be the same as its neighbours, and their users would share a bucket.
///
/// # Errors
/// If this is no JSON object.
pub(crate) fn read_claims(json: &str) -> serde_json::Result<Map<String, Value>> {
    let mut claims = serde_json::from_str(json)?;
    keep_digits(&mut claims, json)?;
    Ok(claims)
}

/// `json` has these claims.
fn keep_digits(claims: &mut Map<String, Value>, json: &str) -> serde_json::Result<()> {
    let may_be_cut = |value: &Value| value.is_object() || value.is_f64();
    if !claims.values().any(may_be_cut) {
        return Ok(());
    }
    let texts: HashMap<String, &RawValue> = serde_json::from_str(json)?;
    for (name, value) in claims {
        let Some(text) = texts.get(name).map(|text| text.get()) else { continue };
        match value {
            Value::Object(inner) => keep_digits(inner, text)?,
            Value::Number(number) if number.is_f64() && !text.contains(['.', 'e', 'E']) => {
                *value = Value::String(text.to_owned());
            }
            _ => {}
        }
    }
    Ok(())
}

/// The claim of this name. If there is no such claim, the text before a dot is the name of an object, and the text
/// after the dot is a name in this object. The names of claims may have dots themselves, as in
/// `https://example.com/plan`.
fn find<'c>(claims: &'c Map<String, Value>, name: &str) -> Option<&'c Value> {
    let nested = || {
        name.match_indices('.').find_map(|(dot, _)| {
            let (outer, inner) = (name.get(..dot)?, name.get(dot + 1..)?);
            find(claims.get(outer)?.as_object()?, inner)
        })
    };
    claims.get(name).or_else(nested)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_64_bits_are_not_one_value() {
        let json = r#"{"sub":18446744073709551616,"org":{"id":18446744073709551617,"of":{"id":-9223372036854775809}},
                       "one":1,"half":1.5,"far":1e30,"list":[18446744073709551616]}"#;
        let claims = Claims { table: 0, issuer: None, values: read_claims(json).unwrap() };
        for (claim, expected) in [
            ("sub", Some("18446744073709551616")),
            ("org.id", Some("18446744073709551617")),
            ("org.of.id", Some("-9223372036854775809")),
            ("one", Some("1")),
            ("half", Some("1.5")),
            ("far", Some("1e+30")),
            ("list", None),
        ] {
            assert_eq!(claims.value(claim).as_deref(), expected, "{claim}");
        }
    }
}
