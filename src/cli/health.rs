//! `tidegate health`: asks the admin endpoint, for containers without curl.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use clap::Args;

use super::{CommandResult, ConfigFile, Failure, load};

/// The timeout of each step: to connect, to write, to read.
const PATIENCE: Duration = Duration::from_secs(3);
/// The most bytes that are read of the status line.
const LONGEST_LINE: u64 = 1024;

/// Ask a running proxy's admin endpoint whether it lives: exit 0 where it does.
///
/// For containers, which often have no curl. Name the URL there: a proxy.toml that is wrong for the
/// moment changes nothing about a proxy that runs, but this command could not read it.
#[derive(Args, Clone, Debug)]
pub(super) struct Health {
    /// The admin endpoint, as in http://127.0.0.1:9090; by default the file's admin.listen
    url: Option<String>,
    #[command(flatten)]
    file: ConfigFile,
}

pub(super) fn health(health: &Health) -> CommandResult {
    let authority = match &health.url {
        Some(url) => authority(url)?,
        None => configured(&health.file)?,
    };
    let status = ask(&authority).map_err(|error| failed(&authority, &error.to_string()))?;
    match status.as_deref() {
        Some("200") => Ok(()),
        Some(status) => Err(failed(&authority, &format!("it answered {status}"))),
        None => Err(failed(&authority, "it did not answer in HTTP")),
    }
}

fn authority(url: &str) -> Result<String, Failure> {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.is_empty() || rest.contains("://") {
        return Err(Failure::usage(format!("`{url}` is no URL as in http://127.0.0.1:9090")));
    }
    match authority.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => Ok(authority.to_owned()),
        _ => Ok(format!("{authority}:80")),
    }
}

/// The address of the admin endpoint in the file. Where the endpoint listens on every address, loopback.
fn configured(file: &ConfigFile) -> Result<String, Failure> {
    let Some(mut address) = load(&file.config)?.plan.admin.listen else {
        let file = file.config.display();
        return Err(Failure::usage(format!("{file} has no admin.listen; name a URL to ask")));
    };
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            std::net::SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    Ok(address.to_string())
}

/// The status of `/healthz`. `None` where the answer is not HTTP.
fn ask(authority: &str) -> std::io::Result<Option<String>> {
    let address = authority
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| std::io::Error::other("the name has no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET /healthz HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n\r\n")?;
    let mut line = Vec::new();
    BufReader::new(stream.take(LONGEST_LINE)).read_until(b'\n', &mut line).map_err(|error| {
        match error.kind() {
            ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
            _ => error,
        }
    })?;
    let line = String::from_utf8_lossy(&line);
    let mut words = line.split_whitespace();
    let http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    Ok(words.next().filter(|_| http).map(str::to_owned))
}

fn failed(authority: &str, why: &str) -> Failure {
    Failure::run(format!("{authority} is not healthy: {why}"))
}
