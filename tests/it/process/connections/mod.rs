//! Client connections before their first request: who may have how many, and who is at the other end.

mod bound;
mod handed_over;
mod per_client;
mod proxy_protocol;
mod successor;
mod unix;
