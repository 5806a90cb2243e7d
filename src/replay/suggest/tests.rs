use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;

use super::*;
use crate::limit::time::Timestamp;
use crate::replay::Replay;
use crate::replay::log::LoggedHeaders;

/// A log of clients, each with its requests' times in milliseconds since the request before in the log.
fn records(log: &[(u64, u8, bool)]) -> Vec<LogRecord<'static>> {
    let mut now = Timestamp::from_micros(1 << 50).unwrap();
    let record = |(gap, client, is_login): &(u64, u8, bool)| {
        now = now.plus_micros(gap * 1_000);
        LogRecord {
            time: now,
            client: Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, *client))),
            method: "GET".into(),
            path: if *is_login { "/login" } else { "/other/7" }.into(),
            query: crate::replay::log::Logged::Absent,
            host: crate::replay::log::Logged::Absent,
            headers: LoggedHeaders::default(),
            client_is: crate::replay::log::ClientOrigin::Peer,
            status: None,
            bytes: None,
            duration: None,
        }
    };
    log.iter().map(record).collect()
}

fn wanted(touch: f64) -> WantedLimits {
    WantedLimits {
        routes: vec!["/login".to_owned(), "/{*rest}".to_owned()],
        keys: vec![vec!["ip".to_owned()], vec!["ip".to_owned(), "path".to_owned()]],
        touch,
    }
}

fn suggested(records: &[LogRecord<'_>], wanted: &WantedLimits) -> String {
    let plan = wanted.plan().unwrap();
    let mut suggest = Suggest::new(&plan, &[]);
    records.iter().for_each(|record| suggest.request(record));
    suggest.file(wanted)
}

/// For each limit how many keys it has seen, and how many of them it rejects.
fn replayed(file: &str, records: &[LogRecord<'_>]) -> Vec<(usize, usize)> {
    let parsed = config::parse("proxy.toml", file, &|_| None, &Overrides::default());
    let plan = parsed.unwrap_or_else(|problems| panic!("{file}\n{problems}")).plan;
    let mut replay = Replay::new([&plan], &[]);
    records.iter().for_each(|record| replay.request(record));
    let limits = &replay.sides()[0].tally.limits;
    limits.iter().map(|it| (it.keys.len(), it.keys.rejected().count())).collect()
}

fn log() -> impl Strategy<Value = Vec<(u64, u8, bool)>> {
    let gap = prop_oneof![5 => 0_u64..3, 3 => 0_u64..2_000, 1 => 0_u64..2_000_000];
    proptest::collection::vec((gap, 0_u8..30, any::<bool>()), 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn what_is_suggested_touches_no_more_than_the_share(log in log()) {
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

    /// A limit with a burst that is smaller by one touches too many.
    #[test]
    fn no_smaller_burst_would_do(log in log(), touch in prop_oneof![Just(0.0), Just(10.0)]) {
        let records = records(&log);
        let wanted = WantedLimits { keys: vec![vec!["ip".to_owned()]], ..wanted(touch) };
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
    let wanted = WantedLimits {
        routes: vec!["/{*rest}".to_owned(), "/login".to_owned()],
        keys: vec![vec!["ip".to_owned()]],
        touch: 10.0,
    };
    let file = suggested(&records(&log), &wanted);
    for line in [
        "# The smallest limits that touch at most 10 % of the keys.",
        "[limits.rest-ip]",
        "# 100 requests of 10 keys.",
        "# Requests of a key in its busiest minute: half of them 10, 90 % 10, 99 % 10, 99.9 % 10, all 10.",
        "[limits.login-ip]",
        "# So nothing can be suggested, and the limit rejects nothing.",
        "limits = [\"login-ip\"]",
    ] {
        assert!(file.lines().any(|it| it == line), "{line}\n{file}");
    }
}

#[test]
fn names_of_limits_are_names_and_differ() {
    let wanted = WantedLimits {
        routes: ["/a/{id}", "/a/id", "/", "/ä", "/robots.txt", "/$HOME"]
            .map(str::to_owned)
            .to_vec(),
        keys: ["header:x-api-key | ip", "ip", "header:x-2", "header:x"]
            .map(|key| vec![key.to_owned()])
            .to_vec(),
        touch: 0.0,
    };
    let plan = wanted.plan().unwrap();
    let names: Vec<_> = plan.limits.iter().map(|limit| limit.name.to_string()).collect();
    assert_eq!(plan.limits.len(), 24, "{names:?}");
}
