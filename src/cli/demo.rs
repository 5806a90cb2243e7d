//! `tidegate demo`: a sample API, the proxy in front of it, and a visitor that sends too many requests.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use futures_util::future::OptionFuture;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::sleep;

use super::{CommandResult, Failure, print, serve, write_new};
use crate::config::Overrides;

/// The pause between two requests of the visitor. The resulting rate is above the demo's limit.
const PAUSE: Duration = Duration::from_millis(250);

/// The port of the demo's admin endpoint, if it is free.
const PAGE: u16 = 9090;

/// The visitor's address. With it the visitor has another bucket than a user who tries the demo on this machine.
const VISITOR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Run a sample API behind the proxy and see it throttled. Nothing else is needed.
#[derive(Args, Clone, Debug)]
pub(super) struct Demo {
    /// Where the proxy listens; port 0 means any free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Where the demo writes its proxy.toml, which you can edit while the demo runs; by default a
    /// temporary file that is deleted at the end
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Send no requests; only answer yours
    #[arg(long)]
    quiet: bool,
}

pub(super) fn demo(demo: &Demo) -> CommandResult {
    let failed = |error: std::io::Error| Failure::run(error);
    let api = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    api.set_nonblocking(true).map_err(failed)?;
    // A port in use is reported before other output.
    let (proxy, _held) = hold(demo.listen).map_err(|error| {
        let help = "choose another address with --listen";
        Failure::run(format!("cannot listen on {}: {error}; {help}", demo.listen))
    })?;
    // The folder is deleted when `scratch` is dropped, at the end of the demo.
    let scratch = tempfile::Builder::new().prefix("tidegate-demo-").tempdir().map_err(failed)?;
    let file = demo.config.clone().unwrap_or_else(|| scratch.path().join("proxy.toml"));
    // If another demo runs, this one has another port for its page.
    let wanted =
        SocketAddr::from((Ipv4Addr::LOCALHOST, if demo.listen.port() == 0 { 0 } else { PAGE }));
    let (page, _held_too) = hold(wanted)
        .or_else(|_| hold(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))))
        .map_err(failed)?;
    let text = sample_config(proxy, page, api.local_addr().map_err(failed)?);
    write_new(&file, &text)?;
    print(introduction(demo, proxy, page, &file))?;
    let visitor = (!demo.quiet).then(|| visit(proxy));
    let beside = async move {
        tokio::join!(serve_api(api), OptionFuture::from(visitor));
    };
    serve(&file, &Overrides::default(), beside)
}

/// Binds a socket to the proxy's address before the proxy listens, because the demo's file and its visitor must
/// know the port. Port 0 means any free port. The socket does not listen: while it is held, the system does not
/// give the port to another process that asks for any port.
fn hold(listen: SocketAddr) -> std::io::Result<(SocketAddr, Socket)> {
    let socket = Socket::new(Domain::for_address(listen), Type::STREAM, None)?;
    // The proxy's socket has this option too. Otherwise the two sockets could not be bound to the same
    // port.
    socket.set_reuse_address(true)?;
    socket.bind(&listen.into())?;
    let address = socket.local_addr()?.as_socket().unwrap_or(listen);
    Ok((address, socket))
}

fn sample_config(listen: SocketAddr, page: SocketAddr, api: SocketAddr) -> String {
    format!(
        "\
# Written by `tidegate demo`. Edit it while the demo runs: a change is in force within a second.
[server]
listen = \"{listen}\"
max_connections = 1000

# The page that shows what the limits do.
[admin]
listen = \"{page}\"

# The API that is protected: here the demo's own.
[upstreams.sample]
servers = [\"http://{api}\"]

# Each client address gets 2 requests a second, and up to 5 at once after a pause.
[limits.per-client]
key = [\"ip\"]
rate = \"2/s\"
burst = 5

# Every path goes to the API, if the limit allows.
[[routes]]
path = \"/{{*rest}}\"
upstream = \"sample\"
limits = [\"per-client\"]

[log]
access = false            # true: a line for each request
summary_interval = \"5s\"   # one line for each limit and key that was throttled in that time
"
    )
}

fn introduction(demo: &Demo, proxy: SocketAddr, page: SocketAddr, file: &Path) -> String {
    let visitor = match demo.quiet {
        true => "Nobody asks but you",
        false => "A visitor asks four times a second",
    };
    // tidegate may not be on the PATH: the user may have called `cargo run`, or a path to the program.
    let program = std::env::args().next().unwrap_or_else(|| "tidegate".to_owned());
    format!(
        "\
A sample API runs, and tidegate stands in front of it at http://{proxy}
{visitor}; the limit lets two through and answers the rest with 429.
The log below says who is throttled: at once, and then in one line every 5 s.

Try, in another terminal:

  see an answer, its ratelimit fields, and a 429 after a few quick requests
    curl -i http://{proxy}/hello
  look at the page, which shows who is throttled
    http://{page}/
  change the rate while it runs: \"2/s\" to \"100/s\", say
    sed -i.bak 's|\"2/s\"|\"100/s\"|' {file}
  ask which route and limits a request would get
    {program} explain 'GET /hello' --config {file}
  protect an API of your own
    {program} run --upstream http://127.0.0.1:3000 --listen {own}

Stop it with Ctrl-C.
",
        own = SocketAddr::new(proxy.ip(), proxy.port().wrapping_add(1)),
        file = file.display()
    )
}

/// The sample API. Its answer has the request's method and target.
async fn serve_api(listener: TcpListener) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    while let Ok((stream, _)) = listener.accept().await {
        let service = service_fn(|request: Request<Incoming>| async move {
            let text = format!("the sample API got {} {}\n", request.method(), request.uri());
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

/// A visitor that sends more requests than the limit allows.
async fn visit(proxy: SocketAddr) {
    let pages = ["/", "/hello", "/orders/17", "/orders?page=2"];
    for page in pages.iter().cycle() {
        sleep(PAUSE).await;
        // The result is not needed: the proxy's log has it.
        let _ = ask(proxy, page).await;
    }
}

async fn ask(proxy: SocketAddr, page: &str) -> std::io::Result<()> {
    let mut stream = match proxy.ip() {
        IpAddr::V4(address) if address.is_loopback() => {
            let socket = TcpSocket::new_v4()?;
            // Not every system has this address. Then the visitor comes from the usual one.
            let _ = socket.bind((VISITOR, 0).into());
            socket.connect(proxy).await?
        }
        _ => TcpStream::connect(proxy).await?,
    };
    let request = format!("GET {page} HTTP/1.1\r\nhost: {proxy}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.read_to_end(&mut Vec::new()).await?;
    Ok(())
}
