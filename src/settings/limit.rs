//! The configuration of a limit: its key, its figures, its cost, and its options.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::counting::CountingKind;
use super::estimate::Estimate;
use super::figures::Figures;
use super::response::{Statuses, UnknownUse, UsedSource};
use super::{AnswerSpec, KeyDisplay};
use crate::limit::algorithm::Algorithm;
use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::limit::rate::Cost;
use crate::limit::waiting::MaxWait;
use crate::limit::{Mode, Scope};
use crate::request::exempt::Exempt;
use crate::request::key::{KeySpec, Missing};
use crate::request::network::ClientPrefixes;
use crate::request::overrides::KeyOverrides;

/// `[limits.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSpec {
    /// The limit's name in keys, logs and metrics.
    pub name: Name,
    /// The values by which the limit counts.
    pub key: KeySpec,
    /// The figures if no override and no plan applies.
    pub figures: Figures,
    /// How the limit counts, and how overrides that are set while the process runs are read. `None` for Redisson
    /// limiters: Redis has their figures.
    pub counting: Option<CountingKind>,
    /// Other figures for some keys.
    pub overrides: KeyOverrides<OverrideSpec>,
    /// Other figures by the plan of a request: for each plan the same limit with the plan's figures, and without
    /// overrides and a candidate.
    pub plans: Vec<Arc<Self>>,
    /// The plan whose figures these are. `None` for the limit itself.
    pub plan: Option<Name>,
    /// The length of the windows, if they have buckets of their own: those of a plan whose windows have another length
    /// than those of the limit itself.
    pub window: Option<Name>,
    /// If the limit and its plans have windows of several lengths, a limit for each length. A request counts in all of
    /// them, so that a key whose plan changes keeps what it has used.
    pub windows: Vec<Arc<Self>>,
    /// The tokens that a request takes.
    pub cost: CostSpec,
    /// Whether `cost` comes from a route, and not from the limit.
    pub is_cost_of_route: bool,
    /// The costs that routes set for the limit. Whatever their cost, all requests take from the same buckets.
    pub route_costs: Arc<[CostSpec]>,
    /// The longest time for which a request is held instead of rejected. [`MaxWait::ENDLESS`] if the
    /// figures themselves bound this time.
    pub wait: MaxWait,
    /// The most requests that this process holds for the limit at once.
    pub max_waiting: usize,
    /// When a key that the limit rejects often is banned.
    pub ban: Option<Box<BanSpec>>,
    /// Other figures, tried in shadow on the same requests. The candidate is a limit in shadow with its own
    /// name and without overrides. It has the same key and the same cost as this limit.
    pub candidate: Option<Arc<Self>>,
    /// The statuses of responses that count. Tokens of other responses are given back. `None` is all.
    pub count_when: Option<Box<Statuses>>,
    /// Whether a bucket takes what other proxies report, whatever remains.
    pub reported: bool,
    /// The requests to which the limit does not apply.
    pub exempt: Exempt,
    /// Whether the limit rejects. A limit that is off is in no route.
    pub mode: Mode,
    /// Who shares the limit's buckets.
    pub scope: Scope,
    /// How the limit decides while Redis is out of reach.
    pub on_store_error: OnStoreError,
    /// The limit's own answer to a throttled client.
    pub reject: Option<Arc<AnswerSpec>>,
    /// The used share of a bucket, in percent, from which on its key is told to be near. `None` is never.
    pub near: Option<u8>,
    /// How keys are shown, in place of `log.keys`.
    pub log_keys: Option<KeyDisplay>,
    /// The name of the Redisson limiter. For a limit with a key it is the prefix of the limiters' names.
    /// Present if the algorithm is [`Algorithm::Redisson`].
    pub limiter: Option<String>,
}

impl LimitSpec {
    /// A limit of this name that lets everything pass. `config` writes all other fields.
    pub fn new(name: Name) -> Self {
        Self {
            name,
            key: KeySpec {
                sources: Vec::new().into(),
                missing: Missing::default(),
                prefixes: ClientPrefixes::default(),
            },
            figures: Figures::Unlimited,
            counting: None,
            overrides: KeyOverrides::default(),
            plans: Vec::new(),
            plan: None,
            window: None,
            windows: Vec::new(),
            cost: CostSpec::Fixed(Cost::ONE),
            is_cost_of_route: false,
            route_costs: Arc::default(),
            wait: MaxWait::NONE,
            max_waiting: 0,
            ban: None,
            candidate: None,
            count_when: None,
            reported: false,
            exempt: Exempt::default(),
            mode: Mode::Enforce,
            scope: Scope::Cluster,
            on_store_error: OnStoreError::Local,
            reject: None,
            near: None,
            log_keys: None,
            limiter: None,
        }
    }

    /// The headers of a request that the limit reads.
    pub(crate) fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        let cost = match &self.cost {
            CostSpec::Header { name, .. } => Some(&**name),
            CostSpec::Fixed(_) | CostSpec::Response { .. } => None,
        };
        self.key.headers().chain(self.exempt.headers()).chain(cost)
    }

    /// The same limit, with the costs that routes set for it. `cost` is the cost of one route, or `None` for the
    /// limit's own cost.
    pub(crate) fn of_routes(&self, cost: Option<&CostSpec>, route_costs: &Arc<[CostSpec]>) -> Self {
        let same = |spec: &Arc<Self>| Arc::new(spec.of_routes(cost, route_costs));
        Self {
            cost: cost.unwrap_or(&self.cost).clone(),
            is_cost_of_route: cost.is_some(),
            route_costs: Arc::clone(route_costs),
            plans: self.plans.iter().map(same).collect(),
            windows: self.windows.iter().map(same).collect(),
            candidate: self.candidate.as_ref().map(same),
            ..self.clone()
        }
    }

    /// All costs that a request may have: the limit's own cost, and the costs that routes set.
    pub(crate) fn costs(&self) -> impl Iterator<Item = &CostSpec> {
        std::iter::once(&self.cost).chain(&*self.route_costs)
    }

    /// The limit with the figures of this plan. `None` if the limit does not name the plan.
    pub(crate) fn of_plan(&self, plan: &Name) -> Option<&Arc<Self>> {
        self.plans.iter().find(|spec| spec.plan.as_ref() == Some(plan))
    }

    /// The limit with the figures of this plan, as [`LimitSpec::choose`] needs it.
    pub(crate) fn in_plan(&self, plan: &Name, is_default: bool) -> Option<LimitInPlan<'_>> {
        Some(LimitInPlan { spec: self.of_plan(plan)?, is_default })
    }

    /// The windows of other lengths in which a request counts that is decided by `decides`: this limit, or one of its
    /// plans.
    pub(crate) fn windows_beside(&self, decides: &Self) -> impl Iterator<Item = &Arc<Self>> {
        self.windows.iter().filter(|other| other.window != decides.window)
    }

    /// The figures for this key. The first of these counts: `running`, from an override that was set for the key while
    /// the process runs; the figures of an override in the file; those of the request's plan; the limit's own figures.
    /// An override that was set for all keys takes the place of all that the file says for everybody: of an override
    /// there with the key `*`, of the default plan, and of the limit's own figures.
    pub(crate) fn choose<'f, 'p: 'f>(
        &'p self,
        key: &Key,
        in_plan: Option<LimitInPlan<'p>>,
        running: Option<&'f RunningFigures>,
    ) -> ChosenFigures<'f, 'p> {
        let in_file = self.overrides.find(key);
        let (for_all, for_key) = match running {
            Some(it) if it.is_for_all => (Some(&it.figures), None),
            running => (None, running.map(|it| &it.figures)),
        };
        let of_file = in_file.filter(|it| for_all.is_none() || !it.is_for_all);
        let in_plan = in_plan.filter(|it| for_all.is_none() || !it.is_default);
        let of_plan = in_plan
            .and_then(|it| Some((&it.spec.figures, FiguresOf::Plan(it.spec.plan.as_ref()?))));
        let chosen = for_key
            .map(|figures| (figures, FiguresOf::Override(None)))
            .or(of_file.map(|it| (&it.figures, FiguresOf::Override(Some(it.line)))))
            .or(of_plan)
            .or(for_all.map(|figures| (figures, FiguresOf::AllKeys)));
        let (figures, of) = chosen.unwrap_or((&self.figures, FiguresOf::Limit));
        ChosenFigures { figures, of, key_name: in_file.and_then(|it| it.name.as_deref()) }
    }

    /// Whether the tokens of a request are known only when its response has ended.
    pub(crate) fn is_settled(&self) -> bool {
        self.count_when.is_some() || matches!(self.cost, CostSpec::Response { .. })
    }

    /// Whether any route settles its requests at this limit.
    pub(crate) fn is_ever_settled(&self) -> bool {
        let is_settled = |cost: &CostSpec| matches!(cost, CostSpec::Response { .. });
        self.count_when.is_some() || self.costs().any(is_settled)
    }

    /// Whether the limit must learn when a request has ended: it is settled then, or has slots.
    pub(crate) fn awaits_end(&self) -> bool {
        self.is_settled() || matches!(self.figures, Figures::Limited(Algorithm::Concurrency(_)))
    }
}

/// `ban` of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BanSpec {
    /// A sliding log of a key's rejections. The rejection that fills the log leads to a ban.
    pub(crate) rejections: Algorithm,
    /// How long the ban lasts.
    pub(crate) lasts: Duration,
    /// The answer to a banned client.
    pub(crate) answer: Arc<AnswerSpec>,
}

/// A limit with the figures of the plan that a request has.
#[derive(Clone, Copy)]
pub(crate) struct LimitInPlan<'p> {
    pub(crate) spec: &'p Arc<LimitSpec>,
    /// Whether the request names no plan, and this is `plans.default`.
    pub(crate) is_default: bool,
}

/// The figures of an override that was set while the process runs.
#[derive(Clone, Debug)]
pub(crate) struct RunningFigures {
    pub(crate) figures: Figures,
    /// Whether it is for all keys of the limit. Otherwise it is for one.
    pub(crate) is_for_all: bool,
    /// How long the ban still lasts. `None` if the override is not a ban.
    pub(crate) banned: Option<Duration>,
}

/// The figures by which a limit counts a request.
pub(crate) struct ChosenFigures<'f, 'p> {
    pub(crate) figures: &'f Figures,
    pub(crate) of: FiguresOf<'p>,
    /// The name that an override of the file gives the key.
    pub(crate) key_name: Option<&'p str>,
}

/// Where the figures for a request come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FiguresOf<'p> {
    /// From the limit itself.
    Limit,
    /// From this plan.
    Plan(&'p Name),
    /// From the override of the key in this line of the file, or from one that was set while the process runs.
    Override(Option<NonZeroU32>),
    /// From an override of all keys, which was set while the process runs.
    AllKeys,
}

impl<'p> FiguresOf<'p> {
    /// The plan that has the figures.
    pub(crate) fn plan(self) -> Option<&'p Name> {
        match self {
            Self::Plan(plan) => Some(plan),
            Self::Limit | Self::Override(_) | Self::AllKeys => None,
        }
    }
}

/// One of a limit's `overrides`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideSpec {
    /// The figures of its keys.
    pub(crate) figures: Figures,
    /// Whether its key is `*` in each part.
    pub(crate) is_for_all: bool,
    /// A name for its keys, for people who read the log or the page: a key may be a hash.
    pub(crate) name: Option<Box<str>>,
    /// The line of its `key` in the file.
    pub(crate) line: NonZeroU32,
}

/// The tokens that a request takes from a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSpec {
    /// The same cost for each request.
    Fixed(Cost),
    /// The cost in a header of the request.
    Header {
        /// The header's name.
        name: Box<HeaderName>,
        /// The cost of a request without the header.
        default: Cost,
        /// The highest cost that the header may name. `None` is the burst of the limit or of the request's key,
        /// whichever is larger.
        max: Option<Cost>,
    },
    /// The use that the response names. The request is settled when the response has ended.
    Response {
        /// Where the number stands in the response.
        source: Box<UsedSource>,
        /// The tokens that the request takes before its response is known.
        estimate: Estimate,
        /// The most tokens that one request can use; `None` is 100 times the burst.
        max: Option<u64>,
        /// The use that counts if the response names none.
        unknown: UnknownUse,
    },
}

impl CostSpec {
    /// The cost of a request that does not name its cost.
    pub(crate) fn default_cost(&self) -> Cost {
        match self {
            Self::Fixed(cost) | Self::Header { default: cost, .. } => *cost,
            Self::Response { estimate, .. } => estimate.at_least,
        }
    }

    /// `cost`, for a bucket that never gives more than `most` at once. A cost from the length of a request's body is
    /// only an estimate, so it is lowered to `most`: a long request waits for a full bucket, and is not refused for
    /// ever.
    pub(crate) fn within(&self, most: impl FnOnce() -> Cost, cost: Cost) -> Cost {
        match self {
            Self::Response { estimate: Estimate { at_least, per_byte: Some(_) }, .. } => {
                cost.min(most()).max(*at_least)
            }
            _ => cost,
        }
    }
}

/// How a limit decides while Redis is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreError {
    /// The process decides by its own buckets, with its share of the limit's figures.
    Local,
    /// The limit lets every request pass.
    Allow,
    /// The request is answered with 503.
    Reject,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::testing::settings;

    /// Every mixture of what can give the figures of a key. The first that is there counts, but an override of all keys
    /// takes the place of what the file says for everybody.
    #[test]
    fn the_figures_of_a_key_are_those_of_the_first_that_is_there() {
        let file = |overrides: &str| {
            let text = format!(
                "[plans]\nby = \"ip\"\n[limits.a]\nkey = [\"header:x-user\", \"ip\"]\nrate = \"1/s\"\n\
                 plans = {{ pro = \"3/s\" }}\noverrides = [{overrides}]\n\
                 [[routes]]\npath = \"/\"\nrespond = {{}}\nlimits = [\"a\"]\n"
            );
            settings(&text).limits.remove(0)
        };
        let key = Key::of([Some(&b"b"[..]), Some(b"192.0.2.1")]);
        let of_key = Figures::Limited(Algorithm::Closed);
        let one = RunningFigures { figures: of_key, is_for_all: false, banned: None };
        let all = RunningFigures { figures: Figures::Unlimited, is_for_all: true, banned: None };
        let (one, all) = (Some(&one), Some(&all));
        let (none, any) = ("", "{ key = [\"*\", \"*\"], rate = \"2/s\" }");
        let (of_user, of_network) = (
            "{ key = [\"b\", \"*\"], rate = \"4/s\" }",
            "{ key = [\"*\", \"192.0.2.0/24\"], rate = \"4/s\" }",
        );
        let (named, default) = (Some(false), Some(true));
        for (overrides, plan, set, expected) in [
            (none, None, None, "1/s"),
            (none, default, None, "3/s"),
            (none, named, None, "3/s"),
            (any, named, None, "2/s"),
            (of_user, named, None, "4/s"),
            (of_user, named, one, "0/s"),
            (none, None, all, "unlimited"),
            (none, default, all, "unlimited"),
            (none, named, all, "3/s"),
            (any, None, all, "unlimited"),
            (any, default, all, "unlimited"),
            (any, named, all, "3/s"),
            (of_user, None, all, "4/s"),
            (of_network, named, all, "4/s"),
            (any, named, one, "0/s"),
        ] {
            let spec = file(overrides);
            let pro = Name::new("pro").unwrap();
            let in_plan = plan.and_then(|is_default| spec.in_plan(&pro, is_default));
            let chosen = spec.choose(&key, in_plan, set);
            let found = chosen.figures.rate().unwrap();
            assert_eq!(found, expected, "{overrides}, {plan:?}, {set:?}");
            let of = match expected {
                "1/s" => "Limit",
                "3/s" => "Plan",
                "unlimited" => "AllKeys",
                _ => "Override",
            };
            assert!(format!("{:?}", chosen.of).starts_with(of), "{:?}", chosen.of);
        }
    }
}
