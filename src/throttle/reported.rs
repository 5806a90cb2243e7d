//! Hits that another proxy reports after a request, or takes back.

use super::Throttle;
use super::open::{Open, only_look_after_refusal};
use crate::limit::decide::PerAsk;
use crate::limit::time::Timestamp;
use crate::store::Claim;

/// What the hits of a call are for a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Hits {
    /// The cost of a request that is asked about.
    #[default]
    Asked,
    /// A limit with `reported = true` takes them whatever remains.
    Reported,
    /// All limits give them back.
    GivenBack,
}

impl Throttle {
    /// Takes or gives back the hits that were reported, whatever other limits say. Must come before the
    /// question is prepared.
    pub(crate) async fn settle_reported(&self, open: &mut Open<'_>, hits: Hits, now: Timestamp) {
        if hits == Hits::Asked {
            return;
        }
        let is_meant = |claim: &&mut Claim<'_>| match hits {
            Hits::Reported => claim.spec.reported && claim.ask.takes,
            _ => !claim.spec.name.is_of_candidate(),
        };
        let claims: PerAsk<_> = open.claims().into_iter().filter(is_meant).collect();
        for claim in claims {
            match hits {
                Hits::GivenBack => self.store.give_back_reported(claim, now).await,
                _ => self.store.take_reported(claim, now).await,
            }
        }
        only_look_after_refusal(&mut [open]);
    }
}
