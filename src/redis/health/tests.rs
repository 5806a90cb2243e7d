use super::*;

fn fail(health: &RedisHealth, times: u32) {
    for _ in 0..times {
        if let Some(phase) = health.begin() {
            health.failed(phase, &CallError::TimedOut);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn only_failures_in_a_row_count() {
    let health = RedisHealth::new("here".into());
    for _ in 0..10 {
        fail(&health, FAILURES - 1);
        health.succeeded(health.begin().unwrap());
    }
    assert!(health.is_up());
    fail(&health, FAILURES);
    assert!(!health.is_up());
    assert!(health.begin().is_none());
}

#[tokio::test(start_paused = true)]
async fn one_probe_at_a_time_looks_whether_redis_is_back() {
    let health = RedisHealth::new("here".into());
    fail(&health, FAILURES);
    let first = health.permit_to_try().await;
    let second = tokio::time::timeout(Duration::from_secs(60), health.permit_to_try()).await;
    assert!(second.is_err(), "two probes at once");
    first.failed(&CallError::TimedOut);
    assert!(!health.is_up());
    let third = tokio::time::timeout(Duration::from_secs(2), health.permit_to_try()).await;
    third.expect("no further probe").succeeded();
    assert!(health.is_up());
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_given_up_makes_way() {
    let health = RedisHealth::new("here".into());
    fail(&health, FAILURES);
    drop(health.permit_to_try().await);
    assert!(tokio::time::timeout(Duration::from_secs(2), health.permit_to_try()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_call_from_before_an_outage_says_nothing_after_it() {
    let health = RedisHealth::new("here".into());
    let before = health.begin().unwrap();
    fail(&health, FAILURES);
    health.permit_to_try().await.succeeded();
    for _ in 0..10 {
        health.failed(before, &CallError::TimedOut);
    }
    assert!(health.is_up());
}

#[tokio::test(start_paused = true)]
async fn requests_that_redis_missed_are_told_of_once() {
    let health = RedisHealth::new("here".into());
    health.succeeded(health.begin().unwrap());
    let told = |tell: &dyn Fn()| -> Vec<_> {
        let line = |line: serde_json::Value| {
            let number = |field: &str| line[field].as_u64().unwrap();
            (line["message"].as_str().unwrap().to_owned(), number("decided"), number("refused"))
        };
        crate::observe::testing::lines(tell).into_iter().map(line).collect()
    };
    let missed = |decided, refused| vec![("store missed".to_owned(), decided, refused)];
    assert_eq!(told(&|| health.log_missed()), []);
    health.count_without(false);
    assert_eq!(told(&|| health.log_missed()), [], "an outage may be beginning");
    assert_eq!(told(&|| health.log_missed()), missed(1, 0));
    health.count_without(false);
    health.count_without(true);
    assert_eq!(told(&|| health.log_missed()), [], "too early");
    tokio::time::advance(MISSED_PAUSE).await;
    assert_eq!(told(&|| health.log_missed()), missed(1, 1));
    fail(&health, FAILURES);
    health.count_without(true);
    tokio::time::advance(MISSED_PAUSE).await;
    assert_eq!(told(&|| health.log_missed()), [], "its end will tell");
    let permit = health.permit_to_try().await;
    let back = told(&|| health.recovered(permit.phase));
    assert_eq!(back, [("store recovered".to_owned(), 0, 1)]);
    assert_eq!(told(&|| health.log_missed()), []);
}

/// A regression: the line said that Redis was too slow, whatever the reason was.
#[tokio::test(start_paused = true)]
async fn requests_that_redis_missed_are_told_of_with_the_last_error() {
    let health = RedisHealth::new("here".into());
    let told = || {
        health.count_without(false);
        health.log_missed();
        crate::observe::testing::lines(|| health.log_missed()).remove(0)
    };
    health.counts.failed(&CallError::TimedOut);
    health.counts.failed(&refusal("ODD something"));
    health.counts.failed(&CallError::UnusableKey(""));
    assert_eq!(told()["error"], "ODD something");
    tokio::time::advance(MISSED_PAUSE).await;
    let line = told();
    assert!(line.get("error").is_none(), "told before: {line}");
    fail(&health, FAILURES);
    health.counts.failed(&CallError::NotConnected);
    health.permit_to_try().await.succeeded();
    tokio::time::advance(MISSED_PAUSE).await;
    assert!(told().get("error").is_none(), "of the outage");
    assert!(line["help"].as_str().unwrap().contains("tidegate_store_duration_seconds"), "{line}");
}

#[tokio::test(start_paused = true)]
async fn each_reason_of_an_outage_is_told_once() {
    let health = RedisHealth::new("here".into());
    let told = |error: &CallError| {
        let lines = crate::observe::testing::lines(|| health.still_away(error));
        lines.into_iter().map(|line| line["error"].as_str().unwrap().to_owned()).next()
    };
    for _ in 0..2 {
        fail(&health, FAILURES);
        assert_eq!(told(&CallError::TimedOut), None, "told when it went");
        let other = CallError::Nonsense;
        assert_eq!(told(&other), Some(other.to_string()));
        assert_eq!([told(&other), told(&CallError::TimedOut)], [None, None]);
        for kind in [std::io::ErrorKind::BrokenPipe, std::io::ErrorKind::ConnectionRefused] {
            let error = CallError::Redis(redis::RedisError::from(std::io::Error::from(kind)));
            assert_eq!([told(&error).is_some(), told(&error).is_some()], [true, false], "{kind}");
        }
        tokio::time::advance(STILL_AWAY).await;
        assert_eq!([told(&other).is_some(), told(&other).is_some()], [true, false], "again");
        health.permit_to_try().await.succeeded();
        assert_eq!(told(&other), None, "it is back");
    }
}

fn refusal(line: &str) -> CallError {
    let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
    let redis::Value::ServerError(error) = value else { panic!("{value:?}") };
    CallError::Redis(redis::RedisError::from(error))
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_refuses_everything_ends_the_phase_at_once() {
    for (line, is_up) in [
        ("OOM command not allowed when used memory > 'maxmemory'.", false),
        ("READONLY You can't write against a read only replica.", false),
        ("NOPERM User x has no permissions to run the 'evalsha' command", false),
        ("NOPERM User keymaster has no permissions to run the 'evalsha' command", false),
        ("NOPERM No permissions to access a key", true),
        ("NOPERM this user has no permissions to access one of the keys used as arguments", true),
        ("ERR ACL failure in script: No permissions to access a key", true),
        (
            "ERR The user executing the script can't run this command script: 1, on @user_script:2.",
            true,
        ),
        ("ERR ACL failure in script: User x has no permissions to run the 'zadd' command", true),
        ("NOPERM User x has no permissions to run the 'eval' command", false),
        ("CROSSSLOT Keys in request don't hash to the same slot", true),
        ("ERR something else", true),
    ] {
        let health = RedisHealth::new("here".into());
        let error = refusal(line);
        let lines = crate::observe::testing::lines(|| {
            health.failed(health.begin().unwrap(), &error);
            // A call that succeeds in between changes nothing.
            health.begin().into_iter().for_each(|phase| health.succeeded(phase));
        });
        assert_eq!(health.is_up(), is_up, "{line}");
        let named = lines.iter().any(|it| it["error"].as_str().is_some_and(|it| it.contains(line)));
        assert_eq!(named, !is_up, "{lines:?}");
    }
    let health = RedisHealth::new("here".into());
    for _ in 0..10 * FAILURES {
        health.failed(health.begin().unwrap(), &refusal("NOPERM No permissions to access a key"));
    }
    assert!(health.is_up(), "one key is no outage");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_away_at_the_start_is_told_as_connected() {
    let health = RedisHealth::new("here".into());
    let told = |permit: TryPermit<'_>| -> Vec<_> {
        let lines = crate::observe::testing::lines(|| permit.succeeded());
        lines.into_iter().map(|line| line["message"].as_str().unwrap().to_owned()).collect()
    };
    fail(&health, FAILURES);
    assert_eq!(told(health.permit_to_try().await), ["store connected"]);
    fail(&health, FAILURES);
    assert_eq!(told(health.permit_to_try().await), ["store recovered"]);
}

/// A regression: each process believed that Redis decides, and was alone with its own buckets.
#[tokio::test(start_paused = true)]
async fn a_user_without_a_right_to_our_own_keys_is_an_outage() {
    let health = RedisHealth::new("here".into());
    let error =
        refusal("NOPERM this user has no permissions to access one of the keys used as arguments");
    let lines = crate::observe::testing::lines(|| {
        health.probe_failed(health.begin().unwrap(), &error);
    });
    assert!(!health.is_up());
    assert_eq!(lines[0]["message"], "store unavailable");
    assert!(lines[0]["help"].as_str().unwrap().contains("allow this user"), "{lines:?}");

    let health = RedisHealth::new("here".into());
    for _ in 0..10 * FAILURES {
        let error = refusal("CLUSTERDOWN Hash slot not served");
        health.probe_failed(health.begin().unwrap(), &error);
    }
    assert!(health.is_up(), "one slot is no outage");
}
