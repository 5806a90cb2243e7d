//! The answer to a request: what its limits say together, and what each says to the client.

use std::time::Duration;

use crate::algorithm::{Difference, Receipt, Settlement};
use crate::bucket::BucketReply;
use crate::charge::{ChargeError, Charged};
use crate::decision::{Verdict, whole_seconds};
use crate::name::Name;
use crate::quota::{QUOTA_EXCEEDED, QuotaFigures, QuotaText, problem, quota_fields};
use crate::rate::MAX_TOKENS;
use crate::sentence;
use crate::time::Timestamp;

/// The answer to a request, of all its limits together. `P` is what a request that may go holds.
#[derive(Debug)]
#[must_use = "a request may go only if its charges were taken"]
pub enum Answer<P> {
    /// The request may go: all limits have counted it.
    Taken {
        /// Whole tokens that the tightest limit has left.
        remaining: u64,
        /// How long the request has to wait for its turn. Zero unless a limit [holds requests](crate::Limit::max_wait).
        /// Its place is reserved: nobody need ask again.
        wait: Duration,
        /// Settles costs, and gives slots back when it is dropped.
        permit: P,
    },
    /// The request may not go, and no limit has counted it.
    Rejected {
        /// The limit with the longest wait.
        by: Name,
        /// The same request passes after this time and not a microsecond earlier, if no other comes. `None` if it never
        /// passes: it costs more than the bucket can hold. For a concurrency limit it is a guess.
        retry_after: Option<Duration>,
        /// What the limits say to the client.
        quotas: Quotas,
    },
}

/// What the limits of a request say to its client.
#[derive(Debug)]
pub struct Quotas {
    pub(crate) charged: Vec<Charged>,
    /// The time of day at which the request goes or is rejected.
    pub(crate) goes: Timestamp,
    /// `Some` if the request is rejected: when it may come again.
    pub(crate) rejected: Option<Option<Duration>>,
}

impl Quotas {
    /// The whole tokens that each limit has left after the request, in the order of the charges.
    pub fn remaining(&self) -> impl Iterator<Item = (&Name, u64)> {
        self.charged.iter().map(|charged| (&charged.limit, charged.decision.remaining))
    }

    /// The header fields for the client, as the proxy writes them: `ratelimit-policy` and `ratelimit`, and for a rejected
    /// request first `retry-after`, in whole seconds, rounded up. Names are in lower case.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        let wait = self.rejected.flatten().map(whole_seconds);
        let quotas =
            self.charged.iter().map(|Charged { limit, ask, decision, window_left, .. }| {
                let quota = QuotaFigures::of(ask, *decision, *window_left, self.goes);
                (limit, quota, decision.outcome.passes())
            });
        let [policy, state] = quota_fields(quotas, wait);
        let text = |text: QuotaText| String::from_utf8_lossy(&text).into_owned();
        let retry_after = wait.map(|seconds| ("retry-after", seconds.to_string()));
        let fields = [("ratelimit-policy", text(policy)), ("ratelimit", text(state))];
        retry_after.into_iter().chain(fields.into_iter().filter(|(_, value)| !value.is_empty()))
    }

    /// The body of a 429, as `application/problem+json`. The proxy writes the same body, and adds `instance`. The body
    /// names the limits that refuse. `detail` is a sentence for a person.
    pub fn problem(&self) -> String {
        let refusing = || self.charged.iter().filter(|it| !it.decision.outcome.passes());
        let told = refusing().next().map(|Charged { limit, is_keyed, ask, .. }| {
            let by = if *is_keyed { "by key" } else { sentence::EVERYONE };
            sentence::of_limit(limit, by, &sentence::in_words(&ask.algorithm))
        });
        let wait = self.rejected.flatten().map(whole_seconds);
        // Nothing else in the sentence needs an escape.
        let detail = sentence::with_wait(told, wait).replace('"', "\\\"");
        let names = || refusing().map(|charged| charged.limit.as_str());
        problem(QUOTA_EXCEEDED, "429", &[r#","detail":""#, &detail, "\""], names)
    }

    /// The answer at this time of day, as the buckets have replied. `permit` makes what a request that may go gets.
    pub(crate) fn answer<P>(
        mut self,
        replies: impl IntoIterator<Item = BucketReply>,
        verdict: Verdict,
        now: Timestamp,
        permit: impl FnOnce(Self) -> P,
    ) -> Answer<P> {
        for (charged, reply) in self.charged.iter_mut().zip(replies) {
            (charged.decision, charged.receipt) = (reply.decision, reply.receipt);
            charged.window_left = reply.window_left;
        }
        match verdict {
            Verdict::Pass { wait } => {
                self.goes = now.plus(wait);
                let remaining = self.remaining().map(|(_, left)| left).min().unwrap_or(u64::MAX);
                Answer::Taken { remaining, wait, permit: permit(self) }
            }
            Verdict::Refuse { by, retry_after } => {
                (self.goes, self.rejected) = (now, Some(retry_after));
                let by = self.charged.get(by).map(|it| it.limit.clone()).unwrap_or_default();
                Answer::Rejected { by, retry_after, quotas: self }
            }
        }
    }

    /// The index of the first charge that this limit has taken, and its correction to `used` tokens. `None` if there is
    /// nothing to correct.
    pub(crate) fn settle(
        &mut self,
        limit: &str,
        used: u64,
    ) -> Result<Option<(usize, Settlement)>, ChargeError> {
        let taken = |it: &Charged| it.limit.as_str() == limit && it.receipt.is_some();
        let index = self.charged.iter().position(taken);
        let index = index.ok_or_else(|| ChargeError::Unknown(limit.to_owned()))?;
        let charged = &mut self.charged[index];
        let receipt = charged.receipt.map_or(Receipt::NONE, |it| it.receipt);
        let used = used.min(MAX_TOKENS);
        let before = std::mem::replace(&mut charged.used, used);
        let more = used.checked_sub(before).map(Difference::More);
        let difference = more.unwrap_or(Difference::Less(before.saturating_sub(used)));
        let settled = Settlement { used: difference, receipt, max_wait: charged.ask.max_wait };
        Ok((used != before && charged.ask.algorithm.lease().is_none()).then_some((index, settled)))
    }
}
