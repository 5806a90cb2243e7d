//! `/api/why`: one rejection explained, and the kept rejections of a key.

use std::cmp::{Reverse, max};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp as Rfc3339;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::Admin;
use super::answer::{AdminResponse, json as answer_json};
use super::limits::ApiProblem;
use crate::limit::algorithm::recalled::RecalledBucket;
use crate::limit::algorithm::{Algorithm, Want};
use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::observe::{PROCESS, millis, millis_up, new_uuid};
use crate::percent::decode;
use crate::request::key::ALL_KEYS;
use crate::settings::{Figures, LimitSpec, Settings};
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

/// What somebody wants to know.
enum WhyQuestion {
    Id(String),
    Key { limit: String, key: String },
}

/// The rejections that processes keep, and the time of day since which they keep all.
#[derive(Default, Serialize, Deserialize)]
struct KeptAnswer {
    since: String,
    /// As JSON, the newest first.
    rejections: Vec<Value>,
}

impl Admin {
    /// Answers a question about the rejection with this ID, or about the key that the query names. All processes that
    /// share Redis are asked, unless this one knows the ID of the rejection itself.
    pub(super) async fn why(
        &self,
        path: &[&str],
        query: Option<&str>,
    ) -> Result<AdminResponse, ApiProblem> {
        let question = WhyQuestion::read(path, query)?;
        let mut kept = self.kept(&question, query).await?;
        let is_sure = |it: &Value| matches!(&question, WhyQuestion::Id(id) if it["id"].as_str() == Some(own_id(id)));
        let (mut processes, mut note) = (vec![PROCESS.to_string()], None);
        if !kept.rejections.iter().any(is_sure) {
            let text = [&path.join("/"), query.unwrap_or_default()].join("?");
            let asked = FleetWord { id: new_uuid(self.wall()).to_string(), text };
            let (answers, missing) = self.ask_fleet(asked, INTEREST).await;
            for (member, text) in answers.answers {
                let Ok(theirs) = serde_json::from_str::<KeptAnswer>(&text) else { continue };
                processes.push(member.name().to_owned());
                kept.add(theirs);
            }
            note = missing;
        }
        let KeptAnswer { since, mut rejections } = kept;
        match question {
            WhyQuestion::Key { limit, key } => Ok(answer_json(&json!({
                "limit": limit, "key": key, "rejections": rejections, "since": since, "processes": processes, "note": note,
            }))),
            // If several rejections have this request ID, the newest counts.
            WhyQuestion::Id(_) if !rejections.is_empty() => {
                let mut told = rejections.swap_remove(0);
                (told["processes"], told["note"]) = (json!(processes), json!(note));
                Ok(answer_json(&told))
            }
            WhyQuestion::Id(id) => {
                let (names, was) =
                    (processes.join(", "), if processes.len() > 1 { "were" } else { "was" });
                let mut detail = format!(
                    "no rejection has the ID `{id}` here: {names} {was} asked, and keep the last rejections, all of them since {since}"
                );
                detail.extend(note.map(|note| format!("; {note}")));
                Err(ApiProblem(StatusCode::NOT_FOUND, detail))
            }
        }
    }

    /// What this process keeps, for another one that asks: the path below `/api/why`, and the query.
    pub(super) async fn why_for_others(&self, asked: &str) -> String {
        let (path, query) = asked.split_once('?').unwrap_or((asked, ""));
        let path: Vec<_> = path.split('/').collect();
        let mut kept = match WhyQuestion::read(&path, Some(query)) {
            Ok(question) => self.kept(&question, Some(query)).await.unwrap_or_default(),
            Err(_) => KeptAnswer::default(),
        };
        loop {
            let text = serde_json::to_string(&kept).unwrap_or_default();
            if text.len() <= MOST_BYTES || kept.rejections.pop().is_none() {
                return text;
            }
        }
    }

    /// What this process keeps.
    async fn kept(
        &self,
        question: &WhyQuestion,
        query: Option<&str>,
    ) -> Result<KeptAnswer, ApiProblem> {
        let settings = Arc::clone(&self.published.borrow().settings);
        let rejections = match question {
            WhyQuestion::Id(id) => self.of_id(&settings, id).await.into_iter().collect(),
            WhyQuestion::Key { limit, key } => self.of_key(&settings, limit, key, query)?,
        };
        Ok(KeptAnswer { since: time(self.process.rejections.since()), rejections })
    }

    /// All that is known about the rejection with this ID. `None` if the process does not keep it.
    async fn of_id(&self, settings: &Settings, id: &str) -> Option<Value> {
        let uuid = Uuid::parse_str(own_id(id)).ok();
        let is_named = |it: &Rejection| uuid == Some(it.id) || it.request_id == id;
        let named = self.process.rejections.find(is_named);
        Some(self.explained(settings, named.first()?).await)
    }

    /// What the kept rejections of a key tell. The query says whether the key has plain values.
    fn of_key(
        &self,
        settings: &Settings,
        limit: &str,
        key: &str,
        query: Option<&str>,
    ) -> Result<Vec<Value>, ApiProblem> {
        let kept = &self.process.rejections;
        let mut of_key = kept.of_key(limit, key);
        if of_key.is_empty() {
            let (_, asked) = self.asked(settings, limit, &encoded(key), query)?;
            of_key = kept.of_key(limit, asked.shown.as_str());
        }
        Ok(of_key.iter().map(|it| self.told(settings, it)).collect())
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

    /// What the key's bucket holds now. If the key as it is kept does not tell its present figures, the rejection tells
    /// where they come from. Null if the bucket cannot be found.
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
        let present = self.bucket(settings, spec, &asked).await;
        if spec.limiter.is_some() || present.as_ref().is_ok_and(|it| it["note"].is_null()) {
            return present.unwrap_or_default();
        }
        let in_plan = by.plan.as_ref().and_then(|plan| spec.of_plan(plan));
        let is_in_force = rejection.line.is_some() && self.is_in_force(rejection);
        // An override of the key wins over all. One of all keys wins over the limit's own figures.
        let of_all = matches!(rejection.source, "file" | OF_ALL_KEYS).then_some(ALL_KEYS);
        let running = [Some(&*asked.text), of_all].into_iter().flatten();
        let running =
            running.filter_map(|key| self.listed(limit, key)).find(|it| it.running.is_some());
        let figures = running.as_ref().and_then(|it| Some(it.running.as_ref()?.figures.clone()));
        let found = match (figures, rejection.source) {
            (Some(figures), _) => (figures, None, None, running),
            (None, "file" | "plan" | OF_ALL_KEYS) => {
                let figures = in_plan.map_or(&spec.figures, |plan| &plan.figures);
                (figures.clone(), in_plan.and(by.plan.clone()), None, None)
            }
            _ => {
                let note = (!is_in_force).then_some(OLD_FIGURES);
                (Figures::Limited(by.ask.algorithm), None, note, None)
            }
        };
        let bucket = asked.shown.clone().into();
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

impl WhyQuestion {
    /// Reads the path below `/api/why`, and the query.
    fn read(path: &[&str], query: Option<&str>) -> Result<Self, ApiProblem> {
        match path {
            [] | [""] => match ["limit", "key"].map(|name| parameter(query, name)) {
                [Some(limit), Some(key)] => Ok(Self::Key { limit, key }),
                _ => Err(ApiProblem(StatusCode::UNPROCESSABLE_ENTITY, HOW.to_owned())),
            },
            [id] => Ok(Self::Id(String::from_utf8_lossy(&decode(id)).into_owned())),
            _ => Err(ApiProblem(StatusCode::NOT_FOUND, HOW.to_owned())),
        }
    }
}

impl KeptAnswer {
    /// Adds what another process keeps.
    fn add(&mut self, other: Self) {
        self.rejections.extend(other.rejections);
        self.rejections.sort_by_key(|it| Reverse(it["time"].to_string()));
        // All of them keep all rejections since the latest of these times.
        self.since = max(&self.since, &other.since).clone();
    }
}

/// The ID without the words that `instance` of a body has before it.
fn own_id(id: &str) -> &str {
    id.strip_prefix("urn:uuid:").unwrap_or(id)
}

/// The smallest change of each kind that alone would have let the request pass.
fn would_pass(settings: &Settings, rejection: &Rejection) -> Vec<Value> {
    let refusing = &rejection.limits;
    let is_slot = |it: &KeptDecision| matches!(it.ask.algorithm, Algorithm::Concurrency(_));
    // When a slot is free, nobody knows.
    let wait = rejection.wait.retry_after.filter(|_| !refusing.iter().any(is_slot));
    let mut changes: Vec<_> =
        wait.map(|wait| json!({ "wait_ms": millis_up(wait) })).into_iter().collect();
    if rejection.source == "ban" {
        return changes;
    }
    let recalled: Option<Vec<_>> = refusing.iter().map(|it| recall(it, rejection)).collect();
    let Some(recalled) = recalled else { return changes };
    let alone = match recalled.as_slice() {
        [bucket] => Some(bucket),
        _ => None,
    };
    let burst = alone.and_then(RecalledBucket::burst).map(|burst| json!({ "burst": burst }));
    let plan = plan(settings, &recalled, rejection).map(|plan| json!({ "plan": plan }));
    let cost = alone.and_then(RecalledBucket::cost).map(|cost| json!({ "cost": cost }));
    changes.extend([burst, plan, cost].into_iter().flatten());
    changes
}

fn recall(kept: &KeptDecision, rejection: &Rejection) -> Option<RecalledBucket> {
    let KeptDecision { may_owe, ask, decision, .. } = kept;
    let want = Want { cost: ask.cost, max_wait: ask.max_wait };
    RecalledBucket::new(ask.algorithm, want, *decision, *may_owe, rejection.now)
}

/// The plan with the lowest rate under which all limits that refuse would have let the request pass.
fn plan<'s>(
    settings: &'s Settings,
    recalled: &[RecalledBucket],
    rejection: &Rejection,
) -> Option<&'s str> {
    if rejection.source == "override" {
        return None;
    }
    let now = rejection.now;
    // A limit without plans has the same figures under each.
    let passes_under = |(kept, bucket): (&KeptDecision, &RecalledBucket), plan: &Name| {
        let limit = limit_of(settings, kept)?;
        let spec = limit.of_plan(plan)?;
        // A window of another length has its own bucket.
        let decided = kept.plan.as_ref().and_then(|plan| limit.of_plan(plan)).unwrap_or(limit);
        let is_same_bucket = spec.window == decided.window;
        let figures = spec.figures.at(now);
        Some(figures.is_none_or(|figures| is_same_bucket && bucket.passes_under(figures)))
    };
    let passes = |plan: &Name| {
        let mut limits = rejection.limits.iter().zip(recalled);
        limits.all(|limit| passes_under(limit, plan) == Some(true))
    };
    let found = limit_of(settings, rejection.limits.first()?)?.plans.iter();
    let found = found.filter(|spec| spec.plan.as_ref().is_some_and(passes));
    let rate = |spec: &LimitSpec| {
        spec.figures.at(now).map_or(f64::INFINITY, |it| it.per_second().unwrap_or_default())
    };
    let least = found.min_by(|one, other| rate(one).total_cmp(&rate(other)))?;
    least.plan.as_ref().map(Name::as_str)
}

/// The limit as it is now. `None` if the file has it no more.
fn limit_of<'s>(settings: &'s Settings, kept: &KeptDecision) -> Option<&'s Arc<LimitSpec>> {
    settings.limits.iter().find(|limit| limit.name == kept.limit)
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

/// The decoded value of a parameter of the query.
fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.into_iter().find(|(own, _)| *own == name)?;
    let value = value.replace('+', " ");
    Some(String::from_utf8_lossy(&decode(&value)).into_owned())
}

/// A time of day with its milliseconds.
fn time(at: Timestamp) -> String {
    let millis = i64::try_from(at.as_micros() / 1_000).unwrap_or_default();
    format!("{:.3}", Rfc3339::from_millisecond(millis).unwrap_or_default())
}
