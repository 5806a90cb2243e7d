//! Names that an operator gives: of limits, upstreams, routes.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The end of a candidate's name, after the limit's name.
const CANDIDATE: &str = ":candidate";

/// One to 64 characters of `A-Z a-z 0-9 _ . -`: safe in a key, a header and a label without quoting. The
/// name of a limit's candidate ends in `:candidate`, and no operator can give such a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    text: Arc<str>,
    fingerprint: u64,
}

impl Name {
    /// `None` if `text` is no name.
    pub fn new(text: &str) -> Option<Self> {
        let fits = (1..=64).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
        fits.then(|| Self::of(text))
    }

    /// The name of this limit's candidate.
    pub fn of_candidate(&self) -> Self {
        Self::of(&format!("{}{CANDIDATE}", self.limit()))
    }

    fn of(text: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Self { text: text.into(), fingerprint: hasher.finish() }
    }

    /// A hash of the name, valid in this process alone. It is assumed that two names have different hashes: a collision
    /// needs an attack, and only the operator gives names.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// For a candidate's name the name of its limit, for any other name the name itself.
    pub fn limit(&self) -> &str {
        self.text.strip_suffix(CANDIDATE).unwrap_or(&self.text)
    }

    /// Whether this is the name of a candidate.
    pub fn is_of_candidate(&self) -> bool {
        self.text.ends_with(CANDIDATE)
    }

    /// The name as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// `unnamed`.
impl Default for Name {
    fn default() -> Self {
        Self::of("unnamed")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The hash of the text, as `Borrow<str>` demands.
impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["a", "per-client", "v1.2_x", &"x".repeat(64)] {
            assert!(Name::new(good).is_some(), "{good}");
        }
        for bad in ["", "a b", "a/b", "ä", "a|b", "{a}", &"x".repeat(65), "a:candidate"] {
            assert!(Name::new(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_candidate_is_called_after_its_limit() {
        let limit = Name::new("per-client").unwrap();
        let candidate = limit.of_candidate();
        assert_eq!(candidate.as_str(), "per-client:candidate");
        assert_eq!((limit.limit(), candidate.limit()), ("per-client", "per-client"));
        assert_eq!((limit.is_of_candidate(), candidate.is_of_candidate()), (false, true));
    }
}
