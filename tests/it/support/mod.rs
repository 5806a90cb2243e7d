//! What tests need around the program.

pub(crate) mod limits;
pub(crate) mod redis;
