//! What a limit never looks at.

use http::{HeaderName, HeaderValue};
use ipnet::IpNet;

use super::key::View;
use super::route::Pattern;

/// Requests that a limit does not apply to: any one entry suffices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exempt {
    /// Clients' networks.
    pub networks: Vec<IpNet>,
    /// Paths.
    pub paths: Vec<Pattern>,
    /// Headers with exactly this value.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl Exempt {
    /// Whether the request is exempt.
    pub fn covers(&self, request: &View<'_>) -> bool {
        unimplemented!("{request:?}")
    }
}
