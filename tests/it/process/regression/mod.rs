//! One test for each fault that was found after the fact, named for what went wrong.

mod claims;
mod connections;
mod messages;
mod process;
mod times;
mod upstreams;

use crate::support::proxy::Proxy;
use crate::support::upstream::Upstream;

/// A proxy with one limit of two requests, of which these lines say more.
fn limited(api: &Upstream, limit: &str) -> Proxy {
    Proxy::of_one_worker(api).limit("two", &format!("rate = \"2/h\"\n{limit}"))
}
