//! The state of a client's connection. `downstream` makes it and drives the connection; requests read and
//! change it. `phase` has the time-outs, `idleness` what other threads may know, `socket` the socket.

mod idleness;
mod phase;
mod socket;

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use http::HeaderValue;
use hyper::body::Incoming;
use tokio::time::Instant;

pub(crate) use self::idleness::Idleness;
pub(crate) use self::phase::{DueAction, Phase};
pub(crate) use self::socket::{AcceptedStream, Socket};
use super::WorkerTasks;
use super::peer::Peer;
use crate::throttle::Permit;
use crate::upstream::ConnectionLease;
use crate::wire::overhead::Overhead;
use crate::wire::streams::StreamCosts;
use crate::wire::upload::ClientBody;

/// The server's side of a connection that changes to another protocol, and the permit that is held while the connection
/// lives.
#[derive(Debug)]
pub(crate) struct Switched {
    /// What the request holds as long as the tunnel lives.
    pub(crate) permit: Permit,
    /// The server's connection.
    pub(crate) lease: ConnectionLease,
}

/// A client's connection, as its requests see it.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    /// The client's end of the connection.
    pub(crate) peer: Peer,
    /// What the connection is doing, and since when.
    pub(crate) phase: Phase,
    /// What the client may send that is neither a request nor data.
    pub(crate) overhead: Rc<Overhead>,
    /// What its streams cost, if it is one of HTTP/2.
    streams: OnceCell<Rc<StreamCosts>>,
    pub(crate) socket: Socket,
    /// The subject of the client's verified certificate.
    pub(crate) cert: Option<Box<str>>,
    /// Where its requests go on when it has left.
    pub(crate) tasks: Rc<WorkerTasks>,
    /// Set when an answer with the status 101 is returned.
    switched: RefCell<Option<Box<Switched>>>,
    /// What the client has sent in place of a request, where hyper's error does not say it.
    pub(crate) head_fault: Cell<Option<&'static str>>,
    /// The origin whose page may read the answer if the request panics. It is kept until the request is answered.
    pub(crate) origin_of_panic: RefCell<Option<Box<HeaderValue>>>,
}

impl ClientConnection {
    /// A connection from which nothing was read yet.
    pub(crate) fn new(
        peer: Peer,
        phase: Phase,
        overhead: Overhead,
        socket: Socket,
        cert: Option<String>,
        tasks: Rc<WorkerTasks>,
    ) -> Self {
        let overhead = Rc::new(overhead);
        let cert = cert.map(String::into_boxed_str);
        Self {
            peer,
            phase,
            overhead,
            streams: OnceCell::new(),
            socket,
            cert,
            tasks,
            switched: RefCell::default(),
            head_fault: Cell::default(),
            origin_of_panic: RefCell::default(),
        }
    }

    /// A request's head is complete at `now`. Returns what [`Phase::begin`] returns.
    pub(super) fn begin(&self, now: Instant) -> bool {
        self.overhead.request();
        self.phase.begin(now)
    }

    /// The connection speaks HTTP/2 and carries many requests at once. Returns what these may cost.
    pub(crate) fn multiplex(&self) -> Rc<StreamCosts> {
        self.overhead.multiplex();
        self.phase.multiplex();
        let costs = || Rc::new(StreamCosts::of_client(self.overhead.clone()));
        self.streams.get_or_init(costs).clone()
    }

    /// The body of a request of this client.
    pub(crate) fn body(&self, incoming: Incoming) -> ClientBody {
        let body_timeout = self.phase.times.get().body;
        ClientBody::new(incoming, self.streams.get(), self.overhead.clone(), body_timeout)
    }

    /// About once a second while a request is under way: the client was still there at `now`.
    pub(crate) fn looked(&self, now: Instant) {
        self.overhead.second();
        self.phase.looked(now);
    }

    /// The connection changes to another protocol after the current answer.
    pub(super) fn switch(&self, switched: Box<Switched>) {
        self.phase.unsettled.set(true);
        self.switched.replace(Some(switched));
    }

    /// Takes the server's side of the tunnel, if the last answer changed the connection to another protocol.
    pub(crate) fn take_switched(&self) -> Option<Box<Switched>> {
        self.switched.take()
    }
}
