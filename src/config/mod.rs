//! `proxy.toml` to [`Plan`]: reads the file, finds everything that is wrong with it in one go, and
//! says so with the place, what was expected and the nearest name.
//!
//! Two stages: the file's tree with positions (`reader`), then the finished plan (`section`, a file for each
//! section of `proxy.toml`). Each setting is declared once, in its section: `setting` makes its reading,
//! and `schema`, `changes` and the reference go by the same declaration.

mod changes;
mod doubts;
mod reader;
pub mod schema;
mod section;
mod setting;
mod shape;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use toml::de::DeTable;

pub use self::changes::{Changes, diff};
pub use self::reader::{Colour, Problem, Problems, Severity, duration, duration_text};
use crate::plan::Plan;

/// Larger files are refused unread: 10,000 routes take about a tenth of it.
const MAX_FILE: u64 = 16 << 20;

/// What stands in place of a file that is not there, if an upstream is given.
const WITHOUT_FILE: &str = "\
[upstreams.upstream]
servers = []

[[routes]]
path = \"/{*rest}\"
upstream = \"upstream\"
";

/// What the command line says in place of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The URL of the only server of the only upstream.
    pub upstream: Option<String>,
    /// The address to listen on.
    pub listen: Option<String>,
}

/// A configuration that can be used.
#[derive(Debug)]
pub struct Loaded {
    /// What was built from the file.
    pub plan: Plan,
    /// What was likely not meant; perhaps nothing.
    pub warnings: Problems,
}

/// The configuration in the file at `path`; `env` answers the environment's variables.
///
/// Where there is no such file and `overrides` names an upstream: one route that forwards
/// everything to it, without limits, and a warning that says so.
///
/// # Errors
/// Everything that is wrong with the file, all at once.
pub fn load(
    path: &Path,
    env: &dyn Fn(&str) -> Option<String>,
    overrides: &Overrides,
) -> Result<Loaded, Problems> {
    load_from(path, File::open(path).and_then(read), env, overrides)
}

/// The configuration of a process that runs, from what was read of its file, or from why the file could not
/// be read.
///
/// # Errors
/// Everything that is wrong with the file, all at once.
pub fn load_again(
    path: &Path,
    file: io::Result<Vec<u8>>,
    env: &dyn Fn(&str) -> Option<String>,
    overrides: &Overrides,
) -> Result<Loaded, Problems> {
    match file {
        Err(error) if error.kind() == io::ErrorKind::NotFound && overrides.upstream.is_none() => {
            let name = path.display().to_string();
            let gone = Problem::general(format!("{name} is gone"));
            Err(one(&name, gone.help("put it back")))
        }
        file => load_from(path, file, env, overrides),
    }
}

/// The same at the start.
pub fn load_from(
    path: &Path,
    file: io::Result<Vec<u8>>,
    env: &dyn Fn(&str) -> Option<String>,
    overrides: &Overrides,
) -> Result<Loaded, Problems> {
    let name = path.display().to_string();
    match file {
        Ok(bytes) => parse_bytes(&name, &bytes, env, overrides),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match &overrides.upstream {
            Some(_) => {
                let mut loaded = parse(&name, WITHOUT_FILE, env, overrides)?;
                let warning = Problem::general(format!(
                    "there is no {name}: everything is forwarded, and nothing is limited"
                ));
                loaded.warnings = Problems::new(&name, "", vec![warning.into_warning()]);
                Ok(loaded)
            }
            None => Err(one(
                &name,
                Problem::general(format!("there is no {name}")).help(
                    "write one with `tidegate init`, forward everything with `--upstream \
                     http://127.0.0.1:3000`, or try `tidegate demo`",
                ),
            )),
        },
        Err(error) => Err(one(&name, Problem::general(format!("cannot read {name}: {error}")))),
    }
}

/// The configuration in `text`, which messages place in `file_name`; the files that it names are looked
/// for in that one's folder.
///
/// # Errors
/// Everything that is wrong with the text, all at once; where it is not TOML, only that.
pub fn parse(
    file_name: &str,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    overrides: &Overrides,
) -> Result<Loaded, Problems> {
    let (tree, syntax) = DeTable::parse_recoverable(text);
    if !syntax.is_empty() {
        // A recovered tree holds invented values: what else is wrong with it means nothing.
        let problem = reader::first_syntax_error(text, &syntax);
        return Err(Problems::new(file_name, text, vec![problem]));
    }
    let folder = Path::new(file_name).parent().unwrap_or(Path::new(""));
    let cx = reader::Context::new(text, folder, env);
    let plan = section::plan(&cx, tree.get_ref(), overrides);
    let problems = Problems::new(file_name, text, cx.into_problems());
    match plan {
        Some(plan) if !problems.has_errors() => Ok(Loaded { plan, warnings: problems }),
        _ => Err(problems),
    }
}

/// The process's environment. A variable that is no UTF-8 is as good as unset.
pub fn process_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// What a file holds that may have changed since the start.
///
/// # Errors
/// Where it is no ordinary file: nobody may have to wait for a pipe's other end while a proxy runs.
/// Where it is larger than any configuration, or cannot be read.
pub fn read_again(path: &Path) -> io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no ordinary file"));
    }
    read(File::open(path)?)
}

fn read(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_FILE) {
        let message = format!("it is larger than {} MiB", MAX_FILE >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

fn parse_bytes(
    name: &str,
    bytes: &[u8],
    env: &dyn Fn(&str) -> Option<String>,
    overrides: &Overrides,
) -> Result<Loaded, Problems> {
    match std::str::from_utf8(bytes) {
        Ok(text) => parse(name, text, env, overrides),
        Err(error) => {
            // The replacement character stands at the same place as the first wrong byte.
            let text = String::from_utf8_lossy(bytes);
            let start = error.valid_up_to();
            let span = start..start + char::REPLACEMENT_CHARACTER.len_utf8();
            let problem =
                Problem::error(span, "this is not UTF-8", "expected a file saved as UTF-8");
            Err(Problems::new(name, &text, vec![problem]))
        }
    }
}

fn one(name: &str, problem: Problem) -> Problems {
    Problems::new(name, "", vec![problem])
}

#[cfg(test)]
mod tests;
