//! Several requests that are decided together: all pass, or none takes anything. They come in one call of another proxy.

use super::gather::gather;
use super::open::{Open, leave_closed};
use super::request_limit::RequestLimit;
use super::{Admission, Quotas, Refused, Throttle, decision_at_once, over, quota};
use crate::limit::Mode;
use crate::limit::decide::{Ask, PerAsk};
use crate::limit::decision::Verdict;
use crate::limit::rate::{Cost, MAX_TOKENS};
use crate::limit::time::Timestamp;
use crate::limit::waiting::MaxWait;
use crate::observe::trace::LimitAnswers;
use crate::plan::Plan;
use crate::request::key::View;
use crate::store::{Claim, Moment};

/// One of several requests that are decided together.
pub(crate) struct TogetherRequest<'r> {
    pub(crate) view: View<'r>,
    /// The indexes of its limits in the plan.
    pub(crate) limits: &'r [u32],
    /// If the request has a span, what the span says of the limits.
    pub(crate) traced: Option<&'r mut LimitAnswers>,
}

impl Throttle {
    /// Lets all of these requests pass, or none. Asks the store at most once. No request is held: one that would be
    /// held is refused. Returns for each request what its own limits say. If a key or a cost of one cannot be read, or
    /// Redis does not decide, no limit is asked.
    pub(crate) async fn admit_together<'p>(
        &self,
        plan: &'p Plan,
        requests: &mut [TogetherRequest<'_>],
        now: Timestamp,
    ) -> Vec<(Quotas<'p>, Result<Admission, Refused<'p>>)> {
        let clocks = self.store.both(now);
        let mut opens: Vec<Open<'p>> = Vec::with_capacity(requests.len());
        let mut answers = Vec::with_capacity(requests.len());
        for TogetherRequest { view, limits, .. } in &*requests {
            let (specs, mut open) = (plan.limits_at(limits), Open::default());
            let rule = plan.tiers.as_deref();
            let read = gather(specs, view, rule, &self.store, clocks, &mut open.limits);
            let takes = view.cost != Some(0);
            // A limit in shadow has nothing to say to a request that takes nothing.
            open.limits.retain(|limit| takes || limit.mode() == Mode::Enforce);
            for RequestLimit { claim: Claim { ask, .. }, .. } in &mut open.limits {
                (ask.max_wait, ask.takes) = (MaxWait::NONE, takes);
            }
            opens.push(open);
            answers.push((Quotas::new(), read.map(|()| Admission::default())));
        }
        if answers.iter().any(|(_, read)| read.is_err()) {
            return answers;
        }
        leave_closed(&mut opens, &self.store, clocks);
        let limits = opens.iter_mut().flat_map(|open| &mut open.limits);
        let mut limits: Vec<_> = limits.filter(|limit| !limit.is_decided()).collect();
        let asked_at = join_same(&mut limits);
        let asked = limits.iter_mut().enumerate().filter(|(index, _)| asked_at[*index] == *index);
        let mut claims: PerAsk<_> = asked.map(|(_, limit)| &mut limit.claim).collect();
        let moment = Moment::now(now);
        if !claims.is_empty() && self.store.take(&mut claims, moment).await.is_err() {
            self.count_failed(&claims);
            answers.iter_mut().for_each(|(_, answer)| *answer = Err(Refused::StoreUnavailable));
            return answers;
        }
        let mut took = self.took(&claims, moment);
        drop(claims);
        for (index, asked_at) in asked_at.into_iter().enumerate() {
            if let (before, [limit, ..]) = limits.split_at_mut(index)
                && let Some(asked) = before.get(asked_at)
            {
                limit.claim.decide_as(&asked.claim);
            }
        }
        for ((request, open), (quotas, answer)) in requests.iter_mut().zip(opens).zip(&mut answers)
        {
            let (mut open, view) = (open, &request.view);
            let verdict = open.finish();
            // The store was asked once, and its time is measured once.
            self.note(&open.limits, view, took.take(), now, request.traced.take());
            quotas.extend(open.limits.iter().filter_map(|limit| quota(limit, clocks.wall)));
            *answer = match verdict {
                Verdict::Pass { .. } => {
                    let (decision, over) = (decision_at_once(&open.limits), over(&open.limits));
                    Ok(Admission { permit: open.permit(), decision, over })
                }
                Verdict::Refuse { by, retry_after } => {
                    Err(self.reject(plan, &open.limits, by, view, retry_after, now))
                }
            };
        }
        answers
    }
}

/// Makes one ask of those about the same bucket: the first of them, for what all take. Returns for each limit the index
/// of the limit that asks for it.
fn join_same(limits: &mut [&mut RequestLimit<'_>]) -> Vec<usize> {
    let mut asked_at = Vec::with_capacity(limits.len());
    for index in 0..limits.len() {
        let (before, rest) = limits.split_at_mut(index);
        let Some(RequestLimit { claim, .. }) = rest.first().map(|limit| &**limit) else { break };
        let same = before.iter().position(|other| other.claim.asks_as(claim));
        if let Some(first) = same.and_then(|same| before.get_mut(same)) {
            add(&mut first.claim.ask, claim.ask);
        }
        asked_at.push(same.unwrap_or(index));
    }
    asked_at
}

/// Adds what another request takes from the same bucket.
fn add(ask: &mut Ask, other: Ask) {
    match (ask.takes, other.takes) {
        (true, true) => {
            let sum = ask.cost.get() + other.cost.get();
            ask.cost = Cost::new(sum.min(MAX_TOKENS)).unwrap_or(ask.cost);
        }
        (false, true) => *ask = other,
        (_, false) => {}
    }
}
