//! The limits of a service, in its process.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a fault in here is a bug")]

use std::time::Duration;

use tidegate_limit::{Answer, Charge, ChargeError, Limit, LimitFault, Limits, Permit, Timestamp};

const SECOND: u64 = 1_000_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000 * SECOND + micros).unwrap()
}

/// What is left, or who rejects and for how many microseconds.
fn said(answer: Answer<Permit>) -> Result<u64, (String, Option<u64>)> {
    match answer {
        Answer::Taken { remaining, .. } => Ok(remaining),
        Answer::Rejected { by, retry_after, .. } => {
            let micros = retry_after.map(|wait| u64::try_from(wait.as_micros()).unwrap());
            Err((by.to_string(), micros))
        }
    }
}

fn limits() -> Limits {
    Limits::new([
        Limit::token_bucket("per-user", "10/s".parse().unwrap()).burst(2),
        Limit::fixed_window("a-day", "3/d".parse().unwrap()).on_the_clock(),
    ])
    .unwrap()
}

#[test]
fn all_limits_count_a_request_or_none_does() {
    let limits = limits();
    let take = |micros| {
        said(limits.take([("per-user", &["ann"]), ("a-day", &["ann"])], at(micros)).unwrap())
    };
    assert_eq!((take(0), take(0)), (Ok(1), Ok(0)));
    assert_eq!(take(0), Err(("per-user".to_owned(), Some(100_000))));
    assert_eq!(take(99_999), Err(("per-user".to_owned(), Some(1))));
    assert_eq!(take(100_000), Ok(0), "the rejected requests were counted by a-day");
    let midnight = 86_400 - 1_700_000_000 % 86_400;
    assert_eq!(take(SECOND), Err(("a-day".to_owned(), Some((midnight - 1) * SECOND))));
    let alone = limits.take([("per-user", &["ann"])], at(SECOND)).unwrap();
    assert_eq!(said(alone), Ok(1), "a-day rejected, and per-user has counted");
    assert_eq!(said(limits.take([("a-day", &["bob"])], at(0)).unwrap()), Ok(2), "another key");
    assert_eq!(limits.keys(), 3);
}

#[test]
fn lists_of_values_of_different_lengths_are_different_keys() {
    let limits = limits();
    let charges = [("per-user", &["ann", "/x"][..]), ("a-day", &[])];
    assert_eq!(said(limits.take(charges, at(0)).unwrap()), Ok(1));
    let twice = limits.take([("per-user", &["a"]), ("per-user", &["a", "b"])], at(0)).unwrap();
    assert_eq!(said(twice), Ok(1));
}

#[test]
fn what_was_not_used_goes_back() {
    let limits = Limits::new([Limit::token_bucket("tokens", "1000/m".parse().unwrap())]).unwrap();
    let charge = |cost| [Charge::new("tokens", &["ann"]).cost(cost)];
    let Answer::Taken { remaining, mut permit, .. } = limits.take_all(charge(800), at(0)).unwrap()
    else {
        panic!("a new bucket is full")
    };
    assert_eq!(remaining, 200);
    permit.settle("tokens", 300, at(0)).unwrap();
    permit.settle("tokens", 300, at(0)).unwrap();
    let answer = said(limits.take_all(charge(1), at(0)).unwrap());
    assert_eq!(answer, Ok(699), "once, and 700 were left");
    permit.settle("tokens", 1_500, at(0)).unwrap();
    drop(permit);
    let answer = said(limits.take_all(charge(1), at(0)).unwrap());
    assert_eq!(answer, Err(("tokens".to_owned(), Some(502 * 60_000))), "501 beyond the bucket");
}

#[test]
fn a_slot_is_free_again_when_its_permit_is_dropped() {
    let limits = Limits::new([Limit::concurrency("at-once", 2)]).unwrap();
    let take = || limits.take([("at-once", &["ann"])], at(0)).unwrap();
    let (first, second) = (take(), take());
    assert_eq!(said(take()), Err(("at-once".to_owned(), Some(SECOND))));
    drop(first);
    assert_eq!(said(take()), Ok(0));
    assert_eq!(said(take()), Ok(0), "`said` has dropped the permit");
    drop(second);
    assert_eq!(said(take()), Ok(1), "both are free");
}

#[test]
fn a_request_that_may_wait_gets_its_turn() {
    let limits = Limits::new([
        Limit::leaky_bucket("even", "4/s".parse().unwrap(), 2),
        Limit::token_bucket("wide", "8/s".parse().unwrap()),
    ]);
    let limits = limits.unwrap();
    let mut waits = Vec::new();
    while let Answer::Taken { wait, .. } =
        limits.take([("even", &[]), ("wide", &[])], at(0)).unwrap()
    {
        waits.push(wait.as_millis());
    }
    assert_eq!(waits, [0, 250, 500]);
    let impatient =
        Limit::token_bucket("api", "1/s".parse().unwrap()).max_wait(Duration::from_secs(1));
    let limits = Limits::new([impatient]).unwrap();
    let take = || limits.take([("api", &[])], at(0)).unwrap();
    assert!(matches!(take(), Answer::Taken { wait: Duration::ZERO, .. }));
    assert!(matches!(take(), Answer::Taken { wait, .. } if wait.as_secs() == 1));
    assert_eq!(said(take()), Err(("api".to_owned(), Some(2 * SECOND))));
}

#[test]
fn each_mistake_has_its_name() {
    use LimitFault::{Name, OnlyOf, Tokens, Twice};
    let rate = || "1/s".parse().unwrap();
    for (limits, name, fault) in [
        (vec![Limit::token_bucket("a b", rate())], "a b", Name),
        (vec![Limit::concurrency("a", 1), Limit::sliding_log("a", rate())], "a", Twice),
        (vec![Limit::concurrency("a", 0)], "a", Tokens),
        (vec![Limit::token_bucket("a", rate()).burst(0)], "a", Tokens),
        (vec![Limit::sliding_log("a", "100001/d".parse().unwrap())], "a", Tokens),
        (vec![Limit::fixed_window("a", rate()).burst(2)], "a", OnlyOf("token bucket")),
        (vec![Limit::token_bucket("a", rate()).on_the_clock()], "a", OnlyOf("fixed window")),
        (
            vec![Limit::token_bucket("a", rate()).lease(Duration::ZERO)],
            "a",
            OnlyOf("concurrency limit"),
        ),
    ] {
        let error = Limits::new(limits).unwrap_err();
        assert_eq!((error.name.as_str(), error.fault), (name, fault), "{error}");
    }
    let limits = limits();
    let charge = Charge::new("per-user", &["ann"]);
    let errors = [
        limits.take([("per-usr", &["ann"])], at(0)).unwrap_err(),
        limits.take_all([charge.clone().cost(0)], at(0)).unwrap_err(),
        limits.take_all([charge.clone(), charge.clone()], at(0)).unwrap_err(),
    ];
    let name = "per-user".to_owned();
    assert_eq!(
        errors,
        [
            ChargeError::Unknown("per-usr".to_owned()),
            ChargeError::Cost(0),
            ChargeError::Twice(name)
        ]
    );
    let Answer::Taken { mut permit, .. } = limits.take_all([charge], at(0)).unwrap() else {
        panic!()
    };
    assert!(permit.settle("a-day", 1, at(0)).is_err());
}

#[test]
fn a_client_is_told_what_the_proxy_tells() {
    let limits = limits();
    let take = || limits.take([("per-user", &["ann"]), ("a-day", &["ann"])], at(0)).unwrap();
    let Answer::Taken { permit, .. } = take() else { panic!("a new bucket is full") };
    let fields: Vec<_> = permit.quotas().headers().collect();
    let midnight = 86_400 - 1_700_000_000 % 86_400;
    let policy = r#""per-user";q=2;w=1, "a-day";q=3;w=86400"#.to_owned();
    let state = format!(r#""per-user";r=1;t=1, "a-day";r=2;t={midnight}"#);
    assert_eq!(fields, [("ratelimit-policy", policy.clone()), ("ratelimit", state)]);
    let _ = take();
    let Answer::Rejected { quotas, .. } = take() else { panic!("two are the burst") };
    let state = format!(r#""per-user";r=0;t=1, "a-day";r=1;t={midnight}"#);
    let expected =
        [("retry-after", "1".to_owned()), ("ratelimit-policy", policy), ("ratelimit", state)];
    assert_eq!(quotas.headers().collect::<Vec<_>>(), expected);
    assert_eq!(
        quotas.problem(),
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"Limit \"per-user\" counts by key: 2 at once, then 10 a second. Try again in 1 s.","violated-policies":["per-user"]}"#
    );
    let never = limits.take_all([Charge::new("per-user", &["bob"]).cost(3)], at(0)).unwrap();
    let Answer::Rejected { retry_after: None, quotas, .. } = never else { panic!("{never:?}") };
    assert!(quotas.problem().contains("10 a second. No such request will ever pass."));
    assert!(quotas.headers().all(|(name, _)| name != "retry-after"));
}

/// A service whose keys are never used again gives their memory back, although nobody calls a sweep.
#[test]
fn full_buckets_are_forgotten_by_and_by() {
    let limits = limits();
    for user in 0..1_000 {
        let _ = limits.take([("per-user", &[&user.to_string()])], at(0)).unwrap();
    }
    assert_eq!(limits.keys(), 1_000);
    for second in 2..40 {
        let _ = limits.take([("per-user", &["ann"])], at(second * SECOND)).unwrap();
    }
    assert!(limits.keys() < 10, "{}", limits.keys());
}

#[test]
fn a_table_has_no_more_keys_than_it_may() {
    let limit = Limit::fixed_window("a", "9/h".parse().unwrap());
    let limits = Limits::with_max_keys([limit], 100).unwrap();
    for user in 0..1_000 {
        let _ = limits.take([("a", &[&user.to_string()])], at(0)).unwrap();
    }
    assert_eq!(limits.keys(), 100);
}

#[test]
fn the_clock_of_the_system_moves() {
    let (first, second) = (tidegate_limit::now(), tidegate_limit::now());
    assert!(second.steady >= first.steady);
    assert!(first.wall > at(0));
}
