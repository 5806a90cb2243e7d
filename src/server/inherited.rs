//! Listening sockets that this process was started with: by a service manager (`sd_listen_fds(3)`), or by its
//! predecessor (`successor`).

use std::env;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;

use listenfd::ListenFd;
use socket2::{Domain, Socket, Type};

use super::listen::{ListeningSocket, SETTINGS, SocketFile};
use crate::settings::ListenAddress;

/// The number of the first descriptor that is handed over.
pub(super) const FIRST: RawFd = 3;

/// The name of the socket on which a predecessor waits until this process reports that it is ready.
pub(super) const PREDECESSOR: &str = "tidegate-predecessor";

/// The variable in which a predecessor says how many processes share Redis.
pub(super) const PROCESSES: &str = "TIDEGATE_PROCESSES";

/// The sockets that were handed over and are not in use yet.
#[derive(Debug, Default)]
pub(crate) struct InheritedSockets {
    sockets: Vec<ListeningSocket>,
    /// The connection to the predecessor, if the sockets come from one.
    predecessor: Option<UnixStream>,
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
        let mut inherited = Self::default();
        for (index, descriptor) in (0..handed_over.len()).zip(FIRST..) {
            let name = names.next().unwrap_or_default();
            inherited.add(&mut handed_over, index, name).map_err(|error| {
                format!("cannot use the descriptor {descriptor} that was handed over: {error}")
            })?;
        }
        // A predecessor passes on the sockets of a service manager, too. These have other names.
        for socket in inherited.sockets.iter_mut().filter(|_| inherited.predecessor.is_some()) {
            socket.is_own = SETTINGS.contains(&&*socket.name);
        }
        Ok(inherited)
    }

    fn add(&mut self, handed_over: &mut ListenFd, index: usize, name: &str) -> io::Result<()> {
        if name == PREDECESSOR {
            let (family, kind) = (Domain::UNIX.into(), Type::STREAM.into());
            self.predecessor = handed_over.take_custom(index, family, kind, "Unix socket")?;
            return Ok(());
        }
        let tcp = handed_over.take_tcp_listener(index).ok().flatten().map(Socket::from);
        let unix = || handed_over.take_unix_listener(index).ok().flatten().map(Socket::from);
        let neither = || io::Error::other("it is neither a TCP socket nor a Unix socket");
        let socket = tcp.or_else(unix).ok_or_else(neither)?;
        if !socket.is_listener()? {
            return Err(io::Error::other("it does not listen"));
        }
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let path = || address.as_pathname().ok_or_else(|| io::Error::other("it has no path"));
        let address = match address.as_socket() {
            Some(address) => ListenAddress::Tcp(address),
            None => ListenAddress::Unix(path()?.to_owned()),
        };
        let name = name.to_owned();
        self.sockets.push(ListeningSocket { name, address, listener: socket, is_own: false });
        Ok(())
    }

    /// The number of processes that share Redis, if a predecessor has said it.
    pub(super) fn processes(&self) -> Option<u64> {
        self.predecessor.as_ref()?;
        env::var(PROCESSES).ok()?.parse().ok()
    }

    /// Takes out the sockets for an address of this setting. `None` if there are none.
    pub(super) fn take(
        &mut self,
        address: &ListenAddress,
        setting: &str,
    ) -> Option<Vec<ListeningSocket>> {
        let fits = |socket: &&ListeningSocket| {
            let is_of_setting = socket.is_own && socket.name == setting;
            socket.address == *address || is_of_setting && is_any_port(address, &socket.address)
        };
        let bound = self.sockets.iter().find(fits)?.address.clone();
        Some(self.sockets.extract_if(.., |socket| socket.address == bound).collect())
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
        let Some(ListeningSocket { name, address, listener, .. }) = self.sockets.first() else {
            return Ok(None);
        };
        let descriptor = listener.as_fd().as_raw_fd();
        let name = if name.is_empty() { String::new() } else { format!(", {name}") };
        let settings = SETTINGS.join(", ");
        Err(format!(
            "a socket for {address} was handed over (descriptor {descriptor}{name}), and no setting names \
             this address: write \"{address}\" into one of {settings}, or do not hand the socket over"
        ))
    }
}

/// The process that hands over to this one when this one is ready.
#[derive(Debug)]
pub(super) struct Predecessor {
    /// The socket on which the predecessor waits for a byte.
    waiting: UnixStream,
    /// Its sockets that this process does not use.
    left: Vec<ListeningSocket>,
}

impl Predecessor {
    /// Takes over. The predecessor leaves the files of its Unix sockets to this process. Files that no setting names
    /// any more are removed.
    pub(super) fn replace(mut self) {
        // If the predecessor has ended, its sockets are here already.
        let _ = self.waiting.write_all(b"1");
        for socket in self.left.iter().filter(|socket| socket.is_own) {
            // A file that is gone needs no removal.
            if let Ok(Some(file)) = SocketFile::of(&socket.address) {
                file.remove();
            }
        }
    }
}

/// Whether the setting names any port, and the socket has one of the same host.
fn is_any_port(setting: &ListenAddress, socket: &ListenAddress) -> bool {
    let (Some(setting), Some(socket)) = (setting.tcp(), socket.tcp()) else { return false };
    setting.port() == 0 && setting.ip() == socket.ip()
}
