//! `health` of an upstream: how its servers are checked.

use std::time::Duration;

use http::uri::PathAndQuery;

use crate::config::reader::{
    Item, Kind, Mask, Required, SettingList, Shape, Value, Words, at, field, fields, read, setting,
};
use crate::config::section::values::host;
use crate::settings::HealthSpec;

type Spec = HealthSpec;

/// An upstream's `health`.
pub(crate) static HEALTH: Shape = Shape::new("health", || fields(OF_HEALTH));

#[rustfmt::skip]
static OF_HEALTH: SettingList<Spec> = &[
    field("path", Kind::ABSOLUTE, Required, "the path that each server is asked for, with GET; a status from 200 to 399 passes")
        .masked(Mask::Shown(without_query)),
    setting(at!(host, host), Kind::Text, Words("the `server_name` of `tls`, else the server's address"),
        "the `host` of the request, for servers that have several"),
    setting(at!(interval), Kind::TIME_ABOVE_ZERO, Value("\"5s\""), "the time between two checks of a server"),
    setting(at!(timeout), Kind::TIME_ABOVE_ZERO, Value("\"2s\""), "for one check"),
    setting(at!(unhealthy_after), Kind::Whole(1, 1_000), Value("3"),
        "how many failed checks in a row set a server aside"),
    setting(at!(healthy_after), Kind::Whole(1, 1_000), Value("2"),
        "how many passed checks in a row bring the server back"),
];

/// `health`. `None` if the path is wrong or missing.
pub(super) fn health(item: &Item<'_>) -> Option<HealthSpec> {
    let mut section = item.section(&HEALTH, "health")?;
    let path = section.require("path", "\"/healthz\"");
    let path = path.and_then(|item| {
        let is_path = |text: &&str| text.starts_with('/') && !text.contains('#');
        item.form("expected a path, as in \"/healthz\"", |text| {
            Some(text).filter(is_path)?.parse().ok()
        })
    });
    let spec = HealthSpec {
        path: PathAndQuery::from_static("/"),
        host: None,
        interval: Duration::ZERO,
        timeout: Duration::ZERO,
        unhealthy_after: 1,
        healthy_after: 1,
    };
    let spec = read(OF_HEALTH, section, spec);
    Some(HealthSpec { path: path?, ..spec })
}

/// The query may be a secret.
fn without_query(path: &str) -> String {
    path.split('?').next().unwrap_or_default().to_owned()
}
