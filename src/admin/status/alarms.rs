//! The alarms: problems that an operator should look at now. The worst alarm comes first. Each alarm says what it means
//! and what to do. The page and `tidegate top` show these words.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::StatusFacts;
use crate::limit::Mode;
use crate::limit::name::Name;
use crate::observe::metrics::{DecisionKind, FAILED, Reading, RouteCounts};
use crate::settings::{OnStoreError, Settings};
use crate::tls::server::CertificateEnd;
use crate::upstream::health::UpstreamState;
use crate::worker::Published;

/// From this share of the requests of the last seconds on, refused requests are an alarm, if they are not fewer than
/// this number. A scanner that looks for a path or two is no alarm.
const REFUSED_PERCENT: u64 = 5;
const FEWEST_REFUSED: u64 = 5;

/// The most names in one alarm.
const NAMES: usize = 3;

impl StatusFacts<'_> {
    pub(super) fn alarms(&self, published: &Published) -> Vec<Value> {
        let mut alarms = Vec::new();
        let is_down = |state: &UpstreamState| state.servers().iter().all(|it| !it.is_up());
        let (down, others): (Vec<_>, Vec<_>) =
            published.upstreams.iter().partition(|it| is_down(it));
        let is_only = published.upstreams.len() == 1;
        alarms.extend(down.iter().filter_map(|state| self.upstream_down(state, is_only)));
        if down.is_empty() {
            alarms.extend(self.failing(published));
        }
        alarms.extend(published.upstreams.iter().filter_map(|state| self.overloaded(state)));
        alarms.extend(self.refusing());
        alarms.extend(self.would_refuse());
        alarms.extend(self.store_away(&published.settings));
        alarms.extend(others.iter().filter_map(|state| self.servers_aside(state)));
        alarms.extend(self.slow());
        alarms.extend(self.certificates(published));
        alarms.extend(self.not_taken(published));
        alarms.extend(self.file());
        alarms.extend(self.lines_dropped());
        alarms.sort_by_key(|alarm| alarm["level"] != "error");
        let marks = self.admin.marks.lock();
        for alarm in &mut alarms {
            let since = alarm["id"].as_str().and_then(|id| marks.alarms.get(id));
            let age = since.map_or(0, |since| self.now.at.micros_since(*since));
            alarm["since"] = self.ago(Duration::from_micros(age)).into();
        }
        alarms
    }

    /// Says in one sentence what the limits do now. `is_well` means that there is no alarm.
    pub(super) fn summary(&self, settings: &Settings, is_well: bool) -> String {
        let rejected = |limit: &Name, reading: &Reading| {
            reading.limits.get(limit).map_or(0, |counts| counts[DecisionKind::Rejected as usize])
        };
        let names = settings.limits.iter().map(|spec| &spec.name).filter(|limit| {
            let [before, last, _] = self.readings().map(|reading| rejected(limit, reading));
            last > before
        });
        let names: Vec<_> = names.map(Name::as_str).collect();
        let enforces = settings.limits.iter().any(|spec| spec.mode == Mode::Enforce);
        let refusals = self.refusals();
        let limits = match names.is_empty() {
            true if !enforces && !settings.limits.is_empty() => {
                "Every limit marks or is in shadow: none rejects.".to_owned()
            }
            true if is_well && refusals.is_empty() => "All is well. No limit rejects.".to_owned(),
            true => "No limit rejects.".to_owned(),
            false => format!("Rejecting now: {}.", names.join(", ")),
        };
        match refusals.is_empty() {
            true => limits,
            false => format!("{limits} Refused for other reasons: {}.", reasons(&refusals)),
        }
    }

    /// No server of an upstream gets requests.
    fn upstream_down(&self, state: &UpstreamState, is_only: bool) -> Option<Value> {
        let last = state.servers().iter().map(|it| it.notes()).max_by_key(|it| it.changed)?;
        let id = format!("down {}", state.name());
        let name = if is_only { "it".to_owned() } else { format!("upstream {}", state.name()) };
        let (what, means) = match status(&last.reason) {
            Some(status) => (
                format!("API down: requests to {name} get {status}"),
                "Clients get errors, unless a limit rejects them first.",
            ),
            None => (
                format!("API down: each server of {name} fails its health check"),
                "Requests are still sent to them, because no other server is left.",
            ),
        };
        let todo =
            format!("See that its servers run and can be reached from here: {}.", last.reason);
        Some(alarm("error", &id, what, means, todo))
    }

    /// Requests are refused, since an upstream has as many as it can answer in time.
    fn overloaded(&self, state: &UpstreamState) -> Option<Value> {
        let facts = state.queue().facts();
        let (name, refused) = (state.name(), facts.report.refused_per_second);
        let what = format!("API overloaded: requests to {name} get 503, {refused:.0} a second");
        let means = if facts.has_goal {
            "Its answers came too late. It gets as many requests at once as it answers in time."
        } else {
            "It has `max_requests` in flight, and nobody waits for longer than `queue_timeout`."
        };
        let todo =
            "See \"The API is slow\" in docs/runbook.md: why it is slow, and who sends so much.";
        let id = format!("overload {name}");
        facts.refuses().then(|| alarm("warning", &id, what, means, todo))
    }

    /// Some answers of the last seconds have a 5xx status. Failures of the store have their own alarm.
    fn failing(&self, published: &Published) -> Option<Value> {
        let unanswered = |it: &RouteCounts| {
            it.outcomes[FAILED].saturating_sub(it.outcomes[DecisionKind::Error as usize])
        };
        // An overload has its own alarm.
        let refuses = |name: &str| {
            let route = published.settings.routes.iter().find(|route| *route.name == *name);
            let state = route.and_then(|route| published.upstreams.get(route.action.upstream()?));
            state.is_some_and(|state| state.queue().facts().refuses())
        };
        let routes = self.later.reading.routes.iter().filter(|(name, last)| {
            let before = self.oldest.reading.routes.get(*name).map_or(0, unanswered);
            unanswered(last) > before && !refuses(name)
        });
        let names: Vec<_> = routes.map(|(name, _)| &**name).collect();
        let what = format!("Answers fail: {}", some(&names));
        let means = "Some answers of these routes are 5xx. No limit is the reason.";
        let todo = "Look at the API's log, and at the lines `upstream failed` of tidegate's log.";
        (!names.is_empty()).then(|| alarm("error", "failing", what, means, todo))
    }

    /// The requests of the last seconds that were refused with 4xx, and that no limit rejected: the reasons with their
    /// counts.
    fn refusals(&self) -> Vec<(&'static str, u64)> {
        let [before, last] = [self.oldest, self.later].map(|it| &it.reading.refused);
        let counts = last.iter().map(|(reason, last)| {
            (*reason, last.saturating_sub(before.get(reason).copied().unwrap_or_default()))
        });
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// A share of the requests is refused, and no limit is the reason.
    fn refusing(&self) -> Option<Value> {
        let refusals = self.refusals();
        let refused: u64 = refusals.iter().map(|(_, count)| count).sum();
        let [before, last] = [self.oldest, self.later].map(|it| it.reading.requests());
        let share = 100 * refused / last.saturating_sub(before).max(refused).max(1);
        let what = format!("Requests are refused: {share} % of all, {}", reasons(&refusals));
        let means = "tidegate answers them with 4xx. No limit is the reason, and the API does not see them.";
        let todo = "Look at the lines `refused` of tidegate's log: they have the reason, the limit that needs the key, and a client.";
        let is_alarm = refused >= FEWEST_REFUSED && share >= REFUSED_PERCENT;
        is_alarm.then(|| alarm("warning", "refusing", what, means, todo))
    }

    /// A share of the requests would be refused if no limit were in shadow.
    fn would_refuse(&self) -> Option<Value> {
        let [before, last] = [self.oldest, self.later]
            .map(|it| &it.reading)
            .map(|it| (it.shadow_refused.values().sum::<u64>(), it.total().requests()));
        let refused = last.0.saturating_sub(before.0);
        let all = last.1.saturating_sub(before.1).max(refused);
        let what =
            format!("{refused} of {all} requests would get 400 or 401 once the limits enforce");
        let means = "They have no key that a limit in shadow can read. It lets them pass for now.";
        let todo = "See the lines `throttled` with a `reason` in tidegate's log.";
        let is_alarm = refused >= FEWEST_REFUSED && 100 * refused >= REFUSED_PERCENT * all;
        is_alarm.then(|| alarm("warning", "would refuse", what, means, todo))
    }

    fn store_away(&self, settings: &Settings) -> Option<Value> {
        let store = &self.admin.process.store;
        if store.counters().redis_up.unwrap_or(true) {
            return None;
        }
        let rejects = settings.limits.iter().any(|it| it.on_store_error == OnStoreError::Reject);
        let level = if rejects { "error" } else { "warning" };
        let means = format!("Meanwhile {}.", store.without_redis());
        let location = &self.admin.first_store.location;
        let todo = format!(
            "See that {location} runs and can be reached from here. tidegate connects by itself."
        );
        Some(alarm(level, "redis away", "Redis away", means, todo))
    }

    /// Some servers of an upstream get no requests.
    fn servers_aside(&self, state: &UpstreamState) -> Option<Value> {
        let aside = || state.servers().iter().filter(|server| !server.is_up());
        let last = aside().map(|it| it.notes()).max_by_key(|it| it.changed)?;
        let names: Vec<_> = aside().map(|server| &**server.url()).collect();
        let what = format!("Server set aside: {}", some(&names));
        let means = format!("The other servers of {} take its requests.", state.name());
        let todo = format!("See that it runs: {}.", last.reason);
        Some(alarm("warning", &format!("aside {}", state.name()), what, means, todo))
    }

    /// An API answers much more slowly than in its own last hour.
    fn slow(&self) -> impl Iterator<Item = Value> {
        let slow = self.admin.pulse.slow(self.now.at).into_iter();
        slow.map(|(name, now_ms, usual_ms)| {
            let what =
                format!("Slow API: {name} takes {now_ms:.0} ms, and {usual_ms:.0} ms is usual");
            let means =
                "95 % of its answers came in this time. Its own last hour says what is usual.";
            let todo = "Look at the API, and at what it waits for: tidegate is not the reason.";
            alarm("warning", &format!("slow {name}"), what, means, todo)
        })
    }

    /// Certificates that have ended, or will soon.
    fn certificates(&self, published: &Published) -> impl Iterator<Item = Value> {
        let now = Duration::from_micros(self.admin.wall().as_micros());
        let near = published.certificate_ends().map(move |end| (end.days(now), end.file));
        near.filter(|(days, _)| *days < CertificateEnd::NEAR).map(|(days, file)| {
            let (level, when) = match days {
                ..=-1 => ("error", "has ended".to_owned()),
                1 => ("warning", "ends in a day".to_owned()),
                _ => ("warning", format!("ends in {days} days")),
            };
            let file = file.display();
            let (id, what) = (format!("ends {file}"), format!("A certificate {when}: {file}"));
            let todo = "Renew it. Those of upstreams and of Redis are read again at SIGHUP.";
            alarm(level, &id, what, "Others refuse it from its end on.", todo)
        })
    }

    /// What was read again and could not be used.
    fn not_taken(&self, published: &Published) -> Vec<Value> {
        let failures = published.last_reads().filter_map(|(source, read, is_any)| {
            let error = read.failure()?;
            let (level, means) = match is_any {
                true => ("warning", "What was read before stays in force."),
                false => ("error", "Nothing was read before: no token is valid."),
            };
            let of = if source.ends_with(".tls") { "the certificates of " } else { "" };
            let what = format!("Not taken: {of}{source}");
            Some(alarm(level, &what.clone(), what, means, format!("Mend this: {error}.")))
        });
        failures.collect()
    }

    fn lines_dropped(&self) -> Option<Value> {
        let what = format!("Log lines are dropped: {}", self.admin.dropped.cause()?);
        let means = format!("{} are lost since the start.", self.admin.dropped.total());
        let todo = "Make room where standard output goes, or its reader faster.";
        Some(alarm("warning", "lines dropped", what, means, todo))
    }

    /// The alarms about a wrong file, about a restart that is needed, and about a process that ends.
    fn file(&self) -> Vec<Value> {
        let news = self.admin.process.config.news();
        let mut alarms = Vec::new();
        if let Some((errors, _)) = &news.rejected {
            let name = news.file.rsplit('/').next().unwrap_or_default();
            let means = format!("Version {} of it stays in force.", news.version);
            let first = errors.first().and_then(|it| it.lines().next()).unwrap_or_default();
            let todo = format!("Mend it and save it; `tidegate check` lists all: {first}");
            alarms.push(alarm("warning", "file", format!("{name} is wrong"), means, todo));
        }
        if !news.restart.is_empty() {
            let fields: Vec<_> = news.restart.iter().map(String::as_str).collect();
            let what = format!("A restart is needed: {}", some(&fields));
            let means = "The other changes of the file are in force.";
            let todo = "Restart, or send SIGUSR2: then no connection is lost.";
            alarms.push(alarm("warning", "restart", what, means, todo));
        }
        if self.admin.process.draining.load(Ordering::Relaxed) {
            let means = "It finishes the requests under way, and accepts no new connections.";
            let todo = "Nothing, if it was stopped on purpose.";
            alarms.push(alarm("warning", "ending", "This process is ending", means, todo));
        }
        alarms
    }

    /// The moment of a change, as a time of day.
    pub(super) fn moment(&self, then: Instant) -> String {
        self.ago(then.elapsed())
    }
}

/// An alarm. Its `id` stays the same for as long as it stands, whatever its numbers are.
fn alarm(
    level: &str,
    id: &str,
    what: impl Into<Value>,
    means: impl Into<Value>,
    todo: impl Into<Value>,
) -> Value {
    let (what, means, todo) = (what.into(), means.into(), todo.into());
    json!({ "level": level, "id": id, "what": what, "means": means, "do": todo })
}

/// The status that requests get while all servers are set aside. `reason` is why the last server was set aside. `None`
/// if requests may succeed.
fn status(reason: &str) -> Option<u16> {
    match reason {
        _ if reason.starts_with("health check: it answered") => None,
        _ if reason.starts_with("it asked for a pause") => Some(503),
        _ if reason.contains(" in time (") => Some(504),
        _ => Some(502),
    }
}

/// These reasons with their counts, the most frequent first.
fn reasons(counts: &[(&'static str, u64)]) -> String {
    let mut counts = counts.to_vec();
    counts.sort_by_key(|(_, count)| Reverse(*count));
    let texts: Vec<_> = counts.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    texts.join(", ")
}

/// The first of these names.
fn some(names: &[&str]) -> String {
    match names.len().checked_sub(NAMES) {
        Some(more @ 1..) => format!("{} and {more} more", names[..NAMES].join(", ")),
        _ => names.join(", "),
    }
}
