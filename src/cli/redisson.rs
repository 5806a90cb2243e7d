//! `tidegate redisson`: reads and writes the limiters that Java services use.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser as _};
use clap::{Args, Subcommand};

use super::{CommandResult, Failure, load, print};
use crate::config::{self, DurationError};
use crate::limit::algorithm::redisson::{Params, Sharing};
use crate::limit::rate::{Burst, Rate};
use crate::settings::{RedisLocation, RedisUrl, StoreLocation};
use crate::store::{LimiterConfig, LimiterError, Limiters};
use crate::tls::{self, client::ClientTlsSpec};

/// Read and write a Redisson limiter (`RRateLimiter`), which Java services and the proxy share.
#[derive(Args, Clone, Debug)]
#[command(after_help = "For example:\n  \
    tidegate redisson get orders\n  \
    tidegate redisson try-set orders 100/s\n  \
    tidegate redisson set orders 1000/10m --type per-client --keep-alive 1h --url redis://cache:6379\n  \
    tidegate redisson expire orders 1d\n  \
    tidegate redisson clear-expire orders")]
pub(super) struct Redisson {
    #[command(subcommand)]
    verb: RedissonCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum RedissonCommand {
    /// Print its rate and its other settings (getConfig)
    Get(Get),
    /// Set its rate and forget what was used (setRate). With the type per-client, each client keeps what it has
    /// used
    Set(Set),
    /// Set its rate if it has none; prints `set` or `kept` (trySetRate)
    TrySet(Set),
    /// Delete its keys after a time (expire)
    Expire(Expire),
    /// Keep its keys for ever, unless it has a keep-alive time and is used; prints `cleared`, or `kept` if no time was
    /// set (clearExpire)
    ClearExpire(Limiter),
}

#[derive(Args, Clone, Debug)]
struct Get {
    #[command(flatten)]
    limiter: Limiter,
    /// Print JSON, with the names and units of Redis's hash
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone, Debug)]
struct Set {
    #[command(flatten)]
    limiter: Limiter,
    /// Permits in an interval, as in 100/s or 1000/10m
    #[arg(value_parser = limiter_rate)]
    rate: Rate,
    /// `overall`: all clients share one budget; `per-client`: each client has its own
    #[arg(long = "type", value_name = "TYPE", default_value = "overall",
        value_parser = PossibleValuesParser::new(["overall", "per-client"]).map(sharing))]
    sharing: Sharing,
    /// How long its keys stay after each use, as in 1h; by default they stay for ever
    #[arg(long, value_name = "DURATION", value_parser = milliseconds)]
    keep_alive: Option<u64>,
}

#[derive(Args, Clone, Debug)]
struct Expire {
    #[command(flatten)]
    limiter: Limiter,
    /// The time from now, as in 1h
    #[arg(value_parser = milliseconds)]
    after: u64,
}

#[derive(Args, Clone, Debug)]
struct Limiter {
    /// Its name, as Java gives it to getRateLimiter
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// The Redis server; by default the file's store.url
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    url: Option<String>,
    /// The configuration file
    #[arg(long, short, value_name = "FILE", default_value = "proxy.toml")]
    config: PathBuf,
}

pub(super) fn redisson(redisson: &Redisson) -> CommandResult {
    match &redisson.verb {
        RedissonCommand::Get(get) => {
            let config = get.limiter.ask(|redis, name| redis.get(name))?;
            print(if get.json { json(&config) } else { plain(&config) })
        }
        RedissonCommand::Set(set) => {
            let config = set.figures()?;
            set.limiter.ask(|redis, name| redis.set(name, &config))?;
            print("set")
        }
        RedissonCommand::TrySet(set) => {
            let config = set.figures()?;
            let new = set.limiter.ask(|redis, name| redis.try_set(name, &config))?;
            print(if new { "set" } else { "kept" })
        }
        RedissonCommand::Expire(expire) => {
            expire.limiter.ask(|redis, name| redis.expire(name, Some(expire.after)))?;
            let after = config::duration_text(Duration::from_millis(expire.after));
            print(format_args!("expires in {after}"))
        }
        RedissonCommand::ClearExpire(limiter) => {
            let cleared = limiter.ask(|redis, name| redis.expire(name, None))?;
            print(if cleared { "cleared" } else { "kept" })
        }
    }
}

impl Limiter {
    fn ask<T>(
        &self,
        ask: impl FnOnce(&mut Limiters, &str) -> Result<T, LimiterError>,
    ) -> Result<T, Failure> {
        let location = match &self.url {
            Some(url) => named(url)?,
            None => self.configured()?,
        };
        let no_answer = |error| Failure::run(format!("{location} does not answer: {error}"));
        let mut redis = Limiters::connect(&location, &self.name).map_err(no_answer)?;
        ask(&mut redis, &self.name).map_err(|error| self.failed(error))
    }

    fn configured(&self) -> Result<Box<RedisLocation>, Failure> {
        match load(&self.config)?.settings.store.location {
            StoreLocation::Redis(location) => Ok(location),
            StoreLocation::Memory => {
                let file = self.config.display();
                Err(Failure::usage(format!(
                    "{file} has no Redis in store.url; name one with --url"
                )))
            }
        }
    }

    fn failed(&self, error: LimiterError) -> Failure {
        let name = &self.name;
        match error {
            LimiterError::Unset => Failure::run(format!(
                "the limiter \"{name}\" is not configured; `tidegate redisson try-set` gives it a rate"
            )),
            LimiterError::Foreign => {
                Failure::run(format!("the key \"{name}\" holds something that is no limiter"))
            }
            error @ LimiterError::Redis(_) => Failure::run(error),
        }
    }
}

impl Set {
    fn figures(&self) -> Result<LimiterConfig, Failure> {
        let interval_ms = self.rate.interval() / 1_000;
        if self.keep_alive.is_some_and(|keep| keep < interval_ms) {
            return Err(Failure::usage("--keep-alive must be at least the rate's interval"));
        }
        let config = LimiterConfig::new(self.rate.count(), interval_ms, self.sharing);
        Ok(LimiterConfig { keep_alive_ms: self.keep_alive, ..config })
    }
}

/// A rate that a limiter can have.
fn limiter_rate(text: &str) -> Result<Rate, String> {
    let count = text.split_once('/').and_then(|(count, _)| count.parse().ok());
    // The parser's error for a count that is too large would suggest another rate that is too large.
    if !count.is_some_and(|count| count > 0 && Burst::new(count).is_none()) {
        let rate = text.parse().map_err(|error| format!("`{text}` is no rate: {error}"))?;
        if Params::new(Some(rate), Sharing::Overall).is_some() {
            return Ok(rate);
        }
    }
    Err(format!(
        "`{text}` is no rate of a limiter: its interval is in whole milliseconds, its count at most 1000000000"
    ))
}

/// How the clients of a limiter share its rate.
fn sharing(name: String) -> Sharing {
    if name == "per-client" { Sharing::PerClient } else { Sharing::Overall }
}

/// The location that a URL names. For TLS, the certificate authorities of this machine are trusted.
fn named(url: &str) -> Result<Box<RedisLocation>, Failure> {
    let none = |_| Failure::usage("--url: expected a URL as in redis://cache.internal:6379/0");
    let RedisUrl { mut location, secure } = url.parse().map_err(none)?;
    if secure {
        let roots = tls::client::system_roots().map_err(Failure::run)?;
        location.tls = Some(Arc::new(ClientTlsSpec { roots, server_name: None, identity: None }));
    }
    Ok(Box::new(location))
}

fn milliseconds(text: &str) -> Result<u64, String> {
    let duration = config::duration(text);
    if duration == Err(DurationError::TooLong) {
        return Err(format!("`{text}` is too long: expected {}", DurationError::AT_MOST));
    }
    let millis = duration.ok().and_then(|duration| u64::try_from(duration.as_millis()).ok());
    let millis = millis.filter(|millis| *millis > 0);
    millis.ok_or_else(|| format!("`{text}` is no time as in \"250ms\", \"10s\" or \"1h\""))
}

const OLDER: &str = "a Redisson before 3.17: no newer one and no proxy can use it meanwhile";

fn plain(config: &LimiterConfig) -> String {
    let time = |ms: Option<u64>, none: &str| match ms {
        Some(ms) => config::duration_text(Duration::from_millis(ms)),
        None => none.to_owned(),
    };
    let lines = [
        ("rate", config.rate_text()),
        ("type", config.type_text().to_owned()),
        ("keep-alive", time(config.keep_alive_ms, "none")),
        ("expires in", time(config.expires_in_ms, "never")),
    ];
    let older = config.is_of_older.then(|| ("used by", OLDER.to_owned()));
    let lines = lines.into_iter().chain(older);
    lines.map(|(title, value)| format!("{title:<11} {value}")).collect::<Vec<_>>().join("\n")
}

fn json(config: &LimiterConfig) -> String {
    serde_json::json!({
        "rate": config.rate,
        "interval": config.interval_ms,
        "type": config.type_text(),
        "keepAliveTime": config.keep_alive_ms.unwrap_or(0),
        "expiresIn": config.expires_in_ms,
        "older": config.is_of_older,
    })
    .to_string()
}
