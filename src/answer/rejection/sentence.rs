//! What a rejection says in words: which limit, what it counts by, its figures, and the wait.

use crate::limit::algorithm::Algorithm;
use crate::limit::rate::Rate;
use crate::request::key::KeySource;
use crate::settings::LimitSpec;

/// The largest units first, each with its seconds.
const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];

/// The names of the intervals that have one.
const NAMED: [(u64, &str); 5] =
    [(604_800, "week"), (86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")];

const SECOND: u64 = 1_000_000;

/// Names the limit, what it counts by and its figures.
pub(super) fn limit(spec: &LimitSpec, figures: &Algorithm, is_banned: bool) -> String {
    let parts: Vec<_> = spec.key.sources.iter().map(words).collect();
    let by = match parts.is_empty() {
        true => "for everyone together".to_owned(),
        false => format!("by {}", parts.join(" and ")),
    };
    let figures = match is_banned {
        true => "banned after too many rejections".to_owned(),
        false => in_words(figures),
    };
    format!("Limit \"{}\" counts {by}: {figures}. ", spec.name.limit())
}

/// The sentence about the wait, after what is told of the limit. `None` is for ever.
pub(super) fn with_wait(limit: Option<String>, seconds: Option<u64>) -> String {
    let limit = limit.unwrap_or_default();
    match seconds {
        Some(seconds) => format!("{limit}Try again in {}.", time(seconds.saturating_mul(SECOND))),
        None => format!("{limit}No such request will ever pass."),
    }
}

/// A part of a key, never its value.
fn words(source: &KeySource) -> String {
    match source {
        KeySource::Ip => "address".to_owned(),
        KeySource::Jwt(claim) => format!("claim {claim}"),
        KeySource::Query(name) => format!("query parameter {name}"),
        KeySource::Param(name) => format!("path parameter {name}"),
        KeySource::Cert => "client certificate".to_owned(),
        KeySource::Body(name) => format!("body field {name}"),
        KeySource::FirstOf(sources) => sources.iter().map(words).collect::<Vec<_>>().join(" or "),
        source => source.to_string().replacen(':', " ", 1),
    }
}

fn in_words(figures: &Algorithm) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::testing::limit as spec;

    fn told(fields: &str, seconds: Option<u64>) -> String {
        let spec = spec(fields);
        let figures = spec.figures.at(crate::limit::time::Timestamp::MIN).unwrap();
        with_wait(Some(limit(&spec, &figures, false)), seconds)
    }

    #[test]
    fn a_person_reads_which_limit_it_was_and_what_to_do() {
        for (fields, seconds, says) in [
            (
                "key = [\"ip\"]\nrate = \"5/s\"\nburst = 10",
                Some(2),
                "by address: 10 at once, then 5 a second. Try again in 2 s.",
            ),
            (
                "key = [\"header:x-api-key\"]\nrate = \"100/10m\"",
                Some(3_900),
                "by header x-api-key: 100 at once, then 100 in 10 minutes. Try again in 1 h 5 min.",
            ),
            (
                "key = [\"cookie:sid\", \"path\"]\nrate = \"1000/d\"\nalgorithm = \"fixed-window\"\nalign = \"clock\"",
                Some(86_400),
                "by cookie sid and path: 1000 each day. Try again in 1 d.",
            ),
            (
                "key = []\nrate = \"5/10s\"\nalgorithm = \"sliding-window\"",
                Some(61),
                "for everyone together: 5 in 10 seconds. Try again in 1 min 1 s.",
            ),
            (
                "key = [\"header:a | ip\"]\nrate = \"9/month\"\nalgorithm = \"fixed-window\"\nalign = \"clock\"",
                Some(90_061),
                "by header a or address: 9 each month. Try again in 1 d 1 h 1 min 1 s.",
            ),
            (
                "key = []\nlimit = 20\nalgorithm = \"concurrency\"",
                Some(1),
                "for everyone together: 20 at once. Try again in 1 s.",
            ),
            (
                "key = []\nrate = \"10/s\"\nqueue = 20\nalgorithm = \"leaky-bucket\"",
                Some(60),
                "for everyone together: one each 100 ms, 20 may wait. Try again in 1 min.",
            ),
            (
                "key = []\nrate = \"1/h\"",
                None,
                "for everyone together: 1 at once, then 1 an hour. No such request will ever pass.",
            ),
            (
                "key = []\nrate = \"0/s\"",
                None,
                "for everyone together: nothing passes. No such request will ever pass.",
            ),
        ] {
            assert_eq!(told(fields, seconds), format!("Limit \"a\" counts {says}"), "{fields}");
        }
        assert_eq!(with_wait(None, Some(60)), "Try again in 1 min.");
        assert_eq!(words(&KeySource::Jwt("org.id".to_owned())), "claim org.id");
    }
}
