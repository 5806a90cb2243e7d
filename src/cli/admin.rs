//! Asks the admin endpoint of a running proxy. Each request has its own connection.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::runtime::LocalOptions;
use tokio::time::timeout;

use super::{Failure, load};
use crate::config;
use crate::replay::report::{length, percent, printable};
use crate::settings::AdminSpec;

/// The timeout for a question and its answer. The proxy may wait for Redis meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);
/// The timeout to connect.
const CONNECT: Duration = Duration::from_secs(3);
/// The most bytes of an answer.
const LONGEST: usize = 16 * 1024 * 1024;
/// The most characters of a cell.
const WIDEST: usize = 1_000;
/// The environment variable with the token. It counts before the token of the file.
const TOKEN: &str = "TIDEGATE_ADMIN_TOKEN";

/// Which admin endpoint answers.
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
    if url.contains('@') {
        // The text before the `@` may be a password.
        return Err(Failure::usage("expected a URL without a user and a password"));
    }
    let wrong = || Failure::usage(format!("`{url}` is no URL as in http://127.0.0.1:9090"));
    let rest = url.strip_prefix("http://").unwrap_or(url);
    let uri: Uri = format!("http://{rest}").parse().map_err(|_| wrong())?;
    let authority = uri.authority().filter(|_| !rest.contains("://") && !rest.contains(['?', '#']));
    let authority = authority.ok_or_else(wrong)?;
    match authority.port() {
        Some(_) => Ok(authority.to_string()),
        None if authority.as_str() == authority.host() => Ok(format!("{authority}:80")),
        None => Err(wrong()),
    }
}

/// The address by which this machine reaches the admin endpoint: the loopback address if the endpoint listens on every
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

/// `[admin]` of a file that is wrong elsewhere. The proxy still runs with the last correct file, and the commands must
/// find it. A token with a variable of the environment is left out.
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
    /// The endpoint at a URL. Without a URL: the endpoint of the file, which is proxy.toml by default. The token is the
    /// environment's, or else the file's.
    pub(super) fn new(url: Option<&str>, file: Option<&Path>) -> Result<Self, Failure> {
        let (authority, configured) = match (url, file) {
            (Some(url), None) => (authority(url)?, None),
            (Some(url), Some(file)) => (authority(url)?, load(file)?.settings.admin.token),
            (None, file) => {
                let file = file.unwrap_or(Path::new(config::DEFAULT_FILE));
                let admin = load(file).map(|it| it.settings.admin);
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

    /// What to do if the endpoint answers 401.
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

    /// Sends a request. Returns the answer's JSON, or `null` if it has no body.
    pub(super) fn json(
        &self,
        method: &Method,
        path: &str,
        body: Option<&str>,
    ) -> Result<Value, Failure> {
        let at = &self.authority;
        let answer = wait_for(self.ask(method, path, body, PATIENCE));
        let answer = answer.map_err(|why| Failure::run(format!("{at} {why}")))?;
        let value = serde_json::from_slice::<Value>(answer.body()).unwrap_or(Value::Null);
        let status = answer.status();
        if status.is_success() {
            return Ok(value);
        }
        let said = match value["detail"].as_str() {
            _ if status == StatusCode::UNAUTHORIZED => self.about_the_token(),
            Some(detail) => printable(detail),
            None => format!("{at} answered {}", status.as_u16()),
        };
        Err(match status.as_u16() {
            400..=403 | 422 => Failure::usage(said),
            _ => Failure::run(said),
        })
    }

    /// Sends a request with a JSON body, or without a body, and reads the answer. `time_limit` bounds the whole
    /// exchange.
    ///
    /// # Errors
    /// The text says what the endpoint does instead, as in `does not answer: Connection refused`.
    pub(super) async fn ask(
        &self,
        method: &Method,
        path: &str,
        body: Option<&str>,
        time_limit: Duration,
    ) -> Result<Response<Bytes>, String> {
        let exchange = timeout(time_limit, self.exchange(method, path, body)).await;
        exchange.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())).map_err(|error| {
            let of_hyper = error.get_ref().and_then(|cause| cause.downcast_ref::<hyper::Error>());
            match of_hyper {
                Some(cause) if cause.is_parse() || cause.is_incomplete_message() => {
                    "did not answer in HTTP".to_owned()
                }
                _ => format!("does not answer: {error}"),
            }
        })
    }

    async fn exchange(
        &self,
        method: &Method,
        path: &str,
        body: Option<&str>,
    ) -> io::Result<Response<Bytes>> {
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
        let answer = sender.send_request(request).await.map_err(io::Error::other)?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, LONGEST).collect().await.map_err(io::Error::other)?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }
}

/// Waits for an answer, in a runtime that ends with it.
pub(super) fn wait_for<T>(answer: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build_local(LocalOptions::default());
    let runtime = runtime.map_err(|error| format!("cannot be asked: {error}"))?;
    let answer = runtime.block_on(answer);
    // The lookup of a name may hold its thread for long.
    runtime.shutdown_background();
    answer
}

/// A list in an answer. A missing one is empty.
pub(super) fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

/// A value of an answer as a person reads it. A missing value is a dash. No character of it misleads the reader.
pub(super) fn text(value: &Value) -> String {
    let parts: Vec<_> = match value {
        Value::Null => Vec::new(),
        Value::String(text) => return printable(text),
        Value::Bool(is_so) => return if *is_so { "yes" } else { "no" }.to_owned(),
        Value::Number(number) => return number.to_string(),
        Value::Array(values) => values.iter().map(text).collect(),
        Value::Object(values) => values
            .iter()
            .map(|(name, value)| format!("{} {}", printable(name), text(value)))
            .collect(),
    };
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

/// Milliseconds of an answer as a person reads them.
pub(super) fn time(value: &Value) -> String {
    value.as_u64().map_or_else(|| text(value), length)
}

/// Values under the titles of their columns. Each column is as wide as its widest cell. `columns` is a text such as
/// `limit = /name, its plans = /plans`: a title, and the member under it as a JSON pointer (RFC 6901).
pub(super) fn table(columns: &str, values: &[Value]) -> String {
    let columns: Vec<_> = columns.split(", ").filter_map(|it| it.split_once(" = ")).collect();
    let titles = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
    let row = |value| columns.iter().map(|(_, member)| cell(value, member)).collect();
    let rows: Vec<Vec<_>> = std::iter::once(titles).chain(values.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..columns.len()).filter_map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A member of a value as a person reads it. The end of its name says its unit.
fn cell(value: &Value, member: &str) -> String {
    let value = value.pointer(member).unwrap_or(&Value::Null);
    match value.as_f64() {
        Some(number) if member.contains("per_second") => rate(number),
        Some(number) if member.ends_with("_percent") => percent(number / 100.0),
        Some(_) if member.ends_with("_ms") => time(value),
        _ => {
            let text = text(value);
            match text.char_indices().nth(WIDEST) {
                Some((end, _)) => format!("{}…", &text[..end]),
                None => text,
            }
        }
    }
}

/// A number a second, with at most five characters and a unit.
fn rate(number: f64) -> String {
    match number {
        ..99.95 => format!("{number:.1}"),
        99.95..99_999.5 => format!("{number:.0}"),
        99_999.5..99_999_500.0 => format!("{:.0}k", number / 1e3),
        _ => format!("{:.0}M", number / 1e6),
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
            ("[::1]:9090", Some("[::1]:9090")),
            ("http://[::1]", Some("[::1]:80")),
            ("https://admin.internal", None),
            ("http://admin.internal:90900", None),
            ("127.0.0.1:909O", None),
            ("http://", None),
        ] {
            let (authority, message) = match authority(url) {
                Ok(authority) => (Some(authority), None),
                Err(failure) => (None, failure.message),
            };
            assert_eq!(authority.as_deref(), found, "{url}");
            assert!(!message.unwrap_or_default().contains("secret"), "{url}");
        }
    }
}
