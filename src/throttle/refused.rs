//! Why limits do not let a request pass.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::limit::algorithm::Algorithm;
use crate::limit::name::Name;
use crate::limit::rate::Cost;
use crate::request::key::{KeyError, TokenFault};
use crate::settings::AnswerSpec;

/// Why the limits do not let a request pass.
#[derive(Debug, thiserror::Error)]
pub enum Refused<'p> {
    /// A key's value cannot be read from the request.
    #[error("{error}")]
    Key {
        /// The limit that counts by the key.
        limit: &'p Name,
        /// What is wrong with it.
        error: KeyError,
    },
    /// The header with the request's cost does not hold a whole number from 1 to `max`.
    #[error("header `{header}` must hold one whole number from 1 to {max}")]
    Cost {
        /// The header's name.
        header: http::HeaderName,
        /// The largest cost that the header may say.
        max: Cost,
    },
    /// An enforcing limit refuses.
    #[error("rate limit exceeded")]
    Throttled {
        /// The limit that takes longest to allow the request.
        limit: &'p Name,
        /// The wait that the answer names. After it all limits would allow the request. With `reject.jitter` it is a
        /// little longer. `None` is never.
        retry_after: Option<Duration>,
        /// The answer to the client, as that limit or the file's default has it.
        answer: &'p Arc<AnswerSpec>,
        /// What the answer tells about the rejection.
        rejection: Box<ToldRejection>,
    },
    /// Too many requests wait for their end.
    #[error("too many requests were allowed and have not ended: settle them")]
    TooManyOpen,
    /// Redis does not decide, and an enforcing limit has `on_store_error = "reject"`.
    #[error("the limits of this request cannot be checked at the moment")]
    StoreUnavailable,
}

/// What the answer tells about a rejection.
#[derive(Clone, Copy, Debug)]
pub struct ToldRejection {
    pub(crate) id: Uuid,
    /// The figures of the first limit that refuses.
    pub(crate) figures: Algorithm,
}

impl Refused<'_> {
    /// The status of the answer. A rejection has this one if the file names no other.
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::Key { error: KeyError::Token(TokenFault::TooMany), .. }
            | Self::Throttled { .. } => 429,
            Self::Key { error, .. } if error.is_without_keys() => 503,
            Self::Key { error, .. } if error.asks_for_credentials() => 401,
            Self::Key { .. } | Self::Cost { .. } => 400,
            Self::TooManyOpen | Self::StoreUnavailable => 503,
        }
    }

    /// What the client gets, in words.
    pub(crate) fn in_words(&self) -> String {
        format!("{}: {self}", self.status())
    }

    /// The reason for logs and metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Key { error, .. } => error.reason(),
            Self::Cost { .. } => "bad_cost",
            Self::Throttled { .. } => "throttled",
            Self::TooManyOpen => "too_many_open",
            Self::StoreUnavailable => "store",
        }
    }
}
