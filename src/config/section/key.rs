//! One part of a key: what a limit counts by, or what an upstream's `hash_key` has.

use crate::config::reader::{Item, Wrong, nearest};
use crate::request::key::{KeySource, KeySourceError};

const EXPECTED: &str = "expected `ip`, `path`, `method`, `host`, `route`, `header:NAME`, \
                        `cookie:NAME`, `query:NAME`, `param:NAME`, `cert`, `jwt:CLAIM` or `body:NAME`, or several of them \
                        with `|` between them";

/// A part of a key.
pub(super) fn key_source(item: &Item<'_>) -> Option<KeySource> {
    item.parse(EXPECTED, |text| {
        text.parse().map_err(|error| match error {
            KeySourceError::Unknown(_) => meant(text).map_or(Wrong::Expected, Wrong::Because),
            KeySourceError::Wrong(_, why) => Wrong::Other(why),
        })
    })
}

/// Names that other programs have for a part of a key, and the part. The first ones are nginx's variables.
const VARIABLES: [(&str, &str); 11] = [
    ("binary_remote_addr", "ip"),
    ("remote_addr", "ip"),
    ("remote_address", "ip"),
    ("client_ip", "ip"),
    ("address", "ip"),
    ("uri", "path"),
    ("request_uri", "path"),
    ("request_method", "method"),
    ("host", "host"),
    ("http_host", "host"),
    ("ssl_client_s_dn", "cert"),
];

/// The key part of such a name: `$http_x_api_key` is `header:x-api-key`.
fn of_variable(name: &str) -> Option<String> {
    let plain = name.to_lowercase().replace('-', "_");
    if let Some((_, part)) = VARIABLES.iter().find(|(variable, _)| *variable == plain) {
        return Some((*part).to_owned());
    }
    let header = |name: &str| format!("header:{}", name.replace('_', "-"));
    let cookie = |name: &str| format!("cookie:{name}");
    let query = |name: &str| format!("query:{name}");
    let part = name.strip_prefix("http_").map(header);
    let part = part.or_else(|| name.strip_prefix("cookie_").map(cookie));
    let part = part.or_else(|| name.strip_prefix("arg_").map(query))?;
    part.parse::<KeySource>().is_ok().then_some(part)
}

/// The key part that was perhaps meant: the one of an nginx variable, or the one whose spelling is nearest, with the
/// name that was written.
fn meant(text: &str) -> Option<String> {
    let variable = of_variable(text.strip_prefix('$').unwrap_or(text));
    if variable.is_some() || text.starts_with('$') {
        return variable.map(|part| format!("did you mean \"{part}\"?"));
    }
    let (kind, name) = text.split_once([':', '.', '=']).unwrap_or((text, "NAME"));
    let kinds = KeySource::SPELLINGS.map(|spelling| spelling.split(':').next().unwrap_or(spelling));
    let near = nearest(kind, kinds)?;
    if near == kind && text.get(kind.len()..).is_none_or(|rest| rest.starts_with(':')) {
        return None;
    }
    let named = KeySource::spelling(near).contains(':');
    let name = if named { format!(":{name}") } else { String::new() };
    Some(format!("did you mean `{near}{name}`?"))
}
