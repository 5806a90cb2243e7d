//! Connections that have changed to another protocol. Their bytes are copied both ways, unread.

use std::pin::pin;

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::copy_bidirectional;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until};
use tokio_util::io::{InspectReader, InspectWriter};

use crate::clock::FAR;
use crate::proxy::Switched;
use crate::upstream::times::ClientTimes;

/// How a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TunnelEnd {
    /// A side has closed.
    Closed,
    /// Nothing moved for too long.
    Silent,
}

/// Copies bytes between a client and a server, until both have closed, one side breaks, or no byte has come
/// from the client or gone to the client for `tunnel_timeout`. News may have changed that time.
pub(super) async fn join(
    switched: Switched,
    times: &ClientTimes,
    mut news: Receiver<bool>,
) -> TunnelEnd {
    let Switched { client, server, slots: _slots, lease: _lease } = switched;
    // Either side may close instead of changing the protocol.
    let Ok((client, server)) = tokio::try_join!(client, server) else {
        return TunnelEnd::Closed;
    };
    let moved = Mutex::new(Instant::now());
    let note = |_: &[u8]| *moved.lock() = Instant::now();
    let client = InspectWriter::new(TokioIo::new(client), note);
    let (mut client, mut server) = (InspectReader::new(client, note), TokioIo::new(server));
    let mut copying = pin!(copy_bidirectional(&mut client, &mut server));
    loop {
        let (now, due) = (Instant::now(), moved.lock().checked_add(times.tunnel()));
        if due.is_some_and(|due| due <= now) {
            return TunnelEnd::Silent;
        }
        tokio::select! {
            _ = copying.as_mut() => return TunnelEnd::Closed,
            // `FAR` stands in for a time that the clock cannot express.
            () = sleep_until(due.unwrap_or(now + FAR)) => {}
            Ok(()) = news.changed() => {}
        }
    }
}
