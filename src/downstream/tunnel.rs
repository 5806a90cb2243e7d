//! Connections that have changed to another protocol. Their bytes are copied both ways, unread.

use std::cell::Cell;

use tokio::io::{AsyncWriteExt as _, copy_bidirectional};
use tokio::sync::Notify;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::io::{InspectReader, InspectWriter};

use super::stream::ClientStream;
use crate::clock::FAR;
use crate::exchange::client::Switched;
use crate::upstream::times::ClientTimes;

/// Copies bytes between a client and a server, until both have closed, one side breaks, or no byte has come from the
/// client or gone to the client for `tunnel_timeout`. Once one side has ended, `body_timeout` counts instead: usually
/// the other side is gone too, and has not closed its connection. A reload may change these times.
pub(super) async fn join(
    client: ClientStream,
    switched: Switched,
    times: &Cell<ClientTimes>,
    mut news: Receiver<bool>,
) {
    let Switched { mut permit, mut lease } = switched;
    // The server may close instead of changing the protocol.
    let Some(server) = lease.switched().await else { return };
    let (moved, is_half_open) = (Cell::new(Instant::now()), Cell::new(false));
    let has_left = Cell::new(false);
    let side_end = Notify::new();
    let note = |_: &[u8]| moved.set(Instant::now());
    // An empty piece is the end.
    let read = |piece: &[u8]| {
        note(piece);
        if piece.is_empty() {
            is_half_open.set(true);
            side_end.notify_one();
        }
    };
    let client = InspectWriter::new(client, note);
    let mut client = InspectReader::new(client, |piece: &[u8]| {
        has_left.set(piece.is_empty());
        read(piece);
    });
    let mut server = InspectReader::new(server, |piece: &[u8]| {
        permit.read(piece);
        if piece.is_empty() {
            read(piece);
        }
    });
    let mut copying = Box::pin(copy_bidirectional(&mut client, &mut server));
    loop {
        let limit = match is_half_open.get() {
            true => times.get().tunnel.min(times.get().body),
            false => times.get().tunnel,
        };
        let (now, due) = (Instant::now(), moved.get().checked_add(limit));
        if due.is_some_and(|due| due <= now) {
            break;
        }
        tokio::select! {
            copied = copying.as_mut() => match copied {
                Ok(_) => return,
                Err(_) => break,
            },
            // `FAR` stands in for a time that the clock cannot express.
            () = sleep_until(due.unwrap_or(now + FAR)) => {}
            () = side_end.notified() => {}
            Ok(()) = news.changed() => {}
        }
    }
    drop(copying);
    lease.abandon();
    if has_left.get() {
        let limit = times.get().body;
        server.into_inner().end(limit).await;
        let _ = timeout(limit, client.shutdown()).await;
    }
}
