//! Names that an operator gives: of limits, upstreams, routes.

use std::fmt;
use std::sync::Arc;

/// One to 64 of `A-Z a-z 0-9 _ . -`: safe in a key, a header and a label as it stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// `None` where `text` is no name.
    pub fn new(text: &str) -> Option<Self> {
        let fits = (1..=64).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
        fits.then(|| Self(text.into()))
    }

    /// The name as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
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
        for bad in ["", "a b", "a/b", "ä", "a|b", "{a}", &"x".repeat(65)] {
            assert!(Name::new(bad).is_none(), "{bad}");
        }
    }
}
