//! `tidegate check`.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::{CommandResult, ConfigFile, Failure, WRONG, colour, complain, load, print};
use crate::config::{Problems, Severity};

/// Say `ok`, or everything that is wrong with the file.
#[derive(Args, Clone, Debug)]
pub(super) struct Check {
    /// The configuration's file, proxy.toml by default
    #[arg(value_name = "FILE", conflicts_with = "config")]
    path: Option<PathBuf>,
    #[command(flatten)]
    file: ConfigFile,
    /// Say it as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn check(check: &Check) -> CommandResult {
    let file: &Path = check.path.as_deref().unwrap_or(&check.file.config);
    match (load(file), check.json) {
        (Ok(loaded), true) => print(as_json(&loaded.warnings)),
        (Err(problems), true) => {
            print(as_json(&problems))?;
            Err(Failure { code: WRONG, message: None })
        }
        (Ok(loaded), false) => {
            if !loaded.warnings.is_empty() {
                complain(loaded.warnings.render(colour()));
            }
            print("ok")
        }
        (Err(problems), false) => Err(problems.into()),
    }
}

fn as_json(problems: &Problems) -> Value {
    let of = |severity: Severity| -> Vec<Value> {
        let these = problems.iter().filter(|problem| problem.severity() == severity);
        these.map(|problem| problems.to_json(problem)).collect()
    };
    json!({
        "ok": !problems.has_errors(),
        "errors": of(Severity::Error),
        "warnings": of(Severity::Warning),
    })
}
