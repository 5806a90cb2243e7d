//! How long a connection's task may go on reading before it lets other tasks run.

use std::task::{Context, Poll};

use tokio::task::coop::poll_proceed;

/// The bytes that one unit of tokio's budget pays for. A task has 128 units at a time, so it moves half a MiB
/// before others are served.
const BYTES_PER_UNIT: usize = 4 * 1024;

/// Takes the cost of `read` bytes off the task's budget. tokio counts reads and not bytes. But chunk
/// framing is parsed byte by byte. A peer that sends nothing but chunk framing could hold up all other
/// tasks.
pub(crate) fn spend_on(read: usize, cx: &mut Context<'_>) {
    for _ in 0..read / BYTES_PER_UNIT {
        match poll_proceed(cx) {
            Poll::Ready(unit) => unit.made_progress(),
            Poll::Pending => break,
        }
    }
}
