//! What black-box tests stand on: a tidegate process, an API behind it, a client in front.

#![allow(dead_code, reason = "not every test module needs every tool")]

pub(crate) mod algorithms;
pub(crate) mod api;
pub(crate) mod bench;
pub(crate) mod browser;
pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod collector;
pub(crate) mod http2;
pub(crate) mod java;
pub(crate) mod limits;
pub(crate) mod metrics;
pub(crate) mod model_apis;
pub(crate) mod peer_server;
pub(crate) mod port;
pub(crate) mod proxy;
pub(crate) mod redis;
pub(crate) mod sentinels;
pub(crate) mod service;
pub(crate) mod tidegate;
pub(crate) mod tls;
pub(crate) mod tokens;
pub(crate) mod upstream;
pub(crate) mod worker;

use std::time::{Duration, Instant};

/// How long a test waits for what must come: long enough for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `ready` says so.
///
/// # Panics
/// Where it does not within [`PATIENCE`].
pub(crate) fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = now() + PATIENCE;
    while !ready() {
        assert!(now() < deadline, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The same for what has to be awaited.
pub(crate) async fn until(what: &str, mut ready: impl AsyncFnMut() -> bool) {
    let deadline = now() + PATIENCE;
    while !ready().await {
        assert!(now() < deadline, "waited too long: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[allow(clippy::disallowed_methods, reason = "a test's patience is real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
