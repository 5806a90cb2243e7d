//! Reads the rest of an upload that nobody uses, so that an HTTP/1.1 connection can be kept.

use std::rc::Rc;
use std::time::Duration;

use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::client::ClientConnection;

/// The most bytes of an unused upload that are read and thrown away, to keep the connection.
const MOST_DISCARDED: u64 = 64 * 1024;

/// How long an answer waits for the end of such an upload if the length is not announced. Only the end
/// shows whether the connection can be kept.
const DISCARD_TIME: Duration = Duration::from_millis(250);

/// Reads and throws away a body that is not used. A long body is left unread, and so is a body for which
/// the client still awaits `100 Continue` (`awaited`). Returns whether the connection can be used again.
pub(super) async fn discard(
    body: Incoming,
    awaited: bool,
    client: &Rc<ClientConnection>,
    time_limit: Duration,
) -> bool {
    let phase = &client.phase;
    match body.size_hint().exact() {
        _ if awaited => phase.unsettled.set(true),
        Some(length) if length <= MOST_DISCARDED => {
            // The end of the body is known, so the answer need not wait for it.
            phase.discard();
            let client = client.clone();
            spawn_local(async move {
                drain(body, time_limit).await;
                client.phase.discarded();
            });
            return true;
        }
        Some(_) => phase.unsettled.set(true),
        None => {
            phase.unsettled.set(true);
            return timeout(DISCARD_TIME, drain(body, time_limit)).await.unwrap_or(false);
        }
    }
    false
}

/// Reads a body and throws it away, up to [`MOST_DISCARDED`] bytes. Each piece must come within `time_limit`.
/// Returns whether the body reached its end.
async fn drain(mut body: Incoming, time_limit: Duration) -> bool {
    let mut left = MOST_DISCARDED;
    loop {
        match timeout(time_limit, body.frame()).await {
            Ok(None) => return true,
            Ok(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                let Some(rest) = left.checked_sub(length) else { return false };
                left = rest;
            }
            Ok(Some(Err(_))) | Err(_) => return false,
        }
    }
}
