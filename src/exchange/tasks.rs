//! The tasks of a worker that hold what requests have taken of their limits: clients' connections, and the requests that
//! go on after their clients have left.

use std::cell::RefCell;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// These tasks of one worker.
#[derive(Debug, Default)]
pub(crate) struct WorkerTasks {
    all: RefCell<JoinSet<()>>,
    /// Counts the requests of the whole process that go on without their clients.
    abandoned: TaskTracker,
}

impl WorkerTasks {
    /// No tasks yet.
    pub(crate) fn new(abandoned: TaskTracker) -> Self {
        Self { all: RefCell::default(), abandoned }
    }

    /// Begins a task.
    pub(crate) fn add(&self, task: impl Future<Output = ()> + 'static) {
        let mut all = self.all.borrow_mut();
        while all.try_join_next().is_some() {}
        all.spawn_local(task);
    }

    /// Goes on with the rest of a request whose client has left, for no longer than `limit`. It is counted before its
    /// connection ends: a process that drains sees one or the other.
    pub(crate) fn go_on(&self, limit: Duration, rest: impl Future<Output = ()> + 'static) {
        // Without a runtime the worker has ended.
        if Handle::try_current().is_ok() {
            self.add(timeout(limit, self.abandoned.track_future(rest)).map(drop));
        }
    }

    /// Ends all tasks. When this returns, everything that their requests held is being given back.
    pub(crate) async fn cut(&self) {
        // A connection that ends may begin the rest of a request.
        while !self.all.borrow().is_empty() {
            self.all.take().shutdown().await;
        }
    }
}
