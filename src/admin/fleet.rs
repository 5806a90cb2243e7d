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
use super::status::{self, rounded};
use crate::clock::every;
use crate::store::{FleetAnswers, FleetMember, FleetWord};

/// The time between two reports.
const PERIOD: Duration = Duration::from_secs(2);

/// How long the others go on with their reports after a question.
const INTEREST: Duration = Duration::from_secs(10);

/// The ID of the question for reports. All processes ask it together.
const REPORTS: &str = "reports";

/// The most keys that are listed.
const MOST_KEYS: usize = 200;

impl Admin {
    /// Reports to the other processes that share Redis, and answers what they ask, for as long as the process runs.
    pub(crate) async fn attend_fleet(self: Arc<Self>) {
        let words = &self.process.store.fleet;
        let Some(mut questions) = words.questions() else { return };
        let mut tick = every(PERIOD);
        let (mut reported, mut rejected, mut answered) = (None::<Instant>, 0, String::new());
        loop {
            let question = tokio::select! {
                question = questions.recv() => question,
                _ = tick.tick() => None,
            };
            let is_wanted = match question {
                Some(FleetWord { id, .. }) if id == REPORTS => true,
                Some(FleetWord { id, text }) => {
                    if replace(&mut answered, id.clone()) != id {
                        let admin = Arc::clone(&self);
                        tokio::spawn(async move {
                            let text = admin.why_for_others(&text).await;
                            admin.process.store.fleet.say(FleetWord { id, text });
                        });
                    }
                    false
                }
                None => {
                    let now = self.pulse.readings()[2].reading.rejected();
                    replace(&mut rejected, now) != now
                }
            };
            // A question comes each half second while it is open. The first one is answered at once.
            if is_wanted && reported.is_none_or(|at| at.elapsed() >= PERIOD) {
                reported = Some(Instant::now());
                let text = status::report(&self).to_string();
                words.say(FleetWord { id: REPORTS.to_owned(), text });
            }
        }
    }

    /// What all processes report. A process that does not answer within a second has no figures.
    pub(super) async fn fleet(&self) -> Value {
        let mut own = status::report(self);
        own["here"] = true.into();
        let question = FleetWord { id: REPORTS.to_owned(), text: String::new() };
        let (FleetAnswers { answers, silent }, note) = self.ask_fleet(question, INTEREST).await;
        let reports = answers.iter().map(|(member, text)| {
            let report = serde_json::from_str(text).ok().filter(Value::is_object);
            report.unwrap_or_else(|| without_report(member))
        });
        let silent: Vec<_> = silent.iter().map(without_report).collect();
        let others = reports.chain(silent).map(|mut report| {
            report["here"] = false.into();
            report
        });
        let mut processes: Vec<_> = [own].into_iter().chain(others).collect();
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
        let up = self.process.store.counters().redis_up;
        let asked = match up {
            // This process is alone.
            None => return Default::default(),
            Some(true) => self.store().await.ask_fleet(&question, lasts).await.ok(),
            Some(false) => None,
        };
        let Some(asked) = asked else {
            let note = "the other processes cannot be asked, because Redis does not answer";
            return (FleetAnswers::default(), Some(note.to_owned()));
        };
        let note = silent_note(&asked.silent);
        (asked, note)
    }
}

/// A sentence about processes that have not answered. `None` if there are none.
fn silent_note(silent: &[FleetMember]) -> Option<String> {
    let names: Vec<_> = silent.iter().map(FleetMember::name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "no answer within a second from {}: stopped, busy, or a version that cannot be asked",
            names.join(", ")
        )
    })
}

/// What is known of a process without its report.
fn without_report(member: &FleetMember) -> Value {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    json!({
        "name": member.name(), "version": some(&member.program), "since": null,
        "config_version": some(&member.file), "requests": null, "requests_per_second": null,
        "rejected_per_second": null, "store": null,
    })
}

/// Takes the rejected keys out of all reports, and adds up the counts of each key. The most rejected comes first.
fn merged(processes: &mut [Value]) -> Vec<Value> {
    let mut keys = BTreeMap::<_, Value>::new();
    for process in processes {
        let reported = process.as_object_mut().and_then(|report| report.remove("rejected"));
        for key in reported.iter().filter_map(Value::as_array).flatten() {
            let id = (key["limit"].to_string(), key["lookup"].to_string());
            let sum = keys.entry(id).or_insert_with(|| {
                let mut sum = key.clone();
                (sum["count"], sum["at_most_over"]) = (0.into(), 0.into());
                (sum["per_second"], sum["processes"]) = (0.0.into(), 0.into());
                sum
            });
            for name in ["count", "at_most_over"] {
                sum[name] = [&*sum, key]
                    .map(|it| it[name].as_u64().unwrap_or_default())
                    .iter()
                    .sum::<u64>()
                    .into();
            }
            let rates = [&*sum, key].map(|it| it["per_second"].as_f64().unwrap_or_default());
            sum["per_second"] = rounded(rates.iter().sum()).into();
            sum["processes"] = (sum["processes"].as_u64().unwrap_or_default() + 1).into();
        }
    }
    let mut keys: Vec<_> = keys.into_values().collect();
    keys.sort_by_key(|key| Reverse(key["count"].as_u64()));
    keys.truncate(MOST_KEYS);
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
            report("b", ("1", "x"), json!([key("per-client", "k", 8)])),
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
