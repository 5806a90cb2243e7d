//! The command line: parses the arguments, runs a command of one of these files, and sets the exit code.

mod admin;
mod check;
mod demo;
mod diff;
mod explain;
mod health;
mod init;
mod limits;
mod redisson;
mod reference;
mod replay;
mod run;
mod suggest;
mod top;
mod why;

use std::error::Error;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory as _, Parser, Subcommand};

use crate::clock::Clock;
use crate::config::{self, Colour, Loaded, Overrides, Problems};
use crate::observe::log::{self, Terminal};
use crate::reload::Reload;
use crate::server::{self, InheritedSockets, RunError, Start};

/// Exit code: the command failed while it ran.
const FAILED: u8 = 1;
/// Exit code: the command line or the configuration is wrong.
const WRONG: u8 = 2;

/// A reverse proxy that throttles the traffic to an existing API.
///
/// It reads routes and limits from proxy.toml, forwards what they allow, answers the rest with 429,
/// and says so in its log. A change of the file is in force within a second.
#[derive(Debug, Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Begin with:\n  \
    tidegate demo                                  see it throttle, with nothing to set up\n  \
    tidegate run --upstream http://127.0.0.1:3000  put it in front of an API\n  \
    tidegate check                                 is proxy.toml right?\n  \
    tidegate explain 'GET /users/42'               which limits would count that?\n\n\
    The log goes to standard output. `access = true` in [log] adds a line for each request;\n\
    RUST_LOG=warn leaves who is rejected, and what fails: requests to your API, Redis, the file."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: run::Run,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the proxy (the default if no command is given)
    Run(run::Run),
    /// Check the file: print `ok`, or everything that is wrong with it
    Check(check::Check),
    /// Write a proxy.toml to begin with
    Init(init::Init),
    /// Show what a reload from one file to the other would change
    Diff(diff::Diff),
    /// Show which route and which limits apply to a request, and why
    Explain(explain::Explain),
    /// Try the limits of a file on access logs, and show who would have been rejected
    Replay(replay::ReplayArgs),
    /// Find the smallest limits that would have rejected hardly any client of access logs
    Suggest(suggest::SuggestArgs),
    /// Run a sample API behind the proxy and see it throttled
    Demo(demo::Demo),
    /// Print the JSON Schema of proxy.toml, for editors
    Schema,
    /// Ask a running proxy's admin endpoint whether the proxy is alive
    Health(health::Health),
    /// Show the limits of a running proxy, and override a limit for one key or for all keys
    Limits(limits::LimitsArgs),
    /// Watch a running proxy: limits, their decisions a second, and who is rejected most
    Top(top::Top),
    /// Explain why a request was rejected, by the ID of its answer
    Why(why::Why),
    /// Read and write a Redisson limiter that Java services use
    Redisson(redisson::Redisson),
    /// Print completions for a shell
    Completions(reference::Completions),
    /// Print the manual page
    Man,
}

#[derive(Args, Clone, Debug)]
struct ConfigFile {
    /// The configuration file
    #[arg(long, short, value_name = "FILE", default_value = config::DEFAULT_FILE)]
    config: PathBuf,
}

type CommandResult = Result<(), Failure>;

/// Why a command failed.
struct Failure {
    /// The exit code.
    code: u8,
    /// `None` if the command has already written the reason to standard output.
    message: Option<String>,
}

impl Failure {
    /// An argument or an environment variable is wrong.
    fn usage(error: impl Into<Box<dyn Error>>) -> Self {
        Self { code: WRONG, message: Some(format!("error: {}", chain(&*error.into()))) }
    }

    /// The command failed while it ran.
    fn run(error: impl Into<Box<dyn Error>>) -> Self {
        Self { code: FAILED, ..Self::usage(error) }
    }
}

/// The configuration is wrong.
impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        Self { code: WRONG, message: Some(problems.render(colour())) }
    }
}

/// The configuration of a file, for a command that does not serve requests.
fn load(file: &Path) -> Result<Loaded, Problems> {
    load_with(file, &Overrides::default())
}

/// The configuration of a file, with settings of the command line. Warns of certificates that have ended.
fn load_with(file: &Path, overrides: &Overrides) -> Result<Loaded, Problems> {
    let mut loaded = config::load(file, &config::process_environment, overrides)?;
    loaded.warn_of_ended_certificates(Clock::new().now());
    Ok(loaded)
}

/// Runs the proxy with the configuration of `file`. `beside` runs beside the proxy.
fn serve(
    file: &Path,
    overrides: &Overrides,
    beside: impl Future<Output = ()> + Send + 'static,
) -> CommandResult {
    // This changes the environment, so the process must have one thread only.
    let inherited = InheritedSockets::from_env().map_err(Failure::run)?;
    // `Reload` must exist before the file is loaded. Otherwise a change of the file between the two steps
    // would be missed.
    let reload = Reload::new(file.to_owned(), overrides.clone());
    let loaded = load_with(file, overrides)?;
    let rust_log = std::env::var("RUST_LOG").ok();
    let log = log::init(&loaded.settings.log, terminal(&io::stdout()), rust_log)
        .map_err(Failure::usage)?;
    let file = match file.exists() {
        true => file.display().to_string(),
        false => "none".to_owned(),
    };
    let start = Start {
        loaded,
        file,
        inherited,
        reload,
        shadow: overrides.shadow,
        log,
        beside: Box::pin(beside),
    };
    server::run(start).map_err(|error| match error {
        RunError::Start(error) => Failure::run(error),
        RunError::Failed => Failure { code: FAILED, message: None },
    })
}

/// Runs the command of the command line. Returns the exit code of the process.
pub fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => ended(command(cli)),
        // Clap answers wrong arguments, and exits with 2.
        Err(wrong) if wrong.use_stderr() => wrong.exit(),
        // Clap returns the text of --help, --version and `help` as an error, too.
        Err(help) => ended(help.print().and_then(|()| io::stdout().flush()).map_err(unwritten)),
    }
}

fn command(cli: Cli) -> CommandResult {
    match cli.command {
        None => run::run(cli.run),
        Some(Command::Run(run)) => run::run(run),
        Some(Command::Check(check)) => check::check(&check),
        Some(Command::Init(init)) => init::init(&init),
        Some(Command::Diff(diff)) => diff::diff(&diff),
        Some(Command::Explain(explain)) => explain::explain(&explain),
        Some(Command::Replay(args)) => replay::replay(&args),
        Some(Command::Suggest(args)) => suggest::suggest(&args),
        Some(Command::Demo(demo)) => demo::demo(&demo),
        Some(Command::Schema) => print(config::schema::json()),
        Some(Command::Health(health)) => health::health(&health),
        Some(Command::Limits(limits)) => limits::limits(&limits),
        Some(Command::Top(top)) => top::top(&top),
        Some(Command::Why(why)) => why::why(&why),
        Some(Command::Redisson(redisson)) => redisson::redisson(&redisson),
        Some(Command::Completions(completions)) => {
            reference::completions(&completions, Cli::command())
        }
        Some(Command::Man) => reference::man(Cli::command()),
    }
}

fn ended(result: CommandResult) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            message.into_iter().for_each(complain);
            ExitCode::from(code)
        }
    }
}

/// An error and what caused it, in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Writes a new file. An existing file is never overwritten, because it may be a configuration of the user.
fn write_new(file: &Path, text: &str) -> CommandResult {
    let why = |error: io::Error| format!("cannot write {}: {error}", file.display());
    let mut written = File::create_new(file).map_err(|error| Failure::usage(why(error)))?;
    written.write_all(text.as_bytes()).map_err(|error| {
        // A part of a file would make the next try fail, so it is removed if possible.
        let _ = std::fs::remove_file(file);
        Failure::run(why(error))
    })
}

/// Writes a command's output to standard output.
///
/// # Errors
/// If the output cannot be written: the disk is full, or the reader has closed the pipe.
fn print(text: impl Display) -> CommandResult {
    let mut stdout = io::stdout();
    writeln!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(unwritten)
}

/// The failure of a command whose output cannot be written. A reader that closes the pipe (`| head`) has read enough.
fn unwritten(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure { code: FAILED, message: None },
        _ => Failure::run(format!("cannot write to standard output: {error}")),
    }
}

/// Writes a message to standard error.
fn complain(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Whether errors are shown in colour.
fn colour() -> Colour {
    match terminal(&io::stderr()) {
        Terminal::Colour => Colour::Always,
        Terminal::Plain | Terminal::None => Colour::Never,
    }
}

/// The kind of terminal that an output is. `NO_COLOR` (<https://no-color.org>) and `TERM=dumb` mean a
/// terminal without colours.
fn terminal(output: &impl io::IsTerminal) -> Terminal {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let is_unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    match (output.is_terminal(), is_dumb || is_unwanted) {
        (false, _) => Terminal::None,
        (true, true) => Terminal::Plain,
        (true, false) => Terminal::Colour,
    }
}
