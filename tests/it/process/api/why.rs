//! `/api/why` and `tidegate why`.

use serde_json::{Value, json};

use super::{json as read, limited, send};
use crate::support::client::{Connection, Reply, get};
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::tidegate::{Tidegate, program};

fn rejected(proxy: &Tidegate, fields: &[(&str, &str)]) -> Reply {
    let reply = get(proxy.address, "/a?secret=1", fields);
    assert_eq!(reply.status, 429);
    reply
}

fn id(reply: &Reply) -> String {
    reply.json()["instance"].as_str().unwrap().replace("urn:uuid:", "")
}

fn why(proxy: &Tidegate, id: &str) -> Value {
    read(proxy.admin(), &format!("/api/why/{id}"))
}

#[test]
fn a_rejection_is_explained_by_its_id_and_by_its_request_id() {
    let proxy = Proxy::answering()
        .admin()
        .server("request_id = \"x-request-id\"\ntrusted_proxies = [\"127.0.0.1\"]")
        .section("[plans]\nby = \"header:x-plan\"")
        .limit("key", "key = [\"header:x-api-key | ip\"]\nrate = \"3/h\"\ncost = { header = \"x-cost\" }\nplans = { small = \"4/h\", pro = \"60/h\", team = \"600/h\" }")
        .start();
    let fields = [
        ("x-api-key", "s3cret"),
        ("x-cost", "2"),
        ("x-request-id", "quoted"),
        ("x-forwarded-for", "203.0.113.7"),
    ];
    assert_eq!(get(proxy.address, "/a", &fields).status, 200);
    let reply = rejected(&proxy, &fields);
    let told = why(&proxy, &id(&reply));
    assert!(!told.to_string().contains("s3cret"), "{told}");
    let expected = json!({
        "id": id(&reply), "request_id": "quoted", "limit": "key", "route": "/{*rest}", "method": "GET", "path": "/a",
        "client": "203.0.113.7", "status": 429, "name": null, "plan": null, "from": "header:x-api-key",
        "rate": "3/h", "burst": 3, "cost": 2, "remaining": 1, "store": "process",
        "routes": [{ "method": "GET", "route": "/{*rest}", "count": 1 }],
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&told[name], value, "{name}: {told}");
    }
    let line = proxy.log.wait("throttled", |_| true);
    assert_eq!((&line["key"], &line["id"]), (&told["key"], &told["id"]));
    let wait = told["retry_after_ms"].as_u64().unwrap();
    assert!((1_190_000..=1_200_000).contains(&wait), "{told}");
    assert_eq!(
        told["would_pass"],
        json!([{ "wait_ms": wait }, { "burst": 4 }, { "plan": "small" }, { "cost": 1 }])
    );
    let figures = &told["figures"];
    let text = std::fs::read_to_string(proxy.config_file()).unwrap();
    let line = text.lines().position(|line| line.starts_with("[limits.key]")).unwrap() + 1;
    assert_eq!((&figures["of"], &figures["line"]), (&json!("file"), &json!(line)), "{figures}");
    assert!(figures["file"].as_str().unwrap().ends_with(".toml"));
    assert_eq!((&told["series"]["rejected"], &told["series"]["early"]), (&json!(1), &json!(0)));
    assert_eq!(told["now"]["remaining"], 1);
    assert!(told["time"].as_str().unwrap() >= told["config_loaded"].as_str().unwrap());
    // The newest of those with this request ID.
    let second = id(&rejected(&proxy, &fields));
    assert_eq!(why(&proxy, "quoted")["id"], second);
    let series = why(&proxy, &second)["series"].clone();
    assert_eq!((&series["rejected"], &series["early"]), (&json!(2), &json!(1)));
    let url = format!("http://{}", proxy.admin());
    let told = program().args(["why", &second, "--admin", &url]).output().unwrap();
    let text = String::from_utf8(told.stdout).unwrap();
    assert_eq!((told.status.code(), text.lines().count()), (Some(0), 12), "{text}");
    let hash = why(&proxy, &second)["key"].as_str().unwrap().to_owned();
    let lines = [
        ("rejected    20", " UTC with status 429, request ID quoted"),
        ("id          ", &second),
        ("request     GET /a from 203.0.113.7, route /{*rest}", ""),
        ("limit       key: 3 an hour, burst 3", ""),
        ("figures     of the file: /", &format!(".toml, line {line}, file in force since 20")),
        ("key         ", &format!("{hash}, from header:x-api-key")),
        ("bucket      1 left, the request costs 2, decided by the process", ""),
        ("told        try again in ", "m"),
        (
            "would pass  after ",
            "; or with a burst of 4; or under the plan small; or at a cost of 1",
        ),
        (
            "series      since 20",
            " UTC, 2 rejections, 1 of them came before the time they were told",
        ),
        ("routes      2 GET /{*rest}", ""),
        ("now         1 of 3 left, full again in ", "m"),
    ];
    for (line, (begin, part)) in text.lines().zip(lines) {
        assert!(line.starts_with(begin) && line.contains(part), "{begin} {part}: {line}");
    }
    let told = program().args(["why", &second, "--json", "--admin", &url]).output().unwrap();
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(told["id"], second);
}

#[test]
fn an_unknown_id_is_said_to_be_unknown() {
    let proxy = limited().start();
    let url = format!("http://{}", proxy.admin());
    for unknown in ["01890a5d-ac96-774b-bcce-b302099a8057", "nonsense", "a%2Fb"] {
        let reply = get(proxy.admin(), &format!("/api/why/{unknown}"), &[("host", "localhost")]);
        assert_eq!(reply.status, 404);
        assert!(reply.json()["detail"].as_str().unwrap().contains("since 20"), "{}", reply.text());
        let told = program().args(["why", unknown, "--admin", &url]).output().unwrap();
        assert_eq!(told.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&told.stderr).contains("since 20"));
    }
    for (query, status, says) in [
        ("", 422, "ask for /api/why/ID"),
        ("?limit=gone&key=a", 404, "there is no limit `gone`: there are "),
        ("?limit=user&key=a%7Cb", 422, "KEY has 2 of 1 values"),
        ("?limit=user&key=ann", 422, "this is no hash"),
    ] {
        let reply = get(proxy.admin(), &format!("/api/why{query}"), &[("host", "localhost")]);
        let detail = reply.json()["detail"].as_str().unwrap().to_owned();
        assert!(reply.status == status && detail.contains(says), "{query}: {detail}");
    }
    send(&proxy, "ann", 3);
    for (key, count) in [("ann", 1), ("bob", 0)] {
        let told = read(proxy.admin(), &format!("/api/why?limit=user&key={key}&plain"));
        assert_eq!(told["rejections"].as_array().unwrap().len(), count, "{told}");
        assert!(told["since"].as_str().unwrap().starts_with("20"), "{told}");
    }
}

#[test]
fn a_flood_of_one_key_does_not_wash_out_the_others() {
    let proxy = limited().section("[log]\nkeys = \"plain\"").start();
    send(&proxy, "b", 3);
    send(&proxy, "a", 130);
    let of = |key: &str| {
        read(proxy.admin(), &format!("/api/why?limit=user&key={key}"))["rejections"].clone()
    };
    let flood = of("a");
    assert_eq!(flood.as_array().unwrap().len(), 50);
    let ids: Vec<_> =
        flood.as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap().to_owned()).collect();
    let times: Vec<_> =
        flood.as_array().unwrap().iter().map(|it| it["time"].as_str().unwrap()).collect();
    assert!(times.is_sorted_by(|one, other| one >= other), "the newest first: {times:?}");
    assert_eq!(of("b").as_array().unwrap().len(), 1);
    assert_eq!(of("c"), json!([]));
    let told = why(&proxy, &ids[0]);
    assert_eq!((&told["series"]["rejected"], &told["series"]["early"]), (&json!(128), &json!(127)));
    assert_eq!(told["routes"], json!([{ "method": "GET", "route": "/{*rest}", "count": 50 }]));
}

/// A smaller request of the key passes in between.
#[test]
fn a_series_ends_when_a_request_of_its_key_passes() {
    let proxy = Proxy::answering()
        .admin()
        .limit("l", "key = [\"header:x-user\"]\nrate = \"3/h\"\ncost = { header = \"x-cost\" }")
        .start();
    let ask =
        |cost: &str| Connection::open(proxy.address).get("/", &[("x-user", "a"), ("x-cost", cost)]);
    assert_eq!(ask("2").status, 200);
    let first = id(&ask("3"));
    assert_eq!(ask("3").status, 429);
    assert_eq!(why(&proxy, &first)["series"]["rejected"], 2);
    assert_eq!(ask("1").status, 200);
    let told = why(&proxy, &first)["series"].clone();
    assert_eq!((&told["rejected"], &told["since"]), (&json!(0), &Value::Null));
    assert_eq!(ask("1").status, 429);
    assert_eq!(why(&proxy, &first)["series"]["rejected"], 1);
}

#[test]
fn what_helps_alone_is_listed() {
    let proxy = Proxy::answering()
        .admin()
        .limit("hour", "key = []\nrate = \"1/h\"")
        .limit("day", "key = []\nrate = \"1/d\"")
        .start();
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
    let told = why(&proxy, &id(&rejected(&proxy, &[])));
    let changes = told["would_pass"].as_array().unwrap();
    assert_eq!(changes.len(), 1, "{told}");
    assert!((86_000_000..=86_400_000).contains(&changes[0]["wait_ms"].as_u64().unwrap()));
    let never = Proxy::answering().admin().limit("l", "key = []\nrate = \"0/s\"").start();
    let told = why(&never, &id(&rejected(&never, &[])));
    assert_eq!((&told["would_pass"], &told["retry_after_ms"]), (&json!([]), &Value::Null));
}

#[test]
fn an_override_and_a_ban_say_that_they_decided() {
    let proxy = Proxy::answering()
        .admin()
        .limit("l", "key = [\"ip\"]\nrate = \"1000/h\"\nban = { after = 2, within = \"1m\", for = \"10m\" }")
        .start();
    let set = |rate: &str| {
        let url = format!("http://{}", proxy.admin());
        let command = [
            "limits",
            "set",
            "l",
            "127.0.0.1",
            "--rate",
            rate,
            "--for",
            "1h",
            "--reason",
            "ticket 7",
            "--admin",
            &url,
        ];
        assert!(program().args(command).status().unwrap().success());
    };
    set("1/h");
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
    let told = why(&proxy, &id(&rejected(&proxy, &[])));
    let figures = &told["figures"];
    assert_eq!((&figures["of"], &figures["reason"]), (&json!("override"), &json!("ticket 7")));
    assert!(figures["ends_in_ms"].as_u64().unwrap() > 3_000_000, "{figures}");
    assert_eq!(told["rate"], "1/h");
}

/// The key is a hash, so that nobody but the rejection itself knows whether an override or a plan is meant.
#[test]
fn an_override_or_a_plan_of_the_file_names_its_line_and_tells_what_its_bucket_holds() {
    let of_limit = "key = [\"header:x-user\"]\nrate = \"1000/h\"\nplans = {\n  small = \"2/h\" }\noverrides = [\n  { key = [\"b\"], rate = \"9/h\" },\n  { key = [\"a\"], rate = \"1/h\" },\n]";
    let proxy = Proxy::answering()
        .admin()
        .section("[plans]\nby = \"header:x-plan\"")
        .limit("l", of_limit)
        .start();
    let text = std::fs::read_to_string(proxy.config_file()).unwrap();
    let line = |part: &str| text.lines().position(|line| line.contains(part)).unwrap() + 1;
    let rejection = |fields: &[(&str, &str)], passes: u64| {
        for _ in 0..passes {
            assert_eq!(get(proxy.address, "/", fields).status, 200);
        }
        id(&rejected(&proxy, fields))
    };
    let overridden = rejection(&[("x-user", "a")], 1);
    let in_plan = rejection(&[("x-user", "c"), ("x-plan", "small")], 2);
    let mut expected = [
        (&overridden, "override", Some(line("\"1/h\"")), "1/h", json!(1)),
        (&in_plan, "plan", Some(line("\"2/h\"")), "2/h", json!(2)),
    ];
    let check = |expected: &[(&String, &str, Option<usize>, &str, Value)]| {
        for (id, of, line, rate, burst) in expected {
            let told = why(&proxy, id);
            let (figures, now) = (&told["figures"], &told["now"]);
            assert_eq!((&figures["of"], &figures["line"]), (&json!(of), &json!(line)), "{told}");
            assert!(figures["file"].as_str().unwrap().ends_with(".toml"), "{figures}");
            assert_eq!((&now["remaining"], &now["burst"]), (&json!(0), burst), "{told}");
            assert_eq!(
                (&now["rate"], now["note"].is_string()),
                (&json!(rate), line.is_none() && *of == "override")
            );
        }
    };
    check(&expected);
    // A changed file does not say where the override is now, and which figures it has. The plan has its name.
    let changed = text.replace("small = \"2/h\"", "small = \"3/h\"");
    std::fs::write(proxy.config_file(), changed).unwrap();
    proxy.log.wait("config reloaded", |_| true);
    (expected[0].2, expected[1].2) = (None, None);
    expected[1].3 = "3/h";
    let told = why(&proxy, &in_plan)["now"].clone();
    assert_eq!((&told["burst"], &told["plan"]), (&json!(3), &json!("small")));
    expected[1].4 = json!(3);
    let told = why(&proxy, &overridden)["now"].clone();
    assert!(told["note"].as_str().unwrap().contains("has changed since"), "{told}");
    check(&expected[..1]);
}

#[test]
fn a_rejection_by_redis_says_so_and_is_explained_all_the_same() {
    let redis = RedisServer::start();
    let limit = "key = [\"header:x-user\"]\nrate = \"3/h\"\ncost = { header = \"x-cost\" }";
    let proxy = Proxy::answering().admin().limit("l", limit).store(&redis.fields()).start();
    let ask =
        |cost: &str| Connection::open(proxy.address).get("/", &[("x-user", "a"), ("x-cost", cost)]);
    assert_eq!(ask("2").status, 200);
    let told = why(&proxy, &id(&ask("2")));
    assert_eq!((&told["store"], &told["remaining"]), (&json!("redis"), &json!(1)), "{told}");
    let changes = told["would_pass"].as_array().unwrap();
    assert_eq!(changes[1..], [json!({ "burst": 4 }), json!({ "cost": 1 })]);
    assert_eq!(told["now"]["remaining"], 1);
    let again = why(&proxy, &id(&ask("2")));
    // Each worker knows the refusals that it has seen itself.
    let is_known = again["store"] == "known" || again["store"] == "redis";
    assert!(is_known && again["series"]["rejected"] == 2, "{again}");
}
