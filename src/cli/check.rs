//! `tidegate check`.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use clap::Args;
use http::StatusCode;
use serde_json::{Value, json};

use super::{CommandResult, ConfigFile, Failure, WRONG, colour, complain, load, print};
use crate::config::{Problems, Severity};
use crate::replay::cases::{self, CaseResult};
use crate::replay::report::printable;

/// Check the file and run its `[[tests]]`: print `ok`, or everything that is wrong.
#[derive(Args, Clone, Debug)]
pub(super) struct Check {
    /// The configuration file, by default proxy.toml
    #[arg(value_name = "FILE", conflicts_with = "config")]
    path: Option<PathBuf>,
    #[command(flatten)]
    file: ConfigFile,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn check(check: &Check) -> CommandResult {
    let file: &Path = check.path.as_deref().unwrap_or(&check.file.config);
    let loaded = match (load(file), check.json) {
        (Ok(loaded), _) => loaded,
        (Err(problems), true) => {
            print(as_json(&problems, &[]))?;
            return Err(Failure { code: WRONG, message: None });
        }
        (Err(problems), false) => return Err(problems.into()),
    };
    let results = cases::run(&loaded.plan);
    let failed = results.iter().filter(|result| !result.differences.is_empty()).count();
    if check.json {
        print(as_json(&loaded.warnings, &results))?;
    } else {
        if !loaded.warnings.is_empty() {
            complain(loaded.warnings.render(colour()));
        }
        for result in &results {
            print(CaseReport { file, result })?;
        }
    }
    match failed {
        0 if check.json => Ok(()),
        0 => print("ok"),
        _ if check.json => Err(Failure { code: WRONG, message: None }),
        _ => {
            let tests = if results.len() == 1 { "test" } else { "tests" };
            Err(Failure::usage(format!("{failed} of {} {tests} failed", results.len())))
        }
    }
}

fn as_json(problems: &Problems, results: &[CaseResult<'_>]) -> Value {
    let of = |severity: Severity| -> Vec<Value> {
        let these = problems.iter().filter(|problem| problem.severity == severity);
        these.map(|problem| problems.to_json(problem)).collect()
    };
    let tests: Vec<Value> = results.iter().map(case_as_json).collect();
    let failed = results.iter().any(|result| !result.differences.is_empty());
    json!({
        "ok": !problems.has_errors() && !failed,
        "errors": of(Severity::Error),
        "warnings": of(Severity::Warning),
        "tests": tests,
    })
}

fn case_as_json(result: &CaseResult<'_>) -> Value {
    let CaseResult { case, came, differences } = result;
    let differences: Vec<_> = differences
        .iter()
        .map(|it| json!({ "field": it.field, "expected": it.expected, "came": it.came }))
        .collect();
    json!({
        "name": case.name,
        "line": case.line,
        "ok": differences.is_empty(),
        "differences": differences,
        "not_tried": came.left_out.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "came": {
            "allowed": came.allowed,
            "rejected": came.rejected,
            "delayed": came.delayed,
            "limit": came.limit,
            "route": came.route,
            "retry_after": came.retry_after,
        },
    })
}

/// The report of one test. For a test that fails it shows what came instead.
struct CaseReport<'r> {
    file: &'r Path,
    result: &'r CaseResult<'r>,
}

impl Display for CaseReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CaseResult { case, came, differences } = self.result;
        let name = printable(&case.name);
        let left_out = |f: &mut fmt::Formatter<'_>| {
            if let Some(status) = came.no_route.filter(|_| case.expect.route.is_none()) {
                let what = match status {
                    StatusCode::METHOD_NOT_ALLOWED => "method",
                    _ => "requests",
                };
                let status = status.as_u16();
                write!(f, "\n    no route takes its {what}: the answer is {status}")?;
            }
            came.left_out.iter().try_for_each(|(name, fact)| {
                write!(f, "\n    {name} was not tried, because a test does not have {fact}")
            })
        };
        if differences.is_empty() {
            write!(f, "test {name} ... ok")?;
            return left_out(f);
        }
        write!(f, "test {name} ... FAILED ({}:{})", self.file.display(), case.line)?;
        for difference in differences {
            write!(f, "\n    {difference}")?;
        }
        let (allowed, rejected, delayed) = (came.allowed, came.rejected, came.delayed);
        write!(
            f,
            "\n    what came: allowed = {allowed}, rejected = {rejected}, delayed = {delayed}"
        )?;
        if let Some(limit) = &came.limit {
            write!(f, ", limit = \"{limit}\"")?;
        }
        write!(f, ", route = \"{}\"", came.route)?;
        if let Some(seconds) = came.retry_after {
            write!(f, ", retry_after = \"{seconds}s\"")?;
        }
        left_out(f)
    }
}
