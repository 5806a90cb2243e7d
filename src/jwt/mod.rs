//! Tokens of clients: verified when a limit first reads a claim, by the keys of the `[jwt.NAME]` tables.
//!
//! `verify` reads a token and checks it, `keys` knows keys and shares them with all workers, and `cache` remembers the
//! tokens that were verified. Nothing here waits:
//! `server` reads the files and fetches the URLs that have the keys. Nothing here is logged: a token is a secret.

mod cache;
pub mod keys;
mod verify;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use http::HeaderMap;

use self::cache::{VerifiedToken, VerifiedTokens};
use self::keys::SharedKeys;
use self::verify::UnverifiedToken;
use crate::limit::time::Timestamp;
use crate::plan::OnInvalid;
use crate::request::key::{Claims, KeySource, Sole, TokenFault, TokenReading, token};

/// What one worker needs to verify tokens under one plan.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    /// The tables in the file's order.
    tables: Vec<Arc<SharedKeys>>,
    /// The headers and cookies that may have a token, each with the indexes of the tables that read it.
    places: Vec<(KeySource, Vec<usize>)>,
    verified: RefCell<VerifiedTokens>,
}

/// Why a token does not verify, and whether a table refuses requests with such a token.
type Invalid = (TokenFault, bool);

impl Tokens {
    /// The tables in the file's order.
    pub(crate) fn new(tables: &[Arc<SharedKeys>]) -> Self {
        let mut places: Vec<(KeySource, Vec<usize>)> = Vec::new();
        for (index, table) in tables.iter().enumerate() {
            let source = &table.spec.place;
            match places.iter_mut().find(|(known, _)| known == source) {
                Some((_, indexes)) => indexes.push(index),
                None => places.push((source.clone(), vec![index])),
            }
        }
        Self { tables: tables.to_vec(), places, verified: RefCell::default() }
    }

    /// Finds the token of a request and verifies it. `now` is the time of day. The first place with a token that
    /// verifies counts.
    pub(crate) fn read(&self, headers: &HeaderMap, now: Timestamp) -> TokenReading {
        let mut invalid: Option<Invalid> = None;
        for (place, (source, _)) in self.places.iter().enumerate() {
            let found = match token(source, headers) {
                Sole::Nowhere => continue,
                Sole::Repeated => return TokenReading::Repeated,
                Sole::Ambiguous => return TokenReading::Ambiguous,
                Sole::Once(token) => self.claims(place, &token, now),
            };
            match found {
                Ok(claims) => return TokenReading::Verified(claims),
                Err((fault, refuses)) => {
                    let (_, any_refuses) = invalid.get_or_insert((fault, false));
                    *any_refuses |= refuses;
                }
            }
        }
        match invalid {
            None => TokenReading::Absent,
            Some((fault, refuses)) => TokenReading::Invalid { fault, refuses },
        }
    }

    /// The claims of a token from this place. A token that was verified is remembered.
    fn claims(&self, place: usize, token: &[u8], now: Timestamp) -> Result<Rc<Claims>, Invalid> {
        let holds = |known: &VerifiedToken| {
            let version = self.tables[known.claims.table].version();
            known.place == place && known.until > now && known.version == version
        };
        if let Some(claims) = self.verified.borrow_mut().find(token, holds) {
            return Ok(claims);
        }
        let verified = self.verify(place, token, now)?;
        let claims = verified.claims.clone();
        self.verified.borrow_mut().insert(token.into(), verified);
        Ok(claims)
    }

    /// Verifies a token by the tables that have its issuer, or else by those that name none.
    ///
    /// # Errors
    /// The first table's reason.
    fn verify(&self, place: usize, token: &[u8], now: Timestamp) -> Result<VerifiedToken, Invalid> {
        let (_, indexes) = &self.places[place];
        let tables = || indexes.iter().map(|index| (*index, &self.tables[*index]));
        let refuses = |table: &SharedKeys| table.spec.invalid == OnInvalid::Reject;
        let any_refuses = || tables().any(|(_, table)| refuses(table));
        let unverified = UnverifiedToken::read(token).map_err(|fault| (fault, any_refuses()))?;
        let issuer = unverified.issuer();
        let names = |table: &SharedKeys| table.spec.issuer.as_deref() == issuer;
        let is_named = issuer.is_some() && tables().any(|(_, table)| names(table));
        let fits =
            |table: &SharedKeys| if is_named { names(table) } else { table.spec.issuer.is_none() };
        let mut invalid: Option<Invalid> = None;
        for (index, table) in tables().filter(|(_, table)| fits(table)) {
            let version = table.version();
            match unverified.verify(&table.spec, &table.current(), now) {
                Ok(until) => {
                    let claims = Rc::new(Claims { table: index, values: unverified.claims });
                    return Ok(VerifiedToken { claims, until, version, place });
                }
                Err(fault) => {
                    if matches!(fault, TokenFault::UnknownKey | TokenFault::NoKeys) {
                        table.is_missed.notify_one();
                    }
                    let (_, any_refuses) = invalid.get_or_insert((fault, false));
                    *any_refuses |= refuses(table);
                }
            }
        }
        Err(invalid.unwrap_or_else(|| (TokenFault::Issuer, any_refuses())))
    }
}

#[cfg(test)]
mod tests;
