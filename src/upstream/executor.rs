//! Runs what hyper asks to spawn for an HTTP/2 connection.

use hyper::rt::Executor;
use tokio::task::spawn_local;

/// Makes tasks of this thread. hyper-util's executor wants futures that are `Send`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalExecutor;

impl<F: Future<Output = ()> + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, work: F) {
        spawn_local(work);
    }
}
