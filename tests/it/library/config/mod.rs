//! Faulty files, and what is said about each: a few as whole pictures here (`.toml` and `.expected`), all others
//! as rows of the tables in `faults/`. `TIDEGATE_BLESS=1` writes what is said now into the `.expected` files and the
//! tables: look at every line of the difference, as the person who gets to read it.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its files has failed")]

mod faults;

use std::fs;
use std::path::{Path, PathBuf};

use tidegate::config::{self, Colour, Overrides, Problems};

use crate::support::tls::Folder;

/// The environment of these files.
fn env(name: &str) -> Option<String> {
    (name == "SET").then(|| "a value that nobody may see".to_owned())
}

/// The folder that the files are taken to stand in, with what they name.
fn folder() -> Folder {
    let folder = Folder::new();
    for name in ["cert", "other"] {
        folder.write_server(name, &["localhost"]);
    }
    let locked =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    fs::write(folder.path().join("locked.key"), locked).unwrap();
    let whole = fs::read_to_string(folder.path().join("cert.pem")).unwrap();
    fs::write(folder.path().join("half.pem"), &whole[..whole.len() / 2]).unwrap();
    fs::write(folder.path().join("plans.txt"), "a pro\nb gold Customer B\nc silver\n").unwrap();
    fs::write(folder.path().join("broken.txt"), "a pro\na-secret\n").unwrap();
    folder
}

/// What a user of the file sees: problems in full, then each in one line.
fn said(path: &Path, folder: &Folder) -> String {
    let text = fs::read_to_string(path).unwrap();
    // The folder has another name each time: it is left out again.
    let before = format!("{}/", folder.path().display());
    said_of(&format!("{before}{}", path.file_name().unwrap().to_str().unwrap()), &text)
        .replace(&before, "")
}

fn said_of(name: &str, text: &str) -> String {
    let (refused, problems) = parse(name, text);
    let kind = if refused { "refused" } else { "taken" };
    let lines: Vec<String> = problems.lines().collect();
    format!("{}\n{kind}:\n{}\n", problems.render(Colour::Never), lines.join("\n"))
}

/// Whether a file is refused, and what is said about it.
fn parse(name: &str, text: &str) -> (bool, Problems) {
    match config::parse(name, text, &env, &Overrides::default()) {
        Ok(loaded) => (false, loaded.warnings),
        Err(problems) => (true, problems),
    }
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/library/config");
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort();
    files
}

#[test]
fn every_fault_is_explained() {
    let bless = std::env::var_os("TIDEGATE_BLESS").is_some();
    let files = files();
    assert!(files.len() >= 20, "only {} files", files.len());
    let (mut wrong, folder) = (Vec::new(), folder());
    for path in files {
        let expected_path = path.with_extension("expected");
        let said = said(&path, &folder);
        if bless {
            fs::write(&expected_path, said).unwrap();
            continue;
        }
        let expected = fs::read_to_string(&expected_path).unwrap_or_default();
        if said != expected {
            let name = expected_path.display();
            wrong.push(format!("{name}\n--- expected\n{expected}\n--- said\n{said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_fault_is_found_and_no_secret_is_told() {
    let folder = folder();
    for path in files() {
        let said = said(&path, &folder);
        let lines = said.split("refused:\n").nth(1).or_else(|| said.split("taken:\n").nth(1));
        assert!(lines.is_some_and(|lines| !lines.trim().is_empty()), "{}", path.display());
        assert!(!said.contains("nobody may see"), "{}", path.display());
        assert!(!lines.unwrap_or_default().contains("hunter2"), "{}", path.display());
    }
}
