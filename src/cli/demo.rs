//! `tidegate demo`: a sample API, the proxy in front of it, and somebody who asks too often.

use std::convert::Infallible;
use std::io::{IsTerminal as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::{Ended, Failure, print};
use crate::config;
use crate::observe::log;
use crate::reload::Reload;
use crate::server::{self, Start};

/// The pause between two of the visitor's requests: more than the demo's limit lets pass.
const PAUSE: Duration = Duration::from_millis(250);

/// Run a sample API behind the proxy and see it throttled.
#[derive(Args, Clone, Debug)]
pub(super) struct Demo {
    /// Where the proxy listens
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Where the demo's proxy.toml is written, for you to edit while it runs; by default a file of
    /// its own among the temporary ones
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Send no requests; only answer yours
    #[arg(long)]
    quiet: bool,
}

pub(super) fn demo(demo: &Demo) -> Ended {
    let failed = |error: std::io::Error| Failure::Run(Box::new(error));
    let api = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    api.set_nonblocking(true).map_err(failed)?;
    let file = write_config(demo, api.local_addr().map_err(failed)?).map_err(failed)?;
    let overrides = config::Overrides::default();
    let reload = Reload::new(file.clone(), overrides.clone());
    let loaded =
        config::load(&file, &config::process_environment, &overrides).map_err(Failure::Config)?;
    let terminal = std::io::stdout().is_terminal();
    let rust_log = std::env::var("RUST_LOG").ok();
    let log = log::init(&loaded.plan.log, terminal, rust_log)
        .map_err(|error| Failure::Usage(error.to_string()))?;
    print(introduction(demo.listen, &file));
    let (quiet, proxy) = (demo.quiet, demo.listen);
    let beside = async move {
        let Ok(api) = tokio::net::TcpListener::from_std(api) else { return };
        match quiet {
            true => serve_api(api).await,
            false => {
                tokio::join!(serve_api(api), visit(proxy));
            }
        }
    };
    let start = Start {
        plan: loaded.plan,
        file: file.display().to_string(),
        reload,
        log,
        beside: Box::pin(beside),
    };
    server::run(start).map_err(|error| Failure::Run(Box::new(error)))
}

/// Writes the demo's configuration; a file that is there already is left alone, and an error.
fn write_config(demo: &Demo, api: SocketAddr) -> std::io::Result<PathBuf> {
    let file = match &demo.config {
        Some(file) => file.clone(),
        None => {
            let folder = std::env::temp_dir().join(format!("tidegate-demo-{}", std::process::id()));
            std::fs::create_dir_all(&folder)?;
            folder.join("proxy.toml")
        }
    };
    let mut written = std::fs::OpenOptions::new().write(true).create_new(true).open(&file)?;
    written.write_all(sample_config(demo.listen, api).as_bytes())?;
    Ok(file)
}

fn sample_config(listen: SocketAddr, api: SocketAddr) -> String {
    format!(
        "\
# Written by `tidegate demo`. Edit it while the demo runs: a change is in force within a second.
[server]
listen = \"{listen}\"

[upstreams.sample]
servers = [\"http://{api}\"]

[limits.per-client]
key = [\"ip\"]
rate = \"2/s\"
burst = 5

[[routes]]
path = \"/{{*rest}}\"
upstream = \"sample\"
limits = [\"per-client\"]

[log]
access = true
summary_interval = \"5s\"
"
    )
}

fn introduction(proxy: SocketAddr, file: &Path) -> String {
    format!(
        "\
A sample API runs, and tidegate stands in front of it at http://{proxy}.
A visitor asks four times a second; the limit lets two through. Beside its log, try:

    curl -i http://{proxy}/hello
    for i in $(seq 10); do curl -s -o /dev/null -w '%{{http_code}} ' http://{proxy}/; done

and change the rate while it runs (\"2/s\" to \"100/s\", say), in

    {}

Stop it with Ctrl-C.
",
        file.display()
    )
}

/// The sample API: says what it was asked for.
async fn serve_api(listener: tokio::net::TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let service = service_fn(|request: Request<Incoming>| async move {
            let text = format!("the sample API got {} {}\n", request.method(), request.uri());
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

/// Somebody who asks more often than the limit allows.
async fn visit(proxy: SocketAddr) {
    let pages = ["/", "/hello", "/orders/17", "/orders?page=2"];
    for page in pages.iter().cycle() {
        sleep(PAUSE).await;
        // The proxy's log says how each went.
        let _ = ask(proxy, page).await;
    }
}

async fn ask(proxy: SocketAddr, page: &str) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(proxy).await?;
    let request = format!("GET {page} HTTP/1.1\r\nhost: {proxy}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.read_to_end(&mut Vec::new()).await?;
    Ok(())
}
