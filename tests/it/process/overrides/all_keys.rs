//! An override of all keys of a limit.

use serde_json::{Value, json};

use super::command::{done, told};
use super::{HASH, all, ask, bucket, by_user, passes, set};
use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::redis::{RedisServer, in_both_stores};
use crate::support::tidegate::{Tidegate, program};
use crate::support::wait_until;

const PATH: &str = "/user/override";

/// The default plan has three an hour, a plan that a request names two, and each user whom the file names four.
const LIMIT: &str = "rate = \"1/h\"\nplans = { free = \"3/h\", pro = \"2/h\" }\n\
                     overrides = [{ key = [\"vip\"], rate = \"4/h\" }]";

fn by_plan(store: &str) -> Proxy {
    let plans = "[plans]\nby = \"header:x-plan\"\ndefault = \"free\"\n";
    by_user(LIMIT, store).section(plans)
}

/// The burst that a request of this user with this plan is told.
fn burst(proxy: &Tidegate, user: &str, plan: &str) -> u64 {
    let fields = [("x-user", user), ("x-plan", plan)];
    let reply = get(proxy.address, "/", &fields);
    let policy = reply.header("ratelimit-policy").unwrap();
    policy.split_once(";q=").unwrap().1.split(';').next().unwrap().parse().unwrap()
}

fn put(proxy: &Tidegate, body: &str) -> Value {
    let reply = ask(proxy.admin(), "PUT", PATH, body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

#[test]
fn one_change_holds_for_all_keys_on_all_proxies() {
    let server = RedisServer::start();
    let file = by_plan(&server.fields());
    let proxies = [file.start(), file.start()];
    let [one, other] = &proxies;
    set(one, "own", r#"{"rate":"6/h"}"#);
    wait_until("the other has it", || burst(other, "own", "") == 6);
    assert_eq!([burst(one, "a", ""), burst(other, "a", "gold")], [3, 3]);
    let said = done(
        one,
        &["set", "user", "*", "--rate", "50/h", "--for", "2h", "--reason", "incident 4711"],
    );
    assert!(said.starts_with("50/h, burst 50, for all keys until 20"), "{said}");
    for proxy in &proxies {
        wait_until("it holds", || burst(proxy, "a", "") == 50);
        let bursts = [("a", "gold"), ("b", "pro"), ("vip", ""), ("own", "pro")];
        let bursts = bursts.map(|(user, plan)| burst(proxy, user, plan));
        assert_eq!(bursts, [50, 2, 4, 6], "a plan that is named, and overrides of a key, win");
        let line = proxy.log.wait("override set", |line| line["rate"] == "50/h");
        assert_eq!((&line["limit"], line.get("key")), (&json!("user"), None), "{line}");
        assert_eq!((&line["reason"], &line["burst"]), (&json!("incident 4711"), &Value::Null));
        assert_eq!(line["hides"], "1/h, burst 1");
    }
    let written: std::collections::HashMap<String, String> =
        server.run(&["HGETALL", "tidegate::overrides"]);
    assert!(written.contains_key("user*"), "older versions read fields with a colon: {written:?}");
    let listed = &all(other)["overrides"][0];
    assert_eq!((&listed["key"], &listed["rate"]), (&Value::Null, &json!("50/h")), "{listed}");
    assert!(done(other, &["list"]).contains("\nuser, all keys  "));
    let seen = bucket(other, "a");
    assert_eq!((&seen["burst"], &seen["override"]["key"]), (&json!(50), &Value::Null));
    assert!(seen["remaining"].as_u64().unwrap() <= 44, "what was used stays used: {seen}");
    assert_eq!(seen["note"], NOTE);
    assert_eq!(bucket(other, "own")["override"]["rate"], "6/h");
    // One that starts later has it too, and a reload says what hides its figures.
    let third = file.start();
    wait_until("it holds in the third", || burst(&third, "z", "") == 50);
    third.reload(&file.text().replace("\"1/h\"", "\"9/h\""));
    let line = third.log.wait("override hides new figures", |_| true);
    let expected = json!(["WARN", "user", "50/h", "incident 4711", "9/h, burst 9"]);
    let found = ["level", "limit", "rate", "reason", "hides"].map(|name| line[name].clone());
    assert_eq!(json!(found), expected, "{line}");
    assert!(line["until"].as_str().unwrap().starts_with("20"), "{line}");
    third.reload(&file.text().replace("\"1/h\"", "\"9/h\"").replace("2/h", "8/h"));
    assert_eq!(third.log.count("override hides new figures"), 1, "its figures are the same");
    done(other, &["reset", "user", "*", "--override"]);
    for proxy in &proxies {
        wait_until("it has ended", || burst(proxy, "a", "") == 3);
        let line = proxy.log.wait("override ended", |_| true);
        assert_eq!((&line["rate"], line.get("key")), (&json!("50/h"), None), "{line}");
    }
}

const NOTE: &str =
    "the key does not tell the plan: these are the figures without one, and a plan has others";

#[test]
fn it_ends_by_itself_and_known_refusals_and_candidates_heed_it() {
    in_both_stores(|store| {
        let proxy = by_user("rate = \"1/h\"\ncandidate = { rate = \"5/h\" }", store).start();
        let tried = || {
            let name = "tidegate_decisions_total{limit=\"user:candidate\",decision=\"allowed\"}";
            Metrics::of(proxy.admin()).value(name)
        };
        assert!(passes(&proxy, "b"));
        assert!((0..9).all(|_| !passes(&proxy, "b")), "known in the end");
        let told = put(&proxy, r#"{"rate":"900/h"}"#);
        assert_eq!((&told["key"], &told["in_force"]), (&Value::Null, &json!(true)), "{told}");
        assert!(passes(&proxy, "b"), "what was known of the bucket is over");
        let before = tried();
        assert!(passes(&proxy, "c"));
        assert_eq!(tried(), before, "only instead of the limit's own figures");
        let told = put(&proxy, r#"{"rate":"900/h","for":"1s"}"#);
        assert!(told["ends_in_ms"].as_u64().unwrap() <= 1_000, "{told}");
        wait_until("the file holds again", || !passes(&proxy, "b"));
        proxy.log.wait("override ended", |_| true);
        assert!(all(&proxy)["overrides"] == json!([]) && passes(&proxy, "d") && tried() > before);
    });
}

#[test]
fn why_and_the_page_s_facts_name_it() {
    let proxy = by_plan("").start();
    put(&proxy, r#"{"rate":"1/h","for":"1h","reason":"incident 4711"}"#);
    assert!(passes(&proxy, "a"));
    let reply = get(proxy.address, "/", &[("x-user", "a")]);
    let id = reply.json()["instance"].as_str().unwrap().replace("urn:uuid:", "");
    let why = || get(proxy.admin(), &format!("/api/why/{id}"), &[("host", "localhost")]).json();
    let told = why();
    let figures = &told["figures"];
    assert_eq!(figures["of"], "override", "{figures}");
    assert_eq!((&figures["reason"], &figures["file"]), (&json!("incident 4711"), &Value::Null));
    assert!(figures["ends_in_ms"].as_u64().unwrap() <= 3_600_000, "{figures}");
    assert!(told["would_pass"].to_string().contains("{\"plan\":\"pro\"}"), "{told}");
    let status = get(proxy.admin(), "/api/status", &[("host", "localhost")]).json();
    assert_eq!(status["limits"][0]["override"]["rate"], "1/h", "{status}");
    let url = format!("http://{}", proxy.admin());
    let top = program().args(["top", &url]).output().unwrap().stdout;
    assert!(String::from_utf8(top).unwrap().contains("1/h for all keys"));
    assert_eq!(ask(proxy.admin(), "DELETE", PATH, "").status, 204);
    let figures = why()["figures"].clone();
    assert_eq!((&figures["of"], &figures["file"]), (&json!("override"), &Value::Null));
    let url = format!("http://{}", proxy.admin());
    let text = program().args(["why", &id, "--admin", &url]).output().unwrap().stdout;
    assert!(String::from_utf8(text).unwrap().contains("of the override"));
}

#[test]
fn a_limit_with_slots_takes_their_number() {
    in_both_stores(|store| {
        let limit = "key = [\"header:x-user\", \"ip\"]\nalgorithm = \"concurrency\"\nlimit = 1";
        let proxy = Proxy::answering().admin().limit("user", limit).store(store).start();
        let said = done(&proxy, &["set", "user", "*", "--limit", "7", "--for", "2h"]);
        assert!(said.starts_with("7 at once, burst 7, for all keys until 20"), "{said}");
        let slots = |user: &str| {
            let path = format!("/user/keys/{user}%7C127.0.0.1?plain");
            ask(proxy.admin(), "GET", &path, "").json()["remaining"].clone()
        };
        assert_eq!(slots("a"), 7);
        let said = done(&proxy, &["set", "user", "b", "127.0.0.1", "--limit", "3"]);
        assert!(said.contains("3 at once"), "{said}");
        assert_eq!([slots("a"), slots("b")], [7, 3]);
        assert_eq!(burst(&proxy, "a", ""), 7);
        done(&proxy, &["reset", "user", "*", "--override"]);
        assert_eq!([slots("a"), slots("b")], [1, 3]);
    });
}

/// An operator who closes a limit for an hour bans nobody. Other figures leave bans as they are.
#[test]
fn bans_go_on_and_win() {
    let ban = "rate = \"9/h\"\nban = { after = 2, within = \"1h\", for = \"2h\" }";
    let proxy = by_user(ban, "").start();
    let reasons = || {
        let all = all(&proxy);
        let listed = all["overrides"].as_array().unwrap().iter();
        listed.map(|it| it["reason"].clone()).collect::<Vec<_>>()
    };
    put(&proxy, r#"{"rate":"0/s"}"#);
    assert!((0..5).all(|_| !passes(&proxy, "secret-a")));
    assert_eq!(reasons(), [Value::Null]);
    put(&proxy, r#"{"rate":"1/h"}"#);
    assert!(
        passes(&proxy, "secret-a") && !passes(&proxy, "secret-a") && !passes(&proxy, "secret-a")
    );
    wait_until("the key is banned", || reasons().contains(&json!("banned")));
    put(&proxy, r#"{"rate":"unlimited"}"#);
    assert!(passes(&proxy, "b") && !passes(&proxy, "secret-a"), "the ban wins");
    assert!(all(&proxy)["overrides"].to_string().contains(HASH));
}

#[test]
fn what_cannot_be_for_all_keys_is_said() {
    let limits = "[limits.all]\nkey = []\nrate = \"9/h\"\n\
                  [limits.dear]\nkey = [\"ip\", \"path\"]\nrate = \"9/h\"\ncost = 5\n\
                  [limits.slots]\nkey = []\nalgorithm = \"concurrency\"\nlimit = 3\n\
                  [limits.window]\nkey = [\"ip\"]\nalgorithm = \"fixed-window\"\nrate = \"9/h\"\n\
                  [limits.off]\nkey = [\"ip\"]\nrate = \"9/h\"\nmode = \"off\"";
    let proxy = by_user("rate = \"2/h\"", "").limits(limits).start();
    let fine = "{\"rate\":\"9/s\"}";
    for (method, path, body, status, words) in [
        ("PUT", "/none/override", fine, 404, "no limit `none`: there are `"),
        ("DELETE", "/none/override", "", 404, "no limit `none`: there are `"),
        ("PUT", "/off/override", fine, 404, "mode = \\\"off\\\""),
        ("DELETE", PATH, "", 404, "no override was set for all keys of the limit `user`"),
        ("PUT", PATH, "{}", 422, "expected `rate`"),
        ("PUT", PATH, "{\"rate\":\"9/s\",\"limit\":9}", 422, "expected `rate`"),
        ("PUT", PATH, "{\"limit\":9}", 422, "only a limit with `algorithm = \\\"concurrency\\\"`"),
        ("PUT", PATH, "{\"rate\":\"9/s\",\"for\":\"0s\"}", 422, "would end at once"),
        ("PUT", "/dear/override", "{\"rate\":\"4/h\"}", 422, "takes 5 tokens"),
        ("PUT", "/window/override", "{\"rate\":\"1/month\"}", 422, "only a fixed window"),
        ("PUT", "/slots/override", fine, 422, "takes `limit`, a whole number from 1"),
        ("PUT", "/slots/override", "{\"limit\":0}", 422, "takes `limit`, a whole number from 1"),
        ("PUT", "/slots/override", "{\"limit\":\"9\"}", 422, "`limit` must be a whole number"),
        ("GET", PATH, "", 405, ""),
        ("POST", PATH, fine, 405, ""),
    ] {
        let reply = ask(proxy.admin(), method, path, body);
        assert_eq!(reply.status, status, "{method} {path} {body}: {}", reply.text());
        assert!(reply.text().contains(words), "{words} in {}", reply.text());
        let allow = (status == 405).then(|| "PUT, DELETE".to_owned());
        assert_eq!(reply.header("allow"), allow);
    }
    let fields = [("host", "localhost"), ("content-type", "text/plain")];
    let path = format!("/api/limits{PATH}");
    let plain = Connection::open(proxy.admin()).request("PUT", &path, &fields, fine.as_bytes());
    assert_eq!(plain.status, 415);
    for (arguments, words) in [
        (&["get", "user", "*"][..], "give a key"),
        (&["get", "all", "*"], "give a key"),
        (&["reset", "user", "*"], "tidegate limits reset user '*' --override"),
        (&["set", "dear", "*", "/", "--rate", "9/s"], "more than one key"),
        (&["set", "user", "*", "--rate", "9/s", "--limit", "9"], "--limit"),
        (&["set", "user", "*"], "--rate"),
    ] {
        let (code, out, errors) = told(&proxy, arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}: {errors}");
        assert!(errors.contains(words), "{words} in {errors}");
    }
    assert_eq!(all(&proxy)["overrides"], json!([]), "nothing was set");
    for (limit, rate) in [("all", "7/h"), ("dear", "8/h")] {
        let said = done(&proxy, &["set", limit, "*", "--rate", rate]);
        assert!(said.contains("for all keys until it is reset"), "{said}");
    }
    assert!(done(&proxy, &["get", "all"]).contains("override   7/h, for all keys"));
    // It can be ended after its limit is gone.
    proxy.reload(&by_user("rate = \"2/h\"", "").text());
    assert_eq!(all(&proxy)["overrides"][1]["in_force"], false);
    done(&proxy, &["reset", "dear", "*", "--override"]);
    assert_eq!(all(&proxy)["overrides"].as_array().unwrap().len(), 1);
}

#[test]
fn the_key_of_one_client_may_be_a_star_or_look_like_all_keys() {
    let ban = "rate = \"2/d\"\nban = { after = 1, within = \"1h\", for = \"2h\" }";
    let proxy = by_user(ban, "").section("[log]\nkeys = \"plain\"").start();
    (0..3).for_each(|_| _ = passes(&proxy, "*"));
    proxy.log.wait("banned", |line| line["key"] == "*");
    let (code, _, errors) = told(&proxy, &["reset", "user", "*", "--override"]);
    assert!(code != 0 && errors.contains("the key `*` has one: add --plain"), "{errors}");
    done(&proxy, &["set", "user", "all keys", "--rate", "6/d"]);
    done(&proxy, &["set", "user", "*", "--rate", "5/d"]);
    let listed = done(&proxy, &["list"]);
    for row in [
        "\nuser, all keys  -         5/d",
        "\nuser            *         ",
        "\nuser            all keys  6/d",
    ] {
        assert!(listed.contains(row), "{row} in {listed}");
    }
    done(&proxy, &["reset", "user", "*", "--plain", "--override"]);
    assert_eq!([burst(&proxy, "*", ""), burst(&proxy, "all keys", "")], [5, 6]);
    let (_, _, errors) = told(&proxy, &["set", "user", "*", "--plain", "--rate", "5/d"]);
    assert!(errors.contains("one '*' alone"), "{errors}");
}
