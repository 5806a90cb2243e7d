//! Reads a token and verifies it: its form (RFC 7515, 7519), its signature, its issuer, audience and times.
//!
//! The library only verifies signatures. This file chooses the key and the algorithm, and checks the claims: by our
//! clock, and strictly by their types.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, crypto};
use serde_json::{Map, Value};

use super::keys::{KeySet, VerifyingKey, algorithm as algorithm_of};
use crate::limit::time::Timestamp;
use crate::request::key::{TokenFault, read_claims};
use crate::settings::JwtSpec;

/// The longest token in bytes.
const LONGEST: usize = 16 * 1024;

/// A token that was read, and not yet verified.
pub(super) struct UnverifiedToken<'t> {
    /// The header and the payload as they are written.
    message: &'t [u8],
    signature: &'t str,
    /// `None` for `none`, and for an algorithm that nobody here knows.
    algorithm: Option<Algorithm>,
    kid: Option<String>,
    pub(super) claims: Map<String, Value>,
}

impl<'t> UnverifiedToken<'t> {
    /// Reads a token in its compact form: header, payload and signature.
    pub(super) fn read(token: &'t [u8]) -> Result<Self, TokenFault> {
        if token.len() > LONGEST {
            return Err(TokenFault::TooLong);
        }
        let token = std::str::from_utf8(token).map_err(|_| TokenFault::Malformed)?;
        let (message, signature) = token.rsplit_once('.').ok_or(TokenFault::Malformed)?;
        let (header, payload) = message.split_once('.').ok_or(TokenFault::Malformed)?;
        let header = object(header)?;
        // No extension is understood here (RFC 7515, 4.1.11).
        if header.contains_key("crit") {
            return Err(TokenFault::Critical);
        }
        let kid = match header.get("kid") {
            None => None,
            Some(Value::String(kid)) => Some(kid.clone()),
            Some(_) => return Err(TokenFault::Malformed),
        };
        let algorithm = header.get("alg").and_then(Value::as_str);
        let algorithm = algorithm.and_then(algorithm_of);
        let (message, claims) = (message.as_bytes(), object(payload)?);
        Ok(Self { message, signature, algorithm, kid, claims })
    }

    pub(super) fn issuer(&self) -> Option<&str> {
        self.claims.get("iss").and_then(Value::as_str)
    }

    /// Verifies the token by the rules of a table. Returns the time of day until which the token is valid.
    pub(super) fn verify(
        &self,
        spec: &JwtSpec,
        keys: &KeySet,
        now: Timestamp,
    ) -> Result<Timestamp, TokenFault> {
        if spec.keys.is_some() {
            self.verify_signature(keys, &spec.algorithms)?;
        }
        if spec.issuer.is_some() && self.issuer() != spec.issuer.as_deref() {
            return Err(TokenFault::Issuer);
        }
        if !spec.audience.is_empty() && !self.is_for(&spec.audience) {
            return Err(TokenFault::Audience);
        }
        let at = Duration::from_micros(now.as_micros());
        let until = match self.time("exp")? {
            None => at.saturating_add(spec.refresh),
            Some(end) => end.saturating_add(spec.leeway),
        };
        if until <= at && self.claims.contains_key("exp") {
            return Err(TokenFault::Expired);
        }
        if self.time("nbf")?.is_some_and(|begin| begin > at.saturating_add(spec.leeway)) {
            return Err(TokenFault::Early);
        }
        let micros = u64::try_from(until.as_micros()).unwrap_or(u64::MAX);
        Ok(Timestamp::from_micros(micros).unwrap_or(Timestamp::MAX))
    }

    /// Verifies that one of the keys has signed the token.
    ///
    /// # Errors
    /// If no key has signed the token with the algorithm that `alg` names. Both the key and `allowed` must allow this
    /// algorithm. If `allowed` is empty, it allows every algorithm.
    fn verify_signature(&self, keys: &KeySet, allowed: &[Algorithm]) -> Result<(), TokenFault> {
        if keys.keys.is_empty() {
            return Err(TokenFault::NoKeys);
        }
        let mut keys: Vec<_> = keys.keys.iter().collect();
        keys.retain(|key| key.id.is_none() || self.kid.is_none() || key.id == self.kid);
        if keys.is_empty() {
            return Err(TokenFault::UnknownKey);
        }
        let algorithm = self.algorithm.ok_or(TokenFault::Algorithm)?;
        let is_allowed = allowed.is_empty() || allowed.contains(&algorithm);
        keys.retain(|key| is_allowed && key.algorithms.contains(&algorithm));
        if keys.is_empty() {
            return Err(TokenFault::Algorithm);
        }
        let has_signed = |key: &VerifyingKey| {
            crypto::verify(self.signature, self.message, &key.key, algorithm).unwrap_or(false)
        };
        match keys.into_iter().any(has_signed) {
            true => Ok(()),
            false => Err(TokenFault::Signature),
        }
    }

    /// Whether `aud` holds one of these values. It is a text or a list of texts.
    fn is_for(&self, audience: &[String]) -> bool {
        let is_one = |value: &Value| audience.iter().any(|own| value.as_str() == Some(own));
        match self.claims.get("aud") {
            Some(Value::Array(values)) => values.iter().any(is_one),
            Some(value) => is_one(value),
            None => false,
        }
    }

    /// A time since 1970, which may have fractions of a second.
    fn time(&self, claim: &str) -> Result<Option<Duration>, TokenFault> {
        let Some(value) = self.claims.get(claim) else { return Ok(None) };
        let whole = value.as_u64().map(Duration::from_secs);
        let time = whole.or_else(|| Duration::try_from_secs_f64(value.as_f64()?).ok());
        time.map(Some).ok_or(TokenFault::Time)
    }
}

/// A part of a token: base64url of a JSON object.
fn object(part: &str) -> Result<Map<String, Value>, TokenFault> {
    let json = URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenFault::Malformed)?;
    let json = std::str::from_utf8(&json).map_err(|_| TokenFault::Malformed)?;
    read_claims(json).map_err(|_| TokenFault::Malformed)
}
