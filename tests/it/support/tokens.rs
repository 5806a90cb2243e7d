//! Signed tokens, and a server that has the keys.

use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Value, json};

use super::port::Port;
use super::upstream::Upstream;

/// Signs tokens by ES256.
pub(crate) struct Signer {
    key: EncodingKey,
    pub(crate) pair: rcgen::KeyPair,
    kid: String,
}

impl Signer {
    pub(crate) fn new(kid: &str) -> Self {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let key = EncodingKey::from_ec_der(&pair.serialize_der());
        Self { key, pair, kid: kid.to_owned() }
    }

    /// A token with these claims.
    pub(crate) fn token(&self, claims: &Value) -> String {
        sign(&self.key, Algorithm::ES256, &json!({ "alg": "ES256", "kid": self.kid }), claims)
    }

    /// A token of this user.
    pub(crate) fn of(&self, sub: &str) -> String {
        self.token(&json!({ "sub": sub }))
    }

    /// The public key, as a JWKS has it.
    pub(crate) fn jwk(&self) -> Value {
        let jwk = Jwk::from_encoding_key(&self.key, Algorithm::ES256).unwrap();
        let mut jwk = serde_json::to_value(jwk).unwrap();
        jwk["kid"] = self.kid.as_str().into();
        jwk
    }
}

/// A token with this header, whatever it says.
pub(crate) fn sign(
    key: &EncodingKey,
    algorithm: Algorithm,
    header: &Value,
    claims: &Value,
) -> String {
    let message = format!("{}.{}", part(header), part(claims));
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), key, algorithm).unwrap();
    format!("{message}.{signature}")
}

/// A part of a token.
pub(crate) fn part(value: &Value) -> String {
    BASE64.encode(value.to_string())
}

pub(crate) fn jwks(signers: &[&Signer]) -> String {
    json!({ "keys": signers.iter().map(|signer| signer.jwk()).collect::<Vec<_>>() }).to_string()
}

/// A server of a JWKS. It can withdraw keys, and it can stop to answer.
pub(crate) struct KeyServer {
    pub(crate) server: Upstream,
    answer: Arc<Mutex<Vec<u8>>>,
}

impl KeyServer {
    pub(crate) fn start(signers: &[&Signer]) -> Self {
        Self::at(std::net::TcpListener::bind("127.0.0.1:0").unwrap(), signers)
    }

    /// On a port on which nobody has listened so far.
    pub(crate) fn on(port: &Port, signers: &[&Signer]) -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&port.address.into()).unwrap();
        socket.listen(16).unwrap();
        Self::at(socket.into(), signers)
    }

    fn at(listener: std::net::TcpListener, signers: &[&Signer]) -> Self {
        let answer: Arc<Mutex<Vec<u8>>> = Arc::default();
        let said = answer.clone();
        let server = Upstream::answering_on(listener, move |_| said.lock().unwrap().clone());
        let server = Self { server, answer };
        server.has(signers);
        server
    }

    /// Has these keys from now on.
    pub(crate) fn has(&self, signers: &[&Signer]) {
        let body = jwks(signers);
        self.says(&format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ));
    }

    /// Answers with this from now on; with nothing, it closes connections.
    pub(crate) fn says(&self, answer: &str) {
        *self.answer.lock().unwrap() = answer.as_bytes().to_vec();
    }

    /// How often the keys were fetched.
    pub(crate) fn fetches(&self) -> usize {
        self.server.requests().len()
    }

    /// A table whose keys are here.
    pub(crate) fn table(&self, lines: &str) -> String {
        format!("[jwt.main]\nkeys = \"{}/realms/main/certs?a=b\"\n{lines}", self.server.url())
    }
}
