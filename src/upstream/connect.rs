//! Opens a connection to a server.

use std::io;

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::connection::{Connection, Driver, Exclusive};
use super::stream::ServerStream;
use crate::plan::ServerAddress;

/// The most that is read of a long body at once, and the longest head.
const MOST_READ: usize = 256 * 1024;

/// Connects, and speaks what the server understands.
pub(super) async fn open(server: &ServerAddress) -> io::Result<Connection> {
    let transport = TcpStream::connect((server.host.as_str(), server.port)).await?;
    transport.set_nodelay(true)?;
    let stream = ServerStream::new(transport);
    let watched = stream.watched();
    let (sender, connection) = http1::Builder::new()
        // One copy of a short head and its body costs less than the call for several pieces.
        .writev(false)
        .max_buf_size(MOST_READ)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let driver = Driver::start(async move {
        // How an exchange ended is told to the one who waits for it; an idle connection may just
        // close.
        let _ = connection.with_upgrades().await;
    });
    Ok(Connection::Http1(Box::new(Exclusive::new(sender, watched, driver))))
}
