//! `tidegate top`.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;

use serde_json::Value;

use super::{limited, send};
use crate::support::redis::RedisServer;
use crate::support::tidegate::program;
use crate::support::upstream::{Upstream, ok};
use crate::support::{PATIENCE, wait_until};

#[test]
fn without_a_terminal_it_prints_once() {
    let proxy = limited().section("[log]\nkeys = \"plain\"").start();
    send(&proxy, "the-user", 5);
    let url = format!("http://{}", proxy.admin());
    let told = program().args(["top", &url]).output().unwrap();
    let text = String::from_utf8(told.stdout).unwrap();
    assert_eq!(told.status.code(), Some(0), "{text}");
    let row =
        text.lines().find(|line| line.contains("the-user")).unwrap_or_else(|| panic!("{text}"));
    assert!(row.starts_with("user ") && row.contains("  3  "), "{row}");
    assert!(text.contains("\nmemory:  yes  ") && !text.contains('\u{1b}'), "{text}");
    let json = program().args(["top", &url, "--json"]).output().unwrap();
    let status: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(status["limits"][0]["rejected_total"], 3);
}

#[test]
fn it_finds_the_endpoint_and_the_token_in_the_file() {
    let proxy = limited().section("token = \"s3cret\"").start();
    let admin = proxy.admin();
    let file = proxy.folder().join("written.toml");
    let text = limited().section("token = \"s3cret\"").text_with_admin(admin);
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let url = format!("http://{admin}");
    let top = |arguments: &[&str]| {
        let told = program().arg("top").args(arguments).current_dir("/").output().unwrap();
        (told.status.code().unwrap(), String::from_utf8(told.stderr).unwrap())
    };
    assert_eq!(top(&["--config", file, "--json"]), (0, String::new()));
    assert_eq!(top(&[&url, "--config", file, "--json"]), (0, String::new()));
    let (code, error) = top(&[&url]);
    assert!(code == 2 && error.contains("bearer token"), "{error}");
    let (code, error) = top(&["http://127.0.0.1:1"]);
    assert!(code == 1 && error.contains("127.0.0.1:1 does not answer"), "{error}");
    assert_eq!(top(&[]).0, 2, "there is no file here");
}

#[test]
fn all_processes_of_a_redis_are_shown_with_their_sums() {
    let server = RedisServer::start();
    let proxy = limited().store(&server.fields()).section("[log]\nkeys = \"plain\"");
    let [one, two] = [proxy.clone(), proxy.limit("more", "rate = \"9/s\"")].map(|it| it.start());
    for proxy in [&one, &two] {
        send(proxy, "the-user", 5);
    }
    let url = format!("http://{}", one.admin());
    let top = |arguments: &[&str]| {
        let told = program().args(["top", &url, "--fleet"]).args(arguments).output().unwrap();
        let text = String::from_utf8(told.stdout).unwrap();
        assert_eq!(told.status.code(), Some(0), "{text}");
        text
    };
    let mut text = String::new();
    wait_until("both have told their requests", || {
        text = top(&[]);
        text.contains("\nuser   the-user ") && text.contains("  8  ")
    });
    let rows = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
    assert!(text.contains("its store: 2\n\nprocess "), "{text}");
    let [all, first, second] = text.lines().skip(3).take(3).collect::<Vec<_>>()[..] else {
        panic!("{text}")
    };
    assert!(all.starts_with("all ") && all.contains("  10  "), "{text}");
    assert_eq!(
        [first, second].iter().filter(|row| row.ends_with("  this one, other file")).count(),
        1,
        "{text}"
    );
    assert_eq!(
        [first, second].iter().filter(|row| row.ends_with("  other file")).count(),
        1,
        "{text}"
    );
    assert_eq!(rows("user "), 1, "one row for both processes: {text}");
    let fleet: Value = serde_json::from_str(&top(&["--json"])).unwrap();
    assert_eq!(fleet["sums"]["requests"], 10);
}

/// An address of another server, such as that of the proxy itself, gave an empty picture and the exit code 0.
#[test]
fn another_server_is_no_admin_endpoint() {
    for body in ["{}", "[]", "<p>hello"] {
        let other = Upstream::answering(move |_| ok(body));
        for command in
            [&["top"][..], &["limits", "list", "--admin"], &["limits", "get", "x", "--admin"]]
        {
            let told = program().args(command).arg(other.url()).output().unwrap();
            let error = String::from_utf8(told.stderr).unwrap();
            assert_eq!(
                (told.status.code(), told.stdout),
                (Some(1), Vec::new()),
                "{command:?} {error}"
            );
            assert!(error.contains("is no admin endpoint of tidegate"), "{command:?} {error}");
        }
    }
}

/// What `tidegate top` draws in a terminal of this size, until Ctrl-C is typed. `is_drawn` says when.
fn drawn(url: &str, size: &str, is_drawn: impl Fn(&str) -> bool) -> String {
    let top = env!("CARGO_BIN_EXE_tidegate");
    let command = format!("stty {size}; exec {top} top {url}");
    let mut terminal = Command::new("script")
        .args(["-qc", &command, "/dev/null"])
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut keys, mut screen) = (terminal.stdin.take().unwrap(), terminal.stdout.take().unwrap());
    let (sender, pieces) = channel();
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(read @ 1..) = screen.read(&mut piece) {
            let _ = sender.send(piece[..read].to_vec());
        }
    });
    let mut bytes = Vec::new();
    while !is_drawn(&String::from_utf8_lossy(&bytes)) {
        bytes.extend(pieces.recv_timeout(PATIENCE).expect("it is drawn"));
    }
    keys.write_all(b"\x03").unwrap();
    terminal.wait().unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn in_a_terminal_it_draws_each_second_what_has_room() {
    let proxy = limited().section("[log]\nkeys = \"plain\"").start();
    let url = format!("http://{}", proxy.admin());
    for (height, width) in [(24, 90), (5, 20)] {
        let size = format!("rows {height} cols {width}");
        let text = drawn(&url, &size, |text| text.matches("\u{1b}[?2026l").count() >= 2);
        let drawings: Vec<_> = text.split("\u{1b}[?2026h\u{1b}[H\u{1b}[J").collect();
        let lines = drawings[1].split("\u{1b}[?2026l").next().unwrap().lines();
        let rows: usize = lines
            .map(|line| line.trim_end_matches('\r').chars().count().div_ceil(width).max(1))
            .sum();
        assert!((4..height).contains(&rows), "{size}: {text:?}");
        assert_eq!(drawings.len(), 3, "each in the place of the last one: {text:?}");
    }
}

#[test]
fn it_says_that_the_endpoint_is_away_and_tries_again() {
    let proxy = limited().start();
    let url = format!("http://{}", proxy.admin());
    let proxy = std::cell::RefCell::new(proxy);
    drawn(&url, "rows 24 cols 120", |text| {
        if text.contains("requests/s") && proxy.borrow().log.count("stopped") == 0 {
            proxy.borrow_mut().stop();
        }
        text.contains("does not answer") && text.contains("trying again")
    });
    wait_until("the proxy has stopped", || proxy.borrow().log.count("stopped") == 1);
}
