//! The name of a bucket's key in Redis.

use std::borrow::Cow;

use crate::limit::algorithm::Algorithm;
use crate::limit::key::Key;
use crate::plan::{KeyDisplay, LimitSpec};
use crate::request::key::hash;

/// A longer key is replaced by its hash. Otherwise a client that chooses long paths could fill Redis's
/// memory with names.
const LONGEST: usize = 256;

/// The parts of a bucket's key in Redis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketName<'n> {
    /// `store.prefix`.
    pub(crate) prefix: &'n str,
    pub(crate) spec: &'n LimitSpec,
    /// The request's key, not hashed.
    pub(crate) key: &'n Key,
}

impl BucketName<'_> {
    /// `PREFIX:{KEY}:LIMIT`, or `PREFIX:LIMIT` where the limit has no key. Then follows `:ALGORITHM`,
    /// except for a token bucket, and then `:candidate` for a candidate's bucket.
    pub(crate) fn text(&self, algorithm: &Algorithm, display: KeyDisplay) -> String {
        let mut text = Vec::new();
        self.write(algorithm, display, &mut text);
        // All parts are UTF-8, so nothing is replaced.
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Appends what [`Self::text`] returns.
    pub(super) fn write(&self, algorithm: &Algorithm, display: KeyDisplay, into: &mut Vec<u8>) {
        let Self { prefix, spec, key } = self;
        into.extend_from_slice(prefix.as_bytes());
        into.push(b':');
        if !spec.key.sources.is_empty() {
            into.push(b'{');
            into.extend_from_slice(stored_key(spec, key, display).as_bytes());
            into.extend_from_slice(b"}:");
        }
        into.extend_from_slice(spec.name.limit().as_bytes());
        // A limit whose algorithm changes begins with new buckets.
        if !matches!(algorithm, Algorithm::TokenBucket(_)) {
            into.push(b':');
            into.extend_from_slice(algorithm.name().as_bytes());
        }
        if spec.name.is_of_candidate() {
            into.extend_from_slice(b":candidate");
        }
    }
}

/// The text of a key as it stands between the braces.
pub(crate) fn stored_key<'k>(spec: &LimitSpec, key: &'k Key, display: KeyDisplay) -> Cow<'k, str> {
    let text = match shown_key(spec, key, display) {
        Cow::Borrowed(key) => Cow::Borrowed(key.as_str()),
        Cow::Owned(key) => Cow::Owned(key.as_str().to_owned()),
    };
    match text.len() <= LONGEST {
        true => text,
        // No short key begins with `%~`: a percent sign in a key is followed by a hex digit or a dash.
        false => Cow::Owned(format!("%~{}", hash(text.as_bytes()))),
    }
}

/// A key for logs and for Redis: with its secret values hashed, unless the operator wants plain keys.
pub(crate) fn shown_key<'k>(spec: &LimitSpec, key: &'k Key, display: KeyDisplay) -> Cow<'k, Key> {
    match display {
        KeyDisplay::Hashed if spec.key.has_secrets() => Cow::Owned(spec.key.hashed(key)),
        KeyDisplay::Hashed | KeyDisplay::Plain => Cow::Borrowed(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: &str) -> String {
        let spec = LimitSpec::new(crate::limit::name::Name::new("a").unwrap());
        stored_key(&spec, &Key::of([Some(value.as_bytes())]), KeyDisplay::Hashed).into_owned()
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
    }
}
