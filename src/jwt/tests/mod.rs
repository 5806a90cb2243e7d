//! Tokens of the standards' examples and of our own, against keys of all kinds.

mod failed;
mod made_elsewhere;
mod tables;

use std::slice::from_ref;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use http::HeaderValue;
use http::header::{AUTHORIZATION, COOKIE, HeaderName};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Value, json};

use super::keys::KeySet;
use super::*;
use crate::limit::name::Name;
use crate::settings::{JwtSpec, KeySetLocation};

/// Tokens of RFC 7515, A.1 to A.3: HS256, RS256 and ES256. They hold until 22 March 2011, 18:43 UTC.
const STANDARD: [(&str, &str); 3] = [
    (
        "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
        r#"{"kty":"oct","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"}"#,
    ),
    (
        "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
        r#"{"kty":"RSA","n":"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ","e":"AQAB"}"#,
    ),
    (
        "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
        r#"{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}"#,
    ),
];

/// The moment at which the tokens of the standard end.
const END: u64 = 1_300_819_380;

/// A moment for all other tokens.
const NOW: u64 = 1_800_000_000;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000).unwrap()
}

fn spec(change: impl FnOnce(&mut JwtSpec)) -> JwtSpec {
    let mut spec = JwtSpec {
        name: Name::new("main").unwrap(),
        // The keys come from outside.
        keys: Some(KeySetLocation::File("keys.json".into())),
        issuer: None,
        audience: Vec::new(),
        algorithms: Vec::new(),
        place: KeySource::Header(AUTHORIZATION),
        leeway: Duration::ZERO,
        refresh: Duration::from_secs(600),
        invalid: OnInvalid::Ignore,
    };
    change(&mut spec);
    spec
}

fn table(keys: &[u8], change: impl FnOnce(&mut JwtSpec)) -> Arc<SharedKeys> {
    let shared = SharedKeys::new(Arc::new(spec(change)));
    if !keys.is_empty() {
        shared.replace(KeySet::parse(keys).unwrap());
    }
    Arc::new(shared)
}

fn secret_table(secret: &[u8]) -> Arc<SharedKeys> {
    table(b"", |spec| spec.keys = Some(KeySetLocation::Secret(secret.to_vec())))
}

fn bearer(token: &str) -> HeaderMap {
    HeaderMap::from_iter([(
        AUTHORIZATION,
        HeaderValue::try_from(format!("Bearer {token}")).unwrap(),
    )])
}

/// The name of the claim `sub`, or the fault.
fn read(
    tables: &[Arc<SharedKeys>],
    headers: &HeaderMap,
    seconds: u64,
) -> Result<Value, TokenFault> {
    match Tokens::new(tables).read(None, headers, at(seconds)) {
        TokenReading::Verified(claims) => Ok(Value::Object(claims.values.clone())),
        TokenReading::Ignored(fault) => Err(fault),
        other => panic!("{other:?}"),
    }
}

fn fault(tables: &[Arc<SharedKeys>], token: &str) -> Option<TokenFault> {
    read(tables, &bearer(token), NOW).err()
}

fn jwks(keys: &[Value]) -> Vec<u8> {
    json!({ "keys": keys }).to_string().into_bytes()
}

/// A pair of keys that signs tokens.
struct Signer {
    key: EncodingKey,
    algorithm: Algorithm,
    pair: rcgen::KeyPair,
}

impl Signer {
    fn of(algorithm: Algorithm) -> Self {
        let kind = match algorithm {
            Algorithm::ES256 => &rcgen::PKCS_ECDSA_P256_SHA256,
            Algorithm::ES384 => &rcgen::PKCS_ECDSA_P384_SHA384,
            Algorithm::EdDSA => &rcgen::PKCS_ED25519,
            _ => &rcgen::PKCS_RSA_SHA256,
        };
        let pair = rcgen::KeyPair::generate_for(kind).unwrap();
        let der = pair.serialize_der();
        let key = match algorithm {
            Algorithm::ES256 | Algorithm::ES384 => EncodingKey::from_ec_der(&der),
            Algorithm::EdDSA => EncodingKey::from_ed_der(&der),
            // The library wants PKCS #1, which is the last field of PKCS #8.
            _ => EncodingKey::from_rsa_der(&der[26..]),
        };
        Self { key, algorithm, pair }
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        sign(&self.key, self.algorithm, header, claims)
    }

    fn token(&self, kid: Option<&str>, claims: &Value) -> String {
        let algorithm = format!("{:?}", self.algorithm);
        let header = match kid {
            Some(kid) => json!({ "alg": algorithm, "kid": kid }),
            None => json!({ "alg": algorithm }),
        };
        self.sign(&header, claims)
    }

    fn jwk(&self, kid: &str) -> Value {
        let mut jwk = match self.algorithm {
            Algorithm::EdDSA => {
                let x = BASE64.encode(self.pair.public_key_raw());
                json!({ "kty": "OKP", "crv": "Ed25519", "x": x, "alg": "EdDSA" })
            }
            algorithm => {
                let jwk = Jwk::from_encoding_key(&self.key, algorithm).unwrap();
                serde_json::to_value(jwk).unwrap()
            }
        };
        jwk["kid"] = kid.into();
        jwk["use"] = "sig".into();
        jwk
    }
}

fn sign(key: &EncodingKey, algorithm: Algorithm, header: &Value, claims: &Value) -> String {
    let [header, claims] = [header, claims].map(|part| BASE64.encode(part.to_string()));
    let message = format!("{header}.{claims}");
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), key, algorithm).unwrap();
    format!("{message}.{signature}")
}

#[test]
fn the_tokens_of_the_standard_verify() {
    let [(hmac, secret), (rsa, rsa_key), (ec, ec_key)] = STANDARD;
    let secret: Value = serde_json::from_str(secret).unwrap();
    let secret = BASE64.decode(secret["k"].as_str().unwrap()).unwrap();
    let both: Vec<Value> =
        [rsa_key, ec_key].iter().map(|key| serde_json::from_str(key).unwrap()).collect();
    let public = table(&jwks(&both), |_| {});
    for (token, table) in [(hmac, secret_table(&secret)), (rsa, public.clone()), (ec, public)] {
        let claims = read(from_ref(&table), &bearer(token), END - 1).unwrap();
        assert_eq!(claims, json!({ "iss": "joe", "exp": END, "http://example.com/is_root": true }));
        assert_eq!(read(from_ref(&table), &bearer(token), END), Err(TokenFault::Expired));
        for part in 0..3 {
            // One bit of one letter is changed.
            let mut bytes = token.as_bytes().to_vec();
            let begin = token.match_indices('.').nth(part.max(1) - 1).map_or(0, |(dot, _)| dot + 1);
            let changed = if part == 0 { 8 } else { begin + 8 };
            bytes[changed] = if bytes[changed] == b'A' { b'B' } else { b'A' };
            let other = String::from_utf8(bytes).unwrap();
            assert!(read(from_ref(&table), &bearer(&other), END - 1).is_err(), "{other}");
        }
    }
}

#[test]
fn every_algorithm_verifies_with_its_own_key_alone() {
    let claims = json!({ "sub": "a" });
    let signers =
        [Algorithm::RS256, Algorithm::ES256, Algorithm::ES384, Algorithm::EdDSA].map(Signer::of);
    for signer in &signers {
        let own = table(&jwks(&[signer.jwk("own")]), |_| {});
        let pem = table(signer.pair.public_key_pem().as_bytes(), |_| {});
        let token = signer.token(Some("own"), &claims);
        assert_eq!(fault(from_ref(&own), &token), None, "{:?}", signer.algorithm);
        assert_eq!(fault(&[pem], &token), None, "{:?}", signer.algorithm);
        for other in signers.iter().filter(|other| other.algorithm != signer.algorithm) {
            let table = table(&jwks(&[other.jwk("own")]), |_| {});
            assert_eq!(fault(&[table], &token), Some(TokenFault::Algorithm));
        }
        let stranger = Signer::of(signer.algorithm).token(Some("own"), &claims);
        assert_eq!(fault(&[own], &stranger), Some(TokenFault::Signature));
    }
    // An RSA key that does not name its algorithm can verify six algorithms.
    let [rsa, ..] = &signers;
    let mut jwk = rsa.jwk("own");
    jwk.as_object_mut().unwrap().remove("alg");
    let (open, closed) = (table(&jwks(&[jwk]), |_| {}), table(&jwks(&[rsa.jwk("own")]), |_| {}));
    for algorithm in
        [Algorithm::RS384, Algorithm::RS512, Algorithm::PS256, Algorithm::PS384, Algorithm::PS512]
    {
        let token = sign(&rsa.key, algorithm, &json!({ "alg": format!("{algorithm:?}") }), &claims);
        assert_eq!(fault(from_ref(&open), &token), None, "{algorithm:?}");
        assert_eq!(fault(from_ref(&closed), &token), Some(TokenFault::Algorithm), "{algorithm:?}");
        let allowed = table(&jwks(&[rsa.jwk("own")]), |spec| spec.algorithms = vec![algorithm]);
        assert_eq!(fault(&[allowed], &token), Some(TokenFault::Algorithm), "both must allow it");
    }
}

/// The token chooses among what the key allows. It never says what the key is.
#[test]
fn a_public_key_is_no_secret() {
    let signer = Signer::of(Algorithm::RS256);
    let pem = signer.pair.public_key_pem();
    let claims = json!({ "sub": "root" });
    let jwk = signer.jwk("own");
    let texts = [
        pem.clone().into_bytes(),
        pem.trim().as_bytes().to_vec(),
        signer.pair.public_key_raw().to_vec(),
        BASE64.decode(jwk["n"].as_str().unwrap()).unwrap(),
        jwks(from_ref(&jwk)),
    ];
    for keys in [pem.into_bytes(), jwks(&[jwk])] {
        let table = table(&keys, |_| {});
        for (secret, algorithm) in texts.iter().flat_map(|text| {
            [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512].map(|it| (text, it))
        }) {
            let key = EncodingKey::from_secret(secret);
            for header in [
                json!({ "alg": format!("{algorithm:?}"), "kid": "own" }),
                json!({ "alg": format!("{algorithm:?}") }),
            ] {
                let token = sign(&key, algorithm, &header, &claims);
                assert_eq!(fault(from_ref(&table), &token), Some(TokenFault::Algorithm));
                // The token also fails if it says that it has an RSA signature.
                let token = sign(&key, algorithm, &json!({ "alg": "RS256" }), &claims);
                assert_eq!(fault(from_ref(&table), &token), Some(TokenFault::Signature));
            }
        }
    }
    // A symmetric key in a JWKS does not count: everybody who reads the JWKS could sign.
    let oct = json!({ "kty": "oct", "kid": "own", "alg": "HS256", "k": BASE64.encode([7; 32]) });
    assert!(KeySet::parse(&jwks(&[oct])).is_err());
}

#[test]
fn a_token_without_a_signature_is_none() {
    let signer = Signer::of(Algorithm::ES256);
    let tables = [
        table(&jwks(&[signer.jwk("own")]), |_| {}),
        secret_table(b"a secret of thirty-two bytes ...."),
    ];
    for algorithm in ["none", "None", "NONE", "nOnE", "", "HS257", "ES256K"] {
        let parts = [json!({ "alg": algorithm }), json!({ "sub": "root" })];
        let [header, claims] = parts.map(|part| BASE64.encode(part.to_string()));
        for table in &tables {
            for signature in ["", "AA", "e30"] {
                let token = format!("{header}.{claims}.{signature}");
                assert_eq!(fault(from_ref(table), &token), Some(TokenFault::Algorithm), "{token}");
            }
            let token = format!("{header}.{claims}");
            assert_eq!(fault(from_ref(table), &token), Some(TokenFault::Malformed));
        }
    }
    // An empty signature, and a signature of zeros.
    let token = signer.token(Some("own"), &json!({}));
    let (message, _) = token.rsplit_once('.').unwrap();
    for signature in [String::new(), BASE64.encode([0; 64])] {
        let token = format!("{message}.{signature}");
        assert_eq!(fault(&tables[..1], &token), Some(TokenFault::Signature));
    }
}

#[test]
fn an_unsigned_or_broken_token_is_malformed() {
    let signer = Signer::of(Algorithm::EdDSA);
    let tables = [table(&jwks(&[signer.jwk("own")]), |_| {})];
    let header = BASE64.encode(r#"{"alg":"EdDSA"}"#);
    let long = format!("{header}.{}.AA", "A".repeat(60 * 1024));
    assert_eq!(fault(&tables, &long), Some(TokenFault::TooLong));
    let long_kid = signer.token(Some(&"../".repeat(1_000)), &json!({}));
    assert_eq!(fault(&tables, &long_kid), Some(TokenFault::UnknownKey));
    for kid in ["../../etc/passwd", "/dev/null", "'; --", "http://evil.example/keys", "OWN", ""] {
        assert_eq!(
            fault(&tables, &signer.token(Some(kid), &json!({}))),
            Some(TokenFault::UnknownKey)
        );
    }
    let crit = signer.sign(&json!({ "alg": "EdDSA", "crit": ["exp"], "exp": 0 }), &json!({}));
    assert_eq!(fault(&tables, &crit), Some(TokenFault::Critical));
    let crit = signer.sign(&json!({ "alg": "EdDSA", "crit": [] }), &json!({}));
    assert_eq!(fault(&tables, &crit), Some(TokenFault::Critical));
    // A key inside the token does not count.
    let brought = signer.sign(
        &json!({ "alg": "EdDSA", "jwk": Signer::of(Algorithm::EdDSA).jwk("x"), "jku": "http://evil.example" }),
        &json!({}),
    );
    assert_eq!(fault(&tables, &brought), None);
    for token in [
        "a".to_owned(),
        "..".to_owned(),
        "a.b.c".to_owned(),
        "a.b.c.d.e".to_owned(),
        format!("{header}..AA"),
        format!("{header}.e30=.AA"),
        format!("{header}.{}.AA", BASE64.encode("[1]")),
        format!("{header}.{}.AA", BASE64.encode("\"text\"")),
        format!("{header}.{}.AA", BASE64.encode("[".repeat(5_000))),
        format!("{header}.{}.AA", BASE64.encode(b"{\"sub\":\"\xff\"}")),
        signer.sign(&json!({ "alg": "EdDSA", "kid": 1 }), &json!({})),
        signer.sign(&json!(["EdDSA"]), &json!({})),
    ] {
        assert_eq!(fault(&tables, &token), Some(TokenFault::Malformed), "{token}");
    }
}
