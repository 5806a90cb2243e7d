//! Keys that a limit's `ban` bans.

use serde_json::{Value, json};

use super::{HASH, all, ask, by_user, passes};
use crate::process::limits::waiting::{hold, said};
use crate::support::client::{Connection, Reply, get};
use crate::support::http2::Client;
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::redis::{RedisServer, in_both_stores, own_calls};
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;
use crate::support::{PATIENCE, now, wait_until};

/// A user's third rejection within an hour is the last one before a ban.
const LIMIT: &str = "rate = \"1/d\"\nban = { after = 3, within = \"1h\", for = \"2h\" }";

const ABNORMAL: &str = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";

fn request(proxy: &Tidegate, user: &str) -> Reply {
    get(proxy.address, "/", &[("x-user", user)])
}

fn is_banned(proxy: &Tidegate, user: &str) -> bool {
    let reply = request(proxy, user);
    !reply.body.is_empty() && reply.json()["type"] == ABNORMAL
}

/// Rejects this user so often, without a ban.
fn reject(proxy: &Tidegate, user: &str, times: usize) {
    for _ in 0..times {
        let reply = request(proxy, user);
        assert_eq!(reply.status, 429);
        assert!(reply.text().contains("#quota-exceeded"), "{}", reply.text());
    }
}

fn bans(proxy: &Tidegate) -> f64 {
    Metrics::of(proxy.admin()).value("tidegate_bans_total{limit=\"user\"}")
}

fn end(proxy: &Tidegate, user: &str) {
    let path = format!("/user/keys/{user}/override?plain");
    assert_eq!(ask(proxy.admin(), "DELETE", &path, "").status, 204);
}

fn reasons(proxy: &Tidegate) -> Vec<Value> {
    let all = all(proxy);
    let overrides = all["overrides"].as_array().unwrap().iter();
    overrides.map(|one| json!([one["key"], one["rate"], one["reason"], one["in_force"]])).collect()
}

#[test]
fn a_key_that_is_rejected_often_is_banned_for_a_time() {
    in_both_stores(|store| {
        let proxy = by_user(LIMIT, store).start();
        assert!(passes(&proxy, "secret-a") && passes(&proxy, "b"));
        assert_eq!(bans(&proxy), 0.0, "it is there before the first ban");
        reject(&proxy, "secret-a", 3);
        let reply = request(&proxy, "secret-a");
        assert_eq!((reply.status, &reply.json()["type"]), (429, &ABNORMAL.into()));
        let title = "Request not satisfied due to detection of abnormal request pattern";
        assert_eq!((&reply.json()["title"], &reply.json()["status"]), (&title.into(), &429.into()));
        assert_eq!(reply.violated(), ["user"]);
        let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
        assert!((7_100..=7_200).contains(&wait), "the rest of the ban: {wait}");
        assert_eq!(reply.header("ratelimit-policy").unwrap(), "\"user\";q=0");
        assert_eq!(reply.header("ratelimit").unwrap(), format!("\"user\";r=0;t={wait}"));
        let line = proxy.log.wait("banned", |_| true);
        assert_eq!((&line["level"], &line["limit"]), (&"INFO".into(), &"user".into()));
        assert_eq!((&line["key"], &line["count"]), (&HASH.into(), &3.into()));
        assert_eq!(line["lasts_ms"], 7_200_000);
        wait_until("it is counted", || bans(&proxy) == 1.0);
        assert_eq!(reasons(&proxy), [json!([HASH, "0/s", "banned", true])]);
        let left = all(&proxy)["overrides"][0]["ends_in_ms"].as_u64().unwrap();
        assert!((7_100_000..=7_200_000).contains(&left), "{left}");
        let bucket = ask(proxy.admin(), "GET", "/user/keys/secret-a?plain", "").json();
        let retry = bucket["retry_after_ms"].as_u64().unwrap();
        assert!((7_100_000..=7_200_000).contains(&retry), "{bucket}");
        // Rejections meanwhile lead to no other ban.
        (0..9).for_each(|_| assert!(is_banned(&proxy, "secret-a")));
        reject(&proxy, "b", 2);
        assert_eq!((bans(&proxy), proxy.log.count("banned")), (1.0, 1));
        assert_eq!(proxy.log.count("override set"), 0, "the ban has its own line");
        assert!(!proxy.log.text().contains("secret-a"));
    });
}

#[test]
fn a_banned_client_gets_the_status_of_the_ban() {
    let ban = "ban = { after = 1, within = \"1h\", for = \"2h\", status = 403 }";
    let limits = format!(
        "[limits.user]\nkey = [\"header:x-user\"]\nrate = \"1/d\"\n{ban}\n\
         [limits.all]\nkey = []\nrate = \"3/365d\"\n"
    );
    let proxy = Proxy::answering().admin().section("[log]\naccess = true").limits(&limits).start();
    assert!(passes(&proxy, "a") && passes(&proxy, "b"));
    reject(&proxy, "a", 1);
    let reply = request(&proxy, "a");
    assert_eq!((reply.status, &reply.json()["status"]), (403, &403.into()));
    assert_eq!(reply.json()["type"], ABNORMAL);
    assert!(passes(&proxy, "c"));
    // Another limit would let the request pass only after a year.
    let reply = request(&proxy, "a");
    assert_eq!((reply.status, reply.violated()), (403, vec!["user".to_owned(), "all".to_owned()]));
    let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!(wait > 7_200, "true for all limits together: {wait}");
    let line = proxy.log.wait("request", |line| line["status"] == 403);
    assert_eq!(line["limit"], "user");
    let call = [("content-type", "application/grpc"), ("x-user", "a")];
    let reply = Client::open(proxy.address).post("/a.B/C", &call, b"x");
    assert_eq!(reply.header("grpc-status").as_deref(), Some("8"));
}

/// Only what this limit rejects counts, and only where it rejects.
#[test]
fn other_limits_and_shadows_ban_nobody() {
    let ban = "ban = { after = 1, within = \"1h\", for = \"2h\" }";
    let limits = format!(
        "[limits.user]\nkey = [\"header:x-user\"]\nrate = \"1000/h\"\n{ban}\n\
         [limits.shadow]\nkey = [\"header:x-user\"]\nrate = \"1/d\"\nmode = \"shadow\"\n{ban}\n\
         [limits.mark]\nkey = [\"header:x-user\"]\nrate = \"1/d\"\nmode = \"mark\"\n{ban}\n\
         [limits.other]\nkey = [\"header:x-user\"]\nrate = \"2/d\"\n"
    );
    let proxy = Proxy::answering().admin().limits(&limits).start();
    let statuses: Vec<_> = (0..6).map(|_| request(&proxy, "a").status).collect();
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429]);
    assert!(!is_banned(&proxy, "a"));
    assert_eq!(all(&proxy)["overrides"], json!([]));
}

/// A regression: a full table's shared bucket was used up by others, and its refusals banned an honest new key.
#[test]
fn what_a_shared_bucket_refuses_bans_nobody() {
    let ban = "rate = \"1/d\"\nban = { after = 1, within = \"1h\", for = \"2h\" }";
    let proxy = Proxy::answering()
        .admin()
        .store("max_keys = 1")
        .limit("all", "rate = \"1000/h\"")
        .limit("user", &format!("key = [\"header:x-user\"]\n{ban}"))
        .start();
    assert!(passes(&proxy, "a"), "its bucket finds no room beside that of `all`");
    reject(&proxy, "b", 5);
    assert_eq!(bans(&proxy), 0.0);
}

/// A regression: a process that drained banned the clients whose requests it had held, on all proxies.
#[test]
fn what_a_drain_gives_up_bans_nobody_and_is_one_decision() {
    in_both_stores(|store| {
        let (api, told, go) = Upstream::slow();
        let limit = "key = [\"header:x-user\"]\nalgorithm = \"leaky-bucket\"\nrate = \"1/h\"\n\
                     queue = 5\nban = { after = 1, within = \"1h\", for = \"2h\" }";
        let file = Proxy::of_one_worker(&api).admin().store(store).limit("user", limit);
        let file = file.section("[log]\nthrottle = \"each\"");
        let mut proxy = file.server("drain_timeout = \"30s\"").start();
        let mut busy = Connection::open(proxy.address);
        busy.send("GET /slow HTTP/1.1\r\nhost: a\r\nx-user: b\r\n\r\n");
        told.recv_timeout(PATIENCE).unwrap();
        assert!(passes(&proxy, "a"));
        let mut client = hold(&proxy, "a");
        proxy.signal("TERM");
        assert_eq!(client.reply("GET").status, 429);
        let said = ["allowed", "delayed", "rejected"].map(|kind| said(&proxy, "user", kind));
        assert_eq!((said, bans(&proxy)), ([2.0, 1.0, 0.0], 0.0));
        assert_eq!(all(&proxy)["overrides"], json!([]));
        go.send(()).unwrap();
        assert_eq!(busy.reply("GET").status, 200);
        assert_eq!(proxy.wait().code(), Some(0));
    });
}

/// A regression: others took all places to wait, and a key that would have been held was banned.
#[test]
fn whom_others_leave_no_place_to_wait_is_not_banned() {
    in_both_stores(|store| {
        let limit = |more: &str| {
            format!("rate = \"1/h\"\n{more}\nban = {{ after = 2, within = \"1h\", for = \"2h\" }}")
        };
        let [leaky, token] =
            ["algorithm = \"leaky-bucket\"\nmax_waiting = 2", "wait = \"2h\"\nmax_waiting = 2"];
        for (more, [a, b]) in [(leaky, ["a", "b"]), (token, ["c", "d"])] {
            let proxy = by_user(&limit(more), store).section("[log]\nthrottle = \"each\"").start();
            assert!(passes(&proxy, a) && passes(&proxy, b));
            // One client address has at most half of the places.
            let _held = hold(&proxy, a);
            reject(&proxy, b, 5);
            assert_eq!(bans(&proxy), 0.0, "{more}");
            reject(&proxy, a, 2);
            assert!(is_banned(&proxy, a), "its own requests have the places: {more}");
        }
        // With a place it would be rejected too.
        let fast =
            "wait = \"2h\"\nmax_waiting = 2\noverrides = [{ key = [\"fast\"], rate = \"1/h\" }]";
        let limit = limit(fast).replacen("1/h", "1/d", 1);
        let proxy = by_user(&limit, store).section("[log]\nthrottle = \"each\"").start();
        assert!(passes(&proxy, "fast") && passes(&proxy, "e"));
        let _held = hold(&proxy, "fast");
        reject(&proxy, "e", 2);
        assert!(is_banned(&proxy, "e"));
    });
}

#[test]
fn a_reload_keeps_the_count_and_the_ban() {
    let proxy = by_user(LIMIT, "");
    let running = proxy.start();
    assert!(passes(&running, "b"));
    reject(&running, "b", 2);
    let text = |ban: &str| proxy.text().replace("for = \"2h\"", ban);
    running.reload(&text("for = \"3h\""));
    running.log.wait("config reloaded", |_| true);
    reject(&running, "b", 1);
    assert!(is_banned(&running, "b"));
    assert_eq!(running.log.wait("banned", |_| true)["lasts_ms"], 10_800_000);
    running.reload(&text("status = 403, for = \"3h\""));
    wait_until("the ban has the new status", || request(&running, "b").status == 403);
    assert_eq!(running.log.count("banned"), 1);
}

#[test]
fn a_ban_of_one_proxy_holds_on_all_and_is_logged_once() {
    let server = RedisServer::start();
    let [one, other] = [(); 2].map(|()| by_user(LIMIT, &server.fields()).start());
    assert!(passes(&one, "b"));
    reject(&other, "b", 2);
    reject(&one, "b", 3);
    assert!(is_banned(&one, "b"), "at once");
    // A request would be a rejection, and the third one a ban by the other itself.
    wait_until("the other has it too", || reasons(&other).len() == 1);
    assert!(is_banned(&other, "b"));
    one.log.wait("banned", |_| true);
    assert_eq!(reasons(&other), reasons(&one));
    let third = by_user(LIMIT, &server.fields()).start();
    wait_until("one that starts later has it", || reasons(&third).len() == 1);
    assert!(is_banned(&third, "b"));
    end(&other, "b");
    for proxy in [&one, &other, &third] {
        wait_until("it has ended everywhere", || reasons(proxy).is_empty());
        proxy.log.wait("override ended", |_| true);
        assert_eq!(proxy.log.count("override set"), 0);
    }
    // What the other had counted before the ban is forgotten.
    reject(&other, "b", 2);
    let logged: usize = [&one, &other, &third].iter().map(|proxy| proxy.log.count("banned")).sum();
    assert_eq!((logged, bans(&one) + bans(&other) + bans(&third)), (1, 1.0));
}

/// A regression: each ban was a call of its own. And one that was under way set the ban again that an operator had
/// ended meanwhile.
#[test]
fn many_bans_are_one_call_and_none_comes_after_its_end() {
    let server = RedisServer::start();
    let limit = LIMIT.replace("after = 3", "after = 1") + "\nscope = \"node\"";
    let proxy = by_user(&limit, &server.fields()).start();
    let users: Vec<_> = (0..200).map(|number| format!("u{number}")).collect();
    users.iter().for_each(|user| assert!(passes(&proxy, user)));
    let (before, began) = (server.calls("evalsha"), now());
    server.pause();
    users.iter().for_each(|user| reject(&proxy, user, 1));
    std::thread::scope(|scope| {
        let ended = &users[..20];
        let all: Vec<_> = ended.iter().map(|user| scope.spawn(|| end(&proxy, user))).collect();
        server.resume();
        all.into_iter().for_each(|one| one.join().unwrap());
    });
    wait_until("all are sent", || reasons(&proxy).len() == 180 && bans(&proxy) == 200.0);
    let stored = || server.run::<Vec<String>>(&["HKEYS", "tidegate::overrides"]);
    wait_until("Redis has them", || stored().iter().filter(|it| it.contains(':')).count() == 180);
    // The 20 ends, and what the process asks anyway.
    let more = server.calls("evalsha") - before;
    assert!(more <= 40 + own_calls(began.elapsed()), "{more} calls");
}

#[test]
fn a_flood_of_a_banned_key_costs_redis_nothing() {
    let server = RedisServer::start();
    let limits = "[limits.user]\nkey = [\"header:x-user\"]\nrate = \"1/d\"\n\
                  ban = { after = 3, within = \"1h\", for = \"2h\" }\n\
                  [limits.all]\nkey = []\nrate = \"1000000/s\"\n";
    let proxy = Proxy::answering().admin().limits(limits).store(&server.fields()).start();
    assert!(passes(&proxy, "b"));
    reject(&proxy, "b", 3);
    proxy.log.wait("banned", |_| true);
    let (before, began) = (server.calls("evalsha"), now());
    let mut client = Connection::open(proxy.address);
    for _ in 0..2_000 {
        assert_eq!(client.get("/", &[("x-user", "b")]).status, 429);
    }
    let more = server.calls("evalsha") - before;
    assert!(more <= 50 + own_calls(began.elapsed()), "{more} calls");
    assert_eq!(bans(&proxy), 1.0);
}

#[test]
fn without_redis_a_ban_holds_here_and_redis_is_told_when_it_is_back() {
    let mut server = RedisServer::start();
    let store = server.fields().replace("20s", "1s");
    let [one, other] = [(); 2].map(|()| by_user(LIMIT, &store).start());
    server.kill();
    let up = |proxy: &Tidegate| Metrics::of(proxy.admin()).value("tidegate_store_up") == 1.0;
    let mut users = (0..).map(|number| format!("u{number}"));
    wait_until("Redis counts as away", || {
        passes(&one, &users.next().unwrap());
        !up(&one)
    });
    for user in ["b", "c"] {
        assert!(passes(&one, user));
        reject(&one, user, 3);
        assert!(is_banned(&one, user), "by this process's own rejections");
    }
    wait_until("they are logged", || one.log.count("banned") == 2);
    assert_eq!(reasons(&one).len(), 2);
    end(&one, "c");
    assert!(!is_banned(&one, "c"), "a ban that Redis does not know can be ended");
    server.restart();
    // A request would be a rejection, and enough of them a ban by the other itself.
    wait_until("the other has it", || reasons(&other).len() == 1);
    assert!(is_banned(&other, "b") && is_banned(&one, "b"));
    assert_eq!((one.log.count("banned"), other.log.count("banned")), (2, 0));
    assert_eq!(bans(&one), 2.0);
    let listed = |proxy: &Tidegate| all(proxy)["overrides"][0]["ends_in_ms"].as_u64().unwrap();
    assert!(listed(&other) <= 7_200_000, "the rest of it");
    assert_eq!(all(&other)["overrides"].as_array().unwrap().len(), 1);
}
