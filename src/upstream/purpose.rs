//! What a connection to a server is for.

/// What a request needs its connection for, and what a connection was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The protocol that the server prefers.
    Any,
    /// HTTP/1.1, for a request that offers to change the protocol: HTTP/2 has nothing of that kind
    /// (RFC 9113, 8.6).
    Http1,
    /// A connection that nobody uses afterwards, for a request that may authenticate the connection. It is HTTP/1.1 if
    /// the server has that.
    Own,
}

impl Purpose {
    /// Whether a connection that was made for this may carry a request that wants `other`.
    pub(super) fn serves(self, other: Self) -> bool {
        self == Self::Any || self == other
    }
}
