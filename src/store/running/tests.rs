use super::*;
use crate::limit::key::Key;
use crate::observe::testing::lines;
use crate::request::key::{KeySource, KeySpec, Missing};
use crate::request::network::ClientPrefixes;
use crate::settings::{CountingKind, WantedFigures};

fn limit(name: &str) -> Arc<LimitSpec> {
    let sources = vec![KeySource::Path].into();
    Arc::new(LimitSpec {
        key: KeySpec { sources, missing: Missing::Shared, prefixes: ClientPrefixes::default() },
        counting: Some(CountingKind::TokenBucket),
        ..LimitSpec::new(Name::new(name).unwrap())
    })
}

pub(super) fn entry(key: &str, rate: &str, ends: Option<u64>) -> RunningOverride {
    RunningOverride {
        limit: "a".into(),
        key: key.into(),
        sources: vec!["path".into()],
        wanted: WantedFigures { rate: rate.into(), burst: None, queue: None },
        reason: None,
        ends: ends.map(at),
        is_ban: false,
    }
}

pub(super) fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

/// The figures that a request of this key finds.
fn found(running: &RunningOverrides, spec: &LimitSpec, key: &str) -> Option<String> {
    let key = Key::of([Some(key.as_bytes())]).into();
    running.find(spec, &key).map(|it| it.figures.to_string())
}

pub(super) fn read(running: &RunningOverrides, time: u64, entries: &[RunningOverride]) {
    let entries = entries.to_vec();
    let (at, told) = (at(time), time);
    running.read(ReadOverrides { at, generation: time, told, entries }, Instant::now());
}

/// As [`read`], and nothing but bans has changed since the last reading.
pub(super) fn read_after_bans(
    running: &RunningOverrides,
    time: u64,
    generation: u64,
    entries: &[RunningOverride],
) {
    let (entries, told) = (entries.to_vec(), running.state.read().told);
    running.read(ReadOverrides { at: at(time), generation, told, entries }, Instant::now());
}

#[tokio::test(start_paused = true)]
async fn an_override_from_redis_is_in_force_until_it_ends() {
    let (running, spec) = (RunningOverrides::default(), limit("a"));
    running.put_limits(&[Arc::clone(&spec)]);
    let both = [entry("/a", "7/s", Some(11_000_000)), entry("/b", "8/s", None)];
    read(&running, 1_000_000, &both);
    assert_eq!(found(&running, &spec, "/a").as_deref(), Some("7/s, burst 7"));
    tokio::time::advance(Duration::from_secs(2)).await;
    let told = lines(|| read(&running, 3_000_100, &both));
    assert!(told.is_empty(), "the same: {told:?}");
    tokio::time::advance(Duration::from_secs(8)).await;
    assert_eq!(found(&running, &spec, "/a"), None, "to the moment");
    running.end_expired();
    assert_eq!(running.list().len(), 1);
    read(&running, 20_000_000, &[]);
    assert_eq!(found(&running, &spec, "/b"), None);
    assert!(running.were_any.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_overtaken_changes_nothing() {
    let (running, spec) = (RunningOverrides::default(), limit("a"));
    running.put_limits(&[Arc::clone(&spec)]);
    read(&running, 5_000_000, &[entry("/a", "7/s", None)]);
    read(&running, 4_999_999, &[]);
    assert!(found(&running, &spec, "/a").is_some());
    assert!(!running.must_read(5_000_000) && running.must_read(4_999_999));
    read(&running, 6_000_000, &[entry("/a", "8/s", None)]);
    assert_eq!(found(&running, &spec, "/a").as_deref(), Some("8/s, burst 8"));
    read(&running, 100_000_000, &[entry("/a", "9/s", None)]);
    read(&running, 1, &[]);
    assert_eq!(found(&running, &spec, "/a"), None, "the clock was set back");
}

/// The overrides as Redis has them after its clock has stepped back, without a change by anybody.
fn stepped_back(running: &RunningOverrides, time: u64, entries: &[RunningOverride]) {
    let generation = running.state.read().read.unwrap().1;
    read_after_bans(running, time, generation, entries);
}

#[tokio::test(start_paused = true)]
async fn redis_s_clock_steps_back_and_an_override_ends_when_it_was_to_end() {
    let (running, spec) = (RunningOverrides::default(), limit("a"));
    running.put_limits(&[Arc::clone(&spec)]);
    read(&running, 1_000_000_000, &[entry("/a", "7/s", Some(1_011_000_000))]);
    tokio::time::advance(Duration::from_secs(5)).await;
    // Redis knows only what was left when it was last asked.
    let moved = entry("/a", "7/s", Some(110_900_000));
    let told = lines(|| stepped_back(&running, 100_000_000, std::slice::from_ref(&moved)));
    assert!(told.is_empty(), "nothing was set: {told:?}");
    let listed = running.list();
    assert_eq!(*listed[0].entry, moved, "it is listed by the present clock");
    assert_eq!((listed[0].left, listed[0].running.is_some()), (Some(Duration::from_secs(6)), true));
    tokio::time::advance(Duration::from_secs(6)).await;
    running.end_expired();
    assert_eq!(found(&running, &spec, "/a"), None);
}

#[tokio::test(start_paused = true)]
async fn an_override_that_ended_here_does_not_come_back_by_redis_clock() {
    let (running, spec) = (RunningOverrides::default(), limit("a"));
    running.put_limits(&[Arc::clone(&spec)]);
    let entries = |ends| [entry("/a", "7/s", Some(ends)), entry("/b", "8/s", None)];
    read(&running, 1_000_000_000, &entries(1_001_000_000));
    let must_read = || running.must_read(1_000_000_000);
    assert!(!must_read());
    tokio::time::advance(Duration::from_secs(1)).await;
    running.end_expired();
    assert!(!must_read(), "it may still run in Redis");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(must_read());
    stepped_back(&running, 100_000_000, &entries(100_900_000));
    assert!(!must_read());
    assert_eq!((found(&running, &spec, "/a"), running.list().len()), (None, 1));
    // Somebody sets it again.
    read(&running, 101_000_000, &entries(102_000_000));
    assert!(found(&running, &spec, "/a").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_change_anywhere_begins_a_generation() {
    let (running, spec) = (RunningOverrides::default(), limit("a"));
    running.put_limits(&[spec]);
    read(&running, 1, &[]);
    let mut before = running.generation();
    let mut began = || {
        let now = running.generation();
        std::mem::replace(&mut before, now) < now
    };
    read(&running, 2, &[]);
    assert!(began(), "a bucket was reset");
    read_after_bans(&running, 3, 2, &[]);
    assert!(!began(), "nothing has changed");
}

#[tokio::test(start_paused = true)]
async fn the_log_tells_each_beginning_and_each_end_once() {
    let running = RunningOverrides::default();
    let told = lines(|| {
        running.put_limits(&[limit("a")]);
        read(&running, 1_000_000, &[entry("/a", "7/s", Some(9_000_000)), entry("%-", "8/s", None)]);
        read(&running, 2_000_000, &[entry("/a", "9/s", Some(9_000_000)), entry("%-", "8/s", None)]);
        running.put_limits(&[limit("other")]);
        running.put_limits(&[limit("a")]);
        read(&running, 8_900_000, &[entry("%-", "8/s", None)]);
        read(&running, 9_900_000, &[]);
    });
    let told: Vec<_> = told
        .iter()
        .map(|line| {
            let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            let [message, key, rate] = ["message", "key", "rate"].map(text);
            format!("{message} {key} {rate}")
        })
        .collect();
    assert_eq!(
        told,
        [
            "override set /a 7/s",
            "override set - 8/s",
            "override set /a 9/s",
            "override ended - 8/s",
            "override ended /a 9/s",
            "override set - 8/s",
            "override set /a 9/s",
            "override ended /a 9/s",
            "override ended - 8/s",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn words_that_say_nothing_to_the_limit_are_listed_and_not_in_force() {
    let (running, spec) = (RunningOverrides::default(), limit("a"));
    running.put_limits(&[Arc::clone(&spec)]);
    let of_other_key = RunningOverride { sources: vec!["ip".into()], ..entry("/a", "7/s", None) };
    read(&running, 1, &[of_other_key, entry("/b", "fast", None)]);
    assert_eq!(running.list().iter().filter(|one| one.running.is_none()).count(), 2);
    // A request that began with other settings finds no figures of these.
    read(&running, 2, &[entry("/a", "7/s", None)]);
    let before = LimitSpec { counting: Some(CountingKind::SlidingLog), ..(*spec).clone() };
    assert!(found(&running, &spec, "/a").is_some() && found(&running, &before, "/a").is_none());
}
