//! A [`tower`](https://docs.rs/tower) layer: asks the limits about each request, and answers a rejected one as the proxy
//! does.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use crate::answer::{Answer, Quotas};
use crate::charge::Charge;
use crate::clock::now;
use crate::limits::Limits;

/// Limits the requests of a service. `charges` says for each request what it takes; a request that takes nothing is not
/// limited.
///
/// A rejected request gets a 429 with the fields and the body of [`Quotas`]. A request that may go is held until its
/// turn, and its response gets the fields too. A slot is held until the response's head is ready: where bodies are streamed,
/// take slots by hand. A charge that [cannot be asked about](crate::ChargeError) is answered with 500.
#[derive(Clone, Debug)]
pub struct LimitLayer<F> {
    limits: Limits,
    charges: F,
}

impl<F> LimitLayer<F> {
    /// A layer with these limits and charges.
    pub fn new<B>(limits: Limits, charges: F) -> Self
    where
        F: Fn(&Request<B>) -> Vec<Charge<'static>>,
    {
        Self { limits, charges }
    }
}

impl<S, F: Clone> Layer<S> for LimitLayer<F> {
    type Service = LimitService<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        LimitService { inner, layer: self.clone() }
    }
}

/// A service behind a [`LimitLayer`].
#[derive(Clone, Debug)]
pub struct LimitService<S, F> {
    inner: S,
    layer: LimitLayer<F>,
}

impl<S, F, B, R> Service<Request<B>> for LimitService<S, F>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    F: Fn(&Request<B>) -> Vec<Charge<'static>>,
    B: Send + 'static,
    R: From<String>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let LimitLayer { limits, charges } = &self.layer;
        let answer = limits.take_all(charges(&request), now());
        // The service that was polled until it was ready is the one that is called.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        Box::pin(async move {
            match answer {
                Ok(Answer::Taken { wait, permit, .. }) => {
                    if !wait.is_zero() {
                        tokio::time::sleep(wait).await;
                    }
                    let mut response = inner.call(request).await?;
                    write(permit.quotas(), response.headers_mut());
                    Ok(response)
                }
                Ok(Answer::Rejected { quotas, .. }) => Ok(rejection(&quotas)),
                Err(error) => Ok(own(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
            }
        })
    }
}

fn rejection<R: From<String>>(quotas: &Quotas) -> Response<R> {
    let mut response = own(StatusCode::TOO_MANY_REQUESTS, quotas.problem());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    write(quotas, headers);
    response
}

fn own<R: From<String>>(status: StatusCode, body: String) -> Response<R> {
    let mut response = Response::new(R::from(body));
    *response.status_mut() = status;
    response
}

fn write(quotas: &Quotas, headers: &mut HeaderMap) {
    for (name, value) in quotas.headers() {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.append(HeaderName::from_static(name), value);
        }
    }
}
