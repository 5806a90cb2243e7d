//! What a throttled client gets.

mod bodies;
mod explained;
mod jitter;

use crate::support::client::{Connection, Reply};
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;

fn header(reply: &Reply, name: &str) -> String {
    reply.header(name).unwrap_or_else(|| panic!("no {name} in {reply:?}"))
}

/// A proxy that rejects everything.
fn closed(api: &Upstream) -> Tidegate {
    Proxy::of_one_worker(api).limit("l", "rate = \"0/s\"").start()
}

#[test]
fn a_rejection_says_which_limit_and_when_to_come_back() {
    let api = Upstream::echoing();
    let proxy =
        Proxy::of_one_worker(&api).limit("per-client", "key = [\"ip\"]\nrate = \"2/h\"").start();
    let mut client = Connection::open(proxy.address);
    for remaining in [1, 0] {
        let reply = client.get("/", &[]);
        assert_eq!(reply.status, 200);
        assert_eq!(header(&reply, "ratelimit-policy"), "\"per-client\";q=2;w=3600");
        assert_eq!(header(&reply, "ratelimit"), format!("\"per-client\";r={remaining};t=3600"));
        assert_eq!(reply.header("retry-after"), None);
    }
    let reply = client.get("/", &[]);
    assert_eq!(reply.status, 429);
    let wait = header(&reply, "retry-after");
    let seconds: u64 = wait.parse().unwrap();
    assert!((1700..=1800).contains(&seconds), "{seconds}");
    assert_eq!(header(&reply, "ratelimit-policy"), "\"per-client\";q=2;w=3600");
    assert_eq!(header(&reply, "ratelimit"), format!("\"per-client\";r=0;t={wait}"));
    assert_eq!(header(&reply, "content-type"), "application/problem+json");
    assert_eq!(reply.header("connection"), None, "the connection is kept");
    let problem = reply.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert!(problem["title"].is_string());
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["per-client"]));
    assert_eq!(api.requests().len(), 2);
}

#[test]
fn the_window_is_rounded_up() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api)
        .limit("a", "rate = \"100/s\"\nburst = 250")
        .limit("b", "rate = \"1000000/s\"")
        .limit("c", "rate = \"unlimited\"")
        .start();
    let reply = Connection::open(proxy.address).get("/", &[]);
    assert_eq!(header(&reply, "ratelimit-policy"), "\"a\";q=250;w=3, \"b\";q=1000000;w=1");
}

#[test]
fn all_limits_that_refuse_are_named_in_the_routes_order() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api)
        .limit("day", "rate = \"1/d\"")
        .limit("wide", "rate = \"1000000/s\"")
        .limit("hour", "rate = \"1/h\"")
        .limit("tried", "rate = \"1/h\"\nmode = \"shadow\"")
        .start();
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/", &[]).status, 200);
    let reply = client.get("/", &[]);
    assert_eq!(reply.status, 429);
    assert_eq!(reply.json()["violated-policies"], serde_json::json!(["day", "hour"]));
    let wait: u64 = header(&reply, "retry-after").parse().unwrap();
    assert!((86_000..=86_400).contains(&wait), "the longest counts: {wait}");
    assert_eq!(
        header(&reply, "ratelimit-policy"),
        "\"day\";q=1;w=86400, \"wide\";q=1000000;w=1, \"hour\";q=1;w=3600"
    );
    let state = header(&reply, "ratelimit");
    assert!(state.starts_with(&format!("\"day\";r=0;t={wait}, \"wide\";r=")), "{state}");
    // An earlier try would be rejected again, so every limit that refuses says the same.
    assert!(state.ends_with(&format!("\"hour\";r=0;t={wait}")), "{state}");
    assert!(!state.contains("tried"), "{state}");
    assert_eq!(api.requests().len(), 1);
}

#[test]
fn where_nothing_will_ever_pass_there_is_no_retry_after() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api)
        .limit("closed", "rate = \"0/s\"")
        .limit("open", "rate = \"1000000/s\"")
        .start();
    let mut client = Connection::open(proxy.address);
    for _ in 0..2 {
        let reply = client.get("/", &[]);
        assert_eq!(reply.status, 429);
        assert_eq!(reply.header("retry-after"), None);
        assert!(header(&reply, "ratelimit-policy").starts_with("\"closed\";q=0"));
        assert!(!header(&reply, "ratelimit-policy").contains("q=0;w="));
        assert_eq!(reply.json()["violated-policies"], serde_json::json!(["closed"]));
    }
    assert!(api.requests().is_empty());
}

#[test]
fn a_cost_beyond_the_bucket_is_rejected_for_good() {
    let api = Upstream::echoing();
    let cost = "key = [\"ip\"]\nrate = \"10/h\"\ncost = { header = \"x-cost\" }\n\
                overrides = [{ key = [\"127.0.0.1\"], rate = \"5/h\" }]";
    let proxy = Proxy::of_one_worker(&api).limit("l", cost).start();
    let mut client = Connection::open(proxy.address);
    let reply = client.get("/", &[("x-cost", "6")]);
    assert_eq!((reply.status, reply.header("retry-after")), (429, None));
    assert!(reply.json()["detail"].is_string(), "{}", reply.text());
    for wrong in ["0", "11", "x", "-1", "1.5", "", "99999999999999999999"] {
        let reply = client.get("/", &[("x-cost", wrong)]);
        assert_eq!((reply.status, reply.json()["status"].as_u64()), (400, Some(400)), "{wrong}");
    }
    assert_eq!(client.get("/", &[("x-cost", "5")]).status, 200);
}

#[test]
fn the_answer_can_be_changed() {
    let api = Upstream::echoing();
    for (reject, status, kind, body) in [
        ("body = \"text\"", 429, Some("text/plain; charset=utf-8"), "too many requests"),
        ("body = \"empty\"", 429, None, ""),
        (
            "body = \"Slow down!\"\nstatus = 503",
            503,
            Some("text/plain; charset=utf-8"),
            "Slow down!",
        ),
        ("status = 420", 420, Some("application/problem+json"), "\"status\":420"),
    ] {
        let proxy = Proxy::of_one_worker(&api)
            .limit("l", "rate = \"1/d\"")
            .section(&format!("[reject]\n{reject}"))
            .start();
        let mut client = Connection::open(proxy.address);
        assert_eq!(client.get("/", &[]).status, 200);
        let reply = client.get("/", &[]);
        assert_eq!(reply.status, status, "{reject}");
        assert_eq!(reply.header("content-type").as_deref(), kind, "{reject}");
        assert!(reply.text().contains(body), "{reject}: {}", reply.text());
        assert!(!body.is_empty() || reply.body.is_empty(), "{reject}");
        assert!(reply.header("retry-after").is_some(), "{reject}");
        assert_eq!(client.get("/", &[]).status, status, "{reject}: the connection is kept");
    }
}

#[test]
fn a_limit_may_have_an_answer_of_its_own() {
    let api = Upstream::echoing();
    let own = "rate = \"1/h\"\nreject = { status = 503, body = \"empty\" }";
    let proxy =
        Proxy::of_one_worker(&api).limit("own", own).limit("other", "rate = \"2/h\"").start();
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/", &[]).status, 200);
    let reply = client.get("/", &[]);
    assert_eq!((reply.status, reply.body.len()), (503, 0));
}

#[test]
fn which_fields_are_sent_can_be_chosen() {
    let api = Upstream::echoing();
    for (headers, expected) in [
        ("[]", &[][..]),
        ("[\"retry-after\"]", &["retry-after"]),
        ("[\"ratelimit\"]", &["ratelimit-policy", "ratelimit"]),
        (
            "[\"retry-after\", \"x-ratelimit\"]",
            &["retry-after", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"],
        ),
    ] {
        let reject = format!("[reject]\nheaders = {headers}");
        let proxy =
            Proxy::of_one_worker(&api).limit("l", "rate = \"1/h\"").section(&reject).start();
        let mut client = Connection::open(proxy.address);
        let (allowed, rejected) = (client.get("/", &[]), client.get("/", &[]));
        assert_eq!((allowed.status, rejected.status), (200, 429));
        let told = |reply: &Reply| {
            let known = |name: &str| name == "retry-after" || name.contains("ratelimit");
            let names = reply.headers.iter().map(|(name, _)| name.to_ascii_lowercase());
            let mut names: Vec<_> = names.filter(|name| known(name)).collect();
            names.sort();
            names
        };
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(told(&rejected), expected, "{headers}");
        expected.retain(|name| *name != "retry-after");
        assert_eq!(told(&allowed), expected, "{headers}");
        if headers.contains("x-rate") {
            assert_eq!(header(&allowed, "x-ratelimit-limit"), "1");
            assert_eq!(header(&allowed, "x-ratelimit-remaining"), "0");
            assert_eq!(header(&rejected, "x-ratelimit-reset"), header(&rejected, "retry-after"));
        }
    }
}

#[test]
fn a_grpc_call_gets_a_status_of_grpc() {
    let api = Upstream::echoing();
    let proxy = closed(&api);
    let mut client = Connection::open(proxy.address);
    for kind in ["application/grpc", "application/grpc+proto", "application/grpc-web"] {
        let reply = client.request("POST", "/", &[("content-type", kind)], b"\0\0\0\0\0");
        assert_eq!((reply.status, reply.body.len()), (200, 0), "{kind}");
        assert_eq!(header(&reply, "grpc-status"), "8", "{kind}");
        assert!(header(&reply, "content-type").starts_with("application/grpc"), "{kind}");
        assert!(reply.header("ratelimit-policy").is_some(), "{kind}");
    }
    assert_eq!(client.request("POST", "/", &[("content-type", "text/plain")], b"").status, 429);
}

#[test]
fn a_head_request_gets_no_body() {
    let api = Upstream::echoing();
    let proxy = closed(&api);
    let mut client = Connection::open(proxy.address);
    let reply = client.request("HEAD", "/", &[], b"");
    assert_eq!(reply.status, 429);
    let length: usize = header(&reply, "content-length").parse().unwrap();
    assert_eq!(client.get("/", &[]).body.len(), length, "in step, and as a GET would say");
}

#[test]
fn errors_of_its_own_are_problems_too() {
    let api = Upstream::echoing();
    let proxy = Proxy::to(&api).route("path = \"/a\"\nmethods = [\"GET\", \"PUT\"]").start();
    let mut client = Connection::open(proxy.address);
    for (method, path, status, allow) in [
        ("GET", "/b", 404, None),
        ("POST", "/a", 405, Some(["GET", "PUT"])),
        ("GET", "/%2f", 400, None),
    ] {
        let reply = client.request(method, path, &[], b"");
        assert_eq!(reply.status, status);
        assert_eq!(header(&reply, "content-type"), "application/problem+json");
        assert_eq!(reply.json()["status"], status);
        assert_eq!(reply.json()["type"], "about:blank");
        if let Some(methods) = allow {
            let allowed = header(&reply, "allow");
            assert!(methods.iter().all(|method| allowed.contains(method)), "{allowed}");
        }
        assert_eq!(reply.header("connection"), None, "the connection is kept");
    }
}

#[test]
fn what_the_api_says_of_limits_of_its_own_stays() {
    let api = Upstream::answering(|_| {
        b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 77\r\nratelimit: \"theirs\";r=0;t=77\r\n\
          ratelimit-policy: \"theirs\";q=5;w=99\r\nx-ratelimit-limit: 5\r\n\
          x-ratelimit-remaining: 0\r\nx-ratelimit-reset: 77\r\ncontent-length: 0\r\n\r\n"
            .to_vec()
    });
    let ours = "key = []\nrate = \"9/h\"";
    for two in [false, true] {
        let proxy = Proxy::of_one_worker(&api)
            .section("[reject]\nheaders = [\"retry-after\", \"ratelimit\", \"x-ratelimit\"]")
            .limit("ours", ours);
        let proxy = if two { proxy.limit("also", ours) } else { proxy }.start();
        let reply = Connection::open(proxy.address).get("/", &[]);
        assert_eq!(header(&reply, "retry-after"), "77");
        let also = |text: &str| if two { text.to_owned() } else { String::new() };
        let state = also(", \"also\";r=8;t=3600");
        assert_eq!(
            header(&reply, "ratelimit"),
            format!("\"theirs\";r=0;t=77, \"ours\";r=8;t=3600{state}")
        );
        let policy = also(", \"also\";q=9;w=3600");
        assert_eq!(
            header(&reply, "ratelimit-policy"),
            format!("\"theirs\";q=5;w=99, \"ours\";q=9;w=3600{policy}")
        );
        let older =
            ["limit", "remaining", "reset"].map(|it| header(&reply, &format!("x-ratelimit-{it}")));
        assert_eq!(older, ["5", "0", "77"]);
    }
}
