//! Plans by a file that says who has which.

use std::fs;

use serde_json::{Value, json};

use super::{USER, ask, told};
use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::redis::{RedisServer, in_both_stores};
use crate::support::tidegate::{Tidegate, program};
use crate::support::wait_until;

const BY_USER: &str =
    "[plans]\nby = \"header:x-user\"\nfile = \"FOLDER/plans.txt\"\ndefault = \"pro\"\n";

/// `ann` has this hash in the log.
const ANN: &str = "SZFeDX1LQC4wF9AQvBwOgw";

/// A proxy beside a file with these lines.
fn start(lines: &str, store: &str) -> (tempfile::TempDir, Tidegate) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("plans.txt"), lines).unwrap();
    let section = BY_USER.replace("FOLDER", folder.path().to_str().unwrap());
    let proxy = Proxy::answering().admin().store(store).section(&section).limit("user", USER);
    let proxy = proxy.start();
    (folder, proxy)
}

fn burst(proxy: &Tidegate, user: &str) -> Option<u64> {
    told(&ask(proxy, user, "")).map(|(burst, _)| burst)
}

#[test]
fn who_asks_has_the_plan_of_the_file() {
    let lines = format!(
        "# value plan name\nbob team Bob & Sons\n{ANN} internal\nend ended\n\ngone gold Old\n"
    );
    in_both_stores(|store| {
        let (_folder, proxy) = start(&lines, store);
        assert_eq!(burst(&proxy, "bob"), Some(20));
        assert_eq!(burst(&proxy, "ann"), None, "unlimited, by the hash");
        assert_eq!(ask(&proxy, "end", "").status, 429);
        for user in ["eve", "gone", "Bob"] {
            assert_eq!(burst(&proxy, user), Some(5), "{user} has the default");
        }
        let nobody = get(proxy.address, "/", &[]);
        assert_eq!(told(&nobody), Some((5, 4)), "who does not say has the default");
    });
}

#[test]
fn a_name_of_the_file_stands_beside_the_key() {
    let (_folder, proxy) = start("bob pro Bob & Sons\nann pro\n", "");
    for user in ["bob", "ann"] {
        assert!((0..5).all(|_| ask(&proxy, user, "").status == 200));
        assert_eq!(ask(&proxy, user, "").status, 429);
    }
    let name = |line: &Value| (line["name"].clone(), line["plan"].clone());
    proxy.log.wait("throttled", |_| proxy.log.count("throttled") == 2);
    let lines = proxy.log.with("throttled");
    assert_eq!(name(&lines[0]), (json!("Bob & Sons"), json!("pro")));
    assert_eq!(name(&lines[1]), (Value::Null, json!("pro")));
    let status =
        Connection::open(proxy.admin()).get("/api/status", &[("host", "localhost")]).json();
    let limit = &status["limits"][0];
    let names: Vec<_> =
        limit["rejected_keys"].as_array().unwrap().iter().map(|key| &key["name"]).collect();
    assert!(names.contains(&&json!("Bob & Sons")) && names.contains(&&Value::Null), "{names:?}");
    assert_eq!(limit["plans"]["team"], "9/h");
    assert!(!proxy.log.text().contains("\"bob\""), "no value of a header");
}

#[test]
fn a_change_of_the_file_holds_soon_and_the_bucket_keeps_what_was_used() {
    let redis = RedisServer::start();
    let (folder, proxy) = start("bob team Bob\n", &redis.fields());
    let file = folder.path().join("plans.txt");
    assert!((0..4).all(|_| ask(&proxy, "bob", "").status == 200));
    fs::write(&file, "bob pro Bob\neve team\n").unwrap();
    let line = proxy.log.wait("plans loaded", |_| true);
    assert_eq!((&line["lines"], &line["file"]), (&json!(2), &json!(file.to_str().unwrap())));
    assert_eq!(told(&ask(&proxy, "bob", "")), Some((5, 0)), "four were used");
    assert_eq!(burst(&proxy, "eve"), Some(20));
    // As an editor saves: a new file beside it, then a rename over it.
    fs::write(folder.path().join("new"), "bob team\nann team\n").unwrap();
    fs::rename(folder.path().join("new"), &file).unwrap();
    wait_until("the new file holds", || burst(&proxy, "bob") == Some(20));
    assert_eq!(burst(&proxy, "eve"), Some(5));
    assert_eq!(proxy.log.count("config reloaded"), 0, "no other file has changed");
}

#[test]
fn a_broken_file_keeps_the_plans_from_before() {
    let (folder, proxy) = start("bob team\n", "");
    let file = folder.path().join("plans.txt");
    for (text, error) in [
        ("bob pro\nsecret-of-eve\n", "line 2: expected a value and a plan"),
        ("bob pro\nbob team\n", "line 2: this value has a plan already, in line 1"),
    ] {
        let before = proxy.log.count("plans rejected");
        fs::write(&file, text).unwrap();
        proxy.log.wait("plans rejected", |_| proxy.log.count("plans rejected") > before);
        let line = proxy.log.with("plans rejected").pop().unwrap();
        assert!(line["error"].as_str().unwrap().contains(error), "{line}");
        assert!(line["error"].as_str().unwrap().contains("plans.txt"), "{line}");
        assert_eq!(line["level"], "WARN");
        assert_eq!(burst(&proxy, "bob"), Some(20));
    }
    fs::remove_file(&file).unwrap();
    let is_gone = |line: &Value| line["error"].as_str().unwrap().contains("No such file");
    proxy.log.wait("plans rejected", is_gone);
    assert_eq!(burst(&proxy, "bob"), Some(20));
    fs::write(&file, "bob pro\n").unwrap();
    wait_until("the mended file holds", || burst(&proxy, "bob") == Some(5));
    // The line comes right after.
    proxy.log.wait("plans loaded", |_| true);
    assert_eq!(proxy.log.count("plans loaded"), 1);
    assert_eq!(proxy.log.count("plans rejected"), 3, "each told once");
    assert!(!proxy.log.text().contains("secret-of-eve"));
}

/// An empty file was taken, and all who pay were on "free".
#[test]
fn a_file_that_is_cut_or_gone_keeps_the_plans_until_an_operator_asks() {
    let lines = |count: usize| (0..count).map(|n| format!("user-{n} team\n")).collect::<String>();
    let (folder, proxy) = start(&lines(20), "");
    let file = folder.path().join("plans.txt");
    let seen = || {
        let status = Connection::open(proxy.admin()).get("/api/status", &[("host", "localhost")]);
        let metrics = Metrics::of(proxy.admin());
        let taken = metrics.value("tidegate_last_read_successful{source=\"plans.file\"}");
        let alarm = status.json()["alarms"][0].clone();
        let names_it = alarm["do"].as_str().is_some_and(|it| it.contains(file.to_str().unwrap()));
        let alarm = alarm["what"] == "Not taken: plans.file" && names_it;
        (metrics.value("tidegate_plans_lines"), taken, alarm)
    };
    assert_eq!(seen(), (20.0, 1.0, false));
    for (text, said) in [
        (lines(10), "it has 10 lines with a plan, and had 20 before"),
        (String::new(), "it has 0 lines with a plan, and had 20 before"),
        ("# user-0 team\n".repeat(20), "it has 0 lines"),
    ] {
        let before = proxy.log.count("plans rejected");
        fs::write(&file, text).unwrap();
        proxy.log.wait("plans rejected", |_| proxy.log.count("plans rejected") > before);
        let line = proxy.log.with("plans rejected").pop().unwrap();
        assert!(line["error"].as_str().unwrap().contains(said), "{line}");
        assert!(line["help"].as_str().unwrap().contains("SIGHUP"), "{line}");
        assert_eq!(seen(), (20.0, 0.0, true));
        assert_eq!(burst(&proxy, "user-19"), Some(20));
    }
    fs::remove_file(&file).unwrap();
    proxy.log.wait("plans rejected", |line| line["error"].to_string().contains("No such file"));
    assert_eq!((seen(), burst(&proxy, "user-19")), ((20.0, 0.0, true), Some(20)));
    // Who writes both files may have failed with one of them.
    fs::write(&file, lines(3)).unwrap();
    let config = fs::read_to_string(proxy.config_file()).unwrap();
    proxy.reload(&config.replace("[server]\n", "[server]\nmax_body_size = \"1MB\"\n"));
    proxy.log.wait("plans rejected", |line| line["error"].to_string().contains("it has 3 lines"));
    assert_eq!((seen(), burst(&proxy, "user-19")), ((20.0, 0.0, true), Some(20)));
    let reloads = proxy.log.count("config reloaded");
    proxy.signal("HUP");
    wait_until("an operator has asked", || proxy.log.count("config reloaded") > reloads);
    assert_eq!((seen(), burst(&proxy, "user-19")), ((3.0, 1.0, false), Some(5)));
    let counts = |line: &Value| (line["level"].clone(), line["before"].clone());
    let line = proxy.log.wait("plans loaded", |line| line["lines"] == 3);
    assert_eq!(counts(&line), (json!("WARN"), json!(20)), "the operator is told what is gone");
    fs::write(&file, "").unwrap();
    proxy.signal("HUP");
    let line = proxy.log.wait("plans loaded", |line| line["lines"] == 0);
    assert_eq!(counts(&line), (json!("WARN"), json!(3)));
    let is_empty = |line: &Value| line["warning"].to_string().contains("plans.txt has no line");
    proxy.log.wait("config warning", is_empty);
}

/// The alarm about the file stayed until another SIGHUP.
#[test]
fn a_plans_file_that_is_back_ends_a_rejected_reload() {
    let (folder, proxy) = start("bob team\n", "");
    let file = folder.path().join("plans.txt");
    fs::remove_file(&file).unwrap();
    proxy.signal("HUP");
    proxy.log.wait("config rejected", |_| true);
    proxy.log.wait("plans rejected", |_| true);
    fs::write(&file, "bob team\n").unwrap();
    proxy.log.wait("config reloaded", |_| true);
    let status = get(proxy.admin(), "/api/status", &[("host", "localhost")]).json();
    assert_eq!(status["alarms"], json!([]));
    assert_eq!(proxy.log.count("config rejected"), 1);
}

#[test]
fn a_file_that_has_lost_a_tenth_is_taken_and_told() {
    let lines = |count: usize| (0..count).map(|n| format!("user-{n} team\n")).collect::<String>();
    let (folder, proxy) = start(&lines(20), "");
    for (count, level) in [(19, "INFO"), (17, "WARN"), (9, "WARN"), (30, "INFO")] {
        fs::write(folder.path().join("plans.txt"), lines(count)).unwrap();
        let line = proxy.log.wait("plans loaded", |line| line["lines"] == count);
        assert_eq!(line["level"], level, "{line}");
    }
    let before = |lines: u64| {
        proxy.log.wait("plans loaded", |line| line["lines"] == lines)["before"].clone()
    };
    assert_eq!([19, 17, 9].map(before), [Value::Null, json!(19), json!(17)]);
    assert_eq!(proxy.log.count("plans rejected"), 0);
}

#[test]
fn a_plan_of_the_file_that_no_limit_names_is_a_warning() {
    let (folder, proxy) = start("bob gold\nann team\n", "");
    let warned = |line: &Value| {
        line["warning"].as_str().unwrap().contains("no limit names the plan \"gold\"")
    };
    let line = proxy.log.wait("config warning", warned);
    assert!(line["warning"].as_str().unwrap().contains("plans.txt, line 1"), "{line}");
    fs::write(folder.path().join("plans.txt"), "# none\nann team\neve silver\n").unwrap();
    let warned = |line: &Value| line["warning"].as_str().unwrap().contains("plans.txt, line 3");
    proxy.log.wait("config warning", warned);
}

#[test]
fn a_broken_file_at_the_start_is_an_error_of_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let text = |file: &str| {
        let plans = format!("[plans]\nby = \"ip\"\nfile = \"{file}\"\n");
        Proxy::answering()
            .section(&plans)
            .limit("user", USER)
            .text()
            .replace("LISTEN", "127.0.0.1:0")
    };
    fs::create_dir(folder.path().join("lists")).unwrap();
    for (lines, said) in [
        (
            "10.0.0.0/8 pro\nnonsense team\n",
            "plans.txt: line 2: `nonsense` is no address and no network",
        ),
        ("10.0.0.0/8 pro\n", ""),
        ("# 10.0.0.0/8 pro\n", "lists/plans.txt has no line, and gives nobody a plan"),
    ] {
        fs::write(folder.path().join("lists/plans.txt"), lines).unwrap();
        fs::write(folder.path().join("proxy.toml"), text("lists/plans.txt")).unwrap();
        let checked = program().arg("check").current_dir(folder.path()).output().unwrap();
        let errors = String::from_utf8(checked.stderr).unwrap();
        assert_eq!(checked.status.success(), !lines.contains("nonsense"), "{errors}");
        let said_all = errors + &String::from_utf8(checked.stdout).unwrap();
        assert!(said_all.contains(said), "{said_all}");
        assert_eq!(said_all.contains("has no line"), said.contains("has no line"), "{said_all}");
    }
    fs::write(folder.path().join("proxy.toml"), text("lists/none.txt")).unwrap();
    let checked = program().arg("check").current_dir(folder.path()).output().unwrap();
    let errors = String::from_utf8(checked.stderr).unwrap();
    assert!(errors.contains("lists/none.txt: No such file"), "{errors}");
}

#[test]
fn explain_and_limits_get_say_the_plan_of_the_file() {
    let (folder, proxy) = start("bob team Bob & Sons\nold gold\n", "");
    let file = folder.path().join("plans.txt");
    let explain = |header: &str| {
        let mut command = program();
        command.args(["explain", "/", "--config"]).arg(proxy.config_file());
        if !header.is_empty() {
            command.args(["--header", header]);
        }
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let file = file.to_str().unwrap();
    for (header, said) in [
        ("x-user: bob", format!("team: from {file}, for header:x-user ")),
        ("x-user: eve", format!("pro, the default: {file} has no line for header:x-user ")),
        (
            "x-user: old",
            format!(
                "pro, the default: no limit names the plan gold, which {file} gives to header:x-user "
            ),
        ),
        ("", "pro, the default: the request has no header:x-user".to_owned()),
    ] {
        let text = explain(header);
        assert!(text.contains(&format!("plan      {said}")), "{text}");
        assert!(!header.contains("eve") || !text.contains("eve"), "a value of a header: {text}");
    }
    assert!(explain("x-user: bob").contains(" (Bob & Sons)\n"));
    let bucket = |user: &str| {
        let path = format!("/api/limits/user/keys/{user}?plain");
        let mut admin = Connection::open(proxy.admin());
        let bucket = admin.get(&path, &[("host", "localhost")]).json();
        (bucket["plan"].clone(), bucket["burst"].clone())
    };
    assert_eq!(bucket("bob"), (json!("team"), json!(20)));
    assert_eq!(bucket("eve"), (json!("pro"), json!(5)));
}

/// A limit by a key or an address showed the limit's own figures for the key of a customer with a plan.
#[test]
fn a_bucket_has_the_figures_of_its_keys_plan_or_says_that_it_does_not_know() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("plans.txt"), "bob team\n").unwrap();
    let section = BY_USER.replace("FOLDER", folder.path().to_str().unwrap());
    let limit = |key: &str| USER.replace("[\"header:x-user\"]", key);
    let proxy = Proxy::answering()
        .admin()
        .section(&section)
        .limit("either", &limit("[\"header:x-user | ip\"]"))
        .limit("both", &limit("[\"path\", \"header:x-user\"]"))
        .limit("second", &limit("[\"header:x-other | header:x-user\"]"))
        .limit("address", &limit("[\"ip\"]"))
        .start();
    let own = "the key does not tell the plan";
    for (limit, key, plan, burst, note) in [
        ("either", "bob", json!("team"), 20, ""),
        ("either", "%252=192.0.2.1", json!("pro"), 5, ""),
        ("both", "%2Fa%7Cbob", json!("team"), 20, ""),
        ("both", "%2Fa%7C%25-", json!("pro"), 5, ""),
        ("second", "%252=bob", json!("team"), 20, ""),
        ("second", "bob", json!(null), 2, own),
        ("address", "192.0.2.1", json!(null), 2, own),
    ] {
        let path = format!("/api/limits/{limit}/keys/{key}?plain");
        let bucket = get(proxy.admin(), &path, &[("host", "localhost")]).json();
        assert_eq!(
            (&bucket["plan"], &bucket["burst"]),
            (&plan, &json!(burst)),
            "{limit}: {bucket}"
        );
        let said = bucket["note"].as_str().unwrap_or_default();
        assert!(said.starts_with(note) && said.is_empty() == note.is_empty(), "{limit}: {bucket}");
    }
    let mut command = program();
    let admin = format!("http://{}", proxy.admin());
    command.args(["limits", "get", "address", "192.0.2.1", "--admin", &admin]);
    let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(said.contains("plan       unknown: the key does not tell the plan"), "{said}");
}
