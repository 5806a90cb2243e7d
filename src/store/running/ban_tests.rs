//! Tests of bans, by a clock that is moved.

use super::bans::{MOST_BANNED, MOST_COUNTED};
use super::tests::{at, entry, read, read_after_bans};
use super::*;
use crate::limit::key::Key;
use crate::observe::testing::lines;
use crate::settings::testing::limit;

const SECOND: u64 = 1_000_000;

/// A limit that bans a path for ten minutes at its third rejection within a minute.
fn banning() -> Arc<LimitSpec> {
    limit("key = [\"path\"]\nrate = \"1/s\"\nban = { after = 3, within = \"1m\", for = \"10m\" }")
}

fn running(spec: &Arc<LimitSpec>) -> RunningOverrides {
    let running = RunningOverrides::default();
    running.put_limits(&[Arc::clone(spec)]);
    running
}

fn key(path: &str) -> BucketKey {
    Key::of([Some(path.as_bytes())]).into()
}

fn client(number: usize) -> IpAddr {
    IpAddr::from(u32::try_from(number).unwrap().to_be_bytes())
}

/// Counts rejections of one key, the path, at these seconds. All requests come from one client. There is no Redis.
fn reject(running: &RunningOverrides, spec: &Arc<LimitSpec>, path: &str, seconds: &[u64]) {
    for second in seconds {
        running.count_rejection(spec, &key(path), client(0), at(second * SECOND).into(), false);
    }
}

/// Lets a client invent paths until no further one is banned. Returns how many are.
fn invent(running: &RunningOverrides, spec: &Arc<LimitSpec>, from: IpAddr) -> usize {
    let before = running.list().len();
    for number in 0..MOST_RUNNING {
        let path = key(&format!("/{from}/{number}"));
        (0..4).for_each(|_| running.count_rejection(spec, &path, from, at(SECOND).into(), false));
    }
    running.list().len() - before
}

/// How long the ban of this path still lasts.
fn banned(running: &RunningOverrides, spec: &LimitSpec, path: &str) -> Option<Duration> {
    let found = running.find(spec, &key(path))?;
    assert_eq!(found.figures.to_string(), "0/s");
    found.banned
}

#[tokio::test(start_paused = true)]
async fn so_many_rejections_within_the_time_are_a_ban() {
    for (seconds, expected) in [
        (&[1, 1, 1][..], true),
        (&[1, 2], false),
        (&[1, 60, 61], false),
        (&[1, 60, 60], true),
        (&[1, 2, 61, 61], true),
        (&[1, 61, 121, 181, 241], false),
    ] {
        let spec = banning();
        let running = running(&spec);
        reject(&running, &spec, "/a", seconds);
        assert_eq!(banned(&running, &spec, "/a").is_some(), expected, "{seconds:?}");
        assert_eq!(banned(&running, &spec, "/b"), None, "another key");
    }
}

#[tokio::test(start_paused = true)]
async fn a_ban_is_logged_once_and_ends_by_itself() {
    let spec = banning();
    let running = running(&spec);
    let told = lines(|| reject(&running, &spec, "/a", &[1, 1, 1]));
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((&told[0]["message"], &told[0]["key"]), (&"banned".into(), &"/a".into()));
    assert_eq!((&told[0]["count"], &told[0]["lasts_ms"]), (&3.into(), &600_000.into()));
    assert_eq!(banned(&running, &spec, "/a"), Some(Duration::from_secs(600)));
    tokio::time::advance(Duration::from_secs(599)).await;
    assert_eq!(banned(&running, &spec, "/a"), Some(Duration::from_secs(1)));
    let listed = running.list();
    assert_eq!(listed[0].entry.reason.as_deref(), Some("banned"));
    assert_eq!(listed[0].entry.ends, Some(at(601 * SECOND)));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(banned(&running, &spec, "/a"), None, "to the moment");
    let told = lines(|| running.end_expired());
    assert_eq!((told.len(), &told[0]["message"]), (1, &"override ended".into()));
    reject(&running, &spec, "/a", &[602, 602]);
    assert_eq!(banned(&running, &spec, "/a"), None, "the count began anew");
    assert_eq!(running.bans(&spec.name), 1);
}

#[tokio::test(start_paused = true)]
async fn a_ban_that_an_operator_ends_leaves_no_count() {
    let spec = banning();
    let running = running(&spec);
    let long = format!("/{}", "a".repeat(300));
    for path in ["/a", &long, "/a|b%{}"] {
        reject(&running, &spec, path, &[1, 1, 1]);
        assert!(banned(&running, &spec, path).is_some(), "{path}");
        let listed = running.list()[0].entry.key.clone();
        assert!(running.end_here("a", &listed));
        reject(&running, &spec, path, &[2, 2]);
        assert_eq!(banned(&running, &spec, path), None, "{path}");
        reject(&running, &spec, path, &[2]);
        assert!(banned(&running, &spec, path).is_some(), "{path}");
        assert!(running.end_here("a", &listed));
    }
}

#[tokio::test(start_paused = true)]
async fn a_ban_replaces_no_other_override() {
    let spec = banning();
    let running = running(&spec);
    let lasts = Some(Duration::from_secs(2));
    running.set_here(entry("/a", "7/s", None), lasts);
    let told = lines(|| reject(&running, &spec, "/a", &[1; 9]));
    assert!(told.is_empty(), "{told:?}");
    assert_eq!(running.list()[0].entry.wanted.rate, "7/s");
    // A ban that is over is no ban, even before a sweep.
    tokio::time::advance(Duration::from_secs(2)).await;
    reject(&running, &spec, "/a", &[62, 62, 62]);
    assert!(banned(&running, &spec, "/a").is_some());
}

/// Keys that clients invent must neither fill the memory nor hide the one that is rejected all the time.
#[tokio::test(start_paused = true)]
async fn a_flood_of_keys_is_bounded_and_hides_nobody() {
    let spec = banning();
    let running = running(&spec);
    reject(&running, &spec, "/a", &[1, 1]);
    for number in 0..3 * MOST_COUNTED {
        reject(&running, &spec, &format!("/{number}"), &[1]);
    }
    assert!(running.rejections.keys() <= MOST_COUNTED, "{}", running.rejections.keys());
    reject(&running, &spec, "/a", &[1]);
    assert!(banned(&running, &spec, "/a").is_some());
    (0..100).for_each(|_| running.sweep(at(100 * SECOND).into()));
    assert_eq!(running.rejections.keys(), 0, "what is over is forgotten");
}

/// A regression: a ban that asks for many rejections remembered 160 MB of them.
#[tokio::test(start_paused = true)]
async fn the_more_rejections_a_ban_asks_for_the_fewer_keys_are_counted() {
    let ban = "ban = { after = 1000, within = \"1h\", for = \"10m\" }";
    let spec = limit(&format!("key = [\"path\"]\nrate = \"1/s\"\n{ban}"));
    let running = running(&spec);
    for number in 0..5_000 {
        reject(&running, &spec, &format!("/{number}"), &[1]);
    }
    assert!(running.rejections.keys() <= 1_000, "{}", running.rejections.keys());
    let few = banning();
    running.put_limits(&[Arc::clone(&few)]);
    for number in 0..5_000 {
        reject(&running, &few, &format!("/{number}"), &[1]);
    }
    assert!(running.rejections.keys() > 2_000, "a reload asks for fewer rejections");
}

/// A regression: each ban ended all known refusals of all workers, in the flood for which they are known.
#[tokio::test(start_paused = true)]
async fn a_ban_ends_no_known_refusals() {
    let spec = banning();
    let running = running(&spec);
    reject(&running, &spec, "/a", &[1; 3]);
    let before = running.generation();
    reject(&running, &spec, "/b", &[1; 3]);
    assert!(banned(&running, &spec, "/a").is_some() && banned(&running, &spec, "/b").is_some());
    assert_eq!(running.list().iter().filter(|it| it.running.is_some()).count(), 2);
    // Redis has them by its own clock, and one of another process.
    let of = |path| RunningOverride { is_ban: true, ..entry(path, "0/s", Some(9 * SECOND)) };
    let all = ["/a", "/b", "/c"].map(of);
    read_after_bans(&running, SECOND, 1, &all);
    assert!(banned(&running, &spec, "/c").is_some());
    read_after_bans(&running, 2 * SECOND, 2, &all[1..]);
    tokio::time::advance(Duration::from_secs(8)).await;
    running.end_expired();
    assert!(running.list().is_empty());
    assert_eq!(running.generation(), before, "neither do their ends");
    // An operator's override, or a reset by anybody.
    read(&running, 11 * SECOND, &[entry("/a", "7/s", None)]);
    let changed = running.generation();
    assert!(changed > before);
    read(&running, 12 * SECOND, &[entry("/a", "7/s", None)]);
    assert!(running.generation() > changed);
}

#[tokio::test(start_paused = true)]
async fn bans_leave_room_for_operators() {
    let spec = banning();
    let running = running(&spec);
    let lasts = Some(Duration::from_secs(9));
    for number in 0..MOST_BANNED - 1 {
        running.set_here(entry(&format!("/{number}"), "7/s", None), lasts);
    }
    let told = lines(|| {
        reject(&running, &spec, "/a", &[1; 4]);
        reject(&running, &spec, "/b", &[1; 4]);
        reject(&running, &spec, "/c", &[1; 4]);
    });
    assert_eq!(running.list().len(), MOST_BANNED);
    assert_eq!(told.iter().filter(|line| line["message"] == "banned").count(), 1);
    assert_eq!(told.iter().filter(|line| line["message"] == "bans full").count(), 1);
    assert!(running.set_here(entry("/z", "7/s", None), None));
}

/// A regression: one client had all places of all limits within a third of a second, by keys that it invented, and then
/// nobody was banned.
#[tokio::test(start_paused = true)]
async fn invented_keys_leave_places_for_other_clients_and_limits() {
    let (spec, running) = (banning(), RunningOverrides::default());
    let other = LimitSpec { name: Name::new("other").unwrap(), ..LimitSpec::clone(&spec) };
    let other = Arc::new(other);
    running.put_limits(&[Arc::clone(&spec), Arc::clone(&other)]);
    let one = invent(&running, &spec, client(1));
    assert_eq!(one, MOST_BANNED / 3, "a client has a third");
    for number in 2..=5 {
        assert!(invent(&running, &spec, client(number)) > 0, "client {number}");
    }
    for number in 6..40 {
        invent(&running, &spec, client(number));
    }
    assert_eq!(running.list().len(), MOST_BANNED / 2, "a limit has half, whoever invents its keys");
    // The client that has filled its places in one limit is banned by the other one.
    assert!(invent(&running, &other, client(1)) > 0);
    assert!(running.list().len() < MOST_BANNED);
}

#[tokio::test(start_paused = true)]
async fn a_ban_stays_until_redis_has_heard_of_it() {
    let spec = banning();
    let running = running(&spec);
    let ban = |path: &str| {
        let count =
            || running.count_rejection(&spec, &key(path), client(0), at(SECOND).into(), true);
        let told = lines(|| (0..3).for_each(|_| count()));
        assert!(told.is_empty(), "another process may have banned it: {told:?}");
        let unsent = running.unsent_bans();
        unsent.into_iter().find(|ban| ban.entry.key == path).unwrap()
    };
    let [new, known] = ["/new", "/known"].map(ban);
    let operators = ban("/operators");
    ban("/away");
    read(&running, SECOND, &[entry("/operators", "7/s", None)]);
    for path in ["/new", "/known", "/away"] {
        assert!(banned(&running, &spec, path).is_some(), "{path}");
    }
    assert_eq!(running.list().iter().filter(|it| it.entry.is_ban).count(), 3);
    let told = lines(|| {
        running.note_sent(&new, true);
        running.note_sent(&known, false);
        running.note_sent(&operators, false);
        running.log_unsent();
        running.log_unsent();
    });
    let keys: Vec<_> = told.iter().map(|line| line["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["/new", "/away"]);
    assert_eq!((running.bans(&spec.name), running.unsent_bans().len()), (2, 1));
    read(&running, 2 * SECOND, &[]);
    let is_there = |path: &str| banned(&running, &spec, path).is_some();
    assert_eq!(["/new", "/known", "/away"].map(is_there), [false, false, true]);
    assert!(running.end_here("a", "/away") && !running.end_here("a", "/away"));
    assert!(!is_there("/away") && running.unsent_bans().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_ban_of_another_process_is_no_line_here_and_ends_the_count() {
    let spec = banning();
    let running = running(&spec);
    reject(&running, &spec, "/a", &[1, 1]);
    let ban = RunningOverride { is_ban: true, ..entry("/a", "0/s", Some(700 * SECOND)) };
    let told = lines(|| read(&running, SECOND, std::slice::from_ref(&ban)));
    assert!(told.is_empty(), "{told:?}");
    assert_eq!(banned(&running, &spec, "/a"), Some(Duration::from_secs(699)));
    let told = lines(|| read(&running, 2 * SECOND, &[]));
    assert_eq!((told.len(), &told[0]["message"]), (1, &"override ended".into()));
    reject(&running, &spec, "/a", &[2, 2]);
    assert_eq!(banned(&running, &spec, "/a"), None);
    assert_eq!(running.bans(&spec.name), 0);
}
