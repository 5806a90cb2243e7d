//! `[limits.NAME]`: the settings, and the limit that they make. A setting that takes more than a line of
//! code has its own file.

pub(crate) mod algorithm;
mod ban;
pub(crate) mod cost;
mod figures;
mod overrides;
pub(crate) mod plans;
mod rate;
mod redisson;
mod waiting;
mod window;

use std::sync::Arc;

use self::algorithm::{Counting, Family, counting};
pub(crate) use self::ban::BAN;
pub(crate) use self::cost::COST;
use self::cost::CostBounds;
pub(crate) use self::overrides::OVERRIDE;
pub(crate) use self::plans::PLAN;
use self::plans::{PLANS, PlanDraft};
pub(crate) use self::waiting::CANDIDATE;
use self::window::AlignWord;
use super::answer::{self, REJECT, percent};
use super::headers;
use super::key::key_source;
use super::values::{METHOD, Named, method, named, network_item, once, once_each, pattern};
use crate::config::reader::{
    Count, Item, Kind, Mask, Required, Section, SettingList, Shape, Span, Spelled, Value, Words,
    at, field, fields, read, setting, spellings, words,
};
use crate::limit::algorithm::redisson::Sharing;
use crate::limit::name::Name;
use crate::limit::rate::{Cost, MAX_TOKENS};
use crate::limit::{Mode, Scope};
use crate::request::exempt::{Exempt, Exemptions};
use crate::request::key::{KeySource, KeySpec, Missing};
use crate::request::overrides::{KeyOverrides, Part};
use crate::request::route::{Conditions, Pattern, RouteTable};
use crate::settings::response::{StatusPattern, Statuses};
use crate::settings::{
    AnswerSpec, CostSpec, Figures, KeyDisplay, LimitSpec, OnStoreError, StoreLocation,
};

type Spec = LimitSpec;

pub(crate) static LIMIT: Shape =
    Shape { elsewhere: rate::ELSEWHERE, ..Shape::new("[limits.NAME]", || fields(SETTINGS)) };

#[rustfmt::skip]
pub(crate) static SETTINGS: SettingList<Spec> = &[
    field("key", Kind::List(0, &Kind::KEY_SOURCE), Value("[]"),
        "the parts of the key by which the limit counts: `\"ip\"`, `\"path\"`, `\"method\"`, `\"host\"`, `\"route\"`, `\"header:NAME\"` (of `mcp-name` and `mcp-method` the text that `=?base64?…?=` encodes), `\"cookie:NAME\"`, `\"query:NAME\"`, `\"param:NAME\"`, `\"cert\"` (the subject of the client's certificate, as in `CN=alice,O=Example`), `\"jwt:CLAIM\"` (a claim of a verified token, see `[jwt.NAME]`), `\"body:NAME\"` (a field of a JSON body, nested by dots, or of a form, up to 64 KiB); `[]` is one bucket for all; `\"header:x-api-key | ip\"` is the first of them that the request has, and values of different ones never meet"),
    setting(at!("missing", key.missing), Kind::Word(spellings::<Missing>), Value("\"shared\""),
        "a request without that header, cookie …: one bucket for all of them, no limit, or 400 (401 if it is a claim or `authorization`)"),
    field("algorithm", Kind::Word(spellings::<Family>), Value("\"token-bucket\""), "how it counts"),
    field("align", Kind::Word(spellings::<AlignWord>), Value("\"first-request\""),
        "a window opens at a key's first request, or by the clock"),
    field("timezone", Kind::Text, Value("\"UTC\""),
        "beside `align = \"clock\"`: whose days, weeks (from Monday) and months, as in `\"Europe/Berlin\"`"),
    field("rate", Kind::Rate, Words("required, but for `redisson`"),
        "tokens each interval: `\"100/s\"`, `\"1000/10m\"`, `\"unlimited\"`, `\"0/s\"`; a fixed window on the clock has `\"100000/month\"` too"),
    field("burst", Kind::Whole(1, MAX_TOKENS), Count("the rate's count"), "the bucket's size"),
    field("queue", Kind::Whole(0, MAX_TOKENS - 1), Count("the rate's count"),
        "how many requests are held at most; one more is rejected"),
    field("limit", Kind::Whole(1, MAX_TOKENS), Words("required"), "requests that may be under way at once"),
    field("lease", Kind::Duration(1_000, "expected at least \"1s\": it is renewed three times in that time"), Value("\"60s\""),
        "in Redis, a slot whose proxy died is free again after this time; at least `\"1s\"`"),
    field("cost", Kind::Either(&[Kind::Whole(1, MAX_TOKENS), Kind::Table(&COST)]), Value("1"),
        "what a request takes: a number, or what a header or the response says"),
    setting(at!(count_when, count_when), Kind::Table(&COUNT_WHEN), Words("every request"),
        "only responses with these statuses count; requests with other statuses get back what they took"),
    setting(at!(reported), Kind::Flag, Value("false"),
        "what another proxy reports when a request is over (hits of Envoy, `used` of `/settle`) is taken whatever remains, down to 100 bursts below zero; a call that only looks is over the limit while less than one token is left"),
    field("wait", Kind::TIME, Value("\"0s\""),
        "a request that would be allowed within this time is held until then; without `wait` a leaky bucket holds as long as its queue needs, and with `\"0s\"` it holds nothing"),
    setting(at!(max_waiting), Kind::Whole(0, 1_000_000), Value("1000"),
        "requests that this process holds at once for this limit, at most half of them of one client address; more are rejected"),
    setting(at!(exempt, exempt), Kind::Table(&EXEMPT), Words("none"),
        "requests that this limit does not count; one entry that fits is enough"),
    setting(at!(scope), Kind::Word(spellings::<Scope>), Value("\"cluster\""),
        "one bucket for all processes that share the store, or one for each process"),
    field("mode", Kind::Word(spellings::<ModeWord>), Value("\"enforce\""),
        "shadow: checked, counted, logged, and never rejects; mark: as shadow, and the API gets `tidegate-over` with the limits that would reject the request"),
    field("ban", Kind::Table(&BAN), Words("none"),
        "a key that is rejected often has the rate `\"0/s\"` for a time, on all proxies; keys with an override are never banned"),
    field("candidate", Kind::Table(&CANDIDATE), Words("none"),
        "other figures, tried in shadow in place of the limit's own on the same traffic"),
    setting(at!(near, percent), Kind::Percent, Words("none"),
        "a key that has used this share of what its bucket holds is told once, in the line `near limit`, and again only after it was below"),
    setting(at!(log_keys), Kind::Word(spellings::<KeyDisplay>), Words("`log.keys`"),
        "whether values of headers, cookies, query, tokens and bodies stand in logs and in Redis, for this limit"),
    setting(at!(on_store_error), Kind::Word(spellings::<OnStoreError>), Words("the store's `on_error`; `allow` for `local` where a `redisson` limiter has no `rate`"), "while Redis is out of reach"),
    field("overrides", Kind::List(0, &Kind::Table(&OVERRIDE)), Value("[]"), "other figures for some keys"),
    field("plans", PLANS, Words("none"),
        "other figures by the request's plan, which `[plans]` finds: `{ pro = \"600/m\" }`; a request without one of these plans has the limit's own, and `overrides` win over plans"),
    field("reject", Kind::Table(&REJECT), Words("the file's"), "this limit's own `[reject]`"),
    field("name", Kind::Text, Words("required"),
        "the name of the `RRateLimiter`; with a `key` the name is this, a colon and the key's values joined by colons"),
    field("type", Kind::Word(spellings::<Sharing>), Value("\"overall\""),
        "one budget for all clients of the limiter, or one for each process; used where Redis has no figures yet"),
    field("keep_alive", Kind::TIME_ABOVE_ZERO, Words("none"),
        "beside `rate`: the limiter's keys expire this long after each use, as with Redisson's `keepAliveTime`; without it they never expire. At least the rate's interval; used where Redis has no figures yet"),
];

words!(Missing { "shared" => Shared, "skip" => Skip, "reject" => Reject });

words!(Scope { "cluster" => Cluster, "node" => Node });

/// The values of `mode` in the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ModeWord {
    On(Mode),
    Off,
}

impl Spelled for ModeWord {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("enforce", Self::On(Mode::Enforce)),
        ("shadow", Self::On(Mode::Shadow)),
        ("mark", Self::On(Mode::Mark)),
        ("off", Self::Off),
    ];
}

/// A limit's `exempt`.
pub(crate) static EXEMPT: Shape = Shape::new("exempt", || fields(OF_EXEMPT));

#[rustfmt::skip]
static OF_EXEMPT: SettingList<()> = &[
    field("ip", Kind::List(0, &Kind::Network), Value("[]"), "clients' networks"),
    field("path", Kind::List(0, &Kind::PATH), Value("[]"), "path patterns as in routes"),
    field("method", Kind::List(0, &METHOD), Value("[]"),
        "methods: with `[\"OPTIONS\"]` the limit does not count preflights of browsers"),
    field("header", Kind::TEXT_TABLE, Words("none"), "headers with this value, in any of its spellings")
        .masked(Mask::Secret),
];

/// A limit's `count_when`.
pub(crate) static COUNT_WHEN: Shape = Shape::new("count_when", || fields(OF_COUNT_WHEN));

#[rustfmt::skip]
static OF_COUNT_WHEN: SettingList<()> = &[
    field("status", Kind::List(1, &Kind::Form(r"[1-9](\d\d|xx)")), Required,
        "statuses as the client gets them: `\"401\"`, `\"5xx\"`"),
];

/// Settings of other sections that limits use.
pub(crate) struct Inherited<'i> {
    pub(crate) on_store_error: OnStoreError,
    pub(crate) reject: &'i AnswerSpec,
    /// The names of the tables `[jwt.NAME]`.
    pub(crate) tables: &'i [String],
    /// `None` if the file's store is wrong.
    pub(crate) store: Option<&'i StoreLocation>,
}

/// A limit, with the positions that later checks need.
pub(crate) struct LimitDraft {
    pub(crate) spec: LimitSpec,
    /// Whether the limit is in the settings: its `mode` is not `off`.
    pub(crate) on: bool,
    /// The parts of the limit's key with their positions.
    pub(crate) sources: Vec<(KeySource, Span)>,
    /// The key parts of each override, with the position of its key.
    pub(crate) override_spans: Vec<(Vec<Part>, Span)>,
    pub(crate) plans: Vec<PlanDraft>,
    bounds: CostBounds,
}

impl LimitDraft {
    /// The cost that an entry of a route's `limits` sets for this limit. `None` if the entry sets no cost.
    pub(crate) fn cost_of_route(&self, entry: &mut Section<'_>) -> Option<CostSpec> {
        algorithm::refuse(entry, self.bounds.family);
        cost::build(entry, &self.bounds)
    }

    /// All sources of the key, with the positions of the parts that name them.
    pub(crate) fn alternatives(&self) -> impl Iterator<Item = (&KeySource, &Span)> {
        self.sources
            .iter()
            .flat_map(|(part, span)| part.alternatives().iter().map(move |source| (source, span)))
    }
}

pub(crate) fn build(root: &mut Section<'_>, inherited: &Inherited<'_>) -> Vec<Named<LimitDraft>> {
    named(root, "limits", &LIMIT, |section, name| one(section, name, inherited))
}

fn one(mut section: Section<'_>, name: Name, inherited: &Inherited<'_>) -> Option<LimitDraft> {
    let counting = counting(&mut section);
    let is_redisson = counting.as_ref().is_some_and(|it| it.family == Family::Redisson);
    let sources = self::sources(&mut section, is_redisson);
    // This comes first, because the figures take the field.
    let has_rate = section.has(|field| field == "rate");
    let (limiter, figures) = match is_redisson {
        true => redisson::build(&mut section, inherited.store),
        false => (None, figures::figures(&mut section, counting.as_ref())),
    };
    let overrides =
        overrides::build(&mut section, counting.as_ref(), sources.as_deref(), inherited);
    let candidate = waiting::candidate(&mut section, counting.as_ref());
    let plans = plans::build(&mut section, counting.as_ref());
    let own = figures.as_ref().map(|figures| (figures.capacity(), None));
    let of_overrides = overrides.iter().map(|o| (o.spec.figures.capacity(), Some(o.span.clone())));
    let of_plans = plans.iter().map(|plan| (plan.figures.capacity(), Some(plan.span.clone())));
    let tried = candidate.iter().map(|(figures, span)| (figures.capacity(), Some(span.clone())));
    let bursts = own.into_iter().chain(of_overrides).chain(of_plans).chain(tried);
    let bounds = CostBounds {
        family: counting.as_ref().filter(|_| figures.is_some()).map(|it| it.family),
        bursts: bursts.filter_map(|(burst, span)| Some((burst?, span))).collect(),
    };
    let cost = cost::build(&mut section, &bounds);
    if is_redisson {
        let sources = sources.as_deref().unwrap_or_default();
        redisson::check(&section, figures.as_ref(), sources);
    }
    let mode = section.plain::<ModeWord>("mode");
    let reject = section.take("reject").and_then(|item| item.section(&REJECT, "reject"));
    let reject = reject.map(|section| Arc::new(answer::of_limit(section, inherited.reject)));
    let answer = reject.as_deref().unwrap_or(inherited.reject);
    let ban = section.take("ban").and_then(|item| ban::ban(&item, sources.as_deref(), answer));
    let (prefixes, _) = section.cx.key_form.get();
    // For messages about values that a Redisson limiter cannot have.
    let (scope, on_store_error) = (section.item("scope"), section.item("on_store_error"));
    // A default stands in for a wrong value: the settings are not used then.
    let mut spec = LimitSpec {
        figures: figures.unwrap_or(Figures::Unlimited),
        cost: cost.unwrap_or(CostSpec::Fixed(Cost::ONE)),
        wait: waiting::wait(&mut section, counting.as_ref()),
        mode: match mode {
            Some(ModeWord::On(mode)) => mode,
            Some(ModeWord::Off) | None => Mode::Enforce,
        },
        on_store_error: inherited.on_store_error,
        reject,
        ban,
        limiter,
        counting: counting.as_ref().and_then(Counting::kind),
        ..LimitSpec::new(name)
    };
    spec = read(SETTINGS, section, spec);
    if is_redisson {
        redisson::settle(&mut spec, scope.as_ref(), on_store_error.as_ref(), has_rate);
    }

    // This comes late, because the other problems of the limit must be reported too.
    let sources = sources?;
    spec.key = KeySpec {
        sources: sources.iter().map(|(source, _)| source.clone()).collect::<Vec<_>>().into(),
        missing: spec.key.missing,
        prefixes,
    };
    spec.plans = plans::specs(&spec, &plans);
    spec.windows = plans::windows(&spec, &spec.plans);
    let override_spans = overrides.iter().map(|o| (o.parts.clone(), o.span.clone())).collect();
    spec.overrides = KeyOverrides::new(overrides.into_iter().map(|o| (o.parts, o.spec)).collect());
    spec.candidate = candidate.map(|(figures, _)| Arc::new(waiting::trying(&spec, figures)));
    let on = mode != Some(ModeWord::Off);
    Some(LimitDraft { spec, on, sources, override_spans, plans, bounds })
}

/// The parts of a key with their positions. `None` if a part is wrong. A Redisson limiter is one bucket for all
/// requests unless its key says more.
fn sources(section: &mut Section<'_>, is_redisson: bool) -> Option<Vec<(KeySource, Span)>> {
    let items = match section.take("key") {
        Some(item) => item.list()?,
        None if is_redisson || section.is_misspelt("key") => Vec::new(),
        None => {
            section.cx.warning(
                &section.span,
                format!("{} names no `key`: one bucket for all requests", section.title),
                "expected `key = [\"ip\"]` here, or `key = []` where one bucket is meant",
            );
            Vec::new()
        }
    };
    let sources = once(&items, key_source, |source| Some(source.clone()), KeySource::to_string);
    (sources.len() == items.len()).then_some(sources)
}

fn exempt(item: &Item<'_>) -> Option<Exempt> {
    let mut inner = item.section(&EXEMPT, "exempt")?;
    let text = |pattern: &Pattern| pattern.as_str().to_owned();
    let paths = once(&inner.list("path"), pattern, |path| Some(text(path)), text);
    let paths = paths.into_iter().map(|(path, _)| (path, Conditions::default()));
    let exempt = Exemptions {
        networks: once_each(&inner.list("ip"), network_item),
        paths: RouteTable::new(paths.collect()),
        methods: once_each(&inner.list("method"), method),
        headers: headers::values(&mut inner, "header"),
    };
    inner.finish();
    Some(exempt.into())
}

fn count_when(item: &Item<'_>) -> Option<Box<Statuses>> {
    const STATUS: &str =
        "expected a status as in \"401\", or a class as in \"5xx\", that a client can get";
    let mut inner = item.section(&COUNT_WHEN, "count_when")?;
    let list = inner.require("status", "[\"401\"]");
    inner.finish();
    let list = list?;
    let items = list.list()?;
    if items.is_empty() {
        list.reject("expected one status at least: without any, nothing would ever count");
    }
    Some(Box::new(Statuses(once_each(&items, |item| item.form(STATUS, StatusPattern::new)))))
}
