//! `tidegate completions` and `tidegate man`: completions for a shell, and the manual page.

use std::io::{self, Write as _};

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use super::{CommandResult, Failure, print};

/// The sections of the manual page after the commands.
const END: &str = include_str!("manual.roff");

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

pub(super) fn man(mut command: Command) -> CommandResult {
    // Then each command knows its full name, such as `tidegate limits get`.
    command.build();
    let mut page = Vec::new();
    write_page(&command, &mut page).map_err(Failure::run)?;
    print(String::from_utf8_lossy(&page).trim_end())
}

/// One page for all commands, with a section for each: packages install one page.
fn write_page(command: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    let man = Man::new(command.clone());
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    write_commands(command, page)?;
    page.write_all(END.as_bytes())
}

fn write_commands(command: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
        let man = Man::new(command.clone());
        writeln!(page, ".SH \"{}\"", command.get_bin_name().unwrap_or(command.get_name()))?;
        let mut section = Vec::new();
        man.render_synopsis_section(&mut section)?;
        man.render_description_section(&mut section)?;
        if command.get_arguments().next().is_some() {
            man.render_options_section(&mut section)?;
        }
        // The section has the headings of a whole page. Here they begin paragraphs.
        for line in String::from_utf8_lossy(&section).lines() {
            writeln!(page, "{}", if line.starts_with(".SH ") { ".PP" } else { line })?;
        }
        write_commands(command, page)?;
    }
    Ok(())
}
