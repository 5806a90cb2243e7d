//! Puts the parts that the sections make together into a [`Settings`]. Before that, `doubts` checks all parts.

use std::sync::Arc;

use http::StatusCode;
use smallvec::SmallVec;
use toml::de::DeTable;

use super::doubts::Whole;
use super::reader::{Context, Item, Section, read};
use super::section::admin::ADMIN;
use super::section::decide::DECIDE;
use super::section::limit::{LimitDraft, cost};
use super::section::log::LOG;
use super::section::route::ROUTE;
use super::section::route::names::names;
use super::section::server::SERVER;
use super::section::store::{STORE, StoreDraft};
use super::section::test_case::TEST;
use super::section::trace::TRACE;
use super::section::values::Names;
use super::section::{
    REJECT, ROOT, admin, answer, decide, jwt, limit, log, plans, route, server, store, test_case,
    trace, upstream,
};
use crate::limit::Mode;
use crate::limit::name::Name;
use crate::plans::PlanRule;
use crate::request::key::KeySpec;
use crate::request::known_fields::KnownFields;
use crate::request::route::{Conditions, Pattern, RouteTable};
use crate::settings::{
    Action, AnswerSpec, Balance, HeaderChanges, JwtSpec, LimitSpec, LogSpec, NO_ROUTE, RouteSpec,
    ServerSpec, Settings, TestCase, UpstreamSpec,
};

/// The help for a file without routes. An empty file is an error too: it must not replace a configuration
/// that is in force.
const ROUTE_EXAMPLE: &str =
    "add `[[routes]]` with `path = \"/{*rest}\"` and `upstream = \"NAME\"` below it";

/// The settings of the file. `None` only if a problem was noted. If a noted problem is an error, the settings must not be
/// used.
pub(super) fn settings(cx: &Context<'_>, tree: &DeTable<'_>) -> Option<Settings> {
    let mut root = Section::new(cx, tree, 0..0, &ROOT);
    let (mut server, has_server) = cx.watched(|| root.table("server", &SERVER));
    let everywhere = server.take("limits");
    let decides = root.has(|name| name == "decide");
    let ((server, mut taken), is_server_right) = cx.watched(|| server::build(server, decides));
    let StoreDraft { spec: store, is_known, on_error: on_store_error } =
        store::build(root.table("store", &STORE));
    let reject = root.table("reject", &REJECT);
    let reject = read(answer::SETTINGS, reject, AnswerSpec::default());
    let log = read(log::SETTINGS, root.table("log", &LOG), LogSpec::default());
    let (decide, decide_span) = decide::build(root.table("decide", &DECIDE), &server, &mut taken);
    let admin = admin::build(root.table("admin", &ADMIN), &taken);
    let trace = trace::build(root.table("trace", &TRACE));
    let upstreams = upstream::build(&mut root, server.prefixes);
    let jwt = jwt::build(&mut root);
    let tables: Vec<_> = jwt.iter().map(|table| table.name.clone()).collect();
    let limits = limit::build(
        &mut root,
        &limit::Inherited {
            prefixes: server.prefixes,
            loose_paths: server.loose_paths,
            on_store_error,
            reject: &reject,
            tables: &tables,
            store: Some(&store.location).filter(|_| is_known),
        },
    );
    let plans = plans::build(&mut root, server.prefixes, server.loose_paths);
    let routes = root.take("routes");
    let tests = root.take("tests");
    let ((), has_all_sections) = cx.watched(|| root.finish());
    // If `routes` is not a list, `list` has noted the problem.
    let items = routes.map_or_else(|| Some(Vec::new()), |item| item.list())?;
    if items.is_empty() {
        cx.error(&(0..0), "the file has no routes", "expected at least one").help(ROUTE_EXAMPLE);
        return None;
    }
    let known = route::Known {
        upstreams: Names::new("upstreams", upstreams.iter().map(|it| it.name.as_str())),
        limits: Names::new("limits", limits.iter().map(|it| it.name.as_str())),
        loose_paths: server.loose_paths,
        only_decides: decides && server.listen.is_empty() && server.tls.is_none(),
    };
    let (everywhere, has_everywhere) =
        cx.watched(|| route::used_limits(everywhere.as_ref(), &known));
    let routes: Vec<_> = items
        .iter()
        .filter_map(|item| item.section(&ROUTE, "[[routes]]"))
        .map(|section| route::build(section, &known))
        .collect();

    let names = names(cx, &routes);
    let tests = test_cases(tests, &known.limits, &names);
    let whole = Whole {
        cx,
        server: &server,
        decide: (&decide, &decide_span),
        upstreams: &upstreams,
        limits: &limits,
        jwt: &jwt,
        plans: plans.as_ref(),
        everywhere: &everywhere,
        routes: &routes,
        names: &Names::new("routes", names.iter().map(|name| &**name)),
        is_server_right: is_server_right && has_server && has_all_sections,
        has_everywhere,
        has_all_routes: has_all_sections && routes.len() == items.len(),
    };
    whole.check();

    let upstreams = upstreams.into_iter().map(|upstream| upstream.value);
    let upstreams: Vec<UpstreamSpec> = upstreams.collect::<Option<_>>()?;
    let jwt = jwt.into_iter().map(|table| table.value.map(Arc::new));
    let jwt: Vec<_> = jwt.collect::<Option<_>>()?;
    let limits = limits.into_iter().map(|limit| limit.value);
    let limits: Vec<LimitDraft> = limits.collect::<Option<_>>()?;
    let named = limits.iter().flat_map(|limit| &limit.plans).map(|settings| settings.name.clone());
    let plans = plans.and_then(|plans| plans.rule(named.collect(), &jwt)).map(Arc::new);
    let (on, off, indexes) = by_mode(limits);
    let everywhere: SmallVec<[u32; 4]> = route::in_plan(&everywhere, &indexes).collect();
    let (mut finished, mut matchers) = (Vec::new(), Vec::new());
    for (draft, name) in routes.into_iter().zip(names) {
        let (matcher, mut route) = draft.finish(name, &indexes, &everywhere)?;
        cost::keep_readable(&mut route, &on);
        read_bodies(&mut route, &on, plans.as_deref());
        matchers.push(matcher);
        finished.push(route);
    }
    let mut no_route = no_route(everywhere);
    read_bodies(&mut no_route, &on, plans.as_deref());
    let methods = matchers.iter().flat_map(|(_, conditions)| conditions.methods.iter().cloned());
    Some(Settings {
        methods: methods.collect(),
        known_fields: known_fields(
            &server,
            (&matchers, &finished),
            &upstreams,
            &on,
            plans.as_deref(),
            &jwt,
        ),
        server,
        upstreams,
        limits: on.into_iter().map(Arc::new).collect(),
        plans,
        off,
        no_route,
        table: RouteTable::new(matchers),
        routes: finished,
        jwt,
        store,
        reject: Arc::new(reject),
        log,
        admin,
        decide,
        trace,
        tests,
    })
}

/// The file's tests, which may expect these limits and routes.
fn test_cases(list: Option<Item<'_>>, limits: &Names<'_>, routes: &[Arc<str>]) -> Vec<TestCase> {
    let routes = Names::new("routes", routes.iter().map(|name| &**name).chain([NO_ROUTE]));
    let items = list.and_then(|item| item.list()).unwrap_or_default();
    let sections = items.iter().filter_map(|item| item.section(&TEST, TEST.title));
    sections.filter_map(|section| test_case::build(section, limits, &routes)).collect()
}

/// The limits that are on, the names of the limits that are off, and the index of each limit among those that are on.
fn by_mode(limits: Vec<LimitDraft>) -> (Vec<LimitSpec>, Vec<Name>, Vec<Option<usize>>) {
    let (mut on, mut off, mut indexes) = (Vec::new(), Vec::new(), Vec::new());
    for draft in limits {
        indexes.push(draft.on.then_some(on.len()));
        match draft.on {
            true => on.push(draft.spec),
            false => off.push(draft.spec.name),
        }
    }
    (on, off, indexes)
}

/// The route of requests without a route.
fn no_route(limits: SmallVec<[u32; 4]>) -> RouteSpec {
    let action = Action::Respond { status: StatusCode::NOT_FOUND, body: Box::default() };
    RouteSpec { name: NO_ROUTE.into(), action, limits, options: None }
}

/// Notes which fields of a body a route's limits read.
fn read_bodies(route: &mut RouteSpec, limits: &[LimitSpec], rule: Option<&PlanRule>) {
    let indexes = route.limits.iter().filter_map(|index| usize::try_from(*index).ok());
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

/// The fields that the file names: those that routes, balancing and limits read, that have tokens, that name clients or
/// requests, and those that routes decide.
fn known_fields(
    server: &ServerSpec,
    (matchers, routes): (&[(Pattern, Conditions)], &[RouteSpec]),
    upstreams: &[UpstreamSpec],
    limits: &[LimitSpec],
    plans: Option<&PlanRule>,
    jwt: &[Arc<JwtSpec>],
) -> KnownFields {
    let conditions = matchers.iter().flat_map(|(_, conditions)| &conditions.headers);
    let balance = upstreams.iter().filter_map(|upstream| match &upstream.balance {
        Balance::Hash(key) => Some(key.headers()),
        _ => None,
    });
    let changes = routes.iter().filter_map(|route| route.options().request.as_ref());
    let names = conditions.map(|(name, _)| name).chain(balance.flatten());
    let names = names.chain(plans.into_iter().flat_map(|rule| rule.by.headers()));
    let names = names.chain(jwt.iter().filter_map(|table| table.place.header()));
    let names = names.chain(limits.iter().flat_map(LimitSpec::headers));
    let names = names.chain(changes.flat_map(HeaderChanges::decided));
    let address = server.trust.header.name();
    KnownFields::of(names.chain(&server.request_id).chain([&address]))
}
