//! Lets the limits decide about requests that nobody sends: the requests of a log, and of the tests in a file.
//!
//! `replay` calls [`Rehearsal::decide`] for each request. The limits decide with the code and the buckets of real
//! requests. The caller gives the time of each decision: no clock is read here.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use smallvec::SmallVec;

use super::gather::gather;
use super::open::OpenDecision;
use super::request_limit::RequestLimit;
use super::waiting::{Waiting, WaitingPermit};
use super::{Permit, Refused, open};
use crate::limit::Mode;
use crate::limit::decide::PerAsk;
use crate::limit::decision::{Decision, Verdict};
use crate::limit::key::Key;
use crate::limit::time::Timestamp;
use crate::plans::PlanRule;
use crate::request::counted::CountedRequest;
use crate::request::key::View;
use crate::settings::{LimitSpec, Settings, StoreLocation, StoreSpec, WantedFigures};
use crate::store::{self, Claim, ClockReading, ProcessStore, RunningOverride, Store};

/// The buckets of one rehearsal, and its requests that have not ended.
pub(crate) struct Rehearsal {
    shared: Arc<ProcessStore>,
    store: Arc<Store>,
    waiting: Waiting,
    /// What ends later, by the time of its end and a running number. If two end at the same time, the one that was
    /// added first ends first.
    open: BTreeMap<(Timestamp, u64), RehearsedEnd>,
    opened: u64,
}

/// The answer that a request gets when it passes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RehearsedAnswer {
    /// An answer of the API, or of the file.
    Given {
        /// The status. `None` if nobody knows it: then every limit counts the request.
        status: Option<StatusCode>,
        /// The bytes of the body. `None` if nobody knows them: then the limit's estimate counts.
        bytes: Option<u64>,
        /// The time from the moment when the request passes to the end of the answer.
        lasts: Duration,
    },
    /// The proxy itself answers at once, with an error of this status. The request keeps the tokens that it took.
    Refusal(StatusCode),
}

/// The decisions of the limits about one request.
pub struct RehearsedRequest<'p> {
    /// The decision of all enforcing limits together. It names a limit by its index in `limits`.
    pub verdict: Verdict,
    limits: PerAsk<RequestLimit<'p>>,
    /// What the first limit in shadow that cannot count the request would answer, in words.
    pub(crate) refused: Option<String>,
}

/// The decision of one limit about a request.
#[derive(Clone, Debug)]
pub(crate) struct RehearsedLimit<'r> {
    /// The limit, or the candidate of a limit.
    pub(crate) spec: &'r Arc<LimitSpec>,
    /// The request's key as the proxy's log shows it. A long key is hashed: a log with long paths must not fill the
    /// memory.
    pub(crate) key: Cow<'r, Key>,
    /// The limit's own decision.
    pub(crate) decision: Decision,
}

/// What ends later: the wait of a request that is held, or an answer.
type RehearsedEnd = (SmallVec<[WaitingPermit; 1]>, Permit);

impl Rehearsal {
    /// A rehearsal with new buckets. They live in this process, even if `settings` keep their buckets in Redis.
    pub(crate) fn new(settings: &Settings) -> Self {
        let spec = StoreSpec { location: StoreLocation::Memory, ..settings.store.clone() };
        let shared = ProcessStore::new(&spec);
        shared.put_in_force(&settings.limits);
        let store = Store::new(Arc::clone(&shared), &spec, settings.log.keys);
        let (waiting, open) = (Waiting::default(), BTreeMap::new());
        Self { shared, store, waiting, open, opened: 0 }
    }

    /// Lets these limits decide about a request at the time `now`, which must not be before the time of the
    /// last call. `rule` says how the request's plan is found. A request that passes gets the answer `answer`.
    ///
    /// # Errors
    /// If a key or a cost cannot be read from the request.
    pub(crate) fn decide<'p>(
        &mut self,
        specs: impl Iterator<Item = &'p Arc<LimitSpec>>,
        request: &View<'_>,
        rule: Option<&'p PlanRule>,
        answer: RehearsedAnswer,
        now: Timestamp,
    ) -> Result<RehearsedRequest<'p>, Refused<'p>> {
        self.end_before(now);
        let mut open = OpenDecision::default();
        gather(specs, request, rule, &self.store, self.store.both(now), &mut open)?;
        open.prepare(request.client, &self.store, &self.waiting, now);
        self.store.take_locally(&mut open.claims(), ClockReading::now(now));
        let verdict = open.finish();
        if let Verdict::Pass { wait } = verdict {
            self.pass(&mut open, answer, now.plus(wait), request.counted);
        }
        let refused = open.unread.iter().find(|limit| limit.spec.mode == Mode::Shadow);
        let refused = refused.map(|limit| limit.refused.in_words());
        Ok(RehearsedRequest { verdict, limits: open.limits, refused })
    }

    /// Lets the request pass at the time `goes`.
    fn pass(
        &mut self,
        request: &mut OpenDecision<'_>,
        answer: RehearsedAnswer,
        goes: Timestamp,
        counted: Option<&CountedRequest>,
    ) {
        let limits = request.limits.iter_mut();
        let permits: SmallVec<_> = limits.filter_map(|limit| limit.waiting.take()).collect();
        if !permits.is_empty() {
            self.leave_open(goes, (permits, Permit::default()));
        }
        let mut permit = request.permit();
        if permit.is_empty() {
            return;
        }
        let lasts = match answer {
            RehearsedAnswer::Given { status, bytes, lasts } => {
                permit.answered_with(status, bytes, |limit| counted?.of(limit.as_str())?.used);
                lasts
            }
            RehearsedAnswer::Refusal(status) => {
                permit.refused(status);
                Duration::ZERO
            }
        };
        self.leave_open(goes.plus(lasts), (SmallVec::new(), permit));
    }

    fn leave_open(&mut self, until: Timestamp, end: RehearsedEnd) {
        self.opened += 1;
        self.open.insert((until, self.opened), end);
    }

    /// Ends the requests whose time has come, each at its own time.
    fn end_before(&mut self, now: Timestamp) {
        while let Some(first) = self.open.first_entry().filter(|first| first.key().0 <= now) {
            let ((until, _), (_, permit)) = first.remove_entry();
            permit.end_at(until);
        }
    }

    /// Gives a key other figures. They hold until the override ends. `key` is written as in Redis.
    pub(crate) fn set_override(&self, spec: &LimitSpec, key: String, wanted: WantedFigures) {
        let (limit, sources) = (spec.name.to_string(), spec.key.parts_text());
        let (reason, ends, is_ban) = (None, None, false);
        let entry = RunningOverride { limit, key, sources, wanted, reason, ends, is_ban };
        self.shared.set_override(entry);
    }

    /// Ends an override.
    pub(crate) fn end_override(&self, limit: &str, key: &str) {
        self.shared.end_override(limit, key);
    }

    /// Forgets full buckets, to give their memory back. To be called now and then;
    /// [`store::SWEEP_STEPS`] calls visit all buckets.
    pub(crate) fn sweep(&self, now: Timestamp) {
        self.shared.sweep(now);
    }
}

impl<'p> RehearsedRequest<'p> {
    /// The decisions of all limits that apply to the request, in the route's order. A candidate stands right after
    /// its limit.
    pub(crate) fn limits(&self) -> impl Iterator<Item = RehearsedLimit<'_>> {
        self.limits.iter().filter_map(|limit| {
            let (Claim { spec, key, .. }, decision) = (&limit.claim, limit.claim.decision()?);
            Some(RehearsedLimit { spec, key: store::bounded(key.shown()), decision })
        })
    }

    /// The limit that decides: it refuses the request for the longest time, or holds it for the longest time. `None`
    /// if the request passes at once.
    pub(crate) fn decisive(&self) -> Option<&'p Arc<LimitSpec>> {
        let index = match self.verdict {
            Verdict::Refuse { by, .. } => by,
            Verdict::Pass { wait } if wait.is_zero() => return None,
            Verdict::Pass { wait } => open::slowest(&self.limits, wait),
        };
        self.limits.get(index).map(|limit| limit.claim.spec)
    }
}
