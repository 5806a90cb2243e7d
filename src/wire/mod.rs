//! What the connections of clients and those to servers have in common: how pieces are written, how much a peer may send
//! that is neither a request nor data, and what one stream of HTTP/2 may cost the others. And what connections to all
//! kinds of servers have in common: how they are made (`dialer`).

pub(crate) mod dialer;
pub(crate) mod overhead;
mod resolver;
pub(crate) mod streams;
pub(crate) mod upload;
pub(crate) mod write;
