//! tidegate: a reverse proxy that throttles the traffic to an existing API.
//!
//! # The map
//! - [`limit`]: the pure core: algorithms, buckets, decisions.
//! - [`request`]: what a request's head means: path, route, client, keys. Pure too.
//! - [`plan`]: the finished configuration; [`config`] makes it from `proxy.toml`.
//! - [`store`]: where decisions are applied atomically: in the process, or in Redis.
//! - [`throttle`]: where a request meets its limits.
//! - [`upstream`]: the API behind: connections, balancing, retries.
//! - [`proxy`]: a request's straight way through, and the answers that tidegate gives itself.
//! - [`downstream`]: a client's connection: accepted, watched by its timer, closed.
//! - [`tls`]: certificates from files, and what clients and APIs are shown of them.
//! - [`file_stamp`]: whether a file may have changed.
//! - [`observe`]: log lines, throttle summaries, metrics; [`clock`]: the time.
//! - [`worker`], [`server`], [`reload`], [`admin`]: the process around it; [`cli`]: the commands.
//!
//! # A request's walk
//! `downstream::accept` accepts a connection on one worker; hyper reads its requests, and
//! `downstream::http1` hands each to `Proxy::handle`: the plan in force, the host, the path's normal form, the
//! route, the client's address, the time. Then `Throttle::admit` reads one key for each limit and asks the
//! store once, and holds what passes only after a wait; what passes is sent by `Upstream::send`, and its
//! answer flows back through `proxy::body`, whose end settles, counts and logs the request. Whatever stops
//! it on the way is a `proxy::refusal`, which `proxy::answer` turns into a response.

pub mod admin;
pub mod cli;
pub mod clock;
pub mod config;
pub mod downstream;
pub mod file_stamp;
pub mod limit;
pub mod observe;
pub mod plan;
pub mod proxy;
pub mod reload;
pub mod request;
pub mod server;
pub mod store;
pub mod throttle;
pub mod tls;
pub mod upstream;
pub mod worker;
