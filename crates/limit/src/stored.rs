//! How a bucket is called in Redis. Whoever writes a limit's name and a key alike uses the same bucket.

use std::borrow::Cow;

use crate::algorithm::Algorithm;
use crate::key::{Key, hash};
use crate::name::Name;

/// A longer key is replaced by its hash. Otherwise a client that chooses long paths could fill Redis's
/// memory with names.
const LONGEST: usize = 256;

/// `PREFIX:{KEY}:LIMIT`, or `PREFIX:LIMIT` if the limit has no key. Then follows `:ALGORITHM`, except for a token
/// bucket, then the length of windows that have buckets of their own, and then `:candidate` for a candidate's bucket.
pub fn bucket_name(
    prefix: &str,
    limit: &Name,
    key: Option<&Key>,
    algorithm: &Algorithm,
    window: Option<&Name>,
) -> String {
    let mut text = match key.map(stored_text) {
        None => [prefix, ":", limit.limit()].concat(),
        Some(key) => [prefix, ":{", &key, "}:", limit.limit()].concat(),
    };
    // A limit whose algorithm changes begins with new buckets.
    let is_plain = matches!(algorithm, Algorithm::TokenBucket(_));
    let algorithm = (!is_plain).then(|| algorithm.name());
    let candidate = limit.is_of_candidate().then_some("candidate");
    for part in [algorithm, window.map(Name::as_str), candidate].into_iter().flatten() {
        text.push(':');
        text.push_str(part);
    }
    text
}

/// The key that the bucket's name has: the key itself, or its hash if the key has more than 256 bytes.
pub fn bounded(key: &Key) -> Cow<'_, Key> {
    match key.as_bytes().len() <= LONGEST {
        true => Cow::Borrowed(key),
        false => Cow::Owned(Key::of_hash(&hash(key.as_bytes()))),
    }
}

/// The text of a key as it stands between the braces.
pub fn stored_text(key: &Key) -> Cow<'_, str> {
    match bounded(key) {
        Cow::Borrowed(key) => Cow::Borrowed(key.as_str()),
        Cow::Owned(key) => Cow::Owned(key.as_str().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_key_stands_in_redis_by_its_hash() {
        let written = |value: &str| stored_text(&Key::of([Some(value.as_bytes())])).into_owned();
        let longest = "a".repeat(LONGEST);
        assert_eq!(written(&longest), longest);
        let long = written(&format!("{longest}b"));
        assert_eq!(long.len(), 2 + 22, "{long}");
        assert!(long.starts_with("%~"));
        assert_ne!(long, written(&format!("{longest}c")));
        assert_ne!(written("%~"), "%~");
    }
}
