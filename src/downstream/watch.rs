//! Watches a connection while it is served, for time-outs and for news of the worker. `http1` and `http2` use it. The
//! due times come from `exchange::client::Phase`. There are two kinds of news: the process drains (the value is true from
//! then on), or a reload may have changed the time-outs.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::watch::Receiver;
use tokio::task::coop::unconstrained;
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::clock::FAR;
use crate::exchange::client::{ClientConnection, DueAction};

/// How long a closed connection goes on reading. Otherwise the system would answer the client's data with a reset. A
/// reset destroys what the client has not read yet.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// Once the process drains, a client has this long to complete a handshake or to send a request. Without this time,
/// a request that is on its way when its kept connection is closed would get no answer.
pub(super) const LAST_CALL: Duration = Duration::from_secs(1);

/// Once a connection of a process that drains has nothing under way, its client has this long to close the
/// connection.
const FAREWELL: Duration = Duration::from_secs(3);

/// Waits for `opening`, such as a TLS handshake, until the time that `due` returns. If `due` returns `None`, waits
/// without end. News may change the time. Returns `None` if the time is over, or if the process drains and
/// [`LAST_CALL`] is over.
pub(super) async fn in_time<T>(
    due: impl Fn() -> Option<Instant>,
    mut news: Receiver<bool>,
    opening: impl Future<Output = T>,
) -> Option<T> {
    let mut opening = pin!(opening);
    loop {
        let now = Instant::now();
        let last_call = news.borrow_and_update().then(|| now + LAST_CALL);
        let until = due().into_iter().chain(last_call).min().unwrap_or(now + FAR);
        // The connection may be given up, and its task is then polled.
        let is_due = |_: &mut Context<'_>| match due().is_some_and(|due| due <= Instant::now()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        };
        tokio::select! {
            biased;
            opened = opening.as_mut() => return Some(opened),
            () = sleep_until(until) => return None,
            () = poll_fn(is_due) => return None,
            Ok(()) = news.changed() => {}
        }
    }
}

/// A connection that is served by polling.
pub(super) trait Serving {
    /// How the connection ended.
    type End;

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Self::End>;

    /// Makes the connection end after the requests that are under way.
    fn end_soon(&mut self);

    /// Called about once a second while a request is under way. Ends the streams of clients that took too long.
    fn look(&mut self, _now: Instant) {}
}

/// How the watch of a connection ended.
pub(super) enum WatchEnd<E> {
    /// The connection ended by itself.
    Ended(E),
    /// The client has left or has used up its time, or the process drains.
    Left,
    /// The connection has been without a request for a moment. It can be parked.
    Idle,
}

/// The one timer of a connection, and its link to the news.
pub(super) struct ConnectionWatch<'c> {
    client: &'c ClientConnection,
    timer: Pin<Box<Sleep>>,
    /// Whether the timer will wake this task. A poll registers the task, unless tokio's budget was used up.
    registered: bool,
    /// A write to the full socket has just been tried.
    tried: bool,
    news: Receiver<bool>,
    ending: Ending,
}

/// How far the end of a connection has come in a process that drains.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    NotDraining,
    /// The process drains. Until this time a request may still come, since it may be on its way. hyper alone would
    /// close at once and drop the request.
    Announced(Instant),
    /// The connection ends with what is under way. At this time it is closed if nothing is under way, even if its
    /// client does not answer.
    Begun(Instant),
}

impl<'c> ConnectionWatch<'c> {
    pub(super) fn new(client: &'c ClientConnection, news: Receiver<bool>) -> Self {
        let timer = Box::pin(sleep_until(deadline(client)));
        Self { client, timer, registered: false, tried: false, news, ending: Ending::NotDraining }
    }

    /// Serves a connection until it ends, is due to be closed, or is due to be parked.
    pub(super) async fn during<S: Serving>(&mut self, serving: &mut S) -> WatchEnd<S::End> {
        // One poll of this future is enough: from then on news wake the task.
        let mut news = self.news.clone();
        let mut news = pin!(async move { while news.changed().await.is_ok() {} });
        let mut listens = false;
        poll_fn(|cx| {
            loop {
                // Before the poll: the drain itself may cause an answer, which must then say `connection: close`.
                listens &= !self.notice_news();
                self.client.phase.next_poll();
                if let Poll::Ready(end) = serving.poll(cx) {
                    return Poll::Ready(WatchEnd::Ended(end));
                }
                if self.client.phase.is_poll_used_up() {
                    // tokio looks for input before it wakes a task that has yielded.
                    let _ = pin!(yield_now()).poll(cx);
                }
                if !std::mem::replace(&mut listens, true) {
                    let _ = pin!(unconstrained(news.as_mut())).poll(cx);
                }
                if self.is_last_now() {
                    serving.end_soon();
                } else if let Some(left) = ready!(self.poll_time(serving, cx)) {
                    return Poll::Ready(left);
                }
            }
        })
        .await
    }

    /// Returns whether there were news. New time-outs hold as soon as the connection's task is polled.
    fn notice_news(&mut self) -> bool {
        let has_news = self.news.has_changed().unwrap_or(false);
        if has_news {
            self.client.phase.renew_idle();
        }
        if has_news && *self.news.borrow_and_update() && self.ending == Ending::NotDraining {
            self.client.phase.ending.set(true);
            self.ending = Ending::Announced(Instant::now() + LAST_CALL);
        }
        has_news
    }

    /// Whether the process drains and no further request is awaited. Returns true only once. An HTTP/1.1 connection
    /// ends before its last call is over if an answer says so. HTTP/2 tells its client which requests were read.
    fn is_last_now(&mut self) -> bool {
        let Ending::Announced(until) = self.ending else { return false };
        let phase = &self.client.phase;
        let knows_the_last = phase.is_multiplexed() && !phase.awaits_head();
        let is_last = knows_the_last || until <= Instant::now();
        if is_last {
            self.ending = Ending::Begun(Instant::now() + FAREWELL);
        }
        is_last
    }

    /// Waits for the timer and does what is due. `None` if the connection goes on.
    fn poll_time<S: Serving>(
        &mut self,
        serving: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<Option<WatchEnd<S::End>>> {
        // The timer is only moved to an earlier time here. A later deadline is noticed when the timer
        // fires.
        let due = self.deadline();
        if due < self.timer.deadline() {
            self.set_timer(due);
        }
        if self.registered && !self.timer.is_elapsed() {
            return Poll::Pending;
        }
        if pin!(unconstrained(self.timer.as_mut())).poll(cx).is_pending() {
            self.registered = true;
            return Poll::Pending;
        }
        let now = Instant::now();
        if let Ending::Begun(until) = self.ending
            && until <= now
            && self.client.phase.is_quiet()
        {
            return Poll::Ready(Some(WatchEnd::Left));
        }
        let (phase, socket) = (&self.client.phase, &self.client.socket);
        let tried = std::mem::take(&mut self.tried);
        if tried && socket.has_moved() {
            // Over TLS, the stream above the socket may not have noticed it.
            phase.write_moved();
            phase.write_waits();
        }
        match phase.due() {
            Some((at, DueAction::Look | DueAction::Close))
                if at <= now && !tried && phase.is_write_waiting() =>
            {
                socket.try_full();
                self.tried = true;
                return Poll::Ready(None);
            }
            Some((at, DueAction::Close)) if at <= now => {
                phase.overdue.set(true);
                return Poll::Ready(Some(WatchEnd::Left));
            }
            Some((at, DueAction::Park)) if at <= now => {
                return Poll::Ready(Some(match self.ending {
                    Ending::NotDraining | Ending::Announced(_) => WatchEnd::Idle,
                    Ending::Begun(_) => WatchEnd::Left,
                }));
            }
            Some((at, DueAction::Look)) if at <= now => {
                if socket.has_left() {
                    return Poll::Ready(Some(WatchEnd::Left));
                }
                serving.look(now);
                self.client.looked(now);
            }
            _ => {}
        }
        let due = self.deadline();
        self.set_timer(due);
        Poll::Ready(None)
    }

    fn set_timer(&mut self, at: Instant) {
        self.timer.as_mut().reset(at);
        self.registered = false;
    }

    fn deadline(&mut self) -> Instant {
        let due = deadline(self.client);
        match &mut self.ending {
            Ending::NotDraining => due,
            Ending::Announced(until) => due.min(*until),
            Ending::Begun(until) => {
                if !self.client.phase.is_quiet() {
                    *until = Instant::now() + FAREWELL;
                }
                due.min(*until)
            }
        }
    }
}

/// When a connection's timer must fire.
fn deadline(client: &ClientConnection) -> Instant {
    client.phase.due().map_or_else(|| Instant::now() + FAR, |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::coop;
    use tokio::time::sleep;
    use tokio_util::either::Either::Left;

    use super::*;
    use crate::exchange::client::{Idleness, Phase, Socket};
    use crate::exchange::peer::Peer;
    use crate::request::client::PeerAddress;
    use crate::upstream::times::testing::{IDLE, times_with};
    use crate::wire::overhead::Overhead;

    /// A connection that spends the runtime's budget once, and then waits to be ended.
    #[derive(Default)]
    struct Greedy {
        spent: bool,
        ending: bool,
    }

    impl Serving for Greedy {
        type End = ();

        fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
            while !self.spent {
                match coop::poll_proceed(cx) {
                    Poll::Ready(part) => part.made_progress(),
                    Poll::Pending => self.spent = true,
                }
            }
            if self.ending { Poll::Ready(()) } else { Poll::Pending }
        }

        fn end_soon(&mut self) {
            self.ending = true;
        }
    }

    async fn client() -> ClientConnection {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let peer = Peer::new(PeerAddress::UnixSocket, false);
        let (phase, socket) =
            (Phase::new(times_with(IDLE), Arc::new(Idleness::new())), Socket::new(Left(stream)));
        ClientConnection::new(peer, phase, Overhead::new(0), socket, None, Rc::default())
    }

    /// A timer that is polled with the budget spent does not register the task. The watch must not rely on this
    /// timer to wake the task.
    #[tokio::test(start_paused = true)]
    async fn a_spent_budget_costs_no_timer() {
        let (_drain, draining) = tokio::sync::watch::channel(false);
        let client = client().await;
        let mut watch = ConnectionWatch::new(&client, draining);
        let end = tokio::time::timeout(IDLE, watch.during(&mut Greedy::default())).await;
        assert!(matches!(end, Ok(WatchEnd::Left)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_spent_budget_does_not_hide_a_drain() {
        let (drain, draining) = tokio::sync::watch::channel(false);
        let client = client().await;
        let draining_soon = tokio::spawn(async move {
            sleep(LAST_CALL).await;
            drain.send(true).unwrap();
            std::future::pending::<()>().await;
        });
        let mut watch = ConnectionWatch::new(&client, draining);
        let end = watch.during(&mut Greedy::default()).await;
        assert!(matches!(end, WatchEnd::Ended(())));
        draining_soon.abort();
    }

    /// A client that has received its answer may have sent the next request already.
    #[tokio::test(start_paused = true)]
    async fn a_kept_connection_has_a_last_call() {
        let (drain, draining) = tokio::sync::watch::channel(false);
        let client = client().await;
        client.phase.begin(Instant::now());
        client.phase.end(Instant::now());
        drain.send(true).unwrap();
        let mut serving = Greedy { spent: true, ending: false };
        let end = ConnectionWatch::new(&client, draining.clone()).during(&mut serving).await;
        assert!(matches!(end, WatchEnd::Idle), "it is parked");
        assert!(client.phase.ending.get(), "the next answer says that the connection ends");
        let begun = Instant::now();
        assert!(in_time(|| None, draining, std::future::pending::<()>()).await.is_none());
        assert_eq!(begun.elapsed(), LAST_CALL);
    }

    /// Is ready at the first poll. Returns whether an answer now says that the connection ends.
    struct Prompt<'c>(&'c ClientConnection);

    impl Serving for Prompt<'_> {
        type End = bool;

        fn poll(&mut self, _: &mut Context<'_>) -> Poll<bool> {
            Poll::Ready(self.0.phase.ending.get())
        }

        fn end_soon(&mut self) {}
    }

    /// A request that is held when a drain begins is rejected. The rejection must say that the connection
    /// ends.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_a_drain_brings_about_knows_of_it() {
        let (drain, draining) = tokio::sync::watch::channel(false);
        let client = client().await;
        let mut watch = ConnectionWatch::new(&client, draining);
        client.phase.begin(Instant::now());
        drain.send(true).unwrap();
        let end = watch.during(&mut Prompt(&client)).await;
        assert!(matches!(end, WatchEnd::Ended(true)));
    }
}
