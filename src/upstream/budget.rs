//! How long a connection's task may go on before it lets others come.

use std::task::{Context, Poll};

use tokio::task::coop::poll_proceed;

/// Bytes whose reading costs a unit of the runtime's budget, of which a task has 128 at a time.
const BYTES_PER_UNIT: usize = 16 * 1024;

/// Takes the cost of `read` bytes off the task's budget. tokio counts reads and not bytes. But chunk framing
/// is parsed byte by byte, so that a peer that sends nothing else could hold up all other tasks.
pub fn spend_on(read: usize, cx: &mut Context<'_>) {
    for _ in 0..read / BYTES_PER_UNIT {
        match poll_proceed(cx) {
            Poll::Ready(unit) => unit.made_progress(),
            Poll::Pending => break,
        }
    }
}
