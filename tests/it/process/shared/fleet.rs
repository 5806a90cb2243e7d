//! `/api/fleet`: what several processes on one Redis say together.

use serde_json::{Value, json};

use crate::support::client::get;
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::sentinels::Sentinels;
use crate::support::tidegate::Tidegate;
use crate::support::wait_until;

const KEYS: &str = "tidegate::fleet{tidegate::processes}";

/// A time that is later than any lease of a process, in microseconds.
const FAR: &str = "4000000000000000";

const LIMIT: &str = "rate = \"2/h\"\nkey = [\"param:name\"]";

fn proxy(store: &str) -> Proxy {
    Proxy::answering()
        .admin()
        .store(store)
        .limit("client", LIMIT)
        .route("path = \"/{name}\"\nlimits = [\"client\"]")
}

fn fleet(proxy: &Tidegate) -> Value {
    get(proxy.admin(), "/api/fleet", &[("host", "localhost")]).json()
}

fn name_of(proxy: &Tidegate) -> String {
    let own = fleet(proxy)["processes"].as_array().unwrap().clone();
    own.iter().find(|it| it["here"] == true).unwrap()["name"].as_str().unwrap().to_owned()
}

fn names(fleet: &Value) -> Vec<&str> {
    fleet["processes"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect()
}

/// A member of each process, by its name.
fn each(fleet: &Value, member: &str) -> Vec<Value> {
    fleet["processes"].as_array().unwrap().iter().map(|it| it[member].clone()).collect()
}

/// Asks `one` until it sees so many processes, all with figures.
fn until_all(one: &Tidegate, count: usize) -> Value {
    let mut seen = Value::Null;
    wait_until(&format!("{count} processes are seen"), || {
        seen = fleet(one);
        names(&seen).len() == count && seen["note"].is_null()
    });
    seen
}

#[test]
fn three_processes_have_one_sum() {
    let server = RedisServer::start();
    let all = [(); 3].map(|()| proxy(&server.fields()).start());
    until_all(&all[0], 3);
    for proxy in &all {
        (0..4).for_each(|_| drop(get(proxy.address, "/eve", &[])));
    }
    assert_eq!(get(all[2].address, "/ann", &[]).status, 200);
    let mut seen = Value::Null;
    wait_until("all is told", || {
        seen = fleet(&all[1]);
        seen["sums"]["requests"] == 13 && seen["rejected"][0]["count"] == 10
    });
    let mut expected: Vec<_> = all.iter().map(name_of).collect();
    expected.sort();
    assert_eq!(names(&seen), expected);
    assert_eq!(each(&seen, "here").iter().filter(|it| **it == true).count(), 1);
    let requests = each(&seen, "requests");
    assert_eq!(requests.iter().filter(|it| **it == 4).count(), 2, "{seen}");
    let eve = &seen["rejected"][0];
    assert_eq!(
        json!([eve["limit"], eve["key"], eve["mode"], eve["processes"]]),
        json!(["client", "eve", "enforce", 3])
    );
    assert_eq!(seen["rejected"].as_array().unwrap().len(), 1);
    for process in seen["processes"].as_array().unwrap() {
        assert_eq!(process["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(
            json!([process["store"], process["odd_config"], process["odd_version"]]),
            json!([true, false, false])
        );
        assert!(process["since"].as_str().unwrap().starts_with("20"), "{process}");
    }
}

#[test]
fn who_is_gone_stopped_or_older_is_seen() {
    let server = RedisServer::start();
    let [one, mut killed, stopped] = [(); 3].map(|()| proxy(&server.fields()).start());
    until_all(&one, 3);
    let stopped_name = name_of(&stopped);
    stopped.signal("STOP");
    killed.signal("KILL");
    killed.wait_for_exit();
    // It has no figures, and the answer says so after a second.
    let mut seen = Value::Null;
    wait_until("it does not answer", || {
        seen = fleet(&one);
        seen["note"].as_str().is_some_and(|note| note.contains(&stopped_name))
    });
    assert!(each(&seen, "requests").contains(&Value::Null), "{seen}");
    wait_until("both are gone", || names(&fleet(&one)).len() == 1);
    stopped.signal("CONT");
    until_all(&one, 2);
    // An older version announces itself in this way, and has no words for others.
    let _: i64 = server.run(&["ZADD", "tidegate::processes", FAR, "old:1 an-id"]);
    seen = fleet(&one);
    let old =
        seen["processes"].as_array().unwrap().iter().find(|it| it["name"] == "old:1").unwrap();
    assert_eq!(
        json!([old["version"], old["requests"], old["odd_version"]]),
        json!([null, null, true])
    );
    assert!(seen["note"].as_str().unwrap().contains("old:1"), "{seen}");
}

#[test]
fn two_versions_of_the_file_are_told_once_and_when_they_agree() {
    let server = RedisServer::start();
    let file = proxy(&server.fields());
    let changed = file.clone().section("[log]\nsummary_interval = \"7s\"");
    let [one, other] = [file.start(), file.start()];
    let alike = until_all(&one, 2);
    assert_eq!(each(&alike, "odd_config"), [false, false], "where they listen does not count");
    other.reload(&changed.text_with_admin(other.admin()));
    for proxy in [&one, &other] {
        let line = proxy.log.wait("fleet differs", |_| true);
        let versions = line["versions"].as_str().unwrap();
        assert_eq!(
            (&line["level"], versions.matches(" on ").count()),
            (&"WARN".into(), 2),
            "{line}"
        );
    }
    let seen = until_all(&one, 2);
    assert_eq!(each(&seen, "odd_config"), [true, true]);
    let files = each(&seen, "config_version");
    assert!(
        files[0] != files[1] && files.contains(&alike["processes"][0]["config_version"]),
        "{files:?}"
    );
    one.reload(&changed.text_with_admin(one.admin()));
    for proxy in [&one, &other] {
        proxy.log.wait("fleet agrees", |_| true);
        assert_eq!(proxy.log.count("fleet differs"), 1);
    }
}

#[test]
fn nobody_reports_while_nobody_asks_and_nothing_is_rejected() {
    let server = RedisServer::start();
    let proxies = [(); 2].map(|()| proxy(&server.fields()).start());
    let reports = || -> Vec<String> { server.run(&["KEYS", "tidegate::fleet*:reports:*"]) };
    let versions = &format!("{KEYS}:versions");
    wait_until("both are announced", || server.run::<i64>(&["HLEN", versions]) == 2);
    assert_eq!(get(proxies[0].address, "/ann", &[]).status, 200);
    let calls = || server.calls("evalsha");
    let before = calls();
    wait_until("they have announced themselves often", || calls() >= before + 16);
    assert_eq!(reports(), Vec::<String>::new());
    assert!(server.goes_at(versions).is_some(), "it expires");
    for index in 0..9_000 {
        let path = format!("/client-with-a-long-name-{}", index % 3_000);
        _ = get(proxies[0].address, &path, &[]);
    }
    wait_until("rejections are told", || reports().len() == 1);
    let key = &reports()[0];
    let bytes: usize = server.run(&["STRLEN", key]);
    assert!((1_000..=16_384).contains(&bytes), "{bytes} bytes");
    let lives: u64 = server.run(&["PTTL", key]);
    assert!(lives <= 10_000, "{lives} ms");
    assert!(fleet(&proxies[1])["rejected"].as_array().unwrap().len() > 20);
}

#[test]
fn without_redis_a_process_shows_itself() {
    let alone = proxy("max_keys = 1000").start();
    let seen = fleet(&alone);
    assert_eq!((names(&seen).len(), &seen["note"]), (1, &Value::Null));
    assert_eq!(
        (&seen["processes"][0]["here"], &seen["processes"][0]["store"]),
        (&true.into(), &true.into())
    );

    let server = RedisServer::start();
    let proxies = [(); 2].map(|()| proxy(&server.fields()).start());
    until_all(&proxies[0], 2);
    server.pause();
    wait_until("Redis is away", || {
        let seen = fleet(&proxies[0]);
        let [process] = &seen["processes"].as_array().unwrap()[..] else { return false };
        process["store"] == false
            && seen["note"].as_str().is_some_and(|note| note.contains("Redis"))
    });
    server.resume();
    until_all(&proxies[0], 2);
}

#[test]
fn a_cluster_and_sentinels_carry_it_too() {
    let cluster = Cluster::of_masters();
    let store = format!("url = \"{}\"\ntimeout = \"20s\"", cluster.url_of_user());
    cluster.servers.iter().for_each(RedisServer::add_user_of_cluster);
    let [one, _other] = [(); 2].map(|()| proxy(&store).start());
    until_all(&one, 2);

    let sentinels = Sentinels::start();
    let store = format!("url = \"{}\"", sentinels.url());
    let [one, _other] = [(); 2].map(|()| proxy(&store).start());
    until_all(&one, 2);
    let master = sentinels.master();
    sentinels.fail_over();
    sentinels.until("another one is master", || sentinels.master() != master);
    until_all(&one, 2);
}

fn why(proxy: &Tidegate, asked: &str) -> (u16, Value) {
    let reply = get(proxy.admin(), &format!("/api/why{asked}"), &[("host", "localhost")]);
    (reply.status, reply.json())
}

/// The ID of the rejection of a request with this ID.
fn reject(proxy: &Tidegate, request_id: &str) -> String {
    let reply = get(proxy.address, "/eve", &[("x-request-id", request_id)]);
    assert_eq!(reply.status, 429);
    reply.json()["instance"].as_str().unwrap().to_owned()
}

#[test]
fn any_process_explains_what_another_rejected() {
    let server = RedisServer::start();
    let file = proxy(&server.fields())
        .server("request_id = \"x-request-id\"\ntrusted_proxies = [\"127.0.0.1\"]");
    let [one, other, stopped] = [(); 3].map(|()| file.start());
    until_all(&one, 3);
    (0..2).for_each(|_| assert_eq!(get(one.address, "/eve", &[]).status, 200));
    let [older, newer] = [reject(&other, "order-7"), reject(&stopped, "order-7")];
    assert_ne!(older, newer);
    let (status, told) = why(&one, &format!("/{older}"));
    assert_eq!(
        (status, &told["limit"], &told["now"]["remaining"]),
        (200, &"client".into(), &0.into())
    );
    assert_eq!(told["processes"].as_array().unwrap().len(), 3, "{told}");
    assert_eq!(format!("urn:uuid:{}", told["id"].as_str().unwrap()), older);
    let (_, told) = why(&one, "/order-7");
    assert_eq!(format!("urn:uuid:{}", told["id"].as_str().unwrap()), newer, "the newest");
    let (_, own) = why(&other, &format!("/{older}"));
    assert_eq!(own["processes"], json!([name_of(&other)]), "nobody else has to be asked");
    let (_, listed) = why(&one, "?limit=client&key=eve");
    let times: Vec<_> =
        listed["rejections"].as_array().unwrap().iter().map(|it| it["time"].to_string()).collect();
    assert!(times.len() == 2 && times[0] >= times[1], "the newest first: {listed}");
    let (status, problem) = why(&one, "/nobody-knows");
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        status == 404 && detail.contains(&name_of(&other)) && detail.contains("since 20"),
        "{detail}"
    );
    assert_eq!(why(&one, "?limit=unknown&key=eve").0, 404);

    let stopped_name = name_of(&stopped);
    stopped.signal("STOP");
    let (status, told) = why(&one, &format!("/{older}"));
    let note = told["note"].as_str().unwrap();
    assert!(status == 200 && note.contains(&stopped_name), "{told}");
    let (status, problem) = why(&one, &format!("/{newer}"));
    assert!(
        status == 404 && problem["detail"].as_str().unwrap().contains(&stopped_name),
        "{problem}"
    );
    stopped.signal("CONT");
    server.pause();
    let (_, told) = why(&other, "/order-7");
    assert_eq!(format!("urn:uuid:{}", told["id"].as_str().unwrap()), older);
    assert!(told["note"].as_str().unwrap().contains("Redis"), "{told}");
}

#[test]
fn what_cannot_be_read_in_redis_is_no_answer() {
    let server = RedisServer::start();
    let [one, other] = [(); 2].map(|()| proxy(&server.fields()).start());
    until_all(&one, 2);
    (0..4).for_each(|_| drop(get(other.address, "/eve", &[])));
    let other_name = name_of(&other);
    let evil = "evil:1 an-id";
    let _: i64 = server.run(&["ZADD", "tidegate::processes", FAR, evil]);
    let _: i64 = server.run(&["HSET", &format!("{KEYS}:versions"), evil, "x 0.1.0"]);
    let key = format!("{KEYS}:reports:{evil}");
    let report = r#"{"name":"x","version":"9","config_version":"x","since":"x","requests":1,
        "requests_per_second":1,"rejected_per_second":1,"store":true,"rejected":REJECTED}"#;
    let good = report.replace("REJECTED", "[]");
    let long = good.replace("\"9\"", &format!("\"{}\"", "9".repeat(200 << 10)));
    let not_text = "return redis.call('SET', KEYS[1], '\\255\\254')";
    for (evil_says, is_read) in [
        (good.clone(), true),
        (report.replace("REJECTED", r#"["a"]"#), false),
        (report.replace("REJECTED", r#"{"a":1}"#), false),
        (good.replace(":1,", ":-1,"), false),
        ("[1,2]".to_owned(), false),
        ("not UTF-8".to_owned(), false),
        (long, false),
    ] {
        let _: String = match &*evil_says {
            "not UTF-8" => server.run(&["EVAL", not_text, "1", &key]),
            _ => server.run(&["SET", &key, &evil_says]),
        };
        let mut seen = Value::Null;
        wait_until("the other one is seen beside it", || {
            seen = fleet(&one);
            seen["rejected"][0]["key"] == "eve" && names(&seen).contains(&"evil:1")
        });
        let note = seen["note"].as_str().unwrap_or_default();
        assert_eq!(note.contains("evil:1"), !is_read, "{evil_says:.99}: {seen}");
        assert!(!note.contains(&other_name), "{evil_says:.99}: {seen}");
    }
    let most = u64::MAX.to_string();
    let _: String = server.run(&[
        "SET",
        &key,
        &good.replace("\"requests\":1", &format!("\"requests\":{most}")),
    ]);
    assert_eq!(fleet(&one)["sums"]["requests"], u64::MAX);
}

#[test]
fn questions_have_room_and_who_cannot_be_asked_is_told() {
    let server = RedisServer::start();
    let [one, _other] = [(); 2].map(|()| proxy(&server.fields()).start());
    until_all(&one, 2);
    let asked = &format!("{KEYS}:asked");
    let ask = |ends: &str| {
        for index in 0..16 {
            let _: i64 =
                server.run(&["HSET", asked, &format!("q{index}"), &format!("{ends} why/{index}?")]);
        }
    };
    let note = || why(&one, "?limit=client&key=eve").1["note"].clone();
    ask(FAR);
    wait_until("questions without an end are gone", || note().is_null());
    let now: Vec<String> = server.run(&["TIME"]);
    ask(&format!("{}000000", now[0].parse::<u64>().unwrap() + 50));
    let told = note().to_string();
    assert!(told.contains("too many questions are open"), "{told}");
    until_all(&one, 2);
    let _: i64 = server.run(&["DEL", asked]);
    let _: String = server.run(&["SET", asked, "x"]);
    let seen = fleet(&one);
    assert!(seen["note"].as_str().unwrap().contains("another type"), "{seen}");
}

#[test]
fn a_process_explains_a_limit_that_it_does_not_have() {
    let server = RedisServer::start();
    let file = proxy(&server.fields());
    let [one, other] = [file.start(), file.clone().limit("more", LIMIT).start()];
    until_all(&one, 2);
    let (status, listed) = why(&one, "?limit=more&key=eve");
    assert_eq!((status, &listed["rejections"]), (200, &json!([])), "{listed}");
    assert_eq!(why(&one, "?limit=unknown&key=eve").0, 404);
    other.signal("STOP");
    let (status, problem) = why(&one, "?limit=more&key=eve");
    let detail = problem["detail"].as_str().unwrap();
    assert!(status == 404 && detail.contains("no answer within a second"), "{detail}");
    other.signal("CONT");
}
