//! Reads the rest of an upload that nobody uses, so that an HTTP/1.1 connection can be kept.

use std::rc::Rc;
use std::time::Duration;

use http_body::Body as _;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::client::ClientConnection;
use crate::wire::upload::{ClientBody, MOST_DISCARDED, drain};

/// How long an answer waits for the end of such an upload if the length is not announced. Only the end
/// shows whether the connection can be kept.
const DISCARD_TIME: Duration = Duration::from_millis(250);

/// Reads and throws away a body that is not used. A long body is left unread, and so is a body for which
/// the client still awaits `100 Continue` (`awaited`). Returns whether the connection can be used again.
pub(crate) async fn discard(
    mut body: ClientBody,
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
                drain(&mut body, time_limit).await;
                client.phase.discarded();
            });
            return true;
        }
        Some(_) => phase.unsettled.set(true),
        None => {
            phase.unsettled.set(true);
            return timeout(DISCARD_TIME, drain(&mut body, time_limit)).await.unwrap_or(false);
        }
    }
    false
}
