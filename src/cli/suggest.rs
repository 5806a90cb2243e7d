//! `tidegate suggest`: the smallest limits that would have touched few keys of access logs.

use clap::Args;

use super::replay::{LogArgs, Share, check_assumptions};
use super::{CommandResult, Failure, complain, print};
use crate::replay::fact::Assumption;
use crate::replay::suggest::{Suggest, WantedLimits};

/// Print the smallest limits that would have touched few keys of access logs, as TOML with the reasons.
#[derive(Args, Clone, Debug)]
#[command(after_help = "For example:\n  \
    tidegate suggest /var/log/nginx/access.log\n  \
    tidegate suggest access.log --route '/login' --route '/{*rest}' --key ip --touch 1%\n  \
    tidegate suggest access.log --key 'header:user-agent' --key 'ip,path' > suggested.toml\n  \
    tidegate replay access.log --config suggested.toml")]
pub(super) struct SuggestArgs {
    #[command(flatten)]
    logs: LogArgs,
    /// A route's path, as in the file; may be repeated
    #[arg(long = "route", value_name = "PATH", default_value = "/{*rest}")]
    routes: Vec<String>,
    /// What a limit counts by, as in the file; several sources of one key stand with commas between them; may
    /// be repeated
    #[arg(long = "key", value_name = "SOURCES", default_value = "ip")]
    keys: Vec<String>,
    /// The share of keys that a limit may touch
    #[arg(long, value_name = "SHARE", default_value = "0.1%")]
    touch: Share,
    /// What is true of requests where the log does not tell it, as for `replay`; may be repeated
    #[arg(long = "assume", value_name = "SOURCE=VALUE")]
    assumptions: Vec<Assumption>,
}

pub(super) fn suggest(args: &SuggestArgs) -> CommandResult {
    let sources = |key: &String| key.split(',').map(|source| source.trim().to_owned()).collect();
    let wanted = WantedLimits {
        routes: args.routes.clone(),
        keys: args.keys.iter().map(sources).collect(),
        touch: args.touch.0,
    };
    let plan = wanted.plan().map_err(Failure::usage)?;
    let mut suggest = Suggest::new(&plan, &args.assumptions);
    check_assumptions(&args.assumptions, |fact| suggest.reads(fact))?;
    let lines = args.logs.read(|record| suggest.request(record))?;
    if lines.broken > 0 {
        complain(format_args!("{} of {} lines cannot be read", lines.broken, lines.read));
    }
    print(suggest.file(&wanted).trim_end())
}
