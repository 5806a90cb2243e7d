//! `tidegate run`.

use clap::Args;

use super::{CommandResult, ConfigFile, serve};
use crate::config::Overrides;

/// Run the proxy until SIGTERM or Ctrl-C. It then finishes the requests that are under way.
#[derive(Args, Clone, Debug)]
pub(super) struct Run {
    #[command(flatten)]
    file: ConfigFile,
    /// The API to stand in front of, in place of the file's only upstream; without a file,
    /// everything is forwarded to it
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Where to listen, in place of the file's addresses; also unix:/PATH
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
}

pub(super) fn run(run: Run) -> CommandResult {
    let overrides = Overrides { upstream: run.upstream, listen: run.listen };
    serve(&run.file.config, &overrides, async {})
}
