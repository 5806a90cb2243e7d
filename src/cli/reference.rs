//! `tidegate completions` and `tidegate man`: completions for a shell, and the manual page.

use clap::{Args, Command};
use clap_complete::Shell;

use super::{CommandResult, Failure, print};

/// Print completions for a shell.
#[derive(Args, Clone, Debug)]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

pub(super) fn completions(completions: &Completions, mut command: Command) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut command, env!("CARGO_PKG_NAME"), &mut script);
    print(String::from_utf8_lossy(&script).trim_end())
}

pub(super) fn man(command: Command) -> CommandResult {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page).map_err(Failure::run)?;
    print(String::from_utf8_lossy(&page).trim_end())
}
