//! The keys of a `[jwt.NAME]`: what each can verify, and their forms in files and on servers.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use parking_lot::Mutex;
use rustls::pki_types::pem::{PemObject as _, SectionKind};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;
use x509_cert::Certificate;
use x509_cert::der::asn1::{ObjectIdentifier, Uint};
use x509_cert::der::{Decode as _, Encode as _};
use x509_cert::spki::SubjectPublicKeyInfoRef;

use crate::file::{LastRead, read_ordinary};
use crate::settings::{JwtSpec, KeySetLocation};

/// The most keys of one table. A token without `kid` is tried with each of them.
const MOST_KEYS: usize = 64;

const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");

const P256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
const P384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.34");

/// Keys that verify tokens.
#[derive(Debug, Default)]
pub(crate) struct KeySet {
    pub(super) keys: Vec<VerifyingKey>,
    /// SHA-256 of the text that the keys were read from.
    text: [u8; 32],
}

#[derive(Debug)]
pub(super) struct VerifyingKey {
    /// The key's `kid`. A key without one is tried for every token.
    pub(super) id: Option<String>,
    /// What the key can verify. The token's `alg` only chooses among these.
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) key: DecodingKey,
}

/// Why a text or a file has no keys.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeySetError {
    #[error("{0}")]
    Read(#[from] io::Error),
    #[error("it is neither a JWKS nor PEM")]
    Form,
    #[error("it has a private key: public keys are enough")]
    Private,
    #[error("it has no key that verifies signatures (RSA, P-256, P-384, Ed25519)")]
    None,
    #[error("it has more than {MOST_KEYS} keys")]
    TooMany,
}

/// The algorithm of this name in tokens and keys.
pub(crate) fn algorithm(name: &str) -> Option<Algorithm> {
    match name {
        // RFC 9864 names the curve too. It is the only curve of EdDSA here.
        "Ed25519" => Some(Algorithm::EdDSA),
        name => name.parse().ok(),
    }
}

/// Whether a text, perhaps in base64, is no secret: a public key or a certificate in PEM or DER, a JWK or a JWKS. Whoever has
/// a public key could sign tokens with it as the secret.
pub(crate) fn is_public(text: &[u8]) -> bool {
    let is_it = |text: &[u8]| {
        let json = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(text);
        let has = |mark: &[u8]| text.windows(mark.len()).any(|part| part == mark);
        json.is_ok_and(|json| json.contains_key("kty") || json.contains_key("keys"))
            || has(b"PUBLIC KEY-----")
            || has(b"-----BEGIN CERTIFICATE-----")
            || (text.starts_with(b"ssh-") && has(b" AAAA"))
            || SubjectPublicKeyInfoRef::from_der(text).is_ok()
            || Certificate::from_der(text).is_ok()
            || modulus(text).is_some()
    };
    let text = text.trim_ascii();
    let is_digit = |byte: &u8| !byte.is_ascii_whitespace() && *byte != b'=';
    let digits: Vec<u8> = text.iter().copied().filter(is_digit).collect();
    let alphabets = [STANDARD_NO_PAD, URL_SAFE_NO_PAD].into_iter();
    let mut decoded = alphabets.filter_map(|alphabet| alphabet.decode(&digits).ok());
    is_it(text) || decoded.any(|decoded| is_it(&decoded))
}

impl KeySet {
    /// The keys in a file.
    ///
    /// # Errors
    /// If it cannot be read, or no key is left.
    pub(crate) fn read(file: &Path) -> Result<Self, KeySetError> {
        Self::parse(&read_ordinary(file)?)
    }

    /// The keys in a text: a JWKS, or PEM with public keys or certificates. Keys of other kinds are left out, and
    /// symmetric keys too: everybody who can read a symmetric key could sign tokens.
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

    /// The number of keys that can verify tokens, if these algorithms are allowed. If there are none, all are.
    pub(crate) fn count(&self, allowed: &[Algorithm]) -> usize {
        let is_allowed = |own: &Algorithm| allowed.is_empty() || allowed.contains(own);
        self.keys.iter().filter(|key| key.algorithms.iter().any(is_allowed)).count()
    }
}

#[derive(Deserialize)]
struct Jwks {
    /// Each key is read by itself: a key of an unknown kind must not hide the others.
    keys: Vec<serde_json::Value>,
}

fn jwks(text: &[u8]) -> Result<Vec<VerifyingKey>, KeySetError> {
    let Jwks { keys } = serde_json::from_slice(text).map_err(|_| KeySetError::Form)?;
    let keys = keys.into_iter().filter_map(|mut key| {
        if let Some(own) = key.get_mut("alg").filter(|own| *own == "Ed25519") {
            *own = "EdDSA".into();
        }
        serde_json::from_value::<Jwk>(key).ok()
    });
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
    let is_long = match &jwk.algorithm {
        AlgorithmParameters::RSA(rsa) => {
            URL_SAFE_NO_PAD.decode(&rsa.n).is_ok_and(|modulus| can_verify(&modulus))
        }
        _ => true,
    };
    let operations = &jwk.common.key_operations;
    let signs = matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature))
        && operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify));
    let key = DecodingKey::from_jwk(&jwk).ok().filter(|key| signs && is_long && has_point(key))?;
    let algorithms = match jwk.common.key_algorithm {
        None => all.to_vec(),
        Some(own) => vec![own.try_into().ok().filter(|own| all.contains(own))?],
    };
    Some(VerifyingKey { id: jwk.common.key_id, algorithms, key })
}

/// The modulus of an `RSAPublicKey` (RFC 8017, A.1.1).
fn modulus(der: &[u8]) -> Option<Vec<u8>> {
    let numbers = Vec::<Uint>::from_der(der).ok()?;
    (numbers.len() == 2).then(|| numbers[0].as_bytes().to_vec())
}

/// Whether signatures of an RSA key with this modulus are verified: it has 2048 to 8192 bits.
fn can_verify(modulus: &[u8]) -> bool {
    let mut digits = modulus.iter().skip_while(|byte| **byte == 0);
    let first = digits.next().map_or(0, |first| 8 - first.leading_zeros() as usize);
    (2048..=8192).contains(&(first + 8 * digits.count()))
}

/// Whether a key of a curve has the length of a point on P-256, P-384 or Ed25519. Keys of RSA have no point.
fn has_point(key: &DecodingKey) -> bool {
    let length = key.try_get_as_bytes().map(<[u8]>::len);
    key.family() == AlgorithmFamily::Rsa || matches!(length, Ok(32 | 33 | 49 | 65 | 97))
}

fn pem(text: &[u8]) -> Result<Vec<VerifyingKey>, KeySetError> {
    let mut keys = Vec::new();
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(text) {
        let (kind, der) = section.map_err(|_| KeySetError::Form)?;
        let info = match kind {
            SectionKind::PublicKey => Ok(der),
            SectionKind::Certificate => Certificate::from_der(&der)
                .and_then(|parsed| parsed.tbs_certificate.subject_public_key_info.to_der()),
            _ => continue,
        };
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
        (RSA, _) if !modulus(bytes).is_some_and(|modulus| can_verify(&modulus)) => return None,
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
    /// Notified when a token names a key that the table does not have, or has another signature.
    pub(crate) is_missed: Notify,
    pub(crate) last_read: LastRead,
}

impl SharedKeys {
    /// A table whose keys come from a URL has no keys before [`Self::replace`] is called.
    pub(crate) fn new(spec: Arc<JwtSpec>) -> Self {
        let keys = match &spec.keys {
            Some(KeySetLocation::Secret(secret)) => KeySet::of_secret(secret),
            // The file had keys when the configuration was read.
            Some(KeySetLocation::File(file)) => KeySet::read(file).unwrap_or_default(),
            Some(KeySetLocation::Url(_)) | None => KeySet::default(),
        };
        let keys = Mutex::new(Arc::new(keys));
        let (is_missed, last_read) = Default::default();
        Self { spec, keys, version: AtomicU64::new(0), is_missed, last_read }
    }

    /// The number of changes so far. The key of a token that was verified before the last change may be gone.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The keys in force.
    pub(crate) fn current(&self) -> Arc<KeySet> {
        self.keys.lock().clone()
    }

    /// The number of keys in force that can verify tokens.
    pub(crate) fn count(&self) -> usize {
        self.current().count(&self.spec.algorithms)
    }

    /// Whether the keys are fetched, and none have come yet.
    pub(crate) fn are_awaited(&self) -> bool {
        matches!(self.spec.keys, Some(KeySetLocation::Url(_))) && self.current().keys.is_empty()
    }

    /// Puts other keys in force. Returns whether they differ from the keys before.
    pub(crate) fn replace(&self, keys: impl Into<Arc<KeySet>>) -> bool {
        let (keys, mut current) = (keys.into(), self.keys.lock());
        let differs = current.text != keys.text;
        if differs {
            *current = keys;
            self.version.fetch_add(1, Ordering::Release);
        }
        differs
    }
}
