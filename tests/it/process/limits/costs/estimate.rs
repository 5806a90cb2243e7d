//! What is taken before the response, by the length of the request's body.

use super::{Place, answer, remaining};
use crate::support::client::{Connection, get};
use crate::support::http2::Client;
use crate::support::metrics::Metrics;
use crate::support::tidegate::program;
use crate::support::upstream::Upstream;

every_store! {
    an_estimate_follows_the_length_of_the_body
    a_long_request_waits_for_a_full_bucket
}

const BY_LENGTH: &str = "key = []\nalgorithm = \"fixed-window\"\nrate = \"100000/d\"\n\
                         cost = { response_header = \"x-used\", \
                         estimate = { content_length = \"0.3\", at_least = 100 }, max = 5000 }";

fn an_estimate_follows_the_length_of_the_body(place: &Place) {
    let api = Upstream::answering(|_| answer(200, "", b""));
    let proxy = place.before(&api).limit("tokens", BY_LENGTH).start();
    let mut left = 100_000;
    let mut client = Connection::open(proxy.address);
    for (length, estimate) in
        [(0, 100), (1, 100), (333, 100), (334, 101), (1_000, 300), (20_000, 5_000)]
    {
        let reply = client.request("POST", "/", &[], &vec![b'x'; length]);
        left -= estimate;
        assert_eq!(remaining(&reply), left, "{length} bytes");
    }
    // Nobody says how long these are.
    client.send(
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    );
    left -= 100;
    assert_eq!(remaining(&client.reply("POST")), left);
    let mut client = Client::open(proxy.address);
    left -= 100;
    assert_eq!(remaining(&client.post("/", &[], &[b'x'; 1_000])), left);
    left -= 300;
    assert_eq!(remaining(&client.post("/", &[("content-length", "1000")], &[b'x'; 1_000])), left);
}

/// A request whose estimate is more than the bucket can hold could never pass.
fn a_long_request_waits_for_a_full_bucket(place: &Place) {
    let api = Upstream::answering(|_| answer(200, "x-used: 40\r\n", b""));
    let limit = "key = [\"header:x-user\"]\nrate = \"100/d\"\nburst = 100\n\
                 overrides = [{ key = [\"small\"], rate = \"50/d\" }]\n\
                 candidate = { rate = \"100/d\", burst = 60 }\n\
                 cost = { response_header = \"x-used\", \
                 estimate = { content_length = \"1\", at_least = 10 } }";
    let proxy = place.before(&api).limit("tokens", limit).start();
    let mut client = Connection::open(proxy.address);
    let mut post = |user: &str, length: usize| {
        client.request("POST", "/", &[("x-user", user)], &vec![b'x'; length])
    };
    let reply = post("large", 5_000);
    assert_eq!((reply.status, remaining(&reply)), (200, 0), "it takes all that there is");
    let page = Metrics::of(proxy.admin());
    let tried = "tidegate_decisions_total{limit=\"tokens:candidate\",decision=\"allowed\"}";
    assert_eq!(page.value(tried), 1.0, "so does its candidate: {}", page.0);
    let reply = post("large", 5_000);
    assert_eq!(reply.status, 429, "60 are left of 100");
    assert!(reply.header("retry-after").is_some(), "and the bucket will be full again");
    assert_eq!(post("large", 60).status, 200);
    let reply = post("small", 5_000);
    assert_eq!((reply.status, remaining(&reply)), (200, 0), "an override has another size");
    assert_eq!(post("small", 11).status, 429, "10 are left of 50");
}

#[test]
fn explain_says_what_is_taken_before() {
    let api = Upstream::answering(|_| answer(200, "", b""));
    let proxy = Place::memory().before(&api).limit("tokens", BY_LENGTH).start();
    for (length, said) in [
        (
            "",
            "takes 100 before (0.3 for each byte of the request's body, at least 100), and in the end what",
        ),
        ("1000", "takes 300 before (0.3 for"),
        ("1000000", "takes 5000 before (0.3 for"),
    ] {
        let header = format!("content-length: {length}");
        let headers = if length.is_empty() { vec![] } else { vec!["-H", &header] };
        let mut command = program();
        command.args(["explain", "POST /"]).args(headers).current_dir(proxy.folder());
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(said), "{said} in:\n{text}");
    }
}

/// What operators see of it: the settings in force, and what a reload changes.
#[test]
fn weights_and_estimates_are_shown() {
    let cost = |weight: u64| {
        format!(
            "rate = \"100/d\"\ncost = {{ response_json = {{ \"usage.in | in\" = 1, \"usage.out\" = {weight} }}, \
             estimate = {{ content_length = \"0.5\", at_least = 10 }} }}"
        )
    };
    let api = Upstream::echoing();
    let file = |cost: &str| Place::memory().before(&api).limit("tokens", cost);
    let proxy = file(&cost(5)).start();
    let settings = get(proxy.admin(), "/api/config", &[("host", "localhost")]).json();
    let shown = &settings["settings"]["limits"]["tokens"]["cost"];
    assert_eq!(shown["response_json"], serde_json::json!({ "usage.in | in": 1, "usage.out": 5 }));
    assert_eq!(shown["estimate"], serde_json::json!({ "content_length": "0.5", "at_least": 10 }));
    proxy.reload(&file(&cost(6)).text());
    let line = proxy.log.wait("config reloaded", |_| true);
    let changed = line["changed"].to_string();
    assert!(changed.contains("limits.tokens cost.response_json.usage.out 5 -> 6"), "{changed}");
    proxy.reload(
        &file("rate = \"100/d\"\ncost = { response_json = \"in | out\", estimate = 10 }").text(),
    );
    proxy.log.wait("config reloaded", |line| {
        let changed = line["changed"].to_string();
        changed.contains("cost.estimate { at_least 10, content_length 0.5 } -> 10")
            || changed.contains("cost.estimate { content_length 0.5, at_least 10 } -> 10")
    });
}
