//! The service of `decide.listen`. Other proxies call it and ask whether a request of theirs may go. It decides about
//! that request as `proxy` does about one of its own, and forwards nothing.
//!
//! Each kind of call is a [`Form`]. A form makes [`Question`]s of a call, and of what was decided the answer to the
//! call. In some forms a request stands in header fields of the call: `fields` reads these. In others requests stand in
//! the body: `check` and `envoy` read those. `requests` decides about them. `access` checks the token. `leases` keeps
//! what a request holds until somebody tells its end.

mod access;
mod check;
mod envoy;
mod fields;
mod form;
mod leases;
mod requests;

use std::borrow::Cow;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CACHE_CONTROL;
use http::{Response, StatusCode, request};
use tokio::time::timeout;
use uuid::Uuid;

use self::check::RequestEnd;
use self::form::{BadCall, Form};
use self::leases::Lease;
pub(crate) use self::leases::Leases;
use crate::answer::protocol::GrpcKind;
use crate::answer::refusal::Refusal;
use crate::answer::response::{JSON, NO_STORE, own};
use crate::exchange::body::{Answer, ResponseBody};
use crate::exchange::client::ClientConnection;
use crate::exchange::{Active, ClientLeft, Exchange, WorkerContext};
use crate::observe::metrics::DecisionKind;
use crate::throttle::{Hits, Quotas, Refused};
use crate::upstream::progress::BodyFault;
use crate::wire::upload::ClientBody;

/// The most bytes of a call's body.
const MOST: usize = 1024 * 1024;

/// One worker's service of `decide.listen`.
pub(crate) struct DecisionService {
    pub(crate) context: Rc<WorkerContext>,
    /// What requests hold that other proxies forward.
    leases: Arc<Leases>,
}

/// What is asked about a request.
#[derive(Debug, Default)]
struct Question {
    /// Why the request is to be refused before all limits. It is taken out for the answer.
    fault: Option<BadCall>,
    /// Who sent the request to the caller, if the caller says so here.
    ip: Option<IpAddr>,
    /// What the request takes, in place of what its limits say. With 0 it takes nothing.
    cost: Option<u64>,
    /// What this cost is.
    hits: Hits,
    /// The request's body, if the caller tells it.
    body: Vec<u8>,
    /// The indexes of the request's limits in the settings, in place of those of its route.
    limits: Option<Vec<u32>>,
}

/// The head of a request, and what is asked about the request.
type Asked = (request::Parts, Question);

/// What was decided about a request of a call.
struct DecidedRequest<'p> {
    decision: DecisionKind,
    quotas: Quotas<'p>,
    /// Why the request is refused; `None` where it may go.
    refused: Option<Cow<'static, str>>,
    /// If a limit rejects it, the rejection's ID and what it says in words.
    rejection: Option<(Uuid, String)>,
    /// The answer for its client.
    answer: Response<Bytes>,
    /// What the request holds, where somebody tells its end.
    lease: Option<Lease<'p>>,
}

impl DecisionService {
    /// How a call is filed that asks nothing.
    pub(crate) const UNKNOWN: &str = Form::Unknown.name();

    /// The service of this worker.
    pub(crate) fn new(context: Rc<WorkerContext>, leases: Arc<Leases>) -> Self {
        Self { context, leases }
    }

    /// Answers one call.
    ///
    /// # Errors
    /// If the caller has left before its answer.
    pub(crate) fn answer(
        &self,
        mut call: Exchange,
        client: &Rc<ClientConnection>,
    ) -> impl Future<Output = Result<Answer, ClientLeft>> {
        let form = Form::of(&mut call);
        // The record begins before the future is made, as that of a client's request.
        let mut record = self.context.begin(&mut call, client, Some(form.name()));
        async move {
            call.wait_for_room(client).await;
            let active = record.active.clone();
            // The requests that are asked about have their own records.
            record.is_silent = true;
            let (answer, closes) = match self.call(form, &mut call, &active, client).await {
                Ok(answer) => {
                    record.status = answer.status();
                    (answer, false)
                }
                Err(Refusal::ClientLeft) => return Err(ClientLeft),
                Err(refusal) => {
                    record.is_silent = !matches!(refusal, Refusal::Call(_) | Refusal::Body(_));
                    let answered = call.refuse(&refusal, &[], &mut record);
                    // By gRPC the answer has the status 200 also if the call cannot be answered.
                    record.status = refusal.meaning().status;
                    answered
                }
            };
            Ok(call.finish(answer, closes, record).await)
        }
    }

    /// Decides what a call asks.
    ///
    /// # Errors
    /// If it asks nothing, or the caller has left, or nobody decides.
    async fn call(
        &self,
        form: Form,
        call: &mut Exchange,
        active: &Rc<Active>,
        client: &Rc<ClientConnection>,
    ) -> Result<Answer, Refusal<'static>> {
        access::admit(form, &mut call.head, active.settings.decide.token.as_deref())?;
        let time_limit = active.settings.server.body_timeout;
        let body = match call.body.take_if(|_| form.has_body()) {
            Some(body) => read_body(body, time_limit).await?,
            None => Bytes::new(),
        };
        let answer = match form {
            Form::Settle => {
                let RequestEnd { id, status, used } = RequestEnd::read(&body)?;
                let permit = self.leases.take(&id).ok_or(BadCall::Ended)?;
                let WorkerContext { throttle, clock, .. } = &*self.context;
                permit.end(status, used, &throttle.store, clock.now()).await;
                own(StatusCode::NO_CONTENT, None, Bytes::new())
            }
            Form::Envoy => {
                let asked = envoy::questions(body, &active.settings)?;
                let decided = self.decide(form, asked, active, client).await?;
                // Then Envoy does what its configuration says.
                if decided.iter().any(DecidedRequest::is_failed) {
                    return Err(Refusal::Limits(Refused::StoreUnavailable));
                }
                let kind = Some(GrpcKind::Native.media_type());
                let answer = own(StatusCode::OK, kind, envoy::answer(&decided));
                return Ok(answer.map(ResponseBody::message));
            }
            Form::Check => {
                let mut decided = Vec::new();
                for one in check::questions(&body)? {
                    decided.extend(self.decide(form, vec![one], active, client).await?);
                }
                own(StatusCode::OK, Some(JSON), check::answer(decided, &body))
            }
            Form::AuthRequest | Form::ForwardAuth | Form::Unknown => {
                let asked = vec![fields::question(form, &mut call.head)?];
                let mut decided = self.decide(form, asked, active, client).await?;
                let mut answer = fields::answer(form, decided.remove(0));
                answer.headers_mut().insert(CACHE_CONTROL, NO_STORE);
                answer
            }
        };
        Ok(answer.map(ResponseBody::whole))
    }
}

impl DecidedRequest<'_> {
    /// Whether nobody has decided.
    fn is_failed(&self) -> bool {
        self.refused.is_some() && self.decision == DecisionKind::Error
    }
}

/// Reads the whole body of a call, within `time_limit`.
async fn read_body(mut body: ClientBody, time_limit: Duration) -> Result<Bytes, Refusal<'static>> {
    let fault = match timeout(time_limit, body.read_ahead(MOST)).await {
        Ok(Ok(Some(whole))) => return Ok(Bytes::copy_from_slice(whole)),
        Ok(Ok(None)) => BodyFault::TooLarge,
        Ok(Err(error)) => BodyFault::of(&*error),
        Err(_) => {
            body.give_up();
            BodyFault::Stalled
        }
    };
    Err(Refusal::Body(fault))
}
