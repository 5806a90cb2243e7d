//! `/api/status` and `/api/history`: the numbers are those of what was sent.

use serde_json::{Value, json};

use super::{json as read, limited, send, status};
use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::tidegate::{Tidegate, program};
use crate::support::upstream::Upstream;
use crate::support::wait_until;

fn named<'v>(status: &'v Value, list: &str, name: &str) -> &'v Value {
    let entries = status[list].as_array().unwrap();
    entries.iter().find(|entry| entry["name"] == name).unwrap_or_else(|| panic!("{name}: {status}"))
}

#[test]
fn the_numbers_are_those_of_what_was_sent() {
    let proxy = limited().section("[log]\nkeys = \"plain\"").start();
    assert_eq!(send(&proxy, "a", 5), [200, 200, 429, 429, 429]);
    assert_eq!(send(&proxy, "b", 3), [200, 200, 429]);
    assert_eq!(send(&proxy, "c", 1), [200]);
    let status = status(proxy.admin());
    let user = named(&status, "limits", "user");
    assert_eq!((&user["allowed_total"], &user["rejected_total"]), (&json!(5), &json!(4)));
    let key = |key: &str, count| json!({ "key": key, "lookup": key, "name": null, "count": count, "at_most_over": 0 });
    // Rates fall while time goes by.
    let rejected = |limit: &Value| -> Value {
        let mut keys = limit["rejected_keys"].clone();
        for key in keys.as_array_mut().unwrap() {
            assert!(key.as_object_mut().unwrap().remove("per_second").unwrap().is_number());
        }
        keys
    };
    assert_eq!(rejected(user), json!([key("a", 3), key("b", 1)]));
    let all = named(&status, "limits", "all");
    assert_eq!((&all["mode"], &all["shadow_total"]), (&json!("shadow"), &json!(8)));
    assert_eq!(rejected(all), json!([key("", 8)]), "who would have been rejected");
    let top = |place: usize| {
        let key = &status["top_keys"][place];
        json!([key["limit"], key["mode"], key["key"], key["count"]])
    };
    assert_eq!(top(0), json!(["all", "shadow", "", 8]));
    assert_eq!(top(1), json!(["user", "enforce", "a", 3]));
    assert_eq!(top(2), json!(["user", "enforce", "b", 1]));
    let route = named(&status, "routes", "/{*rest}");
    assert_eq!((&route["total"], &route["statuses_total"]["4xx"]), (&json!(9), &json!(4)));
    assert_eq!(status["requests"]["total"], 9);
    for counts in [route, &status["requests"]] {
        let count = |decision: &str| counts[format!("{decision}_total")].as_u64().unwrap();
        let counts = ["allowed", "shadow", "rejected", "delayed", "error"].map(count);
        assert_eq!(counts, [1, 4, 4, 0, 0], "each request once");
    }
    assert_eq!(
        (&status["store"]["kind"], &status["store"]["up"]),
        (&json!("memory"), &json!(true))
    );
    assert_eq!(status["store"]["questions_total"], 9);
    assert_eq!(
        (&status["config"]["version"], &status["config"]["valid"]),
        (&json!(1), &json!(true))
    );
}

/// The decisions about the requests of the only route: allowed, delayed, rejected, error.
fn decisions(proxy: &Tidegate) -> [u64; 4] {
    let status = status(proxy.admin());
    ["allowed", "delayed", "rejected", "error"].map(|decision| {
        let name = format!("{decision}_total");
        assert_eq!(status["requests"][&name], status["routes"][0][&name]);
        status["requests"][name].as_u64().unwrap()
    })
}

#[test]
fn a_request_that_was_held_counts_as_delayed() {
    let limit = "rate = \"5/s\"\nburst = 1\nwait = \"10s\"";
    let proxy = Proxy::answering().admin().limit("all", limit).start();
    wait_until("a request was held", || {
        assert_eq!(get(proxy.address, "/", &[]).status, 200);
        decisions(&proxy)[1] > 0
    });
    assert_eq!(decisions(&proxy)[1..], [1, 0, 0]);
}

#[test]
fn a_client_that_leaves_while_it_is_held_counts_as_delayed() {
    let limit = "rate = \"1/h\"\nwait = \"2h\"";
    let proxy = Proxy::answering().admin().limit("all", limit).start();
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    wait_until("it is held", || Metrics::of(proxy.admin()).value("tidegate_waiting") == 1.0);
    assert_eq!(decisions(&proxy), [1, 0, 0, 0]);
    drop(client);
    wait_until("it has left", || decisions(&proxy) == [1, 1, 0, 0]);
}

#[test]
fn a_request_on_which_nobody_could_decide_counts_as_an_error() {
    let redis = RedisServer::absent();
    let limit = "rate = \"1/h\"\non_store_error = \"reject\"";
    let proxy = Proxy::answering().admin().limit("all", limit).store(&redis.fields()).start();
    (0..2).for_each(|_| assert_eq!(get(proxy.address, "/", &[]).status, 503));
    assert_eq!(decisions(&proxy), [0, 0, 0, 2]);
}

#[test]
fn keys_are_hashed_where_the_log_hashes_them_and_can_be_looked_up() {
    let proxy =
        limited().limit("address", "key = [\"ip\"]\nrate = \"1/h\"\nmode = \"shadow\"").start();
    send(&proxy, "secret-user", 3);
    let status = status(proxy.admin());
    assert!(!status.to_string().contains("secret-user"), "{status}");
    let key = &named(&status, "limits", "user")["rejected_keys"][0];
    let line = proxy.log.wait("throttled", |line| line["limit"] == "user");
    assert_eq!(key["key"], line["key"]);
    let key = &named(&status, "limits", "address")["rejected_keys"][0];
    assert_eq!((&key["key"], &key["lookup"]), (&json!("127.0.0.1"), &json!("127.0.0.1")));
    let path = format!("/api/limits/address/keys/{}", key["lookup"].as_str().unwrap());
    assert_eq!(read(proxy.admin(), &path)["remaining"], 0);
}

#[test]
fn servers_that_refuse_are_down() {
    let proxy = Proxy::to("http://127.0.0.1:1").admin().start();
    assert_eq!(get(proxy.address, "/", &[]).status, 502);
    let status = status(proxy.admin());
    let upstream = named(&status, "upstreams", "api");
    assert_eq!(upstream["errors"], json!({ "connect": 1 }));
    let server = &upstream["servers"][0];
    assert_eq!((&server["url"], &server["up"]), (&json!("http://127.0.0.1:1"), &json!(false)));
    assert_eq!(server["in_flight"], 0);
    assert_eq!(
        (&server["errors"], &server["last_check"]),
        (&json!({ "connect": 1 }), &json!(null))
    );
    assert!(server["reason"].as_str().unwrap().contains("cannot connect"), "{server}");
    let requests = &status["requests"];
    assert_eq!((&requests["failed_total"], &requests["allowed_total"]), (&json!(1), &json!(1)));
}

#[test]
fn a_store_that_is_away_is_told_with_its_errors() {
    let mut redis = RedisServer::start();
    let store = redis.fields();
    let proxy = limited().store(&store).start();
    send(&proxy, "a", 1);
    let before = status(proxy.admin())["store"].clone();
    assert_eq!((&before["kind"], &before["up"]), (&json!("redis"), &json!(true)));
    redis.kill();
    wait_until("Redis counts as away", || {
        send(&proxy, "a", 1);
        status(proxy.admin())["store"]["up"] == false
    });
    let store = status(proxy.admin())["store"].clone();
    let errors = store["errors"].as_object().unwrap();
    assert!(errors.values().any(|count| count.as_u64() > Some(0)), "{store}");
    assert!(store["since_ms"].as_u64() < status(proxy.admin())["uptime_ms"].as_u64(), "{store}");
}

#[test]
fn the_last_reload_is_told_and_what_is_wrong_with_a_file() {
    let proxy = limited().start();
    let admin = proxy.admin();
    let other = limited().text().replace("2/h", "3/h");
    proxy.reload(&other);
    let config = status(admin)["config"].clone();
    assert_eq!(config["version"], 2);
    assert!(config["changed"].to_string().contains("limits.user rate 2/h -> 3/h"), "{config}");
    std::fs::write(proxy.config_file(), "nonsense").unwrap();
    wait_until("the file is refused", || status(admin)["config"]["valid"] == false);
    let config = status(admin)["config"].clone();
    assert!(config["errors"][0].as_str().unwrap().contains("proxy.toml"), "{config}");
    assert!(config["rejected_since"].as_str().unwrap().ends_with('Z'), "{config}");
    assert_eq!(config["version"], 2, "the old one stays");
    proxy.reload(&other);
    let config = status(admin)["config"].clone();
    assert_eq!((&config["errors"], &config["valid"]), (&json!([]), &json!(true)));
}

#[test]
fn the_history_adds_up() {
    let proxy = limited().start();
    send(&proxy, "a", 5);
    // A point may come between two of the requests.
    let mut history = Value::Null;
    let count = |history: &Value, place: [&str; 2], name: &str| -> u64 {
        let at = history["counts"].as_array().unwrap().iter().position(|it| it == name).unwrap();
        let points = history["points"].as_array().unwrap().iter();
        points.filter_map(|point| point[place[0]][place[1]][at].as_u64()).sum()
    };
    wait_until("all requests are in the points", || {
        history = read(proxy.admin(), "/api/history");
        count(&history, ["limits", "user"], "rejected") == 3
    });
    assert_eq!(count(&history, ["limits", "user"], "allowed"), 2);
    // Each request that was not rejected would have been by the limit in shadow, but for the first.
    let counts = ["allowed", "shadow", "rejected"]
        .map(|decision| count(&history, ["routes", "/{*rest}"], decision));
    assert_eq!(counts, [1, 1, 3]);
    let points = history["points"].as_array().unwrap();
    assert!(points.iter().any(|point| point["store_ms"][1].is_number()), "{history}");
}

/// What the alarms are, in their order.
fn alarms(proxy: &Tidegate) -> Vec<String> {
    let status = status(proxy.admin());
    let alarms = status["alarms"].as_array().unwrap();
    assert!(alarms.iter().all(|it| it["means"].is_string() && it["do"].is_string()), "{status}");
    alarms.iter().map(|it| it["what"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn each_alarm_is_one_line_and_the_worst_comes_first() {
    let mut redis = RedisServer::start();
    let api = Proxy::to("http://127.0.0.1:1").admin();
    let proxy = api
        .limit("user", "key = [\"header:x-user\"]\nrate = \"2/h\"")
        .store(&redis.fields())
        .start();
    let down = "API down: requests to it get 502";
    wait_until("the API is down", || alarms(&proxy) == [down]);
    std::fs::write(proxy.config_file(), "nonsense").unwrap();
    wait_until("the file is wrong", || alarms(&proxy) == [down, "proxy.toml is wrong"]);
    redis.kill();
    let all = [down, "Redis away", "proxy.toml is wrong"];
    wait_until("all three are told", || {
        send(&proxy, "a", 1);
        alarms(&proxy) == all
    });
}

#[test]
fn failed_answers_of_a_server_that_is_up_are_an_alarm() {
    let api = Upstream::saying(&["HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"]);
    let proxy = Proxy::to(&api).admin().start();
    assert_eq!(get(proxy.address, "/", &[]).status, 500);
    wait_until("it is told", || alarms(&proxy) == ["Answers fail: /{*rest}"]);
    let status = status(proxy.admin());
    let server = &status["upstreams"][0]["servers"][0];
    assert_eq!((&server["requests_total"], &server["answers_5xx_total"]), (&json!(1), &json!(1)));
    assert_eq!((&server["up"], &server["errors"]), (&json!(true), &json!({})));
}

/// It was refused with 503.
#[test]
fn a_key_is_looked_up_in_this_process_while_redis_is_away() {
    let mut redis = RedisServer::start();
    let proxy = limited()
        .limit(
            "strict",
            "key = [\"ip\"]\nrate = \"9/h\"\non_store_error = \"reject\"\nmode = \"shadow\"",
        )
        .section("[log]\nkeys = \"plain\"")
        .store(&redis.fields())
        .start();
    let path = "/api/limits/user/keys/a";
    assert_eq!(read(proxy.admin(), path)["here"], false);
    redis.kill();
    wait_until("Redis counts as away", || {
        send(&proxy, "b", 1);
        status(proxy.admin())["store"]["up"] == false
    });
    send(&proxy, "a", 1);
    let bucket = read(proxy.admin(), path);
    assert_eq!((&bucket["here"], &bucket["remaining"]), (&json!(true), &json!(1)), "{bucket}");
    let admin = format!("http://{}", proxy.admin());
    let told = program().args(["limits", "get", "user", "a", "--admin", &admin]).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("counted in this process alone, because Redis is away"), "{told}");
    let strict = get(proxy.admin(), "/api/limits/strict/keys/127.0.0.1", &[("host", "localhost")]);
    assert_eq!(strict.status, 503, "no bucket here decides");
}
