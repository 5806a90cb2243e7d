//! Ports that nobody else gets.

use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};

/// A port of loopback on which nobody listens. As long as it is held the system gives it to nobody who
/// asks for any port; who names it can listen there, with `SO_REUSEADDR`, as servers do.
pub(crate) struct Port {
    pub(crate) address: SocketAddr,
    _holder: Socket,
}

impl Port {
    pub(crate) fn hold() -> Self {
        let holder = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        holder.set_reuse_address(true).unwrap();
        holder.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = holder.local_addr().unwrap().as_socket().unwrap();
        Self { address, _holder: holder }
    }
}
