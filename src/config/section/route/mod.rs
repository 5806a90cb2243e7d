//! `[[routes]]`.

pub(crate) mod names;

use std::num::NonZeroU64;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, StatusCode};
use smallvec::SmallVec;

use super::headers::{self, HEADERS};
use super::limit::{COST, LimitDraft};
use super::upstream::goal::goal;
use super::values::{METHOD, Named, Names, method, once, once_each, pattern};
use crate::config::reader::{
    Item, Kind, Mask, Required, Section, SettingList, Shape, Span, Value, Words, Wrong, at, field,
    fields, read, setting, size, spellings,
};
use crate::limit::name::Name;
use crate::limit::rate::MAX_TOKENS;
use crate::request::route::{Conditions, Pattern, Rewrite};
use crate::settings::{Action, CostSpec, NO_ROUTE, Priority, RouteOptions, RouteSpec};

type Spec = RouteOptions;

pub(crate) static ROUTE: Shape =
    Shape { not_both: &["upstream", "respond"], ..Shape::new("[[routes]]", || fields(SETTINGS)) };

#[rustfmt::skip]
pub(crate) static SETTINGS: SettingList<Spec> = &[
    field("name", Kind::NAME, Words("the path; where routes have the same path, also methods and host, and then headers"),
        "unique; stands in keys, logs and metrics"),
    field("path", Kind::PATH, Required, "`/users/{id}`, `/static/{*rest}`; the most specific wins"),
    field("methods", Kind::List(1, &METHOD), Words("any"), "one of these"),
    field("host", Kind::Form(r"(\*\.)?[^*/\s]+"), Words("any"), "`www.example.com`, or `*.example.com`"),
    field("headers", Kind::TEXT_TABLE, Words("any"), "the request has each of these headers with its value")
        .masked(Mask::Secret),
    field("upstream", Kind::NAME, Words("required, or `respond`; not needed where only `[decide]` listens"), "where its requests go"),
    field("respond", Kind::Table(&RESPOND), Words("none"),
        "an answer from this file, in place of an upstream"),
    field("limits", USED_LIMITS, Value("[]"),
        "names of limits; all of them are decided together. `{ name = \"budget\", cost = 5 }` is a limit with another cost on this route, from the same buckets. A limit that `server.limits` has too is asked once, as the route says"),
    field("rewrite", Kind::ABSOLUTE, Words("none"),
        "another path for the upstream: `/v2/{id}`, `/v2/{*rest}`"),
    setting(at!(response_timeout), Kind::TIME_ABOVE_ZERO, Words("the upstream's"),
        "the time to the response's head, for this route; 504 past it"),
    setting(at!(priority), Kind::Word(spellings::<Priority>), Value("\"normal\""),
        "who goes first, and who is refused last, while the upstream is full (`max_requests`)"),
    setting(at!(slower_than, goal), Kind::TIME_ABOVE_ZERO, Words("the upstream's"),
        "the goal of `max_requests`, for this route"),
    setting(at!(max_body_size), Kind::SIZE_ABOVE_ZERO, Words("the server's"),
        "bytes of a request's body, for this route; larger: 413"),
    setting(at!(response_rate, response_rate), Kind::Form(r"\d+([KMG]i?)?B/s"), Words("none"),
        "the bytes of each response's body are sent no faster: `\"1MB/s\"`"),
    field("request_headers", Kind::Table(&HEADERS), Words("none"),
        "changes to the headers that go upstream").masked(Mask::Secret),
    field("response_headers", Kind::Table(&HEADERS), Words("none"),
        "changes to the headers that go to the client, also on tidegate's own answers on this route"),
];

/// The kind of `limits`, in a route and in `[server]`.
pub(crate) const USED_LIMITS: Kind =
    Kind::List(0, &Kind::Either(&[Kind::NAME, Kind::Table(&USED_LIMIT)]));

/// An entry of `limits` that is written as a table.
pub(crate) static USED_LIMIT: Shape = Shape::new("one of `limits`", || fields(OF_USED_LIMIT));

#[rustfmt::skip]
static OF_USED_LIMIT: SettingList<()> = &[
    field("name", Kind::NAME, Required, "the limit's name"),
    field("cost", Kind::Either(&[Kind::Whole(1, MAX_TOKENS), Kind::Table(&COST)]), Words("the limit's own"),
        "what a request takes here, in any form that a limit's `cost` has. Envoy's `hits_addend` and the `cost` of a `/check` are multiplied by it"),
];

/// A route's `respond`.
pub(crate) static RESPOND: Shape =
    Shape { not_both: &["body", "usage"], ..Shape::new("respond", || fields(OF_RESPOND)) };

#[rustfmt::skip]
static OF_RESPOND: SettingList<()> = &[
    field("status", Kind::Whole(200, 599), Value("200"), "the answer's status"),
    field("body", Kind::Text, Value("\"\""), "the answer's body, as plain text"),
    field("usage", Kind::List(1, &Kind::NAME), Words("none"),
        "in place of both: the answer is 200 with what these limits leave to whoever asks, as JSON and in the `ratelimit` fields. Nothing is taken; the route's own `limits` count the question, and those of `[server]` do not"),
];

/// The upstreams and limits that a route can name.
pub(crate) struct Known<'k> {
    pub(crate) upstreams: Names<'k>,
    pub(crate) limits: Names<'k>,
    /// The limits, in the order of their names.
    pub(crate) drafts: &'k [Named<LimitDraft>],
    /// Whether all requests come to another proxy, which only asks. Then a route needs no upstream.
    pub(crate) only_decides: bool,
}

/// An entry in a list of limits.
pub(crate) struct UsedLimit {
    /// The index in the file's limits.
    pub(crate) limit: usize,
    /// The cost that the entry sets.
    pub(crate) cost: Option<CostSpec>,
    pub(crate) span: Span,
}

/// A route, with the positions that later checks need.
pub(crate) struct RouteDraft {
    /// The position of the value of `path`.
    pub(crate) path_span: Span,
    pub(crate) pattern: Option<Pattern>,
    pub(crate) conditions: Conditions,
    /// The value of `name` with its position, if the route has a `name`.
    pub(super) name: Option<(Arc<str>, Span)>,
    pub(crate) action: Option<Action>,
    /// The limits in the route's `respond.usage`.
    pub(crate) usage: Vec<UsedLimit>,
    pub(crate) limits: Vec<UsedLimit>,
    /// Whether `limits` has all limits that the route was meant to have.
    pub(crate) has_all_limits: bool,
    /// Whether the route has no unknown field, which may be a misspelt one, and no error in its options.
    pub(crate) is_whole: bool,
    pub(crate) options: RouteOptions,
    /// The positions of the values of `priority` and `slower_than`, if the route has them.
    pub(crate) priority_span: Option<Span>,
    pub(crate) goal_span: Option<Span>,
}

impl RouteDraft {
    /// The finished route, and the pattern and conditions for its requests. `limits` are the indexes of the route's
    /// limits in `Settings::used`.
    pub(crate) fn finish(
        self,
        name: Arc<str>,
        limits: SmallVec<[u32; 4]>,
    ) -> Option<((Pattern, Conditions), RouteSpec)> {
        let options = (self.options != RouteOptions::default()).then(|| Box::new(self.options));
        let route = RouteSpec { name, action: self.action?, limits, options };
        Some(((self.pattern?, self.conditions), route))
    }
}

pub(crate) fn build(mut section: Section<'_>, known: &Known<'_>) -> RouteDraft {
    let cx = section.cx;
    let name = section.take("name").and_then(|item| explicit_name(&item));
    let path = section.require("path", "\"/users/{id}\"");
    let path_span = path.as_ref().map_or(section.span.clone(), |item| item.span.clone());
    let pattern = path.as_ref().and_then(pattern);
    let conditions = Conditions {
        methods: methods(&mut section),
        host: section.take("host").and_then(|item| {
            item.parse("expected a host, as in \"www.example.com\"", |text| {
                text.parse().map_err(Wrong::Because)
            })
        }),
        headers: headers::values(&mut section, "headers"),
    };
    let mut usage = Vec::new();
    let action = action(&mut section, pattern.as_ref(), known, &mut usage);
    let limits = section.take("limits");
    let (limits, has_all_limits) = cx.watched(|| used_limits(limits.as_ref(), known, true));
    let span = |name| section.item(name).map(|item| item.span);
    let (priority_span, goal_span) = (span("priority"), span("slower_than"));
    let options = RouteOptions {
        request: headers::changes(&mut section, "request_headers"),
        response: headers::changes(&mut section, "response_headers"),
        ..RouteOptions::default()
    };
    let (options, is_whole) = cx.watched(|| read(SETTINGS, section, options));
    RouteDraft {
        path_span,
        pattern,
        conditions,
        name,
        action,
        usage,
        limits,
        has_all_limits,
        is_whole,
        options,
        priority_span,
        goal_span,
    }
}

fn explicit_name(item: &Item<'_>) -> Option<(Arc<str>, Span)> {
    let name = item.parse("expected 1 to 64 letters, digits, `_`, `.` or `-`", |text| {
        if text == NO_ROUTE {
            return Err(Wrong::other(
                "expected another name: requests without a route are counted under this one",
            ));
        }
        Name::new(text).ok_or(Wrong::Expected)
    })?;
    Some((name.as_str().into(), item.span.clone()))
}

fn methods(section: &mut Section<'_>) -> Vec<Method> {
    let Some(item) = section.take("methods") else { return Vec::new() };
    let items = item.list().unwrap_or_default();
    if items.is_empty() {
        item.reject(
            "expected at least one method, as in `[\"GET\"]`; without `methods` any will do",
        );
    }
    once_each(&items, method)
}

fn action(
    section: &mut Section<'_>,
    pattern: Option<&Pattern>,
    known: &Known<'_>,
    usage: &mut Vec<UsedLimit>,
) -> Option<Action> {
    let upstreams = &known.upstreams;
    let upstream = section.take("upstream");
    let respond = section.take("respond");
    let rewrite = section.take("rewrite");
    if let (Some(item), None) = (&rewrite, &upstream)
        && (respond.is_some() || known.only_decides)
    {
        let title = "`rewrite` means nothing here";
        let problem = item.fault(title, "expected only beside `upstream`");
        if let Some(respond) = &respond {
            problem.related(&respond.span, "the route answers by itself");
        }
    }
    match (upstream, respond) {
        (Some(upstream), None) => {
            let rewrite = match rewrite {
                Some(item) => Some(Box::new(self::rewrite(&item, pattern?)?)),
                None => None,
            };
            let expected = "expected the name of an upstream";
            let index = index_in(upstreams, &upstream, "upstream", expected)?;
            Some(Action::Forward { upstream: u32::try_from(index).ok()?, rewrite })
        }
        (None, Some(respond)) => self::respond(&respond, known, usage),
        (Some(upstream), Some(respond)) => {
            respond
                .fault("the route has both `upstream` and `respond`", "expected one of the two")
                .related(&upstream.span, "and here is the other");
            None
        }
        (None, None) if known.only_decides => Some(Action::Decide),
        (None, None) => {
            let example = upstreams.name(0).unwrap_or("api");
            section.fault(
                "[[routes]] has neither `upstream` nor `respond`",
                format!(
                    "expected `upstream = \"{example}\"` or `respond = {{ status = 404 }}` here"
                ),
            );
            None
        }
    }
}

/// The index of the name in `names`, which are names of this `kind`.
fn index_in(names: &Names<'_>, item: &Item<'_>, kind: &str, expected: &str) -> Option<usize> {
    let text = item.text_as(expected)?;
    let index = names.index(&text);
    if index.is_none() {
        let found = item.shown(&text);
        let title = match found {
            Some(found) => format!("there is no {kind} \"{}\"", found.escape_debug()),
            None => format!("there is no {kind} of this name"),
        };
        item.fault(title, names.instead(found));
    }
    index
}

/// Reads `response_rate`: the bytes of a response in a second.
fn response_rate(item: &Item<'_>) -> Option<NonZeroU64> {
    let expected = "expected a whole number with `B/s`, `KB/s`, `KiB/s`, `MB/s`, `MiB/s`, `GB/s` or `GiB/s`, from \"1B/s\" to \"17179869183GiB/s\"";
    item.parse(expected, |text| {
        let rate = text.strip_suffix("/s").and_then(size).and_then(NonZeroU64::new);
        rate.ok_or(Wrong::Expected)
    })
}

fn rewrite(item: &Item<'_>, pattern: &Pattern) -> Option<Rewrite> {
    item.parse("expected a path, as in \"/v2/{id}\"", |text| {
        Rewrite::new(text, pattern).map_err(Wrong::Because)
    })
}

/// Reads `respond`. If the answer shows what limits leave, the limits are put into `usage`, and `finish` puts them into
/// the action.
fn respond(item: &Item<'_>, known: &Known<'_>, usage: &mut Vec<UsedLimit>) -> Option<Action> {
    let mut section = item.section(&RESPOND, "respond")?;
    if let Some(list) = section.take("usage") {
        for field in ["status", "body"] {
            let title = format!("`{field}` means nothing beside `usage`");
            section.refuse_field(field, &title, "remove it: the answer is 200 with JSON");
        }
        section.finish();
        let (named, is_right) = item.cx.watched(|| used_limits(Some(&list), known, false));
        if is_right && named.is_empty() {
            list.reject("expected the name of one limit at least");
        }
        *usage = named;
        return Some(Action::Usage { limits: Box::default() });
    }
    let status = section.plain::<StatusCode>("status");
    let body_item = section.item("body");
    let body = section.value("body", |item| item.text().map(Bytes::from));
    section.finish();
    let (status, body) = (status?, body?);
    if let Some(item) = body_item
        && !body.is_empty()
        && matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
    {
        item.reject(format!("an answer with status {} has no body: remove it", status.as_u16()));
    }
    Some(Action::Respond { status, body: Box::new(body) })
}

/// Reads a list of limits. An entry may set a cost.
pub(crate) fn used_limits(
    list: Option<&Item<'_>>,
    known: &Known<'_>,
    has_costs: bool,
) -> Vec<UsedLimit> {
    let limits = &known.limits;
    let named = |item: &Item<'_>| index_in(limits, item, "limit", "expected the name of a limit");
    let read = |item: &Item<'_>| {
        if !has_costs || !item.is_table() {
            return Some((named(item)?, None));
        }
        let mut entry = item.section(&USED_LIMIT, USED_LIMIT.title)?;
        let limit = entry.require("name", "\"budget\"").and_then(|name| named(&name));
        let draft = limit.and_then(|limit| known.drafts.get(limit)?.value.as_ref());
        let cost = match draft {
            Some(draft) => draft.cost_of_route(&mut entry),
            None => {
                entry.skip("cost");
                None
            }
        };
        entry.finish();
        Some((limit?, cost))
    };
    let items = list.and_then(Item::list).unwrap_or_default();
    let name = |(index, _): &(usize, _)| limits.name(*index).unwrap_or_default().to_owned();
    let used = once(&items, read, |(limit, _)| Some(*limit), name);
    used.into_iter().map(|((limit, cost), span)| UsedLimit { limit, cost, span }).collect()
}
