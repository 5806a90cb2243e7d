//! The tables of docs/reference.md, which are written from the list of fields, and the runbook's settings that need a
//! restart.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::super::reader::{Fallback, Field, Kind, Shape};
use super::super::schema::whose_field;
use super::super::section::admin::ADMIN;
use super::super::section::cors::CORS;
use super::super::section::decide::DECIDE;
use super::super::section::headers::HEADERS;
use super::super::section::jwt::{JWT, SECRET};
use super::super::section::limit::cost::ESTIMATE;
use super::super::section::limit::{
    BAN, CANDIDATE, COST, COUNT_WHEN, EXEMPT, LIMIT, OVERRIDE, PLAN,
};
use super::super::section::log::LOG;
use super::super::section::plans::PLANS;
use super::super::section::route::{RESPOND, ROUTE, USED_LIMIT};
use super::super::section::server::SERVER;
use super::super::section::store::STORE;
use super::super::section::test_case::{EXPECT, TEST};
use super::super::section::tls::{CERTIFICATE, DECIDE_TLS, SERVER_TLS, UPSTREAM_TLS};
use super::super::section::trace::TRACE;
use super::super::section::upstream::goal::GOAL;
use super::super::section::upstream::health::HEALTH;
use super::super::section::upstream::{UPSTREAM, UPSTREAM_SERVER};
use super::super::section::{REJECT, ROOT};

const BEGIN: &str = "<!-- reference: begin -->\n";
const END: &str = "<!-- reference: end -->";

/// The tables of the file and their headings, in the order of docs/reference.md.
pub(super) const TABLES: [(&Shape, &str); 34] = [
    (&SERVER, "`[server]`"),
    (&SERVER_TLS, "`tls` of `[server]`"),
    (&CERTIFICATE, "One of `certificates`"),
    (&UPSTREAM, "`[upstreams.NAME]`"),
    (&UPSTREAM_SERVER, "One of `servers`, as a table"),
    (&GOAL, "`max_requests` of an upstream, as a table"),
    (&HEALTH, "`health` of an upstream"),
    (&UPSTREAM_TLS, "`tls` of `[upstreams.NAME]`"),
    (&LIMIT, "`[limits.NAME]`"),
    (&COST, "`cost` of a limit"),
    (&ESTIMATE, "`estimate` of a `cost`"),
    (&COUNT_WHEN, "`count_when` of a limit"),
    (&EXEMPT, "`exempt` of a limit"),
    (&BAN, "`ban` of a limit"),
    (&CANDIDATE, "`candidate` of a limit"),
    (&OVERRIDE, "`overrides` of a limit"),
    (&PLAN, "One of a limit's `plans`, as a table"),
    (&PLANS, "`[plans]`"),
    (&ROUTE, "`[[routes]]`"),
    (&USED_LIMIT, "One of `limits` of a route or of `[server]`, as a table"),
    (&RESPOND, "`respond` of a route"),
    (&HEADERS, "`request_headers` and `response_headers` of a route"),
    (&JWT, "`[jwt.NAME]`"),
    (&SECRET, "`keys` of `[jwt.NAME]`, as a table"),
    (&STORE, "`[store]`"),
    (&REJECT, "`[reject]`"),
    (&CORS, "`[cors]`"),
    (&LOG, "`[log]`"),
    (&ADMIN, "`[admin]`"),
    (&DECIDE, "`[decide]`"),
    (&DECIDE_TLS, "`tls` of `[decide]`"),
    (&TRACE, "`[trace]`"),
    (&TEST, "`[[tests]]`"),
    (&EXPECT, "`expect` of a test"),
];

fn table((shape, heading): (&Shape, &str)) -> String {
    let mut table =
        format!("### {heading}\n\n| field | default | meaning |\n| --- | --- | --- |\n");
    for field in (shape.fields)() {
        let default = match field.default {
            Fallback::Required => "required".to_owned(),
            Fallback::Value(value) => format!("`{value}`"),
            default => default.words().unwrap_or_default().to_owned(),
        };
        // An unescaped bar would end the cell.
        let meaning = meaning(shape, field).replace('|', "\\|");
        writeln!(table, "| `{}` | {default} | {meaning} |", field.name).unwrap();
    }
    table
}

/// The algorithms that have the field, the words that the field can hold, and the field's meaning.
fn meaning(shape: &Shape, field: &Field) -> String {
    let words = match &field.kind {
        Kind::Word(words) => words(),
        _ => Vec::new(),
    };
    let words: Vec<_> = words.iter().map(|word| format!("`\"{word}\"`")).collect();
    let words = (words.len() > 1).then(|| words.join(", "));
    let parts = [whose_field(shape, field), words, Some(field.meaning.to_owned())];
    parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
}

#[test]
fn the_reference_has_every_field() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference.md");
    let text = fs::read_to_string(&file).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the file has a reference");
    let (written, after) = rest.split_once(END).expect("the reference ends");
    let meant = format!("\n{}\n", TABLES.map(table).join("\n").trim());
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        fs::write(&file, format!("{before}{BEGIN}{meant}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(written, meant, "TIDEGATE_BLESS=1 cargo test --lib reference writes it anew");
}

#[test]
fn every_row_has_three_cells() {
    let tables = TABLES.map(table).concat();
    for row in tables.lines().filter(|line| line.starts_with('|')) {
        assert_eq!(row.replace("\\|", "").matches('|').count(), 4, "{row}");
    }
}

#[test]
fn the_runbook_lists_the_settings_that_need_a_restart() {
    fn collect(title: &str, shape: &Shape, found: &mut BTreeSet<String>) {
        for field in (shape.fields)() {
            let path = format!("{title}{}", field.name);
            match &field.kind {
                _ if field.restart => _ = found.insert(path),
                Kind::Table(shape) => collect(&format!("{path}."), shape, found),
                _ => {}
            }
        }
    }
    let mut declared = BTreeSet::new();
    collect("", &ROOT, &mut declared);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/runbook.md");
    let text = fs::read_to_string(file).unwrap();
    let (_, list) = text.split_once("\n## Settings that need a restart\n").unwrap();
    let items = list.lines().filter_map(|line| line.strip_prefix("- `")?.strip_suffix('`'));
    assert_eq!(items.map(str::to_owned).collect::<BTreeSet<_>>(), declared);
}
