//! Several processes that share limits through Redis.

mod cluster;
mod fleet;
mod locations;
mod service;
mod share;
mod tls;
mod without_redis;
