//! A rejection: what is kept of a request that its limits did not let pass. The answer to the client reads it, and
//! `kept` keeps it for those who ask later.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use http::StatusCode;
use smallvec::SmallVec;
use uuid::Uuid;

use crate::limit::decide::{Ask, PerAsk};
use crate::limit::decision::Decision;
use crate::limit::key::write_shown;
use crate::limit::name::Name;
use crate::limit::time::Now;
use crate::observe::start;
#[cfg(test)]
use crate::settings::LimitSpec;
use crate::store::Decider;

/// The most bytes of a key that are kept.
pub(crate) const MOST_OF_KEY: usize = 256;

/// The most bytes that are kept of each text. Clients choose most of them.
const MOST: [usize; 6] = [MOST_OF_KEY, 32, 256, 128, 128, 64];

/// The numbers of the texts: the key as stores have it, the path without its query, and the name of the key's owner.
pub(crate) const KEY: usize = 0;
pub(crate) const METHOD: usize = 1;
pub(crate) const PATH: usize = 2;
pub(crate) const ROUTE: usize = 3;
pub(crate) const REQUEST_ID: usize = 4;
pub(crate) const NAME: usize = 5;

/// A request that its limits did not let pass. It takes 1.5 KiB at most, whatever the client sent, and
/// 150 bytes more for each limit of a route beyond the second.
#[derive(Debug)]
pub struct Rejection {
    /// A UUID of version 7. Its time is the time of day of the rejection.
    pub(crate) id: Uuid,
    pub(crate) now: Now,
    /// What the enforcing limits have said, in the route's order.
    pub(crate) limits: PerAsk<KeptDecision>,
    /// The index in `limits` of the limit that the log names.
    pub(super) by: usize,
    pub(crate) wait: RejectedWait,
    pub(crate) status: StatusCode,
    pub(crate) client: IpAddr,
    /// Where the figures come from: `file`, `plan`, `override` or `ban`.
    pub(crate) source: &'static str,
    pub(super) texts: RejectedTexts,
}

/// The texts of a rejection in one, and where each ends.
#[derive(Debug)]
pub(crate) struct RejectedTexts {
    text: SmallVec<[u8; 128]>,
    ends: [u16; MOST.len()],
}

impl RejectedTexts {
    /// Copies of these texts, up to their bounds.
    pub(super) fn of(texts: [&str; MOST.len()]) -> Self {
        let (mut text, mut ends) = (SmallVec::new(), [0; MOST.len()]);
        for ((own, most), end) in texts.into_iter().zip(MOST).zip(&mut ends) {
            text.extend_from_slice(start(own, most).as_bytes());
            *end = u16::try_from(text.len()).unwrap_or(u16::MAX);
        }
        Self { text, ends }
    }
}

/// How long a rejected client has to wait. `None` is for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RejectedWait {
    /// After this time the same request passes.
    pub(crate) retry_after: Option<Duration>,
    /// The time that the client was told.
    pub(crate) told: Option<Duration>,
}

/// What a limit said to a request that was rejected.
#[derive(Debug)]
pub(crate) struct KeptDecision {
    pub(crate) limit: Name,
    /// The plan that has the figures.
    pub(crate) plan: Option<Name>,
    /// Whether the bucket may be below zero.
    pub(crate) may_owe: bool,
    /// With the figures that decided.
    pub(crate) ask: Ask,
    pub(crate) decision: Decision,
    pub(crate) by: Decider,
    /// Whether the process decided because Redis was away.
    pub(crate) is_without_redis: bool,
}

impl Rejection {
    /// The limit that the log names.
    pub(crate) fn by(&self) -> Option<&KeptDecision> {
        self.limits.get(self.by)
    }

    /// The first limit that refuses, in the route's order.
    pub(crate) fn first(&self) -> Option<&KeptDecision> {
        self.refusing().next()
    }

    /// The limits that refuse.
    pub(crate) fn refusing(&self) -> impl Iterator<Item = &KeptDecision> {
        self.limits.iter().filter(|limit| !limit.decision.outcome.passes())
    }

    /// The text with this number.
    pub(crate) fn text(&self, index: usize) -> &str {
        let RejectedTexts { text, ends } = &self.texts;
        let begin = index.checked_sub(1).map_or(0, |before| usize::from(ends[before]));
        let text = text.get(begin..usize::from(ends[index])).unwrap_or_default();
        std::str::from_utf8(text).unwrap_or_default()
    }

    /// Whether the rejection is kept under this key, as stores or as the log write it.
    pub(crate) fn is_of_key(&self, limit: &str, key: &str) -> bool {
        let own = self.text(KEY);
        let key = start(key, MOST_OF_KEY);
        let is_key = own == key || Shown(own).to_string() == key;
        is_key && self.by().is_some_and(|by| by.limit.as_str() == limit)
    }

    /// The key as the log shows it.
    pub(crate) fn shown_key(&self) -> String {
        Shown(self.text(KEY)).to_string()
    }
}

#[cfg(test)]
impl Rejection {
    /// A rejection of this key at this time.
    pub(super) fn of(spec: &LimitSpec, key: &str, micros: u64) -> Self {
        use crate::limit::decision::Outcome;
        use crate::limit::rate::Cost;
        use crate::limit::time::Timestamp;
        let now = Now::from(Timestamp::from_micros(micros).unwrap());
        let decision = Decision { outcome: Outcome::Reject { retry_after: None }, remaining: 0 };
        let algorithm = spec.figures.at(now).unwrap();
        let ask = Ask { cost: Cost::ONE, ..Ask::for_one(algorithm) };
        let (limit, plan, by) = (spec.name.clone(), None, Decider::Process);
        let (may_owe, is_without_redis) = (false, false);
        let kept = KeptDecision { limit, plan, may_owe, ask, decision, by, is_without_redis };
        Self {
            id: Uuid::from_u128(micros.into()),
            now,
            limits: [kept].into_iter().collect(),
            by: 0,
            wait: RejectedWait { retry_after: None, told: Some(Duration::from_micros(10)) },
            status: StatusCode::TOO_MANY_REQUESTS,
            client: IpAddr::from([127, 0, 0, 1]),
            source: "file",
            texts: RejectedTexts::of([key, "", "", "", "", ""]),
        }
    }
}

struct Shown<'k>(&'k str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_shown(self.0, f)
    }
}
