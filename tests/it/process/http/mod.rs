//! How requests and answers come and go, in every version of HTTP.

mod answers;
mod cors;
mod grpc;
mod hostile;
mod http1;
mod http2;
mod leaving;
mod own_answers;
mod panics;
mod parking;
mod rejected;
mod reloads;
mod smuggling;
mod spellings;
mod targets;
mod timeouts;
mod tls;
mod upgrade;
mod wire;
