use serde_json::json;

use super::*;

fn env(name: &str) -> Option<String> {
    (name == "SECRET").then(|| "from-the-environment".to_owned())
}

fn settings(text: &str) -> Json {
    FileText { text: text.into(), overrides: Overrides::default() }.tree(&env).json()
}

const FILE: &str = r#"
[server]
listen = ["127.0.0.1:1", "127.0.0.1:2"]
workers = 2
[server.tls]
listen = "127.0.0.1:3"
certificates = [{ cert = "c.pem", key = "${SECRET}" }]
[upstreams.api]
servers = ["http://10.0.0.1", { url = "http://10.0.0.2" }]
[limits.a]
key = ["ip"]
rate = "9/s"
cost = { header = "x-cost", max = 5 }
exempt = { ip = ["10.0.0.0/8"], header = { x-internal = "hunter2" } }
overrides = [{ key = ["hunter3"], rate = "99/s" }]
[limits.slots]
algorithm = "concurrency"
limit = 4
reject = { jitter = "5%" }
[limits.leaky]
key = []
rate = "7/m"
algorithm = "leaky-bucket"
[[routes]]
path = "/{*rest}"
upstream = "api"
limits = ["a"]
headers = { x-plan = "hunter7" }
request_headers = { set = { authorization = "Bearer hunter4" } }
response_headers = { set = { cache-control = "no-store" } }
[reject]
status = 503
[store]
url = "redis://user:hunter5@10.0.0.3:6379/1"
prefix = "$${a}${SECRET:-b}"
[admin]
listen = "127.0.0.1:4"
token = "hunter6"
"#;

#[test]
fn the_tree_has_the_files_values_and_the_other_defaults() {
    let settings = settings(FILE);
    for (path, value) in [
        ("/server/listen", json!(["127.0.0.1:1", "127.0.0.1:2"])),
        ("/server/workers", json!(2)),
        ("/server/header_timeout", json!("10s")),
        ("/server/max_body_size", json!(null)),
        ("/server/tls/certificates/0", json!({ "cert": "c.pem", "key": MASKED })),
        ("/upstreams/api/servers/0", json!("http://10.0.0.1")),
        ("/upstreams/api/servers/1/url", json!("http://10.0.0.2")),
        ("/upstreams/api/retries", json!(1)),
        ("/limits/a/rate", json!("9/s")),
        ("/limits/a/cost/max", json!(5)),
        ("/limits/a/algorithm", json!("token-bucket")),
        ("/limits/a/exempt/ip", json!(["10.0.0.0/8"])),
        ("/limits/a/exempt/header/x-internal", json!(MASKED)),
        ("/limits/a/overrides/0/key", json!([MASKED])),
        ("/limits/a/overrides/0/rate", json!("99/s")),
        ("/limits/a/burst", json!(9)),
        ("/limits/a/wait", json!("0s")),
        ("/limits/a/overrides/0/burst", json!(99)),
        ("/limits/slots/limit", json!(4)),
        ("/limits/slots/reject/status", json!(503)),
        ("/limits/slots/reject/jitter", json!("5%")),
        ("/limits/leaky/queue", json!(7)),
        ("/routes/0/path", json!("/{*rest}")),
        ("/routes/0/headers/x-plan", json!(MASKED)),
        ("/routes/0/request_headers/set/authorization", json!(MASKED)),
        ("/routes/0/response_headers/set/cache-control", json!("no-store")),
        ("/store/url", json!("redis://********@10.0.0.3:6379/1")),
        ("/store/prefix", json!(MASKED)),
        ("/reject/status", json!(503)),
        ("/trace/sample", json!(0.01)),
        ("/log/keys", json!("hashed")),
        ("/admin/token", json!(MASKED)),
    ] {
        assert_eq!(settings.pointer(path), Some(&value), "{path} in {settings:#}");
    }
    assert_eq!(settings.pointer("/limits/slots/rate"), None, "slots have no rate");
    let wait = settings.pointer("/limits/leaky/wait");
    assert_eq!(wait, None, "a leaky bucket holds as long as its queue needs");
    assert_eq!(settings.pointer("/limits/a/lease"), None, "and only they have a lease");
    let text = settings.to_string();
    assert!(!text.contains("hunter") && !text.contains("from-the-environment"), "{text}");
}

/// All fields of a table and of the tables in it.
fn fields_of_tables(shape: &'static Shape) -> Vec<&'static Field> {
    fn shapes(kind: &'static Kind) -> Vec<&'static Shape> {
        match kind {
            Kind::Table(shape) | Kind::Named(shape) => vec![shape],
            Kind::List(_, kind) | Kind::TableOf(_, kind) => shapes(kind),
            Kind::Either(kinds) => kinds.iter().flat_map(shapes).collect(),
            _ => Vec::new(),
        }
    }
    let inner = |field: &'static Field| shapes(&field.kind).into_iter().flat_map(fields_of_tables);
    let fields = (shape.fields)();
    fields.iter().copied().chain(fields.iter().copied().flat_map(inner)).collect()
}

/// A text that came from the environment is masked, in every field of the file.
#[test]
fn a_variable_is_masked_wherever_it_stands() {
    for field in fields_of_tables(&ROOT) {
        let walk = Walk { env: &env, reject: None };
        let context = SettingContext { mask: field.mask, restart: false, algorithm: "" };
        let secret = DeValue::parse("\"x${SECRET}y\"").unwrap();
        let list = DeValue::parse("[{ a = \"${SECRET}\" }, [\"${SECRET}\"]]").unwrap();
        for value in [secret, list] {
            let shown = walk.value(&field.kind, value.get_ref(), context).json().to_string();
            assert!(!shown.contains("environment"), "{}: {shown}", field.name);
        }
    }
}

#[test]
fn a_setting_that_only_a_restart_changes_stays() {
    let mut now = settings(&FILE.replace("10.0.0.3", "10.0.0.4"));
    keep(&mut now, &settings(FILE), "store.url");
    assert_eq!(now["store"]["url"], "redis://********@10.0.0.3:6379/1");
    keep(&mut now, &json!({}), "no.such");
    assert_eq!(now.get("no"), None);
    let mut listener =
        json!({ "server": { "tls": { "listen": "127.0.0.1:1", "certificates": [] } } });
    keep(&mut listener, &json!({ "server": { "tls": null } }), "server.tls.listen");
    assert_eq!(listener["server"]["tls"], json!(null), "the start had no such listener");
}
