//! `[store]`.

use std::time::Duration;

use redis::IntoConnectionInfo;

use super::server::to_usize;
use crate::config::fields::MAX_KEYS;
use crate::config::file::{Item, Section, Zero};
use crate::plan::{OnStoreError, StoreLocation, StoreSpec};

/// The spellings of what becomes of a request whose limit cannot ask its store.
pub(super) const STORE_ERRORS: &[(&str, OnStoreError)] = &[
    ("local", OnStoreError::Local),
    ("allow", OnStoreError::Allow),
    ("reject", OnStoreError::Reject),
];

const URL: &str = "expected \"memory:\", \"redis://HOST\", \"redis://USER:PASSWORD@HOST:PORT/DB\" \
                   or \"redis+unix:///PATH\"";

const ENCODE: &str = "in a user or password write `/` as %2F, `@` as %40, `:` as %3A, `?` as %3F, \
                      `#` as %23 and `%` as %25";

const LONGEST_PREFIX: usize = 64;

/// The store, and what its limits do without it unless they say otherwise.
pub(super) fn build(mut section: Section<'_>) -> (StoreSpec, OnStoreError) {
    let spec = StoreSpec {
        location: section
            .take("url")
            .and_then(|item| location(&item.secret()))
            .unwrap_or(StoreLocation::Memory),
        prefix: section
            .take("prefix")
            .and_then(|item| prefix(&item))
            .unwrap_or_else(|| "tidegate".to_owned()),
        timeout: section.duration("timeout", Zero::Refused, Duration::from_millis(100)),
        max_keys: to_usize(section.whole("max_keys", 1..=MAX_KEYS, 1_000_000)),
    };
    let on_error = section.word("on_error", STORE_ERRORS, OnStoreError::Local);
    if let Some(item) = section.take("lease") {
        item.word(&[("off", ())], &["auto"]);
    }
    section.finish();
    (spec, on_error)
}

fn location(item: &Item<'_>) -> Option<StoreLocation> {
    let text = item.text_as(URL)?;
    let url = text.text.as_str();
    if url == "memory:" {
        return Some(StoreLocation::Memory);
    }
    let scheme = url.split(':').next().unwrap_or_default();
    match scheme {
        "redis" | "redis+unix" | "valkey" | "valkey+unix" if url.into_connection_info().is_ok() => {
            Some(StoreLocation::Redis(url.to_owned()))
        }
        "rediss" | "valkeys" | "redis-sentinel" | "redis-cluster" => {
            item.fault(format!("a store at `{scheme}:` is not supported yet"), URL);
            None
        }
        // The usual reason: a generated password with characters that mean something in a URL.
        "redis" | "valkey" if url.contains('@') => {
            item.cx.note(text.refuse(URL).help(ENCODE));
            None
        }
        "memory" => {
            text.refuse_here(format!("{URL}; did you mean \"memory:\"?"));
            None
        }
        _ => {
            text.refuse_here(URL);
            None
        }
    }
}

fn prefix(item: &Item<'_>) -> Option<String> {
    const EXPECTED: &str = "expected 1 to 64 letters, digits, `_`, `.`, `-` or `:`";
    let text = item.text_as(EXPECTED)?;
    let fits = (1..=LONGEST_PREFIX).contains(&text.text.len())
        && text
            .text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-' | b':'));
    text.parsed(fits.then(|| text.text.clone()), EXPECTED)
}
