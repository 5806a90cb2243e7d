//! `tidegate suggest`: what it suggests, replayed, rejects no more than was asked for.

use serde_json::Value;

use super::replay::{json, lines, real_log, write};
use super::{ONE, folder, told};

#[test]
fn what_is_suggested_holds_when_it_is_replayed() {
    let folder = folder(None);
    for (touch, most) in [("0%", 0), ("0.1%", 1), ("1%", 17)] {
        let (code, said, errors) = told(folder.path(), &["suggest", &real_log(), "--touch", touch]);
        assert_eq!((code, errors.as_str()), (0, ""));
        write(folder.path(), "proxy.toml", &said);
        assert_eq!(told(folder.path(), &["check"]), (0, "ok\n".into(), String::new()), "{said}");
        let report = json(folder.path(), &["replay", &real_log()]);
        let touched = report["result"]["limits"][0]["keys"]["rejected"].as_u64().unwrap();
        assert!(touched <= most, "{touched} of {most} for {touch}");
    }
    let (code, _, errors) = told(folder.path(), &["suggest", &real_log(), "--route", "/a/{"]);
    assert_eq!(code, 2);
    assert!(errors.contains("--route `/a/{`"), "{errors}");
}

/// A few requests, or a few minutes, say little about what clients need.
#[test]
fn a_suggestion_of_too_little_data_says_so() {
    let folder = folder(None);
    let many = lines("192.0.2.1", 0, 1).repeat(1_000);
    let late = lines("192.0.2.1", 0, 1).replace("2026:13:00", "2026:15:00");
    let few = lines("192.0.2.1", 0, 1) + &late;
    for (log, is_enough) in [(&many, false), (&few, false), (&(many.clone() + &late), true)] {
        write(folder.path(), "access.log", log);
        let (code, said, _) = told(folder.path(), &["suggest", "access.log"]);
        assert_eq!((code, said.contains("too little data")), (0, !is_enough), "{said}");
    }
}

/// The routes of the file that requests of the log meet: each gets a limit.
#[test]
fn a_suggestion_is_for_the_routes_of_the_file() {
    let login = "[[routes]]\npath = \"/login\"\nupstream = \"api\"\n\
                 [[routes]]\npath = \"/never\"\nupstream = \"api\"\n";
    let folder = folder(Some(&format!("{ONE}{login}")));
    let log = format!("{}{}", lines("192.0.2.1", 0, 3), lines("192.0.2.1", 1, 2));
    write(
        folder.path(),
        "access.log",
        &log.replace("13:01:00 +0200] \"GET /a", "13:01:00 +0200] \"GET /login"),
    );
    let suggest = |more: &[&str]| {
        let (code, said, errors) =
            told(folder.path(), &[&["suggest", "access.log"], more].concat());
        assert_eq!((code, errors.as_str()), (0, ""), "{said}");
        write(folder.path(), "suggested.toml", &said);
        let report = json(folder.path(), &["replay", "access.log", "--config", "suggested.toml"]);
        let limits = report["result"]["limits"].as_array().unwrap().clone();
        assert!(limits.iter().all(|limit| limit["rejected"] == 0), "{said}");
        let of = |limit: &Value| {
            (limit["name"].as_str().unwrap().to_owned(), limit["requests"].as_u64().unwrap())
        };
        (said, limits.iter().map(of).collect::<Vec<_>>())
    };
    let named = |limits: &[(&str, u64)]| {
        limits.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect::<Vec<_>>()
    };
    let (said, limits) = suggest(&[]);
    assert!(said.starts_with("# The routes are those of proxy.toml."), "{said}");
    assert_eq!(limits, named(&[("rest-ip", 4), ("login-ip", 1)]));
    assert_eq!(suggest(&["--route", "/login"]).1, named(&[("login-ip", 1)]));
    write(folder.path(), "other.toml", ONE);
    assert_eq!(suggest(&["--config", "other.toml"]).1, named(&[("rest-ip", 5)]));
    // A shell has emptied the file to which the suggestion goes.
    write(folder.path(), "proxy.toml", "");
    assert_eq!(suggest(&[]).1, named(&[("rest-ip", 5)]));
    write(folder.path(), "proxy.toml", "routes = 7");
    assert_eq!(told(folder.path(), &["suggest", "access.log"]).0, 2);
    assert_eq!(told(folder.path(), &["suggest", "access.log", "--config", "none.toml"]).0, 2);
}

const GOALS: &str = "[upstreams.api]\nservers = [\"http://127.0.0.1:9\"]\n\
    max_requests = { slower_than = \"1s\" }\n\
    [[routes]]\npath = \"/slow\"\nupstream = \"api\"\n\
    [[routes]]\npath = \"/quick\"\nupstream = \"api\"\n\
    [[routes]]\npath = \"/new\"\nupstream = \"api\"\n";

/// Lines of tidegate: so many requests of a path, and more fields of theirs.
fn access(path: &str, count: usize, fields: &str) -> String {
    let line = format!(
        r#"{{"timestamp":"2026-01-02T12:00:00Z","target":"tidegate::access","message":"request","method":"GET","host":"a","path":"{path}","status":200,"bytes":0,"client":"192.0.2.1",{fields}}}"#
    );
    (line + "\n").repeat(count)
}

#[test]
fn a_goal_is_twice_what_hardly_any_answer_exceeds() {
    let folder = folder(Some(GOALS));
    let goals = |log: &str| {
        write(folder.path(), "access.log", log);
        told(folder.path(), &["suggest", "access.log", "--upstream", "api"])
    };
    let log = [
        access("/slow", 1_980, r#""duration_ms":9000,"upstream_ms":120"#),
        access("/slow", 20, r#""duration_ms":9000,"upstream_ms":900"#),
        // What was refused, or answered by another proxy, says nothing about the API.
        access("/slow", 500, r#""duration_ms":9000,"upstream_ms":7000,"reason":"overload""#),
        access("/slow", 500, r#""duration_ms":9000,"upstream_ms":7000,"limit":"per-ip""#),
        access("/slow", 500, r#""upstream_ms":7000"#).replace(":200,", ":504,"),
        access("/quick", 1_000, r#""duration_ms":20"#),
        access("/new", 999, r#""duration_ms":20"#),
    ];
    let (code, said, errors) = goals(&log.concat());
    assert_eq!((code, errors.as_str()), (0, ""), "{said}");
    for part in [
        "max_requests = { slower_than = \"400ms\" }",
        "# /slow: of 2,000 durations from sending to the answer's head 1 % are longer than 200ms",
        "# slower_than = \"400ms\"",
        "# /quick: of 1,000 durations of the whole requests 0 % are longer than 20ms",
        "# slower_than = \"40ms\"",
        "# /new: 999 durations of the whole requests: too few",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (code, _, errors) = goals(&access("/slow", 1_000, r#""user":"a""#));
    assert_eq!(code, 1);
    assert!(errors.contains("no duration of a request for the upstream \"api\""), "{errors}");
    let (code, _, errors) = goals(&access("/slow", 9, r#""duration_ms":20"#));
    assert_eq!(code, 1);
    assert!(errors.contains("1,000 durations"), "{errors}");
    let (code, ..) = told(folder.path(), &["suggest", "access.log", "--upstream", "other"]);
    assert_eq!(code, 2);
}

#[test]
fn a_replay_says_that_it_leaves_max_requests_out() {
    let folder = folder(Some(GOALS));
    write(folder.path(), "access.log", &access("/slow", 3, r#""duration_ms":20"#));
    let (code, said, _) = told(folder.path(), &["replay", "access.log"]);
    assert_eq!(code, 0);
    assert!(said.contains("left out: max_requests of api."), "{said}");
}
