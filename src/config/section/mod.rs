//! One file for each section of `proxy.toml`: the section's list of settings, and its part of [`Settings`](crate::settings::Settings). `assembly`
//! puts the parts together.
//!
//! `SETTINGS` in each file declares the settings: name, kind, default, meaning. A plain setting needs only
//! its field in the settings. The code for other settings stands below the list.

pub(super) mod admin;
pub(super) mod answer;
pub(super) mod cors;
pub(super) mod decide;
pub(super) mod headers;
pub(super) mod jwt;
mod key;
pub(super) mod limit;
pub(super) mod listen;
pub(super) mod log;
pub(super) mod plans;
pub(super) mod route;
pub(super) mod server;
pub(super) mod store;
pub(super) mod test_case;
pub(super) mod tls;
pub(super) mod trace;
pub(super) mod upstream;
pub(super) mod values;

use self::admin::ADMIN;
pub(super) use self::answer::REJECT;
use self::cors::CORS;
use self::decide::DECIDE;
use self::log::LOG;
use self::plans::PLANS;
use self::route::ROUTE;
use self::server::SERVER;
use self::store::STORE;
use self::test_case::TEST;
use self::trace::TRACE;
use super::reader::{Kind, SettingList, Shape, Table, Words, field, fields};

/// The whole file.
pub(super) static ROOT: Shape = Shape::new("the file", || fields(OF_ROOT));

#[rustfmt::skip]
static OF_ROOT: SettingList<()> = &[
    field("server", Kind::Table(&SERVER), Table, "where to listen, timeouts, sizes, trust"),
    field("upstreams", Kind::Named(&upstream::UPSTREAM), Words("none"), "the existing API: one or more servers"),
    field("limits", Kind::Named(&limit::LIMIT), Words("none"), "how much, how often, and counted by what"),
    field("plans", Kind::Table(&PLANS), Words("none"), "which plan a request has"),
    field("routes", Kind::List(0, &Kind::Table(&ROUTE)), Words("none"),
        "which requests, where they go, which limits apply"),
    field("jwt", Kind::Named(&jwt::JWT), Words("none"), "whose tokens are believed: limits count by their claims"),
    field("store", Kind::Table(&STORE), Table, "where buckets live"),
    field("reject", Kind::Table(&REJECT), Table, "the answer to a throttled client"),
    field("cors", Kind::Table(&CORS), Words("none"), "which pages of other sites may read tidegate's own answers"),
    field("log", Kind::Table(&LOG), Table, "what is logged, and how"),
    field("admin", Kind::Table(&ADMIN), Table, "health checks and metrics"),
    field("decide", Kind::Table(&DECIDE), Table, "where other proxies ask for decisions"),
    field("trace", Kind::Table(&TRACE), Table, "spans of requests, for an OpenTelemetry collector"),
    field("tests", Kind::List(0, &Kind::Table(&TEST)), Words("none"), "what `tidegate check` tries"),
];
