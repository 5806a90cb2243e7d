//! One test for each fault that was found after the fact, named for what went wrong.

mod claims;
mod connections;
mod messages;
mod process;
mod times;
mod upstreams;

use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;

/// A proxy with one limit of two requests, which further lines say more about.
fn limited(api: &Upstream, server: &str, limit: &str) -> Tidegate {
    let limit = format!("rate = \"2/h\"\n{limit}");
    Proxy::of_one_worker(api).server(server).limit("two", &limit).start()
}
