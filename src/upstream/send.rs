//! Sends a request, to a second server if the first one fails.

use std::cell::Cell;
use std::mem;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::balance::Affinity;
use super::body::RequestBody;
use super::connection::{Connection, NoHead};
use super::error::ServerFailure;
use super::health::{ClientId, Event, ExchangeBegin, Health};
use super::pool::ShownProtocol;
use super::progress::BodyEnd;
use super::retry::{asked_pause, is_idempotent};
use super::server::{InFlight, Server};
use super::{
    ConnectionLease, Purpose, RequestPermit, Sending, Unanswered, Upstream, UpstreamError,
    UpstreamResponse,
};
use crate::plan::Scheme;

/// The results of a request's tries, and how it may be tried again.
pub(super) struct Tries {
    /// The request has no body.
    is_whole: bool,
    /// The request may be sent again though a server may have processed it.
    is_repeatable: bool,
    /// Retries that are left.
    retries: u32,
    pub(super) wanted: Purpose,
    /// The indices of the servers at which the request has failed.
    pub(super) failed: Vec<usize>,
    client: ClientId,
    /// The index of the server that this request is to try, which was set aside.
    trial: Option<usize>,
}

/// A try that brought no answer.
struct FailedTry {
    index: usize,
    connection: Connection,
    exchange: ExchangeBegin,
    body_end: BodyEnd,
}

impl Upstream {
    /// Sends a request (in origin form) and waits for the response's head. `asked` gets the server before it
    /// answers, because this future may be dropped meanwhile. For the same reason `is_sent` is set as soon as a server may
    /// have got the request's head.
    ///
    /// A connection that belongs to the client comes first, whatever `balance` says: the server takes its
    /// requests for those of this client.
    ///
    /// If a server cannot be connected to, the next one is tried. If a pooled connection turns out to be
    /// closed, another connection is used. A request that failed after it was sent may have had an effect.
    /// It is sent again only if the server has said that it did not process the request, or if its method is
    /// idempotent and its body empty. Bodies are kept for a second try over HTTP/2 alone: over HTTP/1.1 a
    /// server cannot say that it did not process a request. A server that demands HTTP/1.1 gets the request by
    /// HTTP/1.1, and this is no retry.
    ///
    /// # Errors
    /// If no server answered in time with a valid HTTP head, or the request was sent to no server.
    // This is no `async fn`: the future would hold its arguments twice, and a request is large. For the same reason it
    // is not cut into several futures.
    pub(crate) fn send(
        &self,
        mut request: Request<RequestBody>,
        sending: Sending,
        mut permit: Option<RequestPermit>,
        asked: Option<&Cell<Option<Arc<str>>>>,
        is_sent: &mut bool,
    ) -> impl Future<Output = Result<UpstreamResponse, Unanswered>> {
        let Sending { client, response_timeout, affinity, wanted, private, open } = sending;
        let response_timeout = response_timeout.unwrap_or(self.spec.response_timeout);
        let mut tries = Tries::new(&request, wanted, self.spec.retries, client);
        self.budget.earn();
        async move {
            let note = |server: &Server| {
                if let Some(asked) = asked {
                    asked.set(Some(server.state.url().clone()));
                }
            };
            loop {
                let mut own = None;
                if let Some(private) = &private
                    && tries.failed.is_empty()
                    && tries.wanted != Purpose::Http2
                {
                    let taking = private.take(&self.servers, self.spec.connect_timeout);
                    own = Box::pin(taking).await;
                }
                let is_own = own.is_some();
                let found = match self.pooled(own, &mut tries, affinity) {
                    Ok((index, Some(connection))) => Ok((index, connection)),
                    // Boxed: most requests find a pooled connection, and their future stays small.
                    Ok((index, None)) => {
                        note(&self.servers[index]);
                        let connecting = self.connect(index, &tries, affinity);
                        Box::pin(connecting).await
                    }
                    Err(error) => Err(error),
                };
                let (index, mut connection) = match found {
                    Ok(found) => found,
                    Err(error) => {
                        return Err(Unanswered { error, unsent: Some(request.into_body()) });
                    }
                };
                let server = &self.servers[index];
                note(server);
                let is_trial = tries.trial.take() == Some(index);
                let mut in_flight = InFlight::at(server, client, permit.take(), is_trial);
                let (body_end, was_up) = (request.body().end(), server.state.is_up());
                let may_repeat = tries.can_repeat(&connection);
                if may_repeat {
                    body_end.keep();
                }
                let was_sent = mem::replace(is_sent, true);
                match connection.send(request, may_repeat, &server.address, response_timeout).await
                {
                    Ok(response) => {
                        drop(body_end.take_kept());
                        self.note_answer(server, &response, was_up);
                        in_flight.is_open_trial = false;
                        in_flight.is_alone = tries.wanted == Purpose::Own;
                        let owner = private.filter(|_| is_own);
                        let lease =
                            ConnectionLease { connection, body_end, in_flight, owner, _open: open };
                        return Ok(UpstreamResponse { response, lease });
                    }
                    Err(no_head) => {
                        *is_sent = was_sent || no_head.unsent.is_none();
                        let exchange = in_flight.exchange;
                        in_flight.is_open_trial &= body_end.fault().is_some();
                        permit = in_flight.into_permit();
                        let failed = FailedTry { index, connection, exchange, body_end };
                        request = self.try_again(&mut tries, failed, no_head)?;
                    }
                }
            }
        }
    }

    /// Chooses a server and takes a pooled connection to it, if there is one. The client's `own` connection comes
    /// first.
    fn pooled(
        &self,
        own: Option<(usize, Connection)>,
        tries: &mut Tries,
        affinity: Option<Affinity>,
    ) -> Result<(usize, Option<Connection>), UpstreamError> {
        let is_first = tries.failed.is_empty();
        let due = || self.try_due_servers(tries.is_repeatable, tries.client);
        let trial = is_first.then(due).flatten();
        if let Some((index, connection)) = own {
            return Ok((index, Some(connection)));
        }
        tries.trial = trial;
        let index = match trial {
            Some(index) => index,
            None => self.choose(&tries.failed, affinity)?,
        };
        let take = || self.servers[index].take(tries.wanted, tries.needs_life());
        Ok((index, is_first.then(take).flatten()))
    }

    /// The index of the server for a request that has `failed` at these servers. It is another server, unless the
    /// request has failed at all of them.
    fn choose(&self, failed: &[usize], affinity: Option<Affinity>) -> Result<usize, UpstreamError> {
        let choose = |tried: &[usize]| self.chooser.choose(&self.servers, tried, affinity);
        choose(failed).or_else(|| choose(&[])).ok_or_else(|| self.all_paused())
    }

    /// No server may be asked, since each has asked for a pause.
    fn all_paused(&self) -> UpstreamError {
        let pauses = self.servers.iter().filter_map(|server| match server.state.health() {
            Health::Paused(until) => Some(until),
            _ => None,
        });
        // If no pause is left, the last one has ended just now.
        let until = pauses.min().unwrap_or_else(Instant::now);
        UpstreamError::Paused(until.saturating_duration_since(Instant::now()))
    }

    /// Notes what a server's answer says about the server.
    fn note_answer(&self, server: &Server, response: &Response<Incoming>, was_up: bool) {
        if !was_up {
            self.state.note(&server.state, Event::Recovered, &"");
        }
        if response.status().is_server_error() {
            server.state.annotate(|notes| notes.answers_5xx += 1);
        }
        if self.spec.respect_retry_after
            && let Some(pause) = asked_pause(response.status(), response.headers())
        {
            let reason = format!("it asked for a pause of {} s (retry-after)", pause.as_secs());
            self.state.note(&server.state, Event::Paused(pause), &reason);
        }
    }

    /// The whole request again, for another try.
    ///
    /// # Errors
    /// If the request must not be sent again.
    fn try_again(
        &self,
        tries: &mut Tries,
        failed: FailedTry,
        NoHead { failure, unsent }: NoHead,
    ) -> Result<Request<RequestBody>, Unanswered> {
        let FailedTry { index, connection, exchange, body_end } = failed;
        let server = &self.servers[index];
        let changes = matches!(failure, ServerFailure::Http1Required)
            && matches!(tries.wanted, Purpose::Any | Purpose::Http2)
            && server.address.scheme == Scheme::Https;
        if changes {
            server.pool.note(Some(ShownProtocol::Http1Required));
        }
        let is_unsent = unsent.is_some();
        if connection.is_pooled()
            && let Some(unsent) = unsent
        {
            return Ok(*unsent);
        }
        let (may_pass, is_unprocessed) = (failure.may_pass(), failure.is_unprocessed());
        // Perhaps only this connection is dead, because a firewall between has forgotten it.
        let is_silent =
            matches!(failure, ServerFailure::ResponseTimeout(_)) && !connection.has_heard();
        let is_clients_fault = body_end.fault().is_some();
        let is_known = (may_pass || is_silent) && !is_clients_fault && !connection.breaks();
        let is_bystander = is_known && !failure.is_of_stream();
        // A request counts once against a server, even if it breaks each connection on which it is sent. While the
        // client has to send more, the server may end the exchange.
        let is_servers_fault = failure.is_servers_fault()
            && !(is_clients_fault || is_known || tries.failed.contains(&index))
            && !body_end.awaits_client();
        if !is_clients_fault {
            server.state.failed(failure.kind());
        }
        let error = server.state.error(failure);
        if is_servers_fault {
            self.state.broke_off(&server.state, exchange, &error);
        }
        let body = match tries.is_whole {
            true => Some(RequestBody::empty()),
            false => body_end.take_kept().map(RequestBody::again),
        };
        let body = body.filter(|_| tries.is_repeatable || is_unprocessed);
        let again = || connection.request_again(body?);
        let next = unsent.map(|unsent| *unsent).or_else(again);
        // A server that closes idle connections soon is not overloaded.
        let is_stale = connection.is_pooled() && !connection.has_heard();
        // The end of a shared connection costs one retry, whatever the number of its requests.
        let may_retry = || {
            let is_free = is_bystander || is_stale;
            tries.retries > 0 && may_pass && (is_free || self.budget.spend())
        };
        let request = match next {
            Some(next) if changes || may_retry() => next,
            next => {
                let unsent = next.filter(|_| is_unsent).map(Request::into_body);
                return Err(Unanswered { error, unsent });
            }
        };
        if changes {
            tries.wanted = Purpose::Http1;
        } else {
            tries.failed.push(index);
            server.state.annotate(|notes| notes.retries += 1);
            tries.retries -= 1;
        }
        Ok(request)
    }
}

impl Tries {
    fn new(
        request: &Request<RequestBody>,
        wanted: Purpose,
        retries: u32,
        client: ClientId,
    ) -> Self {
        let is_whole = request.body().is_empty();
        let is_repeatable = is_whole && is_idempotent(request.method());
        let (failed, trial) = (Vec::new(), None);
        Self { is_whole, is_repeatable, retries, wanted, failed, client, trial }
    }

    /// Whether the request is lost if it meets a dead connection. It then goes on one that has shown life lately.
    pub(super) fn needs_life(&self) -> bool {
        !self.is_repeatable || self.retries == 0
    }

    /// Whether a request that fails on this connection may be sent again.
    fn can_repeat(&self, connection: &Connection) -> bool {
        matches!(connection, Connection::Http2(_)) || (self.is_whole && self.retries > 0)
    }
}
