//! The request ID: the header by which a request is named.

use http::header::{HeaderMap, HeaderValue};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::limit::time::Timestamp;
use crate::observe::new_uuid;
use crate::settings::ServerSpec;

/// Writes the request ID into its header, if the file names a header for the ID. The ID is that of a
/// trusted proxy, or a new one. `trusted` is whether one sent the request.
pub(super) fn name(
    clock: &Clock,
    server: &ServerSpec,
    trusted: impl Fn() -> bool,
    began: Instant,
    headers: &mut HeaderMap,
) -> Option<Box<HeaderValue>> {
    let name = server.request_id.as_ref()?;
    let given = headers.get(name).filter(|id| !id.is_empty() && trusted()).cloned();
    let id = given.or_else(|| new_id(clock.wall().at(clock.at(began))))?;
    headers.insert(name, id.clone());
    Some(Box::new(id))
}

/// A new request ID for a request that came at this time of day.
fn new_id(wall: Timestamp) -> Option<HeaderValue> {
    let mut text = uuid::Uuid::encode_buffer();
    HeaderValue::from_str(new_uuid(wall).hyphenated().encode_lower(&mut text)).ok()
}
