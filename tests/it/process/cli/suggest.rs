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
