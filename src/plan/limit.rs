//! A limit: what it counts, how, and by what.

use std::fmt;
use std::sync::Arc;

use http::HeaderName;

use super::AnswerSpec;
use super::response::{Statuses, UnknownUse, UsedSource};
use crate::limit::algorithm::fixed_window::windows::Schedule;
use crate::limit::algorithm::{Algorithm, fixed_window};
use crate::limit::name::Name;
use crate::limit::patience::Patience;
use crate::limit::rate::{Burst, Cost};
use crate::limit::time::Timestamp;
use crate::limit::{Mode, Scope};
use crate::request::exempt::Exempt;
use crate::request::key::{KeySpec, Missing};
use crate::request::overrides::Overrides;

/// `[limits.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSpec {
    /// Its name, by which it is known in keys, logs and metrics.
    pub name: Name,
    /// What it counts by.
    pub key: KeySpec,
    /// Its figures where no override applies.
    pub figures: Figures,
    /// Other figures for some keys.
    pub overrides: Overrides<Figures>,
    /// What a request takes.
    pub cost: CostSpec,
    /// How long a request is held that would then pass; [`Patience::ENDLESS`] where the figures bound
    /// it.
    pub wait: Patience,
    /// Requests that this process holds for it at once.
    pub max_waiting: usize,
    /// Other figures, tried in shadow on what its own figures decide: a limit in shadow with a name of
    /// its own, without overrides, that counts by the same key as this one, and as much.
    pub candidate: Option<Arc<Self>>,
    /// The responses that count; what others had taken is given back. `None` is all of them.
    pub count_when: Option<Box<Statuses>>,
    /// What it never looks at.
    pub exempt: Exempt,
    /// Whether its refusal counts. A limit that is off is in no route.
    pub mode: Mode,
    /// Who shares its buckets.
    pub scope: Scope,
    /// What it does while Redis is out of reach.
    pub on_store_error: OnStoreError,
    /// Its own answer to a throttled client.
    pub reject: Option<Arc<AnswerSpec>>,
    /// The Redisson limiter that it shares, or what the names of its limiters begin with where it has a
    /// key. There where its algorithm is [`Algorithm::Redisson`].
    pub limiter: Option<String>,
}

impl LimitSpec {
    /// A limit of this name that everything passes: of which nothing else is known yet.
    pub fn new(name: Name) -> Self {
        Self {
            name,
            key: KeySpec {
                sources: Vec::new().into(),
                missing: Missing::default(),
                ipv6_prefix: 128,
            },
            figures: Figures::Unlimited,
            overrides: Overrides::default(),
            cost: CostSpec::Fixed(Cost::ONE),
            wait: Patience::NONE,
            max_waiting: 0,
            candidate: None,
            count_when: None,
            exempt: Exempt::default(),
            mode: Mode::Enforce,
            scope: Scope::Cluster,
            on_store_error: OnStoreError::Local,
            reject: None,
            limiter: None,
        }
    }

    /// Whether what a request takes is known only when its response has ended.
    pub fn is_settled(&self) -> bool {
        self.count_when.is_some() || matches!(self.cost, CostSpec::Response { .. })
    }
}

/// How much passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Figures {
    /// As much as the algorithm lets pass.
    Limited(Algorithm),
    /// As much as a window of the calendar has.
    Calendar(CalendarQuota),
    /// Everything: the store is not asked.
    Unlimited,
}

/// So much in each day, week or month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalendarQuota {
    /// Tokens of a window.
    pub count: Burst,
    /// When windows begin.
    pub schedule: Arc<Schedule>,
}

/// `100000/month in Europe/Berlin`.
impl fmt::Display for CalendarQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} in {}", self.count, self.schedule.unit(), self.schedule.zone())
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited(algorithm) => write!(f, "{algorithm}"),
            Self::Calendar(quota) => write!(f, "{quota}"),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

impl Figures {
    /// What they mean around this time: of a calendar only the windows next to it are known to an
    /// algorithm. `None` where everything passes.
    pub fn at(&self, now: Timestamp) -> Option<Algorithm> {
        match self {
            Self::Limited(algorithm) => Some(*algorithm),
            Self::Calendar(CalendarQuota { count, schedule }) => {
                let windows = schedule.around(now);
                let params = fixed_window::Params { count: *count, windows };
                Some(Algorithm::FixedWindow(params))
            }
            Self::Unlimited => None,
        }
    }
}

/// What a request takes from a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSpec {
    /// Always the same.
    Fixed(Cost),
    /// What a header says.
    Header {
        /// The header.
        name: Box<HeaderName>,
        /// Where the request does not have it.
        default: Cost,
        /// The most it may say.
        max: Cost,
    },
    /// What the response says; it is settled when that has ended.
    Response {
        /// Where it says so.
        source: Box<UsedSource>,
        /// What is taken before, and in the end where the response does not say.
        estimate: Cost,
        /// The most that one request can take; `None` is 100 times the burst.
        max: Option<u64>,
        /// What is taken in the end where the response does not say.
        unknown: UnknownUse,
    },
}

/// What becomes of a request whose limit cannot ask its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreError {
    /// This process's own buckets decide, with the limit's figures.
    Local,
    /// The limit lets it pass.
    Allow,
    /// 503.
    Reject,
}
