//! How long a connection's task may go on before it lets others come.

use std::task::{Context, Poll};

use tokio::task::coop::poll_proceed;

/// Bytes whose reading costs a unit of the runtime's budget, of which a task has 128 at a time.
const BYTES_PER_UNIT: usize = 16 * 1024;

/// Takes what `read` bytes cost off the task's budget, which counts reads whatever their size: whoever sends
/// framing without end, which is looked at byte by byte, would hold up all others.
pub fn spend_on(read: usize, cx: &mut Context<'_>) {
    for _ in 0..read / BYTES_PER_UNIT {
        match poll_proceed(cx) {
            Poll::Ready(unit) => unit.made_progress(),
            Poll::Pending => break,
        }
    }
}
