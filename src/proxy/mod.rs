//! The way of one request that is forwarded. `downstream` calls [`Proxy::answer`] for each request of a client.
//!
//! The request passes these steps in order: its head is read (`reading`), the limits decide (`throttle`), the upstream
//! answers (`forward`). A step that fails returns a [`Refusal`], which `answer` turns into a response.

mod forward;
mod headers;

use std::cell::LazyCell;
use std::mem;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::{HeaderMap, StatusCode};
use http_body::Body as _;
use tokio::time::{Instant, timeout};

use self::forward::Way;
use crate::answer::cors::allow_request;
use crate::answer::protocol::Protocol;
use crate::answer::refusal::Refusal;
use crate::answer::{grpc, response};
use crate::exchange::body::{Answer, ResponseBody};
use crate::exchange::client::ClientConnection;
use crate::exchange::record::{RequestRecord, traced};
use crate::exchange::{Active, ClientLeft, Exchange, WorkerContext};
use crate::observe::metrics::DecisionKind;
use crate::reading::{self, RequestHead, RequestReading, Seen, Sender, TIDEGATE_OVER, TargetParts};
use crate::request::key::{BodyFields, BodyKind, MOST_OF_BODY, Token, View};
use crate::request::network::client_network;
use crate::settings::{Action, RouteOptions, Settings};
use crate::throttle::{Admission, LimitedRequest, Quotas};
use crate::upstream::progress::BodyFault;
use crate::wire::upload::ClientBody;

/// One worker's service of `server.listen`: it forwards requests.
pub(crate) struct Proxy {
    pub(crate) context: Rc<WorkerContext>,
}

impl Proxy {
    /// The proxy of this worker.
    pub(crate) fn new(context: Rc<WorkerContext>) -> Self {
        Self { context }
    }

    /// Answers one request of a client's connection.
    ///
    /// # Errors
    /// If the client has left before its answer.
    // The request is taken apart before the future is made. Inside, the future would hold the request twice.
    pub(crate) fn answer(
        &self,
        mut exchange: Exchange,
        client: &Rc<ClientConnection>,
    ) -> impl Future<Output = Result<Answer, ClientLeft>> {
        // The record begins before the future is made. hyper drops the future unpolled if the client has
        // closed after the request, and the request must still be counted.
        let mut record = self.context.begin(&mut exchange, client, None);
        async move {
            exchange.wait_for_room(client).await;
            let active = record.active.clone();
            let (time_limit, mut quotas) = (time_limit(&exchange), Quotas::new());
            let outcome = {
                let passing = self.pass(&active, client, &mut exchange, &mut record, &mut quotas);
                let mut passing = pin!(passing);
                match time_limit {
                    None => passing.await,
                    Some(time_limit) => {
                        let outcome = timeout(time_limit, passing.as_mut()).await;
                        outcome.unwrap_or(Err(Refusal::Deadline))
                    }
                }
            };
            let (answer, closes) = match outcome {
                Ok(answer) => {
                    record.status = answer.status();
                    (answer, false)
                }
                // The record ends here, and counts and logs the request with the status 499.
                Err(Refusal::ClientLeft) => return Err(ClientLeft),
                Err(refusal) => exchange.refuse(&refusal, &quotas, &mut record),
            };
            drop(quotas);
            Ok(exchange.finish(answer, closes, record).await)
        }
    }

    /// Takes a request through all steps: its head, limits, upstream.
    async fn pass<'p>(
        &self,
        active: &'p Active,
        client: &ClientConnection,
        exchange: &mut Exchange,
        record: &mut RequestRecord,
        quotas: &mut Quotas<'p>,
    ) -> Result<Answer, Refusal<'p>> {
        let (settings, head) = (&*active.settings, &mut exchange.head);
        let uri = mem::take(&mut head.uri);
        let came = RequestHead {
            method: &head.method,
            target: TargetParts::from(&uri),
            version: head.version,
            headers: &mut head.headers,
            seen: exchange.seen,
            sender: Sender::Peer(client.peer.address),
            goes_as_it_came: false,
        };
        let reading =
            reading::read(settings, came).map_err(|unreadable| record.unread(unreadable))?;
        record.read(&reading);
        let (route, began) = (reading.route, exchange.began);
        let options = route.options();
        let body = match options.body_fields.is_empty() {
            true => BodyFields::default(),
            // Boxed, because other requests need no room for this future.
            false => {
                Box::pin(read_fields(options, &head.headers, &mut exchange.body, settings)).await?
            }
        };
        let client_address = reading.client.address;
        let token = LazyCell::new(|| {
            let clock = &self.context.clock;
            let client = client_network(client_address, settings.server.prefixes);
            active.tokens.read(Some(client), &head.headers, clock.wall().at(clock.at(began)))
        });
        let view = View {
            cert: client.cert.as_deref(),
            token: Token(&token),
            body: Some(&body),
            id: record.request_id.as_ref().and_then(|id| id.to_str().ok()),
            ..reading.view(&head.method, &head.headers)
        };
        // If the client leaves before the limits have decided, the request counts as held.
        record.decision = DecisionKind::Delayed;
        let request = LimitedRequest { settings, view: &view, now: self.context.clock.at(began) };
        let traced = traced(&mut record.details);
        let admitted = self.context.throttle.admit(request, &route.limits, quotas, traced).await;
        record.decision = DecisionKind::default();
        let over;
        Admission { permit: record.permit, decision: record.decision, over } = admitted?;
        let mut left = None;
        let (affinity, share) = match &route.action {
            Action::Forward { upstream, .. } => {
                let upstream = active.upstream(*upstream);
                let share = forward::share(upstream, &view, settings.log.keys);
                (forward::affinity(upstream, &view), share)
            }
            Action::Usage { limits } if !reading.is_own_preflight => {
                let asked = LimitedRequest { now: self.context.clock.now(), ..request };
                let told = Box::pin(self.context.throttle.left(asked, limits, quotas)).await?;
                left = serde_json::to_vec(&told).ok().map(Vec::into_boxed_slice);
                (None, None)
            }
            Action::Usage { .. } | Action::Respond { .. } | Action::Decide => (None, None),
        };
        let RequestReading { client: address, path, found, is_own_preflight, .. } = reading;
        // The limits come before this error: a client that searches for routes is counted too.
        let found = found?;
        let conditions = settings.table.conditions(found);
        // A fixed answer that takes `OPTIONS` answers preflights as well.
        let says_nothing_else = is_own_preflight
            && !matches!(&route.action, Action::Respond { status, .. }
                if status.is_success() && conditions.allow_method(&Method::OPTIONS));
        let mut answer = match &route.action {
            Action::Respond { .. } | Action::Usage { .. } if says_nothing_else => {
                response::own(StatusCode::NO_CONTENT, None, Bytes::new()).map(ResponseBody::whole)
            }
            // Until a restart, requests come here even if the file has no `server.listen` any more.
            Action::Decide => return Err(Refusal::NotFound),
            Action::Respond { status, body } => {
                let kind = (!body.is_empty()).then_some(response::PLAIN_TEXT);
                response::own(*status, kind, Bytes::clone(body)).map(ResponseBody::whole)
            }
            Action::Usage { .. } => {
                let body = left.map(Bytes::from).unwrap_or_default();
                response::own(StatusCode::OK, Some(response::JSON), body).map(ResponseBody::whole)
            }
            Action::Forward { upstream, rewrite } => {
                let target = forward::target(&uri, &path, rewrite.as_deref())?.unwrap_or(uri);
                let upstream = active.upstream(*upstream);
                if let Some(over) = over {
                    exchange.head.headers.insert(&TIDEGATE_OVER, over);
                }
                let mut sent = Instant::now();
                let way = Way {
                    settings,
                    upstream,
                    route,
                    address: &address,
                    target,
                    affinity,
                    share,
                    sent: &mut sent,
                };
                let answer = forward::send(exchange, client, record, way).await?;
                record.answered(sent, answer.status());
                answer
            }
        };
        record.permit.answered(answer.status(), answer.headers());
        // The last changes to the answer of a request that the limits let pass.
        let (answers, headers) = (&active.answers, answer.headers_mut());
        let ours = answers.write_quotas(headers, quotas);
        if let Some(changes) = &options.response {
            changes.apply(headers);
        }
        match &route.action {
            Action::Forward { .. } => answers.expose(headers, ours),
            _ => answers.open(headers, record.origin()),
        }
        if is_own_preflight {
            allow_request(headers, &exchange.head.headers, &conditions.methods);
        }
        if let Some(rate) = options.response_rate {
            answer.body_mut().pace(rate);
        }
        Ok(answer)
    }
}

/// How long a client of gRPC waits for its answer.
fn time_limit(exchange: &Exchange) -> Option<Duration> {
    match exchange.protocol {
        Protocol::Grpc(_) if exchange.seen.has(Seen::GRPC_TIMEOUT) => {
            grpc::time_limit(&exchange.head.headers)
        }
        Protocol::Grpc(_) | Protocol::Http(_) => None,
    }
}

/// Reads the fields of a request's body. The body goes on as it came.
///
/// # Errors
/// If the body does not come in time and a limit that enforces waits for it, or if it breaks off.
async fn read_fields<'p>(
    options: &'p RouteOptions,
    headers: &HeaderMap,
    body: &mut Option<ClientBody>,
    settings: &Settings,
) -> Result<BodyFields<'p>, Refusal<'static>> {
    let is_short = |body: &mut ClientBody| body.size_hint().lower() <= MOST_OF_BODY as u64;
    let read = BodyKind::of(headers).and_then(|kind| Some((kind, body.take_if(is_short)?)));
    let Some((kind, mut came)) = read else { return Ok(BodyFields::default()) };
    let fields = match timeout(settings.server.body_timeout, came.read_ahead(MOST_OF_BODY)).await {
        Ok(read) => read
            .map_err(|error| forward::faulty(BodyFault::of(&*error)))?
            .map(|whole| BodyFields::read(&options.body_fields, kind, whole)),
        Err(_) if !options.awaits_body => None,
        Err(_) => {
            came.give_up();
            return Err(Refusal::Body(BodyFault::Stalled));
        }
    };
    *body = Some(came);
    Ok(fields.unwrap_or_default())
}
