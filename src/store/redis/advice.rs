//! The words for operators where Redis does not decide: Redis's own error, and what to do about it.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError};

use super::StoreError;

/// Redis's error in its own words, such as `NOAUTH Authentication required.` The script's hash and line are
/// left out, because they do not help an operator.
pub(in crate::store) fn words(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => {
            let detail = detail.split(" script: ").next().unwrap_or(detail);
            format!("{code} {detail}")
        }
        _ => error.to_string(),
    }
}

const PASSWORD: &str = "give store.url Redis's password and restart";

const CLUSTER: &str =
    "see CLUSTER INFO; with cluster-require-full-coverage the loss of some slots stops all of them";

/// The codes by which a server says that it cannot decide now, for any key. Behind each code stands its label
/// in metrics, then what the operator can do. `None` where the error passes by itself.
const REFUSALS: [(&str, &str, Option<&str>); 8] = [
    ("CLUSTERDOWN", "cluster", Some(CLUSTER)),
    ("LOADING", "loading", None),
    ("MISCONF", "server", Some("Redis cannot save to its disk: see its log")),
    ("NOAUTH", "permission", Some(PASSWORD)),
    ("NOPERM", "permission", Some("allow this user the commands and keys that tidegate needs")),
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
    ("WRONGPASS", "permission", Some(PASSWORD)),
];

/// The label and the advice of an error by which a server says that it cannot decide now. `None` for any
/// other error.
pub(in crate::store) fn refusal(
    error: &RedisError,
) -> Option<(&'static str, Option<&'static str>)> {
    // The library drops Redis's own answer to a wrong password.
    let code = match error.kind() {
        ErrorKind::AuthenticationFailed => "WRONGPASS",
        _ => error.code()?,
    };
    let (_, kind, help) = REFUSALS.iter().find(|(refusal, ..)| *refusal == code)?;
    Some((kind, *help))
}

/// What the operator can do about an error. `None` where that is not known, or the error passes by itself.
pub(super) fn help(error: &StoreError) -> Option<&'static str> {
    match error {
        StoreError::TimedOut => Some(
            "see what keeps Redis or the way to it busy; store.timeout bounds what a request waits",
        ),
        StoreError::Redis(error) if error.code() == Some("MOVED") => {
            Some("this server belongs to a cluster: write redis-cluster:// in store.url")
        }
        // The library writes before it reads, so the reason that Redis gives at once is lost.
        StoreError::Redis(error) if is_cut_off(error) => Some(
            "if Redis runs, it closed the connection: in protected mode it takes none from other hosts, and \
             above maxclients none at all",
        ),
        StoreError::Redis(error) => refusal(error)?.1,
        StoreError::ClusterDown(_) => Some(CLUSTER),
        StoreError::NoServer(_) => Some("see CLUSTER SLOTS: give these slots a server"),
        StoreError::UnknownMaster(_) => {
            Some("compare the name in store.url with the answer to SENTINEL MASTERS")
        }
        _ => None,
    }
}

type SharedCause = Arc<dyn Error + Send + Sync>;

/// Whether the server closed the connection.
fn is_cut_off(error: &RedisError) -> bool {
    // The library gives its shared pointer to the cause as the cause.
    let source = error.source().and_then(|source| source.downcast_ref::<SharedCause>());
    let cause = source.and_then(|source| source.downcast_ref::<io::Error>());
    matches!(
        cause.map(io::Error::kind),
        Some(
            io::ErrorKind::BrokenPipe
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::UnexpectedEof
        )
    )
}

#[cfg(test)]
mod tests {
    use redis::{Value, parse_redis_value};

    use super::*;

    fn error(line: &str) -> StoreError {
        let value = parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let Value::ServerError(error) = value else { panic!("{value:?}") };
        StoreError::Redis(RedisError::from(error))
    }

    #[test]
    fn what_redis_says_is_told_in_its_words_and_with_what_to_do() {
        for (line, told, advised) in [
            ("NOAUTH Authentication required.", "NOAUTH Authentication required.", "password"),
            ("WRONGPASS invalid password", "WRONGPASS invalid password", "password"),
            (
                "OOM command not allowed when used memory > 'maxmemory'. script: 72aa, on \
                 @user_script:958.",
                "OOM command not allowed when used memory > 'maxmemory'.",
                "maxmemory",
            ),
            (
                "READONLY You can't write against a read only replica. script: 72aa, on \
                 @user_script:958.",
                "READONLY You can't write against a read only replica.",
                "primary",
            ),
            ("LOADING Redis is loading the dataset", "LOADING Redis is loading the dataset", ""),
            ("ODD something", "ODD something", ""),
        ] {
            let error = error(line);
            assert_eq!(error.to_string(), told);
            assert!(help(&error).unwrap_or_default().contains(advised), "{line}");
            assert_eq!(help(&error).is_none(), advised.is_empty(), "{line}");
        }
        for (kind, advised) in
            [(io::ErrorKind::ConnectionReset, true), (io::ErrorKind::ConnectionRefused, false)]
        {
            let error = StoreError::Redis(RedisError::from(io::Error::from(kind)));
            assert_eq!(help(&error).is_some_and(|help| help.contains("protected mode")), advised);
        }
    }
}
