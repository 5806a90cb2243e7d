//! `tidegate run`.

use clap::Args;

use super::{CommandResult, ConfigFile, Failure, colour, complain, terminal};
use crate::config;
use crate::observe::log;
use crate::reload::Reload;
use crate::server::{self, Start};

/// Run the proxy until SIGTERM or Ctrl-C, which let it finish what is under way.
#[derive(Args, Clone, Debug)]
pub(super) struct Run {
    #[command(flatten)]
    file: ConfigFile,
    /// The API to stand in front of, in place of the file's only upstream; without a file,
    /// everything is forwarded to it
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Where to listen, in place of the file's address
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
}

pub(super) fn run(run: Run) -> CommandResult {
    let overrides = config::Overrides { upstream: run.upstream, listen: run.listen };
    // Made before the file is loaded. Otherwise a change between the two would be missed.
    let reload = Reload::new(run.file.config.clone(), overrides.clone());
    let loaded = config::load(&run.file.config, &config::process_environment, &overrides)
        .map_err(Failure::Config)?;
    if !loaded.warnings.is_empty() {
        complain(loaded.warnings.render(colour()));
    }
    let rust_log = std::env::var("RUST_LOG").ok();
    let log = log::init(&loaded.plan.log, terminal(&std::io::stdout()), rust_log)
        .map_err(Failure::usage)?;
    let file = match run.file.config.exists() {
        true => run.file.config.display().to_string(),
        false => "none".to_owned(),
    };
    let start = Start { plan: loaded.plan, file, reload, log, beside: Box::pin(async {}) };
    server::run(start).map_err(Failure::run)
}
