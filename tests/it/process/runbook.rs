//! docs/runbook.md against the messages of the program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

type Names = BTreeSet<String>;

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// What stands in backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The messages in the table of docs/operating.md, each with its level.
fn in_the_table() -> BTreeSet<(String, String)> {
    let text = read("docs/operating.md");
    let mut found = BTreeSet::new();
    for level in ["ERROR", "WARN", "INFO"] {
        let row = text.lines().find_map(|line| line.strip_prefix(&format!("| `{level}` | ")));
        let row = row.unwrap_or_else(|| panic!("the table has no row `{level}`"));
        found.extend(code(row).map(|message| (level.to_owned(), message.to_owned())));
    }
    found
}

/// All Rust files in a folder of the sources, without their tests.
fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            sources(&path, found);
        } else if name != "tests" && name != "testing" {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            found.push((name, code.to_owned()));
        }
    }
}

fn source(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut found);
    found
}

/// The last text in quotes.
fn last_text(code: &str) -> Option<&str> {
    code.rsplit('"').nth(1)
}

/// What stands before the bracket that closes a call.
fn arguments(code: &str) -> &str {
    let (mut depth, mut in_text) = (1, false);
    let end = code.find(|c| {
        in_text ^= c == '"';
        depth += match c {
            '(' if !in_text => 1,
            ')' if !in_text => -1,
            _ => 0,
        };
        depth == 0
    });
    &code[..end.expect("a call ends")]
}

/// The messages that the sources write, each with its level.
fn in_the_sources() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for (_, text) in source("src") {
        for level in ["error", "warn", "info"] {
            for call in text.split(&format!("{level}!(")).skip(1) {
                let message = last_text(arguments(call)).expect("an event has a message");
                found.insert((level.to_uppercase(), message.to_owned()));
            }
        }
    }
    found
}

/// The messages that the runbook explains. Each must have its four parts.
fn in_the_runbook() -> Names {
    let text = read("docs/runbook.md");
    let mut found = Names::new();
    for section in text.split("\n### `").skip(1) {
        let (message, rest) = section.split_once('`').unwrap();
        let rest = rest.split("\n## ").next().unwrap();
        for part in ["Means", "Meanwhile", "Do", "Look at"] {
            assert!(rest.contains(&format!("\n- **{part}**: ")), "`{message}` lacks **{part}**");
        }
        assert!(found.insert(message.to_owned()), "`{message}` comes twice");
    }
    for row in text.lines().filter_map(|line| line.strip_prefix("| `")) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [message, parts @ .., ""] = &cells[..] else { panic!("{row}") };
        assert!(parts.len() == 4 && parts.iter().all(|part| !part.is_empty()), "{row}");
        let message = message.trim_end_matches('`').to_owned();
        assert!(found.insert(message), "{row}\ncomes twice");
    }
    found
}

#[test]
fn the_table_of_log_lines_has_what_the_program_writes_and_no_more() {
    let (table, sources) = (in_the_table(), in_the_sources());
    assert!(sources.len() > 50, "the sources are not where this test looks");
    let only = |these: &BTreeSet<_>, those: &BTreeSet<_>| -> Vec<(String, String)> {
        these.difference(those).cloned().collect()
    };
    assert_eq!(only(&sources, &table), [], "the table in docs/operating.md lacks these");
    assert_eq!(only(&table, &sources), [], "the table in docs/operating.md has these in excess");
}

#[test]
fn the_runbook_explains_each_message_of_the_table_and_no_other() {
    let (runbook, table) = (in_the_runbook(), in_the_table());
    let table: Names = table.into_iter().map(|(_, message)| message).collect();
    let lacks: Vec<_> = table.difference(&runbook).collect();
    let more: Vec<_> = runbook.difference(&table).collect();
    assert!(lacks.is_empty() && more.is_empty(), "lacks {lacks:?}, has in excess {more:?}");
}
