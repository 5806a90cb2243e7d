use http::StatusCode;
use tokio::time::{advance, sleep};

use super::*;
use crate::admin::testing;
use crate::limit::name::Name;
use crate::observe::key_hash;
use crate::observe::metrics::DecisionKind;
use crate::observe::top_keys::KeyLabel;

fn status(admin: &Admin) -> Value {
    build(admin, &ProcessReading::now(&admin.process))
}

fn limits(count: usize) -> String {
    let mut text = String::new();
    for n in 0..count {
        text += &format!("[limits.l{n}]\nrate = \"5/2s\"\nkey = [\"ip\"]\n");
        text += &format!("[[routes]]\npath = \"/{n}\"\nrespond = {{}}\nlimits = [\"l{n}\"]\n");
    }
    text
}

/// A regression: the rate of `1/h` was shown as 0.
#[tokio::test]
async fn a_slow_rate_keeps_its_digits() {
    let admin = testing::admin(&limits(1).replace("5/2s", "1/h"));
    let rate = status(&admin)["limits"][0]["rate_per_second"].as_f64().unwrap();
    assert!((rate * 3_600.0 - 1.0).abs() < 1e-9, "{rate}");
}

#[tokio::test(start_paused = true)]
async fn rates_are_of_the_last_second_and_totals_of_now() {
    let admin = testing::admin(&limits(1));
    tokio::spawn(admin.clone().keep_pulse());
    let worker = admin.process.metrics.worker(0);
    let route = worker.route(&"/0".into());
    let name = Name::new("l0").unwrap();
    let count = |requests: usize| {
        for _ in 0..requests {
            let (status, decision) = (StatusCode::NOT_FOUND, DecisionKind::Rejected);
            worker.request(route, status, decision, Duration::ZERO, None);
            let took = Some(Duration::from_micros(300));
            worker.decided(took, std::iter::once((&name, DecisionKind::Rejected)));
        }
    };
    sleep(Duration::from_millis(1_500)).await;
    count(6);
    sleep(Duration::from_secs(1)).await;
    count(1);
    let status = status(&admin);
    let (route, limit) = (&status["routes"][0], &status["limits"][0]);
    assert_eq!((&route["total"], &route["per_second"]), (&json!(7), &json!(6.0)));
    assert_eq!(route["statuses_total"]["4xx"], 7);
    assert_eq!(route["statuses_per_second"]["4xx"], 6.0);
    for counts in [route, &status["requests"]] {
        assert_eq!(counts["rejected_total"], 7, "{counts}");
        assert_eq!(counts["rejected_per_second"], 6.0, "{counts}");
        assert_eq!(counts["allowed_total"], 0, "{counts}");
    }
    assert_eq!((&limit["rejected_total"], &limit["rejected_per_second"]), (&json!(7), &json!(6.0)));
    assert_eq!((&limit["rate"], &limit["rate_per_second"]), (&json!("5/2s"), &json!(2.5)));
    let store = &status["store"];
    assert_eq!(
        (&store["questions_total"], &store["questions_per_second"]),
        (&json!(7), &json!(6.0))
    );
    assert_eq!((&store["p50_ms"], &store["p99_ms"]), (&json!(0.375), &json!(0.498)));
    assert_eq!((&status["uptime_ms"], &status["interval_ms"]), (&json!(2_500), &json!(1_000)));
    assert_eq!(status["rejected_keys_window_ms"], 2_500, "no more than the process has seen");
    advance(Duration::from_secs(2)).await;
    sleep(Duration::from_secs(2)).await;
    let status = super::build(&admin, &ProcessReading::now(&admin.process));
    assert_eq!(status["routes"][0]["per_second"], 0.0);
    assert_eq!(status["store"]["p50_ms"], json!(null), "nothing was asked");
}

/// A regression: the alarm stayed for up to fourteen seconds after the API was back.
#[tokio::test(start_paused = true)]
async fn answers_that_fail_are_an_alarm_for_the_next_seconds_and_no_longer() {
    let admin = testing::admin(&limits(1));
    tokio::spawn(admin.clone().keep_pulse());
    sleep(Duration::from_millis(7_500)).await;
    let worker = admin.process.metrics.worker(0);
    let (route, failed) = (worker.route(&"/0".into()), StatusCode::BAD_GATEWAY);
    worker.request(route, failed, DecisionKind::Allowed, Duration::ZERO, None);
    let (mut alarms, mut since) = (Vec::new(), Vec::new());
    for _ in 0..9 {
        sleep(Duration::from_secs(1)).await;
        let alarm = status(&admin)["alarms"][0].clone();
        alarms.push(alarm["what"] == "Answers fail: /0");
        since.extend(alarm["since"].as_str().map(str::to_owned));
    }
    assert!(
        since.len() > 1 && since.iter().all(|it| *it == since[0]),
        "since its begin: {since:?}"
    );
    let seconds = alarms.iter().filter(|is_alarm| **is_alarm).count();
    assert!((4..=6).contains(&seconds), "{alarms:?}");
    assert_eq!((alarms[0], &alarms[seconds..]), (true, &vec![false; 9 - seconds][..]));
}

#[tokio::test(start_paused = true)]
async fn of_many_limits_and_routes_the_busiest_are_listed() {
    let admin = testing::admin(&limits(MOST + 50));
    tokio::spawn(admin.clone().keep_pulse());
    sleep(Duration::from_millis(1_500)).await;
    let worker = admin.process.metrics.worker(1);
    let busy = format!("l{}", MOST + 49);
    worker.decision(&Name::new(&busy).unwrap(), DecisionKind::Rejected);
    let route = worker.route(&format!("/{}", MOST + 49).into());
    worker.request(route, StatusCode::OK, DecisionKind::Allowed, Duration::ZERO, None);
    sleep(Duration::from_secs(1)).await;
    let status = status(&admin);
    for (list, name) in [("limits", busy), ("routes", format!("/{}", MOST + 49))] {
        let entries = status[list].as_array().unwrap();
        assert_eq!(entries.len(), MOST);
        assert!(entries.iter().any(|entry| entry["name"] == *name), "{name}");
        assert_eq!(entries[0]["name"], if list == "limits" { "l0" } else { "/0" });
    }
}

#[tokio::test(start_paused = true)]
async fn keys_are_listed_as_the_log_shows_them() {
    let admin = testing::admin(&limits(1));
    let name = Name::new("l0").unwrap();
    let worker = admin.process.metrics.worker(0);
    let now = admin.process.clock.now();
    for text in ["%2=203.0.113.7|%-", "a"] {
        worker.top_keys.rejected(
            &name,
            key_hash(text.as_bytes()),
            KeyLabel { text: text.as_bytes(), name: None },
            now,
        );
    }
    sleep(Duration::from_millis(1_500)).await;
    let limit = &status(&admin)["limits"][0];
    let rate = &limit["rejected_keys"][0]["per_second"];
    assert!(rate.as_f64() > Some(0.0), "{limit}");
    assert_eq!(
        limit["rejected_keys"],
        json!([
            { "key": "%2=203.0.113.7|-", "lookup": "%2=203.0.113.7|%-", "name": null, "count": 1, "at_most_over": 0, "per_second": rate },
            { "key": "a", "lookup": "a", "name": null, "count": 1, "at_most_over": 0, "per_second": rate },
        ])
    );
}

#[tokio::test(start_paused = true)]
async fn reloads_outages_and_overrides_are_marked() {
    let admin = testing::admin(
        "[upstreams.api]\nservers = [\"http://a:1\"]\nrespect_retry_after = true\n\
         [[routes]]\npath = \"/\"\nupstream = \"api\"\n",
    );
    tokio::spawn(admin.clone().keep_pulse());
    sleep(Duration::from_millis(1_500)).await;
    let marks = || -> Vec<String> {
        let status = status(&admin);
        let marks = status["marks"].as_array().unwrap().clone();
        marks.iter().map(|mark| mark["text"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(marks(), [""; 0]);
    admin.process.config.reloaded(Default::default(), Default::default(), admin.wall());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(marks(), ["reload: version 1"]);
    sleep(Duration::from_secs(3_600)).await;
    assert_eq!(marks(), [""; 0], "an hour later");
}
