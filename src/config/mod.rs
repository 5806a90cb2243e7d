//! Makes a [`Settings`] from `proxy.toml`, for `cli` and `reload`. All problems of the file are reported at
//! once, each with its position, the expected value and the nearest name.
//!
//! `reader` reads the file's tree with positions. `section` makes a part of the settings from each section of
//! `proxy.toml`, and `assembly` puts the parts together. Each setting is declared once, in its section.
//! `reader::setting` reads the value by this declaration; `schema` and `tree` use the same declaration.

mod assembly;
mod changes;
mod doubts;
mod overrides;
mod reader;
mod record;
pub(crate) mod schema;
mod section;
mod tree;

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use toml::de::DeTable;

pub use self::changes::Changes;
pub(crate) use self::changes::diff;
pub use self::overrides::Overrides;
pub use self::reader::{Colour, Problems, duration};
pub(crate) use self::reader::{
    DurationError, Problem, Severity, Spelled, duration_text, enumerate,
};
pub(crate) use self::record::ConfigRecord;
pub(crate) use self::tree::FileText;
use crate::file;
use crate::limit::time::Timestamp;
use crate::settings::Settings;

/// The file of a command that names none.
pub(crate) const DEFAULT_FILE: &str = "proxy.toml";

/// Replaces a missing file, if the command line names an upstream.
const WITHOUT_FILE: &str = "\
[upstreams.upstream]
servers = []

[[routes]]
path = \"/{*rest}\"
upstream = \"upstream\"
";

/// The help if a named file is missing beside `--upstream`.
const WITHOUT_NAME: &str = "a file that `--config` names must be there; without `--config`, `--upstream` forwards everything, and limits nothing";

/// The help if the usual file is missing.
const WITHOUT_ANY: &str = "write one with `tidegate init`, forward everything with `--upstream http://127.0.0.1:3000`, or try `tidegate demo`";

/// A configuration that can be used.
#[derive(Debug)]
pub struct Loaded {
    /// The settings that were built from the file.
    pub settings: Settings,
    /// Warnings about settings that were probably not meant. Can be empty.
    pub warnings: Problems,
    pub(crate) text: FileText,
}

impl Loaded {
    /// What a reload from this configuration to `new` would change. `env` returns the value of an environment
    /// variable.
    pub fn changes_to(&self, new: &Self, env: &dyn Fn(&str) -> Option<String>) -> Changes {
        diff((&self.settings, &self.text), (&new.settings, &new.text), env)
    }

    /// Warns of certificates that have expired. `now` is the time of day.
    pub(crate) fn warn_of_ended_certificates(&mut self, now: Timestamp) {
        for tls in self.settings.listener_tls().into_iter().filter_map(|(_, tls)| tls) {
            self.warnings.warn(tls.material.expired(Duration::from_micros(now.as_micros())));
        }
    }
}

/// Loads the configuration from the file at `path`. `env` returns the value of an environment variable.
///
/// If the file is missing, and `overrides` names an upstream and no file, the settings have a single route. This route
/// forwards all requests to the upstream without limits, and a warning says so.
///
/// # Errors
/// All problems of the file at once.
pub fn load(
    path: &Path,
    env: &dyn Fn(&str) -> Option<String>,
    overrides: &Overrides,
) -> Result<Loaded, Problems> {
    load_from(path, File::open(path).and_then(file::read), env, overrides)
}

/// Loads the configuration again in a running process. `file` is the content of the file at `path`, or the
/// error from reading the file. `may_lack` says that the file may be missing, because the configuration in
/// force came without one.
///
/// # Errors
/// All problems of the file at once.
pub(crate) fn load_again(
    path: &Path,
    file: io::Result<Vec<u8>>,
    env: &dyn Fn(&str) -> Option<String>,
    overrides: &Overrides,
    may_lack: bool,
) -> Result<Loaded, Problems> {
    let may_lack = may_lack && overrides.upstream.is_some();
    match file {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !may_lack => {
            let name = path.display().to_string();
            let gone = Problem::general(format!("{name} is gone"));
            Err(one(&name, gone.help("put it back")))
        }
        file => load_from(path, file, env, overrides),
    }
}

/// Like [`load`], with the file already read. `file` is the content of the file at `path`, or the error
/// from reading the file.
pub fn load_from(
    path: &Path,
    file: io::Result<Vec<u8>>,
    env: &dyn Fn(&str) -> Option<String>,
    overrides: &Overrides,
) -> Result<Loaded, Problems> {
    let name = path.display().to_string();
    let error = match file {
        Ok(bytes) => return parse(&name, text_of(&name, &bytes)?, env, overrides),
        Err(error) => error,
    };
    if error.kind() != io::ErrorKind::NotFound {
        return Err(one(&name, Problem::general(format!("cannot read {name}: {error}"))));
    }
    let missing = Problem::general(format!("there is no {name}"));
    if overrides.upstream.is_some() && !overrides.names_file {
        let mut loaded = parse(&name, WITHOUT_FILE, env, overrides)?;
        let title = format!("there is no {name}: everything is forwarded, and nothing is limited");
        loaded.warnings = one(&name, Problem::general(title).into_warning());
        return Ok(loaded);
    }
    Err(one(
        &name,
        match &overrides.upstream {
            Some(_) => missing.help(WITHOUT_NAME),
            // Without the default file, the user has perhaps no file yet, and the advice helps. A user who names another
            // file has one.
            None if name == DEFAULT_FILE => missing.help(WITHOUT_ANY),
            None => missing,
        },
    ))
}

/// Makes the configuration from `text`. Messages name `file_name` as the file. A relative path in `text`
/// starts at the folder of `file_name`.
///
/// # Errors
/// All problems of the text at once. If the text is not TOML, only the first syntax error.
pub fn parse(
    file_name: &str,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    overrides: &Overrides,
) -> Result<Loaded, Problems> {
    let (mut tree, syntax) = DeTable::parse_recoverable(text);
    if !syntax.is_empty() {
        // The recovered tree holds invented values. Other problems in this tree would mean nothing.
        let problem = reader::first_syntax_error(text, &syntax);
        return Err(Problems::new(file_name, text, vec![problem]));
    }
    if let Some(problem) = overrides.apply(tree.get_mut(), env) {
        return Err(one(file_name, problem));
    }
    let folder = Path::new(file_name).parent().unwrap_or(Path::new(""));
    let cx = reader::Context::new(text, folder, env);
    let settings = assembly::settings(&cx, tree.get_ref());
    let problems = Problems::new(file_name, text, cx.into_problems());
    match settings {
        Some(settings) if !problems.has_errors() => {
            let text = FileText { text: text.into(), overrides: overrides.clone() };
            Ok(Loaded { settings, warnings: problems, text })
        }
        _ => Err(problems),
    }
}

/// A variable of the process's environment. A variable whose value is not UTF-8 counts as unset.
pub(crate) fn process_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The text of a file.
fn text_of<'b>(name: &str, bytes: &'b [u8]) -> Result<&'b str, Problems> {
    std::str::from_utf8(bytes).map_err(|error| {
        // The replacement character stands where the first wrong byte is.
        let text = String::from_utf8_lossy(bytes);
        let start = error.valid_up_to();
        let span = start..start + char::REPLACEMENT_CHARACTER.len_utf8();
        let problem = Problem::error(span, "this is not UTF-8", "expected a file saved as UTF-8");
        Problems::new(name, &text, vec![problem])
    })
}

fn one(name: &str, problem: Problem) -> Problems {
    Problems::new(name, "", vec![problem])
}

#[cfg(test)]
mod tests;
