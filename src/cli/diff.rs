//! `tidegate diff`.

use std::path::PathBuf;

use clap::Args;

use super::{CommandResult, FAILED, Failure, load, print};
use crate::config;

/// Show what a reload from one file to the other would change. Exits with 1 if anything would change.
#[derive(Args, Clone, Debug)]
pub(super) struct Diff {
    /// The file that is in force now
    old: PathBuf,
    /// The file to reload
    new: PathBuf,
}

pub(super) fn diff(diff: &Diff) -> CommandResult {
    let (old, new) = (load(&diff.old)?, load(&diff.new)?);
    let config::Changes { changed, restart } = old.changes_to(&new, &config::process_environment);
    if changed.is_empty() && restart.is_empty() {
        return print("nothing changes");
    }
    for line in &changed {
        print(line)?;
    }
    for needed in &restart {
        print(&needed.line)?;
    }
    Err(Failure { code: FAILED, message: None })
}
