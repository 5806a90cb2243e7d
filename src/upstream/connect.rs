//! Opens a connection to a server.

use std::io;

use tokio::net::TcpStream;

use super::connection::Connection;
use crate::plan::{Endpoint, Scheme, ServerAddress};

/// Connects over TCP.
pub(super) async fn open(server: &ServerAddress) -> io::Result<Box<Connection>> {
    let (Endpoint::Tcp { host, port }, Scheme::Http) = (&server.endpoint, server.scheme) else {
        // Nothing that was meant to be secret may go out in clear text.
        return Err(io::Error::new(io::ErrorKind::Unsupported, "it is not spoken yet"));
    };
    let stream = TcpStream::connect((host.as_str(), *port)).await?;
    stream.set_nodelay(true)?;
    Ok(Box::new(Connection::new(stream)))
}
