//! Asks the admin endpoint of a running proxy. Each request has a connection of its own.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Failure, load};
use crate::config;
use crate::plan::AdminSpec;

/// The timeout for a question and its answer. The proxy may wait for Redis meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);
/// The timeout to connect.
const CONNECT: Duration = Duration::from_secs(3);
/// The most bytes of an answer.
const LONGEST: usize = 16 * 1024 * 1024;
/// The environment variable with the token, where the file does not name it.
const TOKEN: &str = "TIDEGATE_ADMIN_TOKEN";

/// Which admin endpoint is asked.
#[derive(Args, Clone, Debug)]
pub(super) struct AdminOptions {
    /// The admin endpoint, as in http://127.0.0.1:9090; by default the file's admin.listen. Its token is the
    /// environment's TIDEGATE_ADMIN_TOKEN, or else the file's
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// The configuration file, by default proxy.toml; with --admin, it is read only for its token
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) struct AdminClient {
    pub(super) authority: String,
    token: Option<String>,
}

impl AdminOptions {
    pub(super) fn client(&self) -> Result<AdminClient, Failure> {
        AdminClient::new(self.admin.as_deref(), self.config.as_deref())
    }
}

/// The host and port of a URL.
fn authority(url: &str) -> Result<String, Failure> {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    let authority = rest.split('/').next().unwrap_or_default();
    if rest.contains('@') {
        // The text in front of it may be a password.
        return Err(Failure::usage("expected a URL without a user and a password"));
    }
    if authority.is_empty() || rest.contains("://") || rest.contains(['?', '#']) {
        return Err(Failure::usage(format!("`{url}` is no URL as in http://127.0.0.1:9090")));
    }
    match authority.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => Ok(authority.to_owned()),
        _ => Ok(format!("{authority}:80")),
    }
}

/// The address by which the admin endpoint is reached on this machine: loopback where the endpoint listens on every
/// address.
fn reachable(admin: &AdminSpec) -> Option<String> {
    let mut address = admin.listen?;
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    Some(address.to_string())
}

/// `[admin]` of a file that is wrong elsewhere. The proxy runs on with the file before, and somebody wants to see it.
/// What comes from the environment is left out.
fn admin_alone(file: &Path) -> Option<AdminSpec> {
    let text = std::fs::read_to_string(file).ok()?;
    let tree = text.parse::<toml::Table>().ok()?;
    let admin = tree.get("admin")?;
    let listen = admin.get("listen")?.as_str()?.parse().ok()?;
    let token = admin.get("token").and_then(toml::Value::as_str);
    let token = token.filter(|token| !token.contains("${")).map(str::to_owned);
    Some(AdminSpec { listen: Some(listen), token })
}

impl AdminClient {
    /// The endpoint at a URL, by default the one in the file. The token is the environment's, or else the
    /// file's. Without a URL the file is by default proxy.toml.
    pub(super) fn new(url: Option<&str>, file: Option<&Path>) -> Result<Self, Failure> {
        let (authority, configured) = match (url, file) {
            (Some(url), None) => (authority(url)?, None),
            (Some(url), Some(file)) => (authority(url)?, load(file)?.plan.admin.token),
            (None, file) => {
                let file = file.unwrap_or(Path::new(config::DEFAULT_FILE));
                let admin = load(file).map(|it| it.plan.admin);
                let admin = admin.or_else(|problems| admin_alone(file).ok_or(problems))?;
                let none = || {
                    format!(
                        "{} has no admin.listen. Write these two lines into it, and start the proxy again:\n\n  \
                         [admin]\n  listen = \"127.0.0.1:9090\"\n\nor name the URL of another one",
                        file.display()
                    )
                };
                (reachable(&admin).ok_or_else(|| Failure::usage(none()))?, admin.token)
            }
        };
        let given = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
        let token = given.or(configured);
        if token.as_ref().is_some_and(|token| token.chars().any(char::is_control)) {
            return Err(Failure::usage(
                "the token has a control character, which no header may have",
            ));
        }
        Ok(Self { authority, token })
    }

    /// What to do where the endpoint answers 401.
    fn about_the_token(&self) -> String {
        let at = &self.authority;
        match &self.token {
            None => format!(
                "{at} wants a bearer token: set {TOKEN}, or name the proxy's file with --config"
            ),
            Some(_) => format!(
                "{at} does not accept the token: {TOKEN}, or else the file's admin.token, must be the \
                 admin.token of the proxy that runs there"
            ),
        }
    }

    /// Sends a request. Returns the answer's JSON, or `null` where it has no body.
    pub(super) fn json(
        &self,
        method: &Method,
        path: &str,
        body: Option<&str>,
    ) -> Result<Value, Failure> {
        self.read_json(self.ask(method, path, body, PATIENCE))
    }

    /// Asks for JSON with this member. An answer without the member is from another server, and is an error.
    pub(super) fn get(&self, path: &str, member: &str) -> Result<Value, Failure> {
        let value = self.json(&Method::GET, path, None)?;
        if value.get(member).is_none() {
            let at = &self.authority;
            return Err(Failure::run(format!(
                "{at} is no admin endpoint of tidegate: its answer to {path} has no `{member}`"
            )));
        }
        Ok(value)
    }

    /// Like [`AdminClient::json`] for GET, within a runtime of the caller's.
    pub(super) async fn get_json(
        &self,
        path: &str,
        time_limit: Duration,
    ) -> Result<Value, Failure> {
        let asking = timeout(time_limit, self.exchange(&Method::GET, path, None)).await;
        self.read_json(asking.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())))
    }

    fn read_json(&self, answer: io::Result<Option<Response<Bytes>>>) -> Result<Value, Failure> {
        let at = &self.authority;
        let answer =
            answer.map_err(|error| Failure::run(format!("{at} does not answer: {error}")))?;
        let answer = answer.ok_or_else(|| Failure::run(format!("{at} did not answer in HTTP")))?;
        let value = serde_json::from_slice::<Value>(answer.body()).unwrap_or(Value::Null);
        let status = answer.status();
        if status.is_success() {
            return Ok(value);
        }
        let said = match value["detail"].as_str() {
            _ if status == StatusCode::UNAUTHORIZED => self.about_the_token(),
            Some(detail) => detail.to_owned(),
            None => format!("{at} answered {}", status.as_u16()),
        };
        Err(match status.as_u16() {
            400..=403 | 422 => Failure::usage(said),
            _ => Failure::run(said),
        })
    }

    /// Sends a request with a JSON body, or without a body, and reads the answer. `None` where the answer is
    /// not HTTP. `time_limit` bounds the whole exchange.
    pub(super) fn ask(
        &self,
        method: &Method,
        path: &str,
        body: Option<&str>,
        time_limit: Duration,
    ) -> io::Result<Option<Response<Bytes>>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let asking = async { timeout(time_limit, self.exchange(method, path, body)).await };
        runtime.block_on(asking).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
    }

    async fn exchange(
        &self,
        method: &Method,
        path: &str,
        body: Option<&str>,
    ) -> io::Result<Option<Response<Bytes>>> {
        let mut request = Request::builder().method(method).uri(path).header(HOST, &self.authority);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = Full::new(Bytes::from(body.unwrap_or_default().to_owned()));
        let request = request.body(body).map_err(io::Error::other)?;
        let connecting = timeout(CONNECT, TcpStream::connect(&self.authority)).await;
        let stream = connecting.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(io::Error::other)?;
        tokio::spawn(connection);
        let answer = match sender.send_request(request).await {
            Ok(answer) => answer,
            Err(error) if error.is_parse() || error.is_incomplete_message() => return Ok(None),
            Err(error) => return Err(io::Error::other(error)),
        };
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, LONGEST).collect().await.map_err(io::Error::other)?;
        Ok(Some(Response::from_parts(head, body.to_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_is_found_in_a_file_that_is_wrong_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("proxy.toml");
        let client = |admin: &str| {
            std::fs::write(&file, format!("[admin]\n{admin}\n[limits.a]\nrate = \"20/sec\""))
                .unwrap();
            AdminClient::new(None, Some(&file)).map(|it| (it.authority, it.token))
        };
        let found = client("listen = \"127.0.0.1:9999\"\ntoken = \"t\"").ok().unwrap();
        assert_eq!(found, ("127.0.0.1:9999".to_owned(), Some("t".to_owned())));
        assert!(client("listen = 7").is_err());
        assert!(client("").is_err());
    }

    #[test]
    fn an_endpoint_is_named_without_a_login_and_a_query() {
        for (url, found) in [
            ("http://127.0.0.1:9090", Some("127.0.0.1:9090")),
            ("127.0.0.1:9090/", Some("127.0.0.1:9090")),
            ("http://admin.internal", Some("admin.internal:80")),
            ("http://admin.internal:9090?x", None),
            ("http://admin.internal:9090#x", None),
            ("http://u:secret@admin.internal:9090", None),
            ("https://admin.internal", None),
            ("http://", None),
        ] {
            let (authority, told) = match authority(url) {
                Ok(authority) => (Some(authority), None),
                Err(failure) => (None, failure.message),
            };
            assert_eq!(authority.as_deref(), found, "{url}");
            assert!(!told.unwrap_or_default().contains("secret"), "{url}");
        }
    }
}
