//! Several processes that share limits through Redis.

mod share;
mod tls;
