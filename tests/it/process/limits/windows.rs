//! Limits that count in windows: from a key's first request, on the clock, by the calendar.

use jiff::{Timestamp, ToSpan, Unit, Zoned};

use super::waiting::{limited, said};
use crate::support::client::{Connection, Reply, get, statuses};
use crate::support::proxy::Proxy;
use crate::support::redis::{RedisServer, in_both_stores};
use crate::support::tidegate::program;
use crate::support::wait_until;

fn retry_after(reply: &Reply) -> i64 {
    reply.header("retry-after").unwrap().parse().unwrap()
}

/// When the month ends in Berlin, in seconds since 1970, and how long it is.
fn month() -> (i64, i64) {
    let now = Timestamp::now().in_tz("Europe/Berlin").unwrap();
    let begins = now.first_of_month().unwrap().start_of_day().unwrap();
    let ends: Zoned = begins.checked_add(1.month()).unwrap();
    let length = begins.until((Unit::Second, &ends)).unwrap().get_seconds();
    (ends.timestamp().as_second(), length)
}

/// A regression: `t` was the window's whole length until its end.
#[test]
fn a_client_is_told_how_long_the_window_that_is_open_still_lasts() {
    in_both_stores(|store| {
        let limit = "rate = \"1000000/2s\"\nalgorithm = \"fixed-window\"";
        let proxy = Proxy::answering().store(store).limit("client", limit).start();
        let mut client = Connection::open(proxy.address);
        let mut before = (0, 0);
        wait_until("a second of the window has gone", || {
            let state = client.get("/", &[]).header("ratelimit").unwrap();
            let (left, seconds) = state.split_once(";r=").unwrap().1.split_once(";t=").unwrap();
            let last = before;
            before = (left.parse::<u64>().unwrap(), seconds.parse::<u64>().unwrap());
            // In the same window as before, which had begun with a request.
            last.1 == 2 && before.1 == 1 && before.0 < last.0
        });
    });
}

/// A regression: `t` was the window's whole length until a request was refused.
#[test]
fn a_client_is_told_how_long_the_window_on_the_clock_still_lasts() {
    const LENGTH: i64 = 8 * 3_600;
    in_both_stores(|store| {
        let proxy = Proxy::answering()
            .store(store)
            .section("[reject]\nheaders = [\"ratelimit\", \"x-ratelimit\"]")
            .limit("client", "rate = \"2/8h\"\nalgorithm = \"fixed-window\"\nalign = \"clock\"")
            .start();
        let left = || LENGTH - Timestamp::now().as_second() % LENGTH;
        for remaining in ["1", "0", "0"] {
            let before = left();
            let reply = get(proxy.address, "/", &[]);
            let after = left();
            let reset = reply.header("x-ratelimit-reset").unwrap();
            let state = format!("\"client\";r={remaining};t={reset}");
            assert_eq!(reply.header("ratelimit-policy").unwrap(), "\"client\";q=2;w=28800");
            if before >= after {
                assert_eq!(reply.header("ratelimit").unwrap(), state);
                let reset = reset.parse::<i64>().unwrap();
                assert!((after..=before).contains(&reset), "{after} to {before}: {reset}");
            }
        }
    });
}

/// The answer comes in the next window.
#[test]
fn a_held_client_is_told_of_the_window_in_which_it_went() {
    let limit = "[limits.client]\nrate = \"1/2s\"\nalgorithm = \"fixed-window\"\n\
                 align = \"clock\"\nwait = \"9s\"";
    let proxy = limited(limit).start();
    wait_until("a request was held", || {
        let reply = get(proxy.address, "/", &[]);
        let was_held = said(&proxy, "client", "delayed") > 0.0;
        if was_held {
            assert_eq!(reply.header("ratelimit").unwrap(), "\"client\";r=0;t=2");
        }
        was_held
    });
}

#[test]
fn a_monthly_quota_by_api_key_is_one_for_all_proxies() {
    let redis = RedisServer::start();
    let limit = "key = [\"header:x-api-key\"]\nrate = \"4/month\"\n\
                 algorithm = \"fixed-window\"\nalign = \"clock\"\ntimezone = \"Europe/Berlin\"\n\
                 overrides = [{ key = [\"partner\"], rate = \"5/month\" }]";
    let proxy = Proxy::answering()
        .store(&redis.fields())
        .section("[log]\nkeys = \"plain\"")
        .limit("monthly", limit);
    let (one, two) = (proxy.start(), proxy.start());
    let headers: &[_] = &[("x-api-key", "abc")];
    let before = month();
    assert_eq!(statuses(one.address, &[headers, headers]), [200, 200]);
    assert_eq!(statuses(two.address, &[headers, headers, headers]), [200, 200, 429]);
    let refused = get(one.address, "/", headers);
    let partner = get(one.address, "/", &[("x-api-key", "partner")]);
    let name = "tidegate:{abc}:monthly:fixed-window";
    let bytes: Vec<u8> = redis.run(&["GET", name]);
    let expires: i64 = redis.run(&["PTTL", name]);
    // A month may have ended meanwhile.
    let (ends, length) = month();
    if before == (ends, length) {
        assert_eq!(refused.status, 429);
        let left = ends - Timestamp::now().as_second();
        assert!((left..=left + 60).contains(&retry_after(&refused)));
        let policy = format!("\"monthly\";q=4;w={length}");
        assert_eq!(refused.header("ratelimit-policy").unwrap(), policy);
        assert!(partner.header("ratelimit").unwrap().starts_with("\"monthly\";r=4;"));
        assert_eq!(bytes.len(), 12);
        assert!((left - 1..=left + 60).contains(&(expires / 1_000)), "it goes when the month ends");
    }
}

#[test]
fn explain_names_the_windows() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proxy.toml");
    let limits = "[limits.monthly]\nkey = [\"ip\"]\nrate = \"100000/month\"\n\
                  algorithm = \"fixed-window\"\nalign = \"clock\"\ntimezone = \"Europe/Berlin\"\n\
                  [limits.minute]\nkey = [\"ip\"]\nrate = \"100/m\"\nalgorithm = \"sliding-window\"\n\
                  [limits.hour]\nkey = [\"ip\"]\nrate = \"900/h\"\nalgorithm = \"fixed-window\"\n\
                  [limits.log]\nkey = [\"ip\"]\nrate = \"3/h\"\nalgorithm = \"sliding-log\"\n";
    let proxy = Proxy::answering().limits(limits).store("url = \"redis://127.0.0.1\"");
    std::fs::write(&file, proxy.text().replace("LISTEN", "127.0.0.1:0")).unwrap();
    let output = program().args(["explain", "/", "--config"]).arg(&file).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    for part in [
        "monthly: 100000/month in Europe/Berlin",
        "in Redis as tidegate:{127.0.0.1}:monthly:fixed-window",
        "minute: 100/m in a sliding window",
        "in Redis as tidegate:{127.0.0.1}:minute:sliding-window",
        "hour: 900/h from a key's first request",
        "in Redis as tidegate:{127.0.0.1}:log:sliding-log",
    ] {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
}
