//! Asks the admin endpoint of a running proxy, for the commands that need it. HTTP in its plainest form: one
//! request on one connection.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::{Failure, load};

/// The timeout to connect.
const CONNECT: Duration = Duration::from_secs(3);
/// The most bytes of an answer.
const LONGEST: u64 = 16 * 1024 * 1024;
/// The environment variable with the token, where the file does not name it.
const TOKEN: &str = "TIDEGATE_ADMIN_TOKEN";

/// Which admin endpoint is asked.
#[derive(Args, Clone, Debug)]
pub(super) struct AdminOptions {
    /// The admin endpoint, as in http://127.0.0.1:9090; by default the file's admin.listen. Its token is the
    /// environment's TIDEGATE_ADMIN_TOKEN, or else the file's
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// The configuration's file, by default proxy.toml; with --admin, only for its token
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// An admin endpoint.
pub(super) struct AdminClient {
    pub(super) authority: String,
    token: Option<String>,
}

/// The endpoint's answer.
pub(super) struct AdminAnswer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl AdminOptions {
    pub(super) fn client(&self) -> Result<AdminClient, Failure> {
        let file = self.config.as_deref();
        let (authority, configured) = match (&self.admin, file) {
            (Some(url), None) => (authority(url)?, None),
            (Some(url), Some(file)) => (authority(url)?, load(file)?.plan.admin.token),
            (None, file) => configured(file.unwrap_or(Path::new("proxy.toml")))?,
        };
        AdminClient::with_token(authority, configured)
    }
}

/// The host and port of a URL.
pub(super) fn authority(url: &str) -> Result<String, Failure> {
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

/// The address of the admin endpoint in the file, and its token. Where the endpoint listens on every
/// address, loopback.
pub(super) fn configured(file: &Path) -> Result<(String, Option<String>), Failure> {
    let admin = load(file)?.plan.admin;
    let Some(mut address) = admin.listen else {
        let file = file.display();
        return Err(Failure::usage(format!("{file} has no admin.listen; name a URL to ask")));
    };
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    Ok((address.to_string(), admin.token))
}

impl AdminClient {
    /// One that shows the token of the environment, or else the one that is configured.
    pub(super) fn with_token(
        authority: String,
        configured: Option<String>,
    ) -> Result<Self, Failure> {
        let given = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
        let token = given.or(configured);
        if token.as_ref().is_some_and(|token| token.chars().any(char::is_control)) {
            return Err(Failure::usage("the token is no word that a header can have"));
        }
        Ok(Self { authority, token })
    }

    /// Sends a request with a JSON body, or without a body, and reads the answer. `None` where the answer is
    /// not HTTP. `patience` bounds each write and each read.
    pub(super) fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&str>,
        patience: Duration,
    ) -> io::Result<Option<AdminAnswer>> {
        let authority = &self.authority;
        let address = authority
            .to_socket_addrs()?
            .next()
            .ok_or_else(|| io::Error::other("the name has no address"))?;
        let mut stream = TcpStream::connect_timeout(&address, CONNECT)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n");
        if let Some(token) = &self.token {
            request += &format!("authorization: Bearer {token}\r\n");
        }
        if let Some(body) = body {
            let length = body.len();
            request += &format!("content-type: application/json\r\ncontent-length: {length}\r\n");
        }
        request += "\r\n";
        request += body.unwrap_or_default();
        stream.write_all(request.as_bytes())?;
        read(stream).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
            _ => error,
        })
    }
}

fn read(stream: TcpStream) -> io::Result<Option<AdminAnswer>> {
    let mut answer = BufReader::new(stream.take(LONGEST));
    let mut line = Vec::new();
    answer.read_until(b'\n', &mut line)?;
    let first = String::from_utf8_lossy(&line).into_owned();
    let mut words = first.split_whitespace();
    if !words.next().is_some_and(|version| version.starts_with("HTTP/1.")) {
        return Ok(None);
    }
    let Some(status) = words.next().and_then(|status| status.parse().ok()) else {
        return Ok(None);
    };
    let mut length = None;
    loop {
        line.clear();
        if answer.read_until(b'\n', &mut line)? == 0 || line.trim_ascii().is_empty() {
            break;
        }
        let header = String::from_utf8_lossy(&line);
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse::<u64>().ok();
        }
    }
    let mut body = Vec::new();
    // The endpoint names the length of each of its bodies.
    answer.take(length.unwrap_or(0)).read_to_end(&mut body)?;
    match length {
        Some(length) if (body.len() as u64) < length => Err(ErrorKind::UnexpectedEof.into()),
        _ => Ok(Some(AdminAnswer { status, body })),
    }
}
