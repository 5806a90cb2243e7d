//! A path's normal form. The input is the path.

use std::cell::LazyCell;
use std::thread::LocalKey;

use http::{HeaderMap, Method};
use tidegate::request::path::NormalPath;
use tidegate::request::route::{Conditions, Pattern, RouteTable};

use super::Choices;

const ROUTES: [&str; 10] = [
    "/",
    "/a/b",
    "/a/{id}",
    "/a/{id}/b",
    "/a/{*rest}",
    "/admin/{*rest}",
    "/{one}/b/",
    "/{one}/{two}/c",
    "/a%20b",
    "/admin",
];

thread_local! {
    static TABLE: LazyCell<RouteTable> = LazyCell::new(|| {
        let routes = ROUTES.map(|route| (route.parse().unwrap(), Conditions::default()));
        RouteTable::new(routes.to_vec())
    });
    static LOOSE: LazyCell<RouteTable> = LazyCell::new(|| {
        let routes = ROUTES.map(|route| {
            (route.parse::<Pattern>().unwrap().loosened(), Conditions::default())
        });
        RouteTable::new(routes.to_vec())
    });
}

pub(super) fn check(input: &[u8]) {
    let Ok(path) = std::str::from_utf8(input) else { return };
    let mut choices = Choices::of(input);
    for merge_slashes in [true, false] {
        let expected = reference(path);
        let Ok(normal) = NormalPath::parse(path, merge_slashes) else {
            assert_eq!(expected, None, "{path:?} is refused");
            let other = respelled(path, merge_slashes, &mut choices);
            assert!(NormalPath::parse(&other, merge_slashes).is_err(), "{path:?} and {other:?}");
            continue;
        };
        let (upstream, matching) = (normal.upstream(), normal.matching());
        assert_eq!(expected.as_deref(), Some(matching), "{path:?}");
        is_normal(upstream, matching, merge_slashes);
        let merged = NormalPath::parse(path, true).unwrap();
        assert_eq!(squeezed(upstream), merged.upstream(), "{path:?}");

        // Normal forms are their own normal forms, and the upstream's is read as the same resource.
        let again = NormalPath::parse(upstream, merge_slashes).unwrap();
        assert_eq!((again.upstream(), again.matching()), (upstream, matching), "{path:?}");
        let again = NormalPath::parse(matching, merge_slashes).unwrap();
        assert_eq!((again.upstream(), again.matching()), (matching, matching), "{path:?}");

        let other = respelled(path, merge_slashes, &mut choices);
        let respelled = NormalPath::parse(&other, merge_slashes).unwrap();
        assert_eq!(respelled.upstream(), upstream, "{path:?} and {other:?}");
        assert_eq!(respelled.matching(), matching, "{path:?} and {other:?}");

        let routes = [&normal, &again, &respelled].map(|path| route(path, &TABLE));
        assert_eq!(routes, [slow_route(matching); 3], "{path:?} and {other:?}");

        // The loose form has no case and no slash at the end, and goes upstream as it came.
        let slashed = matching.strip_suffix('/').map_or(format!("{matching}/"), str::to_owned);
        let slashed = if slashed.is_empty() { "/".to_owned() } else { slashed };
        let others = [slashed.to_ascii_uppercase(), matching.to_ascii_lowercase(), slashed];
        let loose = normal.clone().loosened();
        assert_eq!(loose.upstream(), upstream, "{path:?}");
        for other in &others {
            let other = NormalPath::parse(other, merge_slashes).unwrap().loosened();
            assert_eq!(other.matching(), loose.matching(), "{path:?} and {other:?}");
            assert_eq!(route(&other, &LOOSE), route(&loose, &LOOSE), "{path:?} and {other:?}");
        }
        let again = NormalPath::parse(loose.matching(), merge_slashes).unwrap().loosened();
        assert_eq!(again.matching(), loose.matching(), "{path:?}");
    }
}

fn route(
    path: &NormalPath<'_>,
    table: &'static LocalKey<LazyCell<RouteTable>>,
) -> Option<&'static str> {
    table.with(|table| {
        let found = table.find(path, &Method::GET, "a", &HeaderMap::new()).ok()?;
        Some(ROUTES[found])
    })
}

/// The route of a path in its matching form: of all routes that match, the one whose first differing segment
/// says more.
fn slow_route(matching: &str) -> Option<&'static str> {
    let path: Vec<&str> = matching[1..].split('/').collect();
    let rank = |segment: &&str| match segment.as_bytes() {
        [b'{', b'*', ..] => 2,
        [b'{', ..] => 1,
        _ => 0,
    };
    let fits = |route: &&&str| {
        let wanted: Vec<&str> = route[1..].split('/').collect();
        let is_rest = wanted.last().is_some_and(|last| rank(last) == 2);
        let length = if is_rest { path.len() >= wanted.len() } else { path.len() == wanted.len() };
        length
            && wanted.iter().zip(&path).all(|(wanted, segment)| match rank(wanted) {
                0 => wanted == segment,
                1 => !segment.is_empty(),
                _ => true,
            })
    };
    let ranks = |route: &&&str| -> Vec<i32> { route[1..].split('/').map(|it| rank(&it)).collect() };
    ROUTES.iter().filter(fits).min_by_key(ranks).copied()
}

/// Without doubled slashes.
fn squeezed(path: &str) -> String {
    let mut squeezed = path.to_owned();
    while squeezed.contains("//") {
        squeezed = squeezed.replace("//", "/");
    }
    squeezed
}

fn is_normal(upstream: &str, matching: &str, merge_slashes: bool) {
    for form in [upstream, matching] {
        assert!(form.starts_with('/'), "{form:?}");
        assert!(!form.contains(['\\', '?', '#', ' ']), "{form:?}");
        assert!(!form.chars().any(|c| c.is_ascii_control()), "{form:?}");
        for segment in form.split('/') {
            let name = segment.split(';').next().unwrap();
            assert!(!matches!(name, "." | ".."), "{form:?}");
        }
        for (at, _) in form.match_indices('%') {
            let digits = form.get(at + 1..at + 3).expect("two digits");
            let byte = u8::from_str_radix(digits, 16).expect("two digits");
            assert_eq!(digits, format!("{byte:02X}"), "{form:?}");
            assert!(!is_unreserved(byte) && !matches!(byte, b'/' | b'\\' | 0), "{form:?}");
        }
    }
    assert!(!matching.contains("//") && !matching.contains(';') && matching.is_ascii());
    assert!(!merge_slashes || !upstream.contains("//"), "{upstream:?}");
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// The matching form, in the slow and obvious way: decode each segment, then walk over the segments.
/// `None` where the path is ambiguous.
fn reference(path: &str) -> Option<String> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut ends_with_slash = false;
    for segment in path.strip_prefix('/')?.split('/') {
        let (mut name, mut parameters) = (Vec::new(), false);
        let mut whole = Vec::new();
        let mut bytes = segment.bytes();
        while let Some(byte) = bytes.next() {
            let byte = match byte {
                b'%' => {
                    let digits = [bytes.next()?, bytes.next()?];
                    if !digits.iter().all(u8::is_ascii_hexdigit) {
                        return None;
                    }
                    let digits = std::str::from_utf8(&digits).unwrap();
                    let byte = u8::from_str_radix(digits, 16).unwrap();
                    if b"/\\\0".contains(&byte) {
                        return None;
                    }
                    byte
                }
                b'\\' | b'?' | b'#' | 0..=b' ' | 0x7f => return None,
                b';' => {
                    parameters = true;
                    byte
                }
                byte => byte,
            };
            whole.push(byte);
            if !parameters {
                name.push(byte);
            }
        }
        ends_with_slash = false;
        if whole == b"." || whole == b".." {
            ends_with_slash = true;
            if whole == b".." {
                names.pop();
            }
        } else if whole.starts_with(b".;") || whole.starts_with(b"..;") {
            return None;
        } else if name.is_empty() {
            ends_with_slash = true;
        } else {
            names.push(name);
        }
    }
    let mut form = String::new();
    for name in &names {
        form.push('/');
        for byte in name {
            match byte {
                byte if is_unreserved(*byte) || b"!$&'()*+,=:@".contains(byte) => {
                    form.push(char::from(*byte));
                }
                byte => form.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    if ends_with_slash {
        form.push('/');
    }
    Some(form)
}

/// Another spelling of the same path for the upstream too: unreserved characters encoded or not, digits
/// in upper or lower case, segments that are left again.
fn respelled(path: &str, merge_slashes: bool, choices: &mut Choices) -> String {
    let mut other = String::new();
    let mut rest = path;
    while let Some(char) = rest.chars().next() {
        let escape = rest.get(..3).filter(|text| {
            char == '%' && text.bytes().skip(1).all(|digit| digit.is_ascii_hexdigit())
        });
        let (taken, byte) = match escape {
            Some(text) => (text, u8::from_str_radix(&text[1..], 16).unwrap()),
            None => (&rest[..char.len_utf8()], char as u8),
        };
        rest = &rest[taken.len()..];
        let is_known = escape.is_some() || char.is_ascii();
        match choices.below(4) {
            // What stands behind a broken percent sign stays as it is.
            _ if char == '%' && escape.is_none() => {
                other.push('%');
                other.push_str(rest);
                return other;
            }
            0 if is_known && is_unreserved(byte) => other.push(char::from(byte)),
            1 if is_known && is_unreserved(byte) => other.push_str(&format!("%{byte:02x}")),
            2 if is_known && is_unreserved(byte) => other.push_str(&format!("%{byte:02X}")),
            1 if escape.is_some() => other.push_str(&taken.to_lowercase()),
            2 if escape.is_some() => other.push_str(&taken.to_uppercase()),
            1 if taken == "/" && merge_slashes => other.push_str("//"),
            2 if taken == "/" => other.push_str("/./"),
            3 if taken == "/" => other.push_str("/x/%2e%2E/"),
            _ => other.push_str(taken),
        }
    }
    other
}
