//! Opens a connection to a server.

use std::io;

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::pool::Connection;
use crate::plan::ServerAddress;

/// Connects over TCP and speaks HTTP/1.1.
pub(super) async fn open(server: &ServerAddress) -> io::Result<Connection> {
    let stream = TcpStream::connect((server.host.as_str(), server.port)).await?;
    stream.set_nodelay(true)?;
    let (sender, driver) =
        http1::Builder::new().handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let driver = tokio::spawn(async move {
        // How an exchange ended is told to the one who waits for it; an idle connection may just
        // close.
        let _ = driver.with_upgrades().await;
    });
    Ok(Connection::new(sender, driver.abort_handle()))
}
