//! The keys of a `[jwt.NAME]`: what each can verify, and their forms in files and on servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, crypto};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;
use x509_cert::Certificate;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Decode as _, Encode as _};
use x509_cert::spki::SubjectPublicKeyInfoRef;

use crate::plan::{JwtSpec, KeySetLocation};
use crate::request::key::TokenFault;

/// The most keys of one table. A token without `kid` is tried with each of them.
const MOST_KEYS: usize = 64;

const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");

const P256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
const P384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.34");

/// Keys that verify tokens. Those with the same text are the same.
#[derive(Debug, Default)]
pub(crate) struct KeySet {
    keys: Vec<VerifyingKey>,
    /// SHA-256 of the text that the keys were read from.
    text: [u8; 32],
}

#[derive(Debug)]
struct VerifyingKey {
    /// The key's `kid`. A key without one is tried for every token.
    id: Option<String>,
    /// What the key can verify. The token's `alg` only chooses among these.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// Why a text has no keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeySetError {
    #[error("it is neither a JWKS nor PEM")]
    Form,
    #[error("it has a private key: public keys are enough")]
    Private,
    #[error("it has no key that verifies signatures (RSA, P-256, P-384, Ed25519)")]
    None,
    #[error("it has more than {MOST_KEYS} keys")]
    TooMany,
}

impl PartialEq for KeySet {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl KeySet {
    /// The keys in a text: a JWKS, or PEM with public keys or certificates. Keys of other kinds are left out. So are
    /// symmetric keys: whoever can read them could sign tokens.
    ///
    /// # Errors
    /// If no key is left.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, KeySetError> {
        let keys = match text.trim_ascii_start().first() {
            Some(b'{') => jwks(text)?,
            _ => pem(text)?,
        };
        match keys.len() {
            0 => Err(KeySetError::None),
            1..=MOST_KEYS => Ok(Self { keys, text: Sha256::digest(text).into() }),
            _ => Err(KeySetError::TooMany),
        }
    }

    /// The key of a secret.
    fn of_secret(secret: &[u8]) -> Self {
        let algorithms = AlgorithmFamily::Hmac.algorithms().to_vec();
        let key = VerifyingKey { id: None, algorithms, key: DecodingKey::from_secret(secret) };
        Self { keys: vec![key], text: Sha256::digest(secret).into() }
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Verifies that one of the keys has signed the message.
    ///
    /// # Errors
    /// Where none has, in a way that `alg` names and both the key and `allowed` allow. If `allowed` is empty, it allows
    /// everything.
    pub(super) fn verify(
        &self,
        signed: &Signed<'_>,
        allowed: &[Algorithm],
    ) -> Result<(), TokenFault> {
        if self.keys.is_empty() {
            return Err(TokenFault::NoKeys);
        }
        let is_named = |key: &&VerifyingKey| match (&key.id, &signed.kid) {
            (Some(id), Some(wanted)) => id == wanted,
            _ => true,
        };
        let mut named = self.keys.iter().filter(is_named).peekable();
        if named.peek().is_none() {
            return Err(TokenFault::UnknownKey);
        }
        let algorithm = signed.algorithm.ok_or(TokenFault::Algorithm)?;
        let is_allowed = allowed.is_empty() || allowed.contains(&algorithm);
        let fits = |key: &&VerifyingKey| is_allowed && key.algorithms.contains(&algorithm);
        let mut fitting = named.filter(fits).peekable();
        if fitting.peek().is_none() {
            return Err(TokenFault::Algorithm);
        }
        let Signed { message, signature, .. } = signed;
        let has_signed = |it: &VerifyingKey| {
            crypto::verify(signature, message, &it.key, algorithm).unwrap_or(false)
        };
        if fitting.any(has_signed) { Ok(()) } else { Err(TokenFault::Signature) }
    }
}

/// The parts of a token that its signature is about.
pub(super) struct Signed<'t> {
    /// The header and the payload as they are written.
    pub(super) message: &'t [u8],
    pub(super) signature: &'t str,
    /// `None` for `none`, and for an algorithm that nobody here knows.
    pub(super) algorithm: Option<Algorithm>,
    pub(super) kid: Option<String>,
}

#[derive(Deserialize)]
struct Jwks {
    /// Each key is read by itself: one of a new kind must not hide the others.
    keys: Vec<serde_json::Value>,
}

fn jwks(text: &[u8]) -> Result<Vec<VerifyingKey>, KeySetError> {
    let Jwks { keys } = serde_json::from_slice(text).map_err(|_| KeySetError::Form)?;
    let keys = keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
    Ok(keys.filter_map(of_jwk).collect())
}

fn of_jwk(jwk: Jwk) -> Option<VerifyingKey> {
    let all = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => AlgorithmFamily::Rsa.algorithms(),
        AlgorithmParameters::EllipticCurve(ec) => match ec.curve {
            EllipticCurve::P256 => &[Algorithm::ES256][..],
            EllipticCurve::P384 => &[Algorithm::ES384],
            _ => return None,
        },
        AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => {
            &[Algorithm::EdDSA]
        }
        _ => return None,
    };
    let signs = matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature));
    let key = DecodingKey::from_jwk(&jwk).ok().filter(|_| signs)?;
    let algorithms = match jwk.common.key_algorithm {
        None => all.to_vec(),
        Some(own) => vec![own.try_into().ok().filter(|own| all.contains(own))?],
    };
    Some(VerifyingKey { id: jwk.common.key_id, algorithms, key })
}

fn pem(text: &[u8]) -> Result<Vec<VerifyingKey>, KeySetError> {
    let mut keys = Vec::new();
    for info in SubjectPublicKeyInfoDer::pem_slice_iter(text) {
        keys.extend(of_info(&info.map_err(|_| KeySetError::Form)?));
    }
    for certificate in CertificateDer::pem_slice_iter(text) {
        let certificate = certificate.map_err(|_| KeySetError::Form)?;
        let parsed = Certificate::from_der(&certificate).map_err(|_| KeySetError::Form)?;
        let info = parsed.tbs_certificate.subject_public_key_info.to_der();
        keys.extend(of_info(&info.map_err(|_| KeySetError::Form)?));
    }
    let has = |mark: &[u8]| text.windows(mark.len()).any(|part| part == mark);
    match keys.is_empty() {
        true if has(b"PRIVATE KEY-----") => Err(KeySetError::Private),
        true if !has(b"-----BEGIN ") => Err(KeySetError::Form),
        _ => Ok(keys),
    }
}

/// The key in a `SubjectPublicKeyInfo` (RFC 5280, 4.1).
fn of_info(der: &[u8]) -> Option<VerifyingKey> {
    let info = SubjectPublicKeyInfoRef::from_der(der).ok()?;
    let bytes = info.subject_public_key.as_bytes()?;
    let (algorithms, key) = match (info.algorithm.oid, info.algorithm.parameters_oid()) {
        (RSA, _) => (AlgorithmFamily::Rsa.algorithms(), DecodingKey::from_rsa_der(bytes)),
        (EC, Ok(P256)) => (&[Algorithm::ES256][..], DecodingKey::from_ec_der(bytes)),
        (EC, Ok(P384)) => (&[Algorithm::ES384][..], DecodingKey::from_ec_der(bytes)),
        (ED25519, _) => (&[Algorithm::EdDSA][..], DecodingKey::from_ed_der(bytes)),
        _ => return None,
    };
    Some(VerifyingKey { id: None, algorithms: algorithms.to_vec(), key })
}

/// The keys of a table, as all workers use them.
#[derive(Debug)]
pub struct SharedKeys {
    pub(crate) spec: Arc<JwtSpec>,
    keys: Mutex<Arc<KeySet>>,
    /// Grows with each change of the keys.
    version: AtomicU64,
    /// Notified when a token names a key that is not there.
    pub(crate) is_missed: Notify,
}

impl SharedKeys {
    /// The table has a secret, or no keys before [`Self::replace`] is called.
    pub(crate) fn new(spec: Arc<JwtSpec>) -> Self {
        let keys = match &spec.keys {
            Some(KeySetLocation::Secret(secret)) => KeySet::of_secret(secret),
            _ => KeySet::default(),
        };
        let keys = Mutex::new(Arc::new(keys));
        Self { spec, keys, version: AtomicU64::new(0), is_missed: Notify::new() }
    }

    /// The number of changes so far. Tokens that were verified before the last one may have lost their key.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The keys in force.
    pub(crate) fn current(&self) -> Arc<KeySet> {
        self.keys.lock().clone()
    }

    /// Puts other keys in force. Returns whether they differ from the ones before.
    pub(crate) fn replace(&self, keys: KeySet) -> bool {
        let mut current = self.keys.lock();
        let differs = **current != keys;
        if differs {
            *current = Arc::new(keys);
            self.version.fetch_add(1, Ordering::Release);
        }
        differs
    }
}
