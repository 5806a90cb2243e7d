//! `tidegate limits promote`: the edit that it shows, and the file that it writes.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{folder, told};
use crate::support::proxy::Proxy;

const BEFORE: &str = "\
[limits.client] # each
key       = [\"ip\"]
rate      = \"100/s\" # own
burst     = 200
candidate = { rate = \"50/s\" }

[limits.plain]
key = [\"ip\"]
rate = \"1/s\"

[limits.resting]
mode = \"off\"
rate = \"1/s\"
candidate = { rate = \"2/s\" }

[[routes]]
path = \"/\"
respond = {}
limits = [\"client\", \"plain\"]
";

const EDIT: &str = "\
--- proxy.toml
+++ proxy.toml
@@ -1,8 +1,6 @@
 [limits.client] # each
 key       = [\"ip\"]
-rate      = \"100/s\" # own
-burst     = 200
-candidate = { rate = \"50/s\" }
+rate      = \"50/s\" # own
 
 [limits.plain]
 key = [\"ip\"]
";

fn after() -> String {
    let lines =
        BEFORE.lines().filter(|line| !line.starts_with("burst") && !line.starts_with("candidate "));
    let lines: Vec<_> = lines.collect();
    // The candidate of the limit that is off begins with the same word.
    let off = "rate = \"1/s\"\ncandidate = { rate = \"2/s\" }\n";
    let text = lines.join("\n").replace("rate      = \"100/s\"", "rate      = \"50/s\"") + "\n";
    text.replace("mode = \"off\"\nrate = \"1/s\"\n", &format!("mode = \"off\"\n{off}"))
}

fn read(folder: &Path) -> String {
    fs::read_to_string(folder.join("proxy.toml")).unwrap()
}

#[test]
fn without_a_terminal_it_shows_the_edit_and_writes_with_yes_alone() {
    let folder = folder(Some(BEFORE));
    let folder = folder.path();
    let (code, out, errors) = told(folder, &["limits", "promote", "client"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(out, format!("{EDIT}\nproxy.toml is unchanged; --yes makes this edit\n"));
    assert_eq!(read(folder), BEFORE);

    let mode = Permissions::from_mode(0o640);
    fs::rename(folder.join("proxy.toml"), folder.join("real.toml")).unwrap();
    fs::set_permissions(folder.join("real.toml"), mode).unwrap();
    symlink("real.toml", folder.join("proxy.toml")).unwrap();
    let (code, out, errors) = told(folder, &["limits", "promote", "client", "--yes"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(out, format!("{EDIT}wrote proxy.toml; a running proxy reads it by itself\n"));
    assert_eq!(read(folder), after());
    assert!(folder.join("proxy.toml").is_symlink());
    let mode = fs::metadata(folder.join("real.toml")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(fs::read_dir(folder).unwrap().count(), 2, "no other file is left");
    let (code, _, errors) = told(folder, &["limits", "promote", "client", "--yes"]);
    assert!(code == 2 && errors.contains("`client` of proxy.toml has no candidate"), "{errors}");
}

#[test]
fn what_cannot_be_promoted_is_said_and_nothing_is_written() {
    let wrong = BEFORE.replace("\"50/s\"", "\"50\"");
    for (text, arguments, words) in [
        (Some(BEFORE), &["cleint"][..], "proxy.toml has no limit `cleint`: did you mean `client`?"),
        (Some(BEFORE), &["nothing-like-it"], "proxy.toml has no limit `nothing-like-it`"),
        (Some(BEFORE), &["plain"], "the limit `plain` of proxy.toml has no candidate"),
        (Some(BEFORE), &["resting"], "the limit `resting` of proxy.toml is off"),
        (Some(&wrong), &["client"], "proxy.toml:5:22"),
        (None, &["client"], "there is no proxy.toml"),
        (Some(BEFORE), &["client", "--config", "other.toml"], "there is no other.toml"),
        (Some(BEFORE), &[], "LIMIT"),
    ] {
        let folder = folder(text);
        let arguments = [&["limits", "promote", "--yes"], arguments].concat();
        let (code, out, errors) = told(folder.path(), &arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}: {errors}");
        assert!(errors.contains(words), "{words} in {errors}");
        if let Some(text) = text {
            assert_eq!(read(folder.path()), text);
        }
    }
}

/// Runs the command in a terminal, and types this once it asks and `change` has been called. Returns the exit
/// code and what the terminal shows.
fn asked(folder: &Path, change: impl FnOnce(), typed: &str) -> (i32, String) {
    let command = format!("exec {} limits promote client", env!("CARGO_BIN_EXE_tidegate"));
    let mut terminal = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut output, mut shown) = (terminal.stdout.take().unwrap(), Vec::new());
    while !String::from_utf8_lossy(&shown).contains("[y/N] ") {
        let mut byte = [0];
        output.read_exact(&mut byte).unwrap();
        shown.extend(byte);
    }
    change();
    terminal.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    output.read_to_end(&mut shown).unwrap();
    (terminal.wait().unwrap().code().unwrap(), String::from_utf8(shown).unwrap())
}

#[test]
fn in_a_terminal_it_asks() {
    for (typed, is_applied) in [("y\n", true), ("Yes\n", true), ("n\n", false), ("\n", false)] {
        let folder = folder(Some(BEFORE));
        let (code, out) = asked(folder.path(), || (), typed);
        assert!(
            code == 0 && out.contains("apply? [y/N] ") && out.contains("+rate      = \"50/s\""),
            "{out}"
        );
        let words = if is_applied { "wrote proxy.toml" } else { "proxy.toml is unchanged" };
        assert!(out.contains(words), "{out}");
        assert_eq!(read(folder.path()) == after(), is_applied, "{typed}");
        assert_eq!(read(folder.path()) == BEFORE, !is_applied, "{typed}");
    }
}

#[test]
fn a_file_that_was_changed_meanwhile_is_left_alone() {
    let folder = folder(Some(BEFORE));
    let other = BEFORE.replace("# each", "# all");
    let change = || fs::write(folder.path().join("proxy.toml"), &other).unwrap();
    let (code, out) = asked(folder.path(), change, "y\n");
    assert!(code == 1 && out.contains("proxy.toml was changed meanwhile"), "{out}");
    assert_eq!(read(folder.path()), other);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no other file is left");
}

#[test]
fn what_cannot_be_edited_is_to_be_done_by_hand() {
    let limits = "[limits]\nclient = { candidate = { rate = \"5/s\" } # c\n, rate = \"9/s\" }\n\
                  [[routes]]\npath = \"/\"\nrespond = {}\nlimits = [\"client\"]\n";
    let folder = folder(Some(limits));
    let (code, out, errors) = told(folder.path(), &["limits", "promote", "client", "--yes"]);
    assert_eq!((code, out.as_str()), (1, ""), "{errors}");
    assert!(errors.contains("give it 5/s, burst 5 by hand"), "{errors}");
    assert_eq!(read(folder.path()), limits);
}

#[test]
fn a_running_proxy_takes_the_figures() {
    let limit = "key = [\"ip\"]\nrate = \"3/h\"\ncandidate = { rate = \"1/h\" }";
    let file = Proxy::answering().admin().limit("client", limit);
    let proxy = file.start();
    let admin = format!("[admin]\nlisten = \"{}\"", proxy.admin());
    proxy.reload(&file.text().replace("[admin]\nlisten = \"LISTEN\"", &admin));
    let name = proxy.config_file();
    let arguments = ["limits", "promote", "client", "--config", name.to_str().unwrap(), "--yes"];
    let (code, _, errors) = told(Path::new("/"), &arguments);
    assert_eq!((code, errors.as_str()), (0, ""));
    let is_it =
        |line: &Value| line["changed"].to_string().contains("limits.client rate 3/h -> 1/h");
    proxy.log.wait("config reloaded", is_it);
}
