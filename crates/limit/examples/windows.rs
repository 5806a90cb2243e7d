//! Several windows on one handler, by user and by address: what Java services write as annotations.
//!
//! `cargo run -p tidegate-limit --features tower --example windows`, then, in another terminal,
//! `for i in 1 2 3 4; do curl -i -H 'x-user: ann' http://127.0.0.1:3000/reports; done`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::net::SocketAddr;

use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::routing::get;
use tidegate_limit::{Charge, Limit, LimitLayer, Limits};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limits = Limits::new([
        Limit::token_bucket("user-a-second", "2/s".parse()?).burst(3),
        Limit::fixed_window("user-a-day", "1000/d".parse()?).on_the_clock(),
        Limit::sliding_window("address-a-minute", "100/m".parse()?),
    ])?;
    let charges = |request: &Request| {
        let user = request.headers().get("x-user").and_then(|user| user.to_str().ok());
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let address = peer.map(|peer| peer.0.ip().to_string()).unwrap_or_default();
        let mut charges = vec![Charge::new("address-a-minute", &[&address])];
        // Count by a header only if something in front of the service sets it: a client can send any.
        if let Some(user) = user {
            charges.push(Charge::new("user-a-second", &[user]));
            charges.push(Charge::new("user-a-day", &[user]));
        }
        charges
    };
    let reports = get(|| async { "a report\n" }).layer(LimitLayer::new(limits, charges));
    let router = Router::new().route("/reports", reports);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/reports", listener.local_addr()?);
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}
