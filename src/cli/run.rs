//! `tidegate run`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{CommandResult, serve};
use crate::config::{DEFAULT_FILE, Overrides};

/// Run the proxy until SIGTERM or Ctrl-C. It then finishes the requests that are under way.
#[derive(Args, Clone, Debug)]
pub(super) struct Run {
    /// The configuration file, by default proxy.toml; a file that is named must be there
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The API that gets the requests, in place of the file's only upstream; without a file,
    /// everything is forwarded to it, and nothing is limited
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Where to listen, in place of the file's addresses; also unix:/PATH
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Every limit in shadow, whatever its `mode` is: requests are counted and logged, and none is rejected
    #[arg(long)]
    shadow: bool,
}

pub(super) fn run(run: Run) -> CommandResult {
    let Run { config, upstream, listen, shadow } = run;
    let overrides = Overrides { upstream, listen, names_file: config.is_some(), shadow };
    serve(config.as_deref().unwrap_or(Path::new(DEFAULT_FILE)), &overrides, async {})
}
