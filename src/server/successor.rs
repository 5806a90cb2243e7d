//! Hands the process's work over to a successor: the binary that stands at the program's path now (SIGUSR2).
//!
//! The successor gets the same arguments and environment, and the listening sockets of all workers. A closed
//! socket would reset the connections in its queue, so no socket may be lost. The sockets go by the protocol of
//! systemd (`inherited`). Beside them goes one end of a pair of sockets, on which the successor says that it is
//! ready. A variable says how many processes share Redis: the successor may start while Redis is away.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{self, PathBuf};
use std::time::Duration;

use command_fds::{CommandFdExt as _, FdMapping};
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until};

use super::inherited::{FIRST, PREDECESSOR, PROCESSES};
use super::listen::ListeningSocket;

/// How long a successor may take until it is ready.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The command by which this process was started.
#[derive(Clone, Debug)]
pub(super) struct StartCommand {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl fmt::Display for StartCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.program.display().fmt(f)
    }
}

impl StartCommand {
    /// To be called at the start, before the binary or a link to it is replaced. The name by which the program
    /// was called is used, and not the file that runs: after an update that file may be deleted, and a link may
    /// point to another one. A name without a slash is looked for in `PATH`, as a shell does.
    pub(super) fn of_this_process() -> io::Result<Self> {
        let mut arguments = env::args_os();
        let program = match arguments.next().map(PathBuf::from) {
            Some(name) if name.components().count() > 1 => path::absolute(name)?,
            Some(name) if !name.as_os_str().is_empty() => name,
            _ => env::current_exe()?,
        };
        Ok(Self { program, arguments: arguments.collect() })
    }
}

/// A process that was started to take over, and is not ready yet.
pub(super) struct Successor {
    child: Child,
    /// The socket on which the successor says that it is ready.
    word: UnixStream,
    until: Instant,
}

impl Successor {
    /// Starts the successor. It gets these sockets, and must be ready within `time_limit`.
    /// `processes` share Redis.
    pub(super) fn start(
        command: &StartCommand,
        sockets: &[ListeningSocket],
        processes: u64,
        time_limit: Duration,
    ) -> io::Result<Self> {
        let (word, end) = UnixStream::pair()?;
        let end = end.into_std()?;
        // The socket's other end writes one byte, and must not need a runtime for it.
        end.set_nonblocking(false)?;
        let mut names: Vec<_> = sockets.iter().map(|socket| socket.name.as_str()).collect();
        names.push(PREDECESSOR);
        let sockets = sockets.iter().map(|socket| Ok(socket.listener.try_clone()?.into()));
        let handed_over = sockets.chain([Ok(end.into())]).collect::<io::Result<Vec<OwnedFd>>>()?;
        let mut start = Command::new(&command.program);
        start.args(&command.arguments);
        // `LISTEN_PID` is left out: the successor's process number is not known before it runs.
        start.env_remove("LISTEN_PID").env_remove("LISTEN_FDS_FIRST_FD");
        start.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        start.env(PROCESSES, processes.to_string());
        let mappings = (FIRST..).zip(handed_over);
        let mappings = mappings.map(|(child_fd, parent_fd)| FdMapping { parent_fd, child_fd });
        start.fd_mappings(mappings.collect()).map_err(io::Error::other)?;
        Ok(Self { child: start.spawn()?, word, until: Instant::now() + time_limit })
    }

    /// The successor's process number. `None` once it has ended.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until the successor is ready. May be dropped and called again.
    ///
    /// # Errors
    /// Why the successor does not take over.
    pub(super) async fn ready(&mut self) -> Result<(), String> {
        tokio::select! {
            // A successor that closes its end is most likely ending. Its exit status says more.
            Ok(_) = self.word.read_u8() => Ok(()),
            ended = self.child.wait() => Err(match ended {
                Ok(status) => format!("the new process ended with {status}"),
                Err(error) => format!("the new process is lost: {error}"),
            }),
            () = sleep_until(self.until) => Err("the new process was not ready in time".to_owned()),
        }
    }

    /// Ends a successor that does not take over.
    pub(super) async fn end(mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Why a successor that runs this script does not take over.
    async fn fault(script: &str, time_limit: Duration) -> String {
        let arguments = ["-c", script].map(OsString::from).to_vec();
        let command = StartCommand { program: "sh".into(), arguments };
        let mut successor = Successor::start(&command, &[], 1, time_limit).unwrap();
        let fault = successor.ready().await.unwrap_err();
        successor.end().await;
        fault
    }

    #[tokio::test]
    async fn a_successor_that_ends_does_not_take_over() {
        let fault = fault("exit 3", TIME_LIMIT).await;
        assert_eq!(fault, "the new process ended with exit status: 3");
    }

    #[tokio::test]
    async fn a_successor_that_is_never_ready_is_not_waited_for() {
        let fault = fault("exec sleep 1000", Duration::from_millis(50)).await;
        assert_eq!(fault, "the new process was not ready in time");
    }

    #[tokio::test]
    async fn a_successor_that_closes_its_sockets_is_waited_for() {
        let fault = fault("exec 3>&-; sleep 0.05; exit 4", TIME_LIMIT).await;
        assert_eq!(fault, "the new process ended with exit status: 4");
    }

    #[tokio::test]
    async fn a_successor_says_that_it_is_ready() {
        let arguments = ["-c", "printf 1 >&3; exec sleep 1000"].map(OsString::from).to_vec();
        let command = StartCommand { program: "sh".into(), arguments };
        let mut successor = Successor::start(&command, &[], 1, TIME_LIMIT).unwrap();
        assert_eq!(successor.ready().await, Ok(()));
        successor.end().await;
    }

    #[tokio::test]
    async fn a_program_that_is_gone_is_an_error() {
        let command = StartCommand { program: "/nowhere/tidegate".into(), arguments: Vec::new() };
        let started = Successor::start(&command, &[], 1, TIME_LIMIT);
        assert_eq!(started.err().map(|error| error.kind()), Some(io::ErrorKind::NotFound));
    }
}
