//! What a service manager does: it hands over sockets, and is told how a process is.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use command_fds::{CommandFdExt as _, FdMapping};
use tempfile::TempDir;

use super::PATIENCE;

/// Makes the command begin with these descriptors and names, as systemd does. Only the process's number is
/// left out, which is not known yet.
pub(crate) fn hand_over(command: &mut Command, sockets: Vec<(&str, OwnedFd)>) {
    let (names, sockets): (Vec<_>, Vec<_>) = sockets.into_iter().unzip();
    command.env("LISTEN_FDS", sockets.len().to_string());
    command.env("LISTEN_FDNAMES", names.join(":"));
    let mappings =
        (3..).zip(sockets).map(|(child_fd, parent_fd)| FdMapping { parent_fd, child_fd });
    command.fd_mappings(mappings.collect()).unwrap();
}

/// The socket on which a service manager is told.
pub(crate) struct NotifySocket {
    socket: UnixDatagram,
    folder: TempDir,
}

impl NotifySocket {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, folder }
    }

    pub(crate) fn name_to(&self, command: &mut Command) {
        command.env("NOTIFY_SOCKET", self.folder.path().join("notify"));
    }

    /// The lines of the next message.
    pub(crate) fn next(&self) -> Vec<String> {
        let mut space = [0; 1024];
        let length = self.socket.recv(&mut space).unwrap();
        let text = String::from_utf8_lossy(&space[..length]).into_owned();
        text.lines().map(str::to_owned).collect()
    }
}
