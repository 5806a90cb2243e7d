//! Runs the table in every place.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate::config::{Overrides, load_from};
use tidegate::limit::Mode;
use tidegate::limit::algorithm::Difference;
use tidegate::limit::decide::Ask;
use tidegate::limit::decision::{Decision, Outcome};
use tidegate::limit::rate::Cost;
use tidegate::limit::time::Timestamp;
use tidegate::limit::waiting::MaxWait;
use tidegate::settings::LimitSpec;

use super::players::{Asked, Event, InStore, Pure, What};
use super::script::{self, Expiry};
use super::table::{Row, rows};
use crate::support::bench::Bench;
use crate::support::redis::RedisServer;

/// A row with its lines read.
struct Case {
    name: &'static str,
    /// Of each bucket.
    specs: Vec<Arc<LimitSpec>>,
    lines: Vec<Line>,
}

struct Line {
    text: &'static str,
    event: Event,
    /// Nothing of what is no request.
    said: Vec<Decision>,
}

/// The limits as a file with them has them, each with its candidate behind it. Where there is a `rate`, the first
/// limit has this one.
fn limits(row: &Row, rate: Option<&str>) -> Vec<Arc<LimitSpec>> {
    // What is settled has a cost that the response says.
    let cost = match row.lines.contains("used") {
        true => "cost = { response_header = 'x-used', estimate = 1 }\n",
        false => "",
    };
    let names: Vec<_> = (0..row.limits.len()).map(|n| format!("limit-{n}")).collect();
    let of_row = |line: &str| line.starts_with("rate = ");
    let with_rate = |(place, lines): (usize, &String)| match rate.filter(|_| place == 0) {
        Some(rate) => {
            let others: Vec<_> = lines.lines().filter(|line| !of_row(line)).collect();
            format!("{}\nrate = '{rate}'", others.join("\n"))
        }
        None => lines.clone(),
    };
    let sections = names.iter().zip(row.limits.iter().enumerate().map(with_rate));
    let sections: String =
        sections.map(|(name, lines)| format!("[limits.{name}]\n{lines}\n{cost}")).collect();
    let file = format!(
        "[store]\nurl = 'redis://127.0.0.1'\n{sections}[[routes]]\npath = '/{{*rest}}'\nrespond = {{ status = 200 }}\n\
         limits = {names:?}\n"
    );
    let loaded =
        load_from(Path::new("row"), Ok(file.into_bytes()), &|_| None, &Overrides::default());
    let settings = loaded.unwrap_or_else(|problems| panic!("{}: {problems:?}", row.name)).settings;
    assert!(settings.limits.iter().map(|limit| limit.name.to_string()).eq(names));
    settings
        .limits
        .iter()
        .flat_map(|limit| [Some(limit), limit.candidate.as_ref()])
        .flatten()
        .cloned()
        .collect()
}

/// What a request asks of these limits at this time, as `throttle` asks it.
fn asks(specs: &[Arc<LimitSpec>], cost: Cost, may_wait: bool, now: Timestamp) -> Vec<Asked> {
    let ask = |(bucket, spec): (usize, &Arc<LimitSpec>)| {
        let algorithm = spec.figures.at(now).expect("nothing is asked");
        let mode = if spec.name.is_of_candidate() { Mode::Candidate } else { spec.mode };
        let max_wait = match (may_wait, mode) {
            (true, Mode::Enforce) => spec.wait,
            _ => MaxWait::NONE,
        };
        Asked { bucket, ask: Ask { algorithm, cost, max_wait, mode, takes: true } }
    };
    specs.iter().enumerate().map(ask).collect()
}

fn case(row: &Row) -> Case {
    let specs = limits(row, None);
    let begin: jiff::Timestamp = row.begin.parse().unwrap();
    let begin = Timestamp::from_micros(begin.as_microsecond().unsigned_abs()).unwrap();
    let algorithm = specs[0].figures.at(begin).expect(row.name);
    let quota = (algorithm.capacity(), algorithm.window_seconds());
    assert_eq!(quota, row.quota, "{}", row.name);

    // How many requests there were, and the last that passed.
    let (mut requests, mut last, mut in_force) = (0, 0, specs.clone());
    let lines = row.lines.lines().map(str::trim).filter_map(|text| {
        let (happens, said) = text.split_once(':').unwrap_or((text, ""));
        let said = said.split(',').map(str::trim).filter(|said| !said.is_empty());
        let said: Vec<_> = said.map(decision).collect();
        let words: Vec<_> = happens.split_whitespace().collect();
        let now = begin.plus(duration(words[0]));
        let what = match words[1..] {
            ["take", cost, ref now_or_not @ ..] => {
                if said.iter().all(|decision| decision.outcome.passes()) {
                    last = requests;
                }
                requests += 1;
                let cost = Cost::new(number(cost)).unwrap();
                What::Request(asks(&in_force, cost, now_or_not.is_empty(), now))
            }
            ["rate", rate] => {
                in_force = limits(row, Some(rate));
                return None;
            }
            ["end", request] => {
                What::End { request: usize::try_from(number(request)).unwrap() - 1 }
            }
            ["used", tokens, more_or_less] => {
                let newest = more_or_less == "back";
                let used = match more_or_less {
                    "more" => Difference::More(number(tokens)),
                    "less" | "back" => Difference::Less(number(tokens)),
                    _ => panic!("{text}"),
                };
                What::Settle { request: last, place: 0, used, newest }
            }
            _ => panic!("{text}"),
        };
        Some(Line { text, event: Event { now, what }, said })
    });
    let lines = lines.collect();
    Case { name: row.name, specs, lines }
}

/// `go 2`, `hold 5s 0`, `no 5s 1`, `never 2`.
fn decision(said: &str) -> Decision {
    let words: Vec<_> = said.split_whitespace().collect();
    let (outcome, remaining) = match words[..] {
        ["go", left] => (Outcome::Allow, left),
        ["hold", wait, left] => (Outcome::Delay(duration(wait)), left),
        ["no", wait, left] => (Outcome::Reject { retry_after: Some(duration(wait)) }, left),
        ["never", left] => (Outcome::Reject { retry_after: None }, left),
        _ => panic!("{said}"),
    };
    Decision { outcome, remaining: number(remaining) }
}

/// `1d2h`, `50ms`, `3us`.
fn duration(text: &str) -> Duration {
    let mut rest = text;
    let mut micros = 0;
    while !rest.is_empty() {
        let (figure, unit) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).expect(text));
        let unit_ends = unit.find(|c: char| c.is_ascii_digit()).unwrap_or(unit.len());
        let (unit, more) = unit.split_at(unit_ends);
        micros += number(figure)
            * match unit {
                "us" => 1,
                "ms" => 1_000,
                "s" => 1_000_000,
                "m" => 60_000_000,
                "h" => 3_600_000_000,
                "d" => 86_400_000_000,
                _ => panic!("{text}"),
            };
        rest = more;
    }
    Duration::from_micros(micros)
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text} is no number"))
}

/// Holds what was said to each line of each row against the table, and tells all that differ.
fn check(rows: &[Row], mut said: impl FnMut(&Case) -> Vec<Vec<Decision>>) {
    let cases = rows.iter().map(case);
    let differ: Vec<_> = cases.flat_map(|case| differing(&case, said(&case))).collect();
    assert!(differ.is_empty(), "\n{}", differ.join("\n"));
}

fn differing(case: &Case, said: Vec<Vec<Decision>>) -> Vec<String> {
    assert_eq!(said.len(), case.lines.len(), "{}", case.name);
    let lines = case.lines.iter().zip(said).filter(|(line, said)| line.said != *said);
    lines.map(|(line, said)| format!("{}\n  {}\n  {said:?}", case.name, line.text)).collect()
}

/// The rows of all algorithms that are a pure function and its twin.
fn twins() -> Vec<Row> {
    rows().filter(|row| !row.is_of("redisson")).collect()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn the_pure_functions_say_what_the_table_says() {
    check(&twins(), |case| {
        let mut place = Pure::default();
        case.lines.iter().map(|line| place.play(&line.event)).collect()
    });
}

#[test]
fn the_process_says_what_the_table_says() {
    let runtime = runtime();
    check(&twins(), |case| {
        runtime.block_on(async {
            let mut place = InStore::new(Bench::memory(), case.specs.clone());
            let mut said = Vec::new();
            for line in &case.lines {
                said.push(place.play(&line.event).await);
                place.sweep(line.event.now);
            }
            said
        })
    });
}

#[test]
fn the_script_says_what_the_table_says() {
    let server = RedisServer::start();
    let mut connection = server.connection();
    check_script(&mut connection, Expiry::ByTheClock);
}

fn check_script(connection: &mut redis::Connection, expiry: Expiry) {
    check(&twins(), |case| {
        let events: Vec<_> = case.lines.iter().map(|line| line.event.clone()).collect();
        let mut known = Pure::default();
        events.iter().for_each(|event| drop(known.play(event)));
        let answers = script::play(connection, &events, &known, expiry);
        let mut said = answers.into_iter().flat_map(|(_, answer)| answer.decisions);
        let asked = |event: &Event| match &event.what {
            What::Request(asked) => asked.len(),
            What::End { .. } | What::Settle { .. } => 0,
        };
        events.iter().map(|event| said.by_ref().take(asked(event)).collect()).collect()
    });
}

/// Those rows of which all happens at one moment, and to which it makes no difference when that is.
#[test]
fn redis_says_what_the_table_says() {
    let runtime = runtime();
    let server = RedisServer::start();
    let still: Vec<_> = rows()
        .filter(|row| row.lines.lines().all(|line| line.trim().starts_with("0s ")))
        .filter(|row| !row.is_of("align"))
        .collect();
    assert!(still.len() >= 16, "{}", still.len());
    for case in still.iter().map(case) {
        let () = server.run(&["FLUSHALL"]);
        runtime.block_on(async {
            let mut place = InStore::new(Bench::of(&server), case.specs.clone());
            for line in &case.lines {
                let said = place.play(&line.event).await;
                let agrees = said.iter().zip(&line.said).all(|(said, expected)| {
                    said.remaining == expected.remaining
                        && place.bench.agrees(said.outcome, expected.outcome)
                });
                assert!(agrees, "{}\n  {}\n  {said:?}", case.name, line.text);
            }
        });
    }
}

/// The script of Redisson's limiters, by a clock that is moved by hand.
#[test]
fn redissons_script_says_what_the_table_says() {
    let server = RedisServer::start();
    let mut connection = server.connection();
    let rows: Vec<_> =
        rows().filter(|row| row.limits.len() == 1 && row.is_of("redisson")).collect();
    assert!(!rows.is_empty());
    check(&rows, |case| {
        let () = server.run(&["FLUSHALL"]);
        case.lines
            .iter()
            .map(|line| vec![script::ask_limiter(&mut connection, &line.event)])
            .collect()
    });
}
