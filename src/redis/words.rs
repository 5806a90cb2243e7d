//! The errors that Redis itself reports, and what the operator can do about them.

use redis::RedisError;

/// Redis's error in its own words, such as `NOAUTH Authentication required.` Two things are left out. A script's hash
/// and line do not help an operator. Of a command that the server does not know, an argument may be a password.
pub(super) fn words(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => {
            let script = detail.rfind(" script: ").filter(|_| detail.contains(", on @"));
            let end = script.or_else(|| detail.find(", with args beginning with"));
            format!("{code} {}", detail[..end.unwrap_or(detail.len())].trim_end())
        }
        _ => error.to_string(),
    }
}

pub(super) const CLUSTER: &str =
    "see CLUSTER INFO; with cluster-require-full-coverage the loss of some slots stops all of them";

/// The error codes by which a server says that it cannot decide about any key now. Each code has its label in metrics
/// and its advice for the operator. The advice is `None` if the error passes by itself.
const REFUSALS: [(&str, &str, Option<&str>); 10] = [
    (
        "BUSY",
        "server",
        Some("a script or function runs too long: find its caller, then SCRIPT KILL"),
    ),
    ("CLUSTERDOWN", "cluster", Some(CLUSTER)),
    ("LOADING", "loading", None),
    ("MISCONF", "server", Some("Redis cannot save to its disk: see its log")),
    ("NOAUTH", "permission", Some("give store.url Redis's password and restart")),
    ("NOPERM", "permission", Some("allow this user the commands and keys that tidegate needs")),
    (
        "NOREPLICAS",
        "server",
        Some("fewer replicas follow than min-replicas-to-write asks for: see INFO REPLICATION"),
    ),
    (
        "OOM",
        "oom",
        Some("raise Redis's maxmemory: a key that it evicts is a limit that it forgets"),
    ),
    (
        "READONLY",
        "readonly",
        Some("store.url leads to a replica: name the primary, or wait for the end of a failover"),
    ),
    (
        "WRONGPASS",
        "permission",
        Some(
            "give store.url Redis's password and restart; without a user in store.url it is the password of the user \
             `default`",
        ),
    ),
];

pub(super) const IN_CLUSTER: &str =
    "this server belongs to a cluster: write redis-cluster:// in store.url";

/// With the code ERR these texts say that the server cannot decide about any key now. Each text has its label in
/// metrics and its advice. Versions of Redis differ in upper and lower case.
const REFUSALS_IN_WORDS: [(&str, &str, &str); 7] = [
    (
        "without any password configured",
        "permission",
        "Redis wants no password: remove it from store.url and restart, or give Redis this password (requirepass)",
    ),
    (
        "cluster support disabled",
        "cluster",
        "this server is in no cluster: write redis:// in store.url",
    ),
    ("not allowed in cluster mode", "cluster", IN_CLUSTER),
    (
        "db index is out of range",
        "server",
        "Redis does not have the database in store.url: see its setting `databases`",
    ),
    (
        "unknown command 'sentinel'",
        "sentinel",
        "this server is no sentinel: write redis:// in store.url, or name the sentinels",
    ),
    ("unknown command 'evalsha'", "server", NO_SCRIPTS),
    ("unknown command 'cluster'", "server", NO_SCRIPTS),
];

const NO_SCRIPTS: &str = "tidegate needs this command; a sentinel does not have it: write redis-sentinel:// in store.url for one";

/// The texts by which Redis says that a user has no right to a key. Versions of Redis differ. Redis 7.2 and Valkey use
/// another text if a script uses the key. Whole phrases are compared, because the message also has the user's name.
const OF_KEYS: [&str; 4] = [
    "access one of the keys",
    "access at least one of the keys",
    "permissions to access a key",
    "permissions to access the '",
];

/// The texts by which Redis says that a user may run scripts, but not a command that the script runs. The second text
/// is that of Redis 7.2 and Valkey.
const OF_COMMANDS: [(&str, &str); 2] = [
    ("executing the script can't run this command", ""),
    ("ACL failure in script", "has no permissions to run the '"),
];

/// Whether the user may run the command, but not on this key.
pub(super) fn is_no_right_to_key(error: &RedisError) -> bool {
    is_denial(error, |detail| OF_KEYS.iter().any(|phrase| detail.contains(phrase)))
}

/// Whether the user may run the script, but not all of its commands. Some algorithms need only a part of them.
pub(super) fn is_no_right_in_script(error: &RedisError) -> bool {
    let says = |detail: &str| {
        OF_COMMANDS.iter().any(|(one, other)| detail.contains(one) && detail.contains(other))
    };
    is_denial(error, says)
}

/// If a command in a script lacks a right, the code is ERR.
fn is_denial(error: &RedisError, says: impl Fn(&str) -> bool) -> bool {
    matches!(error.code(), Some("NOPERM" | "ERR")) && error.detail().is_some_and(says)
}

/// The label and the advice of an error by which a server says that it cannot decide now. `None` for any
/// other error.
pub(super) fn refusal(error: &RedisError) -> Option<(&'static str, Option<&'static str>)> {
    let code = match error.code()? {
        _ if is_no_right_to_key(error) || is_no_right_in_script(error) => "NOPERM",
        "ERR" => {
            // Older versions quote with backquotes.
            let detail = error.detail()?.to_ascii_lowercase().replace('`', "'");
            let is_said = |(words, ..): &&(&str, _, _)| detail.contains(words);
            let (_, kind, help) = REFUSALS_IN_WORDS.iter().find(is_said)?;
            return Some((kind, Some(help)));
        }
        code => code,
    };
    let (_, kind, help) = REFUSALS.iter().find(|(refusal, ..)| *refusal == code)?;
    Some((kind, *help))
}
