//! The log of tidegate itself, replayed: it lacks nothing.

use serde_json::{Value, json};

use super::LogFolder;
use crate::support::client::{Connection, get};
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;

const LIMITS: &str = r#"
[log]
access = true
[plans]
by = "header:x-plan"
[admin]
listen = "LISTEN"
[limits.key]
key = ["header:x-api-key | ip"]
rate = "20/h"
cost = { header = "x-cost", max = 9 }
plans = { pro = "40/h" }
overrides = [{ key = ["vip"], rate = "60/h" }]
[limits.used]
key = ["header:x-user", "method"]
rate = "150/h"
cost = { response_header = "x-used", estimate = 2 }
[limits.failed]
key = ["header:x-user"]
rate = "20/h"
algorithm = "fixed-window"
count_when = { status = ["404"] }
"#;

/// Nothing refills during this test.
#[test]
fn every_decision_of_two_processes_comes_again() {
    let redis = RedisServer::start();
    let api = Upstream::answering(|got| {
        let (status, used) = match got.path() {
            "/missing" => ("404 Not Found", 1),
            path => ("200 OK", path.len()),
        };
        format!("HTTP/1.1 {status}\r\nx-used: {used}\r\ncontent-length: 0\r\n\r\n").into_bytes()
    });
    let limits = "limits = [\"key\", \"used\", \"failed\"]";
    let file = Proxy::of_one_worker(&api)
        .store(&format!("url = {:?}", redis.url()))
        .route(&format!("path = \"/{{*rest}}\"\nupstream = \"api\"\n{limits}"))
        .section(LIMITS);
    let mut proxies = [file.start(), file.start()];
    let mut dice = 7_u64;
    let mut roll = |sides: usize| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(dice >> 33).unwrap() % sides
    };
    let mut send = |proxies: &[Tidegate; 2], count: usize| {
        let mut clients = proxies.each_ref().map(|proxy| Connection::open(proxy.address));
        for _ in 0..count {
            let process = roll(2);
            let cost = (1 + roll(4)).to_string();
            let user = format!("user {process}");
            let mut fields = vec![("x-cost", cost.as_str()), ("x-user", &user)];
            fields.extend(
                [("x-api-key", "a"), ("x-api-key", "b"), ("x-api-key", "vip")].get(roll(4)),
            );
            fields.extend((roll(3) == 0).then_some(("x-plan", "pro")));
            clients[process].get(["/", "/dear", "/missing"][roll(3)], &fields);
        }
    };
    send(&proxies, 60);
    let lines = proxies[0].log.with("request");
    let mut keys = lines.iter().filter_map(|line| line["keys"]["key"].as_str());
    let hashed = keys.find(|key| key.len() == 22).unwrap();
    let path = format!("/api/limits/key/keys/{hashed}/override");
    let mut admin = Connection::open(proxies[0].admin());
    let wanted = json!({ "rate": "500/h" }).to_string();
    let fields = [("host", "localhost"), ("content-type", "application/json")];
    assert_eq!(admin.request("PUT", &path, &fields, wanted.as_bytes()).status, 200);
    proxies.iter().for_each(|proxy| drop(proxy.log.wait("override set", |_| true)));
    send(&proxies, 60);
    assert_eq!(admin.request("DELETE", &path, &fields, b"").status, 204);
    proxies.iter().for_each(|proxy| drop(proxy.log.wait("override ended", |_| true)));
    send(&proxies, 60);
    let path = "/api/limits/key/override";
    let wanted = json!({ "rate": "300/h", "for": "1h" }).to_string();
    assert_eq!(admin.request("PUT", path, &fields, wanted.as_bytes()).status, 200);
    let of_all = |line: &Value| line["rate"] == "300/h";
    proxies.iter().for_each(|proxy| drop(proxy.log.wait("override set", of_all)));
    send(&proxies, 60);
    assert_eq!(admin.request("DELETE", path, &fields, b"").status, 204);
    proxies.iter().for_each(|proxy| drop(proxy.log.wait("override ended", of_all)));
    send(&proxies, 60);
    let mut came: Vec<Value> = Vec::new();
    let folder = LogFolder::of(&file.text_with_admin(proxies[0].admin()), "");
    for (name, proxy) in ["access.log", "b.log"].iter().zip(&mut proxies) {
        assert!(proxy.stop().success());
        came.extend(proxy.log.with("request"));
        folder.write(name, &proxy.log.text());
    }
    let rejected = came.iter().filter(|line| line["status"] == 429).count();
    assert!((20..280).contains(&rejected), "{rejected}");
    let report = folder.report(&["b.log"]);
    let result = &report["result"];
    assert_eq!((&result["requests"], &result["rejected"]), (&json!(300), &json!(rejected)));
    assert_eq!((&result["left_out"], &result["undecided"]), (&json!([]), &json!(0)));
    for limit in result["limits"].as_array().unwrap() {
        for hit in limit["keys"]["hardest"].as_array().unwrap() {
            let name = limit["name"].as_str().unwrap();
            let of_key = |line: &&Value| line["keys"][name] == hit["name"];
            assert_eq!(hit["requests"], came.iter().filter(of_key).count(), "{hit}");
        }
    }
}

/// One limit has other costs on other routes. Nothing refills during this test.
#[test]
fn the_costs_that_routes_set_come_again() {
    let api = Upstream::answering(|_| {
        b"HTTP/1.1 200 OK\r\nx-used: 7\r\ncontent-length: 0\r\n\r\n".to_vec()
    });
    let route = |path: &str, cost: &str| {
        let limits = if cost.is_empty() {
            "[]"
        } else {
            &format!("[{{ name = \"budget\", cost = {cost} }}]")
        };
        format!("path = \"{path}\"\nupstream = \"api\"\nlimits = {limits}")
    };
    let file = Proxy::to(&api)
        .server("limits = [{ name = \"budget\", cost = 3 }]")
        .section("[log]\naccess = true\n[decide]\nlisten = \"LISTEN\"")
        .limits("[limits.budget]\nkey = [\"header:x-user\"]\nrate = \"30/h\"")
        .route(&route("/asked", "{ header = \"x-cost\", max = 10 }"))
        .route(&route("/used", "{ response_header = \"x-used\", estimate = 2 }"))
        .route(&route("/fixed", "4"))
        .route(&route("/everywhere", ""));
    let mut proxy = file.start();
    let line = proxy.log.wait("listening", |line| line["setting"] == "decide.listen");
    let mut caller = Connection::open(line["address"].as_str().unwrap().parse().unwrap());
    let mut allowed = Vec::new();
    for (user, path) in [("a", "/asked"), ("b", "/used"), ("c", "/fixed"), ("d", "/everywhere")] {
        let fields = [("x-user", user), ("x-cost", "10")];
        let statuses = (0..11).map(|_| get(proxy.address, path, &fields).status);
        allowed.push(statuses.filter(|status| *status == 200).count());
        // Two calls that the other proxy counts as two. The log has what they cost together.
        let user = format!("asks {user}");
        let asked =
            json!({ "path": path, "headers": { "x-user": user, "x-cost": "5" }, "cost": 2 });
        let decisions =
            (0..5).map(|_| caller.request("POST", "/check", &[], asked.to_string().as_bytes()));
        allowed.push(decisions.filter(|reply| reply.json()["decision"] == "allowed").count());
    }
    assert_eq!(allowed, [3, 3, 5, 5, 7, 3, 10, 5]);
    assert!(proxy.stop().success());
    let folder = LogFolder::of(&file.text().replace("LISTEN", "127.0.0.1:0"), &proxy.log.text());
    let result = folder.report(&[])["result"].take();
    assert_eq!((&result["left_out"], &result["undecided"]), (&json!([]), &json!(0)));
    assert_eq!(result["requests"], 64);
    assert_eq!(result["rejected"], 64 - allowed.iter().sum::<usize>());
}
