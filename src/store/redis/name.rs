//! What a bucket's key in Redis is called.

use crate::limit::algorithm::Algorithm;
use crate::limit::key::Key;
use crate::plan::{KeyDisplay, LimitSpec};

/// A bucket, by what its key in Redis is made of.
#[derive(Clone, Copy, Debug)]
pub struct BucketName<'n> {
    /// `store.prefix`.
    pub prefix: &'n str,
    /// The limit.
    pub spec: &'n LimitSpec,
    /// The key, plain.
    pub key: &'n Key,
}

impl BucketName<'_> {
    /// `PREFIX:{KEY}:LIMIT`, or `PREFIX:LIMIT` where the limit has no key.
    pub fn text(&self, algorithm: &Algorithm, display: KeyDisplay) -> String {
        let mut text = Vec::new();
        self.write(algorithm, display, &mut text);
        // Its parts are texts, so nothing is ever replaced.
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Appends the same text.
    pub(super) fn write(&self, algorithm: &Algorithm, display: KeyDisplay, into: &mut Vec<u8>) {
        let Self { prefix, spec, key } = self;
        into.extend_from_slice(prefix.as_bytes());
        into.push(b':');
        if !spec.key.sources.is_empty() {
            into.push(b'{');
            match display {
                KeyDisplay::Hashed if spec.key.has_secrets() => {
                    into.extend_from_slice(spec.key.hashed(key).as_bytes());
                }
                KeyDisplay::Hashed | KeyDisplay::Plain => into.extend_from_slice(key.as_bytes()),
            }
            into.extend_from_slice(b"}:");
        }
        into.extend_from_slice(spec.name.as_str().as_bytes());
        let Suffix(suffix) = Suffix::of(algorithm);
        into.extend_from_slice(suffix.as_bytes());
    }
}

/// What a key's name ends with, so that a limit whose algorithm changes begins anew.
struct Suffix(&'static str);

impl Suffix {
    fn of(algorithm: &Algorithm) -> Self {
        match algorithm {
            Algorithm::TokenBucket(_) => Self(""),
        }
    }
}
