//! `tidegate check`.

use std::path::{Path, PathBuf};

use clap::Args;
use http::StatusCode;
use serde_json::{Value, json};

use super::{CommandResult, ConfigFile, Failure, WRONG, colour, complain, load, print};
use crate::config::{Problems, Severity};
use crate::replay::cases::{self, CaseCounts, CaseResult};
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
    let loaded = load(file);
    if check.json {
        let (problems, results) = match &loaded {
            Ok(loaded) => (&loaded.warnings, cases::run(&loaded.settings)),
            Err(problems) => (problems, Vec::new()),
        };
        let report = as_json(problems, &results);
        print(&report)?;
        let wrong = Failure { code: WRONG, message: None };
        return if report["ok"] == true { Ok(()) } else { Err(wrong) };
    }
    let loaded = loaded?;
    if !loaded.warnings.is_empty() {
        complain(loaded.warnings.render(colour()));
    }
    let results = cases::run(&loaded.settings);
    for result in &results {
        print(case_lines(file, result).join("\n    "))?;
    }
    match results.iter().filter(|result| !result.differences.is_empty()).count() {
        0 => print("ok"),
        failed => {
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
    let tests = results.iter().map(|CaseResult { case, came, differences }| {
        json!({
            "name": case.name,
            "line": case.line,
            "ok": differences.is_empty(),
            "differences": differences,
            "not_tried": came.left_out.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            "came": came,
        })
    });
    json!({
        "ok": !problems.has_errors() && results.iter().all(|result| result.differences.is_empty()),
        "errors": of(Severity::Error),
        "warnings": of(Severity::Warning),
        "tests": tests.collect::<Vec<_>>(),
    })
}

/// The report of one test. For a test that fails it shows what came instead.
fn case_lines(file: &Path, result: &CaseResult<'_>) -> Vec<String> {
    let CaseResult { case, came, differences } = result;
    let name = printable(&case.name);
    let mut lines = vec![match differences.is_empty() {
        true => format!("test {name} ... ok"),
        false => format!("test {name} ... FAILED ({}:{})", file.display(), case.line),
    }];
    if !differences.is_empty() {
        lines.extend(differences.iter().map(ToString::to_string));
        let CaseCounts { allowed, rejected, delayed, route, .. } = came;
        let limit = came.limit.map(|limit| format!(", limit = \"{limit}\"")).unwrap_or_default();
        let retry = came.retry_after.map(|it| format!(", retry_after = \"{it}s\""));
        lines.push(format!(
            "what came: allowed = {allowed}, rejected = {rejected}, delayed = {delayed}{limit}, route = \"{route}\"{}",
            retry.unwrap_or_default()
        ));
    }
    if let Some(status) = came.no_route.filter(|_| case.expect.route.is_none()) {
        let what = if status == StatusCode::METHOD_NOT_ALLOWED { "method" } else { "requests" };
        let status = status.as_u16();
        lines.push(format!("no route takes its {what}: the answer is {status}"));
    }
    for (name, fact) in &came.left_out {
        lines.push(format!("{name} was not tried, because a test does not have {fact}"));
    }
    lines
}
