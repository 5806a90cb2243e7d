//! `/api/fleet`: the processes that share this store, and the keys that all of them together reject most.
//!
//! Each process writes a report for the others, once in two seconds. It does so only while one of them asks, or requests
//! are rejected. [`crate::store`] carries questions and reports through Redis.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Admin;
use super::status::{self, MOST, rounded};
use crate::clock::every;
use crate::observe::{PROCESS, start};
use crate::redis::CallError;
use crate::store::{FleetMember, FleetWord};

/// The time between two reports.
const PERIOD: Duration = Duration::from_secs(2);

/// How long the others go on with their reports after a question.
const INTEREST: Duration = Duration::from_secs(10);

/// The ID of the question for reports. All processes ask it together.
const REPORTS: &str = "reports";

/// The most processes that a note names.
const NAMED: usize = 5;

/// The most bytes of a text from another process.
const LONGEST: usize = 1_024;

/// The most requests or rejections a second that are told.
const FASTEST: f64 = 1e15;

/// What a process reports of itself.
#[derive(Deserialize, Serialize)]
struct FleetReport {
    version: ShortText,
    since: ShortText,
    config_version: ShortText,
    requests: u64,
    requests_per_second: f64,
    rejected_per_second: f64,
    store: bool,
    #[serde(skip_serializing)]
    rejected: Vec<FleetKey>,
}

/// A rejected key in a report, or its sums over all reports.
#[derive(Deserialize, Serialize)]
struct FleetKey {
    limit: ShortText,
    mode: ShortText,
    key: ShortText,
    lookup: ShortText,
    name: Option<ShortText>,
    count: u64,
    at_most_over: u64,
    per_second: f64,
    #[serde(skip_deserializing)]
    processes: usize,
}

/// A text from another process, cut at [`LONGEST`].
#[derive(Clone, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(from = "String")]
struct ShortText(String);

impl From<String> for ShortText {
    fn from(mut text: String) -> Self {
        text.truncate(start(&text, LONGEST).len());
        Self(text)
    }
}

impl Admin {
    /// Reports to the other processes that share Redis, and answers what they ask, for as long as the process runs.
    pub(crate) async fn attend_fleet(self: Arc<Self>) {
        let words = &self.process.store.fleet;
        let (mut questions, mut tick) = (words.asked.subscribe(), every(PERIOD));
        let (mut reported, mut rejected, mut answered) = (None::<Instant>, 0, String::new());
        loop {
            let question = tokio::select! {
                question = questions.recv() => question.ok(),
                _ = tick.tick() => None,
            };
            match question {
                Some(FleetWord { id, text }) if id != REPORTS => {
                    // A question comes each half second while it is open. The first one is answered at once.
                    if replace(&mut answered, id.clone()) != id {
                        let admin = Arc::clone(&self);
                        tokio::spawn(async move {
                            let text = admin.why_for_others(&text).await;
                            _ = admin.process.store.fleet.said.send(FleetWord { id, text });
                        });
                    }
                    continue;
                }
                Some(_) => {}
                None => {
                    let now = self.pulse.readings()[2].reading.rejected();
                    if replace(&mut rejected, now) == now {
                        continue;
                    }
                }
            }
            if reported.is_none_or(|at| at.elapsed() >= PERIOD) {
                reported = Some(Instant::now());
                let (id, text) = (REPORTS.to_owned(), status::report(&self).to_string());
                _ = words.said.send(FleetWord { id, text });
            }
        }
    }

    /// What all processes report. A process that does not answer within a second has no figures.
    pub(super) async fn fleet(&self) -> Value {
        let question = FleetWord { id: REPORTS.to_owned(), text: String::new() };
        let (answers, note) = self.ask_fleet::<FleetReport>(question, INTEREST).await;
        let own = FleetReport::deserialize(status::report(self)).ok();
        let mut processes: Vec<_> = answers.iter().map(process_of).collect();
        let mut here = json!(own);
        (here["name"], here["here"]) = (PROCESS.as_str().into(), true.into());
        processes.push(here);
        processes.sort_by_key(|process| process["name"].to_string());
        mark_odd(&mut processes);
        let reports = answers.into_iter().filter_map(|(_, report)| report).chain(own);
        let rejected = merged(reports.flat_map(|report| report.rejected));
        let sum = |name| processes.iter().filter_map(|it| it[name].as_f64()).sum();
        let requests = processes.iter().filter_map(|it| it["requests"].as_u64());
        let sums = json!({
            "requests": requests.fold(0, u64::saturating_add),
            "requests_per_second": rate(sum("requests_per_second")),
            "rejected_per_second": rate(sum("rejected_per_second")),
        });
        json!({ "processes": processes, "sums": sums, "rejected": rejected, "note": note })
    }

    /// Asks the other processes, and says in a sentence whose answers are missing. What cannot be read is no answer.
    pub(super) async fn ask_fleet<T: DeserializeOwned>(
        &self,
        question: FleetWord,
        lasts: Duration,
    ) -> (Vec<(FleetMember, Option<T>)>, Option<String>) {
        let asked = match self.process.store.counters().redis_up {
            // This process is alone.
            None => return Default::default(),
            Some(true) => self.store().await.ask_fleet(&question, lasts).await,
            Some(false) => Err(CallError::Away),
        };
        let asked = match asked {
            Ok(asked) => asked,
            Err(error) => {
                let note = format!("the other processes cannot be asked through Redis: {error}");
                return (Vec::new(), Some(note));
            }
        };
        let read = |answer: Vec<u8>| serde_json::from_slice(&answer).ok();
        let answers = asked.into_iter().map(|(member, answer)| (member, answer.and_then(read)));
        let answers: Vec<(_, Option<T>)> = answers.collect();
        let silent = answers.iter().filter(|(_, answer)| answer.is_none());
        let silent: Vec<_> = silent.map(|(member, _)| member.name()).collect();
        let note = (!silent.is_empty()).then(|| {
            let more = match silent.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let named = silent[..silent.len().min(NAMED)].join(", ");
            format!(
                "no answer within a second from {named}{more}: stopped, busy, or a version that cannot be asked"
            )
        });
        (answers, note)
    }
}

/// The report of another process, or what is known of it without a report.
fn process_of((member, report): &(FleetMember, Option<FleetReport>)) -> Value {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let mut process = report.as_ref().map_or_else(
        || {
            json!({
                "version": some(&member.program), "since": null, "config_version": some(&member.file),
                "requests": null, "requests_per_second": null, "rejected_per_second": null, "store": null,
            })
        },
        |report| json!(report),
    );
    (process["name"], process["here"]) = (member.name().into(), false.into());
    process
}

/// A number a second, which JSON can hold.
fn rate(number: f64) -> f64 {
    rounded(number.clamp(0.0, FASTEST))
}

/// Adds up the counts of each key. The most rejected comes first.
fn merged(reported: impl Iterator<Item = FleetKey>) -> Vec<FleetKey> {
    let mut keys = BTreeMap::<_, FleetKey>::new();
    for mut key in reported {
        key.processes = 1;
        let id = (key.limit.clone(), key.lookup.clone());
        if let Some(others) = keys.get(&id) {
            key.count = key.count.saturating_add(others.count);
            key.at_most_over = key.at_most_over.saturating_add(others.at_most_over);
            key.per_second = rate(key.per_second + others.per_second);
            key.processes += others.processes;
        }
        keys.insert(id, key);
    }
    let mut keys: Vec<_> = keys.into_values().collect();
    keys.sort_by_key(|key| Reverse(key.count));
    keys.truncate(MOST);
    keys
}

/// Marks the processes whose program or file is not that of most processes. If no version has most, all are marked. Older
/// programs do not say which file they have.
fn mark_odd(processes: &mut [Value]) {
    for (version, mark) in [("version", "odd_version"), ("config_version", "odd_config")] {
        let says = |it: &Value| version == "version" || !it[version].is_null();
        let mut counts = BTreeMap::<String, usize>::new();
        for process in processes.iter().filter(|it| says(it)) {
            *counts.entry(process[version].to_string()).or_default() += 1;
        }
        let all: usize = counts.values().sum();
        for process in &mut *processes {
            let same = counts.get(&process[version].to_string()).copied().unwrap_or_default();
            process[mark] = (says(process) && 2 * same <= all && counts.len() > 1).into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(limit: &str, key: &str, count: u64) -> Value {
        json!({
            "limit": limit, "key": key, "lookup": key, "name": null, "mode": "enforce",
            "count": count, "at_most_over": 1, "per_second": 0.5, "of a newer version": {},
        })
    }

    fn report(rejected: Value) -> Value {
        json!({
            "name": "somebody-else", "here": "yes", "version": "1", "config_version": "x", "since": "2026",
            "requests": u64::MAX, "requests_per_second": 1e308, "rejected_per_second": -1.0, "store": true,
            "rejected": rejected,
        })
    }

    fn sums(keys: &[Value]) -> Value {
        let merged = merged(keys.iter().map(|key| FleetKey::deserialize(key).unwrap()));
        merged
            .iter()
            .map(|it| json!([it.limit, it.count, it.at_most_over, it.per_second, it.processes]))
            .collect()
    }

    #[test]
    fn the_counts_of_a_key_are_added_up() {
        let keys = [key("per-client", "k", 3), key("login", "k", 9), key("per-client", "k", 8)];
        assert_eq!(sums(&keys), json!([["per-client", 11, 2, 1.0, 2], ["login", 9, 1, 0.5, 1]]));
        let mut most = key("login", "k", u64::MAX);
        most["per_second"] = json!(1e308);
        let saturated = json!([["login", u64::MAX, 2, FASTEST, 2]]);
        assert_eq!(sums(&[most.clone(), most]), saturated);
    }

    #[test]
    fn a_report_has_all_its_members_of_their_types_or_is_none() {
        let read = |report: &Value| FleetReport::deserialize(report).ok();
        let mut long = report(json!([key(&"é".repeat(LONGEST), "k", 1)]));
        let limit = &read(&long).unwrap().rejected[0].limit;
        assert_eq!(limit.0, "é".repeat(LONGEST / 2), "cut between characters");
        let member = FleetMember::new("edge-1:7 an-id".to_owned(), "");
        let process = process_of(&(member, read(&long)));
        assert_eq!((&process["name"], &process["here"]), (&"edge-1:7".into(), &false.into()));
        for wrong in [json!("rejected"), json!([1, 2]), json!({}), json!(null)] {
            assert!(read(&wrong).is_none(), "{wrong}");
        }
        for rejected in [json!({}), json!(["a"]), json!([[]]), json!([key("a", "k", 1), null])] {
            long["rejected"] = rejected;
            assert!(read(&long).is_none(), "{long}");
        }
        let mut text = report(json!([]));
        text["requests"] = "7".into();
        assert!(read(&text).is_none(), "{text}");
    }

    #[test]
    fn what_most_processes_have_is_not_odd() {
        for (files, expected) in [
            (&["x", "x", "x"][..], &[false, false, false][..]),
            (&["x", "y", "x"], &[false, true, false]),
            (&["x", "y"], &[true, true]),
            (&["x"], &[false]),
        ] {
            let mut processes: Vec<_> = files
                .iter()
                .map(|file| json!({ "version": "1", "config_version": file }))
                .collect();
            mark_odd(&mut processes);
            let marks: Vec<_> = processes.iter().map(|it| it["odd_config"] == true).collect();
            assert_eq!(marks, expected, "{files:?}");
            assert!(processes.iter().all(|it| it["odd_version"] == false));
        }
    }
}
