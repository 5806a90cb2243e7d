//! The spans that a collector gets, and what an upstream is told of them.

mod collectors;
mod context;
mod spans;
