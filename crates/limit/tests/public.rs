//! What the package promises: every public item stands in `tests/public.txt`, and a change of it is seen in a review.
//! `TIDEGATE_BLESS=1 cargo test -p tidegate-limit` writes the list again.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a fault in here is a bug")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The lines of a file that declare something public, up to its figures.
fn declared(file: &str, text: &str, all: &mut BTreeSet<String>) {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let mut owner = String::new();
    for line in code.lines() {
        let words = line.trim_start();
        if let Some(of) = line.strip_prefix("impl") {
            // `impl<C> Name<C> {` and `impl Trait for Name {`
            let of = of.rsplit(" for ").next().unwrap_or_default().trim_end_matches(" {");
            let of = of.rsplit("> ").next().unwrap_or_default().trim();
            owner = format!("{}::", of.split('<').next().unwrap_or_default());
        } else if line == "}" {
            owner.clear();
        }
        let Some(item) = words.strip_prefix("pub ") else { continue };
        let item = item.trim_start_matches("const fn ").trim_start_matches("async ");
        let end = item.find(|c: char| !c.is_alphanumeric() && !" _:".contains(c));
        let item = item.get(..end.unwrap_or(item.len())).unwrap_or_default().trim();
        let is_import = item.starts_with("use ") || item.starts_with("mod ");
        all.insert(match is_import {
            true => format!("{file}: {}", words.trim_end_matches(';')),
            false => format!("{file}: {owner}{item}"),
        });
    }
}

fn walk(folder: &Path, root: &Path, all: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_test = path.components().any(|part| part.as_os_str() == "tests")
            || path.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("test"));
        if path.is_dir() {
            walk(&path, root, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
            let file = path.strip_prefix(root).unwrap().display().to_string();
            declared(&file, &fs::read_to_string(&path).unwrap(), all);
        }
    }
}

#[test]
fn every_public_item_is_listed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = BTreeSet::new();
    walk(&root.join("src"), &root.join("src"), &mut all);
    let found = all.into_iter().collect::<Vec<_>>().join("\n") + "\n";
    let list = root.join("tests/public.txt");
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        fs::write(&list, &found).unwrap();
    }
    let listed = fs::read_to_string(&list).unwrap();
    assert!(
        found == listed,
        "tests/public.txt is out of date: read the difference, then write it again"
    );
}
