//! tidegate: a reverse proxy that throttles the traffic to an existing API.
//!
//! # The map
//! From the ground up: each floor uses those below it, and no room of its own floor (`tests/it/library/layers.rs`).
//!
//! The core, which knows no network:
//! - [`limit`]: the algorithms, buckets and decisions: whole numbers, no clock. It imports no other module.
//! - [`request`]: what a request's head means: path, route, client, keys.
//! - [`mod@file`], [`percent`], [`text`], [`clock`]: reading a file that may change, percent-encoding, characters
//!   that mislead a reader, the time.
//!
//! What an operator wrote:
//! - [`plans`]: what each customer has bought.
//! - [`settings`]: the finished configuration, data alone. [`config`] makes it from `proxy.toml`.
//! - [`reading`]: what a request's head means under these settings: for the proxy, calls, replays and `explain`.
//! - [`jwt`]: tokens of clients, verified when a limit reads one of their claims.
//!
//! Deciding:
//! - [`observe`]: log lines, throttle summaries, metrics, traces, top keys, the last hour.
//! - [`redis`]: the client of Redis: servers, connections, calls. [`store`] alone uses it.
//! - [`store`]: where decisions are applied atomically: in the process, or in Redis.
//! - [`throttle`]: where a request meets its limits.
//!
//! Sockets:
//! - [`wire`]: what connections on both sides have in common: writing in pieces, bounds on reading, finding servers by
//!   their names. [`tls`]: certificates from files, and which of them clients and APIs get.
//! - [`upstream`]: the API's servers: connections, balancing, retries, health.
//! - [`answer`]: what tidegate says by itself: refusals, rejections, the `ratelimit` fields, gRPC.
//! - [`exchange`]: a request that is under way: its client's connection, its record, its response's body.
//! - [`proxy`]: the service of `server.listen`: the way of one request that is forwarded.
//! - [`decide`]: the service of `decide.listen`: calls of other proxies, and the answers to them.
//! - [`downstream`]: a client's connection: accepted, watched by its timer, closed. It hands a request to the service
//!   of its port.
//!
//! The process:
//! - [`worker`], [`reload`], [`admin`], [`server`]: threads, saved files, the page and its JSON, start and end.
//! - [`replay`]: tries the limits of a file on the requests of logs and on the tests in the file.
//! - [`cli`]: the commands.
//!
//! # A request's walk
//! `downstream::accept` accepts a connection on one worker; hyper reads its requests, and `downstream::http1` or
//! `http2` hands each to the service of its port, `Proxy::answer`. [`reading`] finds the host, the path's normal
//! form, the client's address and the route. Then `Throttle::admit` reads one key for each limit, chooses the figures
//! for this key (`throttle::gather`), and asks the store once. A request that passes only after a wait is held.
//! `Upstream::send` sends the request that passes. The answer flows back through `exchange::body`, and its end
//! settles, counts and logs the request (`exchange::record`). If a request does not pass a step, `answer::refusal` says
//! why, and [`answer`] makes the response. A client that leaves drops its request, and with it what the request
//! holds: a dropped grant goes back to its bucket (`store::grant`). If Redis decides, the head of
//! `call/shell.lua` of the crate explains the numbers that go between Rust and Lua.
//!
//! # A 429, from the decision to its header
//! An algorithm in `limit::algorithm` decides when the request could go. Its answer is a
//! `limit::decision::Decision` with the wait in microseconds. The store puts the decision into the limit's
//! claim, and `verdict` in `store/claim.rs` combines all claims to one answer: the longest wait counts. `throttle`
//! either holds the request for that time, or adds `reject.jitter` and returns `Refused::Throttled`.
//! `observe::throttled` writes the log line. `answer` rounds the wait up to whole seconds for `retry-after`
//! (`limit::decision::whole_seconds`). `answer/quotas.rs` writes the `ratelimit` fields. `answer::rejection` composes
//! the response, for gRPC too.
//!
//! # A new setting, from its declaration to its use
//! [`settings`] has a field for its value, of a type that cannot hold a wrong value. One line in `SETTINGS` of its
//! section in `config::section` declares it: name, kind, default, meaning, and that field. The reading of the file, the
//! JSON Schema, docs/reference.md, the report of a reload and the output of `/api/config` follow from the line
//! (`config::reader::setting`). A setting that means something only beside others is read by the section's code. If
//! only some algorithms have the setting, the table in `config/section/limit/algorithm.rs` says so. The code that uses
//! the setting reads it from the settings in force. Tests demand that the repository's `proxy.toml` has the setting
//! too, with its default.
//!
//! # A saved file, until the next request
//! [`reload`] looks at the file five times a second, and uses new content when two looks have read the same.
//! `config::load_again` makes [`settings`] from the content, or a list of problems. `server` logs the problems, and the
//! old settings stay. `server` publishes new settings to all workers. Each [`worker`] makes its own upstreams for the
//! new settings, keeps the connections of upstreams that did not change, and hands the settings to its services. A
//! request that has begun ends with the settings with which it began. The next request has the new ones. Only the
//! time-outs for clients hold at once (`upstream::times`). A bucket is known by its limit's name, algorithm and key. It
//! stays while these stay.

pub mod admin;
mod answer;
pub mod cli;
pub mod clock;
pub mod config;
mod decide;
pub mod downstream;
mod exchange;
pub mod file;
pub mod jwt;
pub use tidegate_limit as limit;
pub mod observe;
mod percent;
mod plans;
pub mod proxy;
mod reading;
pub mod redis;
pub mod reload;
pub mod replay;
pub mod request;
pub mod server;
pub mod settings;
pub mod store;
mod text;
pub mod throttle;
pub mod tls;
pub mod upstream;
mod wire;
pub mod worker;
