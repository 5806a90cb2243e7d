//! Hits that another proxy reports after a request, or takes back.

use super::Throttle;
use super::open::{OpenDecision, only_peek_after_refusal};
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
    /// Takes or gives back the hits that were reported, whatever other limits say. Must come before the questions are
    /// prepared. The caller may leave meanwhile: the hits of all requests count all the same.
    pub(crate) async fn settle_reported<'o, 'p: 'o>(
        &self,
        opens: impl Iterator<Item = (&'o mut OpenDecision<'p>, Hits)>,
        now: Timestamp,
    ) {
        let mut opens: Vec<_> = opens.filter(|(_, hits)| *hits != Hits::Asked).collect();
        let claims = opens.iter_mut().flat_map(|(open, hits)| {
            let (claims, gives_back) = (open.claims().into_iter(), *hits == Hits::GivenBack);
            let is_meant = move |claim: &&mut Claim<'_>| match gives_back {
                true => !claim.spec.name.is_of_candidate(),
                false => claim.spec.reported && claim.ask.takes,
            };
            claims.filter(is_meant).map(move |claim| (claim, gives_back))
        });
        let mut claims: Vec<_> = claims.collect();
        if !claims.is_empty() {
            self.store.settle_reported(&mut claims, now).await;
        }
        opens.into_iter().for_each(|(open, _)| only_peek_after_refusal(&mut [open]));
    }
}
