//! How many connections each client has, for `max_connections_per_client`.

use std::collections::HashMap;
use std::net::IpAddr;

use parking_lot::Mutex;

/// The number of open connections of each client. A client without a connection takes no memory.
#[derive(Debug, Default)]
pub(super) struct ConnectionCounts(Mutex<HashMap<IpAddr, usize>>);

impl ConnectionCounts {
    /// Counts one more connection of `client`, which has at most `most`. Returns false, and counts nothing,
    /// if the client has `most` already.
    pub(super) fn add(&self, client: IpAddr, most: usize) -> bool {
        let mut counts = self.0.lock();
        let count = counts.entry(client).or_default();
        let fits = *count < most;
        *count += usize::from(fits);
        fits
    }

    /// One connection of `client` that was counted has ended.
    pub(super) fn remove(&self, client: IpAddr) {
        let mut counts = self.0.lock();
        if let Some(count) = counts.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_each_client_are_bounded_and_a_client_that_left_costs_no_memory() {
        let counts = ConnectionCounts::default();
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
        assert!(counts.add(one, 2) && counts.add(one, 2) && !counts.add(one, 2));
        assert!(counts.add(other, 2));
        counts.remove(one);
        assert!(counts.add(one, 2) && !counts.add(one, 2));
        assert!(counts.add(one, 3), "a reload allows more");
        for client in [one, one, one, other] {
            counts.remove(client);
        }
        assert!(counts.0.lock().is_empty());
    }

    #[test]
    fn a_client_that_may_have_none_leaves_no_trace() {
        let counts = ConnectionCounts::default();
        let client = "192.0.2.1".parse().unwrap();
        assert!(counts.add(client, 1));
        assert!(!counts.add(client, 1));
        counts.remove(client);
        assert!(counts.0.lock().is_empty());
    }
}
