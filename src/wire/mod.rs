//! What the connections of clients and those to servers have in common: how pieces are written, how long a task goes
//! on reading, and how much a peer may send that is neither a request nor data.

pub(crate) mod budget;
pub(crate) mod overhead;
pub(crate) mod write;
