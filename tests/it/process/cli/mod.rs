//! The command line: what it prints where, and its exit codes.

mod agreement;
mod explain;
mod files;
mod replay;
mod running;
mod suggest;

use std::path::Path;

use serde_json::Value;

use crate::support::tidegate::program;

const ONE: &str = "[upstreams.api]\nservers = [\"http://127.0.0.1:3000\"]\n\
                   [limits.client]\nkey = [\"ip\"]\nrate = \"100/s\"\n\
                   [[routes]]\npath = \"/{*rest}\"\nupstream = \"api\"\nlimits = [\"client\"]\n";

/// A folder with this proxy.toml, if one is given.
fn folder(text: Option<&str>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    if let Some(text) = text {
        std::fs::write(folder.path().join("proxy.toml"), text).unwrap();
    }
    folder
}

/// Exit code, standard output, standard error.
pub(in crate::process) fn told(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let told = program().args(arguments).current_dir(folder).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (told.status.code().unwrap(), text(told.stdout), text(told.stderr))
}

#[test]
fn help_and_version_are_what_was_asked_for() {
    let folder = folder(None);
    for arguments in [
        &["--help"][..],
        &["-h"],
        &["--version"],
        &["help", "run"],
        &["run", "--help"],
        &["check", "--help"],
        &["explain", "--help"],
        &["demo", "--help"],
        &["schema", "--help"],
        &["health", "--help"],
        &["limits", "--help"],
        &["limits", "set", "--help"],
        &["replay", "--help"],
        &["suggest", "--help"],
        &["redisson", "--help"],
        &["redisson", "try-set", "--help"],
    ] {
        let (code, out, errors) = told(folder.path(), arguments);
        assert_eq!((code, errors.as_str()), (0, ""), "{arguments:?}");
        assert!(!out.is_empty());
    }
    let (_, help, _) = told(folder.path(), &["--help"]);
    for word in ["run", "check", "explain", "demo", "schema", "health", "429", "proxy.toml"] {
        assert!(help.contains(word), "{word} in {help}");
    }
}

#[test]
fn what_was_typed_wrong_is_2_and_stands_in_standard_error() {
    let there = folder(Some(ONE));
    for (arguments, word) in [
        (&["frobnicate"][..], "frobnicate"),
        (&["run", "--port", "80"], "--port"),
        (&["explain"], "REQUEST"),
        // It would be ignored, and another file checked than the one that was meant.
        (&["--config", "other.toml", "check"], "--config"),
        (&["explain", "GE[T /"], "GE[T /"),
        (&["explain", "users/42"], "users/42"),
        (&["explain", "/", "--header", "novalue"], "novalue"),
        (&["explain", "/", "--ip", "1.2.3"], "1.2.3"),
        (&["run", "--listen", "nowhere"], "nowhere"),
        (&["run", "--listen", "21980"], "did you mean \"0.0.0.0:21980\"?"),
        (&["run", "--upstream", "ftp://x"], "ftp://x"),
        (&["run", "--upstream", "http://x/path"], "http://x/path"),
        (&["health"], "admin.listen"),
        (&["limits", "list"], "admin.listen"),
    ] {
        let (code, out, errors) = told(there.path(), arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}");
        assert!(errors.contains(word), "{word} in {errors}");
    }
}

#[test]
fn check_says_ok_or_all_that_is_wrong() {
    assert_eq!(told(folder(Some(ONE)).path(), &["check"]), (0, "ok\n".into(), String::new()));
    let warned = ONE.replace("100/s", "0/s");
    let (code, out, errors) = told(folder(Some(&warned)).path(), &["check"]);
    assert_eq!((code, out.as_str()), (0, "ok\n"));
    assert!(errors.contains("warning") && errors.contains("proxy.toml:5:8"), "{errors}");
    let wrong = ONE.replace("rate", "rte").replace("/{*rest}", "users");
    let (code, out, errors) = told(folder(Some(&wrong)).path(), &["check"]);
    assert_eq!((code, out.as_str()), (2, ""));
    for part in ["proxy.toml:5:1", "rte", "`rate`", "proxy.toml:7:8"] {
        assert!(errors.contains(part), "{part} in {errors}");
    }
    let elsewhere = folder(None);
    std::fs::write(elsewhere.path().join("other.toml"), ONE).unwrap();
    for arguments in [&["check", "--config", "other.toml"][..], &["check", "-c", "other.toml"]] {
        assert_eq!(told(elsewhere.path(), arguments).0, 0);
    }
    let (code, _, errors) = told(elsewhere.path(), &["check"]);
    assert_eq!(code, 2);
    assert!(errors.contains("there is no proxy.toml"), "{errors}");
}

#[test]
fn without_a_file_there_is_a_way_on() {
    let empty = folder(None);
    for arguments in [&[][..], &["run"]] {
        let (code, out, errors) = told(empty.path(), arguments);
        assert_eq!((code, out.as_str()), (2, ""));
        for part in ["there is no proxy.toml", "--upstream", "tidegate demo"] {
            assert!(errors.contains(part), "{part} in {errors}");
        }
    }
    for arguments in
        [&["check", "none.toml"][..], &["diff", "none.toml", "b.toml"], &["-c", "/none/proxy.toml"]]
    {
        let (code, _, errors) = told(empty.path(), arguments);
        assert_eq!(code, 2);
        assert!(errors.contains("there is no ") && !errors.contains("tidegate init"), "{errors}");
    }
}

/// A misspelt name took all limits away.
#[test]
fn a_file_that_is_named_must_be_there() {
    let empty = folder(None);
    for arguments in [
        &["run", "--config", "/nonexist.toml"][..],
        &["--config", "proxy.toml"],
        &["-c", "other.toml"],
    ] {
        let upstream = ["--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"];
        let (code, out, errors) = told(empty.path(), &[arguments, &upstream].concat());
        assert_eq!((code, out.as_str()), (2, ""));
        let file = arguments.last().unwrap();
        assert!(errors.contains(&format!("there is no {file}")), "{errors}");
        assert!(errors.contains("`--config`"), "{errors}");
    }
}

#[test]
fn a_path_in_another_proxys_way_is_wrong_on_the_command_line_too() {
    let there = folder(Some(ONE));
    for (arguments, meant) in [
        (&["suggest", "--route", "/api/*", "a.log"][..], "\"/api/{*rest}\""),
        (&["suggest", "--route", "/users/:id", "a.log"], "\"/users/{id}\""),
        (&["suggest", "--route", "~ ^/x/(.*)$", "a.log"], "write {name} for a segment"),
        (&["explain", "GET /users/:id"], "one path"),
        (&["explain", "/api/*"], "one path"),
        (&["explain", "GET", "/users/{id}"], "one path"),
    ] {
        let (code, out, errors) = told(there.path(), arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}");
        assert!(errors.contains(meant), "{errors}");
    }
}

#[test]
fn where_the_file_has_no_admin_endpoint_the_two_lines_are_shown() {
    for arguments in [&["top"][..], &["limits", "list"], &["health"]] {
        let (code, _, errors) = told(folder(Some(ONE)).path(), arguments);
        assert_eq!(code, 2);
        assert!(errors.contains("[admin]\n  listen = \"127.0.0.1:9090\"\n"), "{errors}");
    }
}

/// `tidegate schema | head`.
#[test]
fn a_pipe_that_is_closed_is_no_line() {
    let folder = folder(Some(ONE));
    for arguments in [&["schema"][..], &["check"], &["--help"], &["explain", "/"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(arguments)
            .current_dir(folder.path())
            .stdout(writer)
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn the_schema_is_json_that_knows_the_fields() {
    let (code, out, errors) = told(folder(None).path(), &["schema"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let schema: Value = serde_json::from_str(&out).unwrap();
    assert!(schema["$schema"].as_str().unwrap().contains("json-schema.org"));
    for table in ["server", "upstreams", "limits", "routes", "store", "reject", "log", "admin"] {
        assert!(schema["properties"][table].is_object(), "{table}");
    }
}
