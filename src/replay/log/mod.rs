//! Access logs.

pub mod record;
