//! Asks Redis: one script call for all of a request's asks.
//!
//! The script is `shell.lua` with the Lua twins of the algorithms in front of it. Whatever is not
//! the answer to what was asked is an error, and what that means is not decided here.

mod connection;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, IntoConnectionInfo, RedisError, Script, ServerErrorKind, Value};
use tokio::time::Instant;

use self::connection::{Connection, Server};
use super::{BucketAsk, Shared, StoreError};
use crate::limit::Mode;
use crate::limit::algorithm::{self, Algorithm};
use crate::limit::decide::{Ask, PerAsk};
use crate::limit::decision::{Decision, Outcome};
use crate::limit::key::Key;
use crate::limit::rate::{Burst, Cost, Rate};
use crate::plan::{KeyDisplay, LimitSpec};

const SHELL: &str = include_str!("../shell.lua");

static SCRIPT: LazyLock<Code> = LazyLock::new(|| {
    let text = format!("{}{SHELL}", algorithm::LUA);
    let hash = Script::new(&text).get_hash().to_owned();
    Code { text, hash }
});

struct Code {
    text: String,
    hash: String,
}

/// One worker's way to Redis.
pub(super) struct Redis {
    connection: Connection,
    prefix: String,
    display: KeyDisplay,
    shared: Arc<Shared>,
}

/// What the script says about one ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// What the limit says.
    Decided(Decision),
    /// Its key holds no string; nothing was taken for any ask of the call.
    WrongType,
}

/// Whether a call may take tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    /// Where every enforcing limit of the call allows.
    Take,
    /// In no case.
    Look,
}

impl Intent {
    fn verb(self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::Look => "look",
        }
    }
}

impl Redis {
    /// Begins to connect. Must be called within the worker's runtime.
    pub(super) fn new(url: &str, prefix: &str, display: KeyDisplay, shared: Arc<Shared>) -> Self {
        let server =
            Server { url: url.to_owned(), probe: probe(prefix), shared: Arc::clone(&shared) };
        let connection = Connection::keep(server);
        Self { connection, prefix: prefix.to_owned(), display, shared }
    }

    /// Decides over these asks together, by Redis's clock. The answers are in the asks' order.
    pub(super) async fn decide(
        &self,
        asks: &[&BucketAsk<'_>],
        intent: Intent,
        deadline: Instant,
    ) -> Result<PerAsk<Said>, StoreError> {
        let keys: PerAsk<String> = asks.iter().map(|ask| self.key_name(ask)).collect();
        let figures = asks.iter().map(|ask| &ask.ask);
        let call = script_call(intent.verb(), &keys, figures);
        let read = |value| read_answer(&value, asks.len());
        self.connection.call(&call, read, deadline).await
    }

    /// What one ask would be told.
    pub(super) async fn look(&self, ask: &BucketAsk<'_>) -> Result<Decision, StoreError> {
        let said = self.decide(&[ask], Intent::Look, self.deadline()).await?;
        match said.first() {
            Some(Said::Decided(decision)) => Ok(*decision),
            Some(Said::WrongType) => Err(StoreError::WrongType),
            None => Err(StoreError::Nonsense),
        }
    }

    pub(super) async fn give_back(&self, ask: &BucketAsk<'_>) -> Result<(), StoreError> {
        let call = script_call("give-back", &[self.key_name(ask)], [&ask.ask]);
        let read = |value| match value {
            Value::Array(nothing) if nothing.is_empty() => Some(()),
            _ => None,
        };
        self.connection.call(&call, read, self.deadline()).await
    }

    pub(super) async fn forget(&self, ask: &BucketAsk<'_>) -> Result<(), StoreError> {
        let mut call = redis::cmd("DEL");
        call.arg(self.key_name(ask));
        let read = |value| matches!(value, Value::Int(_)).then_some(());
        self.connection.call(&call, read, self.deadline()).await
    }

    /// By when a call that begins now must be answered.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.shared.timeout()
    }

    fn key_name(&self, ask: &BucketAsk<'_>) -> String {
        let name = BucketName { prefix: &self.prefix, spec: ask.spec, key: ask.key };
        name.text(&ask.ask.algorithm, self.display)
    }
}

/// A bucket, by what its key in Redis is made of.
#[derive(Clone, Copy, Debug)]
pub struct BucketName<'n> {
    /// `store.prefix`.
    pub prefix: &'n str,
    /// The limit.
    pub spec: &'n LimitSpec,
    /// The key, plain.
    pub key: &'n Key,
}

impl BucketName<'_> {
    /// `PREFIX:{KEY}:LIMIT`, or `PREFIX:LIMIT` where the limit has no key.
    pub fn text(&self, algorithm: &Algorithm, display: KeyDisplay) -> String {
        let Self { prefix, spec, key } = self;
        let Suffix(suffix) = Suffix::of(algorithm);
        if spec.key.sources.is_empty() {
            return format!("{prefix}:{}{suffix}", spec.name);
        }
        match display {
            KeyDisplay::Hashed if spec.key.has_secrets() => {
                format!("{prefix}:{{{}}}:{}{suffix}", spec.key.hashed(key), spec.name)
            }
            KeyDisplay::Hashed | KeyDisplay::Plain => {
                format!("{prefix}:{{{key}}}:{}{suffix}", spec.name)
            }
        }
    }
}

/// What a key's name ends with, so that a limit whose algorithm changes begins anew.
struct Suffix(&'static str);

impl Suffix {
    fn of(algorithm: &Algorithm) -> Self {
        match algorithm {
            Algorithm::TokenBucket(_) => Self(""),
        }
    }
}

/// Host and port, or the socket's path, without what is secret in the URL.
pub(super) fn server_name(url: &str) -> String {
    url.into_connection_info().map_or_else(|_| "redis".to_owned(), |info| info.addr().to_string())
}

fn script_call<'a>(verb: &str, keys: &[String], asks: impl IntoIterator<Item = &'a Ask>) -> Cmd {
    let mut call = Cmd::with_capacity(4 + 8 * keys.len(), 256);
    call.arg("EVALSHA").arg(&SCRIPT.hash).arg(keys.len());
    for key in keys {
        call.arg(key);
    }
    call.arg(verb);
    for ask in asks {
        let figures = ask.algorithm.figures();
        let mode = match ask.mode {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
        };
        call.arg(ask.algorithm.name()).arg(mode).arg(ask.cost.get()).arg(figures.len());
        for figure in figures {
            call.arg(figure);
        }
    }
    call
}

/// A decision that changes nothing anybody uses, and that only a server which can decide makes:
/// it reads the clock, runs the script and writes a key that is gone within a few milliseconds.
fn probe(prefix: &str) -> Option<Cmd> {
    // No limit's key looks like this: a name is never empty.
    let key = format!("{prefix}::probe");
    let rate = Rate::new(1, 1_000).ok()?;
    let burst = Burst::new(1_000_000)?;
    let algorithm = Algorithm::TokenBucket(algorithm::token_bucket::Params { rate, burst });
    let ask = Ask { algorithm, cost: Cost::ONE, mode: Mode::Enforce };
    Some(script_call(Intent::Take.verb(), &[key], [&ask]))
}

/// Runs a command, and loads the script where Redis does not have it (any more).
async fn run(connection: &mut MultiplexedConnection, call: &Cmd) -> Result<Value, RedisError> {
    let answer = send(connection, call).await;
    let lost = ErrorKind::Server(ServerErrorKind::NoScript);
    if !answer.as_ref().is_err_and(|error| error.kind() == lost) {
        return answer;
    }
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(&SCRIPT.text);
    send(connection, &load).await?;
    send(connection, call).await
}

async fn send(connection: &mut MultiplexedConnection, call: &Cmd) -> Result<Value, RedisError> {
    connection.send_packed_command(call).await?.extract_error()
}

/// Three whole numbers for each ask; `None` for anything else.
fn read_answer(answer: &Value, asks: usize) -> Option<PerAsk<Said>> {
    let Value::Array(numbers) = answer else { return None };
    if numbers.len() != 3 * asks {
        return None;
    }
    numbers
        .chunks_exact(3)
        .map(|said| match said {
            [Value::Int(said), Value::Int(wait), Value::Int(remaining)] => read_said(
                *said,
                Duration::from_micros(u64::try_from(*wait).ok()?),
                u64::try_from(*remaining).ok()?,
            ),
            _ => None,
        })
        .collect()
}

/// The other side of `say` in `shell.lua`.
fn read_said(said: i64, wait: Duration, remaining: u64) -> Option<Said> {
    let outcome = match said {
        0 => Outcome::Allow,
        1 => Outcome::Reject { retry_after: Some(wait) },
        2 => Outcome::Reject { retry_after: None },
        3 => return Some(Said::WrongType),
        _ => return None,
    };
    Some(Said::Decided(Decision { outcome, remaining }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_to_the_question_is_a_decision() {
        let numbers =
            |numbers: &[i64]| Value::Array(numbers.iter().map(|n| Value::Int(*n)).collect());
        let allow = Said::Decided(Decision { outcome: Outcome::Allow, remaining: 7 });
        let one: PerAsk<Said> = PerAsk::from_slice(&[allow]);
        assert_eq!(read_answer(&numbers(&[0, 0, 7]), 1), Some(one));
        for (name, answer) in [
            ("no list", Value::Okay),
            ("too short", numbers(&[0, 0])),
            ("another length", numbers(&[0, 0, 7, 0, 0, 7])),
            ("an unknown word", numbers(&[9, 0, 7])),
            ("negative tokens", numbers(&[0, 0, -1])),
            ("a negative wait", numbers(&[1, -5, 0])),
            ("text", Value::Array(vec![Value::Int(0), Value::Okay, Value::Int(1)])),
        ] {
            assert_eq!(read_answer(&answer, 1), None, "{name}");
        }
    }

    #[test]
    fn a_server_is_named_without_its_password() {
        for (url, name) in [
            ("redis://:secret@cache.internal:6380/2", "cache.internal:6380"),
            ("redis://user:secret@127.0.0.1", "127.0.0.1:6379"),
            ("redis+unix:///run/redis.sock?pass=secret", "/run/redis.sock"),
        ] {
            assert_eq!(server_name(url), name);
        }
    }
}
