//! The formats of log lines.

use std::str::FromStr;

use super::draft::RecordDraft;
use super::json;
use super::record::{LineFault, LogRecord};
use super::template::{ALB, COMBINED, LineTemplate};

/// How the lines of a log are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The beginning of each line shows its format. Therefore a log may have lines of several formats.
    #[default]
    Auto,
    /// An object in each line, with the names of Caddy, Envoy, nginx, tidegate or Traefik.
    Json,
    /// A text with the values in an order: the combined format, that of AWS's load balancers, or one that the user
    /// describes.
    Template(LineTemplate),
}

impl FromStr for Format {
    type Err = String;

    /// The error says what is wrong.
    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "auto" => Self::Auto,
            "combined" => Self::Template(COMBINED.clone()),
            "json" => Self::Json,
            "alb" => Self::Template(ALB.clone()),
            _ if text.contains('$') => Self::Template(text.parse()?),
            _ => {
                return Err(format!(
                    "`{text}` is no format: use `auto`, `combined`, `json`, `alb`, or a template such as \
                     '$remote_addr [$time_local] \"$request\" $status'"
                ));
            }
        })
    }
}

impl Format {
    /// The record of a line. The line has no line feed at its end.
    ///
    /// # Errors
    /// If the line shows no request, or cannot be read.
    pub fn read(&self, line: &str) -> Result<LogRecord, LineFault> {
        // A program that was stopped, or whose log was truncated under it, leaves NUL bytes.
        let line = line.trim_start_matches(['\0', '\u{feff}']);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() {
            return Err(LineFault::NoRequest("it is empty"));
        }
        let mut draft = RecordDraft::default();
        match self {
            Self::Auto if line.starts_with('{') => json::read(line, &mut draft),
            Self::Auto if is_alb(line) => ALB.read(line, &mut draft),
            Self::Auto => COMBINED.read(line, &mut draft),
            Self::Json => json::read(line, &mut draft),
            Self::Template(template) => template.read(line, &mut draft),
        }?;
        draft.finish()
    }
}

/// Whether a line begins like those of AWS: with the kind of the request, and a time.
fn is_alb(line: &str) -> bool {
    let kind = line
        .split_once(' ')
        .filter(|(kind, _)| matches!(*kind, "http" | "https" | "h2" | "grpcs" | "ws" | "wss"));
    kind.is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()))
}
