//! `tidegate suggest`: finds the smallest limits that would have rejected hardly any key of access logs.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::replay::{LogArgs, Share, check_assumptions};
use super::{CommandResult, Failure, complain, load, print};
use crate::config;
use crate::replay::fact::Assumption;
use crate::replay::report::LineCounts;
use crate::replay::report::printable;
use crate::replay::suggest::{Suggest, SuggestedGoals, WantedLimits};

/// Find the smallest limits that would have rejected hardly any client of access logs.
///
/// They are printed as a file, with the reasons in comments. Each route of proxy.toml for which the log has requests
/// gets limits. If there is no proxy.toml, one limit counts all requests.
#[derive(Args, Clone, Debug)]
#[command(after_help = "For example:\n  \
    tidegate suggest /var/log/nginx/access.log\n  \
    tidegate suggest access.log --route '/login' --route '/{*rest}' --key ip --touch 1%\n  \
    tidegate suggest access.log --key 'header:user-agent' --key 'ip,path' > suggested.toml\n  \
    tidegate replay access.log --config suggested.toml\n  \
    tidegate suggest access.log --upstream api")]
pub(super) struct SuggestArgs {
    #[command(flatten)]
    logs: LogArgs,
    /// The file with the routes; by default proxy.toml, if it exists
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Suggest limits only for the route with this path, written as in the file; may be repeated
    #[arg(long = "route", value_name = "PATH")]
    routes: Vec<String>,
    /// What a limit counts by, written as in the file. A key of several sources has commas between them. May be
    /// repeated
    #[arg(long = "key", value_name = "SOURCES", default_value = "ip")]
    keys: Vec<String>,
    /// The largest share of keys (clients, for example) whose requests a limit may reject
    #[arg(long, value_name = "SHARE", default_value = "0.1%")]
    touch: Share,
    /// A value that is not in the log, as for `replay`; may be repeated
    #[arg(long = "assume", value_name = "SOURCE=VALUE")]
    assumptions: Vec<Assumption>,
    /// Suggest goals (`max_requests`) for the routes of this upstream instead, from the log's durations
    #[arg(long, value_name = "NAME", conflicts_with_all = ["routes", "keys", "touch", "assumptions"])]
    upstream: Option<String>,
}

pub(super) fn suggest(args: &SuggestArgs) -> CommandResult {
    if let Some(upstream) = &args.upstream {
        return goals(args, upstream);
    }
    let sources = |key: &String| key.split(',').map(|source| source.trim().to_owned()).collect();
    let keys: Vec<_> = args.keys.iter().map(sources).collect();
    let file = args.config.clone().or_else(usual_file);
    let text = file.as_deref().map(checked_text).transpose()?;
    let wanted = WantedLimits::new(&args.routes, &keys, args.touch.0, text.as_deref());
    let wanted = wanted.map_err(Failure::usage)?;
    let settings = wanted.settings(&config::process_environment).map_err(Failure::usage)?;
    let mut suggest = Suggest::new(&settings, &args.assumptions);
    check_assumptions(&args.assumptions, |fact| suggest.judge.reads(fact))?;
    let lines = args.logs.read(|record, _| suggest.request(record))?;
    complain_of_broken(&lines);
    if let late @ 1.. = lines.order.late {
        complain(format_args!(
            "{late} requests are more than two minutes late in the log, and count too late"
        ));
    }
    if let Some(file) = file {
        let file = printable(&file.display().to_string());
        print(format_args!(
            "# The routes are those of {file}. Copy into it the limits that you want."
        ))?;
    }
    print(suggest.file(&wanted).trim_end())
}

/// Suggests goals for the routes of an upstream.
fn goals(args: &SuggestArgs, upstream: &str) -> CommandResult {
    let file = args.config.as_deref().unwrap_or(Path::new("proxy.toml"));
    let settings = load(file)?.settings;
    let none = || Failure::usage(format!("--upstream: the file has no upstream \"{upstream}\""));
    let mut goals = SuggestedGoals::new(&settings, upstream).ok_or_else(none)?;
    complain_of_broken(&args.logs.read(|record, _| goals.request(record))?);
    print(goals.file().map_err(Failure::run)?.trim_end())
}

fn complain_of_broken(lines: &LineCounts) {
    if lines.broken > 0 {
        complain(format_args!("{} of {} lines cannot be read", lines.broken, lines.read));
    }
}

/// proxy.toml, if it exists and is not empty. For `> proxy.toml` the shell has just emptied it.
fn usual_file() -> Option<PathBuf> {
    let file = Path::new("proxy.toml");
    fs::metadata(file).is_ok_and(|about| about.len() > 0).then(|| file.to_owned())
}

/// The text of this file, which must have no problems.
fn checked_text(file: &Path) -> Result<String, Failure> {
    load(file)?;
    let why = |error| Failure::run(format!("cannot read {}: {error}", file.display()));
    fs::read_to_string(file).map_err(why)
}
