//! `tidegate health`: asks the admin endpoint, for containers without curl.

use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{Method, Response};

use super::admin::{AdminClient, wait_for};
use super::{CommandResult, ConfigFile, Failure};

/// The timeout for a question and its answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The metric that says whether the store answers.
const STORE_UP: &str = "tidegate_store_up";

/// Ask a running proxy's admin endpoint whether the proxy is alive. If it is, the exit code is 0.
///
/// This is for containers, which often have no curl. Give the URL there. Without it, the command reads
/// proxy.toml, and it would fail while that file is wrong, although the proxy still runs.
#[derive(Args, Clone, Debug)]
pub(super) struct Health {
    /// The admin endpoint, as in http://127.0.0.1:9090; by default the file's admin.listen
    url: Option<String>,
    /// Also ask whether the store answers, and each server of a Redis cluster
    #[arg(long)]
    store: bool,
    #[command(flatten)]
    file: ConfigFile,
}

pub(super) fn health(health: &Health) -> CommandResult {
    let file = Some(health.file.config.as_path()).filter(|_| health.url.is_none());
    let client = AdminClient::new(health.url.as_deref(), file)?;
    let answer = ask(&client, "/healthz")?;
    let status = answer.status().as_u16();
    if status != 200 {
        return Err(failed(&client, &format!("it answered {status}")));
    }
    if health.store { check_store(&client) } else { Ok(()) }
}

/// Fails if the proxy's metrics say that the store, or a server of it, does not answer.
fn check_store(client: &AdminClient) -> CommandResult {
    let answer = ask(client, "/metrics")?;
    let status = answer.status().as_u16();
    if status != 200 {
        let why = format!("/metrics answered {status}; is the token right?");
        return Err(failed(client, &why));
    }
    let page = String::from_utf8_lossy(answer.body());
    let servers: Vec<_> = page.lines().filter_map(|line| line.strip_prefix(STORE_UP)).collect();
    let away = servers.iter().filter_map(|server| server.strip_suffix(" 0"));
    // A server of a cluster is a label: `{server="HOST:PORT"}`.
    let away: Vec<_> = away.map(|labels| labels.split('"').nth(1).unwrap_or_default()).collect();
    match (servers.is_empty(), away.is_empty()) {
        (false, true) => Ok(()),
        (true, _) => Err(failed(client, "its metrics do not name the store")),
        (false, false) => {
            let why = format!("the store does not answer {}", away.join(", "));
            Err(failed(client, why.trim_end()))
        }
    }
}

fn ask(client: &AdminClient, path: &str) -> Result<Response<Bytes>, Failure> {
    let answer = wait_for(client.ask(&Method::GET, path, None, PATIENCE));
    answer.map_err(|why| failed(client, &format!("it {why}")))
}

fn failed(client: &AdminClient, why: &str) -> Failure {
    Failure::run(format!("{} is not healthy: {why}", client.authority))
}
