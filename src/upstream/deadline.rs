//! The time-out for the head of an answer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::event_timeout::{later, poll_due};
use super::progress::BodyEnd;

/// The time that a server has for the head of an answer. It runs from the last byte of the request that
/// the server took. It does not run while the client has to send more: a slow upload is not the server's
/// fault.
///
/// One timer serves all requests of a connection. It is moved to a later time only when it fires.
#[derive(Debug, Default)]
pub(super) struct Deadline(Option<Pin<Box<Sleep>>>);

impl Deadline {
    /// Ready once the answer to a request that was handed over at `sent` has taken longer than
    /// `limit`.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        sent: Instant,
        limit: Duration,
        body: &BodyEnd,
    ) -> Poll<()> {
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(later(sent, limit))));
        // The request before may have had a longer limit.
        if timer.deadline() > later(sent, limit) && body.is_empty() {
            timer.as_mut().reset(later(sent, limit));
        }
        let since = || body.awaits_receiver_since(sent).unwrap_or_else(Instant::now);
        poll_due(timer.as_mut(), cx, || later(since(), limit))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use bytes::Bytes;
    use http::Request;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, duplex};
    use tokio::task::spawn_local;
    use tokio::time::sleep;

    use super::*;
    use crate::upstream::body::RequestBody;
    use crate::upstream::executor::LocalExecutor;

    const LIMIT: Duration = Duration::from_secs(30);

    async fn over(deadline: &mut Deadline, end: &BodyEnd) {
        let sent = Instant::now();
        poll_fn(|cx| deadline.poll(cx, sent, LIMIT, end)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_for_an_answer_runs_from_the_last_byte_of_the_request() {
        let began = Instant::now();
        over(&mut Deadline::default(), &BodyEnd::default()).await;
        assert_eq!(began.elapsed(), LIMIT, "without a body");

        let end = BodyEnd::begin();
        let sending = async {
            end.await_sender();
            tokio::time::sleep(Duration::from_secs(100)).await;
            end.reach();
            std::future::pending::<()>().await;
        };
        let began = Instant::now();
        let mut deadline = Deadline::default();
        tokio::select! {
            () = over(&mut deadline, &end) => {}
            () = sending => {}
        }
        assert_eq!(began.elapsed().as_secs(), 130, "not while the client is to send");
    }

    /// A request of a megabyte in one piece, sent over HTTP/2. The server takes 20 kB each second until it has
    /// taken `most`.
    async fn upload_http2(most: usize) -> Duration {
        let (ours, theirs) = duplex(1024 * 1024);
        let server = async move {
            let mut connection = h2::server::handshake(theirs).await.unwrap();
            let (request, _respond) = connection.accept().await.unwrap().unwrap();
            let mut body = request.into_body();
            let taking = async {
                let mut taken = 0;
                while let Some(Ok(piece)) = body.data().await {
                    taken += piece.len();
                    sleep(Duration::from_millis(piece.len() as u64 / 20)).await;
                    if taken < most {
                        let _ = body.flow_control().release_capacity(piece.len());
                    }
                }
                std::future::pending::<()>().await;
            };
            tokio::join!(taking, poll_fn(|cx| connection.poll_closed(cx))).1.unwrap();
        };
        tokio::spawn(server);
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(LocalExecutor, TokioIo::new(ours)).await.unwrap();
        spawn_local(connection);
        time_for_head(|request| sender.send_request(request)).await
    }

    /// The same over HTTP/1.1.
    async fn upload_http1(most: usize) -> Duration {
        let (ours, mut theirs) = duplex(1024);
        tokio::spawn(async move {
            let (mut space, mut taken) = (vec![0; 20_000], 0);
            while taken < most {
                theirs.read_exact(&mut space).await.unwrap();
                taken += space.len();
                sleep(Duration::from_secs(1)).await;
            }
            std::future::pending::<()>().await;
        });
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(ours)).await.unwrap();
        spawn_local(connection);
        time_for_head(|request| sender.send_request(request)).await
    }

    /// How long a request waits for the head of an answer that never comes.
    async fn time_for_head<F: Future>(send: impl FnOnce(Request<RequestBody>) -> F) -> Duration {
        let began = Instant::now();
        let body = RequestBody::again(Bytes::from(vec![b'x'; 1_000_000]));
        let end = body.end();
        let request = Request::post("http://api.test/").header("content-length", 1_000_000);
        let answer = send(request.body(body).unwrap());
        let mut deadline = Deadline::default();
        tokio::select! {
            _ = answer => unreachable!("there is no answer"),
            () = over(&mut deadline, &end) => began.elapsed(),
        }
    }

    /// A regression: a piece of a megabyte counted as one event, so the server had to take all of it within
    /// `response_timeout`.
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_server_has_its_time_from_the_last_byte_that_it_took() {
        let over_http1 = [upload_http1(usize::MAX).await, upload_http1(200_000).await];
        let over_http2 = [upload_http2(usize::MAX).await, upload_http2(200_000).await];
        for [all, stalled] in [over_http1, over_http2] {
            // A megabyte takes 50 s, less what buffers hold, and 200 kB take 10 s.
            assert!((75..=81).contains(&all.as_secs()), "{all:?}");
            assert!((38..=45).contains(&stalled.as_secs()), "{stalled:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_is_kept_gives_the_next_request_its_whole_time() {
        let mut deadline = Deadline::default();
        for pause in [1, 10, 29, 100] {
            let end = BodyEnd::default();
            let answer = tokio::time::timeout(LIMIT / 2, over(&mut deadline, &end));
            assert!(answer.await.is_err(), "over too soon");
            tokio::time::sleep(Duration::from_secs(pause)).await;
            let began = Instant::now();
            over(&mut deadline, &end).await;
            assert_eq!(began.elapsed(), LIMIT, "{pause}");
        }
    }
}
