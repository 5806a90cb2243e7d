//! The task that drives a connection to a server.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::task::{AbortHandle, spawn_local};

use super::error::{ServerFailure, is_http1_required};

/// The task that reads and writes a connection. It ends with the connection's last owner.
#[derive(Debug)]
pub(super) struct Driver {
    task: AbortHandle,
    /// The error that ended the connection, if no request has failed with it.
    fault: Rc<RefCell<Option<hyper::Error>>>,
    /// An exchange on the connection broke.
    pub(super) is_broken: Cell<bool>,
}

impl Driver {
    /// Drives a connection in its own task.
    pub(super) fn start(connection: impl Future<Output = hyper::Result<()>> + 'static) -> Self {
        let fault = Rc::<RefCell<Option<hyper::Error>>>::default();
        let noted = fault.clone();
        let task = spawn_local(async move {
            noted.replace(connection.await.err());
        });
        Self { task: task.abort_handle(), fault, is_broken: Cell::default() }
    }

    /// The reason for a failed request. For a request that was not sent, hyper only says that it was
    /// cancelled. The error that ended the connection is then the better answer. A demand for HTTP/1.1 in a
    /// GOAWAY concerns all requests of the connection, also those that only see the connection end.
    pub(super) fn explain(&self, error: hyper::Error, heard: bool) -> ServerFailure {
        let mut fault = self.fault.borrow_mut();
        if is_http1_required(&error) || fault.as_ref().is_some_and(is_http1_required) {
            return ServerFailure::Http1Required;
        }
        let fault = if error.is_canceled() { fault.take() } else { None };
        ServerFailure::Exchange { source: fault.unwrap_or(error), heard }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.task.abort();
    }
}
