//! Several processes that share limits through Redis.

mod cluster;
mod share;
mod tls;
