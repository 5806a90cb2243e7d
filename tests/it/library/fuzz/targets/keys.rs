//! A limit's key. The first line of the input has the key's sources, separated by commas. The second line
//! has method, target and client address. Each other line is a header field.

use std::collections::HashSet;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tidegate::limit::key::Key;
use tidegate::request::key::{ClientPrefixes, KeyError, KeySource, KeySpec, Missing, Token, View};
use tidegate::request::path::NormalPath;
use tidegate::request::route::{PathParams, Pattern};

use super::canonical;

/// What a key is read from.
struct Parts<'i> {
    method: Method,
    path: &'i str,
    query: Option<&'i str>,
    client: IpAddr,
    headers: HeaderMap,
}

impl<'i> Parts<'i> {
    fn with(&self, query: Option<&'i str>, headers: HeaderMap) -> Self {
        Self { method: self.method.clone(), query, headers, ..*self }
    }
}

pub(super) fn check(input: &[u8]) {
    let mut lines = input.split(|byte| *byte == b'\n');
    let Some(sources) = lines.next().and_then(sources) else { return };
    let Some(parts) = lines.next().and_then(|line| parts(line, lines)) else { return };
    let spec = |missing| KeySpec {
        sources: sources.clone().into(),
        missing,
        prefixes: ClientPrefixes::default(),
    };
    let Some(Ok(Some(key))) = key(&spec(Missing::Shared), &parts) else {
        for missing in [Missing::Shared, Missing::Skip, Missing::Reject] {
            // Two values, or one with two meanings, are never a key.
            assert!(matches!(
                key(&spec(missing), &parts),
                None | Some(Err(KeyError::Repeated(_)
                    | KeyError::Ambiguous(_)
                    | KeyError::Undecodable(_)))
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
            is_trimmed(source, value.as_deref(), expected.as_deref());
        }
    }
    hashed_is_stable(&spec(Missing::Shared), &sources, &key);
    no_second_bucket(&spec(Missing::Shared), &parts, &key);
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
        methods: &HashSet::new(),
        path: &path,
        query: parts.query,
        method: &parts.method,
        host: b"api.example",
        route: "route",
        client: parts.client,
        headers: &parts.headers,
        params: if is_matched { PathParams::of(&pattern, &path) } else { PathParams::none() },
        cert: None,
        token: Token::NONE,
        body: None,
        id: None,
        has_end: true,
        may_wait: true,
        cost: None,
        counted: None,
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
    let value =
        match source {
            KeySource::Method => Some(match parts.method.as_str() {
                usual @ ("GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS"
                | "QUERY") => usual.into(),
                _ => "other".into(),
            }),
            KeySource::Host => Some(b"api.example".into()),
            KeySource::Route => Some(b"route".into()),
            KeySource::Cert | KeySource::Jwt(_) => None,
            KeySource::Path => {
                let path = NormalPath::parse(parts.path, true).unwrap();
                Some(path.matching().into())
            }
            KeySource::Ip => Some(match canonical(parts.client) {
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

/// The value is the one that was read, or this without blanks at its edges.
fn is_trimmed(source: &KeySource, value: Option<&[u8]>, read: Option<&[u8]>) {
    let (Some(value), Some(read)) = (value, read) else {
        return assert_eq!(value, read, "{source}");
    };
    if matches!(source, KeySource::Header(_) | KeySource::Query(_)) {
        let is_graphic = |byte: &u8| byte.is_ascii_graphic();
        let start = read.iter().position(is_graphic).unwrap_or(read.len());
        let core = &read[start..read.iter().rposition(is_graphic).map_or(start, |last| last + 1)];
        let has = |text: &[u8], part: &[u8]| {
            part.is_empty() || text.windows(part.len()).any(|found| found == part)
        };
        assert!(has(read, value) && has(value, core), "{source}: {value:?} of {read:?}");
        assert!(std::str::from_utf8(value).map_or(true, |text| text.trim() == text), "{value:?}");
        return;
    }
    assert_eq!(value, read, "{source}");
}

/// Whoever writes words or blanks around a value, or another spelling of its name, gets no other bucket.
fn no_second_bucket(spec: &KeySpec, parts: &Parts<'_>, key: &Key) {
    let is_refused_or_the_same =
        |parts: &Parts<'_>, invented: &dyn std::fmt::Debug| match key_of_all(spec, parts) {
            Ok(found) => assert_eq!(found.as_ref(), Some(key), "{invented:?}"),
            Err(error) => assert!(matches!(
                error,
                KeyError::Repeated(_) | KeyError::Ambiguous(_) | KeyError::Undecodable(_)
            )),
        };
    for source in spec.sources.iter().flat_map(alternatives) {
        match source {
            KeySource::Header(name) => {
                let Some(value) = parts.headers.get(name).map(|value| value.as_bytes()) else {
                    continue;
                };
                if !value.is_ascii() || value.trim_ascii().is_empty() {
                    continue;
                }
                let alias = name.as_str().replace('-', "_");
                if alias != name.as_str() {
                    let mut headers = parts.headers.clone();
                    headers.insert(HeaderName::try_from(alias).unwrap(), "n1".parse().unwrap());
                    is_refused_or_the_same(&parts.with(parts.query, headers), name);
                }
                let is_credentials = name == "authorization";
                let has_scheme = value.trim_ascii().iter().any(|byte| matches!(byte, b' ' | b'\t'));
                let mut invented = vec![];
                for blank in [
                    &b" "[..],
                    b"\t",
                    b"\xa0",
                    b"\x85\x85",
                    b"\xc2\xa0",
                    b"\xe3\x80\x80",
                    b"\xef\xbb\xbf",
                ] {
                    invented.extend([[blank, value].concat(), [value, blank].concat()]);
                    if is_credentials {
                        invented.extend(
                            [&b"n1"[..], b"Bearer"].map(|word| [word, blank, value].concat()),
                        );
                    }
                    if is_credentials && has_scheme {
                        invented.push([value, blank, b"n1"].concat());
                    }
                }
                for value in invented {
                    let mut headers = parts.headers.clone();
                    headers.insert(name, HeaderValue::from_bytes(&value).unwrap());
                    is_refused_or_the_same(&parts.with(parts.query, headers), &value);
                }
            }
            KeySource::Query(name) => {
                let query = parts.query.unwrap_or_default();
                for (before, behind) in [
                    ("+", ""),
                    ("%00", ""),
                    ("%E3%80%80", ""),
                    ("", "[]"),
                    ("", "%5B0]"),
                    ("", "%00x"),
                ] {
                    let pairs = query.split('&').map(|pair| {
                        let end = pair.find('=').unwrap_or(pair.len());
                        match decoded(&pair[..end]) == name.as_bytes() {
                            true => format!("{before}{}{behind}{}", &pair[..end], &pair[end..]),
                            false => pair.to_owned(),
                        }
                    });
                    let query = pairs.collect::<Vec<_>>().join("&");
                    let query = parts.query.map(|_| query.as_str());
                    is_refused_or_the_same(&parts.with(query, parts.headers.clone()), &query);
                }
            }
            _ => {}
        }
    }
}

fn alternatives(source: &KeySource) -> &[KeySource] {
    match source {
        KeySource::FirstOf(sources) => sources,
        source => std::slice::from_ref(source),
    }
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
