//! The tokens that one worker has verified: a token costs its signature once.

use std::collections::HashMap;
use std::mem;
use std::rc::Rc;

use serde_json::{Map, Value};

use crate::limit::time::Timestamp;
use crate::request::key::Claims;

/// The most tokens that are remembered.
const MOST: usize = 10_000;

/// The most bytes of remembered tokens and claims, about.
const MOST_BYTES: usize = 32 << 20;

/// What a name or a value in claims takes beside its text, about.
const OVERHEAD: usize = 64;

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

/// What is known of a verified token.
#[derive(Debug)]
pub(super) struct VerifiedToken {
    pub(super) claims: Rc<Claims>,
    /// The time of day until which the token holds.
    pub(super) until: Timestamp,
    /// The version of the table's keys.
    pub(super) version: u64,
    /// The index of the place from which the token was read.
    pub(super) place: usize,
}

impl VerifiedTokens {
    /// The claims of a token that is remembered and still `holds`. One that does not hold is forgotten.
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
        let bytes = token.len() + size_of_all(&verified.claims.values);
        if self.newer.len() >= MOST / 2 || self.bytes + bytes > MOST_BYTES / 2 {
            self.older = mem::take(&mut self.newer);
            self.bytes = 0;
        }
        if bytes <= MOST_BYTES / 2 {
            self.bytes += bytes;
            self.newer.insert(token, verified);
        }
    }
}

fn size_of_all(claims: &Map<String, Value>) -> usize {
    claims.iter().map(|(name, value)| OVERHEAD + name.len() + size(value)).sum()
}

/// The bytes that a value takes, about.
fn size(value: &Value) -> usize {
    let inner = match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(size).sum(),
        Value::Object(values) => size_of_all(values),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    OVERHEAD + inner
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn verified(claims: Value) -> VerifiedToken {
        let Value::Object(values) = claims else { panic!("no object") };
        let claims = Rc::new(Claims { table: 0, values });
        VerifiedToken { claims, until: Timestamp::MAX, version: 0, place: 0 }
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
        let long = "x".repeat(1 << 20);
        for number in 0..100 {
            tokens.insert(token(number), verified(json!({ "sub": long })));
            assert!(tokens.newer.len() + tokens.older.len() <= MOST_BYTES >> 20);
        }
        let lists = json!({ "list": vec![0; MOST_BYTES / OVERHEAD / 2] });
        tokens.insert(token(1_000), verified(lists));
        assert!(tokens.find(&token(1_000), |_| true).is_none(), "it is too large by itself");
    }

    #[test]
    fn a_token_that_no_longer_holds_is_forgotten() {
        let mut tokens = VerifiedTokens::default();
        tokens.insert(token(0), verified(json!({})));
        assert!(tokens.find(&token(0), |_| false).is_none());
        assert!(tokens.newer.is_empty());
    }
}
