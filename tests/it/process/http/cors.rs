//! `[cors]`: a page of another origin can read what tidegate answers by itself.

use std::fs;

use serde_json::json;

use crate::support::browser::Browser;
use crate::support::client::{Connection, Reply, get};
use crate::support::http2::Client;
use crate::support::proxy::Proxy;
use crate::support::upstream::{Upstream, nobody};
use crate::support::wait_until;

const APP: &str = "https://app.example.com:8443";

/// The fields that a browser looks at: the allowed origin, the exposed names, the credentials, `vary`.
fn fields(reply: &Reply) -> [Option<String>; 4] {
    ["allow-origin", "expose-headers", "allow-credentials"]
        .map(|name| reply.header(&format!("access-control-{name}")))
        .into_iter()
        .chain([reply.header("vary")])
        .collect::<Vec<_>>()
        .try_into()
        .unwrap()
}

fn exposes(reply: &Reply) -> Vec<String> {
    let list = reply.header("access-control-expose-headers").unwrap_or_default();
    list.split(", ").filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// A proxy that refuses for every reason that a test can make.
fn refusing(cors: &str) -> Proxy {
    let api = nobody();
    Proxy::to(api.as_str())
        .limits(
            "[limits.none]\nkey = []\nrate = \"1/h\"\nburst = 1\n[reject]\nheaders = [\"retry-after\", \"retry-after-ms\", \"ratelimit\", \"x-ratelimit\"]\n\
             [limits.user]\nkey = [\"header:authorization\"]\nrate = \"1/h\"\nmissing = \"reject\"\n\
             [limits.paid]\nkey = []\nrate = \"9/h\"\ncost = { header = \"x-cost\" }",
        )
        .route("path = \"/limited\"\nlimits = [\"none\"]\nrespond = { status = 200 }")
        .route("path = \"/user\"\nlimits = [\"user\"]")
        .route("path = \"/paid\"\nlimits = [\"paid\"]")
        .route("path = \"/down\"")
        .route("path = \"/posts\"\nmethods = [\"POST\"]\nmax_body_size = \"2B\"")
        .route("path = \"/said\"\nrespond = { status = 404, body = \"none\" }")
        .section(cors)
}

/// Method, path, headers, body, and the status that must come.
type RefusedRequest<'r> = (&'r str, &'r str, &'r [(&'r str, &'r str)], &'r str, u16);

const REFUSED: [RefusedRequest<'_>; 10] = [
    ("GET", "/limited", &[], "", 429),
    ("HEAD", "/limited", &[], "", 429),
    ("POST", "/limited", &[("content-type", "application/grpc-web")], "", 200),
    ("GET", "/user", &[], "", 401),
    ("GET", "/paid", &[("x-cost", "much")], "", 400),
    ("GET", "/down", &[], "", 502),
    ("POST", "/posts", &[], "123", 413),
    ("GET", "/posts", &[], "", 405),
    ("GET", "/said", &[], "", 404),
    ("GET", "/no/route%2f", &[], "", 400),
];

/// A browser hides an answer without these fields: the page sees that the network failed, and no "try again in 12 s".
#[test]
fn every_own_answer_can_be_read_by_the_origins_of_the_file() {
    let origins = format!("[\"{APP}\", \"https://*.apps.test\", \"http://localhost:*\", \"null\"]");
    let proxy = refusing(&format!("[cors]\norigins = {origins}\ncredentials = true")).start();
    assert_eq!(get(proxy.address, "/limited", &[]).status, 200);
    let mut over_http2 = Client::open(proxy.address);
    for (method, path, headers, body, status) in REFUSED {
        for (origin, allowed) in [
            (Some(APP), true),
            (Some("https://a.apps.test"), true),
            (Some("https://b.a.apps.test"), true),
            (Some("http://localhost"), true),
            (Some("http://localhost:5173"), true),
            (Some("null"), true),
            (Some("https://app.example.com"), false),
            (Some("http://app.example.com:8443"), false),
            (Some("https://apps.test"), false),
            (Some("https://a.apps.test.evil.example"), false),
            (Some("https://evil.example"), false),
            (Some("https://a.apps.test, https://evil.example"), false),
            (None, false),
        ] {
            let mut all = headers.to_vec();
            all.extend(origin.map(|origin| ("origin", origin)));
            let mut replies =
                vec![Connection::open(proxy.address).request(method, path, &all, body.as_bytes())];
            // Over HTTP/2 this client announces no length, and the API is away before the body is too long.
            if body.is_empty() {
                replies.push(over_http2.begin(method, path, &all).reply());
            }
            for (reply, protocol) in replies.iter().zip(["HTTP/1.1", "HTTP/2"]) {
                let what = format!("{method} {path} of {origin:?} over {protocol}: {reply:?}");
                assert_eq!(reply.status, status, "{what}");
                let [told, _, credentials, vary] = fields(reply);
                assert_eq!(told.as_deref(), origin.filter(|_| allowed), "{what}");
                assert_eq!(credentials.as_deref(), allowed.then_some("true"), "{what}");
                assert_eq!(vary.as_deref(), Some("origin"), "{what}");
                let expected = [
                    "retry-after",
                    "retry-after-ms",
                    "grpc-retry-pushback-ms",
                    "grpc-status",
                    "grpc-message",
                    "ratelimit-policy",
                    "ratelimit",
                    "x-ratelimit-limit",
                    "x-ratelimit-remaining",
                    "x-ratelimit-reset",
                ];
                let there = expected.into_iter().filter(|name| reply.header(name).is_some());
                let there: Vec<_> = there.filter(|_| allowed).collect();
                assert_eq!(exposes(reply), there, "{what}");
                assert_eq!(reply.header("retry-after").is_some(), path == "/limited", "{what}");
            }
        }
    }
}

#[test]
fn any_origin_may_read_where_the_file_says_so_and_nobody_where_it_says_nothing() {
    for (cors, origin, told) in [
        ("[cors]\norigins = [\"*\"]", Some("https://a.example"), Some("*")),
        ("[cors]\norigins = [\"*\"]", Some("null"), Some("*")),
        ("[cors]\norigins = [\"*\"]", None, None),
        ("", Some("https://a.example"), None),
        ("", None, None),
    ] {
        let proxy = refusing(cors).start();
        let origin: Vec<_> = origin.map(|origin| ("origin", origin)).into_iter().collect();
        for path in ["/down", "/said", "/nowhere"] {
            let [allowed, exposed, credentials, vary] = fields(&get(proxy.address, path, &origin));
            assert_eq!((allowed.as_deref(), credentials), (told, None), "{cors} {path}");
            assert_eq!((exposed, vary), (None, None), "{cors} {path}");
        }
    }
}

/// Two fields would be read by a browser as one origin that nobody has.
#[test]
fn a_request_that_names_two_origins_is_of_none() {
    let proxy = refusing(&format!("[cors]\norigins = [\"{APP}\"]")).start();
    let reply = get(proxy.address, "/said", &[("origin", APP), ("origin", APP)]);
    assert_eq!(fields(&reply), [None, None, None, Some("origin".to_owned())]);
}

#[test]
fn of_an_apis_answer_only_the_names_of_our_fields_are_exposed_beside_its_own() {
    let api = Upstream::answering(|got| {
        let fields = match got.path() {
            "/open" => {
                "access-control-allow-origin: https://page.test\r\n\
                 access-control-expose-headers: x-total, RateLimit\r\n\
                 access-control-expose-headers: x-pages\r\nx-ratelimit-remaining: 2\r\n"
            }
            "/rich" => {
                "access-control-allow-origin: *\r\nx-ratelimit-remaining: 5000\r\nx-ratelimit-limit: 10\r\n"
            }
            "/all" => "access-control-allow-origin: *\r\naccess-control-expose-headers: *\r\n",
            _ => "vary: accept\r\n",
        };
        format!("HTTP/1.1 503 No\r\ncontent-length: 0\r\nretry-after: 5\r\n{fields}\r\n")
            .into_bytes()
    });
    let proxy = Proxy::to(&api)
        .server("request_id = \"x-request-id\"")
        .limit("ours", "key = []\nrate = \"1000/h\"")
        .limit("older", "key = []\nrate = \"10/h\"\nreject = { headers = [\"x-ratelimit\"] }")
        .section("[cors]\norigins = [\"https://page.test\"]")
        .start();
    let bare = Proxy::to(&api).section("[cors]\norigins = [\"https://page.test\"]").start();
    let origin = [("origin", "https://page.test")];
    for (path, told, exposed) in [
        (
            "/open",
            Some("https://page.test"),
            "x-total, RateLimit, x-pages, ratelimit-policy, x-request-id",
        ),
        (
            "/rich",
            Some("*"),
            "ratelimit-policy, ratelimit, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, x-request-id",
        ),
        (
            "/all",
            Some("*"),
            "*, ratelimit-policy, ratelimit, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, x-request-id",
        ),
        ("/closed", None, ""),
    ] {
        for reply in
            [get(proxy.address, path, &origin), Client::open(proxy.address).get(path, &origin)]
        {
            assert_eq!(reply.header("access-control-allow-origin").as_deref(), told, "{path}");
            assert_eq!(exposes(&reply).join(", "), exposed, "{path} {reply:?}");
            let vary = (path == "/closed").then_some("accept");
            assert_eq!(reply.header("vary").as_deref(), vary, "{path}: the API's own");
        }
        let reply = get(bare.address, path, &origin);
        let as_it_came = match path {
            "/open" => "x-total, RateLimit, x-pages",
            "/all" => "*",
            _ => "",
        };
        assert_eq!(exposes(&reply).join(", "), as_it_came, "{path}: nothing was added");
    }
}

/// A route may have had such fields before the file had `[cors]`.
#[test]
fn the_fields_of_a_route_stay_for_other_origins() {
    let changes = "response_headers = { set = { access-control-allow-origin = \"https://old.test\", vary = \"Origin, accept\", \
                   access-control-expose-headers = \"x-a\" } }";
    let api = nobody();
    let proxy = Proxy::to(api.as_str())
        .route(&format!("path = \"/\"\n{changes}"))
        .section("[cors]\norigins = [\"https://new.test\"]")
        .start();
    for (origin, told) in
        [("https://new.test", "https://new.test"), ("https://old.test", "https://old.test")]
    {
        let reply = get(proxy.address, "/", &[("origin", origin)]);
        let [allowed, exposed, _, vary] = fields(&reply);
        assert_eq!((reply.status, allowed.as_deref()), (502, Some(told)));
        assert_eq!((exposed.as_deref(), vary.as_deref()), (Some("x-a"), Some("Origin, accept")));
    }
}

#[test]
fn a_reload_changes_who_may_read() {
    let cors = "[cors]\norigins = [\"https://one.test\"]";
    let proxy = refusing(cors).server("workers = 1").start();
    let told = |origin: &str| {
        let reply = get(proxy.address, "/said", &[("origin", origin)]);
        reply.header("access-control-allow-origin")
    };
    assert_eq!(told("https://one.test").as_deref(), Some("https://one.test"));
    let file = fs::read_to_string(proxy.config_file()).unwrap();
    fs::write(proxy.config_file(), file.replace("one.test", "two.test")).unwrap();
    wait_until("the other origin", || told("https://two.test").is_some());
    assert_eq!(told("https://one.test"), None);
    let line = proxy.log.wait("config reloaded", |_| true);
    assert_eq!(line["changed"][0], "cors.origins [https://one.test] -> [https://two.test]");
}

/// No API is there that could answer the browser's question. It counts as every request does.
#[test]
fn a_preflight_of_a_route_that_responds_is_answered_and_counted() {
    let api = Upstream::echoing();
    let respond = "respond = { status = 200, body = \"own\" }";
    let proxy = Proxy::to(&api)
        .server("limits = [\"all\"]")
        .limit("all", "key = []\nrate = \"13/h\"")
        .limit("user", "key = [\"header:x-api-key\"]\nrate = \"1/h\"\nmissing = \"reject\"\nexempt = { method = [\"OPTIONS\"] }")
        .limit("strict", "key = [\"header:x-api-key\"]\nrate = \"9/h\"\nmissing = \"reject\"")
        .route("path = \"/{*rest}\"")
        .route("path = \"/usage\"\nmethods = [\"GET\", \"HEAD\"]\nrespond = { usage = [\"user\"] }\nlimits = [\"user\"]")
        .route("path = \"/strict\"\nmethods = [\"GET\"]\nrespond = { status = 200 }\nlimits = [\"strict\"]")
        .route("path = \"/gone\"\nrespond = { status = 404 }")
        .route(&format!("path = \"/any\"\n{respond}"))
        .route("path = \"/written\"\nmethods = [\"GET\"]\nrespond = { status = 200 }")
        .route("path = \"/written\"\nmethods = [\"OPTIONS\"]")
        .route("path = \"/mixed\"\nheaders = { x-b = \"1\" }")
        .route("path = \"/mixed\"\nrespond = { status = 404 }")
        .section(&format!("[cors]\norigins = [\"{APP}\"]\ncredentials = true"))
        .start();
    let asks = |method: &'static str| {
        [
            ("access-control-request-method", method),
            ("access-control-request-headers", "x-api-key,x-b"),
        ]
    };
    let told = |reply: &Reply| {
        ["origin", "credentials", "methods", "headers"]
            .map(|name| reply.header(&format!("access-control-allow-{name}")))
            .map(Option::unwrap_or_default)
    };
    let mut over_http2 = Client::open(proxy.address);
    for (path, method, status, methods) in [
        ("/usage", "GET", 204, "GET, HEAD"),
        ("/usage", "HEAD", 204, "GET, HEAD"),
        ("/gone", "PUT", 204, "PUT"),
        ("/any", "PUT", 200, "PUT"),
    ] {
        let headers = [&asks(method)[..], &[("origin", APP)]].concat();
        for reply in [
            Connection::open(proxy.address).request("OPTIONS", path, &headers, b""),
            over_http2.begin("OPTIONS", path, &headers).reply(),
        ] {
            let expected = [APP, "true", methods, "x-api-key,x-b"].map(str::to_owned);
            assert_eq!((reply.status, told(&reply)), (status, expected), "{path}");
            assert_eq!(reply.header("vary").as_deref(), Some("origin"));
            assert_eq!(reply.header("access-control-max-age").as_deref(), Some("600"), "{path}");
            let is_counted = reply.header("ratelimit").is_some();
            assert_eq!(is_counted, path != "/usage", "server.limits count no usage page: {path}");
        }
    }
    let ask = |path: &str, headers: &[(&str, &str)]| {
        Connection::open(proxy.address).request("OPTIONS", path, headers, b"").status
    };
    let origin = ("origin", APP);
    let [stranger, get_it] = [("origin", "https://evil.example"), asks("GET")[0]];
    assert_eq!(ask("/usage", &[origin]), 200, "no preflight, and of the API's route");
    assert_eq!(ask("/usage", &[get_it]), 200, "no page asks");
    assert_eq!(ask("/usage", &[stranger, get_it]), 200, "of a stranger");
    assert_eq!(ask("/usage", &[origin, asks("POST")[0]]), 200, "the API takes this method");
    assert_eq!(ask("/api", &[origin, get_it]), 200);
    assert_eq!(ask("/written", &[origin, get_it]), 200, "the operator's own route comes first");
    assert_eq!(api.requests().len(), 6);
    assert_eq!(ask("/mixed", &[origin, get_it]), 404, "the API may get this request");
    assert_eq!(ask("/strict", &[origin, get_it]), 400, "the limit does not exempt it");
    let key = [origin, ("x-api-key", "a")];
    let usage = get(proxy.address, "/usage", &key);
    assert_eq!((usage.status, told(&usage)[0].as_str()), (200, APP));
    assert_eq!(ask("/gone", &[origin, get_it]), 204);
    assert_eq!(ask("/gone", &[origin, get_it]), 204);
    assert_eq!(ask("/gone", &[origin, get_it]), 429, "the 14th that counts");
}

/// What a page is for: thirteen limiters had the fault that it sees a network error in place of "try again in 12 s".
#[test]
fn a_browser_shows_a_page_the_429_and_its_wait() {
    let pages = Upstream::answering(|_| {
        let page = "<!doctype html><p id=there>there</p>";
        let length = page.len();
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {length}\r\n\r\n{page}"
        )
        .into_bytes()
    });
    let api = Upstream::answering(|_| {
        b"HTTP/1.1 200 OK\r\naccess-control-allow-origin: *\r\naccess-control-allow-headers: *\r\n\
          content-length: 2\r\n\r\n{}"
            .to_vec()
    });
    let port = pages.address.port();
    let proxy = Proxy::to(&api)
        .limit(
            "page",
            "key = [\"header:origin\"]\nrate = \"1/h\"\nexempt = { method = [\"OPTIONS\"] }",
        )
        .limit("keyed", "key = [\"header:x-api-key\"]\nrate = \"9/h\"\nmissing = \"reject\"\nexempt = { method = [\"OPTIONS\"] }")
        .route("path = \"/{*rest}\"\nlimits = [\"page\"]")
        .route("path = \"/usage\"\nmethods = [\"GET\"]\nrespond = { usage = [\"keyed\"] }\nlimits = [\"keyed\"]")
        .section(&format!(
            "[cors]\norigins = [\"http://app.localhost:{port}\", \"http://*.apps.localhost:*\"]"
        ))
        .start();
    // Its own field makes the browser ask by a preflight first.
    let fetch = format!(
        "fetch('http://{}/a', {{ headers: {{ 'x-api-key': 'a' }} }}).then(async (it) => [it.status, \
         (await it.json()).title ?? '', it.headers.has('ratelimit'), Number(it.headers.get('retry-after')) > 3000], \
         (error) => [error.name])",
        proxy.address
    );
    let title = "Request cannot be satisfied as assigned quota has been exceeded";
    let usage = format!(
        "fetch('http://{}/usage', {{ headers: {{ 'x-api-key': 'a' }} }}).then(async (it) => \
         (await it.json()).limits[0].limit, (error) => error.name)",
        proxy.address
    );
    for (host, second) in [
        ("app.localhost", json!([429, title, true, true])),
        ("one.apps.localhost", json!([429, title, true, true])),
        ("stranger.localhost", json!(["TypeError"])),
    ] {
        let mut page = Browser::open(&format!("http://{host}:{port}/"), 800, 600);
        page.wait("#there", |text| text == "there");
        assert_eq!(page.js(&fetch), json!([200, "", true, false]), "{host}");
        assert_eq!(page.js(&fetch), second, "{host}");
        let left = if second[0] == 429 { json!(9) } else { json!("TypeError") };
        assert_eq!(page.js(&usage), left, "{host}");
    }
    let preflights = api.requests().iter().filter(|got| got.line.starts_with("OPTIONS")).count();
    assert!(preflights >= 3, "{preflights}");
}
