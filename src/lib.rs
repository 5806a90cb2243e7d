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
//! - [`mod@file`]: reading a file, and whether it may have changed; [`percent`]: percent-encoding.
//! - [`observe`]: log lines, throttle summaries, metrics; [`clock`]: the time.
//! - [`worker`], [`server`], [`reload`], [`admin`]: the process around it; [`cli`]: the commands.
//!
//! # A request's walk
//! `downstream::accept` accepts a connection on one worker; hyper reads its requests, and
//! `downstream::http1` hands each to `Proxy::handle`: the plan in force, the host, the path's normal form, the
//! route, the client's address, the time. Then `Throttle::admit` reads one key for each limit and asks the
//! store once, and holds what passes only after a wait; what passes is sent by `Upstream::send`, and its
//! answer flows back through `proxy::body`, whose end settles, counts and logs the request. Whatever stops
//! it on the way is a `proxy::refusal`, which `proxy::answer` turns into a response. Where Redis decides, the
//! head of `store/shell.lua` has the numbers that go between Rust and Lua.
//!
//! # A 429, from the decision to its header
//! An algorithm in `limit::algorithm` decides when the request could go. Its answer is a
//! `limit::decision::Decision` with the wait in microseconds. The store puts the decision into the limit's
//! claim, and `verdict` in `store/claim.rs` makes one answer of all the claims: the longest wait counts.
//! `throttle` either holds the request for that time or returns `Refused::Throttled` with it, and
//! `observe::throttled` writes the log line. `proxy::answer` rounds the wait up to whole seconds for
//! `retry-after` (`whole_seconds` in `proxy/headers/quotas.rs`, which also writes the `ratelimit` fields).
//! `proxy::rejection` composes the response, for gRPC too.
//!
//! # A new setting, from its declaration to its use
//! [`plan`] has a place for its value, of a type that cannot hold a wrong one. One line in `SETTINGS` of its
//! section in `config::section` declares it: name, kind, default, meaning, and that place. The reading of the
//! file, the JSON Schema, docs/reference.md and what a reload says of a change follow from the line
//! (`config::setting`), unless the setting is one that only means something beside others: the section's code
//! reads those. If only some algorithms have the setting, the table in `config/section/limit/algorithm.rs`
//! says so. The part that uses the setting reads it from the plan that is in force. Tests want it in
//! `proxy.toml` too, with its default.
//!
//! # A saved file, until the next request
//! [`reload`] looks at the file five times a second and reads it when two looks found the same new
//! content. `config::load_again` makes a [`plan`] of it, or a list of problems, which `server` logs while
//! the old plan stays. `server` publishes the new plan to all workers. Each [`worker`] makes its own
//! upstreams for it, keeps the connections of servers that stay, and hands it to its `Proxy`. A request
//! that has begun ends with the plan that it began with; the next one has the new plan. Buckets are known
//! by their limit's name, its algorithm and its key, so they stay where these stay.

pub mod admin;
pub mod cli;
pub mod clock;
pub mod config;
pub mod downstream;
pub mod file;
pub mod limit;
pub mod observe;
mod percent;
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
