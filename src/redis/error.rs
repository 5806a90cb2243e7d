//! Why Redis did not decide, and what that says about its server.

mod advice;
mod words;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::plan::Endpoint;

pub(super) use self::words::refusal;

/// Redis does not decide, and an enforcing limit has `on_store_error = "reject"`. What other limits gave
/// goes back. Tokens of a call that Redis did not answer in time may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store is out of reach, and a limit rejects requests then")]
pub struct Unavailable {
    /// The index of that limit's claim among the claims that were given to [`Store::take`](super::Store::take).
    pub by: usize,
}

/// Why Redis did not decide.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
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
    /// This number of the cluster's slots have no server.
    #[error("{0} of the cluster's slots have no server")]
    NoServer(usize),
    /// The server says that its cluster does not work. A server that is cut off from the others says so, too.
    #[error("{0} says that its cluster is down")]
    ClusterDown(Endpoint),
    /// The server names a server of its cluster without its address: that one is just joining.
    #[error("{0} does not say at which address a server of its cluster is")]
    NoAddress(Endpoint),
    /// The server's version lacks what the scripts need.
    #[error("Redis {0} is too old: 6.2 or later is needed")]
    TooOld(String),
    /// Redis sent an answer that does not fit the question.
    #[error("an answer that is no decision")]
    Nonsense,
    /// The key holds a value of another type than the bucket's.
    #[error("the key holds a value of another type")]
    WrongType,
    /// Neither Redis nor `proxy.toml` has figures for the Redisson limiter.
    #[error("the limiter has no figures")]
    Unset,
    /// A Redisson before 3.17 uses the limiter's keys, in a form that newer ones cannot use.
    #[error("a Redisson before 3.17 uses the limiter")]
    Older,
}

impl StoreError {
    /// Whether the server works and refuses this key alone: the user has no right to the key or to what its
    /// algorithm does, the keys of one call lie in different slots, the value has another type, the limiter has no
    /// figures, or an older Redisson uses it. Other keys still work.
    pub(super) fn is_of_one_key(&self) -> bool {
        let Self::Redis(error) = self else {
            return matches!(self, Self::WrongType | Self::Unset | Self::Older);
        };
        match error.code() {
            Some("CROSSSLOT" | "WRONGTYPE") => true,
            _ if self.is_of_one_slot() => true,
            // NOPERM is also the answer where the user may not run a script. Then no key works.
            _ => words::is_no_right_to_key(error) || words::is_no_right_in_script(error),
        }
    }

    /// Whether the server works, but the slot of this key has no server or moves.
    pub(super) fn is_of_one_slot(&self) -> bool {
        let Self::Redis(error) = self else { return false };
        let says = |words| error.detail().is_some_and(|detail| detail.contains(words));
        match error.code() {
            Some("CLUSTERDOWN") => says("slot not served"),
            // While a slot moves, a script cannot write to a key that it has just emptied.
            Some("ERR") => says("non local key"),
            _ => false,
        }
    }

    /// Whether the server answers and says that it cannot decide now. To ask again at once would not help.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::Redis(error) => refusal(error).is_some() && !self.is_of_one_key(),
            _ => matches!(self, Self::TooOld(_) | Self::NoServer(_)),
        }
    }

    /// Whether the server works, but another server has the slot or some of the keys in it.
    pub(super) fn is_redirection(&self) -> bool {
        use ServerErrorKind::{Ask, Moved, TryAgain};
        let Self::Redis(error) = self else { return false };
        matches!(error.kind(), ErrorKind::Server(Moved | Ask | TryAgain))
    }

    /// Whether the user lacks a right that some algorithms need. The call has changed no bucket but lists.
    pub(super) fn is_of_one_algorithm(&self) -> bool {
        matches!(self, Self::Redis(error) if words::is_no_right_in_script(error))
    }

    /// Whether a call with one key may work: a slot moves, and one server has some of the call's keys and another one
    /// has the others; or the user may not do what the algorithm of one of them needs.
    pub(super) fn is_of_several_keys(&self) -> bool {
        let Self::Redis(error) = self else { return false };
        error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain) || self.is_of_one_algorithm()
    }

    /// The label of this error in metrics. `None` where Redis was not asked at all.
    pub(super) fn kind(&self) -> Option<&'static str> {
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
            Self::WrongType => "type",
            Self::Unset => "unset",
            Self::Older => "older",
        })
    }
}
