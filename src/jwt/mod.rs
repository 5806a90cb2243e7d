//! Tokens of clients: verified when a limit first reads a claim, by the keys of the `[jwt.NAME]` tables.
//!
//! `verify` reads a token and checks it, `keys` knows keys and shares them with all workers, and `cache` remembers the
//! tokens that were verified. Nothing here waits:
//! `server` reads the files and fetches the URLs that have the keys. Nothing here is logged: a token is a secret.

mod cache;
pub mod keys;
mod verify;

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::HeaderMap;

use self::cache::{FailedTokens, VerifiedToken, VerifiedTokens};
use self::keys::SharedKeys;
use self::verify::UnverifiedToken;
use crate::limit::time::Timestamp;
use crate::request::key::{Claims, KeySource, PartFault, TokenFault, TokenReading, token};
use crate::settings::OnInvalid;

/// What one worker needs to verify tokens under the same settings.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    /// The tables in the file's order.
    tables: Vec<Arc<SharedKeys>>,
    /// The headers and cookies that may have a token.
    places: Vec<KeySource>,
    verified: RefCell<VerifiedTokens>,
    failed: RefCell<FailedTokens>,
}

impl Tokens {
    /// The tables in the file's order.
    pub(crate) fn new(tables: &[Arc<SharedKeys>]) -> Self {
        let mut places = Vec::new();
        for SharedKeys { spec, .. } in tables.iter().map(|table| &**table) {
            if !places.contains(&spec.place) {
                places.push(spec.place.clone());
            }
        }
        let (verified, failed) = Default::default();
        Self { tables: tables.to_vec(), places, verified, failed }
    }

    /// Finds the token of a client's request, or of nobody's, and verifies it. `now` is the time of day. The first place
    /// with a token that verifies counts.
    pub(crate) fn read(
        &self,
        client: Option<IpAddr>,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> TokenReading {
        let mut reading = TokenReading::Absent;
        for (index, place) in self.places.iter().enumerate() {
            let found = match token(place, headers) {
                Ok(Some(token)) => self.claims((index, place), &token, client, now),
                Ok(None) => continue,
                Err(fault) => return TokenReading::Refused(fault),
            };
            match found {
                Ok(claims) => return TokenReading::Verified(claims),
                Err(_) if matches!(reading, TokenReading::Refused(_)) => {}
                Err(invalid) => reading = invalid,
            }
        }
        reading
    }

    /// The claims of a token from this place. A token that was verified is remembered, and for a moment one that failed.
    fn claims(
        &self,
        (index, place): (usize, &KeySource),
        token: &[u8],
        client: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<Rc<Claims>, TokenReading> {
        let holds = |known: &VerifiedToken| {
            let table = &self.tables[known.claims.table];
            table.spec.place == *place && known.until > now && known.version == table.version()
        };
        if let Some(claims) = self.verified.borrow_mut().find(token, holds) {
            return Ok(claims);
        }
        let version = self.tables.iter().map(|table| table.version()).sum();
        let one = (index, token);
        if let Some(known) = self.failed.borrow_mut().find(one, client, now, version) {
            return Err(known);
        }
        let verified = self.verify(place, token, client, now).inspect_err(|failed| {
            self.failed.borrow_mut().insert(one, failed.clone());
        })?;
        let claims = verified.claims.clone();
        // Without keys no signature was checked, and anybody could fill the memory.
        if self.tables[claims.table].spec.keys.is_some() {
            self.verified.borrow_mut().insert(token.into(), verified);
        }
        Ok(claims)
    }

    /// Verifies a token by the tables that have its issuer. If there are none, by the tables that name no issuer.
    ///
    /// # Errors
    /// Returns how the token counts if it does not verify. The first table's reason counts.
    fn verify(
        &self,
        place: &KeySource,
        token: &[u8],
        client: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<VerifiedToken, TokenReading> {
        let tables = self.tables.iter().enumerate();
        let mut tables: Vec<_> = tables.filter(|(_, table)| table.spec.place == *place).collect();
        let unverified = UnverifiedToken::read(token).map_err(|fault| invalid(fault, &tables))?;
        let is_of =
            |issuer: Option<&str>, table: &SharedKeys| table.spec.issuer.as_deref() == issuer;
        let is_known = |issuer: &&str| tables.iter().any(|(_, table)| is_of(Some(*issuer), table));
        let issuer = unverified.issuer().filter(is_known);
        let is_for_none = invalid(TokenFault::Issuer, &tables);
        tables.retain(|(_, table)| is_of(issuer, table));
        let mut first = None;
        for (index, table) in &tables {
            let version = table.version();
            match unverified.verify(&table.spec, &table.current(), now) {
                Ok(until) => {
                    let issuer = table.spec.named_of(self.tables.len());
                    let values = unverified.claims;
                    let claims = Rc::new(Claims { table: *index, issuer, values });
                    return Ok(VerifiedToken { claims, until, version });
                }
                Err(fault) => {
                    // A new key may have the name of an old one.
                    let is_missed =
                        [TokenFault::UnknownKey, TokenFault::NoKeys, TokenFault::Signature];
                    if is_missed.contains(&fault) {
                        table.is_missed.notify_one();
                    }
                    if fault == TokenFault::Signature {
                        self.failed.borrow_mut().count_wrong(client);
                    }
                    // By the keys that are missing, the token may be right.
                    match fault {
                        TokenFault::NoKeys => first = Some(fault),
                        fault => _ = first.get_or_insert(fault),
                    }
                }
            }
        }
        Err(first.map_or(is_for_none, |fault| invalid(fault, &tables)))
    }
}

/// How a token that does not verify counts, by `invalid` of these tables.
fn invalid(fault: TokenFault, tables: &[(usize, &Arc<SharedKeys>)]) -> TokenReading {
    match tables.iter().any(|(_, table)| table.spec.invalid == OnInvalid::Reject) {
        true => TokenReading::Refused(PartFault::Invalid(fault)),
        false => TokenReading::Ignored(fault),
    }
}

#[cfg(test)]
mod tests;
