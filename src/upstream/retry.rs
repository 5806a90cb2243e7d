//! Whose fault it is that a try brought no answer, which requests are sent again, how often, and the pause that a server
//! asks for.

use std::cell::Cell;
use std::time::Duration;

use http::header::{DATE, HeaderMap, RETRY_AFTER};
use http::{Method, Request, StatusCode};

use super::Sending;
use super::body::RequestBody;
use super::connection::Connection;
use super::error::TryEnd;

/// A retry costs what 10 requests earn. Therefore at most a tenth of the requests are sent again.
const RETRY_COST: u32 = 10;
/// Retries that are free at the start: an upstream with little traffic needs retries too.
const FIRST_RETRIES: u32 = 10;
/// Retries that can be saved up. A server that is restarted under load breaks many requests at once.
const MOST_RETRIES: u32 = 100;

/// The longest pause that a server can ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The retries that one worker may still make at one upstream. If all requests failed and each was sent
/// again, the retries would keep an overloaded upstream down.
#[derive(Debug)]
pub(super) struct RetryBudget(Cell<u32>);

impl Default for RetryBudget {
    fn default() -> Self {
        Self(Cell::new(FIRST_RETRIES * RETRY_COST))
    }
}

impl RetryBudget {
    /// A request is sent for the first time.
    pub(super) fn earn(&self) {
        let saved = self.0.get();
        if saved < MOST_RETRIES * RETRY_COST {
            self.0.set(saved + 1);
        }
    }

    /// Pays for a retry. Returns whether there was enough for it.
    pub(super) fn spend(&self) -> bool {
        let left = self.0.get().checked_sub(RETRY_COST);
        if let Some(left) = left {
            self.0.set(left);
        }
        left.is_some()
    }
}

/// A request on its way, and at which servers it has failed.
pub(super) struct Tries {
    pub(super) sending: Sending,
    /// The request has no body.
    pub(super) is_whole: bool,
    /// The request may be sent again though a server may have processed it.
    pub(super) is_repeatable: bool,
    /// Retries that are left.
    pub(super) retries: u32,
    /// The indices of the servers at which the request has failed.
    pub(super) failed: Vec<usize>,
    /// The index of the server that this request is to try, which was set aside.
    pub(super) trial: Option<usize>,
}

/// A try that brought no answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedTry {
    pub(super) end: TryEnd,
    pub(super) reach: Reach,
    pub(super) upload: Upload,
    /// The connection had been used before. The server may have closed it meanwhile.
    pub(super) is_pooled: bool,
    /// Another exchange has broken on this connection, which was counted.
    pub(super) is_told: bool,
    /// The request has failed at this server before.
    pub(super) has_failed_here: bool,
}

/// How far a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// No byte of it was sent.
    Unsent,
    Sent,
    /// The server has sent something since.
    Heard,
}

/// How far the body of a request had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upload {
    /// The server has all that came.
    HandedOn,
    /// The client has to send more.
    Awaited,
    /// The client sent no valid body.
    Failed,
}

/// Whose fault it is that a try brought no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    Client,
    /// The failure counts against the server.
    Server,
    /// The connection has ended, for which another of its requests was counted.
    Connection,
    Nobody,
}

/// What is done after a try that brought no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The request goes on another connection, as if there had been no try.
    Afresh,
    /// The request goes to another server. What is not free must be paid for from the [`RetryBudget`].
    Retry {
        is_free: bool,
    },
    GiveUp,
}

impl Tries {
    pub(super) fn new(request: &Request<RequestBody>, sending: Sending, retries: u32) -> Self {
        let is_whole = request.body().is_empty();
        let is_repeatable = is_whole && is_idempotent(request.method());
        Self { sending, is_whole, is_repeatable, retries, failed: Vec::new(), trial: None }
    }

    /// Whether the request is lost if it meets a dead connection. It then goes on one that has shown life lately.
    pub(super) fn needs_life(&self) -> bool {
        !self.is_repeatable || self.retries == 0
    }

    /// Whether a request that fails on this connection may be sent again.
    pub(super) fn can_repeat(&self, connection: &Connection) -> bool {
        matches!(connection, Connection::Http2(_)) || (self.is_whole && self.retries > 0)
    }
}

impl FailedTry {
    /// Whether the request met a connection that was closed while nobody used it.
    fn is_stale(&self) -> bool {
        self.is_pooled && self.reach == Reach::Unsent
    }

    /// Whether the connection is of no more use for other requests. If nothing came within the time-out, perhaps only
    /// this connection is dead, because a firewall between has forgotten it.
    pub(super) fn ends_connection(&self) -> bool {
        !self.is_stale()
            && self.upload != Upload::Failed
            && match self.end {
                TryEnd::Refused { .. } | TryEnd::Unread | TryEnd::Broken { .. } => true,
                TryEnd::TimedOut => self.reach != Reach::Heard,
                TryEnd::Unasked => false,
            }
    }

    /// A request counts once against a server, even if it breaks each connection on which it is sent. While the client
    /// has to send more, the server may end the exchange.
    pub(super) fn blame(&self) -> Blame {
        match self.end {
            _ if self.upload == Upload::Failed => Blame::Client,
            TryEnd::Refused { alone: true } | TryEnd::Broken { alone: true } if self.is_told => {
                Blame::Nobody
            }
            _ if self.is_told => Blame::Connection,
            TryEnd::Refused { .. } | TryEnd::Unasked => Blame::Nobody,
            _ if self.is_stale() || self.has_failed_here => Blame::Nobody,
            _ if self.upload == Upload::Awaited => Blame::Nobody,
            TryEnd::Unread | TryEnd::Broken { .. } | TryEnd::TimedOut => Blame::Server,
        }
    }

    /// What to do, for a request with this number of `retries` left. If the request is `repeatable`, a server may
    /// process it twice. The end of a shared connection costs one retry, whatever the number of its requests. A server
    /// that closes idle connections soon is not overloaded.
    pub(super) fn next(&self, blame: Blame, repeatable: bool, retries: u32) -> Next {
        match self.end {
            _ if self.is_stale() => Next::Afresh,
            TryEnd::TimedOut | TryEnd::Unasked => Next::GiveUp,
            _ if retries == 0 => Next::GiveUp,
            TryEnd::Broken { .. } if self.reach != Reach::Unsent && !repeatable => Next::GiveUp,
            TryEnd::Broken { .. } | TryEnd::Refused { .. } | TryEnd::Unread => {
                let was_closed = self.is_pooled && self.reach == Reach::Sent;
                Next::Retry { is_free: blame == Blame::Connection || was_closed }
            }
        }
    }
}

/// Whether the request has the same effect if it is sent twice (RFC 9110, 9.2.2). Of the methods that other documents
/// define, these are the safe ones: QUERY (RFC 10008), and those of WebDAV, which the `http` crate does not know.
fn is_idempotent(method: &Method) -> bool {
    method.is_idempotent() || matches!(method.as_str(), "PROPFIND" | "REPORT" | "SEARCH")
}

/// The pause that the server asks for, at most a minute. `None` if it asks for none. A date in `retry-after` (RFC 9110,
/// 10.2.3) counts from the answer's own `date`, so no clocks are compared.
pub(super) fn asked_pause(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    if !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let after = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = match after.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that is too large for its type is a long pause too.
        true if !after.is_empty() => after.parse().map_or(LONGEST_PAUSE, Duration::from_secs),
        _ => {
            let date = |text| httpdate::parse_http_date(text).ok();
            let sent = date(headers.get(DATE)?.to_str().ok()?)?;
            date(after)?.duration_since(sent).ok()?
        }
    };
    Some(pause.min(LONGEST_PAUSE)).filter(|pause| !pause.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The broken exchange from which the rows differ.
    const BROKEN: FailedTry = FailedTry {
        end: TryEnd::Broken { alone: false },
        reach: Reach::Sent,
        upload: Upload::HandedOn,
        is_pooled: false,
        is_told: false,
        has_failed_here: false,
    };

    #[test]
    fn each_failed_try_is_somebodys_fault_and_has_a_next_step() {
        use Next::{Afresh, GiveUp, Retry};
        use Upload::{Awaited, Failed};
        const FREE: Next = Retry { is_free: true };
        const PAID: Next = Retry { is_free: false };
        let end = |end| FailedTry { end, ..BROKEN };
        let [reset, refused] =
            [TryEnd::Broken { alone: true }, TryEnd::Refused { alone: true }].map(end);
        let [gone, unread] = [TryEnd::Refused { alone: false }, TryEnd::Unread].map(end);
        let [late, unasked] = [TryEnd::TimedOut, TryEnd::Unasked].map(end);
        let heard = |failed| FailedTry { reach: Reach::Heard, ..failed };
        let unsent = |failed| FailedTry { reach: Reach::Unsent, ..failed };
        let pooled = |failed| FailedTry { is_pooled: true, ..failed };
        let told = |failed| FailedTry { is_told: true, ..failed };
        let body = |upload, failed| FailedTry { upload, ..failed };
        // Whose fault it is, the next step of a request that is repeatable and of one that is not, and whether the
        // connection ends.
        let rows = [
            ("it broke", BROKEN, Blame::Server, PAID, GiveUp, true),
            ("it broke in the head", heard(BROKEN), Blame::Server, PAID, GiveUp, true),
            ("before it was sent", unsent(BROKEN), Blame::Server, PAID, PAID, true),
            ("the stream alone broke", reset, Blame::Server, PAID, GiveUp, true),
            ("closed when used again", pooled(BROKEN), Blame::Server, FREE, GiveUp, true),
            ("closed before", pooled(unsent(BROKEN)), Blame::Nobody, Afresh, Afresh, false),
            ("it broke for others too", told(BROKEN), Blame::Connection, FREE, GiveUp, true),
            ("alone, after others", told(reset), Blame::Nobody, PAID, GiveUp, true),
            ("the stream was refused", refused, Blame::Nobody, PAID, PAID, true),
            ("refused, after others", told(refused), Blame::Nobody, PAID, PAID, true),
            ("the server goes away", gone, Blame::Nobody, PAID, PAID, true),
            ("as others were told", told(gone), Blame::Connection, FREE, FREE, true),
            ("the connection had an error", unread, Blame::Server, PAID, PAID, true),
            ("no answer in time", heard(late), Blame::Server, GiveUp, GiveUp, false),
            ("silence", late, Blame::Server, GiveUp, GiveUp, true),
            ("silence for others too", told(late), Blame::Connection, GiveUp, GiveUp, true),
            ("not the server's", unasked, Blame::Nobody, GiveUp, GiveUp, false),
            ("the client sends", body(Awaited, BROKEN), Blame::Nobody, PAID, GiveUp, true),
            ("late, the client sends", body(Awaited, late), Blame::Nobody, GiveUp, GiveUp, true),
            ("the client left", body(Failed, BROKEN), Blame::Client, PAID, GiveUp, false),
        ];
        for (name, failed, blame, repeatable, other, ends) in rows {
            assert_eq!(failed.blame(), blame, "{name}");
            assert_eq!(failed.next(blame, true, 1), repeatable, "{name}");
            assert_eq!(failed.next(blame, false, 1), other, "{name}, not repeatable");
            assert_eq!(failed.ends_connection(), ends, "{name}");
            let last = if matches!(other, Retry { .. }) { GiveUp } else { other };
            assert_eq!(failed.next(blame, false, 0), last, "{name}, the last try");
            let again = FailedTry { has_failed_here: true, ..failed };
            let expected = if blame == Blame::Server { Blame::Nobody } else { blame };
            assert_eq!(again.blame(), expected, "{name}, once more");
        }
    }

    #[test]
    fn at_most_a_tenth_is_sent_again() {
        let budget = RetryBudget::default();
        let mut retries = 0;
        for _ in 0..10_000 {
            budget.earn();
            retries += usize::from(budget.spend());
        }
        assert_eq!(retries, 10_000 / 10 + 10);
    }

    #[test]
    fn a_quiet_time_saves_up_a_hundred_retries() {
        let budget = RetryBudget::default();
        (0..100_000).for_each(|_| budget.earn());
        let spent = (0..1_000).filter(|_| budget.spend()).count();
        assert_eq!(spent, 100);
    }

    fn pause(status: u16, fields: &[(&'static str, &str)]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.insert(*name, value.parse().unwrap());
        }
        asked_pause(StatusCode::from_u16(status).unwrap(), &headers).map(|pause| pause.as_secs())
    }

    #[test]
    fn a_pause_is_asked_for_in_seconds_or_by_a_date() {
        assert_eq!(pause(503, &[("retry-after", "7")]), Some(7));
        assert_eq!(pause(429, &[("retry-after", " 7 ")]), Some(7));
        assert_eq!(pause(429, &[("retry-after", "3600")]), Some(60), "at most a minute");
        assert_eq!(pause(429, &[("retry-after", "99999999999999999999999")]), Some(60));
        for none in ["0", "", "-1", "soon", "1.5"] {
            assert_eq!(pause(429, &[("retry-after", none)]), None, "{none}");
        }
        assert_eq!(pause(200, &[("retry-after", "7")]), None);
        assert_eq!(pause(429, &[]), None);
        let sent = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        let until = ("retry-after", "Sun, 06 Nov 1994 08:49:57 GMT");
        assert_eq!(pause(503, &[sent, until]), Some(20));
        assert_eq!(pause(503, &[until]), None, "no clock to count from");
        let past = ("retry-after", "Sun, 06 Nov 1994 08:49:07 GMT");
        assert_eq!(pause(503, &[sent, past]), None);
    }
}
