//! A rejection: what is kept of a request that its limits did not let pass. The answer to the client reads it, and
//! `kept` keeps it for those who ask later.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use smallvec::SmallVec;
use uuid::Uuid;

use super::quota::figures;
use super::refused::ToldRejection;
use super::request_limit::RequestLimit;
use super::{LimitedRequest, Refused};
use crate::limit::decide::Ask;
use crate::limit::decision::{Decision, Outcome};
use crate::limit::key::write_shown;
use crate::limit::name::Name;
use crate::limit::time::Now;
use crate::limit::waiting::MaxWait;
use crate::observe::start;
#[cfg(test)]
use crate::settings::LimitSpec;
use crate::settings::{AnswerSpec, FiguresOf};
use crate::store::{Claim, Decider};

/// Figures that come from an override of all keys of the limit.
pub(crate) const OF_ALL_KEYS: &str = "override of all keys";

/// The most bytes of a key that are kept.
pub(crate) const MOST_OF_KEY: usize = 256;

/// A request that its limits do not let pass. It is not logged or answered yet.
#[derive(Clone, Copy)]
pub(super) struct RejectedRequest<'l, 'r, 'p> {
    pub(super) request: LimitedRequest<'r, 'p>,
    pub(super) now: Now,
    /// The limits of the request, in the route's order.
    pub(super) limits: &'l [RequestLimit<'p>],
    /// The index in `limits` of the limit that the log names.
    pub(super) by: usize,
    /// The answer settings of the limit `by`.
    pub(super) answer: &'p Arc<AnswerSpec>,
    pub(super) id: Uuid,
    pub(super) wait: RejectedWait,
}

/// What is kept of a rejected request. It takes at most 2.2 KiB, and 200 bytes more for each further limit that
/// refused. Long texts of the client are cut.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rejection {
    /// The number of the rejection. Each worker counts its own.
    pub(super) number: u64,
    /// A UUID of version 7. Its time is the time of day of the rejection.
    pub(crate) id: Uuid,
    pub(crate) now: Now,
    /// The hash of the limit that the log names, and of the key.
    pub(crate) hash: u64,
    /// The decisions of the limits that refused, in the route's order.
    pub(crate) limits: SmallVec<[KeptDecision; 1]>,
    /// The index in `limits` of the limit that the log names.
    pub(super) by: usize,
    pub(crate) wait: RejectedWait,
    pub(crate) status: StatusCode,
    pub(crate) client: Option<IpAddr>,
    /// Where the figures come from: `file`, `plan`, `override`, `ban`, or [`OF_ALL_KEYS`].
    pub(crate) source: &'static str,
    /// The line of the file's override that has the figures.
    pub(crate) line: Option<NonZeroU32>,
    /// The begin of the key as in Redis.
    pub(super) key: Vec<u8>,
    pub(crate) method: String,
    /// The path, without the query.
    pub(crate) path: String,
    pub(crate) route: String,
    /// The request ID. Empty if there is none.
    pub(crate) request_id: String,
    /// The name of the key's owner. Empty if there is none.
    pub(crate) name: String,
}

/// How long a rejected client has to wait. `None` is for ever.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RejectedWait {
    /// After this time the same request passes.
    pub(crate) retry_after: Option<Duration>,
    /// The time that the client was told.
    pub(crate) told: Option<Duration>,
}

/// What a limit said to a request that was rejected.
#[derive(Clone, Debug)]
pub(crate) struct KeptDecision {
    pub(crate) limit: Name,
    /// The plan that has the figures.
    pub(crate) plan: Option<Name>,
    /// Whether the bucket may be below zero.
    pub(crate) may_owe: bool,
    /// With the figures that decided.
    pub(crate) ask: Ask,
    pub(crate) decision: Decision,
    /// A word for who decided.
    pub(crate) store: &'static str,
}

impl<'l, 'p> RejectedRequest<'l, '_, 'p> {
    pub(super) fn by(&self) -> &'l RequestLimit<'p> {
        &self.limits[self.by]
    }

    /// The limits that refuse, each with its index. If the process ends while the request waits, these are the limits
    /// that hold the request.
    fn refusing(&self) -> impl Iterator<Item = (usize, &'l RequestLimit<'p>)> + use<'l, 'p> {
        let is_held = !self.by().rejects();
        let refuses = move |limit: &RequestLimit<'_>| match is_held {
            true => limit.holds(),
            false => limit.rejects(),
        };
        self.limits.iter().enumerate().filter(move |(_, limit)| refuses(limit))
    }

    /// Refuses the request with the answer of the limit that the log names.
    pub(super) fn refused(&self) -> Refused<'p> {
        let (limit, answer) = (&self.by().claim.spec.name, self.answer);
        let first = self.refusing().next().map_or(self.by(), |(_, limit)| limit);
        let rejection = Box::new(ToldRejection { id: self.id, figures: figures(&first.claim) });
        Refused::Throttled { limit, retry_after: self.wait.told, answer, rejection }
    }

    /// Overwrites an older rejection with this one.
    pub(super) fn write(&self, kept: &mut Rejection) {
        let (limit, view) = (self.by(), self.request.view);
        (kept.id, kept.now, kept.wait) = (self.id, self.now, self.wait);
        kept.limits.clear();
        for (index, limit) in self.refusing() {
            if index == self.by {
                kept.by = kept.limits.len();
            }
            if let Some((decision, by)) = limit.claim.decided() {
                kept.limits.push(self.decided(&limit.claim, decision, by));
            }
        }
        kept.status = self.answer.status;
        kept.client = Some(view.client);
        (kept.source, kept.line) = match limit.of {
            _ if limit.is_banned => ("ban", None),
            FiguresOf::Limit => ("file", None),
            FiguresOf::Plan(_) => ("plan", None),
            FiguresOf::Override(line) => ("override", line),
            FiguresOf::AllKeys => (OF_ALL_KEYS, None),
        };
        let key = limit.claim.key.shown().as_bytes();
        key.get(..MOST_OF_KEY).unwrap_or(key).clone_into(&mut kept.key);
        for (own, text, most) in [
            (&mut kept.method, view.method.as_str(), 32),
            (&mut kept.path, view.path.matching(), 256),
            (&mut kept.route, view.route, 128),
            (&mut kept.request_id, view.id.unwrap_or_default(), 128),
            (&mut kept.name, limit.name().unwrap_or_default(), 64),
        ] {
            // Clients choose most of these texts, so their length is bounded.
            own.clear();
            own.push_str(start(text, most));
        }
    }

    /// The decision of a limit, in the form that is kept.
    fn decided(&self, claim: &Claim<'_>, decision: Decision, by: Decider) -> KeptDecision {
        // A part of the settings must not be kept: it would keep old settings and all their overrides alive after a
        // reload.
        let spec = &**claim.spec;
        let outcome = match decision.outcome {
            outcome @ Outcome::Reject { .. } => outcome,
            _ => Outcome::Reject { retry_after: self.wait.retry_after },
        };
        KeptDecision {
            limit: spec.name.clone(),
            plan: spec.plan.clone(),
            may_owe: spec.is_ever_settled() || spec.reported || spec.wait > MaxWait::NONE,
            ask: Ask { algorithm: figures(claim), ..claim.ask },
            decision: Decision { outcome, ..decision },
            store: match by {
                _ if claim.is_without_redis() => "local",
                Decider::Process | Decider::Shared => "process",
                Decider::Redis | Decider::Limiter(_) => "redis",
                Decider::Known => "known",
            },
        }
    }
}

impl Rejection {
    /// The limit that the log names.
    pub(crate) fn by(&self) -> Option<&KeptDecision> {
        self.limits.get(self.by)
    }

    /// The begin of the key as in Redis.
    pub(crate) fn key(&self) -> &str {
        // The cut may be inside a character.
        self.key.utf8_chunks().next().map_or("", |chunk| chunk.valid())
    }

    /// Whether the rejection is kept under this key, as stores or as the log write it.
    pub(crate) fn is_of_key(&self, limit: &str, key: &str) -> bool {
        let own = self.key();
        let key = start(key, MOST_OF_KEY);
        let is_key = own == key || Shown(own).to_string() == key;
        is_key && self.by().is_some_and(|by| by.limit.as_str() == limit)
    }

    /// The key as the log shows it.
    pub(crate) fn shown_key(&self) -> String {
        Shown(self.key()).to_string()
    }
}

#[cfg(test)]
impl Rejection {
    /// A rejection of this key at this time.
    pub(super) fn of(spec: &LimitSpec, key: &str, micros: u64) -> Self {
        use crate::limit::rate::Cost;
        use crate::limit::time::Timestamp;
        let now = Now::from(Timestamp::from_micros(micros).unwrap());
        let decision = Decision { outcome: Outcome::Reject { retry_after: None }, remaining: 0 };
        let algorithm = spec.figures.at(now).unwrap();
        let ask = Ask { cost: Cost::ONE, ..Ask::for_one(algorithm) };
        let kept = KeptDecision {
            limit: spec.name.clone(),
            plan: None,
            may_owe: false,
            ask,
            decision,
            store: "process",
        };
        Self {
            id: Uuid::from_u128(micros.into()),
            now,
            limits: [kept].into_iter().collect(),
            wait: RejectedWait { retry_after: None, told: Some(Duration::from_micros(10)) },
            key: key.as_bytes().to_vec(),
            ..Self::default()
        }
    }
}

struct Shown<'k>(&'k str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_shown(self.0, f)
    }
}
