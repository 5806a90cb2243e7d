//! Tables to [`Plan`]: one file for each section, then what holds between them.

mod algorithm;
mod answer;
mod calendar;
mod cost;
mod figures;
mod foreign;
mod headers;
mod key;
mod limit;
mod log;
mod overrides;
mod rate;
mod redisson;
mod response_cost;
mod route;
mod sanity;
mod server;
mod store;
mod tls;
mod upstream;
mod waiting;
mod window;

use std::sync::Arc;

use http::StatusCode;
use smallvec::SmallVec;
use toml::de::DeTable;

use super::Overrides;
use super::fields::{ADMIN, LOG, REJECT, ROOT, ROUTE, SERVER, STORE, Shape};
use super::file::{Context, Section};
use super::problem::{Problem, Span, enumerate, nearest};
use crate::limit::name::Name;
use crate::plan::{
    Action, AdminSpec, AnswerSpec, LogSpec, NO_ROUTE, Plan, RouteSpec, ServerSpec, StoreSpec,
    UpstreamSpec,
};
use crate::request::route::Table;

/// An emptied file is a fault as well: it must not replace one that is in force.
const ROUTE_EXAMPLE: &str =
    "add `[[routes]]` with `path = \"/{*rest}\"` and `upstream = \"NAME\"` below it";

/// Something that the operator named.
struct Named<T> {
    name: String,
    span: Span,
    /// `None` where something was wrong with it.
    value: Option<T>,
}

/// The plan; `None` only where a problem was noted. It is worth nothing where an error was noted.
pub(super) fn plan(cx: &Context<'_>, tree: &DeTable<'_>, overrides: &Overrides) -> Option<Plan> {
    let mut root = Section::new(cx, tree, 0..0, &ROOT);
    let mut server = table(&mut root, "server", &SERVER);
    let everywhere = server.take("limits");
    let (server, asks_clients) = server::build(server, overrides);
    let (store, on_store_error) = store::build(table(&mut root, "store", &STORE));
    let reject = answer::build(table(&mut root, "reject", &REJECT), &answer::default());
    let log = log::build(table(&mut root, "log", &LOG));
    let admin = log::admin(table(&mut root, "admin", &ADMIN));
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

    sanity::check(
        cx,
        &sanity::Whole {
            server: &server,
            asks_clients,
            upstreams: &upstreams,
            limits: &limits,
            everywhere: (&everywhere, &meant),
            routes: &routes,
        },
    );
    let names = route::names(cx, &routes);
    sanity::override_routes(cx, &limits, &names);
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

/// The tables below `[NAME.…]`, each as a section with its name.
fn named<'c>(
    root: &mut Section<'c>,
    kind: &'static str,
    shape: &'static Shape,
) -> Vec<(String, Span, Option<Section<'c>>)> {
    let entries = root.take(kind).and_then(|item| item.entries()).unwrap_or_default();
    let sections = entries.into_iter().map(|entry| {
        let section = entry.item.section(shape, format!("[{kind}.{}]", entry.name));
        (entry.name.to_owned(), entry.name_span, section)
    });
    sections.collect()
}

/// The name at `span`, or a problem.
fn name(cx: &Context<'_>, text: &str, span: Span) -> Option<Name> {
    let name = Name::new(text);
    if name.is_none() {
        cx.note(Problem::error(
            span,
            format!("\"{}\" is no name", text.escape_debug()),
            "expected 1 to 64 letters, digits, `_`, `.` or `-`",
        ));
    }
    name
}

/// What to say where none of `names` is meant.
fn one_of<'n, I>(found: Option<&str>, names: I, kind: &str) -> String
where
    I: Iterator<Item = &'n str> + Clone,
{
    const MOST: usize = 12;
    match found.and_then(|found| nearest(found, names.clone())) {
        Some(near) => format!("did you mean `{near}`?"),
        None if names.clone().next().is_none() => {
            format!("the file has no {kind}: expected a table `[{kind}.NAME]`")
        }
        None if names.clone().count() > MOST => format!("expected the name of one of the {kind}"),
        None => format!("expected {}", enumerate(names, "or")),
    }
}
