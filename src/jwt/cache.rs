//! The tokens that one worker has verified. The signature of a token is checked once.

use std::collections::HashMap;
use std::mem;
use std::rc::Rc;

use crate::limit::time::Timestamp;
use crate::request::key::Claims;

/// The most tokens that are remembered.
const MOST: usize = 10_000;

/// The most bytes of remembered tokens. Their claims usually take about twice as much.
const MOST_BYTES: usize = 16 << 20;

/// Verified tokens, found by the whole token. The standard library hashes with a random key, so nobody can fill one
/// bucket of the table.
///
/// The tokens are in two halves. A token that is used moves to the newer half. When the newer half is full, the older
/// half is forgotten: it has the tokens that were not used for longest.
#[derive(Debug, Default)]
pub(super) struct VerifiedTokens {
    newer: HashMap<Box<[u8]>, VerifiedToken>,
    older: HashMap<Box<[u8]>, VerifiedToken>,
    /// The bytes in `newer`.
    bytes: usize,
}

/// A verified token, without its text.
#[derive(Debug)]
pub(super) struct VerifiedToken {
    pub(super) claims: Rc<Claims>,
    /// The time of day until which the token is valid.
    pub(super) until: Timestamp,
    /// The version of the table's keys.
    pub(super) version: u64,
}

impl VerifiedTokens {
    /// The claims of a token that is remembered and still `holds`. A token that does not hold is forgotten.
    pub(super) fn find(
        &mut self,
        token: &[u8],
        holds: impl Fn(&VerifiedToken) -> bool,
    ) -> Option<Rc<Claims>> {
        if let Some(found) = self.newer.get(token)
            && holds(found)
        {
            return Some(found.claims.clone());
        }
        let (token, found) =
            self.newer.remove_entry(token).or_else(|| self.older.remove_entry(token))?;
        let claims = holds(&found).then(|| found.claims.clone())?;
        self.insert(token, found);
        Some(claims)
    }

    /// Remembers a token.
    pub(super) fn insert(&mut self, token: Box<[u8]>, verified: VerifiedToken) {
        if self.newer.len() >= MOST / 2 || self.bytes + token.len() > MOST_BYTES / 2 {
            self.older = mem::take(&mut self.newer);
            self.bytes = 0;
        }
        self.bytes += token.len();
        self.newer.insert(token, verified);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn verified(claims: Value) -> VerifiedToken {
        let Value::Object(values) = claims else { panic!("no object") };
        let claims = Rc::new(Claims { table: 0, values });
        VerifiedToken { claims, until: Timestamp::MAX, version: 0 }
    }

    fn token(number: usize) -> Box<[u8]> {
        format!("token {number}").into_bytes().into()
    }

    #[test]
    fn the_tokens_that_are_used_stay_and_their_number_is_bounded() {
        let mut tokens = VerifiedTokens::default();
        for number in 0..5 * MOST {
            assert!(tokens.find(&token(number), |_| true).is_none());
            tokens.insert(token(number), verified(json!({ "sub": number })));
            let used = tokens.find(&token(0), |_| true).expect("it is used all the time");
            assert_eq!(used.value("sub").as_deref(), Some("0"));
            assert!(tokens.newer.len() + tokens.older.len() <= MOST);
        }
        assert!(tokens.find(&token(1), |_| true).is_none(), "it was never used again");
        assert!(tokens.find(&token(5 * MOST - 2), |_| true).is_some());
    }

    #[test]
    fn the_bytes_are_bounded() {
        let mut tokens = VerifiedTokens::default();
        for number in 0..MOST {
            let long = format!("{number:010000}").into_bytes();
            tokens.insert(long.into(), verified(json!({})));
            let known = tokens.newer.keys().chain(tokens.older.keys());
            assert!(known.map(|token| token.len()).sum::<usize>() <= MOST_BYTES);
        }
    }

    #[test]
    fn a_token_that_no_longer_holds_is_forgotten() {
        let mut tokens = VerifiedTokens::default();
        tokens.insert(token(0), verified(json!({})));
        assert!(tokens.find(&token(0), |_| false).is_none());
        assert!(tokens.newer.is_empty());
    }
}
