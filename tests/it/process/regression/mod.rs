//! One test for each fault that was found after the fact, named for what went wrong.

mod claims;
mod connections;
mod messages;
mod process;
mod times;
mod upstreams;

use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, section};

/// A proxy with one limit of two requests, which further lines say more about.
fn limited(api: &Upstream, server: &str, limit: &str) -> Tidegate {
    Tidegate::start(&format!(
        "[server]\nlisten = \"LISTEN\"\nworkers = 1\n{server}\n{}\
         [limits.two]\nrate = \"2/h\"\n{limit}\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\nlimits = [\"two\"]\n",
        section(&[api])
    ))
}
