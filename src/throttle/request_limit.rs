//! A limit on its way through `throttle`: its claim, and the request's permit to wait for it.
//! `gather` makes the list of a request's limits, and `open` has what is done with the list.

use std::sync::Arc;

use tokio::time::Instant;

use super::Refused;
use super::waiting::WaitingPermit;
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::PerAsk;
use crate::limit::decision::Outcome;
use crate::observe::metrics::DecisionKind;
use crate::observe::top_keys::KeyLabel;
use crate::plans::{PlanLine, RequestPlan};
use crate::settings::{AnswerSpec, FiguresOf, LimitSpec, Settings};
use crate::store::{Claim, Decider};

/// A limit that applies to a request, or the candidate of one.
pub(super) struct RequestLimit<'p> {
    pub(super) claim: Claim<'p>,
    /// The request's permit to wait for this limit.
    pub(super) waiting: Option<WaitingPermit>,
    /// The name of the key's owner. `None` if there is none.
    pub(super) key_name: Option<KeyName<'p>>,
    /// Where the figures come from: the limit, a plan or an override.
    pub(super) of: FiguresOf<'p>,
    /// Whether the key is banned.
    pub(super) is_banned: bool,
    /// Whether the limit may hold requests, but had no permit to wait for this one.
    pub(super) lacks_permit: bool,
    /// Whether another request of the same call counts the rejection of this key.
    pub(super) is_repeated: bool,
}

/// The limits of a request whose decision has begun.
#[derive(Default)]
pub(crate) struct OpenDecision<'p> {
    /// The limits that apply, in the route's order. After a limit comes its candidate.
    pub(super) limits: PerAsk<RequestLimit<'p>>,
    /// The windows of other plans in which the request counts too, beside those that decide. They take as limits in
    /// shadow do, and nobody is told.
    pub(super) beside: Vec<Claim<'p>>,
    /// The limits that do not enforce, and cannot read the key or the cost of the request.
    pub(super) unread: Vec<UnreadLimit<'p>>,
    /// Whether another request of the same call was refused before its limits. Then this one takes nothing, and counts
    /// nowhere.
    pub(super) is_void: bool,
}

/// A limit that would refuse a request because it cannot read its key or its cost.
pub(super) struct UnreadLimit<'p> {
    pub(super) spec: &'p Arc<LimitSpec>,
    /// The number of limits before it that can.
    pub(super) before: usize,
    /// Why it would refuse the request.
    pub(super) refused: Refused<'p>,
}

impl UnreadLimit<'_> {
    /// What the limit would have decided.
    pub(super) fn kind(&self) -> DecisionKind {
        match self.spec.mode {
            Mode::Mark => DecisionKind::Marked,
            Mode::Enforce | Mode::Shadow | Mode::Candidate => DecisionKind::Shadow,
        }
    }
}

/// The name of a key's owner, for people who read the log or the page.
pub(super) enum KeyName<'p> {
    /// From an override in the file.
    Override(&'p str),
    /// From a line of the plans file.
    Line(PlanLine),
}

impl KeyName<'_> {
    /// The name in the line of the plans file. `None` if the line has no name, or if the limit's key has no part by
    /// which the line was found.
    pub(super) fn of_line(limit: &LimitSpec, plan: &RequestPlan<'_>) -> Option<Self> {
        let line = plan.line.as_ref()?;
        let is_counted = plan.by.sources.iter().any(|by| limit.key.sources.contains(by));
        (is_counted && line.name().is_some()).then(|| Self::Line(line.clone()))
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Override(name) => Some(name),
            Self::Line(line) => line.name(),
        }
    }
}

impl<'p> RequestLimit<'p> {
    /// A limit whose key has no name, no override and no ban.
    pub(super) fn of(claim: Claim<'p>) -> Self {
        Self {
            claim,
            waiting: None,
            key_name: None,
            of: FiguresOf::Limit,
            is_banned: false,
            lacks_permit: false,
            is_repeated: false,
        }
    }

    pub(super) fn mode(&self) -> Mode {
        self.claim.ask.mode
    }

    /// The request's key, as people see it.
    pub(super) fn label(&self) -> KeyLabel<'_> {
        KeyLabel { text: self.claim.key.shown().as_bytes(), name: self.name() }
    }

    /// The name of the key's owner. `None` if there is none.
    pub(super) fn name(&self) -> Option<&str> {
        self.key_name.as_ref()?.text()
    }

    /// What the limit decided by itself.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.claim.decision().map(|decision| decision.outcome)
    }

    /// What the limit decided, as it is counted.
    pub(super) fn kind(&self) -> DecisionKind {
        match (self.outcome(), self.mode()) {
            (None, _) => DecisionKind::Error,
            (Some(Outcome::Allow), _) => DecisionKind::Allowed,
            (Some(Outcome::Delay(_)), _) => DecisionKind::Delayed,
            (Some(Outcome::Reject { .. }), Mode::Enforce) => DecisionKind::Rejected,
            (Some(Outcome::Reject { .. }), Mode::Mark) => DecisionKind::Marked,
            (Some(Outcome::Reject { .. }), Mode::Shadow | Mode::Candidate) => DecisionKind::Shadow,
        }
    }

    /// The answer of the limit to a request that it rejects.
    pub(super) fn answer(&self, settings: &'p Settings) -> &'p Arc<AnswerSpec> {
        let spec = self.claim.spec;
        let of_ban = spec.ban.as_ref().filter(|_| self.is_banned).map(|ban| &ban.answer);
        of_ban.or(spec.reject.as_ref()).unwrap_or(&settings.reject)
    }

    /// Whether the limit lets nothing pass, ever.
    pub(super) fn is_closed(&self) -> bool {
        self.claim.ask.algorithm == Algorithm::Closed
    }

    /// Whether a rejection counts towards a ban: the limit has a `ban`, and the key has no override. A key that is banned
    /// already has one. An operator who closes the limit for all keys bans nobody. What a full table's shared bucket
    /// refuses is the fault of others. One refused call is one rejection of each key.
    pub(super) fn may_be_banned(&self) -> bool {
        let is_set = match self.of {
            FiguresOf::Override(_) => true,
            FiguresOf::AllKeys => self.is_closed(),
            FiguresOf::Limit | FiguresOf::Plan(_) => false,
        };
        self.claim.spec.ban.is_some()
            && !self.is_repeated
            && !is_set
            && self.claim.decider() != Some(Decider::Shared)
    }

    /// Whether the limit rejects the request.
    pub(super) fn rejects(&self) -> bool {
        self.mode() == Mode::Enforce && self.outcome().is_some_and(|outcome| !outcome.passes())
    }

    /// Whether the limit holds the request.
    pub(super) fn holds(&self) -> bool {
        self.mode() == Mode::Enforce && matches!(self.outcome(), Some(Outcome::Delay(_)))
    }

    /// Whether the store need not be asked.
    pub(super) fn is_decided(&self) -> bool {
        self.claim.decision().is_some()
    }

    /// The moment at which this limit lets the request go. The request waits since `begin`. `None` if the limit lets
    /// it go at once.
    pub(super) fn goes(&self, begin: Instant) -> Option<Instant> {
        match self.claim.decision()?.outcome {
            Outcome::Delay(wait) => Some(self.claim.goes().unwrap_or(begin + wait)),
            Outcome::Allow | Outcome::Reject { .. } => None,
        }
    }
}
