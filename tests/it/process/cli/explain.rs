//! `tidegate explain`.

use serde_json::Value;

use super::{folder, told};
use crate::support::client::get;
use crate::support::proxy::Proxy;

/// Everything that `explain` can say, in one file.
const MANY: &str = "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n\
    [upstreams.api]\nservers = [\"http://127.0.0.1:3000\"]\n\
    [store]\nurl = \"redis://127.0.0.1:6379\"\n\
    [limits.client]\nkey = [\"ip\"]\nrate = \"100/s\"\nexempt = { ip = [\"10.0.0.0/8\"] }\n\
    [limits.user]\nkey = [\"header:x-user\", \"param:id\"]\nrate = \"5/m\"\n\
    cost = { header = \"x-cost\", max = 4 }\n\
    overrides = [{ key = [\"vip\", \"*\"], rate = \"unlimited\" }, \
    { key = [\"eve\", \"*\"], rate = \"0/s\" }]\n\
    [limits.try]\nkey = [\"cookie:sid\"]\nmissing = \"skip\"\nrate = \"1/s\"\nmode = \"shadow\"\n\
    [limits.told]\nkey = [\"cookie:lid\"]\nmissing = \"skip\"\nrate = \"1/s\"\nmode = \"mark\"\n\
    [limits.all]\nrate = \"1000/s\"\nscope = \"node\"\n\
    [[routes]]\nname = \"user\"\npath = \"/users/{id}\"\nmethods = [\"GET\", \"PUT\"]\n\
    upstream = \"api\"\nrewrite = \"/v2/{id}\"\nlimits = [\"client\", \"user\", \"try\", \"told\", \"all\"]\n\
    [[routes]]\nname = \"beta\"\npath = \"/users/{id}\"\nmethods = [\"GET\"]\n\
    headers = { x-beta = \"1\" }\nrespond = { status = 204 }\n\
    [[routes]]\nname = \"rest\"\npath = \"/users/{*rest}\"\nupstream = \"api\"\n";

#[test]
fn explain_says_which_and_why() {
    let folder = folder(Some(MANY));
    let explain = |arguments: &[&str]| {
        let (code, out, errors) = told(folder.path(), &[&["explain"], arguments].concat());
        assert_eq!((code, errors.as_str()), (0, ""), "{arguments:?}");
        // One space is as good as many.
        out.lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
            .join("\n")
    };
    let has = |text: &str, parts: &[&str]| {
        for part in parts {
            assert!(text.contains(part), "`{part}` in:\n{text}");
        }
    };
    let text = explain(&["GET /users/%34%32?q=1", "--header", "x-user: ann"]);
    has(
        &text,
        &[
            "request GET /users/42 (host localhost)",
            "client 127.0.0.1: a trusted proxy, and there is no x-forwarded-for",
            "route user",
            "upstream api (http://127.0.0.1:3000)",
            "gets /v2/42",
            "why path /users/{id} fits, with id = 42",
            "methods GET, PUT too",
            "beta is tried first, and requires methods GET and headers x-beta",
            "rest has such a path too, and is less specific",
            "limit client: 100/s, burst 100",
            "counted by ip: 127.0.0.1",
            "in Redis as tidegate:{127.0.0.1}:client",
            "limit user: 5/m, burst 5",
            "counted by header:x-user and param:id: SZFeDX1LQC4wF9AQvBwOgw|42 (hashed)",
            "in Redis as tidegate:{SZFeDX1LQC4wF9AQvBwOgw|42}:user",
            "try does not apply: a part of its key is missing",
            "limit all: 1000/s, burst 1000",
            "one bucket for all requests",
            "in each process by itself",
        ],
    );
    assert!(!text.contains("ann"), "a secret stays one");
    let text = explain(&["/users/7", "--header", "x-forwarded-for: 6.6.6.6, 10.1.2.3"]);
    has(
        &text,
        &[
            "client 10.1.2.3: from x-forwarded-for, because 127.0.0.1 is a trusted proxy",
            "client does not apply: the request is exempt",
            "without header:x-user it shares that bucket with all such requests",
        ],
    );
    let text = explain(&["/users/7", "--ip", "192.0.2.1", "--header", "x-forwarded-for: 6.6.6.6"]);
    has(&text, &["client 192.0.2.1: x-forwarded-for is not believed"]);
    has(&explain(&["/users/7", "-H", "x-user: vip"]), &["user: unlimited, an override"]);
    // A trusted proxy passes on what its client names in `connection`. A stranger's field does not reach the API.
    let named = ["/users/7", "-H", "x-user: vip", "-H", "connection: x-user"];
    has(&explain(&named), &["user: unlimited, an override"]);
    has(
        &explain(&[&named[..], &["--ip", "192.0.2.1"]].concat()),
        &["x-user is left out", "without header:x-user"],
    );
    has(&explain(&["/users/7", "-H", "x-user: eve"]), &["user: nothing passes, an override"]);
    has(&explain(&["/users/7", "-H", "x-cost: 3"]), &["costs 3"]);
    has(&explain(&["/users/7", "-H", "x-cost: 5"]), &["user refuses it with 400", "`x-cost`"]);
    has(&explain(&["/users/7", "-H", "x-user: a", "-H", "x-user: b"]), &["400", "`x-user`"]);
    has(&explain(&["/users/7", "-H", "cookie: sid=1"]), &["try (shadow: never rejects): 1/s"]);
    let mark = "told (mark: never rejects, and tells the API): 1/s";
    has(&explain(&["/users/7", "-H", "cookie: lid=1"]), &[mark]);
    has(
        &explain(&["/users/7", "-H", "x-beta: 1"]),
        &["route beta", "204 from the file", "none: every"],
    );
    has(&explain(&["DELETE /users/7"]), &["route rest"]);
    has(&explain(&["/elsewhere"]), &["none has this path", "answer 404"]);
    has(&explain(&["/users/a%2Fb"]), &["answer 400"]);
    has(&explain(&["TRACE /users/7"]), &["answer 405: TRACE is never passed on"]);
    has(&explain(&["http://api.test:81/users/7#part"]), &["GET /users/7 (host api.test)"]);
    has(&explain(&["https://[::1]/users/7"]), &["(host [::1])"]);
}

#[test]
fn explain_has_the_servers_limits_also_where_no_route_is() {
    const FILE: &str = "[server]\nlimits = [\"all\"]\n[limits.all]\nkey = [\"ip\"]\nrate = \"5/s\"\n\
        [[routes]]\npath = \"/a\"\nmethods = [\"GET\"]\nrespond = { status = 200 }\n";
    let folder = folder(Some(FILE));
    for (request, answer) in [
        ("GET /a", "200 from the file, if the limits allow"),
        ("POST /a", "405 with allow: GET, if the server's limits allow"),
        ("GET /b", "404, if the server's limits allow"),
    ] {
        let (code, out, _) = told(folder.path(), &["explain", request]);
        assert_eq!(code, 0);
        assert!(out.contains(answer), "{request}:\n{out}");
        assert!(out.contains("all: 5/s"), "{request}:\n{out}");
    }
}

#[test]
fn explain_says_what_is_different_where_another_proxy_asks() {
    const FILE: &str = "[server]\nlisten = []\nlimits = [\"all\"]\n[decide]\nlisten = \"127.0.0.1:9091\"\n\
        [limits.all]\nkey = [\"ip\"]\nrate = \"5/s\"\n\
        [limits.slots]\nalgorithm = \"concurrency\"\nlimit = 9\n\
        [limits.failed]\nrate = \"5/s\"\ncount_when = { status = [\"401\"] }\n\
        [[routes]]\npath = \"/a\"\n[[routes]]\npath = \"/b\"\nlimits = [\"slots\", \"failed\"]\n";
    let folder = folder(Some(FILE));
    for (request, expected) in [
        ("GET /a", "\ncalls     meet the same limits\n"),
        ("GET /b", "\ncalls     meet the same limits; /check alone meets slots, failed\n"),
        ("GET /c", "\ncalls     meet the same limits; without a route it may go\n"),
    ] {
        let (code, out, _) = told(folder.path(), &["explain", request]);
        assert_eq!(code, 0);
        assert!(out.contains(expected), "{request}:\n{out}");
    }
    let (_, out, _) = told(folder.path(), &["explain", "GET /b/../a"]);
    assert!(out.contains("400: the path has a dot segment"), "{out}");
    let both = FILE.replace("listen = []", "listen = \"127.0.0.1:0\"");
    let both = both.replace("path = \"/", "respond = { status = 200 }\npath = \"/");
    std::fs::write(folder.path().join("proxy.toml"), both).unwrap();
    let (_, out, _) = told(folder.path(), &["explain", "GET /b/../a"]);
    assert!(
        out.contains("where another proxy forwards it, 400: the path has a dot segment"),
        "{out}"
    );
    std::fs::write(folder.path().join("proxy.toml"), MANY).unwrap();
    let (_, out, _) = told(folder.path(), &["explain", "GET /users/7"]);
    assert!(!out.contains("calls"), "nobody asks here:\n{out}");
}

/// A regression: limits were said to count a request that is answered with 400, and the status was null.
#[test]
fn explain_knows_that_no_limit_counts_a_refused_request() {
    const FILE: &str = "[limits.client]\nkey = [\"ip\"]\nrate = \"5/s\"\n\
        [limits.user]\nkey = [\"header:x-user\"]\nmissing = \"reject\"\nrate = \"5/s\"\n\
        [limits.try]\nkey = [\"cookie:sid\"]\nmissing = \"reject\"\nrate = \"5/s\"\nmode = \"shadow\"\n\
        [limits.paid]\nkey = [\"header:x-plan\", \"ip\"]\nrate = \"5/s\"\ncost = { header = \"x-cost\" }\n\
        overrides = [{ key = [\"all\", \"*\"], rate = \"unlimited\" }]\n\
        [[routes]]\npath = \"/\"\nrespond = { status = 204 }\n\
        limits = [\"client\", \"user\", \"try\", \"paid\"]\n";
    let folder = folder(Some(FILE));
    let explain = |headers: &[&str]| -> (Value, String) {
        let headers: Vec<_> = headers.iter().flat_map(|header| ["-H", header]).collect();
        let (_, json, _) =
            told(folder.path(), &[&["explain", "/", "--json"], &headers[..]].concat());
        let (_, text, _) = told(folder.path(), &[&["explain", "/"], &headers[..]].concat());
        (serde_json::from_str(&json).unwrap(), text)
    };
    let of_each = |json: &Value, fact: &str| -> Vec<Value> {
        json["limits"].as_array().unwrap().iter().map(|limit| limit[fact].clone()).collect()
    };
    for (headers, refuses) in [
        (&["x-cost: 2"][..], [false, true, false, false]),
        (&["x-user: ann", "x-cost: 0"], [false, false, false, true]),
        (&["x-user: ann", "x-plan: free", "x-cost: 0"], [false, false, false, true]),
    ] {
        let (json, text) = explain(headers);
        assert_eq!(json["status"], 400, "{json}");
        assert_eq!(of_each(&json, "applies"), [false; 4], "{json}");
        let told: Vec<_> = of_each(&json, "refuses").iter().map(Value::is_string).collect();
        assert_eq!(told, refuses, "a limit in shadow refuses nothing: {json}");
        assert!(text.contains("answer    400: "), "{text}");
    }
    let (json, text) = explain(&["x-user: ann"]);
    assert_eq!(json["status"], 204, "{json}");
    assert_eq!(of_each(&json, "applies"), [true, true, false, true], "{json}");
    let (open, _) = explain(&["x-user: ann", "x-plan: all", "x-cost: 0"]);
    assert_eq!(open["status"], 204, "where everything passes, nobody reads the cost: {open}");
    // The key as the log has it.
    assert_eq!(of_each(&json, "key")[3], "-|127.0.0.1", "{json}");
    assert!(text.contains("counted by header:x-plan and ip: -|127.0.0.1"), "{text}");
}

/// A regression: an address was called hashed, because another alternative of its part is.
#[test]
fn explain_calls_hashed_what_is_hashed() {
    const FILE: &str = "[upstreams.api]\nservers = [\"http://127.0.0.1:3000\"]\n\
        [limits.client]\nkey = [\"header:x-user | ip\"]\nrate = \"5/s\"\n\
        [[routes]]\npath = \"/{*rest}\"\nupstream = \"api\"\nlimits = [\"client\"]\n";
    let folder = folder(Some(FILE));
    let (_, by_address, _) = told(folder.path(), &["explain", "GET /"]);
    assert!(by_address.contains("header:x-user | ip: %2=127.0.0.1\n"), "{by_address}");
    let (_, by_user, _) = told(folder.path(), &["explain", "GET /", "--header", "x-user: ann"]);
    assert!(by_user.contains("header:x-user | ip: SZFeDX1LQC4wF9AQvBwOgw (hashed)\n"), "{by_user}");
}

#[test]
fn explain_prints_the_name_that_stands_in_redis() {
    let redis = crate::support::redis::RedisServer::start();
    let proxy = Proxy::answering()
        .store(&redis.fields())
        .store("prefix = \"tg\"")
        .limit("user", "key = [\"header:x-user\", \"path\"]\nrate = \"5/h\"")
        .start();
    assert_eq!(get(proxy.address, "/a%7Cb", &[("x-user", "ann")]).status, 200);
    let keys: Vec<String> = redis.run(&["KEYS", "tg:{*"]);
    let (_, out, _) = told(proxy.folder(), &["explain", "/a%7Cb", "--header", "x-user: ann"]);
    assert_eq!(keys.len(), 1);
    assert!(out.contains(&keys[0]), "{} in:\n{out}", keys[0]);
}

#[test]
fn explain_tells_who_waits_and_what_is_tried() {
    const FILE: &str = "[store]\nurl = \"redis://127.0.0.1:1\"\n\
        [limits.leaky]\nalgorithm = \"leaky-bucket\"\nrate = \"5/s\"\nqueue = 7\n\
        [limits.late]\nkey = [\"header:x-user\"]\nrate = \"5/s\"\nwait = \"2s\"\nmax_waiting = 9\n\
        candidate = { rate = \"3/s\" }\noverrides = [{ key = [\"ann\"], rate = \"9/s\" }]\n\
        [limits.open]\nrate = \"unlimited\"\ncandidate = { rate = \"4/s\" }\n\
        [[routes]]\npath = \"/\"\nrespond = { status = 200 }\nlimits = [\"leaky\", \"late\", \"open\"]\n";
    let folder = folder(Some(FILE));
    let explain = |user: &str| {
        let user = format!("x-user: {user}");
        told(folder.path(), &["explain", "/", "--header", &user]).1
    };
    let text = explain("bob");
    for part in [
        "leaky: 5/s at even spacing, queue 7",
        "holds requests until their turn comes, 1000 at once",
        "holds requests for up to 2s, 9 at once",
        "tries 3/s, burst 3 in shadow",
        ":late:candidate",
        "open: unlimited",
        "tries 4/s, burst 4 in shadow",
        "tidegate:open:candidate",
    ] {
        assert!(text.contains(part), "`{part}` in:\n{text}");
    }
    let text = explain("ann");
    assert!(text.contains("9/s, burst 9, an override") && !text.contains("tries 3/s"), "{text}");
}

#[test]
fn the_key_in_redis_is_that_of_the_limit_and_not_of_its_candidate() {
    let file = "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"redis://127.0.0.1:6379\"\n\
        [limits.few]\nrate = \"5/m\"\ncandidate = { rate = \"3/m\" }\n\
        [[routes]]\npath = \"/\"\nrespond = { status = 204 }\nlimits = [\"few\"]\n";
    let explained = |file: &str| {
        let folder = folder(Some(file));
        let (code, out, errors) = told(folder.path(), &["explain", "GET /", "--json"]);
        assert_eq!((code, errors.as_str()), (0, ""));
        serde_json::from_str::<Value>(&out).unwrap()["limits"][0]["redis_key"].clone()
    };
    let key = explained(file);
    assert!(key.is_string());
    assert_eq!(key, explained(&file.replace("candidate = { rate = \"3/m\" }\n", "")));
}

#[test]
fn explain_says_the_plan_and_what_it_gives() {
    const FILE: &str = "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n\
        [plans]\nby = \"header:x-plan\"\ndefault = \"free\"\n\
        [limits.a]\nkey = [\"header:x-user\"]\nrate = \"2/h\"\n\
        plans = { free = \"3/h\", pro = { rate = \"5/h\", burst = 9 } }\n\
        overrides = [{ key = [\"vip\"], rate = \"7/h\" }]\n\
        [limits.b]\nkey = [\"header:x-user\"]\nrate = \"6/h\"\nplans = { team = \"8/h\" }\n\
        [[routes]]\npath = \"/none\"\nrespond = {}\n\
        [[routes]]\npath = \"/{*rest}\"\nrespond = {}\nlimits = [\"a\", \"b\"]\n\
        [[tests]]\nsend = \"GET /\"\nheaders = { x-user = \"c\", x-plan = \"pro\" }\ntimes = 10\n\
        expect = { allowed = 6, rejected = 4, limit = \"b\" }\n\
        [[tests]]\nsend = \"GET /\"\nheaders = { x-user = \"d\" }\ntimes = 4\n\
        expect = { allowed = 3, rejected = 1, limit = \"a\" }\n";
    let folder = folder(Some(FILE));
    let explain = |path: &str, user: &str, plan: &str| {
        let (user, plan) = (format!("x-user: {user}"), format!("x-plan: {plan}"));
        let mut arguments = vec!["explain", path, "--header", &user];
        if plan != "x-plan: " {
            arguments.extend(["--header", &plan]);
        }
        let (_, text, _) = told(folder.path(), &arguments);
        let (_, facts, _) = told(folder.path(), &[&arguments[..], &["--json"]].concat());
        (text, serde_json::from_str::<Value>(&facts).unwrap())
    };
    let (text, facts) = explain("/", "c", "pro");
    assert!(text.contains("plan      pro: from header:x-plan\n"), "{text}");
    assert!(text.contains("limit     a: 5/h, burst 9, the plan pro\n"), "{text}");
    assert!(text.contains("limit     b: 6/h, burst 6\n"), "{text}");
    let plan = &facts["plan"];
    assert_eq!((&plan["name"], &plan["default"]), (&"pro".into(), &false.into()), "{plan}");
    assert_eq!((plan["of"].as_str().unwrap().len(), &plan["customer"]), (22, &Value::Null));
    let plans = |facts: &Value| [0, 1].map(|limit| facts["limits"][limit]["plan"].clone());
    assert_eq!(plans(&facts), [Value::from("pro"), Value::Null]);
    let (text, facts) = explain("/", "c", "gold");
    assert!(
        text.contains("free, the default: no limit names the plan in header:x-plan\n"),
        "{text}"
    );
    assert!(!text.contains("gold"), "a value of a header: {text}");
    assert_eq!(plans(&facts), [Value::from("free"), Value::Null]);
    let (text, facts) = explain("/", "vip", "pro");
    assert!(text.contains("limit     a: 7/h, burst 7, an override for this key\n"), "{text}");
    assert_eq!(plans(&facts), [Value::Null, Value::Null]);
    let (text, facts) = explain("/none", "c", "pro");
    assert!(!text.contains("plan") && facts["plan"].is_null(), "no limit has plans: {text}");
    assert_eq!(told(folder.path(), &["check"]).0, 0, "{:?}", told(folder.path(), &["check"]));
}

#[test]
fn a_body_is_explained_as_it_is_read() {
    let file = "[limits.login]\nkey = [\"body:user\"]\nrate = \"5/m\"\nlog_keys = \"plain\"\n\
                [limits.hidden]\nkey = [\"body:user\"]\nrate = \"5/m\"\n\
                [[routes]]\npath = \"/login\"\nrespond = { status = 204 }\nlimits = [\"login\", \"hidden\"]\n";
    let folder = folder(Some(file));
    for (more, says) in [
        (&["--body", "{\"user\":\"ann\"}"][..], "counted by body:user: ann\n"),
        (&["--body", "user=ann"], "counted by body:user: SZFeDX1LQC4wF9AQvBwOgw (hashed)"),
        (&["--body", "user=ann", "--plain"], "counted by body:user: ann\n"),
        (&[], "without body:user it shares"),
        (
            &["--body", "user=ann&user=bob"],
            "login refuses it with 400: the field `user` of the body is there twice",
        ),
        (
            &["--body", "user=ann", "-H", "content-type: application/json"],
            "the field `user` of the body cannot be read",
        ),
        (
            &["--body", "user=ann", "-H", "content-type: text/plain"],
            "body      has no fields: it is not JSON or a form, or it is coded or longer than 64 KiB\n",
        ),
    ] {
        let (code, out, _) = told(folder.path(), &[&["explain", "POST /login"], more].concat());
        assert!(code == 0 && out.contains(says), "{more:?}: `{says}` in:\n{out}");
    }
}

#[test]
fn explain_says_when_a_key_is_near_its_limit() {
    const FILE: &str = "[limits.a]\nkey = [\"ip\"]\nrate = \"5/s\"\nnear = \"80%\"\n\
        [[routes]]\npath = \"/\"\nrespond = { status = 204 }\nlimits = [\"a\"]\n";
    let folder = folder(Some(FILE));
    let (code, out, _) = told(folder.path(), &["explain", "/"]);
    assert_eq!(code, 0);
    assert!(out.contains("logs once that the key has used 80 % of its bucket"), "{out}");
}
