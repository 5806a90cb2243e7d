//! Writes most events of the log. Each event has one fixed message. The throttle lines are in `throttled`, the
//! warnings about limits in Redis in `store`, and the access line in `proxy`.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tracing::{error, info, warn};

use super::{json_object, millis};
use crate::limit::name::Name;
use crate::limit::rate::Cost;
use crate::limit::time::Timestamp;
use crate::plans::{MANY, PlanLineCounts};
use crate::request::key::shown;
use crate::settings::{CollectorAddress, Figures, ListenAddress, Settings, WantedFigures};

const TARGET: &str = env!("CARGO_PKG_NAME");

/// Separates the items of a list. `format` splits the list again.
const SEPARATOR: &str = "\n";

/// Declares events: for each a function with its arguments, its level, its fields, and its message.
macro_rules! events {
    ($(
        $(#[$doc:meta])*
        $vis:vis fn $name:ident($($argument:ident: $type:ty),*) = $level:ident!($($fields:tt)+);
    )+) => {
        $($(#[$doc])* $vis fn $name($($argument: $type),*) {
            $level!(target: TARGET, $($fields)+);
        })+
    };
}

events! {
    /// The proxy takes connections at `address`, which this setting names.
    pub(crate) fn listening(address: &ListenAddress, setting: &str) = info!(%address, setting, "listening");

    /// The command line puts every limit in shadow. `refused` says what requests would get that limits cannot count.
    pub(crate) fn all_in_shadow(refused: Option<&str>) =
        warn!(refused, help = "nothing is rejected: start without --shadow to enforce the limits", "every limit in shadow");

    /// A changed configuration is in force. `changed` has a text for each change.
    pub(crate) fn config_reloaded(changed: &[String], settings: &Settings) =
        info!(changed = changed.join(SEPARATOR), counts_by = counts_by(settings), plans_by = plans_by(settings),
            "config reloaded");

    /// A configuration can be used, but probably does not do what was meant. The word "warning" is cut from the text,
    /// because the message has it, too.
    pub(crate) fn config_warning(warning: &dyn Display) =
        warn!(warning = warning.to_string().replacen("warning: ", "", 1), "config warning");

    /// A changed configuration is wrong. The old configuration stays in force.
    pub(crate) fn config_rejected(errors: &[String]) =
        warn!(errors = errors.join(SEPARATOR),
            meanwhile = "the configuration from before stays in force", "config rejected");

    /// These fields have changed, but only a restart applies the change.
    pub(crate) fn restart_needed(fields: &[String]) =
        warn!(fields = fields.join(SEPARATOR), "restart needed");

    /// New certificates for these names are in force.
    pub(crate) fn certificates_loaded(names: &dyn Display) = info!(%names, "certificates loaded");

    /// A certificate ends in these days, or has ended if they are below 0.
    pub(crate) fn certificate_expires(certificate: &dyn Display, names: &str, days: i64) =
        warn!(%certificate, names, days,
            help = "renew it: clients refuse one that has ended", "certificate expires");

    /// The files of the certificates have changed, but cannot be used. `help` says what to do.
    pub(crate) fn certificates_rejected(error: &dyn Display, help: &str) =
        warn!(%error, help,
            meanwhile = "the certificates from before stay in force", "certificates rejected");

    /// The file with the plans of customers has changed, but cannot be used. `help` says what to do.
    pub(crate) fn plans_rejected(error: &dyn Display, help: &str) =
        warn!(%error, help, meanwhile = "the plans from before stay in force", "plans rejected");

    /// The admin endpoint takes requests at `address`.
    pub(crate) fn admin_listening(address: &ListenAddress) = info!(%address, "admin listening");

    /// `count` settlements since the last such line did not reach Redis. The reserved costs stay taken.
    pub(crate) fn costs_not_settled(_kind: &(), error: &String, count: u64, interval_ms: Option<u64>) =
        warn!(error, count, interval_ms, "costs not settled");

    /// `count` connections since the last such line sent malformed requests. `client` was the last one.
    pub(crate) fn malformed_requests(reason: &String, client: &IpAddr, count: u64, interval_ms: Option<u64>) =
        warn!(reason, %client, count, interval_ms, "malformed requests");

    /// `count` requests were refused in this way since the last such line. `client` was the last one.
    pub(crate) fn refused(kind: &RefusedRequests, client: &IpAddr, count: u64, interval_ms: Option<u64>) =
        warn!(reason = kind.reason, limit = kind.limit.as_ref().map(Name::as_str), route = &*kind.route,
            %client, count, interval_ms, "refused");

    /// `count` exchanges with an upstream failed in this way since the last such line. Their clients got an error, or
    /// only a part of the answer.
    pub(crate) fn upstream_failed(failed: &FailedExchange, _details: &(), count: u64, interval_ms: Option<u64>) =
        warn!(upstream = failed.upstream, server = failed.server, route = failed.route, error = failed.error,
            count, interval_ms, "upstream failed");

    /// `count` spans did not reach the collector since the last such line. `details` has the collector and the last
    /// error. `help` says what to do about this kind of error.
    pub(crate) fn spans_dropped(help: &Option<&'static str>, details: &(String, String), count: u64, interval_ms: Option<u64>) =
        warn!(collector = details.0, error = details.1, count, interval_ms, help = *help, "spans dropped");

    /// The collector takes spans again.
    pub(crate) fn collector_recovered(collector: &CollectorAddress, away: Duration) =
        info!(%collector, away_ms = millis(away), "collector recovered");

    /// An override begins to apply in this process. One of all keys `hides` these figures of the file.
    pub(crate) fn override_set(set: &OverrideEvent<'_>, hides: Option<&Figures>) =
        info!(limit = set.limit, key = set.key.map(shown), rate = set.wanted.rate, burst = set.wanted.burst,
            queue = set.wanted.queue, until = set.until.map(date_and_time), reason = set.reason, hides = hides.map(ToString::to_string), "override set");

    /// The bucket of an override can never hold what a request costs: the cost has risen since the override was set.
    pub(crate) fn override_too_small(set: &OverrideEvent<'_>, holds: u64, cost: Cost) =
        warn!(limit = set.limit, key = set.key.map(shown), rate = set.wanted.rate, holds, cost = cost.get(),
            help = "no request under this override passes: set it again with more tokens, or reset it",
            "override too small");

    /// An override no longer applies in this process.
    pub(crate) fn override_ended(set: &OverrideEvent<'_>) =
        info!(limit = set.limit, key = set.key.map(shown), rate = set.wanted.rate, "override ended");

    /// A reload has changed the figures of a limit, and an override of all keys hides the new ones.
    pub(crate) fn override_hides(set: &OverrideEvent<'_>, hides: &Figures) =
        warn!(limit = set.limit, rate = set.wanted.rate, until = set.until.map(date_and_time), reason = set.reason, %hides,
            help = "the new figures hold when the override ends: `tidegate limits reset LIMIT '*' --override` ends it now",
            "override hides new figures");

    /// A key has used the share of its bucket that the limit's `near` names.
    pub(crate) fn near_limit(limit: &str, key: &str, remaining: Option<u64>, burst: Option<u64>, count: u64, interval_ms: Option<u64>) =
        info!(limit, key = shown(key), remaining, burst, count, interval_ms, "near limit");

    /// A limit's `ban` has banned a key for this time, after `count` rejections.
    pub(crate) fn banned(limit: &str, key: &str, count: u64, lasts: Duration) =
        info!(limit, key = shown(key), count, lasts_ms = millis(lasts), "banned");

    /// A key was not banned: the overrides that run leave no place for one more ban of this limit, or for one more key of the
    /// client.
    pub(crate) fn bans_full(limit: &str, most: usize) =
        warn!(limit, most,
            help = "see who is banned with `tidegate limits list`; if these are many, a longer `for` or a \
                lower limit helps little: block them in front of tidegate",
            "bans full");

    /// An operator reset a key's bucket.
    pub(crate) fn bucket_reset(limit: &str, key: &str) = info!(limit, key = shown(key), "bucket reset");

    /// The keys of a `[jwt.NAME]` cannot be read. `keys` is the number of those that stay in force.
    pub(crate) fn jwt_keys_unavailable(jwt: &Name, error: &dyn Display, keys: usize) =
        warn!(%jwt, %error, keys,
            help = "see that the URL or the file in `keys` can be read from here, and has public keys",
            "jwt keys unavailable");

    /// The keys of a `[jwt.NAME]` are new, or can be read again. `keys` is their number.
    pub(crate) fn jwt_keys_read(jwt: &Name, keys: usize) = info!(%jwt, keys, "jwt keys read");

    /// A server does not take connections any more.
    pub(crate) fn server_down(upstream: &str, server: &str, error: &dyn Display) =
        warn!(upstream, server, %error, "server down");

    /// No server of an upstream takes connections any more.
    pub(crate) fn upstream_down(upstream: &str, error: &dyn Display) =
        error!(upstream, %error,
            help = "see that its servers run and can be reached from here (a pause that a server \
                asked for ends by itself)",
            "upstream down");

    /// A server takes connections again.
    pub(crate) fn server_up(upstream: &str, server: &str) = info!(upstream, server, "server up");

    /// Too many answers of an API are late: from now on it gets fewer requests at once.
    pub(crate) fn overload_began(upstream: &str, limit: Option<u64>, in_flight: usize, slow_percent: f64, answers: u64, goal_ms: u64, mode: &str) =
        warn!(upstream, limit = or_null(limit), in_flight, slow_percent, answers, goal_ms, mode,
            help = "see why the API is slow: docs/runbook.md, \"The API is slow\"", "overload began");

    /// An upstream is full, and requests are refused. The counts begin at the last such line, and are by priority.
    pub(crate) fn overload(upstream: &str, limit: Option<u64>, limits: Option<[u64; 2]>, waiting: usize, refused: [u64; 3], keys: usize, slow_percent: f64) =
        warn!(upstream, limit = or_null(limit), lowest = limits.map(|it| it[0]), highest = limits.map(|it| it[1]),
            waiting, refused = refused.iter().sum::<u64>(), refused_high = refused[0],
            refused_normal = refused[1], refused_low = refused[2], keys, slow_percent, "overload");

    /// Nobody was refused for an interval. The number is that of all refused since the overload began.
    pub(crate) fn overload_ended(upstream: &str, limit: Option<u64>, refused: u64, lasted_ms: u64) =
        info!(upstream, limit = or_null(limit), refused, lasted_ms, "overload ended");

    /// Fewer requests at once did not make the answers of an API faster. The numbers are those before and now.
    pub(crate) fn slow_from_elsewhere(upstream: &str, in_flight: [u64; 2], means_ms: [f64; 2], goal_times: u32) =
        warn!(upstream, in_flight_before = in_flight[0], in_flight = in_flight[1], mean_ms_before = means_ms[0], mean_ms = means_ms[1], goal_times,
            help = "see what the API waits for: fewer requests do not make it faster, so none is refused for that",
            "slow, but not from load");

    /// A stretched goal made it worse.
    pub(crate) fn from_load_after_all(upstream: &str, limit: Option<u64>, goal_times: u32, slow_percent: f64) =
        info!(upstream, limit = or_null(limit), goal_times, slow_percent, "from load after all");

    /// The goal counts as it is written.
    pub(crate) fn goal_in_force_again(upstream: &str, limit: Option<u64>, goal_times: u32, slow_percent: f64) =
        info!(upstream, limit = or_null(limit), goal_times, slow_percent, "goal in force again");

    /// The limit cannot fall any more, and the API is still slow.
    pub(crate) fn limit_at_at_least(upstream: &str, limit: Option<u64>, goal_times: u32, slow_percent: f64) =
        warn!(upstream, limit = or_null(limit), goal_times, slow_percent,
            help = "the API does not bear max_requests.at_least, or hangs", "limit at at_least");

    /// A fault of the program has ended a request, a connection or a task. `place` is in the program's source.
    pub(crate) fn panicked(error: &str, place: &str) = error!(error, place, "panic");

    /// The process cannot go on, and ends.
    pub(crate) fn process_failed(error: &dyn Display) = error!(%error, "process failed");

    /// The system allows fewer open files than the connections may need.
    pub(crate) fn few_open_files(limit: u64, wanted: u64) =
        warn!(limit, wanted,
            help = "raise it (ulimit -n, LimitNOFILE=) or lower server.max_connections",
            "few open files");

    /// The limit on open files could not be raised.
    pub(crate) fn open_files_unchanged(error: &dyn Display) = warn!(%error, "few open files");

    /// No more connections are allowed than are open now. A new client waits until a connection ends.
    pub(crate) fn connections_full(open: usize) =
        warn!(open,
            help = "for each further one the connection that has been idle for longest is closed, and \
                others wait: see whose they are (ss -tn), and raise server.max_connections",
            "connections full");

    /// `count` connections since the last such line were closed at once, because their client had too many.
    /// `client` was the last one.
    pub(crate) fn connections_refused(_kind: &(), client: &IpAddr, count: u64, interval_ms: Option<u64>) =
        warn!(%client, count, interval_ms,
            help = "if the client may have more, raise server.max_connections_per_client",
            "connections refused");

    /// A connection could not be accepted.
    pub(crate) fn accept_failed(error: &dyn Display) = warn!(%error, "accept failed");

    /// A new process was started. It will take over the sockets.
    pub(crate) fn successor_started(pid: Option<u32>) = info!(pid, "successor started");

    /// Another handover was asked for, and the process of the first one is not ready yet.
    pub(crate) fn handover_under_way(pid: Option<u32>) = info!(pid, "handover under way");

    /// Another process serves the sockets now. This process ends.
    pub(crate) fn handed_over(pid: Option<u32>) = info!(pid, "handed over");

    /// `drain_timeout` is over, and `count` connections are still open, or requests go on whose clients have left. They
    /// end now.
    pub(crate) fn connections_cut(count: usize) =
        warn!(count,
            help = "requests on them took longer than server.drain_timeout: raise it, and the time \
                that the service manager waits before it kills the process",
            "connections cut");

    /// Another process should have taken over the sockets, but did not.
    pub(crate) fn handover_failed(error: &dyn Display, help: &str) =
        warn!(%error, help,
            meanwhile = "this process goes on", "handover failed");

    /// The service manager that started this process could not be told what the process does.
    pub(crate) fn service_manager_not_told(error: &dyn Display) =
        warn!(%error,
            help = "see that the socket that NOTIFY_SOCKET names can be reached",
            "service manager not told");

    /// The process finishes the requests under way.
    pub(crate) fn draining() = info!("draining");

    /// The process ends.
    pub(crate) fn stopped() = info!("stopped");

    /// Another process that shares Redis has not announced itself for some seconds, and had not said that it ends.
    pub(crate) fn process_gone(process: &str) =
        warn!(process,
            help = "it was killed, or does not reach redis; slots that it held are free again when their lease is over",
            "process gone");

    /// The processes that share Redis have several versions of the configuration file. `versions` says who has which.
    pub(crate) fn fleet_differs(versions: &str) =
        warn!(versions,
            help = "a change has not reached all of them: see that each has the same proxy.toml, and has taken it (config rejected)",
            "fleet differs");

    /// The processes that share Redis have the same configuration file again.
    pub(crate) fn fleet_agrees(versions: &str) = info!(versions, "fleet agrees");

    /// `count` log lines were dropped since the last such line. `error` is the last cause.
    pub(crate) fn lines_dropped(count: u64, error: &str) = warn!(count, error, "log lines dropped");
}

/// The file with the plans of customers has changed, and is in force.
pub(crate) fn plans_loaded(file: &dyn Display, counts: PlanLineCounts) {
    let PlanLineCounts { before, now: lines } = counts;
    match counts.have_lost_one_of(MANY) {
        false => info!(target: TARGET, %file, lines, "plans loaded"),
        true => warn!(target: TARGET, %file, lines, before,
            help = "see that the lines that are gone were meant to go", "plans loaded"),
    }
}

/// The configuration of the start is in force.
pub(crate) fn config_loaded(file: &str, settings: &Settings) {
    let store = settings.store.location.to_string();
    let version = env!("CARGO_PKG_VERSION");
    let [routes, limits, upstreams] =
        [settings.routes.len(), settings.limits.len(), settings.upstreams.len()];
    let (counts_by, plans_by) = (counts_by(settings), plans_by(settings));
    info!(target: TARGET, version, file, store, routes, limits, upstreams, counts_by, plans_by, "config loaded");
}

/// A limit of an upstream. In JSON, no limit is `null`.
fn or_null(limit: Option<u64>) -> f64 {
    limit.map_or(f64::NAN, |limit| u32::try_from(limit).unwrap_or(u32::MAX).into())
}

/// The `key` of each limit, as a JSON object.
fn counts_by(settings: &Settings) -> String {
    json_object(settings.limits.iter().map(|limit| (&limit.name, limit.key.parts_text())))
}

/// The part of a request that gives its plan. `None` if the file has no plans.
fn plans_by(settings: &Settings) -> Option<String> {
    Some(settings.plans.as_ref()?.by.sources.first()?.to_string())
}

/// An override that an operator set while the process runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverrideEvent<'o> {
    pub(crate) limit: &'o str,
    /// The key's text, hashed if `log.keys` says so. `None` for all keys.
    pub(crate) key: Option<&'o str>,
    pub(crate) wanted: &'o WantedFigures,
    /// Why it was set.
    pub(crate) reason: Option<&'o str>,
    /// When it ends. `None`: it stays until somebody ends it.
    pub(crate) until: Option<Timestamp>,
}

/// A time of day in whole seconds, as in `2026-01-02T03:04:05Z`.
pub(crate) fn date_and_time(time: Timestamp) -> String {
    let seconds = i64::try_from(time.as_micros() / 1_000_000).unwrap_or_default();
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

/// Requests that were refused with 4xx, and that no limit rejected.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RefusedRequests {
    pub(crate) reason: &'static str,
    /// The limit that needs what the request lacks.
    pub(crate) limit: Option<Name>,
    pub(crate) route: Arc<str>,
}

/// A failed exchange with a server of an upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FailedExchange {
    pub(crate) upstream: String,
    pub(crate) server: String,
    pub(crate) route: String,
    pub(crate) error: String,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::testing;
    use super::*;

    fn logged(run: impl FnOnce()) -> Value {
        let mut lines = testing::lines(run);
        assert_eq!(lines.len(), 1);
        let mut line = lines.remove(0);
        line.as_object_mut().unwrap().remove("timestamp");
        line
    }

    #[test]
    fn an_event_that_needs_an_operator_is_a_warning() {
        let line = |level, message, field: &str, value: &str| json!({"level": level, "target": "tidegate", "message": message, field: value});
        let list = |message, field: &str, items: &[&str]| json!({"level": "WARN", "target": "tidegate", "message": message, field: items});
        let address = ListenAddress::Tcp(([127, 0, 0, 1], 8080).into());
        let mut listens = line("INFO", "listening", "address", "127.0.0.1:8080");
        listens["setting"] = json!("server.listen");
        assert_eq!(logged(|| listening(&address, "server.listen")), listens);
        let mut rejected = list("config rejected", "errors", &["line 1", "line 2"]);
        rejected["meanwhile"] = json!("the configuration from before stays in force");
        assert_eq!(
            logged(|| config_rejected(&["line 1".to_owned(), "line 2".to_owned()])),
            rejected
        );
        assert_eq!(
            logged(|| certificates_loaded(&"api.example.com")),
            line("INFO", "certificates loaded", "names", "api.example.com")
        );
        let mut rejected = line("WARN", "certificates rejected", "error", "no key");
        rejected["help"] = json!("make one");
        rejected["meanwhile"] = json!("the certificates from before stay in force");
        assert_eq!(logged(|| certificates_rejected(&"no key", "make one")), rejected);
        assert_eq!(
            logged(|| restart_needed(&["server.listen".to_owned()])),
            list("restart needed", "fields", &["server.listen"])
        );
    }
}
