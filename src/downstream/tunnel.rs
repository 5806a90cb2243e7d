//! Connections that have changed to another protocol. Their bytes are copied both ways, unread.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::copy_bidirectional;
use tokio::time::{Instant, sleep_until};
use tokio_util::io::{InspectReader, InspectWriter};

use crate::clock::FAR;
use crate::proxy::Switched;

/// How a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TunnelEnd {
    /// A side has closed.
    Closed,
    /// Nothing moved for too long.
    Silent,
}

/// When a byte last moved, how long none may move, and what the tunnel's end is then.
struct Movement {
    last: Instant,
    time_limit: Duration,
    end: TunnelEnd,
}

/// Copies bytes between a client and a server, until both have closed, one side breaks, or no byte has come
/// from the client or gone to the client for too long. Once one side has ended, this is a shorter time: mostly the
/// other side has gone too, and does not say so.
pub(super) async fn join(switched: Switched) -> TunnelEnd {
    let Switched { client, server, time_limit, half_open_limit, mut permit, lease: _lease } =
        switched;
    // Either side may close instead of changing the protocol.
    let Ok((client, server)) = tokio::try_join!(client, server) else {
        return TunnelEnd::Closed;
    };
    let end = TunnelEnd::Silent;
    let movement = Mutex::new(Movement { last: Instant::now(), time_limit, end });
    let moved = || movement.lock().last = Instant::now();
    // An empty piece is the end.
    let read = |piece: &[u8]| {
        moved();
        if piece.is_empty() {
            let mut movement = movement.lock();
            movement.time_limit = half_open_limit.min(time_limit);
            movement.end = TunnelEnd::Closed;
        }
    };
    let client = InspectWriter::new(TokioIo::new(client), |_: &[u8]| moved());
    let mut client = InspectReader::new(client, read);
    let mut server = InspectReader::new(TokioIo::new(server), |piece: &[u8]| {
        permit.read(piece);
        if piece.is_empty() {
            read(piece);
        }
    });
    let due = || {
        let Movement { last, time_limit, .. } = *movement.lock();
        // `FAR` stands in for a limit that the clock cannot express.
        last.checked_add(time_limit).unwrap_or_else(|| Instant::now() + FAR)
    };
    let mut copying = pin!(copy_bidirectional(&mut client, &mut server));
    let mut timer = pin!(sleep_until(due()));
    poll_fn(|cx| {
        if copying.as_mut().poll(cx).is_ready() {
            return Poll::Ready(TunnelEnd::Closed);
        }
        if timer.deadline() > due() {
            timer.as_mut().reset(due());
        }
        while timer.as_mut().poll(cx).is_ready() {
            if due() <= Instant::now() {
                return Poll::Ready(movement.lock().end);
            }
            timer.as_mut().reset(due());
        }
        Poll::Pending
    })
    .await
}
