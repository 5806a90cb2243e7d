//! A request's key for one limit, and the name of its bucket in Redis.

use std::borrow::Cow;

use crate::limit::algorithm::Algorithm;
use crate::limit::key::Key;
use crate::request::key::hash;
use crate::settings::{KeyDisplay, LimitSpec};

/// A longer key is replaced by its hash. Otherwise a client that chooses long paths could fill Redis's
/// memory with names.
const LONGEST: usize = 256;

/// A request's key for one limit, in its two forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketKey {
    plain: Key,
    /// `Some` if the key has secret values, and they are shown as hashes.
    hashed: Option<Box<Key>>,
}

impl BucketKey {
    /// The key of a request for this limit. `display` is `log.keys`: whether logs and stores have
    /// its secret values hashed.
    pub fn new(spec: &LimitSpec, plain: Key, display: KeyDisplay) -> Self {
        let hashed = display.hides(spec).then(|| Box::new(spec.key.hashed(&plain)));
        Self { plain, hashed }
    }

    /// The values that the request has.
    pub(crate) fn plain(&self) -> &Key {
        &self.plain
    }

    /// The key in the form that logs, stores and the admin endpoint use.
    pub fn shown(&self) -> &Key {
        self.hashed.as_deref().unwrap_or(&self.plain)
    }
}

/// A key that is shown as it is: it has no secret values, or hashes of them.
impl From<Key> for BucketKey {
    fn from(plain: Key) -> Self {
        Self { plain, hashed: None }
    }
}

/// The parts of a bucket's key in Redis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketName<'n> {
    /// `store.prefix`.
    pub(crate) prefix: &'n str,
    pub(crate) spec: &'n LimitSpec,
    pub(crate) key: &'n BucketKey,
}

impl BucketName<'_> {
    /// `PREFIX:{KEY}:LIMIT`, or `PREFIX:LIMIT` if the limit has no key. Then follows `:ALGORITHM`,
    /// except for a token bucket, and then `:candidate` for a candidate's bucket.
    pub(crate) fn text(&self, algorithm: &Algorithm) -> String {
        let Self { prefix, spec, key } = self;
        let key = stored_text(key.shown());
        let limit = spec.name.limit();
        let mut text = match spec.key.sources.is_empty() {
            true => [*prefix, ":", limit].concat(),
            false => [*prefix, ":{", &key, "}:", limit].concat(),
        };
        // A limit whose algorithm changes begins with new buckets.
        let is_plain = matches!(algorithm, Algorithm::TokenBucket(_));
        let algorithm = (!is_plain).then(|| algorithm.name());
        let window = spec.window.as_ref().map(|window| window.as_str());
        let candidate = spec.name.is_of_candidate().then_some("candidate");
        for part in [algorithm, window, candidate].into_iter().flatten() {
            text.push(':');
            text.push_str(part);
        }
        text
    }
}

/// The key that the bucket's name has: the shown key, or its hash if the shown key is long.
pub(crate) fn bounded(key: &Key) -> Cow<'_, Key> {
    match key.as_bytes().len() <= LONGEST {
        true => Cow::Borrowed(key),
        false => Cow::Owned(Key::of_hash(&hash(key.as_bytes()))),
    }
}

/// The text of a shown key as it stands between the braces.
pub(crate) fn stored_text(key: &Key) -> Cow<'_, str> {
    match bounded(key) {
        Cow::Borrowed(key) => Cow::Borrowed(key.as_str()),
        Cow::Owned(key) => Cow::Owned(key.as_str().to_owned()),
    }
}

/// The key with this stored text. `None` if no key is stored so.
pub(super) fn stored_key(text: &str) -> Option<BucketKey> {
    let of_long = text.strip_prefix("%~").map(Key::of_hash);
    of_long.or_else(|| Key::parse(text)).map(BucketKey::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: &str) -> String {
        stored_text(&Key::of([Some(value.as_bytes())])).into_owned()
    }

    #[test]
    fn a_long_key_stands_in_redis_by_its_hash() {
        let longest = "a".repeat(LONGEST);
        assert_eq!(written(&longest), longest);
        let long = written(&format!("{longest}b"));
        assert_eq!(long.len(), 2 + 22, "{long}");
        assert!(long.starts_with("%~"));
        assert_ne!(long, written(&format!("{longest}c")));
        assert_ne!(written("%~"), "%~");
        for text in [longest, long, written("%~"), written("a|b")] {
            assert_eq!(stored_key(&text).unwrap().shown().as_str(), text);
        }
    }
}
