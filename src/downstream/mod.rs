//! A client's connection from accept to close: what it speaks, how long it may take, and how it ends.

pub mod accept;
mod http1;
mod stream;
mod tunnel;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch::Receiver;

use self::accept::Slot;
use self::stream::ClientStream;
use crate::plan::ServerSpec;
use crate::proxy::client::{Client, Phase, Socket, Times};
use crate::proxy::{Peer, Proxy};

/// How far away a timer is set that is not meant to fire.
const FAR: Duration = Duration::from_secs(24 * 3600);

/// What a worker serves connections with.
pub struct Worker {
    /// What answers requests.
    pub proxy: Arc<Proxy>,
}

/// Serves a connection to its end. It holds its slot until then.
async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    worker: Arc<Worker>,
    _slot: Slot,
    draining: Receiver<bool>,
) {
    // Without it small answers wait for the client's acknowledgement; that it cannot be set means
    // that the client has gone.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let client = Arc::new(Client {
        peer: Peer::new(peer.ip()),
        phase: Phase::new(times(&worker.proxy.active().plan.server)),
        socket: Socket::new(stream),
    });
    let stream = ClientStream::new(client.clone());
    http1::serve(stream, client, &worker.proxy, draining).await;
}

fn times(server: &ServerSpec) -> Times {
    Times { header: server.header_timeout, idle: server.idle_timeout, body: server.body_timeout }
}
