//! The overrides that operators set while processes run: one hash in Redis, `PREFIX::overrides`.
//! `overrides.lua` describes its fields.
//!
//! One worker of each process asks about twice a second whether anything has changed. If so, it reads all overrides. It
//! also reads them once a minute, and soon after an override has ended. A change that is no ban also ends the known
//! refusals of all processes. Before it asks, the worker tells Redis of the bans that this process has set.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Script, Value};
use tokio::time::{Instant, sleep};

use crate::limit::time::Timestamp;
use crate::redis::{CallError, CallKind, HashSlot, LastingFailures, Router};
use crate::request::key::ALL_KEYS;
use crate::store::ProcessStore;
use crate::store::running::{MOST_BANNED, MOST_RUNNING, ReadOverrides, RunningOverride};

pub(super) static SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("overrides.lua")));

/// The time between two questions whether anything has changed.
const PAUSE: Duration = Duration::from_millis(400);

/// All overrides are read at least this often. The reading puts off the expiry of overrides without an end,
/// compares the clocks anew, and finds out whether Redis's clock has stepped back.
const READ: Duration = Duration::from_secs(60);

/// How long overrides without an end stay in Redis while no process reads them.
const KEEP: Duration = Duration::from_secs(30 * 86_400);

const OTHER_TYPE: &str = "delete the key PREFIX::overrides, and stop the other program that writes it; until then the overrides that were read last stay in force";

const OTHERWISE: &str =
    "the overrides that were read last stay in force; they are read again when redis answers";

/// The overrides in Redis.
#[derive(Clone)]
pub(in crate::store) struct SharedOverrides {
    router: Arc<Router>,
    name: String,
    hash_slot: HashSlot,
    shared: Arc<ProcessStore>,
}

impl SharedOverrides {
    pub(super) fn new(router: Arc<Router>, prefix: &str, shared: Arc<ProcessStore>) -> Self {
        // No limit's key looks like this, because a limit's name is never empty.
        let name = format!("{prefix}::overrides");
        let hash_slot = router.hash_slot(name.as_bytes());
        Self { router, name, hash_slot, shared }
    }

    /// Reads the overrides again and again, and puts them in force in this process.
    pub(super) async fn follow(self) {
        let Self { router, hash_slot, .. } = &self;
        let running = &self.shared.running;
        let mut generation = redis::cmd("HGET");
        generation.arg(&self.name).arg("generation");
        let look = self.command("look");
        let mut read_at = Instant::now();
        let mut failures = LastingFailures::new(OTHER_TYPE, OTHERWISE);
        loop {
            let reading = async {
                let sent = self.send_bans().await;
                let found = self.call(CallKind::Background, &generation, number).await?;
                // There is nothing to keep if there is no hash.
                if found > 0 && read_at.elapsed() >= READ || running.must_read(found) {
                    let asked = Instant::now();
                    let (read, _) = self.call(CallKind::Background, &look, parse).await?;
                    running.read(read, asked);
                    read_at = asked;
                }
                sent
            };
            // Without an answer, the overrides that were read last stay in force.
            let result = reading.await;
            if let Some((error, help)) = failures.news(&result, router.nodes.is_up(*hash_slot)) {
                tracing::warn!(%error, help, "overrides not read");
            }
            sleep(PAUSE).await;
        }
    }

    /// Sets an override, for this time if one is given. Returns whether there was room for it.
    pub(in crate::store) async fn set(
        &self,
        entry: &RunningOverride,
        lasts: Option<Duration>,
    ) -> Result<bool, CallError> {
        let mut call = self.command("set");
        add(&mut call, entry, lasts.map_or(0, micros), MOST_RUNNING);
        self.is_done(&call).await
    }

    /// Tells Redis of the bans that this process has set, in one call.
    async fn send_bans(&self) -> Result<(), CallError> {
        let running = &self.shared.running;
        let _sending = running.sending.lock().await;
        let bans = running.unsent_bans();
        if bans.is_empty() {
            return Ok(());
        }
        let mut call = self.command("ban");
        for ban in &bans {
            // A ban that has just ended is set for a microsecond: 0 would be a ban without an end.
            let lasts = ban.left().map_or(1, |left| micros(left).max(1));
            add(&mut call, &ban.entry, lasts, MOST_BANNED);
        }
        // Until Redis takes them, the bans hold in this process alone.
        let done = self.change(&call).await.inspect_err(|_| running.log_unsent())?;
        bans.iter().zip(done.bytes()).for_each(|(ban, done)| running.note_sent(ban, done == b'1'));
        Ok(())
    }

    /// Ends an override. Returns whether there was one.
    pub(in crate::store) async fn end(&self, limit: &str, key: &str) -> Result<bool, CallError> {
        let mut call = self.command("end");
        call.arg(field(limit, key));
        self.is_done(&call).await
    }

    /// Tells all processes that a bucket was reset: they all read this hash. In a cluster another server may have the
    /// bucket.
    pub(in crate::store) async fn tell_forgotten(&self) -> Result<(), CallError> {
        self.change(&self.command("tell")).await.map(|_| ())
    }

    /// Returns whether the script did what it was asked for.
    async fn is_done(&self, call: &Cmd) -> Result<bool, CallError> {
        Ok(self.change(call).await? == "1")
    }

    /// Returns for each thing that the script was asked for whether it was done: `1` or `0`.
    async fn change(&self, call: &Cmd) -> Result<String, CallError> {
        let asked = Instant::now();
        let (read, done) = self.call(CallKind::Awaited, call, parse).await?;
        self.shared.running.read(read, asked);
        Ok(done)
    }

    async fn call<T>(
        &self,
        kind: CallKind,
        call: &Cmd,
        read: impl FnMut(Value) -> Option<T>,
    ) -> Result<T, CallError> {
        self.router.call(kind, self.hash_slot, call, read, self.router.deadline()).await
    }

    /// A call of the script. Its further arguments are to follow.
    fn command(&self, verb: &str) -> Cmd {
        let mut call = redis::cmd("EVALSHA");
        call.arg(SCRIPT.get_hash()).arg(1).arg(&self.name).arg(verb).arg(micros(KEEP));
        call
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Adds an override to a call: it is to last for `lasts` microseconds, if there are fewer than `most`.
fn add(call: &mut Cmd, entry: &RunningOverride, lasts: u64, most: usize) {
    call.arg(field(&entry.limit, &entry.key)).arg(lasts).arg(text(entry)).arg(most);
}

/// The field of an override. Older versions pass over a field without a colon.
fn field(limit: &str, key: &str) -> String {
    if key == ALL_KEYS { format!("{limit}*") } else { format!("{limit}:{key}") }
}

/// Reads a generation. Without a hash it is 0.
fn number(answer: Value) -> Option<u64> {
    Option::<u64>::from_redis_value(answer).ok().map(Option::unwrap_or_default)
}

/// Reads the script's answer. An override that this version cannot read is left out.
fn parse(answer: Value) -> Option<(ReadOverrides, String)> {
    let answer = Vec::<Vec<u8>>::from_redis_value(answer).ok()?;
    let mut texts = answer.into_iter().map(|text| String::from_utf8(text).unwrap_or_default());
    let at = Timestamp::from_micros(texts.next()?.parse().ok()?)?;
    let done = texts.next()?;
    let generation = texts.next()?.parse().ok()?;
    let told = texts.next()?.parse().ok()?;
    let mut entries = Vec::new();
    while let (Some(field), Some(value)) = (texts.next(), texts.next()) {
        entries.extend(entry(&field, &value));
    }
    Some((ReadOverrides { at, generation, told, entries }, done))
}

fn text(entry: &RunningOverride) -> String {
    // There is always JSON for these types.
    serde_json::to_string(entry).unwrap_or_default()
}

fn entry(field: &str, value: &str) -> Option<RunningOverride> {
    let of_all = || Some((field.strip_suffix('*')?, ALL_KEYS));
    let (limit, key) = field.split_once(':').or_else(of_all)?;
    let (ends, json) = value.split_once(' ')?;
    let ends: u64 = ends.parse().ok()?;
    let (limit, key) = (limit.to_owned(), key.to_owned());
    let ends = Timestamp::from_micros(ends).filter(|_| ends > 0);
    Some(RunningOverride { limit, key, ends, ..serde_json::from_str(json).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::WantedFigures;

    #[test]
    fn an_override_is_read_back_as_it_was_written() {
        let ends = Timestamp::from_micros(1_700_000_000_000_001);
        let wanted = WantedFigures { rate: "7/s".into(), burst: Some(9), queue: None };
        for (key, reason, ends) in
            [("a:b|*", Some("a \"word\" {}\n"), ends), ("", None, None), (ALL_KEYS, None, ends)]
        {
            let one = RunningOverride {
                limit: "per-client".into(),
                key: key.into(),
                sources: vec!["header:x-a | ip".into()],
                wanted: wanted.clone(),
                reason: reason.map(str::to_owned),
                ends,
                is_ban: reason.is_none(),
            };
            let value = format!("{} {}", ends.map_or(0, Timestamp::as_micros), text(&one));
            assert_eq!(entry(&field(&one.limit, key), &value), Some(one));
        }
    }

    #[test]
    fn an_invalid_override_is_left_out() {
        for (field, value) in [
            ("generation", "17"),
            ("a:b", ""),
            ("a:b", "x {}"),
            ("a:b", "0 {}"),
            ("a:b", "0 {\"rate\":7,\"key\":[]}"),
            ("a:b", "-1 {\"rate\":\"1/s\",\"key\":[]}"),
        ] {
            assert_eq!(entry(field, value), None, "{field} {value}");
        }
    }
}
