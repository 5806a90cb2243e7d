//! docs/recipes.md: what a recipe says is what happens.

use std::fs;

use serde_json::{Value, json};

use super::{blocks_of, completed, path};
use crate::support::PATIENCE;
use crate::support::client::{Connection, Reply, get};
use crate::support::cluster::Cluster;
use crate::support::redis::in_both_stores;
use crate::support::tidegate::{Tidegate, program};
use crate::support::tokens::{Signer, jwks};
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

const RECIPES: &str = "docs/recipes.md";

/// The recipe with this line.
fn recipe(line: &str) -> String {
    let all = blocks_of(&fs::read_to_string(path(RECIPES)).unwrap(), "toml");
    let found = all.into_iter().find(|it| it.lines().any(|it| it == line));
    found.unwrap_or_else(|| panic!("no recipe has the line {line}"))
}

#[test]
fn each_recipe_passes_its_own_tests() {
    let text = fs::read_to_string(path(RECIPES)).unwrap();
    let all = blocks_of(&text, "toml");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proxy.toml");
    // What a recipe has beside its file.
    let plans = blocks_of(&text, "text").into_iter().find(|it| it.starts_with("# value"));
    fs::write(folder.path().join("plans.txt"), plans.unwrap()).unwrap();
    let mut tried = 0;
    for example in all.iter().filter(|it| it.contains("[[tests]]")) {
        fs::write(&file, completed(example)).unwrap();
        let output = program().arg("check").arg("--json").arg(&file).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(output.status.success(), "{report:#}\nin\n{example}");
        for test in report["tests"].as_array().unwrap() {
            assert_eq!(test["not_tried"], Value::Array(Vec::new()), "{test}\nin\n{example}");
            tried += 1;
        }
    }
    assert!(tried >= 16, "only {tried} tests were found");
}

#[test]
fn the_recipe_for_a_ceiling_does_what_it_says() {
    let (api, told, go) = Upstream::slow();
    let text = recipe("[limits.ceiling]")
        .replace("[server]\n", "[server]\nlisten = \"LISTEN\"\n")
        .replace("http://127.0.0.1:3000", &api.url())
        .replace("limit     = 200", "limit     = 1");
    let proxy = Tidegate::start(&text);
    let mut first = Connection::open(proxy.address);
    first.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    told.recv_timeout(PATIENCE).unwrap();

    let refused = get(proxy.address, "/", &[]);
    assert_eq!((refused.status, refused.text().as_str()), (503, "busy, please try again\n"));
    assert!(refused.header("retry-after").is_some());
    assert!(refused.header("ratelimit").is_some_and(|it| !it.contains("ceiling")));
    // What claims to be a WebSocket is none, unless it has the path of one.
    assert_eq!(get(proxy.address, "/", &[("upgrade", "websocket")]).status, 503);
    assert_eq!(get(proxy.address, "/ws/chat", &[]).status, 200);

    go.send(()).unwrap();
    assert_eq!(first.reply("GET").status, 200);
}

/// A running proxy with a recipe that names the API at 127.0.0.1:3000, or none.
fn started(recipe: &str, api: &Upstream) -> Tidegate {
    let text = completed(recipe).replace("http://127.0.0.1:3000", &api.url());
    Tidegate::start(&format!("[server]\nlisten = \"LISTEN\"\n{text}"))
}

fn rejected(proxy: &Tidegate, path: &str, headers: &[(&str, &str)]) -> Reply {
    let mut client = Connection::open(proxy.address);
    loop {
        let reply = client.get(path, headers);
        if reply.status != 200 {
            return reply;
        }
    }
}

#[test]
fn the_recipe_for_sdks_answers_what_they_read() {
    let api = Upstream::echoing();
    let few = recipe("[limits.day]").replace("\"60/m\"", "\"1/m\"");
    let proxy = started(&few, &api);
    let reply = rejected(&proxy, "/v1/models", &[("accept", "application/json")]);
    assert_eq!(reply.status, 429);
    assert_eq!(reply.header("content-type").as_deref(), Some("application/json"));
    let exact: u64 = reply.header("retry-after-ms").unwrap().parse().unwrap();
    assert_eq!(reply.header("retry-after"), Some(exact.div_ceil(1_000).to_string()));
    let body = reply.json();
    let message = format!("limit per-client: wait {} s", exact.div_ceil(1_000));
    assert_eq!(body["type"], "error");
    assert_eq!(body["error"]["type"], "rate_limit_error");
    assert_eq!(body["error"]["code"], 429);
    assert_eq!(body["error"]["message"], *message);
    assert_eq!(body["message"], *message);
    assert_eq!(body["__type"], "ThrottlingException");

    // Nobody sleeps for a day.
    let few = recipe("[limits.day]").replace("\"5000/d\"", "\"1/d\"");
    let proxy = started(&few, &api);
    let reply = rejected(&proxy, "/v1/models", &[]);
    assert_eq!(reply.json()["error"]["code"], 429);
    assert_eq!((reply.header("retry-after"), reply.header("retry-after-ms")), (None, None));
    assert!(reply.header("ratelimit").unwrap().contains("\"day\";r=0;t="), "{reply:?}");
}

#[test]
fn the_recipe_for_graphql_counts_what_the_server_says() {
    let api = Upstream::answering(|_| {
        let answer = String::from_utf8(ok("{\"data\":null}")).unwrap();
        answer.replacen("\r\n", "\r\nx-graphql-cost: 990\r\n", 1).into_bytes()
    });
    let proxy = started(&recipe("[limits.graphql]"), &api);
    let mut client = Connection::open(proxy.address);
    let first = client.get("/graphql", &[]);
    assert_eq!((first.status, first.header("x-graphql-cost")), (200, None));
    let reply = rejected(&proxy, "/graphql", &[]);
    assert_eq!(reply.status, 429);
    let error = reply.json()["errors"][0].clone();
    assert_eq!(error["extensions"]["code"], "RATE_LIMITED");
    assert!(error["extensions"]["retryAfterMs"].as_u64().is_some_and(|it| it > 0), "{error}");
}

/// A list of calls would count as one call.
#[test]
fn the_recipe_for_mcp_refuses_a_batch_of_an_older_client() {
    let api = Upstream::echoing();
    let text = recipe("name     = \"mcp-older\"").replace("login.example.com", "127.0.0.1:1");
    let proxy = started(&text, &api);
    let mut client = Connection::open(proxy.address);
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"research"}}"#;
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    for (method, body, status) in [
        ("POST", call, 200),
        ("POST", answer, 200),
        ("POST", &format!("[{call},{call}]"), 400),
        ("POST", &format!("[{call}]"), 400),
        ("GET", "", 200),
        ("DELETE", "", 200),
    ] {
        let fields = [("content-type", "application/json"), ("mcp-name", "search")];
        let reply = client.request(method, "/mcp", &fields, body.as_bytes());
        assert_eq!(reply.status, status, "{method} {body}");
    }
}

#[test]
fn the_429_server_needs_no_api() {
    let text = recipe("listen = \"127.0.0.1:8429\"").replace("127.0.0.1:8429", "LISTEN");
    // Its own tests hold the figures. A slow machine must not get a token back meanwhile.
    let proxy = Tidegate::start(&text.replace("\"1/s\"", "\"1/d\""));
    let ask = |path: &str, test: &str| get(proxy.address, path, &[("x-test", test)]);
    for (path, status) in [("/second", 429), ("/day", 429), ("/busy", 503)] {
        assert_eq!(ask(path, "a").text(), "ok\n", "{path}");
        let reply = ask(path, "a");
        assert_eq!(reply.status, status, "{path}");
        assert!(reply.header("retry-after").is_some(), "{path}: {reply:?}");
        assert_eq!(ask(path, "b").status, 200, "{path}: a test has buckets of its own");
    }
    let never = ask("/never", "a");
    assert_eq!((never.status, never.header("retry-after")), (429, None));
    assert_eq!(ask("/slow", "a").status, 200);
}

#[test]
fn the_recipe_for_bans_keeps_out_who_does_not_stop() {
    let api = Upstream::echoing();
    let proxy = started(&recipe("[limits.login]"), &api);
    let mut client = Connection::open(proxy.address);
    let mut seen = Vec::new();
    while seen.last() != Some(&403) {
        seen.push(client.request("POST", "/login", &[], b"").status);
        assert!(seen.len() < 10_000, "nobody is banned");
    }
    let count = |status: u16| seen.iter().filter(|it| **it == status).count();
    assert!(count(200) >= 10 && count(429) >= 20, "{seen:?}");
    let banned = client.request("POST", "/login", &[], b"");
    assert_eq!(banned.status, 403);
    let rest: u64 = banned.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=600).contains(&rest), "{rest}");
}

/// What a user, a team and an organisation may take is decided together, wherever the buckets live.
#[test]
fn the_recipe_for_three_levels_takes_from_all_or_none() {
    // Nothing waits here: what is refused takes nothing, and a refusal names each limit that refuses.
    in_both_stores(|store| three_levels(store, |what, is_so| assert!(is_so(), "{what}")));
    // In a cluster the limits that did not refuse get back what they gave, a moment later.
    let cluster = Cluster::of_masters();
    let store = format!("url = \"{}\"\ntimeout = \"20s\"", cluster.url());
    three_levels(&store, |what, is_so| wait_until(what, is_so));
}

fn three_levels(store: &str, is_seen: impl Fn(&str, &mut dyn FnMut() -> bool)) {
    let (folder, signer) = (tempfile::tempdir().unwrap(), Signer::new("a"));
    let keys = folder.path().join("keys.json");
    fs::write(&keys, jwks(&[&signer])).unwrap();
    // Nothing comes back while the test runs.
    let text = recipe("[limits.organisation]")
        .replace("https://login.example.com/.well-known/jwks.json", keys.to_str().unwrap())
        .replace("\"10/s\"", "\"2/h\"")
        .replace("\"30/s\"", "\"3/h\"")
        .replace("\"100/s\"", "\"4/h\"");
    let store = if store.is_empty() { String::new() } else { format!("[store]\n{store}\n") };
    let api = Upstream::echoing();
    let proxy = started(&format!("{store}{text}"), &api);
    let ask = |sub: &str, team: &str, org: &str| {
        let token = signer.token(&json!({
            "iss": "https://login.example.com/", "aud": "https://api.example.com",
            "sub": sub, "team": team, "org": org,
        }));
        get(proxy.address, "/v1/orders", &[("authorization", &format!("Bearer {token}"))])
    };
    let passes = |sub, team, org| {
        is_seen(&format!("{sub} of {team} passes"), &mut || ask(sub, team, org).status == 200);
    };
    let refused = |sub, team, org, levels: &[&str]| {
        is_seen(&format!("{sub} of {team} is refused by {levels:?}"), &mut || {
            let reply = ask(sub, team, org);
            assert_eq!(reply.status, 429, "{sub} {team}");
            reply.violated() == levels
        });
    };
    passes("anna", "sales", "acme");
    passes("anna", "sales", "acme");
    refused("anna", "sales", "acme", &["user"]);
    // What was refused took nothing from the team, which has one left.
    passes("ben", "sales", "acme");
    refused("ben", "sales", "acme", &["team"]);
    refused("cem", "sales", "acme", &["team"]);
    // Nor from the users and the organisation.
    passes("cem", "stock", "acme");
    refused("cem", "stock", "acme", &["organisation"]);
    refused("anna", "sales", "acme", &["user", "team", "organisation"]);
    passes("ben", "sales", "globex");

    assert_eq!(get(proxy.address, "/v1/orders", &[]).status, 401);
    let broken = get(proxy.address, "/v1/orders", &[("authorization", "Bearer a.b.c")]);
    assert_eq!(broken.status, 401);
}
