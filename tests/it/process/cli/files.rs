//! Commands about files of configuration, and what the command line says of itself.

use std::fs::{self, File};
use std::process::Command;

use serde_json::{Value, json};

use super::{ONE, folder, told};
use crate::support::tidegate::program;

#[test]
fn check_takes_a_file_and_says_it_as_json() {
    let folder = folder(None);
    let limit = "[limits.a]\nrate = \"1/s\"\n";
    fs::write(folder.path().join("good.toml"), format!("{ONE}{limit}")).unwrap();
    fs::write(folder.path().join("bad.toml"), format!("{ONE}[limits.a]\nrte = \"1/s\"\n")).unwrap();
    let (code, said, errors) = told(folder.path(), &["check", "good.toml"]);
    assert_eq!((code, said.as_str()), (0, "ok\n"), "{errors}");
    assert!(errors.contains("names no `key`") && errors.contains("no route uses"), "{errors}");
    assert_eq!(told(folder.path(), &["check", "bad.toml"]).0, 2);

    let json = |file: &str| -> (i32, Value) {
        let (code, said, errors) = told(folder.path(), &["check", file, "--json"]);
        assert_eq!(errors, "");
        (code, serde_json::from_str(&said).unwrap())
    };
    let (code, good) = json("good.toml");
    assert_eq!(
        (code, &good["ok"], good["warnings"].as_array().unwrap().len()),
        (0, &true.into(), 2)
    );
    let (code, bad) = json("bad.toml");
    assert_eq!((code, &bad["ok"]), (2, &false.into()));
    let error = &bad["errors"][0];
    let line = u64::try_from(ONE.lines().count()).unwrap() + 2;
    assert_eq!((&error["line"], &error["column"]), (&line.into(), &1.into()), "{bad}");
    assert_eq!(error["expected"], "did you mean `rate`?");
}

#[test]
fn init_writes_a_file_that_is_right_and_never_over_one() {
    let folder = folder(None);
    let init = |arguments: &[&str]| told(folder.path(), &[&["init"], arguments].concat());
    let (code, _, errors) = init(&["--upstream", "ftp://a"]);
    assert_eq!(code, 2, "it would be refused");
    assert!(errors.contains("`--upstream` cannot be \"ftp://a\": expected `http://`"), "{errors}");
    assert!(!errors.contains("proxy.toml"), "a file that is not there: {errors}");
    let (code, said, _) = init(&["--upstream", "http://127.0.0.1:4000"]);
    assert_eq!(code, 0);
    assert!(said.contains("proxy.toml"), "{said}");
    let file = folder.path().join("proxy.toml");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("http://127.0.0.1:4000") && text.lines().count() < 20, "{text}");
    assert_eq!(told(folder.path(), &["check"]), (0, "ok\n".into(), String::new()));
    let (code, _, errors) = init(&[]);
    assert_eq!(code, 2);
    assert!(errors.contains("proxy.toml"), "{errors}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text, "it is as it was");
}

/// A regression: on a full disk an empty file was left, and the next `init` refused to write over it.
#[test]
fn init_leaves_no_file_that_it_could_not_write() {
    let folder = folder(None);
    // No file may get a byte, and who tries is told and not killed.
    let full = "trap '' XFSZ; ulimit -f 0; exec \"$0\" init";
    let mut shell = Command::new("sh");
    shell.args(["-c", full]).arg(program().get_program()).current_dir(folder.path());
    let told = shell.output().unwrap();
    let errors = String::from_utf8(told.stderr).unwrap();
    assert_eq!(told.status.code(), Some(1), "{errors}");
    assert!(errors.contains("cannot write proxy.toml"), "{errors}");
    assert!(!folder.path().join("proxy.toml").exists());
    assert_eq!(super::told(folder.path(), &["init"]).0, 0);
}

#[test]
fn diff_says_what_a_reload_would_change() {
    let folder = folder(None);
    let file = |name: &str, head: &str, limit: &str| {
        let text = format!("{head}{}", ONE.replace("rate = \"100/s\"", limit));
        fs::write(folder.path().join(name), text).unwrap();
    };
    file("old.toml", "", "rate = \"100/s\"");
    file("new.toml", "[server]\nworkers = 3\n", "rate = \"50/s\"\nburst = 200");
    let diff = |old: &str, new: &str| told(folder.path(), &["diff", old, new]);
    let (code, said, errors) = diff("old.toml", "new.toml");
    assert_eq!((code, errors.as_str()), (1, ""));
    for line in [
        "limits.client rate 100/s -> 50/s",
        "limits.client burst 100 -> 200",
        "server.workers none -> 3 with a restart",
    ] {
        assert!(said.lines().any(|it| it == line), "{line} in {said}");
    }
    assert_eq!(diff("old.toml", "old.toml"), (0, "nothing changes\n".into(), String::new()));
    assert_eq!(diff("old.toml", "none.toml").0, 2);
}

#[test]
fn explain_says_it_as_json() {
    let folder = folder(Some(ONE));
    let arguments = ["explain", "GET /users/42", "--ip", "203.0.113.7", "--json"];
    let (code, said, _) = told(folder.path(), &arguments);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(code, 0);
    let facts = ["method", "path", "host", "client", "route", "status", "allow"];
    let expected = json!(["GET", "/users/42", "localhost", "203.0.113.7", "/{*rest}", null, null]);
    assert_eq!(facts.map(|name| said[name].clone()), expected.as_array().unwrap()[..], "{said}");
    assert_eq!(said["params"], json!({ "rest": "users/42" }));
    let servers = json!(["http://127.0.0.1:3000"]);
    assert_eq!(said["upstream"], json!({ "name": "api", "servers": servers, "path": "/users/42" }));
    let limit = &said["limits"][0];
    for (name, value) in [
        ("name", json!("client")),
        ("applies", json!(true)),
        ("key", json!("203.0.113.7")),
        ("key_parts", json!(["ip"])),
        ("algorithm", json!("token-bucket")),
        ("rate", json!("100/s")),
        ("burst", json!(100)),
        ("cost", json!(1)),
        ("override", json!(false)),
        ("mode", json!("enforce")),
    ] {
        assert_eq!(limit[name], value, "{name} in {said}");
    }
    assert_eq!(limit["explanation"][0], "client: 100/s, burst 100");
    assert_eq!(said["explanation"]["route"], json!(["/{*rest}"]));
    let refused = told(folder.path(), &["explain", "TRACE /", "--json"]).1;
    let refused: Value = serde_json::from_str(&refused).unwrap();
    assert_eq!((&refused["status"], &refused["route"]), (&json!(405), &Value::Null), "{refused}");
}

#[test]
fn shells_and_man_know_the_commands() {
    let folder = folder(None);
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, _) = told(folder.path(), &["completions", shell]);
        assert_eq!(code, 0);
        assert!(script.contains("tidegate") && script.contains("explain"), "{shell}");
    }
    let (code, page, _) = told(folder.path(), &["man"]);
    assert_eq!(code, 0);
    assert!(page.starts_with(".ie") || page.contains(".TH"), "{page}");
    for part in
        ["\"tidegate explain\"", "\"tidegate limits set\"", "fail", "EXIT STATUS", "SIGUSR2"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn what_cannot_be_written_is_a_failure() {
    let folder = folder(Some(ONE));
    for arguments in [
        &["schema"][..],
        &["check"],
        &["explain", "GET /"],
        &["man"],
        &["--version"],
        &["--help"],
        &["check", "--help"],
        &["help", "explain"],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let told = program().args(arguments).current_dir(folder.path()).stdout(full).output();
        let told = told.unwrap();
        assert_eq!(told.status.code(), Some(1), "{arguments:?}");
        assert!(String::from_utf8_lossy(&told.stderr).contains("cannot write"), "{arguments:?}");
    }
}
