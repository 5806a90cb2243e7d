//! `[store]`.

use redis::IntoConnectionInfo;

use crate::config::reader::{Item, Section, Wrong};
use crate::config::setting::{Settings, Spelled, at, fields, parsed, plain, read, spellings};
use crate::config::shape::Fallback::Value;
use crate::config::shape::{Kind, Shape, field};
use crate::plan::{OnStoreError, StoreLocation, StoreSpec};

type Spec = StoreSpec;

/// `[store]`.
pub(crate) static STORE: Shape =
    Shape::new("[store]", || fields(SETTINGS)).later(&["tls", "prefetch"]);

#[rustfmt::skip]
pub(crate) static SETTINGS: Settings<Spec> = &[
    &parsed(at!("url", location), Kind::Text, Value("\"memory:\""),
        "or `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, `redis+unix:///PATH`",
        |item| location(&item.clone().secret())).restart(),
    &parsed(at!(prefix), Kind::Text, Value("\"tidegate\""), "of every key in Redis", prefix).restart(),
    &plain(at!(timeout), Kind::TIME_ABOVE_ZERO, Value("\"100ms\""), "for one decision"),
    &field("on_error", Kind::Word(spellings::<OnStoreError>), Value("\"local\""),
        "Redis out of reach: this process's own buckets decide, all pass, or 503"),
    &plain(at!(max_keys), Kind::whole(1, 1_000_000_000), Value("1000000"),
        "buckets in this process's memory"),
    &field("lease", Kind::Word(|| vec!["off"]), Value("\"off\""),
        "whether tokens are fetched in batches"),
];

impl Spelled for OnStoreError {
    const WORDS: &'static [(&'static str, Self)] =
        &[("local", Self::Local), ("allow", Self::Allow), ("reject", Self::Reject)];
}

const URL: &str = "expected \"memory:\", \"redis://HOST\", \"redis://USER:PASSWORD@HOST:PORT/DB\" \
                   or \"redis+unix:///PATH\"";

const ENCODE: &str = "in a user or password write `/` as %2F, `@` as %40, `:` as %3A, `?` as %3F, \
                      `#` as %23 and `%` as %25";

const LONGEST_PREFIX: usize = 64;

/// The store, and its `on_error`: the default `on_store_error` of all limits.
pub(crate) fn build(mut section: Section<'_>) -> (StoreSpec, OnStoreError) {
    let mut spec = StoreSpec::default();
    read(SETTINGS, &mut section, &mut spec);
    let on_error = section.value("on_error", |item| item.word(OnStoreError::WORDS, &[]));
    if let Some(item) = section.take("lease") {
        item.word(&[("off", ())], &["auto"]);
    }
    section.finish();
    (spec, on_error.unwrap_or(OnStoreError::Local))
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
        // The usual reason: a generated password has characters with a meaning in a URL.
        "redis" | "valkey" if url.contains('@') => {
            text.refuse(URL).help(ENCODE);
            None
        }
        "memory" => {
            text.refuse(format!("{URL}; did you mean \"memory:\"?"));
            None
        }
        _ => {
            text.refuse(URL);
            None
        }
    }
}

fn prefix(item: &Item<'_>) -> Option<String> {
    item.parse("expected 1 to 64 letters, digits, `_`, `.`, `-` or `:`", |text| {
        let may = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-' | b':');
        let fits = (1..=LONGEST_PREFIX).contains(&text.len()) && text.bytes().all(may);
        fits.then(|| text.to_owned()).ok_or(Wrong::Expected)
    })
}
