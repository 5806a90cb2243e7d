//! Logs of several forms, in several files, and by standard input.

use std::io::Write as _;
use std::process::Stdio;

use super::*;

#[test]
fn broken_lines_are_counted_and_two_formats_may_be_mixed() {
    let own = "{\"timestamp\":\"2026-10-10T11:00:30Z\",\"level\":\"INFO\",\"target\":\"tidegate::access\",\
               \"message\":\"request\",\"method\":\"GET\",\"host\":\"a\",\"path\":\"/a\",\"status\":200,\
               \"bytes\":1,\"duration_ms\":1,\"client\":\"192.0.2.1\"}\n";
    let log = format!("{}gibberish\n{own}{}", lines("192.0.2.1", 0, 2), lines("192.0.2.1", 1, 1));
    let folder = LogFolder::of(&limited("rate = \"2/h\""), &log);
    let report = folder.report(&[]);
    assert_eq!([&report["result"]["requests"], &report["result"]["rejected"]], [4, 2]);
    assert_eq!(report["lines"]["broken"], 1);
    assert_eq!(report["lines"]["broken_examples"][0]["line"], 3);
    let said = folder.said(&["--html", "out.html"]);
    let page = folder.page();
    assert!(said.contains("\naccess.log:3: ") && page.contains(">access.log:3: "), "{page}");

    folder.write("none.log", "gibberish\n");
    let errors = folder.fails(1, &["replay", "none.log"]);
    assert!(errors.contains("--format"), "{errors}");
    let errors = folder.fails(1, &["replay", "missing.log"]);
    assert!(errors.contains("missing.log"), "{errors}");
    assert_eq!(folder.told(&["replay", "access.log", "--format", "clf"]).0, 2);
}

#[test]
fn a_log_may_come_by_standard_input_and_in_a_form_of_its_own() {
    let folder = LogFolder::of(&limited_by("header:x-api-key", "rate = \"2/h\""), "");
    let template = "$msec $remote_addr \"$request\" $status $http_x_api_key";
    let mut child = program()
        .args(["replay", "-", "--json", "--format", template])
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let log: String = (0..6)
        .map(|n| format!("1790000000.{n}00 192.0.2.{n} \"GET /a HTTP/1.1\" 200 key-{}\n", n % 2))
        .collect();
    child.stdin.take().unwrap().write_all(log.as_bytes()).unwrap();
    let told = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!([&report["result"]["requests"], &report["result"]["rejected"]], [6, 2]);
    let key = report["result"]["limits"][0]["keys"]["hardest"][0]["name"].as_str().unwrap();
    assert!(!key.contains("key-") && key.len() == 22, "a key is hashed as in the log: {key}");
}

/// A line of tidegate's own log, with this number.
fn numbered(process: &str, n: u32) -> String {
    format!(
        "{{\"timestamp\":\"2026-10-10T11:00:{:02}Z\",\"level\":\"INFO\",\"target\":\"tidegate::access\",\
         \"message\":\"request\",\"method\":\"GET\",\"host\":\"a\",\"path\":\"/a\",\"status\":200,\"bytes\":1,\
         \"duration_ms\":1,\"client\":\"192.0.2.1\",\"process\":\"{process}\",\"n\":{n}}}\n",
        n % 60
    )
}

/// Lines that were dropped, cut or in another file were missing without a word.
#[test]
fn the_lines_that_are_missing_are_told_before_all_else() {
    let whole: String = (1..=9).map(|n| numbered("a:1", n)).collect();
    let file = limited("rate = \"100/h\"");
    let folder = LogFolder::of(&file, &whole);
    assert!(folder.report(&[])["lines"].get("missing").is_none());
    assert!(!folder.said(&[]).contains("lacks"));
    let all: Vec<_> = (3..=9).map(|n| numbered("a:1", n)).collect();
    let (cut, other) = (&all[4][..all[4].len() - 3], numbered("b:2", 1));
    let log = format!("{}{other}{}{cut}\n{}", all[1], all[0], all[6]);
    let repeated = LogFolder::of(&file, &format!("{whole}{}", all[0]));
    assert!(repeated.said(&[]).starts_with("WARNING: this log has 1 line twice"));
    let reload = "{\"timestamp\":\"2026-10-10T11:00:30Z\",\"target\":\"tidegate\",\"message\":\"config reloaded\"}\n";
    let folder = LogFolder::of(&file, &(log + reload));
    let report = folder.report(&[]);
    assert_eq!(report["lines"]["missing"], serde_json::json!({ "a:1": 6 }), "1, 2, 5, 6, 7, 8");
    assert_eq!(report["lines"]["changes"], serde_json::json!({ "config reloaded": 1 }));
    let said = folder.said(&[]);
    let first = said.lines().next().unwrap();
    assert!(first.contains("lacks 6 lines of the process a:1"), "{said}");
    assert!(said.contains("reloads, while the given file holds for the whole log: 1"), "{said}");
}
