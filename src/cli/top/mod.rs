//! `tidegate top`: a running proxy in a terminal, through its admin endpoint.
//!
//! `screen` makes the lines of a status, `paint` makes text of the lines, and `live` shows them again each
//! second until a key ends it.

mod candidate;
mod live;
mod paint;
mod screen;
mod trend;

use std::io;
use std::path::PathBuf;

use clap::Args;

use self::screen::{Screen, Size};
use self::trend::Trends;
use super::admin::AdminClient;
use super::{CommandResult, print, terminal};
use crate::observe::log::Terminal;

/// Watch a running proxy: its limits with their decisions a second, the keys that are rejected most, the upstreams'
/// servers, and the store.
///
/// In a terminal it shows the present figures each second, until `q` or Ctrl-C. Otherwise it prints them
/// once.
#[derive(Args, Clone, Debug)]
pub(super) struct Top {
    /// The admin endpoint, as in http://127.0.0.1:9090; by default the file's admin.listen. Its token is the
    /// environment's TIDEGATE_ADMIN_TOKEN, or else the file's
    url: Option<String>,
    /// Print the endpoint's /api/status once
    #[arg(long)]
    json: bool,
    /// The configuration file, by default proxy.toml; with a URL, it is read only for its token
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The size of the text if the output is no terminal. Every line and every row fits.
const PAGE: Size = Size { width: 120, height: usize::MAX };

pub(super) fn top(top: &Top) -> CommandResult {
    let client = AdminClient::new(top.url.as_deref(), top.config.as_deref())?;
    // If the endpoint does not answer the first question, the command fails. Later the command tries again.
    let status = client.get("/api/status", "limits")?;
    if top.json {
        return print(status);
    }
    let trends = Trends::of(&client.get("/api/history", "limits")?);
    let colour = terminal(&io::stdout());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if colour == Terminal::None || is_dumb {
        let screen = Screen { at: &client.authority, status: &status, trends: &trends, away: None };
        let lines = screen.lines(PAGE);
        return print(lines.iter().map(paint::plain).collect::<Vec<_>>().join("\n"));
    }
    live::watch(&client, status, trends, colour == Terminal::Colour)
}
