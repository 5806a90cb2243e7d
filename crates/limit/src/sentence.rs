//! What a rejection says in words: which limit, what it counts by, its figures, and the wait.

use crate::algorithm::Algorithm;
use crate::name::Name;
use crate::rate::Rate;

/// The largest units first, each with its seconds.
const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];

/// The names of the intervals that have one.
const NAMED: [(u64, &str); 5] =
    [(604_800, "week"), (86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")];

const SECOND: u64 = 1_000_000;

/// What a limit without a key counts by.
pub const EVERYONE: &str = "for everyone together";

/// Names the limit, what it counts by (`by address`, or [`EVERYONE`]) and its figures in words.
pub fn of_limit(name: &Name, by: &str, figures: &str) -> String {
    format!("Limit \"{}\" counts {by}: {figures}. ", name.limit())
}

/// The sentence about the wait, after what is told of the limit. `None` is for ever.
pub fn with_wait(limit: Option<String>, seconds: Option<u64>) -> String {
    let limit = limit.unwrap_or_default();
    match seconds {
        Some(seconds) => format!("{limit}Try again in {}.", time(seconds.saturating_mul(SECOND))),
        None => format!("{limit}No such request will ever pass."),
    }
}

/// The figures of a limit: `20 at once, then 10 a second`.
pub fn in_words(figures: &Algorithm) -> String {
    let window = |count: u64, micros: u64| match named(micros) {
        Some(name) => format!("{count} each {name}"),
        None => format!("{count} in {}", long_time(micros)),
    };
    match figures {
        Algorithm::TokenBucket(params) => {
            format!("{} at once, then {}", params.burst, speed(params.rate))
        }
        Algorithm::LeakyBucket(params) => {
            let (count, interval) = (params.rate.count(), params.rate.interval());
            let each = match interval.is_multiple_of(count) {
                true => format!("one each {}", time(interval / count)),
                false => speed(params.rate),
            };
            format!("{each}, {} may wait", params.queue())
        }
        Algorithm::FixedWindow(params) => match params.windows.interval() {
            Some(interval) => window(params.count.get(), interval.as_micros()),
            None => {
                let length = params.windows.length().to_string();
                let unit = NAMED.iter().find(|(_, name)| name.starts_with(&length));
                format!("{} each {}", params.count, unit.map_or("month", |(_, name)| *name))
            }
        },
        Algorithm::SlidingWindow(params) => window(params.count.get(), params.interval.as_micros()),
        Algorithm::SlidingLog(params) => window(params.count.get(), params.interval.as_micros()),
        Algorithm::Redisson(params) => match params.rate() {
            Some(rate) => window(rate.count(), rate.interval()),
            None => "the figures in Redis".to_owned(),
        },
        Algorithm::Concurrency(params) => format!("{} at once", params.limit),
        Algorithm::Closed => "nothing passes".to_owned(),
    }
}

/// `5 a second`, `100 in 10 minutes`.
fn speed(rate: Rate) -> String {
    let (count, micros) = (rate.count(), rate.interval());
    match named(micros) {
        Some("hour") => format!("{count} an hour"),
        Some(name) => format!("{count} a {name}"),
        None => format!("{count} in {}", long_time(micros)),
    }
}

/// The name of an interval.
fn named(micros: u64) -> Option<&'static str> {
    NAMED.iter().find(|(seconds, _)| seconds * SECOND == micros).map(|(_, name)| *name)
}

/// `10 seconds`, `2 hours`, `250 ms`: in the largest unit of which it is a whole number.
fn long_time(micros: u64) -> String {
    let found = NAMED.iter().find(|(seconds, _)| micros.is_multiple_of(seconds * SECOND));
    found.map_or_else(|| time(micros), |(s, name)| format!("{} {name}s", micros / (s * SECOND)))
}

/// A time in the largest units that say it exactly: `1 h 5 min`, `250 ms`.
fn time(micros: u64) -> String {
    if !micros.is_multiple_of(SECOND) {
        return match micros.is_multiple_of(1_000) {
            true => format!("{} ms", micros / 1_000),
            false => format!("{micros} us"),
        };
    }
    let mut left = micros / SECOND;
    let mut parts = Vec::new();
    for (seconds, unit) in UNITS {
        if left >= seconds {
            parts.push(format!("{} {unit}", left / seconds));
            left %= seconds;
        }
    }
    parts.join(" ")
}
