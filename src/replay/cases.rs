//! Tries the `[[tests]]` of a file: `tidegate check`.

use std::fmt;
use std::time::Duration;

use http::header::HOST;
use http::{HeaderValue, StatusCode};
use serde::Serialize;

use super::fact::{Assumed, Assumption, Fact};
use super::judge::Judge;
use super::log::{ClientOrigin, LogRecord, Logged, LoggedHeaders};
use crate::limit::decision::{Verdict, whole_seconds};
use crate::limit::time::Timestamp;
use crate::settings::{Expectation, Settings, TestCase};

/// When the first test begins: Monday, 1 January 2024, 0:00 UTC. Windows of every length on the clock begin
/// then in UTC, so a test of such a limit does not depend on the day.
const BEGIN: u64 = 1_704_067_200_000_000;

/// How long an answer takes. So requests that come at the same time are under way together.
const ANSWER: Duration = Duration::from_micros(1);

/// The host of a request without one.
const HOST_OF_NONE: &str = "localhost";

/// The result of one test.
#[derive(Clone, Debug)]
pub(crate) struct CaseResult<'p> {
    pub(crate) case: &'p TestCase,
    /// What happened to its requests.
    pub(crate) came: CaseCounts<'p>,
    /// The expectations that are not met. Empty if the test passes.
    pub(crate) differences: Vec<Mismatch>,
}

/// What happened to a test's requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct CaseCounts<'p> {
    /// Requests that pass at once.
    pub(crate) allowed: u64,
    /// Requests that are rejected.
    pub(crate) rejected: u64,
    /// Requests that pass after a wait.
    pub(crate) delayed: u64,
    /// The number of requests that get an error in place of a decision, and the part of the first one that is wrong.
    #[serde(skip)]
    pub(crate) bad: Option<(&'static str, u64)>,
    /// The limit that rejects the first rejected request. If none is rejected, the limit that holds the first held
    /// request.
    pub(crate) limit: Option<&'p str>,
    /// The requests' route.
    pub(crate) route: &'p str,
    /// The status of the answer to a request that no route takes.
    #[serde(skip)]
    pub(crate) no_route: Option<StatusCode>,
    /// The `retry-after` of the first rejected request, in seconds. `None` if none is rejected, or if it
    /// could never pass.
    pub(crate) retry_after: Option<u64>,
    /// Limits that cannot be tried, each with what is missing.
    #[serde(skip)]
    pub(crate) left_out: Vec<(&'p str, String)>,
}

/// An expectation that is not met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Mismatch {
    /// The field of `expect`.
    pub(crate) field: &'static str,
    /// Its value.
    pub(crate) expected: String,
    /// What came instead.
    pub(crate) came: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, came {}", self.field, self.expected, self.came)
    }
}

/// Tries all tests of a file, in its order.
pub(crate) fn run(settings: &Settings) -> Vec<CaseResult<'_>> {
    // No test has a certificate. No answer has a size or names the used tokens, so the estimate of the cost counts.
    let absent = |fact| Assumption { fact, assumed: Assumed::Absent };
    let assumptions = [absent(Fact::Certificate), absent(Fact::Use), absent(Fact::Bytes)];
    let mut judge = Judge::new(settings, &assumptions);
    let mut now = Timestamp::MIN.plus_micros(BEGIN);
    let mut results = Vec::with_capacity(settings.tests.len());
    for case in &settings.tests {
        if case.fresh {
            judge = Judge::new(settings, &assumptions);
        }
        judge.token = Some(case.claims.clone());
        judge.body = Some(case.body.clone());
        now = now.plus(case.after);
        let came = send(&mut judge, case, now);
        // The requests of a test have ended when the next test begins, unless they are held for longer.
        now = now.plus(case.within).plus(ANSWER);
        let differences = differences(&case.expect, &came);
        results.push(CaseResult { case, came, differences });
    }
    results
}

/// Sends a test's requests. The first one comes at `start`.
fn send<'p>(judge: &mut Judge<'p>, case: &TestCase, start: Timestamp) -> CaseCounts<'p> {
    let mut counts = CaseCounts::default();
    let mut held_by = None;
    for number in 0..case.times {
        let record = record(case, start.plus_micros(offset(case, number)));
        let judged = judge.judge(&record);
        let settings = judge.settings;
        let route = judged.route.map_or(&settings.no_route, |route| &settings.routes[route]);
        counts.route = &route.name;
        counts.no_route = judged.no_route;
        if number == 0 {
            let described = judged.missing.iter().map(|missing| judge.described(*missing));
            counts.left_out = described.map(|(_, name, fact)| (name, fact.to_string())).collect();
        }
        let answer = match judged.answer {
            Ok(answer) => answer,
            Err(bad) => {
                counts.bad.get_or_insert((bad, 0)).1 += 1;
                continue;
            }
        };
        let limit = || answer.decisive().map(|spec| spec.name.as_str());
        match answer.verdict {
            Verdict::Pass { wait } if wait.is_zero() => counts.allowed += 1,
            Verdict::Pass { .. } => {
                counts.delayed += 1;
                held_by = held_by.or_else(limit);
            }
            Verdict::Refuse { retry_after, .. } => {
                if counts.rejected == 0 {
                    counts.limit = limit();
                    counts.retry_after = retry_after.map(whole_seconds);
                }
                counts.rejected += 1;
            }
        }
    }
    counts.limit = counts.limit.or(held_by);
    counts
}

/// The time of a test's request since its first one, in microseconds.
fn offset(case: &TestCase, number: u64) -> u64 {
    let micros = case.within.as_micros() * u128::from(number) / u128::from(case.times.max(1));
    u64::try_from(micros).unwrap_or(u64::MAX)
}

fn record(case: &TestCase, time: Timestamp) -> LogRecord {
    fn text(value: &HeaderValue) -> Option<&str> {
        std::str::from_utf8(value.as_bytes()).ok()
    }
    let host = case.target.uri.authority().map(|authority| authority.as_str()).or_else(|| {
        let given = case.headers.iter().find(|(name, _)| *name == HOST);
        given.and_then(|(_, value)| text(value))
    });
    let mut headers = LoggedHeaders::default();
    for (name, value) in &case.headers {
        let value = text(value).map_or(Logged::Absent, |value| Logged::Value(value.into()));
        headers.push(name.as_str().into(), value);
    }
    headers.are_all();
    LogRecord {
        time,
        client: Some(case.from),
        client_is: ClientOrigin::Peer,
        method: case.method.as_str().into(),
        path: case.target.path().into(),
        query: case.target.uri.query().map_or(Logged::Absent, |query| Logged::Value(query.into())),
        host: Logged::Value(host.unwrap_or(HOST_OF_NONE).into()),
        user: Logged::Unknown,
        headers,
        status: Some(case.status),
        bytes: None,
        duration: Some(ANSWER),
        to_head: None,
        is_refused: false,
        counted: None,
    }
}

fn differences(expect: &Expectation, came: &CaseCounts<'_>) -> Vec<Mismatch> {
    let mut differences = Vec::new();
    let mut compare = |field, expected: Option<String>, came: Option<String>| {
        if let Some(expected) = expected
            && came.as_ref() != Some(&expected)
        {
            let came = came.unwrap_or_else(|| "none".to_owned());
            differences.push(Mismatch { field, expected, came });
        }
    };
    let count = |count: u64| Some(count.to_string());
    compare("allowed", expect.allowed.and_then(count), count(came.allowed));
    compare("rejected", expect.rejected.and_then(count), count(came.rejected));
    compare("delayed", expect.delayed.and_then(count), count(came.delayed));
    let text = |text: &str| text.to_owned();
    compare("limit", expect.limit.as_deref().map(text), came.limit.map(text));
    compare("route", expect.route.as_deref().map(text), Some(text(came.route)));
    let seconds = |seconds: u64| format!("{seconds}s");
    compare("retry_after", expect.retry_after.map(seconds), came.retry_after.map(seconds));
    // A test that expects no counts may send requests that do not reach the limits.
    let counts = [expect.allowed, expect.rejected, expect.delayed];
    if let Some((bad, count)) = came.bad
        && counts.iter().any(Option::is_some)
    {
        differences.push(Mismatch {
            field: "requests",
            expected: "requests that reach the limits".to_owned(),
            came: format!("{count} with a wrong {bad}"),
        });
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::testing::settings;

    /// The limits, and then the tests of each case under the case's name.
    const CASES: &str = include_str!("cases_that_hold.toml");
    const NEXT: &str = "\n# == ";

    fn routes() -> String {
        let names = [
            "login", "failures", "even", "slots", "day", "tokens", "length", "shadow", "mark",
            "host", "body",
        ];
        let routes = names.map(|name| {
            format!("[[routes]]\npath = \"/{name}\"\nupstream = \"api\"\nlimits = [\"{name}\"]\n")
        });
        routes.join("")
    }

    /// What differs in each test, by the tests' order.
    fn differences(tests: &str) -> Vec<Vec<String>> {
        let limits = CASES.split(NEXT).next().unwrap();
        let settings = settings(&format!("{limits}\n{}{tests}", routes()));
        let results = run(&settings);
        let texts = |it: &CaseResult<'_>| it.differences.iter().map(ToString::to_string).collect();
        results.iter().map(texts).collect()
    }

    #[test]
    fn expectations_that_hold() {
        let (_, cases) = CASES.split_once(NEXT).unwrap();
        for case in cases.split(NEXT) {
            let (name, tests) = case.split_once('\n').unwrap();
            let found = differences(tests);
            assert!(!found.is_empty() && found.iter().all(Vec::is_empty), "{name}: {found:?}");
        }
    }

    #[test]
    fn each_unmet_expectation_is_reported() {
        let tests = "[[tests]]\nsend = \"GET /login\"\ntimes = 10\n\
             expect = { allowed = 9, rejected = 1, delayed = 1, limit = \"even\", \
             route = \"/even\", retry_after = \"7s\" }\n\
             [[tests]]\nsend = \"GET /a%2Fb\"\nexpect = { allowed = 0 }\n\
             [[tests]]\nsend = \"POST /body\"\nbody = \"user=a&user=b\"\nexpect = { allowed = 1 }\n\
             [[tests]]\nsend = \"GET /even\"\nexpect = { limit = \"even\", retry_after = \"1s\" }\n";
        let expected = [
            vec![
                "allowed: expected 9, came 8",
                "rejected: expected 1, came 2",
                "delayed: expected 1, came 0",
                "limit: expected even, came login",
                "route: expected /even, came /login",
                "retry_after: expected 7s, came 6s",
            ],
            vec!["requests: expected requests that reach the limits, came 1 with a wrong path"],
            vec![
                "allowed: expected 1, came 0",
                "requests: expected requests that reach the limits, came 1 with a wrong key",
            ],
            vec!["limit: expected even, came none", "retry_after: expected 1s, came none"],
        ];
        assert_eq!(differences(tests), expected);
    }
}
