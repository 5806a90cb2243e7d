//! Opens listening sockets. On the network each worker has its own socket for each address. A Unix socket
//! is shared by all workers.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::downstream::Listener;
use crate::downstream::accept::LONGEST_QUEUE;
use crate::settings::{ListenAddress, are_both_wildcards};

/// The rights of a Unix socket's file: the user and the group of this process may connect.
const SOCKET_MODE: u32 = 0o660;

/// The settings that name addresses to listen on. A successor gets sockets by these names.
pub(super) const SERVER: &str = "server.listen";
pub(super) const TLS: &str = "server.tls.listen";
pub(super) const DECIDE: &str = "decide.listen";
pub(super) const ADMIN: &str = "admin.listen";
pub(super) const SETTINGS: [&str; 4] = [SERVER, TLS, DECIDE, ADMIN];

/// A listening socket of the process.
#[derive(Debug)]
pub(super) struct ListeningSocket {
    /// The name that a service manager gave to the socket, which may be empty. Otherwise the name of the setting.
    pub(super) name: String,
    pub(super) address: ListenAddress,
    pub(super) listener: Listener,
    /// Whether this process or its predecessor has opened the socket, and not a service manager.
    pub(super) is_own: bool,
}

/// Sockets that share `address`: one for each of `workers`, or one Unix socket. Port 0 means any free port. If `list`
/// has both `[::]` and `0.0.0.0` with the same port, `[::]` takes IPv6 alone, because `0.0.0.0` takes IPv4.
pub(super) fn open(
    address: &ListenAddress,
    list: &[SocketAddr],
    setting: &str,
    workers: usize,
) -> io::Result<Vec<ListeningSocket>> {
    let (address, sockets) = match address {
        ListenAddress::Tcp(address) => {
            let is_one_of_both = list.iter().any(|other| are_both_wildcards(*other, *address));
            let ipv6_alone = address.is_ipv6() && is_one_of_both;
            let (bound, sockets) = tcp(*address, ipv6_alone, workers)?;
            (ListenAddress::Tcp(bound), sockets)
        }
        ListenAddress::Unix(path) => (address.clone(), vec![unix(path)?]),
    };
    let named = sockets.into_iter().map(|listener| ListeningSocket {
        name: setting.to_owned(),
        address: address.clone(),
        listener,
        is_own: true,
    });
    Ok(named.collect())
}

/// The first socket is bound without `SO_REUSEPORT`. A port in use is then an error, and is not shared with
/// another process. After that, the option is set, to let the other sockets use the port.
fn tcp(
    address: SocketAddr,
    ipv6_alone: bool,
    workers: usize,
) -> io::Result<(SocketAddr, Vec<Socket>)> {
    let first = tcp_socket(address, ipv6_alone)?;
    first.bind(&address.into())?;
    first.set_reuse_port(true)?;
    first.listen(LONGEST_QUEUE.into())?;
    let bound = first.local_addr()?.as_socket().unwrap_or(address);
    let mut sockets = vec![first];
    for _ in 1..workers {
        let next = tcp_socket(bound, ipv6_alone)?;
        next.set_reuse_port(true)?;
        next.bind(&bound.into())?;
        next.listen(LONGEST_QUEUE.into())?;
        sockets.push(next);
    }
    Ok((bound, sockets))
}

fn tcp_socket(address: SocketAddr, ipv6_alone: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if ipv6_alone {
        socket.set_only_v6(true)?;
    }
    // A restart must not wait for old connections in the state TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn unix(path: &Path) -> io::Result<Socket> {
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    if let Err(error) = socket.bind(&address) {
        if error.kind() != io::ErrorKind::AddrInUse || !is_stale(path, &address)? {
            return Err(error);
        }
        fs::remove_file(path)?;
        socket.bind(&address)?;
    }
    // Nobody can connect before `listen`.
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))?;
    socket.listen(LONGEST_QUEUE.into())?;
    Ok(socket)
}

/// Whether the file at `path` is a socket on which nobody listens any more: its process was killed.
fn is_stale(path: &Path, address: &SockAddr) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        let error = "there is a file that is no socket; move it away, or choose another path";
        return Err(io::Error::other(error));
    }
    let client = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A process whose queue is full must not hold up this one.
    client.set_nonblocking(true)?;
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    Ok(client.connect(address).is_err_and(refused))
}

/// Gives each worker its sockets. If there are fewer sockets than workers, some workers share a socket. If there are
/// more sockets, some workers have several: clients of a socket without a worker would wait for ever.
pub(super) fn share(sockets: &[ListeningSocket], workers: usize) -> io::Result<Vec<Vec<Listener>>> {
    let mut shares: Vec<Vec<Listener>> = (0..workers).map(|_| Vec::new()).collect();
    for (index, socket) in sockets.iter().cycle().take(sockets.len().max(workers)).enumerate() {
        shares[index % workers].push(socket.listener.try_clone()?);
    }
    Ok(shares)
}

/// The file of a Unix socket that this process listens on.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    /// The file of a socket with this address. `None` for an address on the network.
    pub(super) fn of(address: &ListenAddress) -> io::Result<Option<Self>> {
        let ListenAddress::Unix(path) = address else { return Ok(None) };
        let identity = identity(&fs::symlink_metadata(path)?);
        Ok(Some(Self { path: path.clone(), identity }))
    }

    /// Removes the file, if it is still this process's own. To be called while the socket is open: no other
    /// file can have the same inode then.
    pub(super) fn remove(&self) {
        let own = fs::symlink_metadata(&self.path);
        if own.is_ok_and(|found| identity(&found) == self.identity) {
            // If the file cannot be removed, the next process finds that it is stale.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

#[cfg(test)]
mod tests {
    use socket2::SockRef;

    use super::*;

    fn open(address: &ListenAddress, workers: usize) -> io::Result<Vec<ListeningSocket>> {
        super::open(address, &[], SERVER, workers)
    }

    #[test]
    fn a_port_in_use_is_an_error_and_workers_share_one() {
        let any = ListenAddress::Tcp("127.0.0.1:0".parse().unwrap());
        let sockets = open(&any, 3).unwrap();
        assert_eq!(sockets.len(), 3);
        let bound = SockRef::from(&sockets[2].listener).local_addr().unwrap().as_socket();
        assert!(sockets.iter().all(|socket| socket.address.tcp() == bound.as_ref()));
        let error = open(&sockets[0].address, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn both_wildcards_of_a_port_can_be_together_and_one_takes_both_families_alone() {
        let open = |text: &str, list: &[SocketAddr]| {
            let address = ListenAddress::Tcp(text.parse().unwrap());
            super::open(&address, list, SERVER, 2)
        };
        let held = open("0.0.0.0:0", &[]).unwrap();
        let ipv4 = *held[0].address.tcp().unwrap();
        let ipv6 = format!("[::]:{}", ipv4.port());
        let list = [ipv4, ipv6.parse().unwrap()];
        assert_eq!(open(&ipv6, &list).unwrap().len(), 2);
        let error = open(&ipv6, &list[1..]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn every_socket_has_a_worker_and_every_worker_a_socket() {
        let any = ListenAddress::Tcp("127.0.0.1:0".parse().unwrap());
        for (sockets, workers, expected) in [
            (3, 3, &[1, 1, 1][..]),
            (1, 3, &[1, 1, 1]),
            (2, 3, &[1, 1, 1]),
            (5, 2, &[3, 2]),
            (0, 2, &[0, 0]),
        ] {
            let mut opened = open(&any, sockets.max(1)).unwrap();
            opened.truncate(sockets);
            let shares = share(&opened, workers).unwrap();
            assert_eq!(shares.iter().map(Vec::len).collect::<Vec<_>>(), expected, "{sockets}");
        }
    }
}
