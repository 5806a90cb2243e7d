//! Opens a connection to a server.

use std::io;

use tokio::net::TcpStream;

use super::connection::Connection;
use crate::plan::ServerAddress;

/// Connects over TCP.
pub(super) async fn open(server: &ServerAddress) -> io::Result<Box<Connection>> {
    let stream = TcpStream::connect((server.host.as_str(), server.port)).await?;
    stream.set_nodelay(true)?;
    Ok(Box::new(Connection::new(stream)))
}
