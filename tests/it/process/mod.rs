//! What runs the process: a tidegate, an API behind it, a client in front.

mod admin;
mod api;
mod cli;
mod connections;
mod decide;
mod drain;
mod http;
mod limits;
mod logs;
mod overrides;
mod readme;
mod regression;
mod reload;
mod runbook;
mod server_and_routes;
mod shared;
mod tokens;
mod traces;
mod upstreams;
