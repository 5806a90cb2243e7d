//! A request's key for one limit, and the name of its bucket in Redis.

use crate::limit::algorithm::Algorithm;
use crate::limit::key::Key;
use crate::limit::stored::bucket_name;
pub(crate) use crate::limit::stored::{bounded, stored_text};
use crate::settings::{KeyDisplay, LimitSpec};

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

/// The name of a bucket in Redis, under `store.prefix`.
pub(crate) fn name_in_redis(
    prefix: &str,
    spec: &LimitSpec,
    key: &BucketKey,
    algorithm: &Algorithm,
) -> String {
    let key = (!spec.key.sources.is_empty()).then(|| key.shown());
    bucket_name(prefix, &spec.name, key, algorithm, spec.window.as_ref())
}

/// The key with this stored text. `None` if no key is stored so.
pub(crate) fn stored_key(text: &str) -> Option<Key> {
    text.strip_prefix("%~").map(Key::of_hash).or_else(|| Key::parse(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_redis_is_read_as_the_key() {
        for value in ["a", "%~", "a|b", &"a".repeat(300)] {
            let text = stored_text(&Key::of([Some(value.as_bytes())])).into_owned();
            assert_eq!(stored_key(&text).unwrap().as_str(), text);
        }
    }
}
