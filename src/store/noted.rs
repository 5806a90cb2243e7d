//! What a store notes of a request that takes, for the case that some of it comes back.

use std::sync::Arc;

use super::{BucketAsk, By};
use crate::limit::algorithm::Receipt;
use crate::limit::decide::{Ask, Decided, PerAsk};
use crate::limit::key::Key;
use crate::limit::patience::Patience;
use crate::limit::time::Now;
use crate::plan::LimitSpec;

/// Whether a store is asked what it notes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    Told,
    Untold,
}

impl Noted {
    /// Told where a limit may be settled, or may hold the request, which may then leave.
    pub(super) fn of(asks: &[BucketAsk<'_>]) -> Self {
        let may_matter =
            |ask: &BucketAsk<'_>| ask.ask.patience > Patience::NONE || ask.spec.is_settled();
        if asks.iter().any(may_matter) { Self::Told } else { Self::Untold }
    }
}

/// What is noted in this process of asks that were decided at `now`.
pub(super) fn receipts(asks: &[&BucketAsk<'_>], decided: &Decided, now: Now) -> PerAsk<Receipt> {
    let said = decided.decisions.iter().zip(&decided.writes);
    asks.iter()
        .zip(said)
        .map(|(ask, (decision, write))| match write {
            Some(taken) => ask.ask.receipt(decision.outcome, *taken, now),
            None => Receipt::NONE,
        })
        .collect()
}

/// What was taken for an ask, to be settled or given back perhaps.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The limit.
    pub spec: Arc<LimitSpec>,
    /// The request's key, plain.
    pub key: Key,
    /// What was asked. Its patience is the limit's: others may be held behind this request.
    pub ask: Ask,
    /// Who decided.
    pub by: By,
    /// What was noted.
    pub receipt: Receipt,
}
