//! haproxy, nginx, Caddy, Traefik and Envoy, in front of a proxy or behind it. Where one is not installed
//! (`scripts/test` installs all but the last two), a test says so and ends.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use tidegate::tls::IdentityFiles;

use super::port::Port;
use super::upstream::Upstream;
use super::wait_until;

/// The file with a server's configuration. Traefik takes no other ending.
const CONFIG: &str = "peer.yaml";

/// The file with what a server writes to standard error.
const ERRORS: &str = "errors";

/// Debian's place for nginx's stream module.
const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// A running server. It is ended when it is dropped.
pub(crate) struct PeerServer {
    program: &'static str,
    process: Child,
    port: Port,
    folder: TempDir,
}

/// What a server behind a proxy speaks.
#[derive(Clone, Copy)]
pub(crate) enum Spoken<'f> {
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// HTTP/2 and HTTP/1.1 by TLS, with this certificate.
    Tls(&'f IdentityFiles),
}

impl PeerServer {
    /// haproxy in front of `behind`, with these options of its `server` line. `None` where there is no
    /// haproxy.
    pub(crate) fn haproxy(behind: &str, options: &str) -> Option<Self> {
        Self::start("haproxy", |address| {
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
        Self::start("nginx", |address| {
            format!(
                "load_module {STREAM_MODULE};\ndaemon off;\nuser root;\npid nginx.pid;\n\
                 events {{}}\nstream {{ server {{ listen {address}; proxy_pass {behind}; \
                 proxy_protocol on; }} }}\n"
            )
        })
    }

    /// haproxy as a server of a proxy. It passes requests on to `api`. `/healthz` it answers itself. Its answers
    /// say in `x-server` who it is, and in `x-port` by which connection the request came.
    pub(crate) fn haproxy_behind(api: &Upstream, spoken: Spoken<'_>) -> Option<Self> {
        let options = match spoken {
            Spoken::Http1 => String::new(),
            Spoken::Http2 => "proto h2".to_owned(),
            // haproxy looks for the key in a file beside the certificate, of this name.
            Spoken::Tls(files) => {
                let key = format!("{}.key", files.cert.display());
                std::fs::copy(&files.key, key).unwrap();
                format!("ssl crt {} alpn h2,http/1.1", files.cert.display())
            }
        };
        Self::start("haproxy", |address| {
            format!(
                "defaults\n  mode http\n  timeout connect 60s\n  timeout client 60s\n  \
                 timeout server 60s\nfrontend all\n  bind {address} {options}\n  \
                 http-request return status 200 content-type text/plain string ok if {{ path /healthz }}\n  \
                 http-response set-header x-server haproxy\n  \
                 http-response set-header x-port %[src_port]\n  \
                 http-request set-var(txn.version) req.ver\n  \
                 http-response set-header x-protocol HTTP/%[var(txn.version)]\n  \
                 default_backend api\n\
                 backend api\n  server one {}\n",
                api.address
            )
        })
    }

    /// nginx as a server of a proxy, like [`PeerServer::haproxy_behind`]. It ends a connection after twenty
    /// requests.
    pub(crate) fn nginx_behind(api: &Upstream, spoken: Spoken<'_>) -> Option<Self> {
        let (options, tls) = match spoken {
            Spoken::Http1 => ("", String::new()),
            Spoken::Http2 => (" http2", String::new()),
            Spoken::Tls(IdentityFiles { cert, key }) => (
                " ssl http2",
                format!(
                    "ssl_certificate {}; ssl_certificate_key {};",
                    cert.display(),
                    key.display()
                ),
            ),
        };
        let folders = nginx_folders();
        Self::start("nginx", |address| {
            format!(
                "daemon off;\nuser root;\nworker_processes 1;\npid nginx.pid;\nevents {{}}\nhttp {{\n\
                 access_log off; {folders} keepalive_requests 20;\n\
                 upstream api {{ server {}; keepalive 8; }}\n\
                 server {{ listen {address}{options}; {tls}\n\
                 location = /healthz {{ return 200 ok; }}\n\
                 location / {{ proxy_pass http://api; proxy_http_version 1.1;\n\
                 proxy_set_header connection \"\"; proxy_request_buffering off;\n\
                 add_header x-server nginx; add_header x-port $remote_port;\n\
                 add_header x-protocol $server_protocol; }} }} }}\n",
                api.address
            )
        })
    }

    /// nginx with this text in its `http` block, which says `listen 80;` where it is to listen.
    pub(crate) fn nginx_with(http: &str) -> Option<Self> {
        let folders = nginx_folders();
        Self::start("nginx", |address| {
            let http = http.replace("listen 80;", &format!("listen {address};"));
            format!(
                "daemon off;\nuser root;\nworker_processes 1;\npid nginx.pid;\nevents {{}}\n\
                 http {{\naccess_log off; {folders}\n{http}\n}}\n"
            )
        })
    }

    /// haproxy with these lines after `defaults`, in which `:80` is where it is to listen, and with this file
    /// `lua` beside its own.
    pub(crate) fn haproxy_with(lines: &str, lua: &str) -> Option<Self> {
        let files = [("lua", lua)];
        Self::start_beside(&files, "haproxy", |address| {
            format!(
                "defaults\n  mode http\n  timeout connect 60s\n  timeout client 60s\n  \
                 timeout server 60s\n{}\n",
                lines.replace("bind :80", &format!("bind {address}"))
            )
        })
    }

    /// Caddy with this site, whose address is `api.example.com`.
    pub(crate) fn caddy(site: &str) -> Option<Self> {
        Self::start("caddy", |address| {
            let (ip, port) = (address.ip(), address.port());
            let here = format!("http://:{port} {{\n bind {ip}\n");
            let site = site.replace("api.example.com {\n", &here);
            format!("{{\n admin off\n auto_https off\n}}\n{site}\n")
        })
    }

    /// Traefik with this dynamic configuration.
    pub(crate) fn traefik(dynamic: &str) -> Option<Self> {
        Self::start_beside(&[("dynamic.yaml", dynamic)], "traefik", |address| {
            format!(
                "entryPoints:\n  web:\n    address: \"{address}\"\n    \
                 transport: {{ lifeCycle: {{ graceTimeOut: 0 }} }}\n\
                 providers: {{ file: {{ filename: dynamic.yaml }} }}\n\
                 global: {{ checkNewVersion: false, sendAnonymousUsage: false }}\nlog: {{ level: ERROR }}\n"
            )
        })
    }

    /// Envoy with this configuration, in which port 8080 is where it is to listen.
    pub(crate) fn envoy(config: &str) -> Option<Self> {
        Self::start("envoy", |address| {
            let (ip, port) = (address.ip(), address.port());
            config.replace("0.0.0.0, port_value: 8080", &format!("{ip}, port_value: {port}"))
        })
    }

    fn start(program: &'static str, config: impl Fn(SocketAddr) -> String) -> Option<Self> {
        Self::start_beside(&[], program, config)
    }

    /// Starts a program with its configuration, and with these files in the same folder.
    fn start_beside(
        files: &[(&str, &str)],
        program: &'static str,
        config: impl Fn(SocketAddr) -> String,
    ) -> Option<Self> {
        let (port, folder) = (Port::hold(), tempfile::tempdir().unwrap());
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        std::fs::write(folder.path().join(CONFIG), config(port.address)).unwrap();
        let process = match spawn(program, &folder) {
            Ok(process) => process,
            Err(error) => {
                eprintln!("skipped: cannot start {program}: {error}; install {program}");
                return None;
            }
        };
        let mut server = Self { program, process, port, folder };
        server.wait_until_it_listens();
        Some(server)
    }

    fn wait_until_it_listens(&mut self) {
        wait_until(&format!("{} listens", self.program), || {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "{} ended with {ended:?}", self.program);
            TcpStream::connect(self.address()).is_ok()
        });
    }

    /// Ends the server as an operator does: it finishes what is under way.
    pub(crate) fn stop(&mut self) {
        self.signal(if self.program == "nginx" { "QUIT" } else { "USR1" });
        self.process.wait().unwrap();
    }

    /// Starts the server once more, at the same address.
    pub(crate) fn start_again(&mut self) {
        self.process = spawn(self.program, &self.folder).unwrap();
        self.wait_until_it_listens();
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.port.address
    }

    fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let _ = Command::new("kill").args([format!("-{name}"), pid]).stderr(Stdio::null()).status();
    }
}

/// Where nginx keeps what it must write.
fn nginx_folders() -> String {
    ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {name};"))
        .concat()
}

fn spawn(program: &str, folder: &TempDir) -> std::io::Result<Child> {
    let mut command = Command::new(program);
    match program {
        "nginx" => command.args(["-e", "stderr", "-p"]).arg(folder.path()).arg("-c"),
        "caddy" => command.args(["run", "--adapter", "caddyfile", "--config"]),
        "traefik" => command.arg("--configFile"),
        "envoy" => command.args([
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "--log-level",
            "error",
            "--config-path",
        ]),
        _ => command.args(["-db", "-f"]),
    };
    command.arg(folder.path().join(CONFIG)).current_dir(folder.path());
    // Caddy writes below these.
    command.env("XDG_DATA_HOME", folder.path()).env("XDG_CONFIG_HOME", folder.path());
    // Servers log what a test does to them on purpose. In the output of the tests that would look like failures.
    let errors = File::options().create(true).append(true).open(folder.path().join(ERRORS))?;
    command.stdout(Stdio::null()).stderr(errors).spawn()
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        // A nginx that is killed would leave its workers behind.
        self.signal("TERM");
        let _ = self.process.wait();
        if std::thread::panicking() {
            let errors = std::fs::read_to_string(self.folder.path().join(ERRORS));
            eprintln!("{} wrote:\n{}", self.program, errors.unwrap_or_default());
        }
    }
}
