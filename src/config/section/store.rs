//! `[store]`.

use super::tls::{self, UPSTREAM_TLS};
use crate::config::reader::{
    Item, Kind, Mask, Section, SettingList, Shape, Value, Words, at, field, fields, read, setting,
    spellings, words,
};
use crate::settings::{OnStoreError, RedisLocation, RedisUrl, StoreLocation, StoreSpec};

type Spec = StoreSpec;

pub(crate) static STORE: Shape = Shape::new("[store]", || fields(SETTINGS));

#[rustfmt::skip]
pub(crate) static SETTINGS: SettingList<Spec> = &[
    field("url", Kind::Form(r"memory:|(redis|valkey)[a-z+-]*:.+"), Value("\"memory:\""),
        "or `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, `redis+unix:///PATH[?db=DB&user=USER&pass=PASSWORD]`, `redis-sentinel://[USER:PASSWORD@]HOST[:PORT],…/MASTER[/DB]`, `redis-cluster://[USER:PASSWORD@]HOST[:PORT],…`; by TLS `rediss://`, `rediss-sentinel://` and `rediss-cluster://`; in USER and PASSWORD `/`, `?`, `#`, `@` and `%` are percent-encoded").restart().masked(Mask::Shown(without_login)),
    field("tls", Kind::Table(&UPSTREAM_TLS), Words("the machine's authorities"),
        "how a Redis that is reached by TLS is verified, and the certificate for it").restart(),
    setting(at!(prefix, prefix), Kind::Text, Value("\"tidegate\""), "the beginning of every key in Redis").restart(),
    setting(at!(timeout), Kind::TIME_ABOVE_ZERO, Value("\"100ms\""), "for one decision"),
    field("on_error", Kind::Word(spellings::<OnStoreError>), Value("\"local\""),
        "Redis out of reach: this process's own buckets decide, all pass, or 503"),
    setting(at!(max_keys), Kind::Whole(1, 1_000_000_000), Value("1000000"),
        "the most buckets in this process's memory; when the memory is full, limits with more than their share lose buckets first"),
];

words!(OnStoreError { "local" => Local, "allow" => Allow, "reject" => Reject });

const URL: &str = "expected \"memory:\", \"redis://HOST\", \"redis://USER:PASSWORD@HOST:PORT/DB\", \
                   \"rediss://HOST\", \"redis+unix:///PATH\", \"redis-sentinel://HOST,HOST/MASTER\" or \
                   \"redis-cluster://HOST,HOST\"";

const ENCODE: &str = "in a user or password write `/` as %2F, `@` as %40, `:` as %3A, `?` as %3F, \
                      `#` as %23 and `%` as %25";

const NO_QUERY: &str = "write the database as in redis://HOST/2, and user and password in front of the host; in them \
                        write `?` as %3F and `#` as %23";

const NO_PASSWORD: &str = "in front of `@` stands USER:PASSWORD, or :PASSWORD for the default user";

const DATABASE: &str = "the number of a database is from 0 to 9999; a cluster has none";

const SOCKET: &str = "as in redis+unix:///PATH?db=2&user=USER&pass=PASSWORD, by clear text; in these write `#` as %23, \
                      `?` as %3F, `&` as %26, `+` as %2B and `%` as %25";

/// How the schemes of a Redis begin.
const SCHEMES: [&str; 2] = ["redis", "valkey"];

const LONGEST_PREFIX: usize = 64;

/// `[store]` as it was read.
pub(crate) struct StoreDraft {
    pub(crate) spec: StoreSpec,
    /// Whether `url` could be read. If not, the store that was meant is unknown.
    pub(crate) is_known: bool,
    /// The default `on_store_error` of all limits.
    pub(crate) on_error: OnStoreError,
}

pub(crate) fn build(mut section: Section<'_>) -> StoreDraft {
    let location = location(&mut section);
    let is_known = location.is_some();
    let location = location.unwrap_or(StoreLocation::Memory);
    let spec = StoreSpec { location, ..StoreSpec::default() };
    let on_error = section.plain("on_error").unwrap_or(OnStoreError::Local);
    StoreDraft { spec: read(SETTINGS, section, spec), is_known, on_error }
}

/// `url` and `tls`. `None` if the URL is wrong.
fn location(section: &mut Section<'_>) -> Option<StoreLocation> {
    let item = section.take("url").map(Item::secret);
    let url = item.as_ref().map_or(Some(None), store_url);
    let span = item.map_or(0..0, |item| item.span);
    let servers = match &url {
        Some(Some(RedisUrl { location, secure: true })) => location.topology.servers(),
        _ => &[],
    };
    let secure: Vec<_> = servers.iter().map(|server| (server, &span)).collect();
    let unused =
        "`url` does not begin with `rediss://`, `rediss-sentinel://` or `rediss-cluster://`";
    let tls = tls::towards(section, &secure, Some(unused), &tls::SystemRoots::new());
    Some(url?.map_or(StoreLocation::Memory, |RedisUrl { location, .. }| {
        StoreLocation::Redis(Box::new(RedisLocation { tls, ..location }))
    }))
}

/// The URL of a Redis, or `Some(None)` for `memory:`. `None` if the URL is wrong.
fn store_url(item: &Item<'_>) -> Option<Option<RedisUrl>> {
    let text = item.text_as(URL)?;
    let url = text.as_str();
    if url == "memory:" {
        return Some(None);
    }
    if let Ok(url) = url.parse() {
        return Some(Some(url));
    }
    let scheme = url.split(':').next().unwrap_or_default();
    let near = if scheme == "memory" { "; did you mean \"memory:\"?" } else { "" };
    let problem = item.reject(format!("{URL}{near}"));
    if let Some(help) =
        SCHEMES.iter().find_map(|it| scheme.strip_prefix(it)).and_then(|_| help(url))
    {
        problem.help(help);
    }
    None
}

/// What is probably wrong with the URL of a Redis.
fn help(url: &str) -> Option<&'static str> {
    let (scheme, rest) = url.split_once(':')?;
    let (login, server) = rest.rsplit_once('@').unwrap_or(("", rest));
    let login = login.trim_start_matches('/');
    match (login, server) {
        _ if scheme.ends_with("+unix") => Some(SOCKET),
        // The usual reason: a generated password has characters with a meaning in a URL.
        (login, _) if login.contains(['/', '?', '#']) => Some(ENCODE),
        (_, server) if server.contains(['?', '#']) => Some(NO_QUERY),
        (login, _)
            if !login.is_empty() && login.split_once(':').is_none_or(|it| it.1.is_empty()) =>
        {
            Some(NO_PASSWORD)
        }
        (_, server) if server.trim_start_matches('/').contains('/') => Some(DATABASE),
        _ => rest.contains('@').then_some(ENCODE),
    }
}

/// A store's URL with a mask in place of user and password. The query of a socket's URL may have them too: it
/// is left out.
fn without_login(url: &str) -> String {
    // Readers of URLs pass over these characters, so `redis:\n//` is `redis://`.
    let url: String = url.chars().filter(|c| !matches!(c, '\t' | '\n' | '\r')).collect();
    let Some((scheme, rest)) = url.split_once(':') else { return url };
    let (slashes, rest) = rest.split_at(if rest.starts_with("//") { 2 } else { 0 });
    // The path of a socket may have an `@`. In all other URLs, the text before the last `@` is a login.
    let end = match (scheme.ends_with("+unix"), slashes) {
        (true, "") => 0,
        (true, _) => rest.find(['/', '?', '#']).unwrap_or(rest.len()),
        (false, _) => rest.len(),
    };
    let (login, rest) = match rest[..end].rfind('@') {
        Some(at) => ("********@", &rest[at + 1..]),
        None => ("", rest),
    };
    let server = rest.split(['?', '#']).next().unwrap_or_default();
    format!("{scheme}:{slashes}{login}{server}")
}

fn prefix(item: &Item<'_>) -> Option<String> {
    item.form("expected 1 to 64 letters, digits, `_`, `.`, `-` or `:`", |text| {
        let may = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-' | b':');
        let fits = (1..=LONGEST_PREFIX).contains(&text.len()) && text.bytes().all(may);
        fits.then(|| text.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_says_what_is_wrong_with_a_url() {
        for (url, expected) in [
            ("redis://default:1234#rest@host", Some(ENCODE)),
            ("rediss://default:1234?rest@host", Some(ENCODE)),
            ("redis-cluster://default:12/34@host", Some(ENCODE)),
            ("redis://default:p@[::1", Some(ENCODE)),
            ("redis://host?db=2", Some(NO_QUERY)),
            ("redis-sentinel://u:p@host/main?db=2", Some(NO_QUERY)),
            ("valkey-cluster://u:p@host#x", Some(NO_QUERY)),
            ("redis://password@host", Some(NO_PASSWORD)),
            ("redis-cluster://user:@host", Some(NO_PASSWORD)),
            ("redis://:p@host/-1", Some(DATABASE)),
            ("redis-sentinel://host/main/99999", Some(DATABASE)),
            ("redis-cluster://host/1", Some(DATABASE)),
            ("redis+unix:///run/a.sock?password=p", Some(SOCKET)),
            ("redis://", None),
        ] {
            assert_eq!(help(url), expected, "{url}");
            assert!(url.parse::<RedisUrl>().is_err(), "{url}");
        }
    }

    #[test]
    fn a_url_is_shown_without_user_and_password() {
        for (url, shown) in [
            ("memory:", "memory:"),
            ("redis://host:1/2", "redis://host:1/2"),
            ("redis://:pw@host", "redis://********@host"),
            ("rediss://user:p@w@host:1/2", "rediss://********@host:1/2"),
            ("redis-sentinel://u:pw@a:1,b:2/main/0", "redis-sentinel://********@a:1,b:2/main/0"),
            ("redis+unix:///run/a@b.sock?db=1&pass=pw", "redis+unix:///run/a@b.sock"),
            ("redis+unix:/run/a@b.sock?pass=pw&db=1", "redis+unix:/run/a@b.sock"),
            ("valkey+unix:/run/a.sock?pass=p@w", "valkey+unix:/run/a.sock"),
            ("valkey+unix:///run/a.sock#pw", "valkey+unix:///run/a.sock"),
            ("redis+unix://u:pw@/run/a.sock?user=u", "redis+unix://********@/run/a.sock"),
            ("valkeys://u:p/w@host#pw", "valkeys://********@host"),
            ("redis:\n//u:pw@host", "redis://********@host"),
            ("redis:u:pw@host", "redis:********@host"),
            ("redis-cluster://u:p?w@a,b", "redis-cluster://********@a,b"),
        ] {
            assert_eq!(without_login(url), shown, "{url}");
        }
    }
}
