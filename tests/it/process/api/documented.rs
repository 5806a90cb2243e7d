//! The fields in docs/reference.md are those of real answers.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::json as read;
use crate::support::proxy::Proxy;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

/// Each heading with the path that is asked, and the place of the object in the answer. The servers of a
/// Redis cluster have the fields that the store has.
const OBJECTS: [(&str, &str, &str); 19] = [
    ("`/api/status`", "/api/status", ""),
    ("One of the `alarms`", "/api/status", "/alarms/0"),
    ("`config` of `/api/status`", "/api/status", "/config"),
    ("`store` of `/api/status`", "/api/status", "/store"),
    ("`connections` of `/api/status`", "/api/status", "/connections"),
    ("`requests` of `/api/status`", "/api/status", "/requests"),
    ("One of the `upstreams`", "/api/status", "/upstreams/0"),
    ("The `overload` of an upstream", "/api/status", "/upstreams/0/overload"),
    ("One of the `servers` of an upstream", "/api/status", "/upstreams/0/servers/0"),
    ("One of the `routes`", "/api/status", "/routes/0"),
    ("One of the `limits`", "/api/status", "/limits/0"),
    ("One of the `rejected_keys`", "/api/status", "/limits/0/rejected_keys/0"),
    ("One of the `top_keys`", "/api/status", "/top_keys/0"),
    ("`/api/history`", "/api/history", ""),
    ("`/api/config`", "/api/config", ""),
    ("`/api/fleet`", "/api/fleet", ""),
    ("One of the `processes`", "/api/fleet", "/processes/0"),
    ("One of the `rejected` of a fleet", "/api/fleet", "/rejected/0"),
    ("One of the `limits`", "/api/status", "/limits/1"),
];

/// The fields in the first column of the table below a heading.
fn documented(text: &str, heading: &str) -> BTreeSet<String> {
    let title = format!("### {heading}\n");
    let (_, rest) = text.split_once(&title).unwrap_or_else(|| panic!("{title}"));
    let rows = rest.trim_start().lines().take_while(|line| line.starts_with('|')).skip(2);
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

#[test]
fn the_reference_has_the_fields_of_real_answers() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference.md");
    let text = fs::read_to_string(file).unwrap();
    let api = Upstream::echoing();
    let proxy = Proxy::to(&api)
        .admin()
        .upstream("max_requests = 5")
        .limit("a", "key = []\nrate = \"1/h\"\ncandidate = { rate = \"2/h\" }")
        .start();
    super::send(&proxy, "", 2);
    fs::write(proxy.config_file(), "nonsense").unwrap();
    wait_until("there is an alarm", || read(proxy.admin(), "/api/status")["alarms"][0].is_object());
    for (heading, path, place) in OBJECTS {
        let answer = read(proxy.admin(), path);
        let object = answer.pointer(place).and_then(Value::as_object);
        let object = object.unwrap_or_else(|| panic!("{place} in {answer:#}"));
        let fields: BTreeSet<_> = object.keys().cloned().collect();
        assert_eq!(documented(&text, heading), fields, "{heading}");
    }
}
