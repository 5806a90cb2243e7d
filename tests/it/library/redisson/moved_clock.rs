//! The limiter's script by a clock that is moved by hand: both sides together, held to what a count by hand
//! allows.

use redis::Script;

use super::permits;
use crate::support::java::Java;
use crate::support::redis::RedisServer;

/// What `src/store/script/redisson/mod.rs` sends, but for the clock, which is the last argument.
fn script() -> Script {
    let text = include_str!("../../../../src/store/script/redisson/redisson.lua");
    let (from, to) = (
        "call('TIME')",
        "{ math.floor(ARGV[9] / 1000000), string.format('%.0f', ARGV[9] % 1000000) }",
    );
    assert_eq!(text.matches(from).count(), 1);
    Script::new(&text.replace(from, to))
}

/// What was taken, by whom there is to know it.
#[derive(Clone, Debug)]
struct Entry {
    at_ms: u64,
    permits: u64,
    id: Vec<u8>,
    /// Of a proxy, whose requests keep their order.
    is_ours: bool,
}

/// Both sides of a limiter, and what stands in it.
struct BothSides {
    connection: redis::Connection,
    script: Script,
    java: Java,
    rate: u64,
    interval_ms: u64,
    now: u64,
    entries: Vec<Entry>,
    ids: u32,
}

/// What a proxy is told: when the request goes, or that it may come again then; and what remains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Goes { at: u64, remaining: i64 },
    Again { at: u64 },
    Never,
}

impl BothSides {
    fn new(server: &RedisServer, rate: u64, interval_ms: u64) -> Self {
        server.run::<()>(&["FLUSHALL"]);
        let mut java = Java::new(server, "orders");
        java.try_set_rate(rate, interval_ms);
        let (connection, script) = (server.connection(), script());
        let now = 1_700_000_000_000_000;
        Self { connection, script, java, rate, interval_ms, now, entries: Vec::new(), ids: 0 }
    }

    fn now_ms(&self) -> u64 {
        self.now / 1_000
    }

    fn call(&mut self, verb: &str, permits: u64, id: &[u8], max_wait: u64) -> Vec<i64> {
        let mut call = self.script.prepare_invoke();
        for key in ["orders", "{orders}:value", "{orders}:permits", "own-value", "own-permits"] {
            call.key(key);
        }
        call.arg(verb).arg(permits).arg(id).arg(&[""; 4]).arg(max_wait).arg(self.now);
        call.invoke(&mut self.connection).unwrap()
    }

    /// What the script says to a proxy, and what it should.
    fn take(&mut self, cost: u64, max_wait: u64) -> (Told, Told) {
        self.ids += 1;
        let mut id = vec![0x11; 16];
        id[12..].copy_from_slice(&self.ids.to_be_bytes());
        let expected = self.expected(cost, max_wait);
        let answer = self.call("take", cost, &id, max_wait);
        let [0, wait, waits, remaining, rate, interval_ms, 0, 0, 0] = answer[..] else {
            panic!("{answer:?}")
        };
        assert_eq!((rate, interval_ms), (self.rate as i64, self.interval_ms as i64));
        let at = self.now + u64::try_from(wait.max(0)).unwrap();
        let told = match (wait, waits) {
            (-1, 0) => Told::Never,
            (0, 0) => Told::Goes { at: self.now, remaining },
            (_, 1) => Told::Goes { at, remaining: remaining.max(0) },
            (_, 0) => Told::Again { at },
            _ => panic!("{answer:?}"),
        };
        if let Told::Goes { at, .. } = told {
            self.entries.push(Entry { at_ms: at / 1_000, permits: cost, id, is_ours: true });
        }
        (told, expected)
    }

    /// By a look at every moment that may be the first at which no interval has too much.
    fn expected(&self, cost: u64, max_wait: u64) -> Told {
        if cost > self.rate {
            return Told::Never;
        }
        let now_ms = self.now_ms();
        let waiting = self.entries.iter().filter(|entry| entry.is_ours).map(|entry| entry.at_ms);
        let turn = waiting.max().unwrap_or(0).max(now_ms);
        let ends = self.entries.iter().map(|entry| entry.at_ms + self.interval_ms);
        let mut moments: Vec<u64> = ends.chain([turn]).filter(|at| *at >= turn).collect();
        moments.sort_unstable();
        let first = moments.into_iter().find(|at| self.fits(*at, cost)).unwrap();
        let at = if first == now_ms { self.now } else { first * 1_000 };
        match at - self.now {
            0 => {
                let remaining = self.rate - self.used_in(now_ms) - cost;
                Told::Goes { at, remaining: remaining as i64 }
            }
            wait if wait <= max_wait => Told::Goes { at, remaining: 0 },
            _ => Told::Again { at },
        }
    }

    /// Whether no interval that holds this moment has too much with so much more at it.
    fn fits(&self, at_ms: u64, cost: u64) -> bool {
        let ends = self.entries.iter().map(|entry| entry.at_ms).chain([at_ms]);
        let inside = |end: &u64| (at_ms..at_ms + self.interval_ms).contains(end);
        ends.filter(inside).all(|end| self.used_in(end) + cost <= self.rate)
    }

    /// In the interval that ends with this millisecond.
    fn used_in(&self, end_ms: u64) -> u64 {
        let interval = end_ms - self.interval_ms + 1..=end_ms;
        let inside = self.entries.iter().filter(|entry| interval.contains(&entry.at_ms));
        inside.map(|entry| entry.permits).sum()
    }

    /// What Java gets, and what it should.
    fn java(&mut self, cost: u64) -> (Option<u64>, Option<u64>) {
        let (now_ms, interval_ms) = (self.now_ms(), self.interval_ms);
        let in_use = self.entries.iter().filter(|entry| entry.at_ms + interval_ms > now_ms);
        let in_use: u64 = in_use.map(|entry| entry.permits).sum();
        let expected = self.rate.checked_sub(in_use + cost);
        let got = self.java.try_acquire_at(cost, now_ms);
        if got.is_some() {
            let id = Vec::new();
            self.entries.push(Entry { at_ms: now_ms, permits: cost, id, is_ours: false });
        }
        (got, expected)
    }

    /// One of those who wait leaves.
    fn leave(&mut self, random: &mut fastrand::Rng) -> bool {
        let now_ms = self.now_ms();
        let waits = |entry: &Entry| entry.is_ours && entry.at_ms > now_ms;
        let places = self.entries.iter().enumerate().filter(|(_, entry)| waits(entry));
        let places: Vec<usize> = places.map(|(place, _)| place).collect();
        let Some(place) = random.choice(places) else { return false };
        let Entry { permits, id, .. } = self.entries.remove(place);
        assert_eq!(self.call("return", permits, &id, 0), [0]);
        true
    }

    /// What stands there makes up the rate.
    fn is_sound(&mut self) -> bool {
        let get = |key: &str| redis::cmd("GET").arg(key).to_owned();
        let value: Option<i64> = get("{orders}:value").query(&mut self.connection).unwrap();
        let mut range = redis::cmd("ZRANGE");
        range.arg("{orders}:permits").arg(0).arg(-1);
        let members: Vec<Vec<u8>> = range.query(&mut self.connection).unwrap();
        let used: u64 = members.iter().map(|member| permits(member)).sum();
        value.is_none_or(|value| value + used as i64 == self.rate as i64)
    }
}

#[test]
fn places_are_exact_and_in_order_whatever_both_sides_do() {
    let server = RedisServer::start();
    let (mut held, mut refused, mut left, mut java) = (0, 0, 0, 0);
    for seed in 0..50 {
        let mut random = fastrand::Rng::with_seed(seed);
        let interval_ms = random.u64(1..400);
        // Some are larger than what is looked at as a whole.
        let rate = [random.u64(1..12), random.u64(60..250)][usize::from(seed % 4 == 0)];
        let most = [1, 1 + rate / 3][random.usize(0..2)];
        let mut sides = BothSides::new(&server, rate, interval_ms);
        for step in 0..100 {
            let longest = [50, interval_ms * 2_000 / rate][random.usize(0..2)];
            sides.now += random.u64(0..=longest);
            let cost = random.u64(1..=most);
            match random.u8(0..10) {
                0..2 => {
                    let (got, expected) = sides.java(cost);
                    assert_eq!(got, expected, "{seed} {step}");
                    java += u64::from(got.is_some());
                }
                2 => left += u64::from(sides.leave(&mut random)),
                _ => {
                    let max_wait = random.u64(0..4) * interval_ms * 1_000;
                    let (told, expected) = sides.take(cost, max_wait);
                    assert_eq!(told, expected, "{seed} {step}");
                    held += u64::from(matches!(told, Told::Goes { at, .. } if at > sides.now));
                    refused += u64::from(matches!(told, Told::Again { .. }));
                }
            }
            assert!(sides.is_sound(), "{seed} {step}");
        }
        let ours: Vec<_> = sides.entries.iter().filter(|entry| entry.is_ours).collect();
        assert!(ours.is_sorted_by_key(|entry| entry.at_ms), "{seed}: order of arrival");
        for entry in &sides.entries {
            let used = sides.used_in(entry.at_ms);
            assert!(used <= rate, "{seed}: {used} of {rate} in the interval before {entry:?}");
        }
    }
    assert!(held > 500 && refused > 200 && left > 100, "{held} {refused} {left}");
    assert!(java > 100, "{java}");
}
