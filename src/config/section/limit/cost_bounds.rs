//! The most that one request can take: the burst of each bucket that a limit can have. `cost` must not be
//! larger.

use crate::config::reader::{Item, Span};
use crate::limit::algorithm::Algorithm;
use crate::limit::rate::{MAX_TOKENS, Rate};
use crate::plan::Figures;

/// The bursts that bound `cost`. A burst of `None` means no bound.
pub(super) struct CostBounds<'b> {
    /// The burst of the limit itself.
    pub(super) own: Option<u64>,
    /// The most that the algorithm takes for one request. Only a sliding log has this bound.
    pub(super) of_one_request: Option<u64>,
    /// The bursts of the limit's overrides and of its candidate, with their places.
    pub(super) overrides: &'b [(Option<u64>, Span)],
}

/// Why a sliding log bounds the cost of one request.
const ENTRIES: &str = "a sliding log keeps an entry for each token; `algorithm = \"sliding-window\"` \
                       counts any cost";

impl CostBounds<'_> {
    /// `max` of a `cost`: the most that a header or a response may name. The outer `None` means a wrong
    /// `max`. Without a `max`, the lower one of `by_default` and the algorithm's own bound.
    pub(super) fn max(
        &self,
        written: Option<&Item<'_>>,
        by_default: Option<u64>,
    ) -> Option<Option<u64>> {
        let Some(item) = written else {
            let bounds = self.of_one_request.into_iter().chain(by_default);
            return Some(bounds.min());
        };
        let max = item.whole(1..=MAX_TOKENS)?;
        if let Some(most) = self.of_one_request.filter(|most| max > *most) {
            item.reject(format!("expected at most {most}: {ENTRIES}"));
        }
        Some(Some(max))
    }

    /// Notes an error for a cost above a burst: the cost could never be paid.
    pub(super) fn check(&self, item: &Item<'_>, cost: u64) {
        if let Some(most) = self.of_one_request.filter(|most| cost > *most) {
            item.reject(format!("expected at most {most}: {ENTRIES}"));
            return;
        }
        if let Some(burst) = self.own.filter(|burst| cost > *burst) {
            item.reject(format!("expected at most the burst, {burst}: more can never be paid"));
            return;
        }
        for (burst, span) in self.overrides {
            if let Some(burst) = burst.filter(|burst| cost > *burst) {
                item.reject(format!("expected at most the burst of all figures, here {burst}"))
                    .related(span, "more can never be paid here");
                return;
            }
        }
    }
}

/// The most that a request can take. `None` where there is no bound, or where the bound is not known.
pub(super) fn burst(figures: &Figures) -> Option<u64> {
    match figures {
        Figures::Unlimited | Figures::Limited(Algorithm::Closed) => None,
        // Without a rate in the file, the figures are known only to Redis.
        Figures::Limited(Algorithm::Redisson(params)) => params.rate().map(Rate::count),
        Figures::Limited(algorithm) => Some(algorithm.capacity()),
        Figures::Calendar(quota) => Some(quota.count.get()),
    }
}
