//! `[[tests]]`.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode, Uri};

use super::headers;
use super::values::Names;
use crate::config::reader::{
    Item, Kind, Mask, Required, Section, SettingList, Shape, Value, Words, Wrong, at, field,
    fields, read, setting,
};
use crate::request::line::{WrittenTarget, request_line};
use crate::settings::{Expectation, TestCase};

type Spec = TestCase;

pub(crate) static TEST: Shape = Shape::new("[[tests]]", || fields(SETTINGS));

/// More requests are surely a typing error.
const MOST: u64 = 1_000_000;

#[rustfmt::skip]
pub(crate) static SETTINGS: SettingList<Spec> = &[
    field("name", Kind::Text, Words("what it sends"), "its name in the report"),
    field("send", Kind::Form(r"\s*(\S+\s+)?(/|[A-Za-z0-9]+://).*"), Required, "a method and a path or URL: `GET /login`"),
    field("headers", Kind::TEXT_TABLE, Words("none"), "the headers of its requests").masked(Mask::Secret),
    field("body", Kind::Text, Words("none"), "their body; without a `content-type` JSON if it begins with a brace, else a form").masked(Mask::Secret),
    field("claims", Kind::Object, Words("none"), "the claims of their token, which counts as verified: `{ sub = \"a\" }`").masked(Mask::Secret),
    setting(at!(from, address), Kind::Form(r"[\da-fA-F:.]+"), Value("\"127.0.0.1\""), "the address from which they come"),
    setting(at!(times), Kind::Whole(1, MOST), Value("1"), "how many requests"),
    setting(at!(within), Kind::TIME, Value("\"0s\""), "the requests are spread evenly over this time; with 0 all come at once"),
    setting(at!(after), Kind::TIME, Value("\"0s\""), "the time since the test before"),
    setting(at!(status), Kind::Whole(200, 599), Value("200"), "what the API answers"),
    setting(at!(fresh), Kind::Flag, Value("false"), "begin with empty buckets, not with those of the test before"),
    field("expect", Kind::Table(&EXPECT), Required, "what is expected"),
];

/// A test's `expect`.
pub(crate) static EXPECT: Shape = Shape::new("expect", || fields(OF_EXPECT));

#[rustfmt::skip]
static OF_EXPECT: SettingList<()> = &[
    field("allowed", Kind::Whole(0, MOST), Words("any"), "how many pass at once"),
    field("rejected", Kind::Whole(0, MOST), Words("any"), "how many are rejected"),
    field("delayed", Kind::Whole(0, MOST), Words("any"), "how many pass after a wait"),
    field("limit", Kind::NAME, Words("any"), "the limit that rejects the first rejected request; if none is rejected, the limit that holds the first held request"),
    field("route", Kind::Text, Words("any"), "the requests' route; `none` without one"),
    field("retry_after", Kind::TIME_ABOVE_ZERO, Words("any"), "the `retry-after` of the first rejected request, in whole seconds"),
];

/// A test that may expect these limits and routes. `None` if a part of it is wrong.
pub(crate) fn build(
    mut section: Section<'_>,
    limits: &Names<'_>,
    routes: &Names<'_>,
) -> Option<TestCase> {
    let line = section.cx.line(&section.span);
    let name = section.take("name").and_then(|item| item.text());
    let send = section.require("send", "\"GET /login\"");
    let sent = send.as_ref().and_then(request);
    let headers = headers::values(&mut section, "headers");
    let body = section.take("body").and_then(|item| item.secret().text()).unwrap_or_default();
    let claims = section.take("claims").and_then(|item| item.json_object()).unwrap_or_default();
    let expect = section.require("expect", "{ allowed = 8, rejected = 2 }");
    let expect = expect.and_then(|item| expectation(&item, limits, routes));
    let (method, target) = sent.unwrap_or((Method::GET, Uri::from_static("/").into()));
    let test = TestCase {
        name: name.unwrap_or_else(|| format!("{method} {target}")),
        line,
        method,
        target,
        headers,
        body,
        claims,
        from: IpAddr::V4(Ipv4Addr::LOCALHOST),
        times: 1,
        within: Duration::ZERO,
        after: Duration::ZERO,
        status: StatusCode::OK,
        fresh: false,
        expect: Expectation::default(),
    };
    let test = read(SETTINGS, section, test);
    Some(TestCase { expect: expect?, ..test })
}

fn request(item: &Item<'_>) -> Option<(Method, WrittenTarget)> {
    item.parse("expected a method and a path or URL, as in \"GET /login\"", |text| {
        request_line(text).map_err(Wrong::Because)
    })
}

fn address(item: &Item<'_>) -> Option<IpAddr> {
    const EXPECTED: &str = "expected an address, as in \"203.0.113.7\" or \"2001:db8::1\"";
    item.form(EXPECTED, |text| text.parse().ok())
}

fn expectation(item: &Item<'_>, limits: &Names<'_>, routes: &Names<'_>) -> Option<Expectation> {
    let mut section = item.section(&EXPECT, "expect")?;
    if !section.has(|_| true) {
        section.fault("`expect` is empty", "expected one field at least, as in `allowed = 8`");
    }
    let (allowed, rejected) = (section.plain("allowed"), section.plain("rejected"));
    let delayed = section.plain("delayed");
    let mut name = |field, names: &Names<'_>| {
        let item: Item<'_> = section.take(field)?;
        let text = item.text()?;
        if names.index(&text).is_none() {
            item.reject(names.instead(item.shown(&text)));
        }
        Some(Arc::from(text))
    };
    let limit = name("limit", limits);
    let route = name("route", routes);
    let retry_after = section.take("retry_after").and_then(|item| {
        let duration = item.duration(&Kind::TIME_ABOVE_ZERO)?;
        if duration.subsec_nanos() > 0 {
            item.reject("expected whole seconds, as `retry-after` has them");
            return None;
        }
        Some(duration.as_secs())
    });
    section.finish();
    Some(Expectation { allowed, rejected, delayed, limit, route, retry_after })
}
