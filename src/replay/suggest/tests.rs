use std::net::{IpAddr, Ipv4Addr};

use hashbrown::HashSet;
use proptest::prelude::*;

use super::*;
use crate::limit::key::Key;
use crate::limit::time::Timestamp;
use crate::replay::Replay;
use crate::replay::log::{Logged, LoggedHeaders};
use crate::settings::testing::settings;

/// A log of clients, each with its requests' times in milliseconds since the request before in the log.
fn records(log: &[(u64, u8, bool)]) -> Vec<LogRecord> {
    let mut now = Timestamp::from_micros(1 << 50).unwrap();
    let record = |(gap, client, is_login): &(u64, u8, bool)| {
        now = now.plus_micros(gap * 1_000);
        LogRecord {
            user: Logged::Unknown,
            time: now,
            client: Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, *client))),
            method: "GET".into(),
            path: if *is_login { "/login" } else { "/other/7" }.into(),
            query: Logged::Absent,
            host: Logged::Absent,
            headers: LoggedHeaders::default(),
            client_is: crate::replay::log::ClientOrigin::Peer,
            status: None,
            bytes: None,
            ..LogRecord::default()
        }
    };
    log.iter().map(record).collect()
}

/// Limits by each of these keys, whose sources stand with commas between them.
fn by(paths: &[&str], keys: &[&str], touch: f64, file: Option<&str>) -> WantedLimits {
    let paths: Vec<_> = paths.iter().map(|path| (*path).to_owned()).collect();
    let keys: Vec<_> = keys.iter().map(|key| key.split(',').map(str::to_owned).collect()).collect();
    WantedLimits::new(&paths, &keys, touch, file).unwrap()
}

fn wanted(touch: f64) -> WantedLimits {
    by(&["/login", "/{*rest}"], &["ip", "ip,path"], touch, None)
}

fn suggested(records: &[LogRecord], wanted: &WantedLimits) -> String {
    let settings = wanted.settings(&|_| None).unwrap();
    let mut suggest = Suggest::new(&settings, &[]);
    records.iter().for_each(|record| suggest.request(record));
    suggest.file(wanted)
}

/// For each limit the keys that it has seen, and those that it rejects.
fn replayed_keys(file: &str, records: &[LogRecord]) -> Vec<(HashSet<Key>, HashSet<Key>)> {
    let settings = settings(file);
    let mut replay = Replay::new([&settings], &[]);
    records.iter().for_each(|record| replay.request(record));
    let limits = &replay.sides[0].tally.limits;
    let keys = limits.iter().map(|limit| {
        let seen = limit.keys.table.iter().map(|(key, _)| key.clone());
        (seen.collect(), limit.keys.rejected().map(|(key, _)| key.clone()).collect())
    });
    keys.collect()
}

/// For each limit how many keys it has seen, and how many of them it rejects.
fn replayed(file: &str, records: &[LogRecord]) -> Vec<(usize, usize)> {
    let keys = replayed_keys(file, records).into_iter();
    keys.map(|(seen, rejected)| (seen.len(), rejected.len())).collect()
}

/// A file with routes of several kinds, and limits that a suggestion does not look at.
const FILE: &str = r#"
[server]
listen = "127.0.0.1:1"
trusted_proxies = ["10.0.0.0/8"]
limits = ["old"]
[store]
url = "redis://localhost"
[upstreams.one]
servers = ["http://127.0.0.1:1"]
[limits.old]
key = []
rate = "0/s"
[[routes]]
path = "/login"
upstream = "one"
[[routes]]
path = "/login"
methods = ["POST"]
upstream = "one"
rewrite = "/v2/login"
[[routes]]
name = "free"
path = "/other/{id}"
headers = { x-plan = "free" }
upstream = "one"
[[routes]]
path = "/never"
respond = { status = 404 }
[[routes]]
path = "/{*rest}"
upstream = "one"
limits = ["old"]
"#;

fn log() -> impl Strategy<Value = Vec<(u64, u8, bool)>> {
    let gap = prop_oneof![5 => 0_u64..3, 3 => 0_u64..2_000, 1 => 0_u64..2_000_000];
    proptest::collection::vec((gap, 0_u8..30, any::<bool>()), 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn suggested_limits_touch_no_more_than_the_share(log in log()) {
        let records = records(&log);
        for touch in [0.0, 0.1, 1.0, 10.0, 50.0, 100.0] {
            let file = suggested(&records, &wanted(touch));
            for (keys, rejected) in replayed(&file, &records) {
                #[allow(clippy::cast_precision_loss)]
                let share = rejected as f64 / keys.max(1) as f64;
                prop_assert!(share * 100.0 <= touch, "{} of {} for {}\n{}", rejected, keys, touch, file);
            }
        }
    }

    #[test]
    fn limits_of_several_routes_touch_no_more_than_the_share_together(log in log()) {
        let records = records(&log);
        for touch in [0.0, 5.0, 10.0, 50.0, 100.0] {
            let file = suggested(&records, &by(&["/login", "/other/{id}"], &["ip"], touch, None));
            let (seen, rejected): (Vec<_>, Vec<_>) =
                replayed_keys(&file, &records).into_iter().unzip();
            let together = |of_limits: Vec<HashSet<Key>>| -> HashSet<Key> {
                of_limits.into_iter().flatten().collect()
            };
            let (seen, rejected) = (together(seen).len(), together(rejected).len());
            #[allow(clippy::cast_precision_loss)]
            let share = rejected as f64 / seen as f64;
            prop_assert!(share * 100.0 <= touch, "{} of {} for {}\n{}", rejected, seen, touch, file);
        }
    }

    /// The requests of the log belong to several routes of the file, also by conditions besides the path. Some log
    /// lines do not tell the header that is a condition.
    #[test]
    fn suggested_limits_for_routes_touch_no_more_than_the_share(
        log in log(), methods in proptest::collection::vec(0_u8..4, 400),
    ) {
        let mut records = records(&log);
        for (record, method) in records.iter_mut().zip(methods) {
            record.client = Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
            let client = record.time.as_micros() % 7;
            let mut named = |name: &'static str, value: String| {
                record.headers.push(name.into(), Logged::Value(value));
            };
            named("x-forwarded-for", format!("192.0.2.{client}"));
            if method == 1 {
                named("x-plan", "free".to_owned());
            }
            record.method = if method == 2 { "POST" } else { "GET" }.into();
        }
        for touch in [0.0, 10.0, 50.0] {
            let file = suggested(&records, &by(&[], &["ip", "ip,route"], touch, Some(FILE)));
            for (keys, rejected) in replayed(&file, &records) {
                #[allow(clippy::cast_precision_loss)]
                let share = rejected as f64 / keys.max(1) as f64;
                prop_assert!(share * 100.0 <= touch, "{} of {} for {}\n{}", rejected, keys, touch, file);
            }
        }
    }

    /// With a burst that is smaller by one, a limit touches too many keys.
    #[test]
    fn no_smaller_burst_would_do(log in log(), touch in prop_oneof![Just(0.0), Just(10.0)]) {
        let records = records(&log);
        let wanted = by(&["/{*rest}"], &["ip"], touch, None);
        let file = suggested(&records, &wanted);
        let smaller = |line: &str| match line.strip_prefix("burst = ").map(str::parse::<u64>) {
            Some(Ok(burst)) if burst > 1 => format!("burst = {}\n", burst - 1),
            _ => format!("{line}\n"),
        };
        let tight: String = file.lines().map(smaller).collect();
        let bursts = file.lines().filter_map(|line| line.strip_prefix("burst = "));
        for ((keys, rejected), burst) in replayed(&tight, &records).into_iter().zip(bursts) {
            #[allow(clippy::cast_precision_loss)]
            let share = rejected as f64 / keys.max(1) as f64;
            prop_assert!(burst == "1" || share * 100.0 > touch, "{} of {}\n{}", rejected, keys, tight);
        }
    }
}

#[test]
fn the_reasons_stand_in_comments() {
    // Nine clients with one request each second, one with ten at once.
    let mut log: Vec<_> = (0..90).map(|n| (100, n % 9, false)).collect();
    log.extend([(0, 9, false); 10]);
    let wanted = by(&["/{*rest}", "/login"], &["ip"], 10.0, None);
    let file = suggested(&records(&log), &wanted);
    for line in [
        "# The smallest limits that touch at most 10 % of the keys.",
        "[limits.rest-ip]",
        "# 100 requests of 10 keys.",
        "[limits.login-ip]",
        "# So nothing can be suggested, and the limit rejects nothing.",
        "limits = [\"login-ip\"]",
    ] {
        assert!(file.lines().any(|it| it == line), "{line}\n{file}");
    }
}

#[test]
fn names_of_limits_are_names_and_differ() {
    let paths = ["/a/{id}", "/a/id", "/", "/ä", "/robots.txt", "/$HOME"];
    let keys = ["header:x-api-key | ip", "ip", "header:x-2", "header:x"];
    let settings = by(&paths, &keys, 0.0, None).settings(&|_| None).unwrap();
    let names: Vec<_> = settings.limits.iter().map(|limit| limit.name.to_string()).collect();
    assert_eq!(settings.limits.len(), 24, "{names:?}");
}

#[test]
fn each_route_of_the_file_with_requests_gets_limits() {
    let log: Vec<_> = (0..40).map(|n| (100, n % 4, n % 2 == 0)).collect();
    let records = records(&log);
    let limits = |file: &str| -> Vec<String> {
        let lines = file.lines().filter_map(|line| line.strip_prefix("[limits."));
        lines.map(|name| name.trim_end_matches(']').to_owned()).collect()
    };
    let all = suggested(&records, &by(&[], &["ip"], 0.0, Some(FILE)));
    assert_eq!(limits(&all), ["login-ip", "rest-ip"], "{all}");
    for lines in [
        "[server]\ntrusted_proxies = [\"10.0.0.0/8\"]\n\n[upstreams.api]",
        "[[routes]]\npath = \"/login\"\nupstream = \"api\"\nlimits = [\"login-ip\"]\n",
        "# No request of the log came here, so the route has no limit.\n[[routes]]\npath = \"/login\"\n\
         methods = [\"POST\"]\nupstream = \"api\"\n\n",
        "# 20 requests may be for this route: the log does not have the header x-plan.\n",
        "[[routes]]\nname = \"free\"\npath = \"/other/{id}\"\nheaders = { x-plan = \"free\" }\n",
    ] {
        assert!(all.contains(lines), "{lines}\n{all}");
    }
    // The other routes of the file stay, so that their requests do not count for this one.
    let one = suggested(&records, &by(&["/{*rest}"], &["ip"], 0.0, Some(FILE)));
    assert_eq!(limits(&one), ["rest-ip"], "{one}");
    assert!(one.contains("# 20 requests of 2 keys.") && one.contains("path = \"/login\""), "{one}");
    // A parameter of the path is a key only if the path has it.
    let by_param = suggested(&records, &by(&[], &["param:id", "ip"], 0.0, Some(FILE)));
    assert_eq!(limits(&by_param), ["login-ip", "rest-ip"], "{by_param}");
    let none = by(&[], &["param:nothing"], 0.0, Some(FILE)).settings(&|_| None).unwrap_err();
    assert_eq!(none, "--key: no route of the file has this parameter in its path");
    let named = by(&["/login"], &["param:id"], 0.0, Some(FILE)).settings(&|_| None).unwrap_err();
    assert!(named.contains("expected `{id}` in its path, /login"), "{named}");
    // A path that the file does not have becomes one more route.
    let new = suggested(&records, &by(&["/other/7"], &["ip"], 0.0, Some(FILE)));
    assert_eq!(limits(&new), ["other-7-ip"], "{new}");
    assert!(new.contains("# 20 requests of 2 keys."), "{new}");
}

/// Figures for requests are no figures for a limit in which a request costs more.
#[test]
fn other_costs_in_the_limits_of_the_file_are_said() {
    let file = r#"
[server]
limits = [{ name = "budget", cost = 3 }, "own"]
[upstreams.api]
servers = ["http://127.0.0.1:1"]
[limits.budget]
key = ["ip"]
rate = "90/m"
cost = 2
[limits.own]
key = ["ip"]
rate = "90/m"
cost = { header = "x-cost", default = 2 }
[[routes]]
path = "/login"
upstream = "api"
limits = [{ name = "budget", cost = 1 }]
[[routes]]
path = "/other/{id}"
respond = { usage = ["own"] }
limits = [{ name = "own", cost = 1 }]
[[routes]]
path = "/never"
respond = { status = 404, body = "a" }
"#;
    settings(file);
    let records = records(&[(0, 1, true), (1, 1, false), (2, 1, true)]);
    let said = suggested(&records, &by(&[], &["ip"], 0.0, Some(file)));
    let head = "# Each request counts as 1 here. In these limits of the file it has another cost:";
    for lines in [
        format!("{head}\n#   own: {{ default = 2, header = \"x-cost\" }}\n[limits.login-ip]\n"),
        format!("{head}\n#   budget: 3\n[limits.other-id-ip]\n"),
        "path = \"/other/{id}\"\nrespond = {}\nlimits = [\"other-id-ip\"]".to_owned(),
        "path = \"/never\"\nrespond = { body = \"a\", status = 404 }\n".to_owned(),
    ] {
        assert!(said.contains(&lines), "{lines}\n{said}");
    }
}
