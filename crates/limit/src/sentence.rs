//! The words of a rejection: the limit, its key, its figures, and the wait.

use crate::algorithm::Algorithm;
use crate::name::Name;
use crate::rate::Rate;

/// The units of time with their seconds, the largest first.
const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];

/// The intervals that have a name.
const NAMED: [(u64, &str); 5] =
    [(604_800, "week"), (86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")];

const SECOND: u64 = 1_000_000;

/// In place of a key, for a limit without one.
pub const EVERYONE: &str = "for everyone together";

/// Describes a limit: its name, its key (`by address`, or [`EVERYONE`]), and its figures.
pub fn of_limit(name: &Name, by: &str, figures: &str) -> String {
    format!("Limit \"{}\" counts {by}: {figures}. ", name.limit())
}

/// The description of the limit, then the sentence about the wait. If `seconds` is `None`, the request never passes.
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

/// A rate in words: `5 a second`, `100 in 10 minutes`.
pub fn speed(rate: Rate) -> String {
    let (count, micros) = (rate.count(), rate.interval());
    match named(micros) {
        Some("hour") => format!("{count} an hour"),
        Some(name) => format!("{count} a {name}"),
        None => format!("{count} in {}", long_time(micros)),
    }
}

/// The name of an interval. `None` if it has no name.
fn named(micros: u64) -> Option<&'static str> {
    NAMED.iter().find(|(seconds, _)| seconds * SECOND == micros).map(|(_, name)| *name)
}

/// A time in one unit, the largest that divides it: `10 seconds`, `2 hours`, `250 ms`.
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
