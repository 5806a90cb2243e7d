//! What `/metrics` says.

use std::net::SocketAddr;

use super::client::get;

/// The page, and its samples by name with labels.
pub(crate) struct Metrics(pub(crate) String);

impl Metrics {
    /// Asks the admin endpoint, which must have no token.
    pub(crate) fn of(admin: SocketAddr) -> Self {
        let reply = get(admin, "/metrics", &[("host", "localhost")]);
        assert_eq!(reply.status, 200, "{}", reply.text());
        Self(reply.text())
    }

    /// A sample by its whole name, as in `tidegate_waiting` or `x{a="b"}`; 0 where there is none.
    pub(crate) fn value(&self, name: &str) -> f64 {
        let mut found =
            self.0.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        found.next().map_or(0.0, |value| value.parse().unwrap())
    }

    /// How many samples a family has.
    pub(crate) fn samples(&self, family: &str) -> usize {
        let opening = format!("{family}{{");
        self.0.lines().filter(|line| line.starts_with(&opening)).count()
    }
}
