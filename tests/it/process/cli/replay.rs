//! `tidegate replay`, and the `[[tests]]` that `tidegate check` tries.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use super::{ONE, folder, told};
use crate::support::tidegate::program;

/// The log of a real web site.
pub(super) fn real_log() -> String {
    let file = "tests/data/apache-access.log.gz";
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file).display().to_string()
}

/// A file with a limit by address with these lines, and a route for everything.
fn limited(lines: &str) -> String {
    ONE.replace("rate = \"100/s\"", lines)
}

pub(super) fn json(folder: &Path, arguments: &[&str]) -> Value {
    let (code, said, errors) = told(folder, &[arguments, &["--json"]].concat());
    assert_eq!(code, 0, "{errors}");
    serde_json::from_str(&said).unwrap()
}

/// Lines of one client, a second apart, at this minute.
pub(super) fn lines(client: &str, minute: u32, count: u32) -> String {
    let line = |second: u32| {
        format!(
            "{client} - - [10/Oct/2026:13:{minute:02}:{second:02} +0200] \"GET /a?b=c HTTP/1.1\" 200 10 \
             \"-\" \"probe\"\n"
        )
    };
    (0..count).map(line).collect()
}

pub(super) fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}

/// Counted by another program, by the log's own clock.
#[test]
fn a_real_log_gives_what_an_independent_count_gives() {
    let folder = folder(None);
    for (lines, rejected, clients) in [
        ("rate = \"20/s\"", 0, 0),
        ("rate = \"5/s\"", 3, 1),
        ("rate = \"1/s\"", 773, 186),
        ("rate = \"30/m\"", 92, 2),
        ("rate = \"30/h\"", 456, 31),
        ("rate = \"30/30d\"\nalgorithm = \"fixed-window\"", 2_160, 52),
        (
            "rate = \"30/d\"\nalgorithm = \"fixed-window\"\nalign = \"clock\"\ntimezone = \"Europe/Berlin\"",
            1_389,
            43,
        ),
        // One token comes back each day.
        ("rate = \"30/30d\"", 2_117, 52),
    ] {
        write(folder.path(), "proxy.toml", &limited(lines));
        let report = json(folder.path(), &["replay", &real_log()]);
        let result = &report["result"];
        let found = [&result["requests"], &result["rejected"], &result["clients"]["seen"]];
        assert_eq!(found, [&10_000.into(), &Value::from(rejected), &1_753.into()], "{lines}");
        assert_eq!(result["clients"]["rejected"], clients, "{lines}");
        assert_eq!(result["limits"][0]["rejected"], rejected, "{lines}");
        let lines = &report["lines"];
        assert_eq!([&lines["steps_back"], &lines["furthest_back_ms"]], [4_915, 59_000]);
        assert_eq!(lines["late"], 0, "lines are sorted");
    }
}

#[test]
fn a_report_says_who_is_hit_when_and_by_which_limit() {
    let folder = folder(Some(&limited("rate = \"3/m\"\nburst = 5")));
    let log = format!("{}{}", lines("192.0.2.1", 0, 9), lines("192.0.2.2", 1, 3));
    write(folder.path(), "access.log", &log);
    let (code, said, errors) = told(folder.path(), &["replay", "access.log"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    for part in [
        "12 requests of 2 clients, from 2026-10-10T11:00:00Z to 2026-10-10T11:01:02Z (1m2s)",
        "rejected         4   33 %        1\n",
        "of all requests of these clients, 44 % are rejected; for the median client it is 44 %",
        "192.0.2.1                  9         4   44 %",
        "limit client: 3/m, burst 5, by ip",
        "rejects 4 of 12 requests (33 %), 1 of 2 keys",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let report = json(folder.path(), &["replay", "access.log"]);
    let hardest = &report["result"]["clients"]["hardest"];
    assert_eq!(hardest.as_array().unwrap().len(), 1);
    assert_eq!(
        [&hardest[0]["name"], &hardest[0]["first"], &hardest[0]["last"]],
        ["192.0.2.1", "2026-10-10T11:00:05Z", "2026-10-10T11:00:08Z"]
    );
    let timeline = &report["result"]["timeline"];
    let counted: u64 =
        timeline["rejected"].as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).sum();
    assert_eq!((counted, &timeline["slice_ms"]), (4, &1_000.into()));
}

/// Two limits met the same request: one would have let it pass later, the other one rejected it.
#[test]
fn a_request_that_another_limit_rejects_is_not_held() {
    let file = limited("rate = \"1/s\"\nburst = 1\nwait = \"1m\"")
        .replace("[[routes]]", "[limits.all]\nkey = []\nrate = \"3/h\"\n[[routes]]");
    let folder = folder(Some(&file.replace("[\"client\"]", "[\"client\", \"all\"]")));
    write(folder.path(), "access.log", &lines("192.0.2.1", 0, 1).repeat(5));
    let report = json(folder.path(), &["replay", "access.log"]);
    let counts = |of: &Value| ["requests", "delayed", "rejected"].map(|name| of[name].clone());
    let result = &report["result"];
    assert_eq!(counts(result), [5, 2, 2]);
    assert_eq!(counts(&result["limits"][0]), [5, 2, 0], "{}", result["limits"][0]);
    assert_eq!(counts(&result["limits"][1]), [5, 0, 2]);
    assert_eq!(result["limits"][0]["longest_wait_ms"], 2_000.0);
}

#[test]
fn two_files_stand_side_by_side() {
    let folder = folder(Some(&limited("rate = \"3/m\"\nburst = 5")));
    write(folder.path(), "old.toml", &limited("rate = \"3/m\"\nburst = 8"));
    let log = format!("{}{}", lines("192.0.2.1", 0, 9), lines("192.0.2.2", 1, 6));
    write(folder.path(), "access.log", &log);
    let arguments = ["replay", "access.log", "--against", "old.toml"];
    let (_, said, _) = told(folder.path(), &arguments);
    for part in [
        "old.toml  proxy.toml",
        "requests rejected  1 (6.7 %)    5 (33 %)",
        "1 client hit only by proxy.toml, 0 clients only by old.toml",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let report = json(folder.path(), &arguments);
    assert_eq!(report["comparison"]["newly_hit_clients"], 1);
    assert_eq!(report["comparison"]["newly_hit_hardest"][0]["name"], "192.0.2.2");
    assert_eq!([&report["result"]["rejected"], &report["against"]["rejected"]], [5, 1]);
}

#[test]
fn an_estimate_by_length_needs_the_length_in_the_log() {
    let cost =
        "cost = { response_bytes = true, estimate = { content_length = \"1\", at_least = 10 } }";
    let folder = folder(Some(&limited(&format!("rate = \"100/h\"\n{cost}"))));
    write(folder.path(), "access.log", &lines("192.0.2.1", 0, 5));
    let (_, said, _) = told(folder.path(), &["replay", "access.log"]);
    let left_out =
        "left out: limit client, for 5 requests. The log does not have the header content-length.";
    assert!(said.contains(&format!("{left_out} See --assume.")), "{said}");
    let rejected = |arguments: &[&str]| {
        let report = json(folder.path(), &[&["replay"], arguments].concat());
        assert_eq!(report["result"]["left_out"], Value::Array(Vec::new()));
        report["result"]["rejected"].as_u64().unwrap()
    };
    // Each takes 10 before, and 10 in the end.
    assert_eq!(rejected(&["access.log", "--assume", "header:content-length=none"]), 0);
    // Each takes 100 before, and after the first only 90 are left.
    let line = |second: u32| {
        format!(
            "{{\"remote_addr\":\"192.0.2.1\",\"time_iso8601\":\"2026-10-10T13:00:0{second}+02:00\",\
             \"request\":\"POST /a HTTP/1.1\",\"status\":\"200\",\"body_bytes_sent\":\"10\",\
             \"content_length\":\"100\"}}\n"
        )
    };
    write(folder.path(), "nginx.log", &(0..5).map(line).collect::<String>());
    assert_eq!(rejected(&["nginx.log"]), 4);
}

#[test]
fn what_a_log_does_not_tell_is_named_and_may_be_assumed() {
    let by_key = ONE.replace(
        "key = [\"ip\"]\nrate = \"100/s\"",
        "key = [\"header:x-api-key\"]\nrate = \"2/h\"",
    );
    let folder = folder(Some(&by_key));
    write(folder.path(), "access.log", &lines("192.0.2.1", 0, 5));
    let (code, said, _) = told(folder.path(), &["replay", "access.log"]);
    assert_eq!(code, 0);
    let left_out =
        "left out: limit client, for 5 requests. The log does not have the header x-api-key.";
    assert!(said.contains(&format!("{left_out} See --assume.")), "{said}");
    // A regression: its candidate was said to have met no request.
    let tried = by_key.replace("\"2/h\"", "\"2/h\"\ncandidate = { rate = \"1/h\" }");
    write(folder.path(), "tried.toml", &tried);
    let arguments = ["replay", "access.log", "--config", "tried.toml"];
    let (_, said, _) = told(folder.path(), &arguments);
    assert!(said.contains("left out: limit client,") && !said.contains("no request met"), "{said}");
    let replay = |assumed: &str| {
        let report = json(folder.path(), &["replay", "access.log", "--assume", assumed]);
        assert_eq!(report["result"]["left_out"], Value::Array(Vec::new()));
        report["result"]["rejected"].as_u64().unwrap()
    };
    assert_eq!(replay("header:x-api-key=ip"), 3);
    assert_eq!(replay("header:x-api-key=none"), 3, "requests without the header share a bucket");
    let arguments = ["replay", "access.log", "--assume", "header:x-apikey=ip"];
    let (code, _, errors) = told(folder.path(), &arguments);
    assert_eq!(code, 2);
    assert!(errors.contains("no limit and no route reads the header x-apikey"), "{errors}");
    let (code, _, errors) = told(folder.path(), &["replay", "access.log", "--assume", "path=ip"]);
    assert_eq!(code, 2);
    assert!(errors.contains("nothing can be assumed of `path`"), "{errors}");
}

/// Of the length of a request nothing can be assumed: advice that cannot be followed helps nobody.
#[test]
fn assume_is_named_only_where_it_helps() {
    let folder = folder(Some(&limited("algorithm = \"concurrency\"\nlimit = 2")));
    write(folder.path(), "access.log", &lines("192.0.2.1", 0, 5));
    let (code, said, _) = told(folder.path(), &["replay", "access.log"]);
    assert_eq!(code, 0);
    assert!(said.contains("The log does not have how long the request took.\n"), "{said}");
    assert!(!said.contains("--assume"), "{said}");
}

/// With the limit's own figures a customer of a larger plan would look rejected.
#[test]
fn a_limit_whose_plan_the_log_does_not_tell_is_left_out() {
    let folder = folder(None);
    write(folder.path(), "access.log", &lines("192.0.2.1", 0, 5));
    fs::write(folder.path().join("plans.txt"), "key-of-acme pro\n").unwrap();
    let limit = "rate = \"1/h\"\nplans = { pro = \"3/h\", free = \"2/h\" }";
    for (plans, fact) in [
        ("by = \"header:x-plan\"\ndefault = \"free\"", "x-plan"),
        ("by = \"header:x-key\"\ndefault = \"free\"\nfile = \"plans.txt\"", "x-key"),
    ] {
        let text = format!("{}[plans]\n{plans}\n", limited(limit));
        fs::write(folder.path().join("proxy.toml"), text).unwrap();
        let (_, said, _) = told(folder.path(), &["replay", "access.log"]);
        let left_out = format!(
            "left out: limit client, for 5 requests. The log does not have the header {fact}. See --assume."
        );
        assert!(said.contains(&left_out), "{said}");
        let rejected = |assumed: &str| {
            let assumption = format!("header:{fact}={assumed}");
            let arguments = ["replay", "access.log", "--assume", &assumption];
            json(folder.path(), &arguments)["result"]["rejected"].clone()
        };
        let of_pro = if fact == "x-plan" { "pro" } else { "key-of-acme" };
        assert_eq!([rejected(of_pro), rejected("none"), rejected("ip")], [2, 3, 3], "{fact}");
    }
}

#[test]
fn a_replay_says_where_bans_would_reject_more() {
    let folder = folder(None);
    write(folder.path(), "access.log", &lines("192.0.2.1", 0, 5));
    let ban = "ban = { after = 2, within = \"1m\", for = \"1h\" }";
    for (limit, is_said) in [
        (format!("rate = \"1/h\"\n{ban}"), true),
        (format!("rate = \"9/h\"\n{ban}"), false),
        (format!("rate = \"1/h\"\nmode = \"shadow\"\n{ban}"), false),
        ("rate = \"1/h\"".to_owned(), false),
    ] {
        fs::write(folder.path().join("proxy.toml"), limited(&limit)).unwrap();
        let (_, said, _) = told(folder.path(), &["replay", "access.log"]);
        assert_eq!(said.contains("this replay bans no key"), is_said, "{limit}: {said}");
    }
}

#[test]
fn broken_lines_are_counted_and_two_formats_may_be_mixed() {
    let folder = folder(Some(&limited("rate = \"2/h\"")));
    let own = "{\"timestamp\":\"2026-10-10T11:00:30Z\",\"level\":\"INFO\",\"target\":\"tidegate::access\",\
               \"message\":\"request\",\"method\":\"GET\",\"host\":\"a\",\"path\":\"/a\",\"status\":200,\
               \"bytes\":1,\"duration_ms\":1,\"client\":\"192.0.2.1\"}\n";
    let log = format!("{}gibberish\n{own}{}", lines("192.0.2.1", 0, 2), lines("192.0.2.1", 1, 1));
    write(folder.path(), "access.log", &log);
    let report = json(folder.path(), &["replay", "access.log"]);
    assert_eq!([&report["result"]["requests"], &report["result"]["rejected"]], [4, 2]);
    assert_eq!(report["lines"]["broken"], 1);
    assert_eq!(report["lines"]["broken_examples"][0]["line"], 3);
    let (_, said, _) = told(folder.path(), &["replay", "access.log", "--html", "out.html"]);
    let page = fs::read_to_string(folder.path().join("out.html")).unwrap();
    assert!(said.contains("\naccess.log:3: ") && page.contains(">access.log:3: "), "{page}");

    write(folder.path(), "none.log", "gibberish\n");
    let (code, _, errors) = told(folder.path(), &["replay", "none.log"]);
    assert_eq!(code, 1);
    assert!(errors.contains("--format"), "{errors}");
    let (code, _, errors) = told(folder.path(), &["replay", "missing.log"]);
    assert_eq!(code, 1);
    assert!(errors.contains("missing.log"), "{errors}");
    assert_eq!(told(folder.path(), &["replay", "access.log", "--format", "clf"]).0, 2);
}

#[test]
fn a_share_that_is_exceeded_is_3() {
    let folder = folder(Some(&limited("rate = \"2/h\"")));
    write(folder.path(), "access.log", &lines("192.0.2.1", 0, 4));
    let fail_above = |share| told(folder.path(), &["replay", "access.log", "--fail-above", share]);
    let (code, said, errors) = fail_above("49.9%");
    assert_eq!(code, 3);
    assert!(said.contains("rejects 2 of 4 requests"), "{said}");
    assert_eq!(errors, "error: 2 of 4 requests would be rejected; --fail-above allows 49.9 %\n");
    assert_eq!(fail_above("50%").0, 0);
    write(
        folder.path(),
        "access.log",
        &format!("{}{}", lines("192.0.2.1", 0, 9), lines("192.0.2.2", 1, 1)),
    );
    // As a binary fraction it is a little less than seven tenths.
    assert_eq!((fail_above("70%").0, fail_above("69.9%").0), (0, 3));
    assert_eq!(fail_above("0.5").0, 2, "a half, or the two-hundredth part?");
    // Nobody knows what a limit that was left out would have done.
    let by_key = ONE.replace("[\"ip\"]", "[\"header:x-api-key\"]");
    write(folder.path(), "proxy.toml", &by_key);
    let (code, _, errors) = fail_above("99%");
    assert_eq!(code, 3);
    assert!(errors.contains("10 might be: a limit was left out for them"), "{errors}");
}

#[test]
fn a_log_may_come_by_standard_input_and_in_a_form_of_its_own() {
    let by_key = ONE.replace(
        "key = [\"ip\"]\nrate = \"100/s\"",
        "key = [\"header:x-api-key\"]\nrate = \"2/h\"",
    );
    let folder = folder(Some(&by_key));
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

#[test]
fn a_page_needs_nothing_else_and_keeps_what_strangers_wrote_apart() {
    let by_agent =
        ONE.replace("key = [\"ip\"]\nrate = \"100/s\"", "key = [\"path\"]\nrate = \"2/h\"");
    let folder = folder(Some(&by_agent));
    let line = lines("192.0.2.1", 0, 4).replace("/a?b=c", "/<script>alert(1)</script>");
    write(folder.path(), "access.log", &line.replace("<script>", "%3Cscript%3E'&"));
    let (code, _, errors) = told(folder.path(), &["replay", "access.log", "--html", "out.html"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let page = fs::read_to_string(folder.path().join("out.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    for part in ["<script", "http://", "https://", "src=", "url("] {
        assert!(!page.contains(part), "{part}");
    }
    assert!(page.contains("light-dark(") && page.contains("<svg"));
    assert!(page.contains("&#39;&amp;"), "{page}");
}

#[test]
fn limits_that_no_request_met_stand_in_one_sentence() {
    let more = "[limits.login]\nkey = [\"ip\"]\nrate = \"1/s\"\n\
                [limits.upload]\nkey = [\"ip\"]\nrate = \"1/s\"\n\
                [limits.user]\nkey = [\"header:x-user\"]\nrate = \"1/s\"\n\
                [[routes]]\npath = \"/login\"\nupstream = \"api\"\nlimits = [\"login\", \"upload\"]\n";
    let file = ONE.replace("limits = [\"client\"]", "limits = [\"client\", \"user\"]");
    let folder = folder(Some(&format!("{file}{more}")));
    write(folder.path(), "access.log", &lines("192.0.2.1", 0, 2));
    let (code, said, _) = told(folder.path(), &["replay", "access.log", "--html", "out.html"]);
    assert_eq!(code, 0);
    let sentence = "request met these limits: login, upload";
    assert!(said.contains(&format!("no {sentence}\n")), "{said}");
    let page = fs::read_to_string(folder.path().join("out.html")).unwrap();
    assert!(page.contains(&format!("No {sentence}.")), "{page}");
    assert!(!page.contains("<h3>Limit login"), "{page}");
    // Nobody knows which requests would have met this limit.
    assert!(said.contains("left out: limit user"), "{said}");
}

#[test]
fn check_tries_the_tests_of_a_file() {
    let passing = "[[tests]]\nname = \"five pass\"\nsend = \"GET /a\"\ntimes = 7\n\
                   expect = { allowed = 5, rejected = 2, limit = \"client\", retry_after = \"20s\" }\n";
    let failing = "[[tests]]\nsend = \"GET /b\"\nexpect = { allowed = 1 }\n";
    let file = limited("rate = \"3/m\"\nburst = 5");
    let folder = folder(Some(&format!("{file}{passing}")));
    let (code, said, errors) = told(folder.path(), &["check"]);
    assert_eq!((code, said.as_str(), errors.as_str()), (0, "test five pass ... ok\nok\n", ""));
    write(folder.path(), "proxy.toml", &format!("{file}{passing}{failing}"));
    let (code, said, errors) = told(folder.path(), &["check"]);
    assert_eq!((code, errors.as_str()), (2, "error: 1 of 2 tests failed\n"));
    let line = format!("{file}{passing}").lines().count() + 1;
    for part in [
        format!("test GET /b ... FAILED (proxy.toml:{line})"),
        "allowed: expected 1, came 0".to_owned(),
        "what came: allowed = 0, rejected = 1, delayed = 0, limit = \"client\"".to_owned(),
    ] {
        assert!(said.contains(&part), "{part} in {said}");
    }
    let (code, said, _) = told(folder.path(), &["check", "--json"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &said["ok"]), (2, &false.into()));
    assert_eq!(said["tests"][1]["differences"][0]["came"], "0");
    let file = "[[routes]]\npath = \"/a\"\nmethods = [\"GET\"]\nrespond = { status = 200 }\n";
    for (send, said) in [
        ("GET /a", None),
        ("POST /a", Some("no route takes its method: the answer is 405")),
        ("GET /b", Some("no route takes its requests: the answer is 404")),
    ] {
        let test = format!("[[tests]]\nsend = \"{send}\"\nexpect = {{ allowed = 1 }}\n");
        write(folder.path(), "proxy.toml", &format!("{file}{test}"));
        let expected = said.map_or(String::new(), |said| format!("    {said}\n"));
        let expected = format!("test {send} ... ok\n{expected}ok\n");
        assert_eq!(told(folder.path(), &["check"]).1, expected);
    }
}

#[test]
fn a_report_that_cannot_be_written_is_a_failure() {
    let folder = folder(Some(ONE));
    write(folder.path(), "access.log", &lines("192.0.2.1", 0, 1));
    for read in ["access.log", "./proxy.toml"] {
        let before = fs::read(folder.path().join(read)).unwrap();
        let (code, _, errors) = told(folder.path(), &["replay", "access.log", "--html", read]);
        assert_eq!(code, 2);
        assert!(errors.contains("would overwrite"), "{errors}");
        assert_eq!(fs::read(folder.path().join(read)).unwrap(), before);
    }
    let arguments = ["replay", "access.log", "--html", "no/such/folder.html"];
    let (code, _, errors) = told(folder.path(), &arguments);
    assert_eq!(code, 1);
    assert!(errors.contains("no/such/folder.html"), "{errors}");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let arguments = ["replay", "access.log"];
    let status =
        program().args(arguments).current_dir(folder.path()).stdout(full).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn rotated_logs_are_read_in_the_order_of_their_time() {
    let folder = folder(Some(&limited("rate = \"3/h\"")));
    write(folder.path(), "access.log", &lines("192.0.2.1", 30, 3));
    write(folder.path(), "access.log.1", &lines("192.0.2.1", 0, 3));
    let report = json(folder.path(), &["replay", "access.log", "access.log.1"]);
    assert_eq!([&report["lines"]["late"], &report["result"]["rejected"]], [0, 2]);
    let both = format!("{}{}", lines("192.0.2.1", 30, 3), lines("192.0.2.1", 0, 3))
        .replace("13:30", "15:30");
    write(folder.path(), "wrong.log", &both);
    let (_, said, _) = told(folder.path(), &["replay", "wrong.log"]);
    assert!(
        said.contains("WARNING: the log is not in order of time, so 3 requests count too late"),
        "{said}"
    );
}

/// Behind a load balancer the log has the balancer's address: then nobody knows the clients.
#[test]
fn the_address_of_a_trusted_proxy_is_no_client() {
    let trusted =
        format!("[server]\ntrusted_proxies = [\"10.0.0.0/8\"]\n{}", limited("rate = \"3/h\""));
    let folder = folder(Some(&trusted));
    write(folder.path(), "access.log", &lines("10.0.0.1", 0, 5));
    let report = json(folder.path(), &["replay", "access.log"]);
    assert_eq!(report["result"]["rejected"], 0);
    assert_eq!(report["result"]["left_out"][0]["fact"], "the client's address");
    let of_client = |n: u32| {
        format!(
            "1790000000.{n}00 10.0.0.1 \"GET /a HTTP/1.1\" 200 \"6.6.6.{n}, 203.0.113.7, 10.0.0.2\"\n"
        )
    };
    write(folder.path(), "access.log", &(0..5).map(of_client).collect::<String>());
    let template = "$msec $remote_addr \"$request\" $status \"$http_x_forwarded_for\"";
    let report = json(folder.path(), &["replay", "access.log", "--format", template]);
    assert_eq!(report["result"]["clients"]["hardest"][0]["name"], "203.0.113.7");
    assert_eq!(report["result"]["rejected"], 2);
}

/// A regression: a log of 300,000 paths of 3 KB took 1.4 GB, because the paths were kept whole.
#[test]
fn a_long_key_is_kept_by_its_hash() {
    let folder = folder(Some(&limited("rate = \"2/h\"").replace("\"ip\"", "\"path\"")));
    let of_path = |path: &str| lines("192.0.2.1", 0, 3).replace("/a?b=c", path);
    let long = |last: &str| format!("/{}{last}", "a".repeat(3_000));
    let text: String = ["/a", &long("b"), &long("c")].map(of_path).concat();
    write(folder.path(), "access.log", &text);
    let report = json(folder.path(), &["replay", "access.log"]);
    let keys = &report["result"]["limits"][0]["keys"];
    assert_eq!([&keys["seen"], &keys["rejected"], &report["result"]["rejected"]], [3, 3, 3]);
    let names = keys["hardest"].as_array().unwrap().iter().map(|key| key["name"].as_str().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort_by_key(|name| name.len());
    assert_eq!(names[0], "/a");
    assert!(names[1..].iter().all(|name| name.starts_with("%~") && name.len() == 24), "{names:?}");
    assert_ne!(names[1], names[2]);
    let (_, said, _) = told(folder.path(), &["suggest", "access.log", "--key", "path"]);
    assert!(said.contains("3 keys") && !said.contains("aaaa"), "{said}");
}
