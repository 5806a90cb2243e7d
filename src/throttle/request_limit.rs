//! A limit on its way through `throttle`: its claim, and the request's permit to wait for it.
//! `gather` makes the list of a request's limits.

use tokio::time::Instant;

use super::waiting::WaitingPermit;
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::decision::Outcome;
use crate::limit::name::Name;
use crate::observe::top_keys::KeyLabel;
use crate::store::Claim;

/// A limit that applies to a request, or the candidate of one.
pub(super) struct RequestLimit<'p> {
    pub(super) claim: Claim<'p>,
    /// The request's permit to wait for this limit.
    pub(super) waiting: Option<WaitingPermit>,
    /// Who the key is, as an override of the file says.
    pub(super) key_name: Option<&'p str>,
    /// The plan that has the figures.
    pub(super) tier: Option<&'p Name>,
    /// Whether the limit's `ban` may ban the key. A key that is banned, or has another override, may not be.
    pub(super) may_be_banned: bool,
    /// Whether the key is banned.
    pub(super) is_banned: bool,
}

impl<'p> RequestLimit<'p> {
    /// A limit on whose key nothing more is known.
    pub(super) fn of(claim: Claim<'p>) -> Self {
        let (may_be_banned, is_banned) = (false, false);
        Self { claim, waiting: None, key_name: None, tier: None, may_be_banned, is_banned }
    }

    pub(super) fn mode(&self) -> Mode {
        self.claim.ask.mode
    }

    /// The request's key, as people see it.
    pub(super) fn label(&self) -> KeyLabel<'_> {
        KeyLabel { text: self.claim.key.shown().as_bytes(), name: self.key_name }
    }

    /// What the limit decided by itself.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.claim.decision().map(|decision| decision.outcome)
    }

    /// Whether the limit lets nothing pass, ever.
    pub(super) fn is_closed(&self) -> bool {
        self.claim.ask.algorithm == Algorithm::Closed
    }

    /// Whether the limit rejects the request.
    pub(super) fn rejects(&self) -> bool {
        self.mode() == Mode::Enforce && self.outcome().is_some_and(|outcome| !outcome.passes())
    }

    /// Whether the store need not be asked.
    pub(super) fn is_decided(&self) -> bool {
        self.claim.decision().is_some()
    }

    /// The moment at which this limit lets the request go. The request waits since `begin`. `None` where the limit lets
    /// it go at once.
    pub(super) fn goes(&self, begin: Instant) -> Option<Instant> {
        match self.claim.decision()?.outcome {
            Outcome::Delay(wait) => Some(self.claim.goes().unwrap_or(begin + wait)),
            Outcome::Allow | Outcome::Reject { .. } => None,
        }
    }
}
