//! `tidegate health`: asks the admin endpoint, for containers without curl.

use std::time::Duration;

use clap::Args;
use http::{Method, StatusCode};

use super::admin::{AdminClient, wait_for};
use super::{CommandResult, ConfigFile, Failure};

/// The timeout for a question and its answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Ask a running proxy's admin endpoint whether the proxy is alive. If it is, the exit code is 0.
///
/// This is for containers, which often have no curl. Give the URL there. Without it, the command reads
/// proxy.toml, and it would fail while that file is wrong, although the proxy still runs.
#[derive(Args, Clone, Debug)]
pub(super) struct Health {
    /// The admin endpoint, as in http://127.0.0.1:9090; by default the file's admin.listen
    url: Option<String>,
    #[command(flatten)]
    file: ConfigFile,
}

pub(super) fn health(health: &Health) -> CommandResult {
    let file = Some(health.file.config.as_path()).filter(|_| health.url.is_none());
    let client = AdminClient::new(health.url.as_deref(), file)?;
    let why = match wait_for(client.ask(&Method::GET, "/healthz", None, PATIENCE)) {
        Ok(answer) if answer.status() == StatusCode::OK => return Ok(()),
        Ok(answer) => format!("answered {}", answer.status().as_u16()),
        Err(why) => why,
    };
    Err(Failure::run(format!("{} is not healthy: it {why}", client.authority)))
}
