//! `tidegate diff`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{CommandResult, FAILED, Failure, print};
use crate::config;
use crate::plan::Plan;

/// Say what a reload from one file to the other would change. Exits with 1 where they differ.
#[derive(Args, Clone, Debug)]
pub(super) struct Diff {
    /// The file that is in force
    old: PathBuf,
    /// The file that is to come
    new: PathBuf,
}

pub(super) fn diff(diff: &Diff) -> CommandResult {
    let config::Changes { changed, restart } = config::diff(&load(&diff.old)?, &load(&diff.new)?);
    if changed.is_empty() && restart.is_empty() {
        return print("nothing changes");
    }
    for line in &changed {
        print(line)?;
    }
    for field in &restart {
        print(format_args!("{field} changes with a restart"))?;
    }
    Err(Failure::Told { code: FAILED })
}

fn load(file: &Path) -> Result<Plan, Failure> {
    let none = config::Overrides::default();
    let loaded = config::load(file, &config::process_environment, &none);
    Ok(loaded.map_err(Failure::Config)?.plan)
}
