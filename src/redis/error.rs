//! Why a call to Redis failed, whether the server still works, and what the operator can do.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::words::{self, CLUSTER, IN_CLUSTER, refusal};
use crate::settings::Endpoint;

/// Why a call to Redis failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// Redis counts as away. After several failures in a row it is not asked until a probe succeeds.
    #[error("it is out of reach")]
    Away,
    /// This worker has no connection, and the last attempt to make one failed.
    #[error("there is no connection to it")]
    NotConnected,
    /// No answer within `store.timeout`. The time to connect counts too.
    #[error("no answer in time")]
    TimedOut,
    /// The server or the connection to it reported an error.
    #[error("{}", words::words(.0))]
    Redis(#[from] RedisError),
    /// No sentinel knows a master of this name.
    #[error("the sentinels know no master \"{0}\"")]
    UnknownMaster(String),
    /// The server that the sentinels named is a replica.
    #[error("{0} is no master yet, or no longer")]
    NotMaster(Endpoint),
    /// The number of the cluster's hash slots that have no server.
    #[error("{0} of the cluster's slots have no server")]
    NoServer(usize),
    /// The server says that its cluster does not work. A server that is cut off from the others says so, too.
    #[error("{0} says that its cluster is down")]
    ClusterDown(Endpoint),
    /// The server names another server of its cluster without an address: the other server is just joining.
    #[error("{0} does not say at which address a server of its cluster is")]
    NoAddress(Endpoint),
    /// The server's version lacks what the scripts need.
    #[error("Redis {0} is too old: 6.2 or later is needed")]
    TooOld(String),
    /// The answer of Redis does not fit the question.
    #[error("an answer that is no decision")]
    Nonsense,
    /// The value of the call's key cannot be used, for example because it has another type. The caller says what is
    /// wrong.
    #[error("{0}")]
    UnusableKey(&'static str),
}

impl CallError {
    /// The error of a key whose value has another type than the bucket, or than the key of a list.
    pub(crate) const OTHER_TYPE: Self = Self::UnusableKey("the key holds a value of another type");

    /// Whether the server works and refuses this key alone: the user has no right to the key or to a command of its
    /// script, the keys of one call lie in different hash slots, or the value cannot be used. Other keys still work.
    pub(crate) fn is_of_one_key(&self) -> bool {
        let Self::Redis(error) = self else {
            return matches!(self, Self::UnusableKey(_));
        };
        match error.code() {
            Some("CROSSSLOT" | "WRONGTYPE") => true,
            _ if self.is_of_one_hash_slot() => true,
            // NOPERM is also the answer if the user may not run a script. Then no key works.
            _ => words::is_no_right_to_key(error) || words::is_no_right_in_script(error),
        }
    }

    /// Whether the server works, but the hash slot of this key has no server or moves.
    pub(crate) fn is_of_one_hash_slot(&self) -> bool {
        let Self::Redis(error) = self else { return false };
        let says = |words| error.detail().is_some_and(|detail| detail.contains(words));
        match error.code() {
            Some("CLUSTERDOWN") => says("slot not served"),
            // While a hash slot moves, a script cannot write to a key that it has just emptied.
            Some("ERR") => says("non local key"),
            _ => false,
        }
    }

    /// Whether the server answers that it cannot decide now. Another question at once would not help.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Redis(error) => refusal(error).is_some() && !self.is_of_one_key(),
            _ => matches!(self, Self::TooOld(_) | Self::NoServer(_)),
        }
    }

    /// Whether the server works, but another server has the hash slot or some of the keys in it.
    pub(crate) fn is_redirection(&self) -> bool {
        use ServerErrorKind::{Ask, Moved, TryAgain};
        let Self::Redis(error) = self else { return false };
        matches!(error.kind(), ErrorKind::Server(Moved | Ask | TryAgain))
    }

    /// Whether the user may run scripts, but not all commands of this one. Other scripts, or other parts of this one,
    /// may work.
    pub(crate) fn is_no_right_in_script(&self) -> bool {
        matches!(self, Self::Redis(error) if words::is_no_right_in_script(error))
    }

    /// Whether the call may work if each key has its own call. Either a hash slot moves, and two servers have the
    /// call's keys. Or the user may not run a command that only some of the keys need.
    pub(crate) fn is_of_several_keys(&self) -> bool {
        let Self::Redis(error) = self else { return false };
        error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain) || self.is_no_right_in_script()
    }

    /// What the operator can do about an error. `None` if that is not known, or the error passes by itself.
    pub(crate) fn help(&self) -> Option<&'static str> {
        match self {
            Self::TimedOut => Some(
                "see what keeps Redis or the network to it busy; a request waits for Redis at most store.timeout",
            ),
            Self::Redis(error) if error.code() == Some("MOVED") => Some(IN_CLUSTER),
            // The library writes before it reads. So it misses the reason that Redis gives before it closes the
            // connection.
            Self::Redis(error) if is_cut_off(error) => Some(
                "if Redis runs, it closed the connection: in protected mode it accepts none from other hosts, and beyond maxclients none at all",
            ),
            Self::Redis(error) => refusal(error)?.1,
            Self::ClusterDown(_) => Some(CLUSTER),
            Self::NoAddress(_) => {
                Some("wait until that server has joined, or set its cluster-announce-ip")
            }
            Self::NoServer(_) => Some("see CLUSTER SLOTS: give these slots a server"),
            Self::UnknownMaster(_) => {
                Some("compare the name in store.url with the answer to SENTINEL MASTERS")
            }
            _ => None,
        }
    }

    /// The reason for which Redis is away. Each reason of an outage is logged once. Two errors have the same reason if
    /// they are of one kind, and the server closed the connection in both cases or in none.
    pub(crate) fn reason(&self) -> (Option<&'static str>, bool) {
        (self.kind(), matches!(self, Self::Redis(error) if is_cut_off(error)))
    }

    /// The label of this error in metrics. `None` if Redis was not asked at all.
    pub(crate) fn kind(&self) -> Option<&'static str> {
        Some(match self {
            Self::Away => return None,
            Self::NotConnected => "connection",
            Self::TimedOut => "timeout",
            Self::Redis(_) if self.is_redirection() => "redirection",
            Self::Redis(error) => match (refusal(error), error.code()) {
                (Some((kind, _)), _) => kind,
                (None, Some(_)) => "server",
                (None, None) => "connection",
            },
            Self::UnknownMaster(_) | Self::NotMaster(_) => "sentinel",
            Self::NoServer(_) | Self::ClusterDown(_) | Self::NoAddress(_) => "cluster",
            Self::TooOld(_) => "version",
            Self::Nonsense => "nonsense",
            Self::UnusableKey(_) => "type",
        })
    }
}

/// Whether the server closed the connection.
fn is_cut_off(error: &RedisError) -> bool {
    error.is_connection_dropped() && !error.is_connection_refusal()
}

#[cfg(test)]
mod tests {
    use std::io;

    use redis::{Value, parse_redis_value};

    use super::*;

    fn error(line: &str) -> CallError {
        let value = parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let Value::ServerError(error) = value else { panic!("{value:?}") };
        CallError::Redis(RedisError::from(error))
    }

    #[test]
    fn an_error_repeats_redis_words_and_says_what_to_do() {
        // The text after a `|` is left out of the advice.
        for (line, advised) in [
            ("NOAUTH Authentication required.", "password"),
            ("WRONGPASS invalid password", "the user `default`"),
            (
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
                "remove it from store.url",
            ),
            ("ERR This instance has cluster support disabled", "write redis:// in store.url"),
            ("ERR SELECT is not allowed in cluster mode", "redis-cluster://"),
            ("ERR DB index is out of range", "`databases`"),
            (
                "ERR unknown command 'SENTINEL'|, with args beginning with: 'GET-MASTER-ADDR-BY-NAME' 'm' ",
                "no sentinel",
            ),
            (
                "ERR unknown command `EVALSHA`|, with args beginning with: `72aa`, `1`, ",
                "redis-sentinel://",
            ),
            // If AUTH was renamed, the server does not know the command, and quotes its argument: the password.
            ("ERR unknown command 'AUTH'|, with args beginning with: 'hunter2' ", ""),
            (
                "OOM command not allowed when used memory > 'maxmemory'.| script: 72aa, on @user_script:958.",
                "maxmemory",
            ),
            (
                "READONLY You can't write against a read only replica.| script: 72aa, on @user_script:958.",
                "primary",
            ),
            ("BUSY Redis is busy running a script. You can only call SCRIPT KILL.", "SCRIPT KILL"),
            ("NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write"),
            (
                "ERR The user executing the script can't run this command| script: 72aa, on @user_script:958.",
                "allow this user the commands",
            ),
            // Redis 7.2 and later, and Valkey. They were cut off at the first "script:".
            (
                "ERR ACL failure in script: User a has no permissions to run the 'zadd' command| script: 72aa, on @user_script:958.",
                "allow this user the commands",
            ),
            (
                "ERR ACL failure in script: No permissions to access a key| script: 72aa, on @user_script:958.",
                "allow this user the commands",
            ),
            (
                "ERR ACL failure in script: User a has no permissions to access the 'a script: b' key| script: 72aa, on @user_script:958.",
                "allow this user the commands",
            ),
            (
                "ERR ACL failure in script: User a has no permissions to run the 'zadd' command",
                "allow this user the commands",
            ),
            ("LOADING Redis is loading the dataset", ""),
            ("ODD something", ""),
        ] {
            let told = line.split('|').next().unwrap();
            let error = error(&line.replace('|', ""));
            assert_eq!(error.to_string(), told);
            assert!(error.help().unwrap_or_default().contains(advised), "{line}");
            assert_eq!(error.help().is_none(), advised.is_empty(), "{line}");
        }
        for (kind, advised) in
            [(io::ErrorKind::ConnectionReset, true), (io::ErrorKind::ConnectionRefused, false)]
        {
            let error = CallError::Redis(RedisError::from(io::Error::from(kind)));
            assert_eq!(error.help().is_some_and(|help| help.contains("protected mode")), advised);
        }
    }
}
