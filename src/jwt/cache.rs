//! The tokens that one worker has verified, and those that have just failed. The signature of a token is checked once.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::mem;
use std::net::IpAddr;
use std::rc::Rc;

use crate::limit::time::Timestamp;
use crate::request::key::{Claims, PartFault, TokenFault, TokenReading};

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

/// The most tokens that are remembered as failed, of all clients.
const MOST_FAILED: usize = 10_000;

/// The most wrong signatures of one client that are checked within a second.
const MOST_WRONG: u32 = 100;

/// The tokens that have failed within this second of the day, and under these keys. Anybody can make such tokens, and to
/// check a signature costs as much as hundreds of rejections.
#[derive(Debug, Default)]
pub(super) struct FailedTokens {
    /// The second, and the version of the keys.
    moment: (u64, u64),
    /// By a hash with a random key, so nobody can make a token that is taken for another one.
    readings: HashMap<u64, TokenReading>,
    hasher: RandomState,
    /// The number of wrong signatures, by client.
    wrong: HashMap<IpAddr, u32>,
}

impl FailedTokens {
    /// How a token from the place with this index counts without a check. `None`: it is to be checked. `version` is that
    /// of all keys.
    pub(super) fn find(
        &mut self,
        token: (usize, &[u8]),
        client: Option<IpAddr>,
        now: Timestamp,
        version: u64,
    ) -> Option<TokenReading> {
        let moment = (now.as_micros() / 1_000_000, version);
        if self.moment != moment {
            self.readings.clear();
            self.wrong.clear();
            self.moment = moment;
        }
        let known = self.readings.get(&self.hasher.hash_one(token)).cloned();
        let wrong = client.and_then(|client| self.wrong.get(&client)).copied().unwrap_or_default();
        // It may be right. So it does not count as none, which could be a way out of a limit: it is refused.
        let refused = || TokenReading::Refused(PartFault::Invalid(TokenFault::TooMany));
        known.or_else(|| (wrong >= MOST_WRONG).then(refused))
    }

    /// Remembers how a token counts that has failed.
    pub(super) fn insert(&mut self, token: (usize, &[u8]), reading: TokenReading) {
        if self.readings.len() < MOST_FAILED {
            self.readings.insert(self.hasher.hash_one(token), reading);
        }
    }

    /// A signature of this client was wrong.
    pub(super) fn count_wrong(&mut self, client: Option<IpAddr>) {
        if let Some(client) = client {
            *self.wrong.entry(client).or_default() += 1;
        }
    }
}

#[cfg(test)]
impl FailedTokens {
    pub(super) fn len(&self) -> usize {
        self.readings.len()
    }
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
        let claims = Rc::new(Claims { table: 0, issuer: None, values });
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
