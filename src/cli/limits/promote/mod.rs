//! `tidegate limits promote`: gives a limit the figures of its candidate. It shows the edit of the file first, and
//! then makes it.

mod edit;

use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::Path;

use clap::Args;
use similar::TextDiff;

use crate::cli::{CommandResult, ConfigFile, Failure, print};
use crate::config::{self, Overrides};
use crate::file;
use crate::plan::{LimitSpec, Plan};
use crate::replay::cases;
use crate::replay::report::printable;

/// In the file, give a limit the figures of its candidate.
///
/// The command shows the change before it writes the file. It removes the candidate and its comments, and changes
/// nothing else in the file. A running proxy reads the changed file by itself.
#[derive(Args, Clone, Debug)]
pub(super) struct PromoteCandidate {
    /// The limit's name
    limit: String,
    #[command(flatten)]
    file: ConfigFile,
    /// Make the edit without asking
    #[arg(long, short)]
    yes: bool,
}

pub(super) fn promote(promote: &PromoteCandidate) -> CommandResult {
    let path = &promote.file.config;
    let name = path.display().to_string();
    let content = File::open(path).and_then(file::read);
    let before = content.as_ref().map(Vec::clone).unwrap_or_default();
    let (environment, none) = (&config::process_environment, Overrides::default());
    let loaded = config::load_from(path, content, environment, &none)?;
    let old = &loaded.plan;
    let limit = find(old, &promote.limit, &name)?;
    let Some(candidate) = &limit.candidate else {
        return Err(Failure::usage(format!(
            "the limit `{}` of {name} has no candidate: write one first, as in `candidate = {{ rate = \"50/s\" }}`",
            limit.name
        )));
    };
    let before = String::from_utf8(before).map_err(Failure::usage)?;
    let after = edit::promoted(&before, limit.name.as_str(), &config::candidate_fields());
    let after = after.ok_or_else(|| by_hand(&name, limit, candidate))?;
    let is_promoted = |it: &LimitSpec| {
        it.name == limit.name && it.figures == candidate.figures && it.candidate.is_none()
    };
    let new = config::parse(&name, &after, environment, &none).ok();
    let new = new.filter(|new| new.plan.limits.iter().any(|limit| is_promoted(limit)));
    let new = new.ok_or_else(|| by_hand(&name, limit, candidate))?;
    let diff = TextDiff::from_lines(&before, &after);
    let shown = diff.unified_diff().context_radius(3).header(&name, &name).to_string();
    print(shown.trim_end())?;
    for failed in cases::run(&new.plan).iter().filter(|result| !result.differences.is_empty()) {
        let case = failed.case;
        print(format_args!(
            "the test `{}` of the file fails with these figures",
            printable(&case.name)
        ))?;
    }
    if !promote.yes {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return print(format_args!("\n{name} is unchanged; --yes makes this edit"));
        }
        if !is_confirmed().map_err(Failure::run)? {
            return print(format_args!("{name} is unchanged"));
        }
    }
    replace(path, &before, &after)?;
    print(format_args!("wrote {name}; a running proxy reads it by itself"))
}

/// The limit of this name.
fn find<'p>(plan: &'p Plan, name: &str, file: &str) -> Result<&'p LimitSpec, Failure> {
    if let Some(limit) = plan.limits.iter().find(|limit| limit.name.as_str() == name) {
        return Ok(limit);
    }
    if plan.off.iter().any(|off| off.as_str() == name) {
        return Err(Failure::usage(format!(
            "the limit `{name}` of {file} is off, and so is its candidate: give the limit another `mode` first"
        )));
    }
    let names = plan.limits.iter().map(|limit| limit.name.as_str());
    let help = match config::nearest(name, names) {
        Some(near) => format!(": did you mean `{near}`?"),
        None => String::new(),
    };
    Err(Failure::usage(format!("{file} has no limit `{name}`{help}")))
}

fn by_hand(file: &str, limit: &LimitSpec, candidate: &LimitSpec) -> Failure {
    Failure::run(format!(
        "the limit `{}` is written in {file} in a way that cannot be edited: give it {} by hand, and remove \
         its `candidate`",
        limit.name, candidate.figures
    ))
}

/// Asks whether to apply the edit.
fn is_confirmed() -> io::Result<bool> {
    let mut out = io::stdout();
    write!(out, "\napply? [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Replaces a file at once by one with the new text, with the same owner and permissions. A symlink stays, and its
/// target is replaced.
fn replace(path: &Path, before: &str, after: &str) -> CommandResult {
    let name = path.display();
    let failed = |error: io::Error| Failure::run(format!("cannot write {name}: {error}"));
    let target = fs::canonicalize(path).map_err(failed)?;
    let folder = target.parent().unwrap_or(Path::new("/"));
    let new = (|| {
        let mut new = tempfile::Builder::new().prefix(".tidegate-").tempfile_in(folder)?;
        new.write_all(after.as_bytes())?;
        let (old, made) = (fs::metadata(&target)?, new.as_file().metadata()?);
        if (made.uid(), made.gid()) != (old.uid(), old.gid()) {
            fchown(new.as_file(), Some(old.uid()), Some(old.gid()))?;
        }
        new.as_file().set_permissions(old.permissions())?;
        new.as_file().sync_all()?;
        Ok(new)
    })();
    let new = new.map_err(failed)?;
    if fs::read(&target).map_err(failed)? != before.as_bytes() {
        return Err(Failure::run(format!(
            "{name} was changed meanwhile: nothing is written; run the command again"
        )));
    }
    new.persist(&target).map_err(|error| failed(error.error))?;
    Ok(())
}
