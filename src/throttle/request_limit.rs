//! A limit on its way through `throttle`: its claim, and the request's permit to wait for it.
//! `gather` makes the list of a request's limits.

use tokio::time::Instant;

use super::waiting::WaitingPermit;
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::decision::Outcome;
use crate::observe::top_keys::KeyLabel;
use crate::store::Claim;

/// A limit that applies to a request, or the candidate of one.
pub(super) struct RequestLimit<'p> {
    pub(super) claim: Claim<'p>,
    /// The request's permit to wait for this limit.
    pub(super) waiting: Option<WaitingPermit>,
    /// Who the key is, as an override of the file says.
    pub(super) key_name: Option<&'p str>,
}

impl RequestLimit<'_> {
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
