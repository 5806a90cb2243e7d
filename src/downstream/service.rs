//! The service of a port: what answers its requests. A panic in a request is caught here.

use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;

use futures_util::future::{Either, FutureExt as _, ready};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::answer::protocol::{Protocol, plain, protocol};
use crate::answer::refusal::{HeadFault, Refusal};
use crate::answer::response;
use crate::decide::DecisionService;
use crate::exchange::body::{Answer, ResponseBody, withhold_body};
use crate::exchange::client::ClientConnection;
use crate::exchange::{ClientLeft, Exchange, WorkerContext, record};
use crate::proxy::Proxy;
use crate::reading::Seen;

/// What answers the requests of a port.
#[derive(Clone)]
pub(crate) enum Service {
    /// Clients' requests are forwarded.
    Proxy(Rc<Proxy>),
    /// Other proxies ask for decisions.
    Decide(Rc<DecisionService>),
}

impl Service {
    /// What the services of the worker share.
    pub(crate) fn context(&self) -> &WorkerContext {
        match self {
            Self::Proxy(proxy) => &proxy.context,
            Self::Decide(decider) => &decider.context,
        }
    }

    /// Answers one request of a client's connection. A panic ends this request alone, with the status 500.
    ///
    /// # Errors
    /// If the client has left before its answer. Then nothing is to be written to the connection.
    pub(crate) fn handle(
        &self,
        request: Request<Incoming>,
        client: &Rc<ClientConnection>,
    ) -> impl Future<Output = Result<Answer, ClientLeft>> {
        let exchange = Exchange::of(request, client);
        let (version, is_head) = (exchange.head.version, exchange.head.method == Method::HEAD);
        let protocol = match self {
            Self::Proxy(_) => exchange.protocol,
            Self::Decide(_) => plain(&exchange.head.headers, exchange.seen),
        };
        let answering = AssertUnwindSafe(|| match self {
            Self::Proxy(proxy) => Either::Left(proxy.answer(exchange, client)),
            // Boxed: a client's request needs no room for a call.
            Self::Decide(decider) => Either::Right(Box::pin(decider.answer(exchange, client))),
        });
        let answering = match panic::catch_unwind(answering) {
            Ok(answering) => AssertUnwindSafe(answering).catch_unwind().left_future(),
            Err(panicked) => ready(Err(panicked)).right_future(),
        };
        answering.map(move |answered| {
            answered.unwrap_or_else(|_| {
                let method = if is_head { &Method::HEAD } else { &Method::GET };
                let origin = client.origin_of_panic.take();
                let mut answer = self.own(&Refusal::Panic, protocol, method, origin.as_deref());
                if !client.phase.is_multiplexed() {
                    client.phase.lingers.set(true);
                    response::close(&mut answer, version);
                }
                Ok(answer)
            })
        })
    }

    /// Counts and logs a malformed request, which hyper has answered by itself.
    pub(super) fn malformed(&self, client: &ClientConnection, status: StatusCode) {
        let via = matches!(self, Self::Decide(_)).then_some(DecisionService::UNKNOWN);
        record::malformed(&self.context().active(), client, via, status);
    }

    /// Answers, counts and logs a request that hyper has let pass in spite of its head.
    pub(super) fn refuse(
        &self,
        request: &Request<Incoming>,
        client: &ClientConnection,
        fault: HeadFault,
    ) -> Answer {
        let (method, headers) = (request.method(), request.headers());
        let cors = &self.context().active().settings.cors;
        let origin = cors.as_ref().and_then(|cors| cors.granted(headers));
        let protocol = self.protocol(method, headers);
        let answer = self.own(&Refusal::Head(fault), protocol, method, origin.as_ref());
        let address = client.peer.address.as_client();
        let malformed = &self.context().active().error_log.malformed;
        malformed.count(fault.to_string(), address, Instant::now());
        self.malformed(client, answer.status());
        answer
    }

    fn protocol(&self, method: &Method, headers: &HeaderMap) -> Protocol {
        match self {
            Self::Proxy(_) => protocol(method, headers, Seen::of(headers)),
            Self::Decide(_) => plain(headers, Seen::of(headers)),
        }
    }

    /// The answer to a request that meets no route.
    fn own(
        &self,
        refusal: &Refusal<'_>,
        protocol: Protocol,
        method: &Method,
        origin: Option<&HeaderValue>,
    ) -> Answer {
        let active = self.context().active();
        let answer = active.answers.respond(refusal, &[], protocol, None, origin);
        let mut answer = answer.map(ResponseBody::whole);
        withhold_body(&mut answer, method);
        answer
    }
}
