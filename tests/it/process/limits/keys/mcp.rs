//! Limits by what a client of MCP calls: `mcp-name` and `mcp-method`, plain or in base64 (SEP-2243).

use std::fs;

use serde_json::Value;

use super::{Step, walk};
use crate::support::client::{Connection, get};
use crate::support::http2::Client;
use crate::support::proxy::Proxy;
use crate::support::tidegate::program;

/// `search`, and the Japanese for it.
const SEARCH: &str = "=?base64?c2VhcmNo?=";
const KENSAKU: &str = "=?base64?5qSc57Si?=";

const BROKEN: [&str; 4] =
    ["=?base64?c2VhcmN?=", "=?base64?%%%?=", "=?base64?//4=?=", "=?BASE64?c2VhcmNo?="];

/// Otherwise a client has two buckets for each tool.
#[test]
fn an_encoded_name_is_the_same_tool_in_keys_overrides_and_exemptions() {
    let proxy = Proxy::answering()
        .limit(
            "tool",
            "key = [\"header:mcp-method\", \"header:mcp-name\"]\nrate = \"1/h\"\n\
             exempt = { header = { mcp-name = \"ping\" } }\n\
             overrides = [{ key = [\"tools/call\", \"search\"], rate = \"2/h\" }, \
             { key = [\"=?base64?dG9vbHMvY2FsbA==?=\", \"=?base64?5qSc57Si?=\"], rate = \"3/h\" }]",
        )
        .start();
    let call = |name: &'static str| [("mcp-method", "tools/call"), ("mcp-name", name)];
    let encoded =
        |name: &'static str| [("mcp-method", "=?base64?dG9vbHMvY2FsbA==?="), ("mcp-name", name)];
    let steps: &[Step<'_>] = &[
        ("POST", "/", &call("search"), 200),
        ("POST", "/", &call(SEARCH), 200),
        ("POST", "/", &encoded("search"), 429),
        ("POST", "/", &encoded("=?base64?IHNlYXJjaA==?="), 429),
        ("POST", "/", &call(KENSAKU), 200),
        ("POST", "/", &encoded(KENSAKU), 200),
        ("POST", "/", &call("検索"), 200),
        ("POST", "/", &call("検索"), 429),
        // Decoded once: the name of this tool looks like an encoded one.
        ("POST", "/", &call("=?base64?PT9iYXNlNjQ/YzJWaGNtTm8/PQ==?="), 200),
        ("POST", "/", &call("=?base64?PT9iYXNlNjQ/YzJWaGNtTm8/PQ==?="), 429),
        ("POST", "/", &call("other"), 200),
        ("POST", "/", &call("other"), 429),
        ("POST", "/", &call("ping"), 200),
        ("POST", "/", &call("=?base64?cGluZw==?="), 200),
    ];
    walk(proxy.address, steps);
    let mut over_http2 = Client::open(proxy.address);
    assert_eq!(over_http2.get("/", &call(SEARCH)).status, 429);
    for broken in BROKEN {
        for reply in [get(proxy.address, "/", &call(broken)), over_http2.get("/", &call(broken))] {
            let detail = reply.json()["detail"].take();
            assert_eq!(reply.status, 400, "{broken}");
            assert_eq!(detail, "the base64 in the header `mcp-name` cannot be decoded", "{broken}");
        }
        let headers = [("mcp-method", broken), ("mcp-name", "search")];
        assert_eq!(get(proxy.address, "/", &headers).status, 400, "{broken}");
    }
    assert_eq!(
        get(proxy.address, "/", &[("mcp-method", SEARCH), ("mcp-name", "a"), ("mcp-name", "b")])
            .status,
        400
    );
}

/// A route that reads another name than the API is a way around its limits.
#[test]
fn an_encoded_name_takes_the_route_of_its_tool_and_a_broken_one_none() {
    let proxy = Proxy::answering()
        .section("[decide]\nlisten = \"LISTEN\"")
        .limits("[limits.dear]\nkey = []\nrate = \"1/h\"\n")
        .route("path = \"/mcp\"")
        .route("path = \"/mcp\"\nheaders = { mcp-name = \"search\" }\nlimits = [\"dear\"]")
        .route("path = \"/other\"")
        .start();
    let name = |name: &'static str| [("mcp-name", name)];
    let steps: &[Step<'_>] = &[
        ("POST", "/mcp", &name(SEARCH), 200),
        ("POST", "/mcp", &name("search"), 429),
        ("POST", "/mcp", &name(SEARCH), 429),
        ("POST", "/mcp", &name(KENSAKU), 200),
        ("POST", "/mcp", &[], 200),
        ("POST", "/mcp", &name(BROKEN[0]), 400),
        ("POST", "/mcp", &name(BROKEN[1]), 400),
        ("POST", "/mcp", &name(BROKEN[2]), 400),
        ("POST", "/mcp", &name(BROKEN[3]), 400),
        ("POST", "/mcp", &[("mcp-method", BROKEN[0])], 200),
    ];
    walk(proxy.address, steps);
    let line = proxy.log.wait("listening", |line| line["setting"] == "decide.listen");
    let mut caller = Connection::open(line["address"].as_str().unwrap().parse().unwrap());
    for (name, decision) in [(SEARCH, "rejected"), ("fetch", "allowed"), (BROKEN[0], "refused")] {
        let asked = serde_json::json!({ "path": "/mcp", "headers": { "mcp-name": name } });
        let reply = caller.request("POST", "/check", &[], asked.to_string().as_bytes());
        assert_eq!(reply.json()["decision"], decision, "{name}");
    }
}

#[test]
fn a_limit_in_shadow_refuses_no_name() {
    let limit = "key = [\"header:mcp-name\"]\nrate = \"1/h\"\nmode = \"shadow\"";
    let proxy = Proxy::answering().limit("tried", limit).start();
    assert_eq!(get(proxy.address, "/", &[("mcp-name", BROKEN[0])]).status, 200);
    let line = proxy.log.wait("throttled", |_| true);
    assert_eq!((&line["decision"], &line["reason"]), (&"shadow".into(), &"bad_key".into()));
}

#[test]
fn explain_and_replay_read_the_same_name() {
    let file = Proxy::answering()
        .limit("tool", "key = [\"header:mcp-name\"]\nrate = \"1/h\"")
        .text()
        .replace("LISTEN", "127.0.0.1:1");
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("proxy.toml"), file).unwrap();
    let told = |arguments: &[&str]| {
        let output = program().args(arguments).current_dir(folder.path()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let explain = |name: &str| {
        told(&["explain", "POST /", "--plain", "--json", "--header", &format!("mcp-name: {name}")])
    };
    assert!(explain(SEARCH).contains("\"search\""), "{}", explain(SEARCH));
    assert_eq!(explain(SEARCH), explain("search"));
    assert!(explain(BROKEN[0]).contains("400"), "{}", explain(BROKEN[0]));
    // A line of Caddy.
    let line = |second: u32, name: &str| {
        format!(
            "{{\"ts\":{}.5,\"msg\":\"handled request\",\"request\":{{\"remote_ip\":\"203.0.113.7\",\"client_ip\":\"203.0.113.7\",\
             \"proto\":\"HTTP/1.1\",\"method\":\"POST\",\"host\":\"a\",\"uri\":\"/\",\"headers\":{{\"Mcp-Name\":[\"{name}\"]}}}},\
             \"duration\":0.001,\"size\":1,\"status\":200}}\n",
            1_646_861_401 + second
        )
    };
    let log = [line(0, "search"), line(1, SEARCH), line(2, "fetch"), line(3, SEARCH)].concat();
    fs::write(folder.path().join("access.log"), log).unwrap();
    let report: Value = serde_json::from_str(&told(&["replay", "access.log", "--json"])).unwrap();
    assert_eq!(report["result"]["limits"][0]["rejected"], 2, "{report}");
}
