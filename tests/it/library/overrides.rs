//! The script of the overrides in a real Redis, by a clock that is moved by hand.

use std::collections::BTreeMap;

use redis::Script;

use crate::support::redis::RedisServer;

const SECOND: u64 = 1_000_000;

const HOUR: u64 = 3_600 * SECOND;

const DAY: u64 = 24 * HOUR;

/// Ahead of the machine's clock: Redis removes keys by that clock.
const BEGIN: u64 = 4_000_000_000 * SECOND;

/// The words of an operator, which the script only passes on.
const WORDS: &str = "{\"rate\":\"7/s\"}";

struct Bench {
    server: RedisServer,
    script: Script,
}

/// When each override ends.
type Ends = BTreeMap<String, u64>;

impl Bench {
    /// With what `src/store/script/overrides.rs` sends, but for the clock.
    fn start() -> Self {
        let text = include_str!("../../../src/store/script/overrides.lua");
        let (from, to) =
            ("redis.call('TIME')", "{ math.floor(ARGV[#ARGV] / 1000000), ARGV[#ARGV] % 1000000 }");
        assert_eq!(text.matches(from).count(), 1);
        Self { server: RedisServer::start(), script: Script::new(&text.replace(from, to)) }
    }

    /// Whether it was done, and what the script then passes on.
    fn call(&self, now: u64, arguments: &[&str]) -> (bool, Ends) {
        let (done, _, ends) = self.answer(now, arguments);
        (done == "1", ends)
    }

    /// What was done of each thing, the last change that was no ban, and what the script then passes on.
    fn answer(&self, now: u64, arguments: &[&str]) -> (String, u64, Ends) {
        let mut call = self.script.key("overrides");
        call.arg(arguments[0]).arg(30 * DAY).arg(&arguments[1..]).arg(now);
        let answer: Vec<String> = call.invoke(&mut self.server.connection()).unwrap();
        assert_eq!(answer[0], now.to_string());
        let (fields, odd) = answer[4..].as_chunks::<2>();
        assert!(odd.is_empty());
        let ends = fields.iter().map(|[field, value]| {
            let (ends, words) = value.split_once(' ').unwrap();
            assert_eq!(words, WORDS);
            (field.clone(), ends.parse().unwrap())
        });
        let ends: Ends = ends.collect();
        for (field, ends) in &ends {
            let kept: String = self.server.run(&["HGET", "overrides", field]);
            assert_eq!(kept, format!("{ends} {WORDS}"));
        }
        (answer[1].clone(), answer[3].parse().unwrap(), ends)
    }

    fn look(&self, now: u64) -> Ends {
        self.call(now, &["look"]).1
    }

    fn set(&self, now: u64, field: &str, lasts: u64) -> Ends {
        let (is_done, ends) = self.call(now, &["set", field, &lasts.to_string(), WORDS, "9"]);
        assert!(is_done);
        ends
    }
}

fn ends<const N: usize>(of: [(&str, u64); N]) -> Ends {
    of.map(|(field, ends)| (field.to_owned(), ends)).into()
}

/// It lasted for as much longer as the clock was set back.
#[test]
fn an_override_keeps_what_is_left_when_the_clock_steps_back() {
    let bench = Bench::start();
    bench.set(BEGIN, "a:x", HOUR);
    bench.set(BEGIN, "a:always", 0);
    let before = ends([("a:x", BEGIN + HOUR), ("a:always", 0)]);
    assert_eq!(bench.look(BEGIN + 600 * SECOND), before);
    let now = BEGIN - DAY;
    let after = ends([("a:x", now + HOUR - 600 * SECOND), ("a:always", 0)]);
    assert_eq!(bench.look(now), after);
    assert_eq!(bench.look(now + SECOND), after, "the step is over");
    // It steps back by one second more, and a change is the first to see this.
    let (is_done, left) = bench.call(now, &["tell"]);
    let (x, always) = (now + HOUR - 601 * SECOND, 0);
    assert_eq!((is_done, left), (true, ends([("a:x", x), ("a:always", always)])));
    let other = ends([("a:x", x - SECOND), ("a:always", always), ("a:y", now - SECOND + 5)]);
    assert_eq!(bench.set(now - SECOND, "a:y", 5), other);
    assert_eq!(bench.look(x - SECOND), ends([("a:always", 0)]), "to the moment");
}

#[test]
fn an_override_that_has_ended_stays_so_when_the_clock_steps_back() {
    let bench = Bench::start();
    bench.set(BEGIN, "a:seen", 10 * SECOND);
    bench.set(BEGIN, "a:unseen", 20 * SECOND);
    let unseen = ends([("a:unseen", BEGIN + 20 * SECOND)]);
    assert_eq!(bench.look(BEGIN + 10 * SECOND), unseen);
    // Nobody looked when it ended. It has what was left when somebody looked.
    let now = BEGIN + 30 * SECOND - HOUR;
    assert_eq!(bench.look(now), ends([("a:unseen", now + 10 * SECOND)]));
    assert_eq!(bench.look(now + 10 * SECOND), Ends::new());
}

#[test]
fn the_time_that_was_seen_is_no_override() {
    let bench = Bench::start();
    let room = |now, field| bench.call(now, &["set", field, "120000000", WORDS, "2"]).0;
    assert!(room(BEGIN, "a:x") && room(BEGIN + 1, "a:y") && !room(BEGIN + 2, "a:z"));
    bench.look(BEGIN + 3);
    assert!(bench.call(BEGIN + 4, &["end", "a:y"]).0 && room(BEGIN + 5, "a:z"));
    assert_eq!(bench.server.run::<u64>(&["HGET", "overrides", "seen"]), BEGIN + 5);
    assert_eq!(bench.server.run::<u64>(&["HLEN", "overrides"]), 4);
    let last = (BEGIN + 5 + 120 * SECOND).div_ceil(1_000);
    assert_eq!(bench.server.goes_at("overrides"), Some(last), "with the last override");
}

#[test]
fn a_ban_is_set_where_the_key_has_no_override() {
    let bench = Bench::start();
    let ban = |now, field, most| bench.call(now, &["ban", field, "5000000", WORDS, most]);
    let first = ends([("a:x", BEGIN + 5 * SECOND)]);
    assert_eq!(ban(BEGIN, "a:x", "2"), (true, first.clone()));
    assert_eq!(ban(BEGIN + SECOND, "a:x", "2"), (false, first.clone()), "it lasts no longer");
    bench.set(BEGIN, "a:y", HOUR);
    assert!(!ban(BEGIN, "a:y", "9").0 && !ban(BEGIN, "a:z", "2").0 && ban(BEGIN, "a:z", "3").0);
    assert_eq!(bench.look(BEGIN + 5 * SECOND), ends([("a:y", BEGIN + HOUR)]));
    assert!(ban(BEGIN + 5 * SECOND, "a:x", "2").0, "again");
}

/// A regression: each ban was one call, and each answer had all overrides.
#[test]
fn several_bans_are_one_call_and_no_other_change() {
    let bench = Bench::start();
    bench.set(BEGIN, "a:x", HOUR);
    let bans = ["a:y", "a:x", "a:z", "a:y", "a:full"].map(|field| [field, "5000000", WORDS, "3"]);
    let call = [&["ban"], bans.as_flattened()].concat();
    let (done, told, left) = bench.answer(BEGIN + 7, &call);
    let end = BEGIN + 7 + 5 * SECOND;
    assert_eq!(left, ends([("a:x", BEGIN + HOUR), ("a:y", end), ("a:z", end)]));
    assert_eq!((&*done, told), ("10100", BEGIN), "the operator's change");
    assert_eq!(bench.server.run::<u64>(&["HGET", "overrides", "generation"]), BEGIN + 7);
    assert_eq!(bench.answer(BEGIN + 8, &["tell"]).1, BEGIN + 8);
}

#[test]
fn nothing_is_written_where_there_is_no_override() {
    let bench = Bench::start();
    bench.look(BEGIN);
    assert!(!bench.call(BEGIN, &["end", "a:x"]).0);
    assert_eq!(bench.server.run::<u64>(&["EXISTS", "overrides"]), 0);
}

/// Redis then refuses a script that begins with a write of more.
#[test]
fn overrides_are_read_from_a_redis_whose_memory_is_full() {
    let bench = Bench::start();
    bench.set(BEGIN, "a:x", HOUR);
    let () = bench.server.run(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(bench.look(BEGIN + 1), ends([("a:x", BEGIN + HOUR)]));
    assert_eq!(bench.look(BEGIN - DAY), ends([("a:x", BEGIN - DAY + HOUR - 1)]));
    assert_eq!(bench.server.run::<u64>(&["HGET", "overrides", "seen"]), BEGIN - DAY);
}
