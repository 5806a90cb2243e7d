//! A limit's key. The first line of the input has the key's sources, separated by commas. The second line
//! has method, target and client address. Each other line is a header field.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tidegate::limit::key::Key;
use tidegate::request::key::{KeyError, KeySource, KeySpec, Missing, View};
use tidegate::request::path::NormalPath;
use tidegate::request::route::{PathParams, Pattern};

/// What a key is read from.
struct Parts<'i> {
    method: Method,
    path: &'i str,
    query: Option<&'i str>,
    client: IpAddr,
    headers: HeaderMap,
}

pub(super) fn check(input: &[u8]) {
    let mut lines = input.split(|byte| *byte == b'\n');
    let Some(sources) = lines.next().and_then(sources) else { return };
    let Some(parts) = lines.next().and_then(|line| parts(line, lines)) else { return };
    let spec = |missing| KeySpec { sources: sources.clone().into(), missing, ipv6_prefix: 64 };
    let Some(Ok(Some(key))) = key(&spec(Missing::Shared), &parts) else {
        for missing in [Missing::Shared, Missing::Skip, Missing::Reject] {
            // Two values, or one with two meanings, are never a key.
            assert!(matches!(
                key(&spec(missing), &parts),
                None | Some(Err(KeyError::Repeated(_) | KeyError::Ambiguous(_)))
            ));
        }
        return;
    };
    is_whole(&key, &sources);
    let values: Vec<_> = key.values().collect();
    let lacks = values.contains(&None);
    for missing in [Missing::Skip, Missing::Reject] {
        match key_of_all(&spec(missing), &parts) {
            Ok(Some(found)) => assert!(!lacks && found == key, "{key:?}"),
            Ok(None) => assert!(lacks && missing == Missing::Skip),
            Err(error) => assert!(matches!(error, KeyError::Absent(_)) && lacks),
        }
    }
    for (source, value) in sources.iter().zip(&values) {
        if let Some(expected) = read(source, &parts) {
            assert_eq!(value.as_deref(), expected.as_deref(), "{source}");
        }
    }
    hashed_is_stable(&spec(Missing::Shared), &sources, &key);
    same_however_spelled(&spec(Missing::Shared), parts, &key);
}

fn sources(line: &[u8]) -> Option<Vec<KeySource>> {
    let text = std::str::from_utf8(line).ok()?;
    text.split(',').map(|source| source.trim().parse().ok()).collect()
}

fn parts<'i>(line: &'i [u8], fields: impl Iterator<Item = &'i [u8]>) -> Option<Parts<'i>> {
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let method = words.next()?.parse().ok()?;
    let target = words.next()?;
    let client = words.next()?.parse().ok()?;
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let mut headers = HeaderMap::new();
    for field in fields {
        let colon = field.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&field[..colon]).ok()?;
        headers.append(name, HeaderValue::from_bytes(field[colon + 1..].trim_ascii()).ok()?);
    }
    Some(Parts { method, path, query, client, headers })
}

/// `None` where the path is refused.
fn key(spec: &KeySpec, parts: &Parts<'_>) -> Option<Result<Option<Key>, KeyError>> {
    let path = NormalPath::parse(parts.path, true).ok()?;
    let pattern: Pattern = "/{first}/{*rest}".parse().unwrap();
    let is_matched = path.matching().matches('/').count() > 1;
    Some(spec.key(&View {
        path: &path,
        query: parts.query,
        method: &parts.method,
        host: "api.example",
        route: "route",
        client: parts.client,
        headers: &parts.headers,
        params: &if is_matched { PathParams::of(&pattern, &path) } else { PathParams::none() },
        cert: None,
        id: None,
    }))
}

fn key_of_all(spec: &KeySpec, parts: &Parts<'_>) -> Result<Option<Key>, KeyError> {
    key(spec, parts).expect("the path was taken before")
}

/// A key's text says each of its values, and no other key has the same text.
fn is_whole(key: &Key, sources: &[KeySource]) {
    assert_eq!(key.as_str().as_bytes(), key.as_bytes());
    assert_eq!(Key::parse(key.as_str()).as_ref(), Some(key));
    assert_eq!(key.values().count(), sources.len());
    assert!(
        !key.as_str().contains(['{', '}']) && !key.as_str().chars().any(|c| c.is_ascii_control())
    );
    if key.parts().all(|(alternative, _)| alternative == 0) {
        let values: Vec<_> = key.values().collect();
        assert_eq!(&Key::of(values.iter().map(Option::as_deref)), key);
    }
}

/// The value of a source, read in the slow and obvious way. The outer `None` is for sources, and for
/// requests, that this does not read.
fn read(source: &KeySource, parts: &Parts<'_>) -> Option<Option<Vec<u8>>> {
    let value = match source {
        KeySource::Method => Some(parts.method.as_str().into()),
        KeySource::Host => Some(b"api.example".into()),
        KeySource::Route => Some(b"route".into()),
        KeySource::Cert => None,
        KeySource::Path => {
            let path = NormalPath::parse(parts.path, true).unwrap();
            Some(path.matching().into())
        }
        KeySource::Ip => Some(match parts.client.to_canonical() {
            IpAddr::V4(v4) => v4.to_string().into_bytes(),
            IpAddr::V6(v6) => {
                let network = ipnet::Ipv6Net::new(v6, 64).unwrap().trunc();
                network.to_string().into_bytes()
            }
        }),
        KeySource::Header(name) if name != "authorization" => {
            parts.headers.get(name).map(|value| value.as_bytes().to_vec())
        }
        KeySource::Query(name) => {
            let pairs = parts.query.unwrap_or_default().split('&').map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                (decoded(name), decoded(value))
            });
            let mut values = pairs.filter(|(found, _)| found == name.as_bytes());
            // Without a query there is no pair, not one without a name.
            parts.query.and_then(|_| values.next()).map(|(_, value)| value)
        }
        _ => return None,
    };
    Some(value)
}

fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [byte, behind @ ..] = rest {
        let digits = behind.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        rest = behind;
        match (byte, digits) {
            (b'%', Some(digits)) => {
                let digits = std::str::from_utf8(digits).unwrap();
                bytes.push(u8::from_str_radix(digits, 16).unwrap());
                rest = &behind[2..];
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(*byte),
        }
    }
    bytes
}

/// A hashed key has a hash for each value that may be a secret, and all other values.
fn hashed_is_stable(spec: &KeySpec, sources: &[KeySource], key: &Key) {
    let hashed = spec.hashed(key);
    assert_eq!(hashed, spec.hashed(key));
    is_whole(&hashed, sources);
    for (source, (part, shown)) in sources.iter().zip(key.parts().zip(hashed.parts())) {
        let source = match source {
            KeySource::FirstOf(sources) => &sources[part.0],
            source => source,
        };
        let is_secret =
            matches!(source, KeySource::Header(_) | KeySource::Cookie(_) | KeySource::Query(_));
        match (&part.1, &shown.1) {
            (Some(_), Some(hash)) if is_secret => {
                assert_eq!(URL_SAFE_NO_PAD.decode(hash).map(|bytes| bytes.len()), Ok(16));
                assert_eq!(part.0, shown.0);
            }
            _ => assert_eq!(part, shown),
        }
    }
}

/// Another spelling of the same request has the same key.
fn same_however_spelled(spec: &KeySpec, parts: Parts<'_>, key: &Key) {
    let encoded = |text: &str| -> String {
        decoded(text).into_iter().map(|byte| format!("%{byte:02x}")).collect()
    };
    // Semicolons in a query are read in two ways, and their encoded spelling in one.
    let query = parts.query.filter(|query| !query.contains(';')).map(|query| {
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, value)) => format!("{}={}", encoded(name), encoded(value)),
            None => encoded(pair),
        });
        pairs.collect::<Vec<_>>().join("&")
    });
    let path = NormalPath::parse(parts.path, true).unwrap().upstream().to_owned();
    let query = query.as_deref().or(parts.query);
    let mut parts = Parts { path: &path, query, ..parts };
    // The scheme's case, spaces behind it, and what fills up base64, say nothing.
    if let Some(value) = parts.headers.get("authorization") {
        let text = value.as_bytes();
        let scheme = text.iter().position(|byte| *byte == b' ').unwrap_or(0);
        let mut respelled = text.to_ascii_uppercase();
        respelled[scheme..].copy_from_slice(&text[scheme..]);
        if respelled.get(scheme) == Some(&b' ') && scheme > 0 {
            respelled.insert(scheme, b' ');
        }
        parts.headers.insert("authorization", HeaderValue::from_bytes(&respelled).unwrap());
    }
    parts.headers.append("x-of-no-interest-here", HeaderValue::from_static("1"));
    assert_eq!(key_of_all(spec, &parts).as_ref().map(Option::as_ref), Ok(Some(key)));
}
