//! Reads all sections, and puts their parts together into a [`Settings`]. Before that, `doubts` checks all parts.

use std::sync::Arc;

use http::{HeaderName, StatusCode};
use smallvec::SmallVec;
use toml::de::DeTable;

use super::reader::{Context, Item, Section, Span, read};
use super::section::admin::ADMIN;
use super::section::decide::DECIDE;
use super::section::limit::{LimitDraft, cost};
use super::section::listen::refuse_overlaps;
use super::section::log::LOG;
use super::section::plans::PlansDraft;
use super::section::route::names::names;
use super::section::route::{ROUTE, RouteDraft, UsedLimit};
use super::section::server::SERVER;
use super::section::store::{STORE, StoreDraft};
use super::section::test_case::TEST;
use super::section::trace::TRACE;
use super::section::values::{Named, Names};
use super::section::{
    REJECT, ROOT, admin, answer, cors, decide, jwt, limit, log, plans, route, server, store,
    test_case, trace, upstream,
};
use crate::limit::Mode;
use crate::limit::name::Name;
use crate::plans::PlanRule;
use crate::request::key::KeySpec;
use crate::request::known_fields::KnownFields;
use crate::request::route::RouteTable;
use crate::request::value::OF_MCP;
use crate::settings::{
    Action, AdminSpec, AnswerSpec, Balance, CorsSpec, DecideSpec, HeaderChanges, JwtSpec,
    LimitSpec, LogSpec, NO_ROUTE, RouteSpec, ServerSpec, Settings, StoreSpec, TestCase, TraceSpec,
    UpstreamSpec,
};

/// The help for a file without routes. An empty file is an error too: it must not replace a configuration
/// that is in force.
const ROUTE_EXAMPLE: &str =
    "add `[[routes]]` with `path = \"/{*rest}\"` and `upstream = \"NAME\"` below it";

/// The settings of the file. `None` only if a problem was noted. If a noted problem is an error, the settings must not be
/// used.
pub(super) fn settings(cx: &Context<'_>, tree: &DeTable<'_>) -> Option<Settings> {
    let sections = Sections::read(cx, tree)?;
    sections.check();
    sections.finish()
}

/// All sections of the file.
pub(super) struct Sections<'c> {
    pub(super) cx: &'c Context<'c>,
    pub(super) server: ServerSpec,
    /// `[decide]`, and the position of its `listen`.
    pub(super) decide: (DecideSpec, Span),
    pub(super) upstreams: Vec<Named<UpstreamSpec>>,
    pub(super) limits: Vec<Named<LimitDraft>>,
    pub(super) jwt: Vec<Named<JwtSpec>>,
    /// `[plans]`, if the file has it.
    pub(super) plans: Option<PlansDraft>,
    /// The limits of `[server]`, which every request meets.
    pub(super) everywhere: Vec<UsedLimit>,
    pub(super) routes: Vec<RouteDraft>,
    /// The names of the routes.
    pub(super) names: Vec<Arc<str>>,
    store: StoreSpec,
    reject: AnswerSpec,
    pub(super) cors: Option<CorsSpec>,
    log: LogSpec,
    admin: AdminSpec,
    trace: TraceSpec,
    tests: Vec<TestCase>,
    /// Whether `[server]` has no errors. With an error, `server` is perhaps not what was meant.
    pub(super) is_server_right: bool,
    /// Whether `everywhere` has all limits that were meant.
    pub(super) has_everywhere: bool,
    /// Whether `routes` has all routes that were meant.
    pub(super) has_all_routes: bool,
}

impl<'c> Sections<'c> {
    /// `None` only if a problem was noted.
    fn read(cx: &'c Context<'c>, tree: &'c DeTable<'c>) -> Option<Self> {
        let mut root = Section::new(cx, tree, 0..0, &ROOT);
        let (mut server, has_server) = cx.watched(|| root.table("server", &SERVER));
        let everywhere = server.take("limits");
        let decides = root.has(|name| name == "decide");
        let ((server, mut taken), is_server_right) = cx.watched(|| server::build(server, decides));
        cx.key_form.set((server.prefixes, server.loose_paths));
        let StoreDraft { spec: store, is_known, on_error: on_store_error } =
            store::build(root.table("store", &STORE));
        let reject = root.table("reject", &REJECT);
        let reject = read(answer::SETTINGS, reject, AnswerSpec::default());
        let cors = cors::build(&mut root);
        let log = read(log::SETTINGS, root.table("log", &LOG), LogSpec::default());
        let decide = decide::build(root.table("decide", &DECIDE), &server, &mut taken);
        let admin = admin::build(root.table("admin", &ADMIN), &mut taken);
        refuse_overlaps(cx, &taken);
        let trace = trace::build(root.table("trace", &TRACE));
        let upstreams = upstream::build(&mut root);
        let jwt = jwt::build(&mut root);
        let tables: Vec<_> = jwt.iter().map(|table| table.name.clone()).collect();
        let store_of_limits = Some(&store.location).filter(|_| is_known);
        let inherited = limit::Inherited {
            on_store_error,
            reject: &reject,
            tables: &tables,
            store: store_of_limits,
        };
        let mut limits = limit::build(&mut root, &inherited);
        let plans = plans::build(&mut root);
        let (routes, tests) = (root.take("routes"), root.take("tests"));
        let ((), has_all_sections) = cx.watched(|| root.finish());
        // If `routes` is not a list, `list` has noted the problem.
        let items = routes.map_or_else(|| Some(Vec::new()), |item| item.list())?;
        if items.is_empty() {
            cx.error(&(0..0), "the file has no routes", "expected at least one")
                .help(ROUTE_EXAMPLE);
            return None;
        }
        let known = route::Known {
            upstreams: Names::new("upstreams", upstreams.iter().map(|it| it.name.as_str())),
            limits: Names::new("limits", limits.iter().map(|it| it.name.as_str())),
            drafts: &limits,
            only_decides: decides && server.listen.is_empty() && server.tls.is_none(),
        };
        let (everywhere, has_everywhere) =
            cx.watched(|| route::used_limits(everywhere.as_ref(), &known, true));
        let sections = items.iter().filter_map(|item| item.section(&ROUTE, "[[routes]]"));
        let routes: Vec<_> = sections.map(|section| route::build(section, &known)).collect();
        let names = names(cx, &routes);
        let tests = test_cases(tests, &known.limits, &names);
        note_costs(&mut limits, routes.iter().flat_map(|route| &route.limits).chain(&everywhere));
        let is_server_right = is_server_right && has_server && has_all_sections;
        let has_all_routes = has_all_sections && routes.len() == items.len();
        Some(Self {
            cx,
            server,
            decide,
            upstreams,
            limits,
            jwt,
            plans,
            everywhere,
            routes,
            names,
            store,
            reject,
            cors,
            log,
            admin,
            trace,
            tests,
            is_server_right,
            has_everywhere,
            has_all_routes,
        })
    }

    /// `None` only if a problem was noted.
    fn finish(self) -> Option<Settings> {
        let upstreams = self.upstreams.into_iter().map(|upstream| upstream.value);
        let jwt = self.jwt.into_iter().map(|table| table.value.map(Arc::new));
        let jwt: Vec<_> = jwt.collect::<Option<_>>()?;
        let limits = self.limits.into_iter().map(|limit| limit.value);
        let limits: Vec<LimitDraft> = limits.collect::<Option<_>>()?;
        let named = limits.iter().flat_map(|limit| &limit.plans).map(|plan| plan.name.clone());
        let plans = self.plans.and_then(|plans| plans.rule(named.collect(), &jwt)).map(Arc::new);
        let (mut used, off) = UsedLimits::new(limits);
        let (limits, everywhere) = (used.specs.clone(), self.everywhere);
        let (mut routes, mut matchers) = (Vec::new(), Vec::new());
        for (draft, name) in self.routes.into_iter().zip(self.names) {
            let everywhere = if draft.usage.is_empty() { &everywhere[..] } else { &[] };
            let limits = used.indexes(everywhere, &draft.limits);
            let told = used.indexes(&[], &draft.usage);
            let (matcher, mut route) = draft.finish(name, limits)?;
            if let Action::Usage { limits } = &mut route.action {
                **limits = told;
            }
            cost::keep_readable(&mut route, &used.specs);
            read_bodies(&mut route, &used.specs, plans.as_deref());
            matchers.push(matcher);
            routes.push(route);
        }
        let mut without_route = no_route(used.indexes(&everywhere, &[]));
        read_bodies(&mut without_route, &used.specs, plans.as_deref());
        let conditions = || matchers.iter().map(|(_, conditions)| conditions);
        let methods = conditions().flat_map(|it| it.methods.iter().cloned()).collect();
        let named = || conditions().flat_map(|it| &it.headers).map(|it| &it.0);
        let is_named = |coded: &&HeaderName| named().any(|name| name == *coded);
        let coded_conditions = OF_MCP.iter().filter(is_named).cloned().collect();
        let known_fields = KnownFields::of(named());
        let mut settings = Settings {
            methods,
            coded_conditions,
            known_fields,
            server: self.server,
            upstreams: upstreams.collect::<Option<_>>()?,
            limits,
            used: used.specs,
            plans,
            off,
            no_route: without_route,
            table: RouteTable::new(matchers),
            routes,
            jwt,
            store: self.store,
            reject: Arc::new(self.reject),
            cors: self.cors,
            log: self.log,
            admin: self.admin,
            decide: self.decide.0,
            trace: self.trace,
            tests: self.tests,
        };
        know_fields(&mut settings);
        Some(settings)
    }
}

/// The file's tests, which may expect these limits and routes.
fn test_cases(list: Option<Item<'_>>, limits: &Names<'_>, routes: &[Arc<str>]) -> Vec<TestCase> {
    let routes = Names::new("routes", routes.iter().map(|name| &**name).chain([NO_ROUTE]));
    let items = list.and_then(|item| item.list()).unwrap_or_default();
    let sections = items.iter().filter_map(|item| item.section(&TEST, TEST.title));
    sections.filter_map(|section| test_case::build(section, limits, &routes)).collect()
}

/// Adds to each limit the costs that these lists set for it.
fn note_costs<'u>(limits: &mut [Named<LimitDraft>], used: impl Iterator<Item = &'u UsedLimit>) {
    let mut costs: Vec<Vec<_>> = limits.iter().map(|_| Vec::new()).collect();
    for UsedLimit { limit, cost, .. } in used {
        if let Some(cost) = cost.clone().filter(|cost| !costs[*limit].contains(cost)) {
            costs[*limit].push(cost);
        }
    }
    for (limit, costs) in limits.iter_mut().zip(costs).filter(|(_, costs)| !costs.is_empty()) {
        if let Some(LimitDraft { spec, .. }) = &mut limit.value {
            *spec = spec.of_routes(None, &costs.into());
        }
    }
}

/// Collects the limits as routes use them.
struct UsedLimits {
    /// The list that becomes [`Settings::used`].
    specs: Vec<Arc<LimitSpec>>,
    /// How many entries of `specs` have the limit's own cost. These come first.
    own: usize,
    /// Where each limit of the file stands in `specs`. `None` for a limit that is off.
    of_file: Vec<Option<usize>>,
}

impl UsedLimits {
    /// Starts with the limits that are on. Also returns the names of the limits that are off.
    fn new(limits: Vec<LimitDraft>) -> (Self, Vec<Name>) {
        let (mut specs, mut off, mut of_file) = (Vec::new(), Vec::new(), Vec::new());
        for LimitDraft { spec, on, .. } in limits {
            of_file.push(on.then_some(specs.len()));
            match on {
                true => specs.push(Arc::new(spec)),
                false => off.push(spec.name),
            }
        }
        (Self { own: specs.len(), specs, of_file }, off)
    }

    /// The indexes of a route's limits: those of `everywhere`, then its `own`. Limits that are off are left out.
    fn indexes(&mut self, everywhere: &[UsedLimit], own: &[UsedLimit]) -> SmallVec<[u32; 4]> {
        let of_route = |one: &UsedLimit| own.iter().find(|other| other.limit == one.limit);
        let first = everywhere.iter().map(|one| of_route(one).unwrap_or(one));
        let rest = own.iter().filter(|own| !everywhere.iter().any(|one| one.limit == own.limit));
        first.chain(rest).filter_map(|one| self.index(one)).collect()
    }

    /// The index in `specs` of a limit with this cost. `None` if the limit is off.
    fn index(&mut self, UsedLimit { limit, cost, .. }: &UsedLimit) -> Option<u32> {
        let mut index = self.of_file[*limit]?;
        if let Some(cost) = cost {
            let spec = Arc::clone(&self.specs[index]);
            let is_it = |it: &Arc<LimitSpec>| it.name == spec.name && it.cost == *cost;
            index = self.own + self.specs[self.own..].iter().take_while(|it| !is_it(it)).count();
            if index == self.specs.len() {
                self.specs.push(Arc::new(spec.of_routes(Some(cost), &spec.route_costs)));
            }
        }
        u32::try_from(index).ok()
    }
}

/// The route of requests without a route.
fn no_route(limits: SmallVec<[u32; 4]>) -> RouteSpec {
    let action = Action::Respond { status: StatusCode::NOT_FOUND, body: Box::default() };
    RouteSpec { name: NO_ROUTE.into(), action, limits, options: None }
}

/// Notes which fields of a body a route's limits read.
fn read_bodies(route: &mut RouteSpec, limits: &[Arc<LimitSpec>], rule: Option<&PlanRule>) {
    let told = match &route.action {
        Action::Usage { limits } => limits.as_slice(),
        _ => &[],
    };
    let indexes = route.limits.iter().chain(told).filter_map(|it| usize::try_from(*it).ok());
    let own: Vec<_> = indexes.filter_map(|index| limits.get(index)).collect();
    let rule = rule.filter(|_| own.iter().any(|limit| !limit.plans.is_empty()));
    let rules_body = rule.is_some_and(|rule| rule.by.body_fields().next().is_some());
    let reads = |it: &LimitSpec| {
        it.key.body_fields().next().is_some() || rules_body && !it.plans.is_empty()
    };
    let awaits_body = own.iter().any(|limit| limit.mode == Mode::Enforce && reads(limit));
    let keys = own.iter().map(|limit| &limit.key).chain(rule.map(|rule| &rule.by));
    let fields: Vec<_> = keys.flat_map(KeySpec::body_fields).cloned().collect();
    if !fields.is_empty() {
        let options = route.options.get_or_insert_default();
        (options.body_fields, options.awaits_body) = (fields, awaits_body);
    }
}

/// Notes which fields the file names besides those in the conditions of routes: those that balancing, plans and limits
/// read, that have tokens, that name clients or requests, and those that routes decide.
fn know_fields(settings: &mut Settings) {
    let Settings { server, upstreams, plans, jwt, used, routes, known_fields, .. } = settings;
    let balance = upstreams.iter().filter_map(|upstream| match &upstream.balance {
        Balance::Hash(key) => Some(key.headers()),
        _ => None,
    });
    let changes = routes.iter().filter_map(|route| route.options().request.as_ref());
    let shared = upstreams.iter().filter_map(|upstream| upstream.share_by.as_ref());
    let names = balance.flatten().chain(shared.flat_map(KeySpec::headers));
    let names = names.chain(plans.iter().flat_map(|rule| rule.by.headers()));
    let names = names.chain(jwt.iter().filter_map(|table| table.place.header()));
    let names = names.chain(used.iter().flat_map(|limit| limit.headers()));
    let names = names.chain(changes.flat_map(HeaderChanges::decided));
    let address = server.trust.header.name();
    known_fields.add(names.chain(&server.request_id).chain([&address]));
}
