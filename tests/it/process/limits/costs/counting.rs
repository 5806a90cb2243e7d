//! Responses that do not count: `count_when`, alone and beside other limits.

use super::{HEADER, JSON, Place, Slow, answer, at_once};
use crate::support::PATIENCE;
use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::tidegate::program;
use crate::support::upstream::{Upstream, nobody};

every_store! {
    failed_logins_alone_count
    ten_guesses_at_once_are_not_free
    every_limit_of_a_route_settles_its_own
    a_status_of_the_proxy_itself_counts
}

const LOGINS: &str = "key = [\"ip\", \"query:user\"]\nrate = \"5/h\"\n\
                      count_when = { status = [\"401\", \"403\"] }";

/// An API that answers with the status that its path says.
fn statuses() -> Upstream {
    Upstream::answering(|got| answer(got.path()[1..4].parse().unwrap(), "", b""))
}

fn failed_logins_alone_count(place: &Place) {
    let api = statuses();
    let proxy = place.before(&api).limit("logins", LOGINS).start();
    let mut client = Connection::open(proxy.address);
    let mut asked = |paths: &[&str]| -> Vec<u16> {
        paths.iter().map(|path| client.get(path, &[]).status).collect()
    };
    for _ in 0..10 {
        assert_eq!(asked(&["/200?user=a", "/500?user=a"]), [200, 500]);
    }
    assert_eq!(asked(&["/401?user=a"; 3]), [401; 3]);
    assert_eq!(asked(&["/200?user=a"; 3]), [200; 3]);
    assert_eq!(asked(&["/403?user=a"; 2]), [403; 2]);
    assert_eq!(asked(&["/200?user=a", "/401?user=a"]), [429; 2], "five have failed");
    assert_eq!(asked(&["/401?user=b"]), [401], "another user");
}

fn ten_guesses_at_once_are_not_free(place: &Place) {
    let slow = Slow::answering(|_| answer(401, "", b""));
    let proxy = place.before(&slow.api).limit("logins", LOGINS).start();
    let told = at_once(proxy.address, 10, "/login?user=a");
    for _ in 0..5 {
        assert_eq!(told.recv_timeout(PATIENCE), Ok(429));
    }
    for _ in 0..5 {
        slow.go.send(()).unwrap();
    }
    for _ in 0..5 {
        assert_eq!(told.recv_timeout(PATIENCE), Ok(401));
    }
    slow.wait_for(5);
    assert_eq!(get(proxy.address, "/login?user=a", &[]).status, 429);
}

fn every_limit_of_a_route_settles_its_own(place: &Place) {
    let api =
        Upstream::answering(|got| answer(got.path()[1..4].parse().unwrap(), "x-used: 10\r\n", b""));
    let proxy = place
        .before(&api)
        // Uses and failures in one: only what failed counts, with what it used.
        .limit("both", &format!("{HEADER}\ncount_when = {{ status = [\"4xx\"] }}"))
        .limit("plain", "rate = \"100/h\"")
        .limit(
            "asked",
            "rate = \"100/h\"\ncost = { header = \"x-cost\", max = 9 }\n\
                        count_when = { status = [\"2xx\"] }",
        )
        .limit("try", "rate = \"2/h\"\nmode = \"shadow\"\ncount_when = { status = [\"404\"] }")
        .start();
    let mut client = Connection::open(proxy.address);
    let mut left = |path: &str| {
        let reply = client.get(path, &[("x-cost", "5")]);
        let field = reply.header("ratelimit").unwrap();
        field
            .split(";r=")
            .skip(1)
            .map(|rest| rest.split(';').next().unwrap().to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(left("/200"), "98 99 95");
    assert_eq!(left("/404"), "98 98 90", "what was used counts with the one that failed");
    assert_eq!(left("/404"), "88 97 90");
    assert_eq!(left("/200"), "78 96 90");
    assert_eq!(left("/200"), "78 95 85");
    let page = Metrics::of(proxy.admin());
    let shadow = |decision: &str| {
        page.value(&format!("tidegate_decisions_total{{limit=\"try\",decision=\"{decision}\"}}"))
    };
    assert_eq!((shadow("allowed"), shadow("shadow")), (3.0, 2.0), "{}", page.0);
}

fn a_status_of_the_proxy_itself_counts(place: &Place) {
    let before = |api: &str| {
        place
            .before(api)
            .limit("broken", "rate = \"100/h\"\ncount_when = { status = [\"502\"] }")
            .limit("failed", "rate = \"100/h\"\ncount_when = { status = [\"401\"] }")
            // Nothing was said of its use.
            .limit("used", HEADER)
    };
    let proxy = before(&nobody()).start();
    let mut client = Connection::open(proxy.address);
    for _ in 0..3 {
        assert_eq!(client.get("/", &[]).status, 502);
    }
    let api = statuses();
    proxy.reload(&before(&api.url()).text());
    let reply = client.get("/200", &[]);
    let field = reply.header("ratelimit").unwrap();
    assert!(field.contains("\"broken\";r=96;"), "{field}");
    assert!(field.contains("\"failed\";r=99;"), "{field}");
    assert!(field.contains("\"used\";r=92;"), "{field}");
}

#[test]
fn explain_says_what_is_settled() {
    let proxy = Place::memory()
        .before(&statuses())
        .limit("used", JSON)
        .limit("bounded", &HEADER.replace("estimate = 2", "estimate = 2, max = 50"))
        .limit("logins", LOGINS)
        .start();
    let output = program().args(["explain", "/"]).current_dir(proxy.folder()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for said in [
        "takes 2 before, and in the end what usage.total_tokens in the response's JSON says, up to 10000",
        "takes 2 before, and in the end what the response's header x-used says, up to 50",
        "given back unless the response's status is 401, 403",
    ] {
        assert!(text.contains(said), "{said} in:\n{text}");
    }
}
