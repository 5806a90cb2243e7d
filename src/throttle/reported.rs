//! Hits that another proxy reports after a request, or takes back.

use super::open::Open;
use crate::limit::decide::PerAsk;
use crate::limit::time::Timestamp;
use crate::store::{Claim, Store};

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

/// Takes or gives back what was reported, whatever other limits say.
pub(super) async fn settle(open: &mut Open<'_>, hits: Hits, store: &Store, now: Timestamp) {
    let is_meant = |claim: &&mut Claim<'_>| match hits {
        Hits::Asked => false,
        Hits::Reported => claim.spec.reported && claim.ask.takes,
        Hits::GivenBack => !claim.spec.name.is_of_candidate(),
    };
    let claims: PerAsk<_> = open.claims().into_iter().filter(is_meant).collect();
    for claim in claims {
        match hits {
            Hits::GivenBack => store.give_back_reported(claim, now).await,
            _ => store.take_reported(claim, now).await,
        }
    }
}
