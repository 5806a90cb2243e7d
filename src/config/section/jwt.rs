//! `[jwt.NAME]`.

use std::time::Duration;

use http::Uri;
use http::header::AUTHORIZATION;
use http::uri::PathAndQuery;
use jsonwebtoken::{Algorithm, AlgorithmFamily};

use super::tls::{self, SystemRoots};
use super::upstream::{UPSTREAM, server_address};
use super::values::{Named, file_fault, header_name, named, named_file, once_each};
use crate::config::reader::{
    Item, Kind, Mask, Required, Section, SettingList, Shape, Value, Words, Wrong, at, field,
    fields, read, setting, spellings, words,
};
use crate::jwt::keys::{self, KeySet, KeySetError, is_public};
use crate::limit::name::Name;
use crate::request::key::KeySource;
use crate::settings::{Endpoint, JwksUrl, JwtSpec, KeySetLocation, OnInvalid, Scheme};

type Spec = JwtSpec;

pub(crate) static JWT: Shape = Shape::new("[jwt.NAME]", || fields(SETTINGS));

#[rustfmt::skip]
pub(crate) static SETTINGS: SettingList<Spec> = &[
    field("keys", Kind::Either(&[Kind::Text, Kind::Table(&SECRET)]), Words("required where signatures are verified"),
        "a JWKS: an `https://` URL, which is fetched, or a file, which may also be PEM; or `{ secret = \"${SECRET}\" }` for HS256 to HS512. Read again when it changes"),
    setting(at!(issuer, text), Kind::Text, Words("any"), "what `iss` must be"),
    setting(at!(audience, audience), Kind::Either(&[Kind::Text, Kind::TEXT_LIST]), Words("any"),
        "what `aud` must hold: this text, or one text of the list"),
    field("algorithms", Kind::List(1, &Kind::Word(algorithm_names)), Words("those of the keys"),
        "the algorithms that are allowed, if the key allows them too"),
    field("header", Kind::HEADER, Value("\"authorization\""), "the header that has the token: its last word, after `Bearer` or another scheme"),
    field("cookie", Kind::Text, Words("none"), "in place of `header`: the cookie that has the token"),
    setting(at!(leeway), Kind::TIME, Value("\"30s\""), "how far the clock of the issuer may be from ours, for `exp` and `nbf`"),
    setting(at!(refresh), Kind::TIME_ABOVE_ZERO, Value("\"10m\""),
        "the time between two fetches of a JWKS; a verified token without `exp` is remembered for this time"),
    field("verify", Kind::Flag, Value("true"),
        "`false`: claims are believed without a check of the signature; only where something in front has verified the token"),
    setting(at!(invalid), Kind::Word(spellings::<OnInvalid>), Value("\"ignore\""),
        "a token that does not verify has no claims, and `missing = \"skip\"` counts as `\"shared\"` for it; or `\"reject\"`: a request with such a token is answered with 401 if a limit reads the token"),
];

words!(OnInvalid { "ignore" => Ignore, "reject" => Reject });

/// `keys`, written as a table.
pub(crate) static SECRET: Shape = Shape::new("keys", || fields(OF_SECRET));

#[rustfmt::skip]
static OF_SECRET: SettingList<()> = &[
    field("secret", Kind::Text, Required, "the secret with which tokens are signed, at least 32 bytes").masked(Mask::Secret),
];

const KEYS: &str = "expected a URL, the name of a file, or `{ secret = \"…\" }`";

const URL: &str = "expected a URL as in \"https://login.example.com/keys\"";

/// The shortest secret that does not weaken HS256 (RFC 7518, 3.2).
const SHORTEST_SECRET: usize = 32;

/// The tables in the file's order.
pub(crate) fn build(root: &mut Section<'_>) -> Vec<Named<JwtSpec>> {
    let system = SystemRoots::new();
    named(root, "jwt", &JWT, |section, name| Some(one(section, name, &system)))
}

fn one(mut section: Section<'_>, name: Name, system: &SystemRoots) -> JwtSpec {
    let verifies = section.take("verify").is_none_or(|item| {
        let verifies = item.flag().unwrap_or(true);
        if !verifies {
            item.doubt(
                "signatures are not checked: whoever reaches tidegate can write any claim",
                "leave it only where something in front has verified the token",
            );
        }
        verifies
    });
    let item = match verifies {
        true => section.require("keys", "\"https://login.example.com/keys\""),
        // The keys are checked even if they are not used.
        false => section.take("keys"),
    };
    let keys = item.and_then(|item| keys(&item, system));
    let algorithms = section.value("algorithms", |item| algorithms(item, keys.as_ref()));
    if let (Some(header), Some(cookie)) = (section.item("header"), section.item("cookie")) {
        header
            .fault("both `header` and `cookie` say where the token is", "remove one of them")
            .related(&cookie.span, "the other one");
    }
    let header = section.value("header", header_name).unwrap_or(AUTHORIZATION);
    let cookie = section.value("cookie", cookie);
    let spec = JwtSpec {
        name,
        keys: keys.filter(|_| verifies),
        issuer: None,
        audience: Vec::new(),
        algorithms: algorithms.unwrap_or_default(),
        place: cookie.unwrap_or(KeySource::Header(header)),
        leeway: Duration::ZERO,
        refresh: Duration::ZERO,
        invalid: OnInvalid::default(),
    };
    read(SETTINGS, section, spec)
}

fn keys(item: &Item<'_>, system: &SystemRoots) -> Option<KeySetLocation> {
    if item.is_table() {
        return secret(item.section(&SECRET, "keys")?);
    }
    let text = item.text_as(KEYS)?;
    if text.contains("://") {
        return url(item, system).map(KeySetLocation::Url);
    }
    let path = named_file(item, KEYS)?;
    // The file is read here only to find errors in it. `server` reads it for use.
    let fault = match KeySet::read(&path) {
        Ok(_) => return Some(KeySetLocation::File(path)),
        Err(KeySetError::Read(error)) => format!(" cannot be read: {error}"),
        Err(error) => format!(" has no keys: {error}"),
    };
    let expected = "expected a JWKS, or PEM with \"-----BEGIN PUBLIC KEY-----\"";
    file_fault(item, &path, &fault, expected);
    None
}

fn secret(mut section: Section<'_>) -> Option<KeySetLocation> {
    let item = section.require("secret", "\"${SECRET}\"");
    section.finish();
    let item = item?.secret();
    let secret = item.text()?.into_bytes();
    if secret.is_empty() {
        item.reject("expected the secret that tokens are signed with");
        return None;
    }
    if is_public(&secret) {
        item.reject(
            "expected a secret that nobody else has: with a public key or a JWK as the secret, others can sign \
             tokens (a file with public keys is `keys = \"FILE\"`)",
        );
        return None;
    }
    if secret.len() < SHORTEST_SECRET {
        item.doubt(
            "the secret is shorter than 32 bytes",
            "whoever has one token can try all short secrets: expected 32 bytes or more",
        );
    }
    Some(KeySetLocation::Secret(secret))
}

fn url(item: &Item<'_>, system: &SystemRoots) -> Option<JwksUrl> {
    let (server, path) = super::values::url(item, URL, |text| {
        let uri = text.parse::<Uri>().map_err(|_| Wrong::Expected)?.into_parts();
        let (scheme, authority) = uri.scheme.zip(uri.authority).ok_or(Wrong::Expected)?;
        let server = server_address(&format!("{scheme}://{authority}"))?;
        if !matches!(server.scheme, Scheme::Http | Scheme::Https) {
            return Err(Wrong::other("expected `https://` in front"));
        }
        let path = uri.path_and_query.unwrap_or(PathAndQuery::from_static("/"));
        Ok((server, path))
    })?;
    let tls = match (&server.scheme, &server.endpoint) {
        (Scheme::Https, host) => {
            let mut no_tls = Section::empty(item.cx, &UPSTREAM);
            Some(tls::towards(&mut no_tls, &[(host, &item.span)], None, system)?)
        }
        (_, Endpoint::Tcp { host, .. }) if !is_here(host) => {
            item.doubt(
                "the keys are fetched in clear text: whoever is on the way can replace them",
                "expected `https://`",
            );
            None
        }
        _ => None,
    };
    Some(JwksUrl { server, path, tls })
}

fn is_here(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn cookie(item: &Item<'_>) -> Option<KeySource> {
    item.form("expected the name of a cookie", |name| format!("cookie:{name}").parse().ok())
}

fn text(item: &Item<'_>) -> Option<String> {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    item.form("expected a text that is not empty", some)
}

fn audience(item: &Item<'_>) -> Option<Vec<String>> {
    let items = item.list_or_one();
    if items.is_empty() && item.is_list() {
        item.reject(
            "expected at least one audience: without `audience` a token may be for anybody",
        );
        return None;
    }
    Some(once_each(&items, text))
}

/// All algorithms, by their names in a token.
fn algorithm_names() -> Vec<&'static str> {
    vec![
        "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256",
        "ES384", "EdDSA", "Ed25519",
    ]
}

fn algorithms(item: &Item<'_>, keys: Option<&KeySetLocation>) -> Option<Vec<Algorithm>> {
    let items = item.list()?;
    if items.is_empty() {
        item.reject("expected at least one algorithm, as in [\"RS256\"]");
        return None;
    }
    items.iter().map(|item| algorithm(item, keys)).collect()
}

/// A symmetric algorithm needs a secret. A secret can be used only with a symmetric algorithm.
fn algorithm(item: &Item<'_>, keys: Option<&KeySetLocation>) -> Option<Algorithm> {
    let expected = format!("expected one of {}", algorithm_names().join(", "));
    let has_secret = keys.map(|keys| matches!(keys, KeySetLocation::Secret(_)));
    item.parse(&expected, |text| {
        let algorithm = keys::algorithm(text).ok_or(Wrong::Expected)?;
        match (algorithm.family() == AlgorithmFamily::Hmac, has_secret) {
            (true, Some(false)) => {
                Err(Wrong::other("expected an algorithm with a public key: `keys` has no secret"))
            }
            (false, Some(true)) => {
                Err(Wrong::other("expected HS256, HS384 or HS512: `keys` is a secret"))
            }
            _ => Ok(algorithm),
        }
    })
}
