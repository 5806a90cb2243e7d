//! Servers that stand in front of a proxy: haproxy and nginx. Where they are not installed (`scripts/test`
//! installs them), a test says so and ends.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::port::Port;
use super::wait_until;

/// Debian's place for nginx's stream module.
const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// A running server that passes on bytes. It is killed when it is dropped.
pub(crate) struct Front {
    process: Child,
    port: Port,
    _folder: TempDir,
}

impl Front {
    /// haproxy in front of `behind`, with these options of its `server` line. `None` where there is no
    /// haproxy.
    pub(crate) fn haproxy(behind: &str, options: &str) -> Option<Self> {
        Self::start("haproxy", &["-db", "-f"], |address| {
            format!(
                "defaults\n  mode tcp\n  timeout connect 60s\n  timeout client 60s\n  \
                 timeout server 60s\nlisten all\n  bind {address}\n  \
                 server one {behind} {options}\n"
            )
        })
    }

    /// nginx in front of `behind`, with `proxy_protocol on` (version 1). `None` where there is no nginx.
    pub(crate) fn nginx(behind: &str) -> Option<Self> {
        if !std::path::Path::new(STREAM_MODULE).exists() {
            eprintln!("skipped: there is no {STREAM_MODULE}; install libnginx-mod-stream");
            return None;
        }
        Self::start("nginx", &["-e", "stderr", "-c"], |address| {
            format!(
                "load_module {STREAM_MODULE};\ndaemon off;\nmaster_process off;\npid nginx.pid;\n\
                 events {{}}\nstream {{ server {{ listen {address}; proxy_pass {behind}; \
                 proxy_protocol on; }} }}\n"
            )
        })
    }

    fn start(
        program: &str,
        arguments: &[&str],
        config: impl Fn(SocketAddr) -> String,
    ) -> Option<Self> {
        let (port, folder) = (Port::hold(), tempfile::tempdir().unwrap());
        let file = folder.path().join("front.conf");
        std::fs::write(&file, config(port.address)).unwrap();
        let mut command = Command::new(program);
        command.args(arguments).arg(&file).current_dir(folder.path()).stdout(Stdio::null());
        if program == "nginx" {
            command.arg("-p").arg(folder.path());
        }
        let process = match command.spawn() {
            Ok(process) => process,
            Err(error) => {
                eprintln!("skipped: cannot start {program}: {error}; install {program}");
                return None;
            }
        };
        let mut front = Self { process, port, _folder: folder };
        wait_until(&format!("{program} listens"), || {
            let ended = front.process.try_wait().unwrap();
            assert!(ended.is_none(), "{program} ended with {ended:?}");
            TcpStream::connect(front.address()).is_ok()
        });
        Some(front)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.port.address
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
