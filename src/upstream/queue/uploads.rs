//! How many of the requests in flight are uploads, and whose.

use std::collections::HashMap;
use std::net::IpAddr;

/// The requests in flight whose body still comes from the client.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    pub(super) all: usize,
    pub(super) by_client: HashMap<IpAddr, usize>,
}

impl Uploads {
    /// Whether an upload may begin. It may if the number of all uploads plus that of this client's uploads is below the
    /// limit. So one client has at most half of the permits while it sends its bodies. Each further client has at most
    /// half of the permits that are left.
    pub(super) fn allow(&self, client: IpAddr, limit: Option<f64>) -> bool {
        let its = self.by_client.get(&client).copied().unwrap_or_default();
        limit.is_none_or(|limit| ((self.all + its) as f64) < limit.floor())
    }

    pub(super) fn begin(&mut self, client: IpAddr) {
        self.all += 1;
        *self.by_client.entry(client).or_default() += 1;
    }

    pub(super) fn end(&mut self, client: IpAddr) {
        self.all -= 1;
        let its = self.by_client.get(&client).copied().unwrap_or_default();
        match its {
            0 | 1 => self.by_client.remove(&client),
            _ => self.by_client.insert(client, its - 1),
        };
    }
}
