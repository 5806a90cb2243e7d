//! The table of faults. A file of `faults/` begins with a stub, and each case below it is a few lines that are
//! appended to the stub. Below a line stands what is said about it: `^^^` underlines the place, `(not shown)` stands
//! there instead where the line may hold a secret, and `---` underlines the other place that a message is about.

use std::fs;
use std::path::{Path, PathBuf};

use tidegate::config::{Colour, Problems};

use super::{folder, parse};

/// Begins a case. Its name follows.
const CASE: &str = "== ";

#[test]
fn every_fault_of_the_table_is_explained_and_no_secret_is_told() {
    let bless = std::env::var_os("TIDEGATE_BLESS").is_some();
    let (folder, mut wrong, mut cases) = (folder(), Vec::new(), 0);
    for path in tables() {
        let table = fs::read_to_string(&path).unwrap();
        let (stub, rest) = table.split_once(CASE).unwrap();
        let mut now = stub.to_owned();
        for case in rest.split(&format!("\n{CASE}")) {
            let (name, lines) = case.split_once('\n').unwrap();
            let lines: Vec<&str> = lines.trim_end().lines().filter(|it| !is_note(it)).collect();
            let file = folder.path().join("proxy.toml").display().to_string();
            let (refused, problems) =
                parse(&file, &format!("{}{}\n", stub.trim_start(), lines.join("\n")));
            let notes = notes(&file, &problems);
            assert!(!notes.is_empty(), "{name}: nothing is said");
            assert_eq!(refused, problems.lines().any(|it| !it.contains(": warning: ")), "{name}");
            assert!(notes.iter().all(|(_, note)| !note.contains("hunter2")), "{name}");
            now += &format!(
                "{CASE}{name}\n{}\n",
                noted(stub.trim_start().lines().count(), &lines, notes)
            );
            cases += 1;
        }
        let now = now.trim_end().to_owned() + "\n";
        assert!(!now.contains("nobody may see"), "{}", path.display());
        if bless {
            fs::write(&path, now).unwrap();
        } else if now != table {
            let changed = now.lines().filter(|line| !table.lines().any(|old| old == *line));
            let changed: Vec<&str> = changed.collect();
            wrong.push(format!("{}: now\n{}", path.display(), changed.join("\n")));
        }
    }
    assert!(cases >= 200, "only {cases} cases");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn tables() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/library/config/faults");
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Whether a line of a case is not its own, but says something about the line above.
fn is_note(line: &str) -> bool {
    let line = line.trim_start();
    let is_rule = line.len() > 1 && line.chars().all(|char| char == '-');
    line.starts_with('^') || line.starts_with("(not shown)") || is_rule
}

/// What is said about each line, with the line's number.
fn notes(file: &str, problems: &Problems) -> Vec<(usize, String)> {
    let mut notes = Vec::new();
    let rendered = problems.render(Colour::Never);
    for (picture, line) in rendered.split("\n\n").zip(problems.lines()) {
        let place = line.strip_prefix(&format!("{file}:")).unwrap_or(&line);
        let mut parts = place.splitn(3, ':');
        let mut number = || parts.next().and_then(|part| part.parse::<usize>().ok());
        let (Some(row), Some(column)) = (number(), number()) else {
            notes.push((0, format!("^ {line}")));
            continue;
        };
        let said = parts.next().unwrap_or_default().replace(&format!("{}/", folder_of(file)), "");
        let rules = rules(picture);
        let (places, others): (Vec<_>, Vec<_>) =
            rules.into_iter().partition(|it| it.2.starts_with('^'));
        let mark = match places.as_slice() {
            [] => "(not shown)".to_owned(),
            [(_, _, rule)] => rule.clone(),
            _ => panic!("two places in\n{picture}"),
        };
        assert!(
            places.iter().all(|it| (it.0, it.1) == (row, column)),
            "{row}:{column} in\n{picture}"
        );
        notes.push((row, format!("{}{mark}{said}", " ".repeat(column - 1))));
        let other =
            |(row, column, rule): (usize, usize, String)| (row, " ".repeat(column - 1) + &rule);
        notes.extend(others.into_iter().map(other));
    }
    notes
}

fn folder_of(file: &str) -> &str {
    file.rsplit_once('/').unwrap().0
}

/// What is underlined in a picture: line, column and the rule itself.
fn rules(picture: &str) -> Vec<(usize, usize, String)> {
    let (mut rules, mut row) = (Vec::new(), 0);
    for (number, shown) in picture.lines().filter_map(|line| line.split_once('|')) {
        match (number.trim(), number.trim().parse()) {
            ("", _) => {}
            (_, Ok(number)) => {
                row = number;
                continue;
            }
            _ => continue,
        }
        let mut column = 0;
        for word in shown.split(' ') {
            let all = |mark| word.chars().all(|char| char == mark);
            if !word.is_empty() && (all('^') || (word.len() > 1 && all('-'))) {
                rules.push((row, column, word.to_owned()));
            }
            column += word.chars().count() + 1;
        }
    }
    rules
}

/// The lines of a case, which come after those of the stub, with what is said about each below it. What is said about a
/// line of the stub comes first.
fn noted(stub: usize, lines: &[&str], notes: Vec<(usize, String)>) -> String {
    let mut text = String::new();
    for (row, note) in notes.iter().filter(|(row, _)| *row <= stub) {
        text += &format!("^ line {row} of the stub: {}\n", note.trim_start());
    }
    for (row, line) in (stub + 1..).zip(lines) {
        text += &format!("{line}\n");
        for (_, note) in notes.iter().filter(|(it, _)| *it == row) {
            text += &format!("{note}\n");
        }
    }
    text
}
