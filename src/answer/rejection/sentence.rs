//! What a rejection says in words: which limit, what it counts by, its figures, and the wait.

use crate::limit::algorithm::Algorithm;
pub(super) use crate::limit::sentence::with_wait;
use crate::limit::sentence::{EVERYONE, in_words, of_limit};
use crate::request::key::KeySource;
use crate::settings::LimitSpec;

/// Names the limit, what it counts by and its figures.
pub(super) fn limit(spec: &LimitSpec, figures: &Algorithm, is_banned: bool) -> String {
    let parts: Vec<_> = spec.key.sources.iter().map(words).collect();
    let by = match parts.is_empty() {
        true => EVERYONE.to_owned(),
        false => format!("by {}", parts.join(" and ")),
    };
    let figures = match is_banned {
        true => "banned after too many rejections".to_owned(),
        false => in_words(figures),
    };
    of_limit(&spec.name, &by, &figures)
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
