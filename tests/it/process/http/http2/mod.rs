//! HTTP/2 with clients, in clear text with prior knowledge.

mod bodies;
mod breaks;
mod costs;
mod floods;
mod heads;
mod lifetimes;
mod limited;
mod slots;
mod smuggling;
mod streams;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};

use crate::support::proxy::Proxy;
use crate::support::upstream::{Got, Upstream, ok};

/// A proxy whose log tells of each request.
fn logged(api: &Upstream) -> Proxy {
    Proxy::of_one_worker(api)
        .section("[log]\naccess = true\nthrottle = \"each\"")
        .upstream("response_timeout = \"1h\"")
}

/// An API that answers requests to `/slow…` when it is told to, and tells of each that it got.
struct Gate {
    api: Upstream,
    came: Receiver<String>,
    open: Arc<(Mutex<Vec<String>>, Condvar)>,
}

impl Gate {
    fn new() -> Self {
        let (tell, came): (Sender<String>, _) = channel();
        let open: Arc<(Mutex<Vec<String>>, Condvar)> = Arc::default();
        let gate = open.clone();
        let api = Upstream::answering(move |got: &Got| {
            let path = got.path().to_owned();
            if path.starts_with("/slow") {
                let _ = tell.send(path.clone());
                let open = gate.0.lock().unwrap();
                drop(gate.1.wait_while(open, |open| !open.contains(&path)).unwrap());
            }
            ok(&path)
        });
        Self { api, came, open }
    }

    /// Waits until the API has a slow request.
    fn has(&self) -> String {
        self.came.recv_timeout(crate::support::PATIENCE).expect("a slow request comes")
    }

    /// Lets the API answer requests with this path.
    fn open(&self, path: &str) {
        self.open.0.lock().unwrap().push(path.to_owned());
        self.open.1.notify_all();
    }
}
