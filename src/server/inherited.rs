//! Listening sockets that this process was started with: by a service manager (`sd_listen_fds(3)`), or by its
//! predecessor (`successor`).

use std::env;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd, RawFd};
use std::os::unix::net::UnixStream;

use listenfd::ListenFd;
use socket2::{Domain, SockRef, Type};

use super::listen::{ListenSetting, SocketFile};
use crate::downstream::Listener;
use crate::plan::ListenAddress;

/// The number of the first descriptor that is handed over.
pub(super) const FIRST: RawFd = 3;

/// The name of the socket on which a predecessor waits for the word that this process is ready.
pub(super) const PREDECESSOR: &str = "tidegate-predecessor";

/// The variable in which a predecessor says how many processes share Redis.
pub(super) const PROCESSES: &str = "TIDEGATE_PROCESSES";

/// The sockets that were handed over and are not in use yet.
#[derive(Debug, Default)]
pub(crate) struct InheritedSockets {
    sockets: Vec<InheritedSocket>,
    /// The connection to the predecessor, if the sockets come from one.
    predecessor: Option<UnixStream>,
}

/// A socket that was handed over.
#[derive(Debug)]
struct InheritedSocket {
    descriptor: RawFd,
    /// The socket's name, which can be empty: from systemd the name of the unit, from a predecessor the name
    /// of the setting.
    name: String,
    address: ListenAddress,
    listener: Listener,
}

impl InheritedSockets {
    /// The sockets of `LISTEN_FDS`. To be called once, before the process has threads: it changes the
    /// environment.
    ///
    /// # Errors
    /// If a descriptor is not a listening socket of TCP, or of a Unix socket with a path.
    pub(crate) fn from_env() -> Result<Self, String> {
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut handed_over = ListenFd::from_env();
        let (mut sockets, mut predecessor) = (Vec::new(), None);
        for (index, descriptor) in (0..handed_over.len()).zip(FIRST..) {
            let name = names.next().unwrap_or_default().to_owned();
            let unusable = |error: io::Error| {
                format!("cannot use the descriptor {descriptor} that was handed over: {error}")
            };
            if name == PREDECESSOR {
                let (family, kind) = (Domain::UNIX.into(), Type::STREAM.into());
                let taken = handed_over.take_custom(index, family, kind, "Unix socket");
                predecessor = taken.map_err(unusable)?;
                continue;
            }
            let (address, listener) = listener(&mut handed_over, index).map_err(unusable)?;
            sockets.push(InheritedSocket { descriptor, name, address, listener });
        }
        Ok(Self { sockets, predecessor })
    }

    /// The number of processes that share Redis, if a predecessor has said it.
    pub(super) fn processes(&self) -> Option<u64> {
        self.predecessor.as_ref()?;
        env::var(PROCESSES).ok()?.parse().ok()
    }

    /// Takes the sockets for an address of this setting out. `None` where none was handed over.
    pub(super) fn take(
        &mut self,
        address: &ListenAddress,
        setting: ListenSetting,
    ) -> Option<TakenSockets> {
        let from_predecessor = self.predecessor.is_some();
        let is_own = |socket: &InheritedSocket| from_predecessor && socket.name == setting.name();
        let fits = |socket: &&InheritedSocket| {
            socket.address == *address || is_own(socket) && is_any_port(address, &socket.address)
        };
        let found = self.sockets.iter().find(fits)?;
        let (bound, is_own) = (found.address.clone(), is_own(found));
        let taken = self.sockets.extract_if(.., |socket| socket.address == bound);
        let sockets = taken.map(|socket| (socket.name, socket.listener)).collect();
        Some(TakenSockets { bound, sockets, is_own })
    }

    /// Ends the search for sockets. Returns the predecessor, if there is one.
    ///
    /// # Errors
    /// If a socket of a service manager is left: nobody would accept its clients. A predecessor may have had
    /// other settings. It still serves the clients of its other sockets.
    pub(super) fn finish(self) -> Result<Option<Predecessor>, String> {
        if let Some(waiting) = self.predecessor {
            return Ok(Some(Predecessor { waiting, left: self.sockets }));
        }
        self.sockets.first().map_or(Ok(None), |left| Err(left.unnamed()))
    }

    /// Why this address is in use, if a socket of the service manager has the same port.
    pub(super) fn holder(&self, address: &ListenAddress) -> Option<String> {
        let port = |address: &ListenAddress| address.tcp().map(SocketAddr::port);
        let has_port = |socket: &&InheritedSocket| {
            port(address).is_some() && port(&socket.address) == port(address)
        };
        let may_hold = self.predecessor.is_none();
        self.sockets.iter().find(has_port).filter(|_| may_hold).map(InheritedSocket::unnamed)
    }
}

impl InheritedSocket {
    /// The message that no setting names this socket.
    fn unnamed(&self) -> String {
        let Self { descriptor, name, address, .. } = self;
        let name = if name.is_empty() { String::new() } else { format!(", {name}") };
        let settings = ListenSetting::ALL.map(ListenSetting::name).join(", ");
        format!(
            "a socket for {address} was handed over (descriptor {descriptor}{name}), and no setting names \
             this address: write \"{address}\" into one of {settings}, or do not hand the socket over"
        )
    }
}

/// The process that hands over to this one when this one is ready.
#[derive(Debug)]
pub(super) struct Predecessor {
    /// The socket on which the predecessor waits for a byte.
    waiting: UnixStream,
    /// Its sockets that this process does not use.
    left: Vec<InheritedSocket>,
}

impl Predecessor {
    /// Takes over. The predecessor leaves the files of its Unix sockets to this process. Those that no setting
    /// names any more are removed.
    pub(super) fn replace(mut self) {
        // If the predecessor has ended, its sockets are here already.
        let _ = self.waiting.write_all(b"1");
        let own = |socket: &&InheritedSocket| {
            ListenSetting::ALL.iter().any(|setting| setting.name() == socket.name)
        };
        for socket in self.left.iter().filter(own) {
            // A file that is gone needs no removal.
            if let Ok(Some(file)) = SocketFile::of(&socket.address) {
                file.remove();
            }
        }
    }
}

/// The sockets of one address.
pub(super) struct TakenSockets {
    /// Where they listen.
    pub(super) bound: ListenAddress,
    /// Each socket with its name.
    pub(super) sockets: Vec<(String, Listener)>,
    /// Whether a predecessor opened them, and not a service manager.
    pub(super) is_own: bool,
}

/// Whether the setting names any port, and the socket has one of the same host.
fn is_any_port(setting: &ListenAddress, socket: &ListenAddress) -> bool {
    let (Some(setting), Some(socket)) = (setting.tcp(), socket.tcp()) else { return false };
    setting.port() == 0 && setting.ip() == socket.ip()
}

fn listener(sockets: &mut ListenFd, index: usize) -> io::Result<(ListenAddress, Listener)> {
    if let Ok(Some(listener)) = sockets.take_tcp_listener(index) {
        prepare(&listener)?;
        return Ok((ListenAddress::Tcp(listener.local_addr()?), Listener::Tcp(listener)));
    }
    let Ok(Some(listener)) = sockets.take_unix_listener(index) else {
        return Err(io::Error::other("it is neither a TCP socket nor a Unix socket"));
    };
    prepare(&listener)?;
    let address = listener.local_addr()?;
    let path = address.as_pathname().ok_or_else(|| io::Error::other("it has no path"))?;
    Ok((ListenAddress::Unix(path.to_owned()), Listener::Unix(listener)))
}

fn prepare(socket: &impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(socket);
    if !socket.is_listener()? {
        return Err(io::Error::other("it does not listen"));
    }
    socket.set_nonblocking(true)
}
