//! HTTP/2 with a client. A connection carries many requests at once. Each request is its own future,
//! and the connection's task polls all of them.

use std::cell::RefCell;
use std::future::{pending, poll_fn};
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::{FuturesUnordered, Stream as _};
use http::Request;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::TokioIo;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, timeout};

use super::GOODBYE;
use super::request_line::PREFACE;
use super::service::Service;
use super::stream::ClientStream;
use super::watch::{ConnectionWatch, Serving, WatchEnd};
use super::write_batch::WriteBatch;
use crate::answer::refusal::HeadFault;
use crate::exchange::ClientLeft;
use crate::exchange::body::ResponseBody;
use crate::exchange::client::ClientConnection;
use crate::upstream::progress::BodyEnd;
use crate::upstream::trailers::{self, WatchedFrames, list_bound};
use crate::wire::streams::CONNECTION_WINDOW;

/// The most requests at once on a connection.
const MOST_STREAMS: u32 = 128;

/// A client may open streams and reset them at once (CVE-2023-44487). If more than this number of such streams were not
/// accepted yet, the connection is closed.
const MOST_RESETS: usize = 64;

/// A client may make errors for which its streams are reset here (CVE-2025-8671). After more than this
/// number of such streams the connection is closed. The count never starts again while the connection
/// lives. A gateway sends the requests of many clients on one connection, so the number is large.
const MOST_ERRORS: usize = 1024;

/// The flow-control window of a stream in bytes: the bytes of one upload that a client may send before they are read
/// here. The window for all uploads is more than the sum for all streams, so an upload whose API does not read never
/// holds back another upload.
const STREAM_WINDOW: u32 = 128 * 1024;

/// The most bytes of one response that are kept while the client does not read.
const MOST_UNSENT: usize = 128 * 1024;

type Work = Pin<Box<dyn Future<Output = ()>>>;

type BatchedStream = WriteBatch<WatchedFrames<ClientStream>>;

/// Serves a connection to its end. Returns the error that ended it, if there was one.
pub(super) async fn serve(
    stream: ClientStream,
    client: Rc<ClientConnection>,
    service: Service,
    news: Receiver<bool>,
) -> Result<(), hyper::Error> {
    let costs = client.multiplex();
    let _counted = service.context().metrics().http2_connection();
    let spawner = Spawner::default();
    let most = service.context().max_header_size();
    let builder = builder(most, spawner.clone());
    let (of_client, uptakes) = (client.clone(), spawner.clone());
    let handle = service_fn(move |request: Request<Incoming>| {
        let (service, client, uptake) = (service.clone(), of_client.clone(), BodyEnd::awaited());
        let refused = refused(&request, service.context().max_header_size());
        // hyper hands this stream's future to the spawner before it takes the next request.
        uptakes.0.borrow_mut().uptake = uptake.clone();
        // hyper moves the future several times until it is spawned, and it is large.
        Box::pin(async move {
            first_look().await;
            let mut answer = match refused {
                Some(fault) => {
                    let answer = service.refuse(&request, &client, fault);
                    drop(client.body(request.into_body()));
                    answer
                }
                None => service.handle(request, &client).await?,
            };
            answer.body_mut().watched_by(uptake);
            Ok::<_, ClientLeft>(answer)
        })
    });
    let batch = WriteBatch::new(WatchedFrames::new(stream, most, PREFACE.len(), costs));
    let connection = builder.serve_connection(TokioIo::new(batch.clone()), handle);
    let streams = FuturesUnordered::from_iter([RunningStream::that_never_ends()]);
    let mut serving = Http2Serving { connection, batch, spawner, streams, client: client.clone() };
    match ConnectionWatch::new(&client, news).during(&mut serving).await {
        WatchEnd::Ended(end) => end,
        WatchEnd::Left | WatchEnd::Idle => {
            serving.end_soon();
            // GOAWAY tells the client that no request was lost.
            let patience = if client.phase.is_given_up() { Duration::ZERO } else { GOODBYE };
            let _ = timeout(patience, poll_fn(|cx| serving.poll(cx))).await;
            Ok(())
        }
    }
}

fn builder(max_header_size: usize, spawner: Spawner) -> http2::Builder<Spawner> {
    let mut builder = http2::Builder::new(spawner);
    builder
        .max_concurrent_streams(MOST_STREAMS)
        // A head that is larger than `max_header_size` is answered with 431 here, counted and logged. h2 refuses heads
        // beyond this bound by itself: it answers 431 and reports nothing, or ends the connection.
        .max_header_list_size(list_bound(max_header_size))
        .max_pending_accept_reset_streams(MOST_RESETS)
        .max_local_error_reset_streams(MOST_ERRORS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(MOST_UNSENT);
    builder
}

/// Checks what h2 does not check, and says why a head is refused. A head may have at most `most` bytes.
fn refused(request: &Request<Incoming>, most: usize) -> Option<HeadFault> {
    match list_size(request) > most {
        true => Some(HeadFault::TooLarge),
        false => HeadFault::of(request.headers()),
    }
}

/// The size of a request's head, as [`trailers::list_size`] measures.
fn list_size(request: &Request<Incoming>) -> usize {
    let uri = request.uri();
    let pseudo = [
        (":method", request.method().as_str()),
        (":scheme", uri.scheme_str().unwrap_or_default()),
        (":authority", uri.authority().map_or("", |authority| authority.as_str())),
        (":path", uri.path_and_query().map_or("", |path| path.as_str())),
    ];
    let pseudo = pseudo.iter().map(|(name, value)| name.len() + value.len() + 32);
    pseudo.sum::<usize>() + trailers::list_size(request.headers())
}

/// Collects the futures that hyper asks to spawn, for the connection's task to poll. So they are dropped
/// together with the connection, and each stream gives back what it holds.
#[derive(Clone, Default)]
struct Spawner(Rc<RefCell<Spawned>>);

#[derive(Default)]
struct Spawned {
    waiting: Vec<RunningStream>,
    /// How far the client takes the response of the stream that is spawned next.
    uptake: BodyEnd,
}

impl<F> Executor<F> for Spawner
where
    F: Future<Output = ()> + 'static,
{
    fn execute(&self, work: F) {
        let mut spawned = self.0.borrow_mut();
        let uptake = mem::take(&mut spawned.uptake);
        let (handle, registration) = AbortHandle::new_pair();
        let work = Abortable::new(Box::pin(work) as Work, registration);
        spawned.waiting.push(RunningStream { work, handle, uptake, is_new: true });
    }
}

/// A stream that is polled to its end, or until it is aborted.
struct RunningStream {
    work: Abortable<Work>,
    handle: AbortHandle,
    /// How far the client has taken the response.
    uptake: BodyEnd,
    /// It was not polled yet.
    is_new: bool,
}

impl RunningStream {
    /// A `FuturesUnordered` that has polled all its futures wakes its task once more without need. This stream is never
    /// woken, so there is always a future that was not polled.
    fn that_never_ends() -> Self {
        let (handle, registration) = AbortHandle::new_pair();
        let work = Abortable::new(Box::pin(pending()) as Work, registration);
        Self { work, handle, uptake: BodyEnd::awaited(), is_new: false }
    }
}

/// Ends at the second poll. hyper polls a request's future before it looks whether the client has reset the
/// stream. Without this pause each request of a flood of resets would open a connection to a server, and would not use
/// it.
async fn first_look() {
    let mut is_first = true;
    poll_fn(|_| if mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) }).await;
}

impl Future for RunningStream {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // The second poll of `first_look`: nothing else would wake the stream for it.
        if mem::take(&mut self.is_new) && Pin::new(&mut self.work).poll(cx).is_ready() {
            return Poll::Ready(());
        }
        Pin::new(&mut self.work).poll(cx).map(drop)
    }
}

/// hyper's connection and its streams, as a [`ConnectionWatch`] polls them.
struct Http2Serving<S: HttpService<Incoming>> {
    connection: http2::Connection<TokioIo<BatchedStream>, S, Spawner>,
    /// What `connection` has written.
    batch: BatchedStream,
    spawner: Spawner,
    streams: FuturesUnordered<RunningStream>,
    client: Rc<ClientConnection>,
}

impl<S: HttpService<Incoming>> Http2Serving<S> {
    /// Polls the streams that were woken. Returns whether any has ended.
    fn poll_streams(&mut self, cx: &mut Context<'_>) -> bool {
        let waiting = mem::take(&mut self.spawner.0.borrow_mut().waiting);
        self.streams.extend(waiting);
        let mut has_ended = false;
        while let Poll::Ready(Some(_)) = Pin::new(&mut self.streams).poll_next(cx) {
            has_ended = true;
        }
        has_ended
    }

    /// Resets the streams whose client has read nothing for too long. Returns whether there were any.
    fn end_stalled(&mut self, now: Instant, tolerance: Duration) {
        for stream in &self.streams {
            let since = stream.uptake.awaits_receiver_since(now);
            if since.is_some_and(|since| now.duration_since(since) >= tolerance) {
                stream.handle.abort();
            }
        }
    }
}

impl<S> Serving for Http2Serving<S>
where
    S: HttpService<Incoming, ResBody = Box<ResponseBody>>,
    http2::Connection<TokioIo<BatchedStream>, S, Spawner>:
        Future<Output = hyper::Result<()>> + Unpin,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S::Future: 'static,
{
    type End = hyper::Result<()>;

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        loop {
            let end = Pin::new(&mut self.connection).poll(cx);
            if end.is_ready() {
                // hyper does not flush if a read has failed.
                self.batch.send(cx);
                return end;
            }
            // hyper writes what an ended stream has left, and ends a connection whose batch has failed.
            if !self.poll_streams(cx) && !self.batch.send(cx) {
                return Poll::Pending;
            }
        }
    }

    fn end_soon(&mut self) {
        Pin::new(&mut self.connection).graceful_shutdown();
    }

    fn look(&mut self, now: Instant) {
        let phase = &self.client.phase;
        // While the socket is full, a stream may wait for the socket and not for its client. The time-out of the
        // connection runs.
        if !phase.is_write_waiting() {
            self.end_stalled(now, phase.times.get().body);
        }
    }
}
