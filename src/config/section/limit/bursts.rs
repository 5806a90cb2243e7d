//! What one request can take at most: the burst of each bucket that a limit can have.

use crate::config::reader::{Item, Span};
use crate::limit::algorithm::Algorithm;
use crate::limit::rate::Rate;
use crate::plan::Figures;

/// The bursts that `cost` must fit; `None` where there is no bound.
pub(super) struct Bursts<'b> {
    /// The limit's own.
    pub(super) own: Option<u64>,
    /// Those of its overrides and of its candidate, with their places.
    pub(super) overrides: &'b [(Option<u64>, Span)],
}

impl Bursts<'_> {
    /// A cost above a burst can never be paid.
    pub(super) fn check(&self, item: &Item<'_>, cost: u64) {
        if let Some(burst) = self.own.filter(|burst| cost > *burst) {
            item.reject(format!("expected at most the burst, {burst}: more can never be paid"));
            return;
        }
        for (burst, span) in self.overrides {
            if let Some(burst) = burst.filter(|burst| cost > *burst) {
                let problem = item
                    .refuse(format!("expected at most the burst of all figures, here {burst}"))
                    .related(span.clone(), "more can never be paid here");
                item.cx.note(problem);
                return;
            }
        }
    }
}

/// The most that a request can take, where there is a bound.
pub(super) fn burst(figures: &Figures) -> Option<u64> {
    match figures {
        Figures::Unlimited | Figures::Limited(Algorithm::Closed) => None,
        // What Redis has is not known here.
        Figures::Limited(Algorithm::Redisson(params)) => params.rate().map(Rate::count),
        Figures::Limited(algorithm) => Some(algorithm.capacity()),
        Figures::Calendar(quota) => Some(quota.count.get()),
    }
}
