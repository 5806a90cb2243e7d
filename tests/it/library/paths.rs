//! Every path that a comment or a document names exists.
//!
//! A path is a word that begins with one of [`FOLDERS`], or ends in `.rs` or `.lua`. It may be short: of
//! `crates/limit/src/call/shell.lua`, `call/shell.lua` and `shell.lua` name the file too. Where a part in capitals
//! stands for any name, as in `store/NAME.rs`, the path is no file's.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// What has files of the project.
const FOLDERS: [&str; 7] =
    ["crates/", "src/", "tests/", "docs/", "scripts/", "deploy/", "benches/"];

/// What a comment's line begins with, by the end of the file's name. In a document each line counts.
const COMMENTS: [(&str, &str); 8] = [
    ("md", ""),
    ("rs", "//"),
    ("js", "//"),
    ("lua", "--"),
    ("toml", "#"),
    ("yml", "#"),
    ("yaml", "#"),
    ("sh", "#"),
];

/// All files and folders of a folder, from the root of the project.
fn collect(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        found.push(path.strip_prefix(ROOT).unwrap().to_str().unwrap().to_owned());
        if path.is_dir() {
            collect(&path, found);
        }
    }
}

fn files() -> Vec<String> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        collect(&Path::new(ROOT).join(folder), &mut found);
    }
    let root = fs::read_dir(ROOT).unwrap().map(|entry| entry.unwrap().path());
    let root = root.filter(|path| path.is_file());
    found.extend(root.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()));
    found
}

/// The paths that a line names.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || "_-./:".contains(c);
    let words = line
        .split(move |c| !is_part(c))
        .filter(|word| !word.contains("::") && !word.contains("://"));
    // `src/lib.rs:7:3` is a place in the file.
    let words = words.map(|word| word.split(':').next().unwrap_or_default());
    let words = words.map(|word| word.trim_start_matches("../").trim_start_matches("./"));
    let words = words.map(|word| word.trim_end_matches(['.', '/']));
    words.filter(|word| {
        let has_end = [".rs", ".lua"]
            .iter()
            .any(|end| word.strip_suffix(end).is_some_and(|it| !it.is_empty()));
        has_end || FOLDERS.iter().any(|folder| word.starts_with(folder))
    })
}

/// Whether one of the names in the path stands for any name.
fn is_pattern(path: &str) -> bool {
    let is_any =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_uppercase());
    path.split(['/', '.']).any(is_any)
}

#[test]
fn paths_in_comments_and_documents_exist() {
    let files = files();
    let mut known = HashSet::new();
    for file in &files {
        let starts = file.match_indices('/').map(|(at, _)| at + 1);
        known.extend([0].into_iter().chain(starts).map(|at| &file[at..]));
    }
    let mut gone = Vec::new();
    for file in files.iter().filter(|file| !file.starts_with("tests/corpus/")) {
        let end = file.rsplit('/').next().unwrap().rsplit_once('.').map_or("sh", |(_, end)| end);
        let Some((_, comment)) = COMMENTS.iter().find(|(of, _)| *of == end) else { continue };
        // A file that is no text has no comments.
        let Ok(text) = fs::read_to_string(Path::new(ROOT).join(file)) else { continue };
        let lines = text.lines().map(str::trim_start).enumerate();
        for (place, line) in lines.filter(|(_, line)| line.starts_with(comment)) {
            let lost = paths(line).filter(|path| !known.contains(path) && !is_pattern(path));
            gone.extend(lost.map(|path| format!("{file}:{}: there is no {path}", place + 1)));
        }
    }
    assert!(gone.is_empty(), "{}", gone.join("\n"));
}

#[test]
fn a_path_is_found_in_a_line() {
    for (line, expected) in [
        ("//! See `src/store/order.rs`.", &["src/store/order.rs"][..]),
        ("-- as in decide.rs, and docs/limits.md#waits", &["decide.rs", "docs/limits.md"]),
        ("| [`a`](../docs/a.md) | `tests/data/` |", &["docs/a.md", "tests/data"]),
        ("// tests/it/main.rs:7:3 failed; `./scripts/test`", &["tests/it/main.rs", "scripts/test"]),
        ("// https://docs.rs/a/src/b.rs, `.rs`, `docs::x.rs` and `/etc/a.toml`", &[]),
    ] {
        assert_eq!(paths(line).collect::<Vec<_>>(), expected, "{line}");
    }
    assert!(is_pattern("store/NAME.rs") && is_pattern("tests/corpus/TARGET"));
    assert!(!is_pattern("call/shell.lua") && !is_pattern("docs/a.md"));
}
