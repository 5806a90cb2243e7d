//! How long the keys of used buckets live: never shorter than they must, and seldom set anew.

use std::time::Duration;

use tidegate::limit::Mode;
use tidegate::limit::algorithm::fixed_window::windows::{Schedule, Unit};
use tidegate::limit::algorithm::{Algorithm, Difference, Receipt};
use tidegate::limit::rate::Cost;
use tidegate::limit::time::Timestamp;
use tidegate::limit::waiting::MaxWait;
use tidegate::settings::LimitSpec;
use tidegate::store::{BucketAsk, BucketKey, SWEEP_STEPS};

use crate::support::algorithms::{leaky, log, on_the_clock, rolling, sliding, slots, window};
use crate::support::bench::Bench;
use crate::support::limits::{ask, bucket, key, limit};
use crate::support::redis::RedisServer;

const HOUR: u64 = 3_600_000_000;
const DAY: u64 = 24 * HOUR;

/// A bucket of eighty tokens in a Redis of its own.
struct Place {
    server: RedisServer,
    bench: Bench,
    spec: LimitSpec,
    key: BucketKey,
}

impl Place {
    fn start() -> Self {
        let server = RedisServer::start();
        let bench = Bench::of(&server);
        Self { server, bench, spec: limit("one"), key: key("a") }
    }

    fn ask(&self, rate: &str) -> BucketAsk<'_> {
        let mut one = ask(&self.spec, &self.key, 1);
        one.ask.algorithm = bucket(rate, 80);
        one
    }

    async fn take(&self, rate: &str, times: u64) {
        for _ in 0..times {
            assert!(self.bench.decide(&[self.ask(rate)]).await.verdict.passes());
        }
    }

    /// Redis's clock, in microseconds.
    fn now(&self) -> u64 {
        let (seconds, micros): (u64, u64) = self.server.run(&["TIME"]);
        seconds * 1_000_000 + micros
    }

    /// The millisecond at which the bucket's key goes.
    fn goes_at(&self) -> u64 {
        let at: i64 = self.server.run(&["PEXPIRETIME", "tidegate:{a}:one"]);
        u64::try_from(at).expect("it has an expiry")
    }
}

#[tokio::test]
async fn an_expiry_that_is_late_enough_is_not_set_again() {
    let place = Place::start();
    let (mut set, mut last) = (0, 0);
    for taken in 1..=80 {
        let before = place.now();
        place.take("1/h", 1).await;
        // The first token has been coming back since the first request, less than a minute ago.
        let least = (before + taken * HOUR - HOUR / 60) / 1_000;
        let most = (place.now() + taken * HOUR) / 1_000 + 1;
        // A new bucket's no longer than it must; a used one's at most twice as long, and longer by an
        // eighth of an empty one's time.
        let longer = if taken == 1 { 0 } else { taken.min(80 / 8) * HOUR / 1_000 };
        let goes_at = place.goes_at();
        let expected = least..=most + longer;
        assert!(expected.contains(&goes_at), "{taken}: {goes_at} is not in {expected:?}");
        set += u32::from(goes_at != last);
        last = goes_at;
    }
    assert_eq!(place.server.calls("setrange"), 79);
    assert!(set > 1 && set < 15, "{set} of 80");
}

/// The expiry was set for the tokens of a rate that is over.
#[tokio::test]
async fn a_key_lives_long_enough_after_a_change_of_rate() {
    for (name, rate, other, token) in [
        ("a slower one", "1/h", "1/d", DAY),
        ("a faster one", "1/h", "1/m", HOUR / 60),
        ("several tokens at a time", "1/h", "7/d", DAY / 7),
        ("several at a time before", "7/d", "1/h", HOUR),
    ] {
        let place = Place::start();
        place.take(rate, 40).await;
        let before = place.now();
        place.take(other, 1).await;
        // A part of a token may have come back.
        let least = (before + 40 * token) / 1_000;
        let most = (place.now() + (41 + 10) * token) / 1_000 + 1;
        let goes_at = place.goes_at();
        let expected = least..=most;
        assert!(expected.contains(&goes_at), "{name}: {goes_at} is not in {expected:?}");
    }
}

/// The first of a call finds that the expiry has to be set. For those behind it that is late enough.
#[tokio::test]
async fn an_expiry_that_is_to_be_set_is_not_lost_in_its_call() {
    for name in ["a request", "a settlement", "a candidate that stands in"] {
        let place = Place::start();
        place.take("1/h", 40).await;
        let (before, written) = (place.now(), place.server.calls("setrange"));
        let first = [place.ask("1/d")];
        let first = place.bench.decide(&first);
        match name {
            "a request" => {
                let then = [place.ask("1/d")];
                tokio::join!(first, place.bench.decide(&then));
            }
            "a settlement" => {
                let used = Difference::More(1);
                let then = place.bench.settle(place.ask("1/d"), used, Receipt::NONE);
                tokio::join!(first, then);
            }
            _ => {
                let (other, mut stands_in) = (limit("other"), place.ask("1/d"));
                stands_in.ask.mode = Mode::Candidate;
                let mut refuses = ask(&other, &place.key, 1);
                refuses.ask.cost = Cost::new(2).unwrap();
                let then = [refuses, stands_in];
                tokio::join!(first, place.bench.decide(&then));
            }
        }
        assert_eq!(place.server.calls("setrange"), written + 1, "{name}: in one call");
        let goes_at = place.goes_at();
        assert!(goes_at >= (before + 41 * DAY) / 1_000, "{name}: {goes_at}");
    }
}

/// A refusal wrote nothing. So the key went by the faster figures, and the client had a whole new bucket.
#[tokio::test]
async fn a_key_lives_long_enough_after_a_refusal_by_slower_figures() {
    for (before, after, seconds) in [
        (bucket("10/10s", 10), bucket("10/h", 10), 3_000),
        (bucket("7/20s", 7), bucket("7/h", 7), 3_000),
        (bucket("7/20s", 7), bucket("1/h", 7), 3_000),
        (leaky("10/20s", 9), leaky("10/h", 9), 300),
        (rolling("10/10s"), rolling("10/h"), 3_000),
        (sliding("10/10s"), sliding("10/h"), 3_000),
        (log("10/10s"), log("10/h"), 3_000),
    ] {
        for name in ["by the limit", "by another limit", "by a limit before it"] {
            let place = Place::start();
            let (one, other) = (limit("one"), limit("other"));
            let of = |algorithm| {
                let mut one = ask(&one, &place.key, 1);
                one.ask.algorithm = algorithm;
                one
            };
            let empty = ask(&other, &place.key, 1);
            assert!(place.bench.decide(&[empty]).await.verdict.passes());
            let is_alone = name == "by the limit";
            for _ in 0..if is_alone { 11 } else { 9 } {
                place.bench.decide(&[of(before)]).await;
            }
            let slower = of(after);
            let asks = [empty, slower, empty];
            let asks = match name {
                "by the limit" => &asks[1..2],
                "by another limit" => &asks[1..3],
                _ => &asks[0..2],
            };
            assert!(!place.bench.decide(asks).await.verdict.passes(), "{after}, {name}");
            let keys: Vec<String> = place.server.run(&["KEYS", "tidegate:{a}:one*"]);
            let goes_at = place.server.goes_at(&keys[0]).unwrap();
            let lives = goes_at.saturating_sub(place.now() / 1_000) / 1_000;
            assert!(lives >= seconds, "{after}, {name}: {lives} s");
        }
    }
}

/// The same in the process, which forgets a bucket that is full again.
#[tokio::test]
async fn a_refusal_by_slower_figures_keeps_a_bucket_in_the_process() {
    for (before, after) in [
        (bucket("10/s", 10), bucket("10/h", 10)),
        (leaky("10/s", 9), leaky("10/h", 9)),
        (rolling("10/s"), rolling("10/h")),
        (log("10/s"), log("10/h")),
    ] {
        let bench = Bench::memory();
        let (spec, key, now) = (limit("one"), key("a"), Bench::now());
        let of = |algorithm| {
            let mut one = ask(&spec, &key, 1);
            one.ask.algorithm = algorithm;
            [one]
        };
        for _ in 0..11 {
            bench.decide_at(&of(before), now).await;
        }
        for second in [0, 3, 6] {
            let then = now.plus(Duration::from_secs(second));
            assert!(!bench.decide_at(&of(after), then).await.verdict.passes(), "{after}");
            (0..SWEEP_STEPS).for_each(|_| bench.shared.sweep(then.plus(Duration::from_secs(2))));
        }
    }
}

/// A bucket, and how long its key is needed.
struct Case {
    name: &'static str,
    algorithm: Algorithm,
    /// Of the first request; a second one is held.
    cost: u64,
    is_one_held: bool,
    /// The microsecond until which it is needed, by that of the last request.
    until: Box<dyn Fn(u64) -> u64>,
}

#[tokio::test]
async fn every_key_goes_when_it_is_as_good_as_new_and_not_later() {
    const SECOND: u64 = 1_000_000;
    const MINUTE: u64 = 60 * SECOND;
    let place = Place::start();
    let (spec, key, server) = (&place.spec, &place.key, &place.server);
    let now = place.now();
    // A window of five hours, which began an hour ago, and others around it.
    let hours = |hours: u64| Timestamp::from_micros(now - 6 * HOUR + hours * HOUR).unwrap();
    let begins = [0, 5, 10, 17, 24].map(hours);
    let calendar = Schedule::new(Unit::Day, "Somewhere".into(), begins.to_vec()).unwrap();
    let case = |name, algorithm, cost, until: Box<dyn Fn(u64) -> u64>| Case {
        name,
        algorithm,
        cost,
        is_one_held: false,
        until,
    };
    let held = |name, algorithm, until: Box<dyn Fn(u64) -> u64>| Case {
        is_one_held: true,
        ..case(name, algorithm, 1, until)
    };
    let in_a_while = |micros: u64| Box::new(move |now| now + micros);
    let eight_hours = |windows: u64| Box::new(move |now| (now / (8 * HOUR) + windows) * 8 * HOUR);
    // A window that stands on the clock is kept for a second longer, for clocks that are a little behind.
    let and_a_second = |until: Box<dyn Fn(u64) -> u64>| Box::new(move |now| until(now) + SECOND);
    for Case { name, algorithm, cost, is_one_held, until } in [
        case("three tokens of six minutes", bucket("10/h", 10), 3, in_a_while(18 * MINUTE)),
        case("a third of a second", bucket("3/s", 3), 1, in_a_while(333_334)),
        case("what stands for an hour", leaky("1/h", 5), 1, in_a_while(HOUR)),
        case("a window from now on", rolling("5/2h"), 3, in_a_while(2 * HOUR)),
        case("a window of the clock", on_the_clock("5/8h"), 3, and_a_second(eight_hours(1))),
        case(
            "a window of the calendar",
            window(5, calendar.around(hours(6))),
            3,
            and_a_second(Box::new(move |_| begins[2].as_micros())),
        ),
        case("a window and the one behind it", sliding("5/8h"), 3, eight_hours(2)),
        case("the youngest entry", log("5/h"), 3, in_a_while(HOUR)),
        case("a lease", slots(5, Duration::from_secs(60)), 1, in_a_while(MINUTE)),
        held("a token that is owed", bucket("1/h", 1), in_a_while(2 * HOUR)),
        held("a queue", leaky("1/h", 5), in_a_while(2 * HOUR)),
        held("a place in the next window", rolling("1/2h"), in_a_while(4 * HOUR)),
        held("an entry in the future", log("1/h"), in_a_while(2 * HOUR)),
    ] {
        let () = server.run(&["FLUSHALL"]);
        let bench = Bench::of(server);
        let mut one = ask(spec, key, 1);
        one.ask.algorithm = algorithm;
        one.ask.cost = Cost::new(cost).unwrap();
        let before = place.now();
        let answer = bench.decide_at(&[one], Bench::now()).await;
        if is_one_held {
            one.ask.max_wait = MaxWait::ENDLESS;
            assert!(bench.decide_at(&[one], Bench::now()).await.verdict.passes());
        }
        let after = place.now();
        // To the next of Redis's milliseconds.
        let expected = until(before) / 1_000 + 1..=until(after) / 1_000 + 1;
        let keys: Vec<String> = server.run(&["KEYS", "tidegate:{a}:one*"]);
        assert_eq!(keys.len(), 1, "{name}: {keys:?}");
        let goes_at = server.goes_at(&keys[0]).unwrap_or_else(|| panic!("{name}: it never goes"));
        assert!(expected.contains(&goes_at), "{name}: {goes_at} is not in {expected:?}");
        drop(answer);
    }
}
