//! `tidegate replay`: tries the limits of a file on the requests of access logs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fs, io};

use clap::Args;

use super::{CommandResult, ConfigFile, Failure, complain, load, print, terminal};
use crate::observe::log::Terminal;
use crate::replay::fact::{Assumption, Fact};
use crate::replay::log::{
    CHANGES, FaultyLine, Format, LineFault, LogInput, LogRecord, SortedLogs, ToldChange,
};
use crate::replay::report::text::text;
use crate::replay::report::{FileReport, LineCounts, Report, html, number, printable, time};
use crate::replay::{Replay, with_hashed_overrides};
use crate::settings::Settings;

/// Exit code: more requests would be rejected than `--fail-above` allows.
const ABOVE: u8 = 3;

/// After this number of lines, which take a second or two, a person at a terminal sees how far a log has been read.
const PROGRESS: u64 = 1_000_000;

/// The number of broken lines that a report shows.
const EXAMPLES: usize = 5;

/// Try the limits of a file on access logs, and show who would have been rejected.
///
/// The time of each request is the time in the log. Servers write a line when a request ends, so lines are sorted
/// within two minutes, and several logs are merged by time. Nothing is sent.
#[derive(Args, Clone, Debug)]
#[command(after_help = "For example:\n  \
    tidegate replay /var/log/nginx/access.log\n  \
    tidegate replay access.log.2.gz access.log.1 --against proxy.toml --config new.toml\n  \
    zcat old/*.gz | tidegate replay - --assume 'header:x-api-key=ip' --html report.html\n  \
    tidegate replay access.log --fail-above 1%      exits with 3 if more would be rejected")]
pub(super) struct ReplayArgs {
    #[command(flatten)]
    logs: LogArgs,
    #[command(flatten)]
    file: ConfigFile,
    /// An older file to compare with: the report shows both results, and the clients that are newly hit
    #[arg(long, value_name = "OLD")]
    against: Option<PathBuf>,
    /// The value of a header, a cookie, a claim, `host` or `cert` that is not in the log. With `ip`, each client has
    /// its own value. With `user`, it is the user's name in the log. With `none`, no request has a value. Any other
    /// text is the value of all requests. May be repeated
    #[arg(long = "assume", value_name = "SOURCE=VALUE")]
    assumptions: Vec<Assumption>,
    /// Also write the report to this file, as an HTML page with plots
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Exit with code 3 if more than this share of the requests would be rejected, as in 1%
    #[arg(long, value_name = "SHARE")]
    fail_above: Option<Share>,
}

/// The logs of a command.
#[derive(Args, Clone, Debug)]
pub(super) struct LogArgs {
    /// The access logs; `-` is standard input. Files that are compressed with gzip or zstd are recognised
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<OsString>,
    /// `auto`, `combined`, `json`, `alb`, or a template as in nginx's log_format
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    format: Format,
}

/// A share of all in percent, from 0 to 100, as in `1%`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share(pub(super) f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').unwrap_or(text).trim();
        let percent = number.parse::<f64>().ok().filter(|it| (0.0..=100.0).contains(it));
        // Without `%` nobody can tell whether 0.5 means 50 % or 0.5 %.
        let percent = percent.filter(|it| text.ends_with('%') || *it == 0.0);
        percent.map(Self).ok_or_else(|| "expected a share in percent, as in 1% or 0.1%".to_owned())
    }
}

impl LogArgs {
    /// Calls `take` for each request of the logs. `take` also gets the changes that tidegate logged before this
    /// request. Returns how many lines there were of each kind.
    pub(super) fn read(
        &self,
        mut take: impl FnMut(&LogRecord, &[ToldChange]),
    ) -> Result<LineCounts, Failure> {
        let inputs: Vec<_> = self.logs.iter().cloned().map(LogInput::from).collect();
        let mut logs = SortedLogs::open(&inputs, &self.format).map_err(Failure::run)?;
        let is_watched = terminal(&io::stderr()) != Terminal::None;
        let mut lines = LineCounts::default();
        while let Some(next) = logs.next_request().map_err(Failure::run)? {
            match next {
                Ok(record) => take(&record, &std::mem::take(&mut logs.changes)),
                Err(FaultyLine { fault: LineFault::NoRequest(what), .. }) => {
                    lines.no_request += 1;
                    if CHANGES.iter().any(|(message, _)| *message == what) {
                        *lines.changes.entry(what).or_default() += 1;
                    }
                }
                Err(faulty) => {
                    lines.broken += 1;
                    if lines.broken_examples.len() < EXAMPLES {
                        lines.broken_examples.push(faulty);
                    }
                }
            }
            lines.read += 1;
            if is_watched && lines.read.is_multiple_of(PROGRESS) {
                let (read, reached) = (number(lines.read), time(logs.reached));
                complain(format_args!("{read} lines, up to {reached}"));
            }
        }
        lines.order = logs.order;
        (lines.missing, lines.repeated) = (logs.gaps.missing(), logs.gaps.repeated);
        if lines.read > lines.broken + lines.no_request {
            return Ok(lines);
        }
        let LineCounts { read, broken, ref broken_examples, .. } = lines;
        Err(Failure::run(match broken_examples.first() {
            _ if read == 0 => "the log has no lines".to_owned(),
            Some(FaultyLine { file, line, fault }) => format!(
                "none of {read} lines is a request, and {broken} cannot be read. Does the log need another --format? \
                 {}:{line}: {fault}",
                printable(file)
            ),
            None => format!("none of {read} lines shows an HTTP request"),
        }))
    }

    /// Whether this file is one of the logs.
    fn have(&self, file: &Path) -> bool {
        self.logs.iter().any(|log| is_same(Path::new(log), file))
    }
}

/// Whether both names mean the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// Refuses an assumption about a fact that no limit and no route reads: it is probably a typing error.
pub(super) fn check_assumptions(
    assumptions: &[Assumption],
    reads: impl Fn(&Fact) -> bool,
) -> CommandResult {
    match assumptions.iter().find(|assumption| !reads(&assumption.fact)) {
        Some(Assumption { fact, .. }) => Err(Failure::usage(format!(
            "no limit and no route reads {fact}, so --assume cannot be about it"
        ))),
        None => Ok(()),
    }
}

pub(super) fn replay(args: &ReplayArgs) -> CommandResult {
    let configs = || std::iter::once(&args.file.config).chain(&args.against);
    if let Some(page) = &args.html
        && (args.logs.have(page) || configs().any(|config| is_same(config, page)))
    {
        let page = page.display();
        return Err(Failure::usage(format!("--html {page} would overwrite a file that is read")));
    }
    let against = args.against.as_deref().map(settings).transpose()?;
    let settings = settings(&args.file.config)?;
    let plans: Vec<&Settings> = std::iter::once(&settings).chain(&against).collect();
    let mut replay = Replay::new(plans, &args.assumptions);
    check_assumptions(&args.assumptions, |fact| {
        replay.sides.iter().any(|side| side.judge.reads(fact))
    })?;
    let lines = args.logs.read(|record, changes| {
        changes.iter().for_each(|change| replay.change(change));
        replay.request(record);
    })?;
    let files: Vec<_> = configs().map(|path| printable(&path.display().to_string())).collect();
    let Some(report) = Report::of(&replay, lines, &files) else { return Ok(()) };
    if let Some(path) = &args.html {
        let page = html::page(&report);
        fs::write(path, page)
            .map_err(|error| Failure::run(format!("cannot write {}: {error}", path.display())))?;
    }
    match args.json {
        true => print(serde_json::to_string(&report).map_err(Failure::run)?)?,
        false => print(text(&report).trim_end())?,
    }
    match args.fail_above {
        Some(Share(most)) if report.result.may_exceed(most) => {
            Err(Failure { code: ABOVE, message: Some(above(&report.result, most)) })
        }
        _ => Ok(()),
    }
}

fn settings(file: &Path) -> Result<Settings, Failure> {
    Ok(with_hashed_overrides(load(file)?.settings))
}

/// Why a replay fails by `--fail-above`.
fn above(result: &FileReport<'_>, most: f64) -> String {
    let (rejected, requests) = (number(result.counts.rejected), number(result.counts.requests));
    let undecided = match result.undecided {
        0 => String::new(),
        count => format!(", and {} might be: a limit was left out for them", number(count)),
    };
    format!(
        "error: {rejected} of {requests} requests would be rejected{undecided}; --fail-above allows {most} %"
    )
}
