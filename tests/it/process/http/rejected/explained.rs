//! What a rejection says in words, and its ID.

use serde_json::Value;

use super::*;

/// The ID of a problem, as its body names it.
fn instance(reply: &Reply) -> String {
    let instance = reply.json()["instance"].as_str().unwrap().to_owned();
    instance.strip_prefix("urn:uuid:").unwrap().to_owned()
}

#[test]
fn the_body_says_which_limit_it_was_and_has_an_id_that_is_in_the_log() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api)
        .server("request_id = \"x-request-id\"")
        .limit("per-client", "key = [\"ip\", \"header:x-api-key\"]\nrate = \"2/h\"")
        .start();
    let mut client = Connection::open(proxy.address);
    let mut ask = || client.get("/", &[("x-api-key", "s3cret")]);
    assert_eq!([ask().status, ask().status], [200, 200]);
    let reply = ask();
    let detail = reply.json()["detail"].as_str().unwrap().to_owned();
    let says = "Limit \"per-client\" counts by address and header x-api-key: 2 at once, then 2 an hour. Try again in ";
    assert!(detail.starts_with(says) && !reply.text().contains("s3cret"), "{detail}");
    let seconds: u64 = header(&reply, "retry-after").parse().unwrap();
    let wait = match seconds % 60 {
        0 => format!("{} min.", seconds / 60),
        rest => format!("{} min {rest} s.", seconds / 60),
    };
    assert_eq!(detail.strip_prefix(says), Some(&*wait));
    let first = instance(&reply);
    assert_eq!((first.len(), first.as_bytes()[14]), (36, b'7'), "a UUID of version 7");
    let line = proxy.log.wait("throttled", |_| true);
    assert_eq!(
        (line["id"].as_str(), line["request_id"].as_str()),
        (Some(&*first), reply.header("x-request-id").as_deref())
    );
    // From the cache or not, each answer has an ID of its own, and all else is the same.
    let mut seen = vec![first];
    for _ in 0..20 {
        let reply = ask();
        assert_eq!(reply.json()["violated-policies"], serde_json::json!(["per-client"]));
        seen.push(instance(&reply));
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 21);
}

#[test]
fn a_limit_that_hides_its_figures_says_the_wait_alone() {
    let api = Upstream::echoing();
    let hidden = "rate = \"1/h\"\nreject = { headers = [\"retry-after\"] }";
    let proxy = Proxy::of_one_worker(&api).limit("secret", hidden).start();
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/", &[]).status, 200);
    let detail = client.get("/", &[]).json()["detail"].clone();
    assert!(detail.as_str().unwrap().starts_with("Try again in "), "{detail}");
    let closed = closed(&api);
    let detail = Connection::open(closed.address).get("/", &[]).json()["detail"].clone();
    assert_eq!(
        detail,
        "Limit \"l\" counts for everyone together: nothing passes. No such request will ever pass."
    );
}

#[test]
fn other_figures_of_a_key_are_those_that_it_reads() {
    let api = Upstream::echoing();
    let limit = "key = [\"header:x-user\"]\nrate = \"1/h\"\noverrides = [{ key = [\"b\"], rate = \"1/d\" }, { key = [\"c\"], rate = \"10/d\", burst = 1 }]";
    let proxy = Proxy::of_one_worker(&api).limit("l", limit).start();
    let mut client = Connection::open(proxy.address);
    for (user, figures) in [
        ("a", "1 at once, then 1 an hour"),
        ("b", "1 at once, then 1 a day"),
        ("c", "1 at once, then 10 a day"),
    ] {
        assert_eq!(client.get("/", &[("x-user", user)]).status, 200);
        for _ in 0..12 {
            let reply = client.get("/", &[("x-user", user)]);
            let detail = reply.json()["detail"].clone();
            assert!(detail.as_str().unwrap().contains(figures), "{user}: {detail}");
        }
    }
}

#[test]
fn bodies_of_ones_own_and_grpc_have_the_sentence_and_the_id() {
    let api = Upstream::echoing();
    for (kind, body) in [
        (
            "content_type = \"application/json\"\n",
            "{\"why\":\"{detail}\",\"id\":\"{id}\",\"again\":\"{id}\"}",
        ),
        ("", "{\"why\":\"{detail}\",\"id\":\"{id}\",\"again\":\"{id}\"}"),
    ] {
        let section = format!("[reject]\n{kind}body = '{body}'");
        let proxy =
            Proxy::of_one_worker(&api).limit("l", "rate = \"1/h\"").section(&section).start();
        let mut client = Connection::open(proxy.address);
        assert_eq!(client.get("/", &[]).status, 200);
        let own: Value = client.get("/", &[]).json();
        assert!(
            own["why"].as_str().unwrap().starts_with("Limit \"l\" counts for everyone"),
            "{own}"
        );
        assert_eq!(own["id"], own["again"]);
        let line = proxy.log.wait("throttled", |_| true);
        assert_eq!(line["id"], own["id"]);
    }
    let plain = Proxy::of_one_worker(&api)
        .limit("l", "rate = \"0/s\"")
        .section("[reject]\nbody = \"{detail} {id}\"")
        .start();
    let text = Connection::open(plain.address).get("/", &[]).text();
    assert!(text.starts_with("Limit \"l\" counts"), "{text}");
    let proxy = closed(&api);
    let call = [("content-type", "application/grpc")];
    let reply = Connection::open(proxy.address).request("POST", "/", &call, b"\0\0\0\0\0");
    let line = proxy.log.wait("throttled", |_| true);
    let message = header(&reply, "grpc-message");
    let id = line["id"].as_str().unwrap();
    assert_eq!(
        message,
        format!(
            "Limit \"l\" counts for everyone together: nothing passes. No such request will ever pass. (urn:uuid:{id})"
        )
    );
}
