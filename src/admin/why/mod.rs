//! `/api/why`: one rejection explained, and the kept rejections of a key.

mod would_pass;

use std::cmp::{Reverse, max};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp as Rfc3339;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use self::would_pass::{limit_of, would_pass};
use super::Admin;
use super::answer::{AdminResponse, json as answer_json};
use super::limits::{ApiProblem, FoundFigures, key_of, plan_of};
use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::observe::{PROCESS, millis, millis_up, new_uuid};
use crate::percent::decode;
use crate::request::key::ALL_KEYS;
use crate::settings::{Figures, FiguresOf, Settings};
use crate::store::FleetWord;
use crate::throttle::rejection::{KeptDecision, MOST_OF_KEY, OF_ALL_KEYS, Rejection};

/// The most bytes of an answer to another process.
const MOST_BYTES: usize = 65_536;

/// How long a question to the others stays open. Each of them finds it within half a second.
const INTEREST: Duration = Duration::from_secs(1);

/// What to ask for.
const HOW: &str = "ask for /api/why/ID, or for /api/why?limit=NAME&key=KEY";

/// What is said of a bucket whose figures may have changed since.
const OLD_FIGURES: &str = "these are the figures that rejected the request: the file or its override has changed since, \
                           and the key as it is kept does not tell the new ones";

/// The rejections that processes keep, and the time of day since which they keep all.
#[derive(Serialize, Deserialize)]
struct KeptAnswer {
    #[serde(deserialize_with = "date")]
    since: String,
    /// The newest first.
    rejections: Vec<Told>,
}

/// What is told of a rejection.
type Told = Map<String, Value>;

impl Admin {
    /// Answers a question about the rejection with this ID, or about the key that the query names. All processes that
    /// share Redis are asked, unless this one knows the ID of the rejection itself.
    pub(super) async fn why(
        &self,
        path: &[&str],
        query: Option<&str>,
    ) -> Result<AdminResponse, ApiProblem> {
        let id = match path {
            [] => "",
            [id] => id,
            _ => return Err(ApiProblem(StatusCode::NOT_FOUND, HOW.to_owned())),
        };
        // Another process may have a limit that this one does not have.
        let mut kept = self.kept(id, query).await;
        let uuid = Uuid::parse_str(&decoded(id)).map(|uuid| json!(uuid.to_string()));
        let is_it = |it: &Told| it.get("id") == uuid.as_ref().ok();
        let is_sure =
            uuid.is_ok() && kept.as_ref().is_ok_and(|kept| kept.rejections.iter().any(is_it));
        let (mut processes, mut note) = (vec![PROCESS.to_string()], None);
        if !is_sure {
            let text = [id, query.unwrap_or_default()].join("?");
            let question = FleetWord { id: new_uuid(self.wall()).to_string(), text };
            let (answers, missing) = self.ask_fleet::<Option<KeptAnswer>>(question, INTEREST).await;
            for (member, answer) in answers {
                let Some(other) = answer else { continue };
                processes.push(member.name().to_owned());
                kept = match (kept, other) {
                    (Ok(mut all), Some(other)) => {
                        all.rejections.extend(other.rejections);
                        // All of them keep all rejections since the latest of these times.
                        all.since = max(all.since, other.since);
                        Ok(all)
                    }
                    (kept, None) => kept,
                    (Err(_), Some(other)) => Ok(other),
                };
            }
            note = missing;
        }
        let KeptAnswer { since, mut rejections } = kept.map_err(|ApiProblem(status, detail)| {
            ApiProblem(status, note.iter().fold(detail, |detail, note| format!("{detail}; {note}")))
        })?;
        rejections.sort_by_key(|it| Reverse(it.get("time").map(Value::to_string)));
        if id.is_empty() {
            let [limit, key] = ["limit", "key"].map(|name| parameter(query, name));
            return Ok(answer_json(&json!({
                "limit": limit, "key": key, "rejections": rejections, "since": since, "processes": processes, "note": note,
            })));
        }
        // If several rejections have this request ID, the newest counts.
        if let Some(mut told) = rejections.into_iter().next() {
            told.extend([
                ("processes".to_owned(), json!(processes)),
                ("note".to_owned(), json!(note)),
            ]);
            return Ok(answer_json(&told.into()));
        }
        let (was, keeps) = if processes.len() > 1 { ("were", "keep") } else { ("was", "keeps") };
        let note = note.map(|note| format!("; {note}")).unwrap_or_default();
        let detail = format!(
            "no rejection has the ID `{}` here: {} {was} asked, and {keeps} the last rejections, all of them since {since}{note}",
            decoded(id),
            processes.join(", ")
        );
        Err(ApiProblem(StatusCode::NOT_FOUND, detail))
    }

    /// What this process keeps, for another one that asks: the ID in the path, and the query. `null` if it does not know
    /// the limit, or the limit cannot have the key.
    pub(super) async fn why_for_others(&self, asked: &str) -> String {
        let (id, query) = asked.split_once('?').unwrap_or((asked, ""));
        let mut kept = self.kept(id, Some(query)).await.ok();
        loop {
            let text = serde_json::to_string(&kept).unwrap_or_default();
            let is_short = text.len() <= MOST_BYTES;
            if is_short || kept.as_mut().and_then(|kept| kept.rejections.pop()).is_none() {
                return text;
            }
        }
    }

    /// What this process keeps: all that is known about the rejection with this ID, or without an ID what the rejections
    /// of a key tell.
    async fn kept(&self, id: &str, query: Option<&str>) -> Result<KeptAnswer, ApiProblem> {
        let settings = Arc::clone(&self.published.borrow().settings);
        let kept = &self.process.rejections;
        let mut rejections = Vec::new();
        if id.is_empty() {
            let [Some(limit), Some(key)] = ["limit", "key"].map(|name| parameter(query, name))
            else {
                return Err(ApiProblem(StatusCode::UNPROCESSABLE_ENTITY, HOW.to_owned()));
            };
            let mut of_key = kept.of_key(&limit, &key);
            if of_key.is_empty() {
                let (_, asked) = self.asked(&settings, &limit, &encoded(&key), query)?;
                of_key = kept.of_key(&limit, asked.shown.as_str());
            }
            rejections.extend(of_key.iter().filter_map(|it| object(self.told(&settings, it))));
        } else {
            let id = decoded(id);
            let uuid = Uuid::parse_str(&id).ok();
            let named = kept.find(|it| uuid == Some(it.id) || it.request_id == id);
            if let Some(newest) = named.first() {
                rejections.extend(object(self.explained(&settings, newest).await));
            }
        }
        Ok(KeptAnswer { since: time(kept.since()), rejections })
    }

    /// All that is known about a rejection.
    async fn explained(&self, settings: &Settings, rejection: &Rejection) -> Value {
        let mut told = self.told(settings, rejection);
        let Some(by) = rejection.by() else { return told };
        let (limit, key) = (by.limit.as_str(), rejection.key());
        let of_key = self.process.rejections.of_key(limit, key);
        let mut routes = BTreeMap::<_, u64>::new();
        for kept in &of_key {
            *routes.entry((&kept.method, &kept.route)).or_default() += 1;
        }
        let routes = routes.into_iter().map(
            |((method, route), count)| json!({ "method": method, "route": route, "count": count }),
        );
        told["routes"] = routes.collect();
        let series = self.process.rejections.series(rejection.hash);
        let ago = rejection.now.steady.micros_since(series.since);
        let since = rejection.now.wall.plus_signed(-i64::try_from(ago).unwrap_or_default());
        told["series"] = json!({
            "since": (series.rejected > 0).then(|| time(since)),
            "rejected": series.rejected,
            "early": series.early,
        });
        told["now"] = self.bucket_now(settings, rejection, by).await;
        told
    }

    /// What the key's bucket holds now. Null if the bucket cannot be found.
    async fn bucket_now(
        &self,
        settings: &Settings,
        rejection: &Rejection,
        by: &KeptDecision,
    ) -> Value {
        let (limit, key) = (by.limit.as_str(), rejection.key());
        if key.len() >= MOST_OF_KEY {
            return Value::Null;
        }
        let Ok((spec, asked)) = self.asked(settings, limit, &encoded(key), None) else {
            return Value::Null;
        };
        let mut found = self.figures(spec, &asked, plan_of(settings, spec, &asked));
        let bucket = match key_of(settings, spec, &asked) {
            Ok(bucket) if spec.limiter.is_some() || found.note.is_none() => bucket,
            Err(_) if spec.limiter.is_some() => return Value::Null,
            // The key as it is kept does not tell its figures. The rejection tells where they come from.
            _ => {
                let in_plan = by.plan.as_ref().and_then(|plan| spec.in_plan(plan, false));
                found = self.figures(spec, &asked, Some(in_plan));
                let is_of_key = !matches!(rejection.source, "file" | "plan" | OF_ALL_KEYS);
                if is_of_key && found.of != FiguresOf::Override(None) {
                    let is_known = rejection.line.is_some() && self.is_in_force(rejection);
                    let note = (!is_known).then_some(OLD_FIGURES);
                    let figures = Figures::Limited(by.ask.algorithm);
                    let of = FiguresOf::Override(rejection.line);
                    found = FoundFigures { figures, of, note, running: None };
                }
                asked.shown.clone().into()
            }
        };
        self.bucket_under(found, spec, &asked, &bucket).await.unwrap_or_default()
    }

    /// Whether the file in force is the one that decided.
    fn is_in_force(&self, rejection: &Rejection) -> bool {
        let news = self.process.config.news();
        news.loaded(rejection.now.wall) == Some(news.since)
    }

    /// What a rejection itself tells.
    fn told(&self, settings: &Settings, rejection: &Rejection) -> Value {
        let Some(by) = rejection.by() else { return Value::Null };
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        json!({
            "id": rejection.id.to_string(),
            "request_id": some(&rejection.request_id),
            "time": time(rejection.now.wall),
            "limit": by.limit.as_str(),
            "route": rejection.route,
            "method": rejection.method,
            "path": rejection.path,
            "client": rejection.client.map(|client| client.to_string()),
            "status": rejection.status.as_u16(),
            "key": rejection.shown_key(),
            "name": some(&rejection.name),
            "plan": by.plan.as_ref().map(Name::as_str),
            "from": from(settings, by, rejection.key()),
            "rate": by.ask.algorithm.rate(),
            "burst": by.ask.algorithm.known_capacity(),
            "figures": self.figures_of(rejection, by),
            "config_loaded": self.process.config.news().loaded(rejection.now.wall).map(time),
            "cost": by.ask.cost.get(),
            "remaining": by.decision.remaining,
            "store": by.store,
            "retry_after_ms": rejection.wait.told.map(millis_up),
            "would_pass": would_pass(settings, rejection),
        })
    }

    /// Where the figures come from.
    fn figures_of(&self, rejection: &Rejection, by: &KeptDecision) -> Value {
        let (news, name) = (self.process.config.news(), by.limit.as_str());
        let (of, key) = match rejection.source {
            OF_ALL_KEYS => ("override", ALL_KEYS),
            of => (of, rejection.key()),
        };
        let is_of_file = rejection.line.is_some() || matches!(of, "file" | "plan");
        let listed = self.listed(name, key).filter(|_| !is_of_file);
        let line = || match rejection.line {
            Some(line) => json!(line),
            None => json!(news.line_of(name, by.plan.as_ref().map(Name::as_str))),
        };
        json!({
            "of": of,
            "file": is_of_file.then_some(&news.file),
            "line": (is_of_file && self.is_in_force(rejection)).then(line),
            "reason": listed.as_ref().and_then(|it| it.entry.reason.clone()),
            "ends_in_ms": listed.and_then(|it| it.left).map(millis),
        })
    }
}

/// The parts of the key that the request had, as the file spells them.
fn from(settings: &Settings, by: &KeptDecision, key: &str) -> Option<String> {
    let (spec, key) = (limit_of(settings, by)?, Key::parse(key)?);
    let parts = spec.key.sources.iter().zip(key.parts());
    let had = parts.filter_map(|(source, (index, value))| {
        value.and(source.alternatives().get(index)).map(ToString::to_string)
    });
    let had: Vec<_> = had.collect();
    (!had.is_empty()).then(|| had.join(", "))
}

/// The key as a path has it.
fn encoded(key: &str) -> String {
    utf8_percent_encode(key, NON_ALPHANUMERIC).to_string()
}

/// The text that is percent-encoded in a URL.
fn decoded(encoded: &str) -> String {
    String::from_utf8_lossy(&decode(encoded)).into_owned()
}

/// The decoded value of a parameter of the query.
fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.into_iter().find(|(own, _)| *own == name)?;
    Some(decoded(&value.replace('+', " ")))
}

fn object(value: Value) -> Option<Told> {
    if let Value::Object(told) = value { Some(told) } else { None }
}

/// A time of day in the answer of another process.
fn date<'de, D: Deserializer<'de>>(answer: D) -> Result<String, D::Error> {
    let at: Rfc3339 = String::deserialize(answer)?.parse().map_err(D::Error::custom)?;
    Ok(format!("{at:.3}"))
}

/// A time of day with its milliseconds.
fn time(at: Timestamp) -> String {
    let millis = i64::try_from(at.as_micros() / 1_000).unwrap_or_default();
    format!("{:.3}", Rfc3339::from_millisecond(millis).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_time_and_a_list_of_objects() {
        let read = |text: &str| serde_json::from_str::<Option<KeptAnswer>>(text).ok();
        let kept = r#"{"since":"2026-01-02T03:04:05Z","rejections":[{"id":"x"}],"new":1}"#;
        let known = read(kept).flatten().unwrap();
        assert_eq!((&*known.since, known.rejections.len()), ("2026-01-02T03:04:05.000Z", 1));
        assert!(read("null").is_some_and(|answer| answer.is_none()), "it knows no such limit");
        for (part, wrong) in
            [("2026-", "9999\u{1b}[2J"), (r#"{"id":"x"}"#, "\"x\""), (r#"{"id":"x"}"#, "null")]
        {
            assert!(read(&kept.replace(part, wrong)).is_none(), "{wrong}");
        }
    }
}
