//! Listening sockets that this process was started with: by a service manager (`sd_listen_fds(3)`), or by its
//! predecessor (`successor`).

use std::env;
use std::io;
use std::os::fd::AsFd;

use listenfd::ListenFd;
use socket2::SockRef;

use super::sockets::ListenSetting;
use crate::downstream::Listener;
use crate::plan::ListenAddress;

/// The number of the first descriptor that is handed over.
const FIRST: usize = 3;

/// The sockets that were handed over and are not in use yet.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    sockets: Vec<InheritedSocket>,
}

/// A socket that was handed over.
#[derive(Debug)]
struct InheritedSocket {
    descriptor: usize,
    /// The name that the socket was given, such as the name of its systemd unit. Can be empty.
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
    pub fn from_env() -> Result<Self, String> {
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut handed_over = ListenFd::from_env();
        let mut sockets = Vec::new();
        for place in 0..handed_over.len() {
            let (descriptor, name) = (FIRST + place, names.next().unwrap_or_default().to_owned());
            let (address, listener) = listener(&mut handed_over, place).map_err(|error| {
                format!("cannot use the descriptor {descriptor} that was handed over: {error}")
            })?;
            sockets.push(InheritedSocket { descriptor, name, address, listener });
        }
        Ok(Self { sockets })
    }

    /// Takes the sockets for an address of this setting out. Empty where none was handed over.
    pub(super) fn take(&mut self, address: &ListenAddress) -> Vec<Listener> {
        self.sockets
            .extract_if(.., |socket| socket.address == *address)
            .map(|socket| socket.listener)
            .collect()
    }

    /// Ends the search for sockets.
    ///
    /// # Errors
    /// If a socket is left: its clients would wait in vain.
    pub(super) fn finish(self) -> Result<(), String> {
        let Some(InheritedSocket { descriptor, name, address, .. }) = self.sockets.first() else {
            return Ok(());
        };
        let name = if name.is_empty() { String::new() } else { format!(", {name}") };
        let settings = ListenSetting::ALL.map(ListenSetting::name).join(", ");
        Err(format!(
            "a socket for {address} was handed over (descriptor {descriptor}{name}), and no setting names \
             this address: write \"{address}\" into one of {settings}, or do not hand the socket over"
        ))
    }
}

fn listener(sockets: &mut ListenFd, place: usize) -> io::Result<(ListenAddress, Listener)> {
    if let Ok(Some(listener)) = sockets.take_tcp_listener(place) {
        prepare(&listener)?;
        return Ok((ListenAddress::Tcp(listener.local_addr()?), Listener::Tcp(listener)));
    }
    let Ok(Some(listener)) = sockets.take_unix_listener(place) else {
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
