//! Costs that routes name: cheap and dear requests spend one budget.

use serde_json::{Value, json};

use super::{Place, remaining};
use crate::process::cli::told;
use crate::support::client::{Connection, get};
use crate::support::proxy::Proxy;
use crate::support::upstream::Upstream;

every_store! {
    cheap_and_dear_routes_spend_one_bucket
    what_a_response_used_counts_for_all_routes
    a_plan_and_its_windows_hold_at_every_cost
}

/// What the admin endpoint wants to see.
const LOCAL: [(&str, &str); 1] = [("host", "localhost")];

const ROUTES: [&str; 4] = [
    "path = \"/cheap\"\nlimits = [\"budget\"]",
    "path = \"/dear\"\nlimits = [{ name = \"budget\", cost = 5 }]",
    "path = \"/bulk\"\nlimits = [{ name = \"budget\", cost = { header = \"x-cost\" } }]",
    "path = \"/said\"\nlimits = [{ name = \"budget\", cost = { response_header = \"x-used\", estimate = 4 } }]",
];

fn with_routes(proxy: Proxy) -> Proxy {
    ROUTES.iter().fold(proxy, |proxy, route| proxy.route(route))
}

fn cheap_and_dear_routes_spend_one_bucket(place: &Place) {
    for algorithm in ["token-bucket", "fixed-window", "sliding-window", "sliding-log"] {
        let api = Upstream::echoing();
        let budget = format!("key = [\"ip\"]\nrate = \"10/365d\"\nalgorithm = \"{algorithm}\"");
        let proxy = with_routes(place.before(&api).limit("budget", &budget)).start();
        let mut client = Connection::open(proxy.address);
        let mut ask = |path: &str, headers: &[(&str, &str)]| {
            let reply = client.get(path, headers);
            (reply.status, remaining(&reply))
        };
        assert_eq!(ask("/cheap", &[]), (200, 9), "{algorithm}");
        assert_eq!(ask("/dear", &[]), (200, 4), "{algorithm}");
        assert_eq!(ask("/dear", &[]), (429, 4), "{algorithm}");
        assert_eq!(ask("/cheap", &[]), (200, 3), "{algorithm}");
        assert_eq!(ask("/bulk", &[("x-cost", "2")]), (200, 1), "{algorithm}");
        assert_eq!(ask("/bulk", &[("x-cost", "2")]), (429, 1), "{algorithm}");
        let line = proxy.log.wait("request", |line| line["path"] == "/dear");
        assert_eq!(line["costs"], json!({ "budget": 5 }), "{algorithm}");
        let line = proxy.log.wait("throttled", |line| line["path"] == "/dear");
        let path = format!("/api/why/{}", line["id"].as_str().unwrap());
        let why = get(proxy.admin(), &path, &LOCAL).json();
        assert_eq!((&why["cost"], &why["remaining"]), (&json!(5), &json!(4)), "{why}");
        let would = why["would_pass"].as_array().unwrap();
        assert!(would.contains(&json!({ "cost": 4 })), "{why}");
    }
}

/// The bucket is below zero by another route's requests, and what comes back is there for all.
fn what_a_response_used_counts_for_all_routes(place: &Place) {
    let api = Upstream::answering(|got| match got.header("x-use") {
        Some(used) => super::answer(200, &format!("x-used: {used}\r\n"), b""),
        None => super::answer(200, "", b""),
    });
    let budget = "key = [\"ip\"]\nrate = \"10/365d\"\nalgorithm = \"fixed-window\"";
    let proxy = with_routes(place.before(&api).limit("budget", budget)).start();
    let mut client = Connection::open(proxy.address);
    let mut ask = |path: &str, used: &str| client.get(path, &[("x-use", used)]).status;
    assert_eq!(ask("/said", "1"), 200);
    assert_eq!(ask("/dear", "0"), 200, "three of four came back");
    assert_eq!(ask("/dear", "0"), 429);
    assert_eq!(ask("/said", "30"), 200);
    assert_eq!(ask("/cheap", "0"), 429);
    let line = proxy.log.wait("throttled", |line| line["path"] == "/cheap");
    let path = format!("/api/why/{}", line["id"].as_str().unwrap());
    let why = get(proxy.admin(), &path, &LOCAL).json();
    let would = why["would_pass"].as_array().unwrap();
    assert!(would.iter().all(|it| it.get("burst").is_none()), "nobody knows the debt: {why}");
}

fn a_plan_and_its_windows_hold_at_every_cost(place: &Place) {
    let api = Upstream::echoing();
    let budget = "key = [\"header:x-user\"]\nrate = \"10/365d\"\nalgorithm = \"fixed-window\"\n\
                  plans = { pro = \"100/30d\" }\noverrides = [{ key = [\"small\"], rate = \"6/365d\" }]";
    let proxy = place.before(&api).limit("budget", budget);
    let proxy = with_routes(proxy.section("[plans]\nby = \"header:x-plan\"")).start();
    let ask = |path: &str, user: &str, plan: &str| {
        let reply = get(proxy.address, path, &[("x-user", user), ("x-plan", plan)]);
        (reply.status, remaining(&reply))
    };
    assert_eq!(ask("/dear", "a", "pro"), (200, 95));
    assert_eq!(ask("/dear", "a", "free"), (200, 0), "both windows count at the route's cost");
    assert_eq!(ask("/cheap", "a", "free").0, 429);
    assert_eq!(ask("/dear", "small", "pro"), (200, 1));
    assert_eq!(ask("/dear", "small", "pro").0, 429);
}

#[test]
fn a_limit_of_the_server_and_of_a_route_is_asked_once_at_the_cost_of_the_route() {
    let proxy = Proxy::answering()
        .server("limits = [{ name = \"all\", cost = 2 }]")
        .limit("all", "key = []\nrate = \"20/365d\"\ncost = 3")
        .limit("other", "key = []\nrate = \"20/365d\"")
        .route("path = \"/dear\"\nlimits = [\"other\", { name = \"all\", cost = 5 }]")
        .route("path = \"/own\"\nlimits = [\"all\"]")
        .route("path = \"/plain\"")
        .start();
    for (path, left) in [("/dear", 15), ("/plain", 13), ("/own", 10), ("/nowhere", 8)] {
        let reply = get(proxy.address, path, &[]);
        assert_eq!((path, remaining(&reply)), (path, left));
        let names = reply.header("ratelimit-policy").unwrap().matches("\"all\"").count();
        assert_eq!(names, 1, "{path}");
    }
}

#[test]
fn explain_and_tests_know_the_cost_of_the_route() {
    let file = "[limits.budget]\nkey = [\"ip\"]\nrate = \"10/h\"\nburst = 10\n\
        [[routes]]\npath = \"/cheap\"\nrespond = {}\nlimits = [\"budget\"]\n\
        [[routes]]\npath = \"/dear\"\nrespond = {}\nlimits = [{ name = \"budget\", cost = 5 }]\n\
        [[tests]]\nsend = \"GET /dear\"\ntimes = 3\nexpect = { allowed = 2, rejected = 1, limit = \"budget\" }\n\
        [[tests]]\nsend = \"GET /cheap\"\nexpect = { rejected = 1 }\n";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("proxy.toml"), file).unwrap();
    let (code, out, errors) = told(folder.path(), &["check"]);
    assert_eq!((code, errors.as_str()), (0, ""), "{out}");
    let (_, out, _) = told(folder.path(), &["explain", "GET /dear", "--json"]);
    let explained: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(explained["limits"][0]["cost"], 5, "{out}");
    let (_, out, _) = told(folder.path(), &["explain", "GET /dear"]);
    assert!(out.contains("costs 5"), "{out}");
}

#[test]
fn a_change_of_the_cost_is_told() {
    let proxy = |cost: &str| {
        let route = format!("path = \"/dear\"\nlimits = [{{ name = \"budget\", cost = {cost} }}]");
        Proxy::answering().admin().limit("budget", "key = []\nrate = \"10/365d\"").route(&route)
    };
    let running = proxy("5").start();
    assert_eq!(remaining(&get(running.address, "/dear", &[])), 5);
    let config = get(running.admin(), "/api/config", &LOCAL).json();
    assert_eq!(config["settings"]["routes"][0]["limits"], json!([{ "name": "budget", "cost": 5 }]));
    running.reload(&proxy("2").text());
    let line = running.log.wait("config reloaded", |_| true);
    let change = "route /dear limits [{ name budget, cost 5 }] -> [{ name budget, cost 2 }]";
    assert_eq!(line["changed"], json!([change]));
    assert_eq!(remaining(&get(running.address, "/dear", &[])), 3);
}

/// An override must hold what the dearest route takes.
#[test]
fn an_override_below_the_cost_of_a_route_is_refused() {
    let proxy = Proxy::answering()
        .admin()
        .limit("budget", "key = [\"ip\"]\nrate = \"10/h\"")
        .route(ROUTES[0])
        .route(ROUTES[1])
        .start();
    let mut admin = Connection::open(proxy.admin());
    let json = [LOCAL[0], ("content-type", "application/json")];
    let mut put = |body: &[u8]| {
        admin.request("PUT", "/api/limits/budget/keys/127.0.0.1/override", &json, body)
    };
    let refused = put(b"{\"rate\":\"4/h\"}");
    assert_eq!(refused.status, 422, "{}", refused.text());
    assert!(refused.text().contains("takes 5 tokens"), "{}", refused.text());
    assert_eq!(put(b"{\"rate\":\"5/h\"}").status, 200);
}
