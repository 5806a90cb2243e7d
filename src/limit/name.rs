//! Names that an operator gives: of limits, upstreams, routes.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// What the name of a limit's candidate has behind the limit's.
const CANDIDATE: &str = ":candidate";

/// One to 64 of `A-Z a-z 0-9 _ . -`: safe in a key, a header and a label as it stands. Or that of a
/// limit's candidate, which no operator can give.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    text: Arc<str>,
    fingerprint: u64,
}

impl Name {
    /// `None` where `text` is no name.
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

    /// Differs from that of other names, in this process. Operators give names, so nobody aims at
    /// another's.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The name of the limit whose candidate this is, or else this one.
    pub fn limit(&self) -> &str {
        self.text.strip_suffix(CANDIDATE).unwrap_or(&self.text)
    }

    /// Whether a candidate is called so.
    pub fn is_of_candidate(&self) -> bool {
        self.text.ends_with(CANDIDATE)
    }

    /// The name as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// As its text, which stands for it in a table.
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
