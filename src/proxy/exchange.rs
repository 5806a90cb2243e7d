//! A connection while it is served: request after request, watched by its timer.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Uri;
use http_body::Body as _;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};

use super::answer::Answer;
use super::body::ResponseBody;
use super::io::{ClientStream, Socket};
use super::phase::{Due, Phase};
use super::tunnel::Switched;
use super::{Connection, Exchange, Proxy};
use crate::http1::encode::{Persistence, ResponseHead, Size};
use crate::http1::response::Reason;
use crate::http1::server::{self, Next, SendFault, Tended};

/// How long a connection that has said nothing yet may take to say it once the process drains.
const LAST_CALL: Duration = Duration::from_secs(1);

/// How far away a timer is set that is not meant to fire.
pub(super) const FAR: Duration = Duration::from_secs(24 * 3600);

/// What became of a connection that was served.
pub(super) enum Served {
    /// It is over.
    Ended,
    /// It is between two requests, of which the next may have begun to come.
    Idle { early: BytesMut },
    /// It has changed to another protocol, of which the beginning may have come.
    Switched { stream: ClientStream, early: BytesMut, switched: Box<Switched> },
}

type Wire = server::Connection<ClientStream>;

/// Serves requests until the connection ends, changes to another protocol, or has been idle for a
/// moment. `early` was read before.
pub(super) async fn exchange(
    proxy: &Proxy,
    connection: &Connection,
    early: BytesMut,
    draining: &mut watch::Receiver<bool>,
) -> Served {
    let (phase, socket) = (&*connection.phase, &connection.socket);
    let stream = ClientStream::new(socket.clone(), connection.phase.clone());
    let mut wire = Wire::new(stream, early, proxy.active().plan.server.max_header_size);
    let set = deadline(phase);
    let changes = draining.clone();
    let mut watch = Watch {
        phase,
        socket,
        set,
        timer: pin!(sleep_until(set)),
        drain: pin!(draining.wait_for(|draining| *draining)),
        changes,
        registered: Registered::default(),
        ending: Ending::No,
    };
    let mut request = Exchange::new();
    loop {
        if wire.has_input() {
            phase.bytes_came();
        }
        let parts = &mut request.parts;
        let next = watch.during(&mut wire, |wire, cx| wire.poll_request(parts, cx)).await;
        match next {
            Ok(Next::Request(body)) => request.begin(body),
            Ok(Next::Fault(fault)) => {
                // Nothing is known of what was asked, so nothing can be said about it.
                let answer = &mut request.answer;
                answer.begin(fault.status(), Bytes::new());
                if send(&mut wire, proxy, answer, &mut watch).await.is_ok() {
                    close(&mut wire, &mut watch).await;
                }
                return Served::Ended;
            }
            Ok(Next::End) | Err(Stop::Close) => return Served::Ended,
            Err(Stop::Park) => {
                // Without its buffer, which is empty but for what came this very moment.
                let (_, early) = wire.into_parts();
                let early = if early.is_empty() { BytesMut::new() } else { early };
                return Served::Idle { early };
            }
        }
        let answered = {
            let mut answering = pin!(proxy.handle(&mut request, connection));
            let answered = watch.during(&mut wire, |wire, cx| {
                loop {
                    if answering.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(Answered::Yes);
                    }
                    match ready!(wire.poll_tend(cx)) {
                        Tended::Fed => {}
                        Tended::Left => return Poll::Ready(Answered::Left),
                    }
                }
            });
            answered.await
        };
        let Ok(Answered::Yes) = answered else { return Served::Ended };
        let answer = &mut request.answer;
        // So that their memory can be read into again.
        request.parts.headers.clear();
        request.parts.uri = Uri::default();
        let switched = answer.body.as_mut().and_then(ResponseBody::take_switched);
        let sent = send(&mut wire, proxy, answer, &mut watch).await;
        match sent {
            Ok(()) => {}
            Err(Broken::Body) if phase.resets() => {
                // A client that would take the connection's end for that of the body.
                socket.reset_at_close();
                return Served::Ended;
            }
            Err(_) => return Served::Ended,
        }
        request.answer.clear();
        if wire.has_upload()
            && watch.during(&mut wire, |wire, cx| wire.poll_settle(cx)).await.is_err()
        {
            return Served::Ended;
        }
        if let Some(switched) = switched {
            let (stream, early) = wire.into_parts();
            return Served::Switched { stream, early, switched };
        }
        if wire.persistence() == Persistence::Close {
            close(&mut wire, &mut watch).await;
            return Served::Ended;
        }
    }
}

/// What became of a request.
enum Answered {
    Yes,
    /// Its client has left.
    Left,
}

/// Why a response was not sent to its end.
enum Broken {
    /// Its body broke off.
    Body,
    /// The client has left or had its time.
    Client,
}

/// Sends an answer.
async fn send<D: Future>(
    wire: &mut Wire,
    proxy: &Proxy,
    answer: &mut Answer,
    watch: &mut Watch<'_, D>,
) -> Result<(), Broken> {
    let Answer { status, reason, fields, body } = answer;
    let size = match body.as_ref().filter(|body| !body.is_end_stream()) {
        None => Size::Empty,
        Some(body) => body.size_hint().exact().map_or(Size::Unknown, Size::Known),
    };
    let now = Instant::now();
    let date = proxy.date.at(proxy.clock.wall().at(proxy.clock.at(now)));
    if watch.drains() {
        wire.end_soon();
    }
    let mut begun = false;
    let sending = watch.during(wire, |wire, cx| {
        if !std::mem::replace(&mut begun, true) {
            let reason = reason.as_ref().map(|Reason(words)| &**words);
            let head = ResponseHead { status: *status, reason, fields, size, date: &date };
            wire.begin_response(&head, cx);
            if let Some(body) = body {
                body.ends_at(Some(now));
            }
        }
        loop {
            if let Poll::Ready(sent) = wire.poll_send(body, cx) {
                return Poll::Ready(Some(sent));
            }
            // The rest of the request may still be on its way, and the client may read nothing of
            // the response before all of it is taken.
            if let Some(body) = body {
                body.ends_at(None);
                body.poll_upload(cx);
            }
            match ready!(wire.poll_tend(cx)) {
                Tended::Fed => {}
                Tended::Left => return Poll::Ready(None),
            }
        }
    });
    match sending.await {
        Ok(Some(Ok(()))) => Ok(()),
        Ok(Some(Err(SendFault::Body))) => Err(Broken::Body),
        Ok(None | Some(Err(SendFault::Client(_)))) | Err(_) => Err(Broken::Client),
    }
}

/// Ends a connection so that its client can read what was said last.
async fn close<D: Future>(wire: &mut Wire, watch: &mut Watch<'_, D>) {
    // More of what was sent behind the last request may lie unread in the socket.
    if wire.has_input() {
        watch.phase.linger();
    }
    // That it is closed already is as good.
    let _ = watch.during(wire, |wire, cx| wire.poll_close(cx)).await;
}

/// Why a connection is served no longer.
enum Stop {
    Close,
    Park,
}

/// What happens beside an exchange: its time runs out, or the process drains.
struct Watch<'c, D> {
    phase: &'c Phase,
    socket: &'c Socket,
    /// When the timer fires.
    set: Instant,
    timer: Pin<&'c mut Sleep>,
    drain: Pin<&'c mut D>,
    /// Tells cheaply whether `drain` has to be polled.
    changes: watch::Receiver<bool>,
    registered: Registered,
    ending: Ending,
}

/// What wakes this task by itself, because it was polled since it was set. All of it is polled by
/// one task, and polling it again for each request would be a tenth of what the connection costs.
#[derive(Default)]
struct Registered {
    timer: bool,
    drain: bool,
}

/// How far the end of a connection has come in a process that drains.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    /// The process drains; a request that has begun to come may come until then. Told to end before,
    /// the connection would close without a look at it.
    Announced(Instant),
    /// The connection ends with the request that is under way.
    Told,
}

impl<D: Future> Watch<'_, D> {
    /// Polls a part of an exchange to its end, or until the connection has to be left.
    async fn during<T>(
        &mut self,
        wire: &mut Wire,
        mut part: impl FnMut(&mut Wire, &mut Context<'_>) -> Poll<T>,
    ) -> Result<T, Stop> {
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(done) = part(wire, cx) {
                    return Poll::Ready(Ok(done));
                }
                if self.is_last_now(cx) {
                    wire.end_soon();
                } else if let Some(stop) = ready!(self.poll_time(cx)) {
                    return Poll::Ready(Err(stop));
                }
            }
        })
        .await
    }

    /// Whether the process drains, be it that this task was not told yet.
    fn drains(&self) -> bool {
        self.ending != Ending::No
            || (self.changes.has_changed().unwrap_or(true) && *self.changes.borrow())
    }

    /// Whether the process drains and nothing more than what is under way is awaited, said once.
    fn is_last_now(&mut self, cx: &mut Context<'_>) -> bool {
        let may_drain = !self.registered.drain || self.changes.has_changed().unwrap_or(true);
        if may_drain && self.ending == Ending::No {
            self.registered.drain = true;
            if self.drain.as_mut().poll(cx).is_ready() {
                self.ending = Ending::Announced(Instant::now() + LAST_CALL);
            }
        }
        let Ending::Announced(until) = self.ending else { return false };
        let is_last = !self.phase.awaits_head() || until <= Instant::now();
        if is_last {
            self.ending = Ending::Told;
        }
        is_last
    }

    /// Waits for the timer. `None` where there is nothing to be done but to look again.
    fn poll_time(&mut self, cx: &mut Context<'_>) -> Poll<Option<Stop>> {
        // Only ever sooner than it is set: a later one is looked at when it fires.
        let due = self.deadline();
        if due < self.set {
            self.set_timer(due);
        }
        if self.registered.timer && !self.timer.is_elapsed() {
            return Poll::Pending;
        }
        self.registered.timer = true;
        ready!(self.timer.as_mut().poll(cx));
        let now = Instant::now();
        match self.phase.due() {
            Some((at, Due::Close)) if at <= now => return Poll::Ready(Some(Stop::Close)),
            Some((at, Due::Park)) if at <= now => {
                return Poll::Ready(Some(match self.ending {
                    Ending::No => Stop::Park,
                    Ending::Announced(_) | Ending::Told => Stop::Close,
                }));
            }
            Some((at, Due::Look)) if at <= now => {
                if self.socket.has_left() {
                    return Poll::Ready(Some(Stop::Close));
                }
                self.phase.looked(now);
            }
            _ => {}
        }
        self.set_timer(self.deadline());
        Poll::Ready(None)
    }

    fn set_timer(&mut self, at: Instant) {
        self.set = at;
        self.timer.as_mut().reset(at);
        self.registered.timer = false;
    }

    fn deadline(&self) -> Instant {
        let due = deadline(self.phase);
        match self.ending {
            Ending::Announced(until) => due.min(until),
            Ending::No | Ending::Told => due,
        }
    }
}

/// When a connection's timer must fire.
fn deadline(phase: &Phase) -> Instant {
    phase.due().map_or_else(|| Instant::now() + FAR, |(at, _)| at)
}
