//! Clients that are told to come back at different times.

use super::*;

/// How long a client of this name is told to wait. `ratelimit` says the same.
fn wait_of(client: &mut Connection, user: &str) -> u64 {
    let reply = client.get("/", &[("x-user", user)]);
    assert_eq!(reply.status, 429);
    let wait = header(&reply, "retry-after");
    assert_eq!(header(&reply, "ratelimit"), format!("\"per-user\";r=0;t={wait}"));
    assert_eq!(header(&reply, "x-ratelimit-reset"), wait);
    wait.parse().unwrap()
}

#[test]
fn a_crowd_is_told_to_come_back_at_different_times_and_never_too_early() {
    let api = Upstream::echoing();
    let section =
        "[reject]\njitter = \"20%\"\nheaders = [\"retry-after\", \"ratelimit\", \"x-ratelimit\"]";
    let limit = "key = [\"header:x-user\"]\nrate = \"1/h\"";
    let proxy = || Proxy::to(&api).limit("per-user", limit).section(section).start();
    let (one, other) = (proxy(), proxy());
    let mut clients = [Connection::open(one.address), Connection::open(other.address)];
    let mut waits = Vec::new();
    for user in 0..40 {
        let user = format!("user {user}");
        for client in &mut clients {
            assert_eq!(client.get("/", &[("x-user", &user)]).status, 200);
        }
        let [here, there] = clients.each_mut().map(|client| wait_of(client, &user));
        assert!((3_500..=4_320).contains(&here), "{here}");
        // The same key has the same part everywhere. The requests do not come in the same second.
        assert!(here.abs_diff(there) < 60, "{user}: {here} {there}");
        assert!(wait_of(&mut clients[0], &user).abs_diff(here) < 60);
        waits.push(here);
    }
    let (least, most) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
    assert!(most - least > 360, "{waits:?}");
    waits.sort_unstable();
    waits.dedup();
    assert!(waits.len() > 20, "{waits:?}");
    let line = one.log.wait("throttled", |_| true);
    assert!(line["retry_after_ms"].as_u64().unwrap() <= 3_600_000, "the log has the truth: {line}");
}

#[test]
fn a_limit_may_spread_less_than_the_file_says_and_never_what_is_never() {
    let proxy = Proxy::answering()
        .limit("exact", "rate = \"1/h\"\nreject = { jitter = \"0%\" }")
        .section("[reject]\njitter = \"100%\"")
        .start();
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/", &[]).status, 200);
    let wait: u64 = header(&client.get("/", &[]), "retry-after").parse().unwrap();
    assert!((3_500..=3_600).contains(&wait), "{wait}");
    let closed = Proxy::answering()
        .limit("closed", "rate = \"0/s\"")
        .section("[reject]\njitter = \"100%\"")
        .start();
    let reply = Connection::open(closed.address).get("/", &[]);
    assert_eq!((reply.status, reply.header("retry-after")), (429, None));
}
