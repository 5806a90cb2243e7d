//! Announces this process in Redis, and carries what the processes that share it tell each other. Without Redis each of
//! them enforces its share: see `order`.
//!
//! A process is announced under its name with a lease: `fleet.lua` describes the keys. One worker of the process
//! renews the lease, and gives it back when the process ends. If it does not, the others say so.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{FromRedisValue, Script, Value};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use crate::observe::{events, host};
use crate::redis::{CallError, CallKind, HashSlot, LastingFailures, Router};
use crate::store::ProcessStore;
use crate::store::fleet::{FleetAnswers, FleetMember, FleetWord, name_of};
use crate::store::process::LEASE;

pub(super) static SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("fleet.lua")));

/// The time between two announcements. A process that starts is known to the others after this time, and finds what
/// they ask.
const PAUSE: Duration = Duration::from_millis(500);

/// The names of the processes are read once in so many announcements.
const NAMES: u32 = 4;

/// A process is gone if its lease is over at so many announcements in a row. After an outage of Redis the others may not
/// have announced themselves again yet.
const LOOKS: u32 = 8;

/// How long a process waits for the answers of the others.
const PATIENCE: Duration = Duration::from_secs(1);

/// The time between two looks for answers.
const ANSWER_PAUSE: Duration = Duration::from_millis(50);

/// The most bytes of an answer.
const LONGEST: usize = 128 * 1_024;

/// How long an answer to a question of another process stays in Redis. A process that stops has no figures after this
/// time, and is gone when its lease is over.
const KEPT: Duration = Duration::from_secs(5);

const NO_ROOM: CallError =
    CallError::UnusableKey("too many questions are open, ask again in a second");

const USED: CallError = CallError::UnusableKey(
    "a key that begins with PREFIX::processes or PREFIX::fleet holds a value of another type",
);

const OTHER_TYPE: &str = "delete the keys that begin with PREFIX::processes and PREFIX::fleet, and stop the other program that writes them; until then the last count stays in force";

const OTHERWISE: &str =
    "the last count stays in force; the processes are counted again when redis answers";

/// Calls the script.
#[derive(Clone)]
pub(in crate::store) struct FleetCalls {
    router: Arc<Router>,
    shared: Arc<ProcessStore>,
    slot: HashSlot,
    /// The keys of the script.
    keys: [String; 3],
    /// The beginning of the keys of answers.
    answers: String,
    /// The machine, the number of the process, and an id: processes in containers may have the same number.
    own: String,
}

/// What a call of the script wants.
enum FleetWant<'w> {
    /// The process ends.
    Leave,
    /// To be counted.
    Count,
    /// The names of all processes, too.
    Names,
    /// To ask this for some time.
    Ask(&'w FleetWord, Duration),
}

/// The script's answer.
struct FleetSeen {
    held: u64,
    living: Vec<FleetMember>,
    /// The open questions. A question for which there was no room is missing.
    asked: Vec<FleetWord>,
    /// The names of the processes whose lease is over.
    ended: Vec<String>,
}

impl FleetCalls {
    pub(super) fn new(router: Arc<Router>, prefix: &str, shared: Arc<ProcessStore>) -> Self {
        // No limit's key looks like this, because a limit's name is never empty.
        let processes = format!("{prefix}::processes");
        let slot = router.hash_slot(processes.as_bytes());
        // The braces put all keys into the hash slot of the first one.
        let fleet = format!("{prefix}::fleet{{{processes}}}");
        let keys = [processes, format!("{fleet}:versions"), format!("{fleet}:asked")];
        let own = format!("{}:{} {}", host(), std::process::id(), shared.client_id);
        Self { router, shared, slot, keys, answers: fleet, own }
    }

    /// Announces this process again and again, and notes the number of processes. Must be called within the worker's
    /// runtime.
    pub(super) fn announce(&self) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(tokio::spawn(announce(self.clone())))
    }

    /// The process ends. With this call, the other processes need not wait for the end of its lease. Takes at most
    /// `store.timeout`.
    pub(super) async fn withdraw(&self) {
        if self.router.nodes.is_up(self.slot) {
            // If this fails, the lease ends by itself.
            let _ = self.call(FleetWant::Leave, self.router.deadline()).await;
        }
    }

    async fn call(&self, want: FleetWant<'_>, deadline: Instant) -> Result<FleetSeen, CallError> {
        let lease = if matches!(want, FleetWant::Leave) { Duration::ZERO } else { LEASE };
        let names = matches!(want, FleetWant::Names | FleetWant::Ask(..));
        let mut call = redis::cmd("EVALSHA");
        call.arg(SCRIPT.get_hash()).arg(self.keys.len()).arg(&self.keys).arg(&self.own);
        let versions = format!("{} {}", self.shared.fleet.file.lock(), env!("CARGO_PKG_VERSION"));
        call.arg(micros(lease)).arg(versions).arg(u8::from(names));
        let mut kind = CallKind::Background;
        if let FleetWant::Ask(FleetWord { id, text }, lasts) = want {
            call.arg(id).arg(micros(lasts)).arg(text);
            kind = CallKind::Awaited;
        }
        match self.router.call(kind, self.slot, &call, read, deadline).await {
            Err(CallError::Redis(error)) if error.code() == Some("WRONGTYPE") => Err(USED),
            called => called,
        }
    }

    /// See [`Store::ask_fleet`](crate::store::Store::ask_fleet).
    pub(in crate::store) async fn ask(
        &self,
        question: &FleetWord,
        lasts: Duration,
    ) -> Result<FleetAnswers, CallError> {
        let until = Instant::now() + PATIENCE;
        let by = |latest: Instant| latest.min(self.router.deadline());
        let seen = loop {
            let seen = self.call(FleetWant::Ask(question, lasts), by(until)).await?;
            if seen.asked.iter().any(|it| it.id == question.id) {
                break seen;
            }
            if Instant::now() + ANSWER_PAUSE >= until {
                return Err(NO_ROOM);
            }
            sleep(ANSWER_PAUSE).await;
        };
        let others = seen.living.into_iter().filter(|it| it.id != self.own);
        let mut others: FleetAnswers = others.map(|it| (it, None)).collect();
        loop {
            let is_open = |(member, answer): &&mut (FleetMember, Option<Vec<u8>>)| {
                answer.is_none() && !member.program.is_empty()
            };
            let open: Vec<_> = others.iter_mut().filter(is_open).collect();
            if open.is_empty() {
                return Ok(others);
            }
            let mut call = redis::cmd("MGET");
            for (member, _) in &open {
                call.arg(self.answer_key(&question.id, &member.id));
            }
            let read = |answer| Vec::<Option<Vec<u8>>>::from_redis_value(answer).ok();
            let deadline = by(until + ANSWER_PAUSE);
            let said =
                self.router.call(CallKind::Awaited, self.slot, &call, read, deadline).await?;
            let is_over = Instant::now() >= until || said.iter().all(Option::is_some);
            for ((_, answer), mut said) in open.into_iter().zip(said) {
                // The beginning of a longer answer cannot be read, so it counts as no answer.
                said.iter_mut().for_each(|it| it.truncate(LONGEST));
                *answer = said;
            }
            if is_over {
                return Ok(others);
            }
            sleep(ANSWER_PAUSE).await;
        }
    }

    /// Writes the answer of this process to a question.
    async fn say(&self, word: &FleetWord) -> Result<(), CallError> {
        let mut call = redis::cmd("SET");
        call.arg(self.answer_key(&word.id, &self.own)).arg(&word.text);
        call.arg("PX").arg(KEPT.as_millis().to_string());
        let (kind, deadline) = (CallKind::Background, self.router.deadline());
        self.router.call(kind, self.slot, &call, |_| Some(()), deadline).await
    }

    fn answer_key(&self, question: &str, process: &str) -> String {
        format!("{}:{question}:{process}", self.answers)
    }
}

fn micros(time: Duration) -> String {
    time.as_micros().to_string()
}

fn read(answer: Value) -> Option<FleetSeen> {
    type Answer = (u64, Vec<Value>, Vec<String>, Vec<Value>);
    let (held, living, asked, ended) = Answer::from_redis_value(answer).ok()?;
    // Older versions have names that are no text.
    let text = |value: &Value| String::from_redis_value_ref(value).ok();
    let member = |pair: &[Value]| Some(FleetMember::new(text(&pair[0])?, &text(&pair[1])?));
    let word = |pair: &[String]| FleetWord { id: pair[0].clone(), text: pair[1].clone() };
    Some(FleetSeen {
        held,
        living: living.chunks_exact(2).filter_map(member).collect(),
        asked: asked.chunks_exact(2).map(word).collect(),
        ended: ended.iter().filter_map(text).collect(),
    })
}

async fn announce(calls: FleetCalls) {
    let (shared, router) = (&calls.shared, &calls.router);
    let mut failures = LastingFailures::new(OTHER_TYPE, OTHERWISE);
    let mut silent = HashMap::<String, u32>::new();
    let (mut files, mut failed) = (FilesTold::default(), None::<Instant>);
    let mut said = shared.fleet.said.subscribe();
    for beat in 0_u32.. {
        let next = Instant::now() + PAUSE;
        let want = if beat % NAMES == 0 { FleetWant::Names } else { FleetWant::Count };
        let called = calls.call(want, router.deadline()).await;
        if let Some((error, help)) = failures.news(&called, router.nodes.is_up(calls.slot)) {
            tracing::warn!(%error, help, "processes not counted");
        }
        if let Ok(seen) = called {
            shared.count_processes(seen.held, Instant::now());
            silent.retain(|name, _| seen.ended.contains(name));
            seen.ended.into_iter().for_each(|name| *silent.entry(name).or_default() += 1);
            for (name, _) in silent.iter().filter(|(_, looks)| **looks == LOOKS) {
                events::process_gone(name_of(name));
            }
            for question in seen.asked {
                // Nobody reads the questions before the process has started.
                let _ = shared.fleet.asked.send(question);
            }
            if !seen.living.is_empty() {
                files.tell(&seen.living, failed.is_some_and(|at| at.elapsed() < LEASE));
            }
        } else {
            failed = Some(Instant::now());
        }
        while let Ok(Ok(word)) = timeout_at(next, said.recv()).await {
            // The process that asked says who has not answered.
            let _ = calls.say(&word).await;
        }
        sleep_until(next).await;
    }
}

/// Whether the processes have several configuration files, as it was said last.
#[derive(Default)]
struct FilesTold {
    differ: bool,
    /// How many looks in a row found the opposite.
    looks: u32,
}

impl FilesTold {
    /// Whether there is news. A saved file reaches the processes one after the other, so one look does not count. After
    /// an outage some processes may not be announced yet, so nobody knows that all agree.
    fn is_news(&mut self, differ: bool, is_after_outage: bool) -> bool {
        let is_opposite = differ != self.differ && (differ || !is_after_outage);
        self.looks = if is_opposite { self.looks + 1 } else { 0 };
        if self.looks < 2 {
            return false;
        }
        *self = Self { differ, looks: 0 };
        true
    }

    fn tell(&mut self, living: &[FleetMember], is_after_outage: bool) {
        let mut files = BTreeMap::<&str, Vec<&str>>::new();
        for member in living.iter().filter(|it| !it.file.is_empty()) {
            files.entry(&member.file).or_default().push(member.name());
        }
        if !self.is_news(files.len() > 1, is_after_outage) {
            return;
        }
        let each = files.into_iter().map(|(file, names)| format!("{file} on {}", some(names)));
        let each = each.collect::<Vec<_>>().join("; ");
        if self.differ { events::fleet_differs(&each) } else { events::fleet_agrees(&each) }
    }
}

/// The first of these names, and how many more there are.
fn some(mut names: Vec<&str>) -> String {
    names.sort_unstable();
    match names.get(3..) {
        None | Some([]) => names.join(", "),
        Some(more) => format!("{} and {} more", names[..3].join(", "), more.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_looks_in_a_row_are_news_and_after_an_outage_nobody_agrees() {
        let mut told = FilesTold::default();
        for (differ, is_after_outage, is_news) in [
            (true, false, false),
            (false, false, false),
            (true, true, false),
            (true, true, true),
            (true, false, false),
            // Redis has come back empty. This process is the first one that it knows.
            (false, true, false),
            (false, true, false),
            (false, true, false),
            (false, false, false),
            (true, false, false),
            (false, false, false),
            (false, false, true),
            (false, false, false),
        ] {
            assert_eq!(
                told.is_news(differ, is_after_outage),
                is_news,
                "{differ} {is_after_outage}"
            );
        }
    }
}
