//! `tidegate health`: asks the admin endpoint, for containers without curl.

use std::time::Duration;

use clap::Args;

use super::admin::{AdminClient, authority, configured};
use super::{CommandResult, ConfigFile, Failure};

/// The timeout to write and to read.
const PATIENCE: Duration = Duration::from_secs(3);

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
        None => configured(&health.file.config)?.0,
    };
    let failed = |why: &str| Failure::run(format!("{authority} is not healthy: {why}"));
    let answer = AdminClient::open(authority.clone()).ask("GET", "/healthz", None, PATIENCE);
    match answer.map_err(|error| failed(&error.to_string()))? {
        Some(answer) if answer.status == 200 => Ok(()),
        Some(answer) => Err(failed(&format!("it answered {}", answer.status))),
        None => Err(failed("it did not answer in HTTP")),
    }
}
