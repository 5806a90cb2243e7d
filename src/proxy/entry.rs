//! Where a request enters: `downstream` calls these functions. A panic in a request is caught here.

use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;

use futures_util::future::{FutureExt as _, ready};
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::body::{Answer, ResponseBody, withhold_body};
use super::client::ClientConnection;
use super::exchange::Exchange;
use super::protocol::{Protocol, plain, protocol};
use super::refusal::{HeadFault, Refusal};
use super::{ClientLeft, Proxy, answer, record, response};
use crate::reading::Seen;

impl Proxy {
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
        let protocol = match client.peer.address.asks() {
            true => plain(&exchange.head.headers, exchange.seen),
            false => exchange.protocol,
        };
        let (version, is_head) = (exchange.head.version, exchange.head.method == Method::HEAD);
        let answering = AssertUnwindSafe(|| self.answer(exchange, client));
        let answering = match panic::catch_unwind(answering) {
            Ok(answering) => AssertUnwindSafe(answering).catch_unwind().left_future(),
            Err(panicked) => ready(Err(panicked)).right_future(),
        };
        answering.map(move |answered| {
            answered.unwrap_or_else(|_| {
                let method = if is_head { &Method::HEAD } else { &Method::GET };
                let mut answer = self.own(&Refusal::Panic, protocol, method);
                if !client.phase.is_multiplexed() {
                    client.phase.lingers.set(true);
                    response::close(&mut answer, version);
                }
                Ok(answer)
            })
        })
    }

    /// Counts and logs a malformed request, which hyper has answered by itself.
    pub(crate) fn malformed(&self, client: &ClientConnection, status: StatusCode) {
        record::malformed(&self.active(), client, status);
    }

    /// Answers, counts and logs a request that hyper has let pass in spite of its head.
    pub(crate) fn refuse(
        &self,
        request: &Request<Incoming>,
        client: &ClientConnection,
        fault: HeadFault,
    ) -> Answer {
        let (method, headers) = (request.method(), request.headers());
        let protocol = match client.peer.address.asks() {
            true => plain(headers, Seen::of(headers)),
            false => protocol(method, headers, Seen::of(headers)),
        };
        let answer = self.own(&Refusal::Head(fault), protocol, method);
        let address = client.peer.address.as_client();
        self.active().error_log.malformed.count(fault.to_string(), address, Instant::now());
        self.malformed(client, answer.status());
        answer
    }

    /// The answer to a request that meets no route.
    fn own(&self, refusal: &Refusal<'_>, protocol: Protocol, method: &Method) -> Answer {
        let answer = answer::respond(refusal, &[], &self.active(), protocol, None);
        let mut answer = answer.map(ResponseBody::whole);
        withhold_body(&mut answer, method);
        answer
    }
}
