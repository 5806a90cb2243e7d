//! Several processes that share limits through Redis.

mod cluster;
mod places;
mod share;
mod tls;
