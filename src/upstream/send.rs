//! Sends a request, to a second server if the first one fails, and opens connections for that.

use std::cell::Cell;
use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::body::RequestBody;
use super::connection::{Connection, NoHead};
use super::error::in_time;
use super::health::{Event, Health, LONGEST_PAUSE};
use super::overload::rule::SentEnd;
use super::retry::{Blame, FailedTry, Next, Reach, Tries, Upload, asked_pause};
use super::server::{InFlight, Server};
use super::{
    ConnectionLease, Purpose, RequestPermit, Sending, TIDEGATE_OVERLOAD, Unanswered, Upstream,
    UpstreamError, UpstreamResponse,
};

impl Upstream {
    /// Sends a request (in origin form) and waits for the response's head. `asked` gets the server before it
    /// answers, because this future may be dropped meanwhile. For the same reason `is_sent` is set as soon as a server may
    /// have got the request's head.
    ///
    /// If a server cannot be connected to, the next one is tried. If a pooled connection turns out to be
    /// closed, another connection is used. A request that failed after it was sent may have had an effect.
    /// It is sent again only if the server has said that it did not process the request, or if its method is
    /// idempotent and its body empty. Bodies are kept for a second try over HTTP/2 alone: over HTTP/1.1 a
    /// server cannot say that it did not process a request.
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
        let response_timeout = sending.response_timeout.unwrap_or(self.spec.response_timeout);
        let mut tries = Tries::new(&request, sending, self.spec.retries);
        self.budget.earn();
        async move {
            let note = |server: &Server| {
                if let Some(asked) = asked {
                    asked.set(Some(server.state.url().clone()));
                }
            };
            loop {
                let found = match self.pooled(&mut tries) {
                    Ok((index, Some(connection))) => Ok((index, connection)),
                    // Boxed: most requests find a pooled connection, and their future stays small.
                    Ok((index, None)) => {
                        note(&self.servers[index]);
                        Box::pin(self.connect(index, &tries)).await
                    }
                    Err(error) => Err(error),
                };
                let (index, connection) = match found {
                    Ok(found) => found,
                    Err(error) => {
                        if let (Some(permit), UpstreamError::Server { .. }) = (&mut permit, &error)
                        {
                            permit.unreached();
                        }
                        return Err(Unanswered { error, unsent: Some(request.into_body()) });
                    }
                };
                let server = &self.servers[index];
                note(server);
                let is_trial = tries.trial.take() == Some(index);
                let (client, was_up) = (tries.sending.client, server.state.is_up());
                let in_flight = InFlight::at(server, client, permit.take(), is_trial);
                let mut lease = ConnectionLease::begin(connection, request.body().end(), in_flight);
                let may_repeat = tries.can_repeat(&lease.connection);
                if may_repeat {
                    lease.body_end.keep();
                }
                if let Some(permit) = &mut lease.in_flight.permit {
                    permit.send();
                }
                let was_sent = mem::replace(is_sent, true);
                let (connection, server) = (&mut lease.connection, &server.address);
                match connection.send(request, may_repeat, server, response_timeout).await {
                    Ok(response) => {
                        drop(lease.body_end.take_kept());
                        let is_refusal = self.note_answer(&self.servers[index], &response, was_up);
                        if let Some(permit) = &mut lease.in_flight.permit {
                            permit.answered(match response.status().as_u16() {
                                _ if is_refusal => SentEnd::Left,
                                502..=504 => SentEnd::Failed,
                                _ => SentEnd::Answered,
                            });
                        }
                        let Sending { wanted, open, .. } = tries.sending;
                        lease.in_flight.is_open_trial = false;
                        lease.in_flight.is_alone = wanted == Purpose::Own;
                        lease._open = open;
                        return Ok(UpstreamResponse { response, lease });
                    }
                    Err(no_head) => {
                        *is_sent = was_sent || no_head.unsent.is_none();
                        permit = lease.in_flight.permit.take();
                        let held = permit.as_mut();
                        request = self.try_again(&mut tries, index, lease, no_head, held)?;
                    }
                }
            }
        }
    }

    /// Chooses a server and takes a pooled connection to it, if there is one.
    fn pooled(&self, tries: &mut Tries) -> Result<(usize, Option<Connection>), UpstreamError> {
        let is_first = tries.failed.is_empty();
        if is_first && !self.state.are_sound() {
            // A request that is not repeatable tries a server only if no other request has done so for long.
            let overdue = if tries.is_repeatable { Duration::ZERO } else { LONGEST_PAUSE };
            tries.trial = self.state.due_for(tries.sending.client, overdue);
        }
        let index = match tries.trial {
            Some(index) => index,
            None => self.choose(tries)?,
        };
        let take = || {
            let server = &self.servers[index];
            server.pool.take(server.wanted(tries.sending.wanted), tries.needs_life())
        };
        Ok((index, is_first.then(take).flatten()))
    }

    /// A connection for a request. For its first try this may be a shared one that another request has opened
    /// meanwhile. After a failure it is a new one that no other request shares: perhaps the answer to this request
    /// broke the last one.
    async fn open(&self, server: &Server, tries: &Tries) -> io::Result<Connection> {
        let (wanted, is_first) = (server.wanted(tries.sending.wanted), tries.failed.is_empty());
        let _alone = match is_first && server.shares(wanted) {
            true => Some(server.pool.connecting.lock().await),
            false => None,
        };
        if is_first && let Some(connection) = server.pool.take(wanted, tries.needs_life()) {
            return Ok(connection);
        }
        let mut connection = self.connector.open(&server.address, wanted).await?;
        self.state.note(&server.state, Event::Connected, &"");
        match &mut connection {
            Connection::Http1(connection) => connection.made_for = wanted,
            Connection::Http2(shared) if is_first && wanted == Purpose::Any => {
                server.pool.share(shared.clone());
            }
            Connection::Http2(_) => {}
        }
        Ok(connection)
    }

    /// A connection to the server at this index, or to the next server that can be reached, and its index. It is none
    /// of the servers at which the request has failed.
    pub(super) async fn connect(
        &self,
        mut index: usize,
        tries: &Tries,
    ) -> Result<(usize, Connection), UpstreamError> {
        let mut tried: SmallVec<[usize; 8]> = SmallVec::from_slice(&tries.failed);
        loop {
            let server = &self.servers[index];
            let connecting = self.open(server, tries);
            let failure = match in_time(self.spec.connect_timeout, connecting).await {
                Ok(connection) => return Ok((index, connection)),
                Err(failure) => failure,
            };
            let is_this_machines = failure.is_this_machines();
            server.state.failed(failure.kind());
            let error = server.state.error(failure);
            if !is_this_machines {
                self.state.note(&server.state, Event::Refused, &error);
            }
            tried.push(index);
            match self.chooser.choose(&self.servers, &tried, tries.sending.affinity) {
                Some(next) => index = next,
                None => return Err(error),
            }
        }
    }

    /// The index of the server for a request. It is one at which the request has not failed, unless there is none.
    fn choose(&self, tries: &Tries) -> Result<usize, UpstreamError> {
        let affinity = tries.sending.affinity;
        let choose = |tried: &[usize]| self.chooser.choose(&self.servers, tried, affinity);
        choose(&tries.failed).or_else(|| choose(&[])).ok_or_else(|| self.all_paused())
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

    /// Notes what a server's answer says about the server. Returns whether it is a refusal of another tidegate: two in a
    /// row must not count it as the slowness of the API behind both.
    fn note_answer(&self, server: &Server, response: &Response<Incoming>, was_up: bool) -> bool {
        if !was_up {
            self.state.note(&server.state, Event::Recovered, &"");
        }
        if response.status().is_server_error() {
            server.state.annotate(|notes| notes.answers_5xx += 1);
        }
        // A gRPC client gets this answer as a 200 without a body.
        let may_refuse = response.status() == StatusCode::SERVICE_UNAVAILABLE
            || response.status() == StatusCode::OK && response.body().is_end_stream();
        let is_refusal = may_refuse && response.headers().contains_key(TIDEGATE_OVERLOAD);
        if self.spec.respect_retry_after
            && !is_refusal
            && let Some(pause) = asked_pause(response.status(), response.headers())
        {
            let reason = format!("it asked for a pause of {} s (retry-after)", pause.as_secs());
            self.state.note(&server.state, Event::Paused(pause), &reason);
        }
        is_refusal
    }

    /// The whole request again, for another try.
    ///
    /// # Errors
    /// If the request must not be sent again.
    fn try_again(
        &self,
        tries: &mut Tries,
        index: usize,
        mut lease: ConnectionLease,
        NoHead { failure, unsent }: NoHead,
        permit: Option<&mut RequestPermit>,
    ) -> Result<Request<RequestBody>, Unanswered> {
        let (server, is_unsent) = (&self.servers[index], unsent.is_some());
        let mut failed = FailedTry {
            end: failure.end(),
            reach: match lease.connection.has_heard() {
                _ if is_unsent => Reach::Unsent,
                true => Reach::Heard,
                false => Reach::Sent,
            },
            upload: match &lease.body_end {
                end if end.fault().is_some() => Upload::Failed,
                end if end.awaits_client() => Upload::Awaited,
                _ => Upload::HandedOn,
            },
            is_pooled: lease.connection.is_pooled(),
            is_told: false,
            has_failed_here: tries.failed.contains(&index),
        };
        failed.is_told = failed.ends_connection() && !lease.connection.breaks();
        let blame = failed.blame();
        let next = failed.next(blame, tries.is_repeatable, tries.retries);
        lease.in_flight.is_open_trial &= blame == Blame::Client || next == Next::Afresh;
        let has_failed = next != Next::Afresh && blame != Blame::Client;
        if has_failed {
            server.state.failed(failure.kind());
        }
        if let Some(permit) = permit {
            permit.end(if has_failed { SentEnd::Failed } else { SentEnd::Left });
        }
        let error = server.state.error(failure);
        if blame == Blame::Server {
            self.state.broke_off(&server.state, lease.in_flight.exchange, &error);
        }
        let again = unsent.map(|unsent| *unsent).or_else(|| {
            let body = match tries.is_whole {
                true => RequestBody::empty(),
                false => RequestBody::again(lease.body_end.take_kept()?),
            };
            lease.connection.request_again(body)
        });
        let may_go = match next {
            Next::GiveUp => false,
            Next::Retry { is_free: false } => again.is_some() && self.budget.spend(),
            Next::Retry { is_free: true } | Next::Afresh => true,
        };
        let request = match again {
            Some(request) if may_go => request,
            again => {
                let unsent = again.filter(|_| is_unsent).map(Request::into_body);
                return Err(Unanswered { error, unsent });
            }
        };
        if let Next::Retry { .. } = next {
            tries.failed.push(index);
            server.state.annotate(|notes| notes.retries += 1);
            tries.retries -= 1;
        }
        Ok(request)
    }
}
