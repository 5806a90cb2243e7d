//! `/api/fleet`: the processes that share this store, and who is throttled over all of them.
//!
//! Each process writes a report for the others, once in two seconds. It does so only while one of them asks, or requests
//! are rejected. [`crate::store`] carries questions and reports through Redis.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::Admin;
use super::status::{self, MOST, rounded};
use crate::clock::every;
use crate::store::{FleetAnswers, FleetMember, FleetWord};

/// The time between two reports.
const PERIOD: Duration = Duration::from_secs(2);

/// How long the others go on with their reports after a question.
const INTEREST: Duration = Duration::from_secs(10);

/// The ID of the question for reports. All processes ask it together.
const REPORTS: &str = "reports";

const AWAY: &str =
    "the other processes cannot be asked: Redis does not answer, or too many questions are open";

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
        let (answers, note) = self.ask_fleet(question, INTEREST).await;
        let reports = answers.iter().map(report_of).chain([status::report(self)]);
        let mut processes: Vec<_> = reports.collect();
        for (index, process) in processes.iter_mut().enumerate() {
            process["here"] = (index == answers.len()).into();
        }
        processes.sort_by_key(|process| process["name"].to_string());
        let rejected = merged(&mut processes);
        mark_odd(&mut processes);
        let sum = |name| processes.iter().filter_map(|it| it[name].as_f64()).sum();
        let requests: u64 = processes.iter().filter_map(|it| it["requests"].as_u64()).sum();
        let sums = json!({
            "requests": requests,
            "requests_per_second": rounded(sum("requests_per_second")),
            "rejected_per_second": rounded(sum("rejected_per_second")),
        });
        json!({ "processes": processes, "sums": sums, "rejected": rejected, "note": note })
    }

    /// Asks the other processes, and says in a sentence whose answers are missing.
    pub(super) async fn ask_fleet(
        &self,
        question: FleetWord,
        lasts: Duration,
    ) -> (FleetAnswers, Option<String>) {
        let asked = match self.process.store.counters().redis_up {
            // This process is alone.
            None => return Default::default(),
            Some(true) => self.store().await.ask_fleet(&question, lasts).await.ok(),
            Some(false) => None,
        };
        let Some(asked) = asked else { return (Vec::new(), Some(AWAY.to_owned())) };
        let silent = asked.iter().filter(|(_, answer)| answer.is_none());
        let silent: Vec<_> = silent.map(|(member, _)| member.name()).collect();
        let note = (!silent.is_empty()).then(|| {
            format!(
                "no answer within a second from {}: stopped, busy, or a version that cannot be asked",
                silent.join(", ")
            )
        });
        (asked, note)
    }
}

/// The report of another process, or what is known of it without a report.
fn report_of((member, answer): &(FleetMember, Option<String>)) -> Value {
    let report = answer.as_ref().and_then(|answer| serde_json::from_str(answer).ok());
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    report.filter(Value::is_object).unwrap_or_else(|| {
        json!({
            "name": member.name(), "version": some(&member.program), "since": null,
            "config_version": some(&member.file), "requests": null, "requests_per_second": null,
            "rejected_per_second": null, "store": null,
        })
    })
}

/// Takes the rejected keys out of all reports, and adds up the counts of each key. The most rejected comes first.
fn merged(processes: &mut [Value]) -> Vec<Value> {
    let mut keys = BTreeMap::<_, Value>::new();
    for process in processes {
        let reported = process.as_object_mut().and_then(|report| report.remove("rejected"));
        let Some(Value::Array(reported)) = reported else { continue };
        for mut key in reported.into_iter().filter(Value::is_object) {
            key["processes"] = 1.into();
            let id = (key["limit"].to_string(), key["lookup"].to_string());
            if let Some(others) = keys.get(&id) {
                for name in ["count", "at_most_over", "processes"] {
                    let counts = [others, &key].map(|it| it[name].as_u64().unwrap_or_default());
                    key[name] = counts.iter().sum::<u64>().into();
                }
                let rates = [others, &key].map(|it| it["per_second"].as_f64().unwrap_or_default());
                key["per_second"] = rounded(rates.iter().sum()).into();
            }
            keys.insert(id, key);
        }
    }
    let mut keys: Vec<_> = keys.into_values().collect();
    keys.sort_by_key(|key| Reverse(key["count"].as_u64()));
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

    fn report(name: &str, versions: (&str, &str), rejected: Value) -> Value {
        let (version, config) = versions;
        json!({ "name": name, "version": version, "config_version": config, "rejected": rejected })
    }

    fn key(limit: &str, key: &str, count: u64) -> Value {
        json!({
            "limit": limit, "key": key, "lookup": key, "name": null, "mode": "enforce",
            "count": count, "at_most_over": 1, "per_second": 0.5,
        })
    }

    #[test]
    fn the_counts_of_a_key_are_added_up() {
        let mut processes = [
            report("a", ("1", "x"), json!([key("per-client", "k", 3), key("login", "k", 9)])),
            report("b", ("1", "x"), json!([key("per-client", "k", 8), "no key"])),
            report("c", ("1", "x"), Value::Null),
        ];
        let merged = merged(&mut processes);
        let told: Vec<_> = merged
            .iter()
            .map(|it| {
                json!([
                    it["limit"],
                    it["count"],
                    it["at_most_over"],
                    it["per_second"],
                    it["processes"]
                ])
            })
            .collect();
        assert_eq!(json!(told), json!([["per-client", 11, 2, 1.0, 2], ["login", 9, 1, 0.5, 1]]));
        assert!(processes.iter().all(|process| process.get("rejected").is_none()));
    }

    #[test]
    fn what_most_processes_have_is_not_odd() {
        for (files, expected) in [
            (&["x", "x", "x"][..], &[false, false, false][..]),
            (&["x", "y", "x"], &[false, true, false]),
            (&["x", "y"], &[true, true]),
            (&["x"], &[false]),
        ] {
            let mut processes: Vec<_> =
                files.iter().map(|file| report("a", ("1", file), Value::Null)).collect();
            mark_odd(&mut processes);
            let marks: Vec<_> = processes.iter().map(|it| it["odd_config"] == true).collect();
            assert_eq!(marks, expected, "{files:?}");
            assert!(processes.iter().all(|it| it["odd_version"] == false));
        }
    }
}
