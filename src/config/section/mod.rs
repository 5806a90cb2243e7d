//! The sections of `proxy.toml`, a file for each: its settings, and the part of the [`Plan`] that they make.
//! Here they are put together.
//!
//! `SETTINGS` in each file declares the settings: name, kind, default, meaning. A plain one needs no more than
//! its place in the plan. What is read otherwise stands below the list.

pub(super) mod admin;
mod answer;
mod headers;
pub(super) mod limit;
pub(super) mod log;
pub(super) mod route;
pub(super) mod server;
pub(super) mod store;
pub(super) mod tls;
pub(super) mod upstream;
pub(super) mod values;

use std::sync::Arc;

use http::StatusCode;
use smallvec::SmallVec;
use toml::de::DeTable;

use self::admin::ADMIN;
pub(super) use self::answer::REJECT;
pub(super) use self::headers::HEADERS;
use self::limit::response_cost;
use self::log::LOG;
use self::route::ROUTE;
use self::server::SERVER;
use self::store::STORE;
use self::values::Named;
use super::reader::{Context, Problem, Section, Span};
use super::setting::{Settings, fields};
use super::shape::Fallback::Words;
use super::shape::{Kind, Shape, field};
use super::{Overrides, doubts};
use crate::plan::{
    Action, AdminSpec, AnswerSpec, LogSpec, NO_ROUTE, Plan, RouteSpec, ServerSpec, StoreSpec,
    UpstreamSpec,
};
use crate::request::route::Table;

/// The file.
pub(super) static ROOT: Shape =
    Shape { title: "the file", fields: || fields(OF_ROOT), later: &["trace", "tests"] };

#[rustfmt::skip]
static OF_ROOT: Settings<()> = &[
    &field("server", Kind::Table(&SERVER), Words("its defaults"), "where to listen, timeouts, sizes, trust"),
    &field("upstreams", Kind::Named(&upstream::UPSTREAM), Words("none"), "the existing API: one or more servers"),
    &field("limits", Kind::Named(&limit::LIMIT), Words("none"), "how much, how often, counted per what"),
    &field("routes", Kind::List(&Kind::Table(&ROUTE)), Words("none"),
        "which requests, where they go, which limits apply"),
    &field("store", Kind::Table(&STORE), Words("its defaults"), "where buckets live"),
    &field("reject", Kind::Table(&REJECT), Words("its defaults"), "the answer to a throttled client"),
    &field("log", Kind::Table(&LOG), Words("its defaults"), "what is logged, and how"),
    &field("admin", Kind::Table(&ADMIN), Words("none"), "health checks and metrics"),
];

/// The tables of the file, in the order in which docs/reference.md has them.
pub(super) static SECTIONS: [&Shape; 19] = [
    &SERVER,
    &tls::SERVER_TLS,
    &tls::CERTIFICATE,
    &upstream::UPSTREAM,
    &tls::UPSTREAM_TLS,
    &limit::LIMIT,
    &limit::COST,
    &limit::RESPONSE_COST,
    &limit::COUNT_WHEN,
    &limit::EXEMPT,
    &limit::CANDIDATE,
    &limit::OVERRIDE,
    &ROUTE,
    &route::RESPOND,
    &HEADERS,
    &STORE,
    &REJECT,
    &LOG,
    &ADMIN,
];

/// An emptied file is a fault as well: it must not replace one that is in force.
const ROUTE_EXAMPLE: &str =
    "add `[[routes]]` with `path = \"/{*rest}\"` and `upstream = \"NAME\"` below it";

/// The plan; `None` only where a problem was noted. It is worth nothing where an error was noted.
pub(super) fn plan(cx: &Context<'_>, tree: &DeTable<'_>, overrides: &Overrides) -> Option<Plan> {
    let mut root = Section::new(cx, tree, 0..0, &ROOT);
    let mut server = table(&mut root, "server", &SERVER);
    let everywhere = server.take("limits");
    let (server, asks_clients) = server::build(server, overrides);
    let (store, on_store_error) = store::build(table(&mut root, "store", &STORE));
    let reject = answer::build(table(&mut root, "reject", &REJECT));
    let log = log::build(table(&mut root, "log", &LOG));
    let admin = admin::build(table(&mut root, "admin", &ADMIN));
    let upstreams = upstream::build(&mut root, overrides);
    let limits = limit::build(
        &mut root,
        &limit::Inherited {
            ipv6_prefix: server.ipv6_prefix,
            on_store_error,
            reject: &reject,
            store: &store.location,
        },
    );
    let routes = root.take("routes");
    root.finish();
    let Some(routes) = routes else {
        let problem = Problem::error(0..0, "the file has no routes", "expected at least one");
        cx.note(problem.help(ROUTE_EXAMPLE));
        return None;
    };
    let known = route::Known::new(&upstreams, &limits);
    let (everywhere, meant) = route::used_limits(everywhere.as_ref(), "[server]", &known);
    let routes: Vec<_> = routes
        .list()?
        .iter()
        .filter_map(|item| item.section(&ROUTE, "[[routes]]"))
        .map(|section| route::build(section, &known))
        .collect();

    doubts::check(
        cx,
        &doubts::Whole {
            server: &server,
            asks_clients,
            upstreams: &upstreams,
            limits: &limits,
            everywhere: (&everywhere, &meant),
            routes: &routes,
        },
    );
    let names = route::names::names(cx, &routes);
    doubts::override_routes(cx, &limits, &names);
    finish(Parts {
        server,
        store,
        reject,
        log,
        admin,
        upstreams,
        limits,
        everywhere,
        routes,
        names,
    })
}

struct Parts {
    server: ServerSpec,
    store: StoreSpec,
    reject: AnswerSpec,
    log: LogSpec,
    admin: AdminSpec,
    upstreams: Vec<Named<UpstreamSpec>>,
    limits: Vec<Named<limit::LimitDraft>>,
    everywhere: Vec<(usize, Span)>,
    routes: Vec<route::RouteDraft>,
    names: Vec<Arc<str>>,
}

fn finish(parts: Parts) -> Option<Plan> {
    let upstreams =
        parts.upstreams.into_iter().map(|upstream| upstream.value).collect::<Option<_>>()?;
    let drafts: Vec<_> =
        parts.limits.into_iter().map(|limit| limit.value).collect::<Option<_>>()?;
    let mut limits = Vec::new();
    let mut off = Vec::new();
    // Where a limit of the file stands in the plan: the ones that are off do not.
    let mut places = Vec::new();
    for draft in drafts {
        places.push(draft.on.then_some(limits.len()));
        if draft.on {
            limits.push(Arc::new(draft.spec));
        } else {
            off.push(draft.spec.name);
        }
    }
    let everywhere: SmallVec<[u32; 4]> = route::in_plan(&parts.everywhere, &places).collect();
    let mut routes = Vec::new();
    let mut matchers = Vec::new();
    for (draft, name) in parts.routes.into_iter().zip(parts.names) {
        let (matcher, mut route) = draft.finish(name, &places, &everywhere)?;
        response_cost::keep_readable(&mut route, &limits);
        matchers.push(matcher);
        routes.push(route);
    }
    Some(Plan {
        server: parts.server,
        upstreams,
        limits,
        off,
        no_route: RouteSpec {
            name: NO_ROUTE.into(),
            action: Action::Respond { status: StatusCode::NOT_FOUND, body: Box::default() },
            limits: everywhere,
            options: None,
        },
        table: Table::new(matchers),
        routes,
        store: parts.store,
        reject: Arc::new(parts.reject),
        log: parts.log,
        admin: parts.admin,
    })
}

/// A table of the root; an empty one where it is not there.
fn table<'c>(root: &mut Section<'c>, name: &str, shape: &'static Shape) -> Section<'c> {
    let there = root.take(name).and_then(|item| item.section(shape, shape.title));
    there.unwrap_or_else(|| Section::empty(root.cx, shape))
}
