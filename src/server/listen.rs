//! Listening sockets. Each worker has one socket for each address.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// How many connections the kernel completes before they are accepted.
const BACKLOG: i32 = 4096;

/// Sockets that share `address`, one for each of `workers`, and the address they got. Port 0 means any free
/// port.
///
/// The first socket is bound without `SO_REUSEPORT`. A port in use is then an error, and is not shared with
/// another process. After that, the option is set, to let the other sockets use the port.
pub(super) fn sockets(
    address: SocketAddr,
    workers: usize,
) -> io::Result<(SocketAddr, Vec<TcpListener>)> {
    let first = socket(address)?;
    first.bind(&address.into())?;
    first.set_reuse_port(true)?;
    first.listen(BACKLOG)?;
    let first: TcpListener = first.into();
    let bound = first.local_addr()?;
    let mut sockets = vec![first];
    for _ in 1..workers {
        let next = socket(bound)?;
        next.set_reuse_port(true)?;
        next.bind(&bound.into())?;
        next.listen(BACKLOG)?;
        sockets.push(next.into());
    }
    Ok((bound, sockets))
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not wait for old connections in the state TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_an_error_and_workers_share_one() {
        let (address, sockets) = sockets("127.0.0.1:0".parse().unwrap(), 3).unwrap();
        assert_eq!(sockets.len(), 3);
        assert!(sockets.iter().all(|socket| socket.local_addr().unwrap() == address));
        let error = super::sockets(address, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
