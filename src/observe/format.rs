//! Writes each event as one line, in JSON or in the pretty format. Control characters are escaped in both
//! formats: text from a client cannot begin a new line.

use std::fmt::{self, Debug, Display, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::settings::LogFormat;
use crate::text::misleads;

pub(super) struct Lines(pub(super) LogFormat);

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'l> LookupSpan<'l>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match self.0 {
            LogFormat::Json => json(writer, event),
            LogFormat::Pretty => pretty(writer, event),
        }
    }
}

fn json(mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
    let metadata = event.metadata();
    out.write_str("{\"timestamp\":\"")?;
    SystemTime.format_time(&mut out)?;
    write!(out, "\",\"level\":\"{}\",\"target\":", metadata.level())?;
    quoted(&mut out, &metadata.target())?;
    for_each_field(event, |name, value| {
        write!(out, ",\"{name}\":")?;
        match value {
            FieldValue::Text(text) => quoted(&mut out, text),
            FieldValue::List(lines) => list(&mut out, lines),
            FieldValue::Plain(value) => write!(out, "{value}"),
        }
    })?;
    out.write_str("}\n")
}

fn pretty(mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
    let metadata = event.metadata();
    let level = match *metadata.level() {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        _ => "\x1b[34m",
    };
    let [dim, bold, level, reset] = match out.has_ansi_escapes() {
        true => ["\x1b[2m", "\x1b[1m", level, "\x1b[0m"],
        false => [""; 4],
    };
    out.write_str(dim)?;
    SystemTime.format_time(&mut out)?;
    write!(out, "{reset} {level}{:>5}{reset}", metadata.level())?;
    // tidegate's own events are known by their message. They need no target.
    if !metadata.target().starts_with(env!("CARGO_PKG_NAME")) {
        write!(out, " {dim}{}{reset}", metadata.target())?;
    }
    for_each_field(event, |name, value| {
        let text = match value {
            FieldValue::Text(value) | FieldValue::Plain(value) => value.to_string(),
            FieldValue::List(lines) => lines.replace('\n', "; "),
        };
        if name == "message" {
            write!(out, " {bold}")?;
            Escaped(&mut out).write_str(&text)?;
            return out.write_str(reset);
        }
        write!(out, " {dim}{name}={reset}")?;
        match text.is_empty() || text.contains([' ', '"', '\\', '=']) {
            true => quoted(&mut out, &text),
            false => Escaped(&mut out).write_str(&text),
        }
    })?;
    out.write_char('\n')
}

/// Fields that are JSON objects, and are in JSON already.
const OBJECTS: [&str; 3] = ["keys", "costs", "counts_by"];

/// Fields that are lists. In the event, a list is a text with an item on each line.
const LISTS: [&str; 3] = ["changed", "errors", "fields"];

enum FieldValue<'v> {
    Text(&'v dyn Display),
    /// The lines are the items.
    List(&'v str),
    /// A number or a truth value.
    Plain(&'v dyn Display),
}

/// Calls `write` for each field of the event, up to the first error.
fn for_each_field(
    event: &Event<'_>,
    write: impl FnMut(&str, FieldValue<'_>) -> fmt::Result,
) -> fmt::Result {
    let mut fields = Fields { write, result: Ok(()) };
    event.record(&mut fields);
    fields.result
}

/// Visits the fields of an event.
struct Fields<F> {
    write: F,
    result: fmt::Result,
}

impl<F: FnMut(&str, FieldValue<'_>) -> fmt::Result> Fields<F> {
    fn field(&mut self, field: &Field, value: FieldValue<'_>) {
        self.result = self.result.and_then(|()| (self.write)(field.name(), value));
    }
}

impl<F: FnMut(&str, FieldValue<'_>) -> fmt::Result> Visit for Fields<F> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.field(field, FieldValue::Text(&format_args!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            name if LISTS.contains(&name) => self.field(field, FieldValue::List(value)),
            name if OBJECTS.contains(&name) => self.field(field, FieldValue::Plain(&value)),
            _ => self.field(field, FieldValue::Text(&value)),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.field(field, FieldValue::Plain(&value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.field(field, FieldValue::Plain(&value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.field(field, FieldValue::Plain(&value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        match value.is_finite() {
            true => self.field(field, FieldValue::Plain(&value)),
            false => self.field(field, FieldValue::Plain(&"null")),
        }
    }
}

/// A value as a JSON string.
fn quoted(writer: &mut Writer<'_>, value: &dyn Display) -> fmt::Result {
    writer.write_char('"')?;
    write!(Escaped(writer), "{value}")?;
    writer.write_char('"')
}

/// Lines as a JSON array of strings.
fn list(writer: &mut Writer<'_>, lines: &str) -> fmt::Result {
    writer.write_char('[')?;
    for (index, line) in lines.lines().enumerate() {
        if index > 0 {
            writer.write_char(',')?;
        }
        quoted(writer, &line)?;
    }
    writer.write_char(']')
}

/// Escapes characters that cannot stand in a JSON string, and those that mislead a reader. A text then cannot
/// begin a line, move a terminal's cursor or change the direction of the line.
struct Escaped<'e, 'w>(&'e mut Writer<'w>);

impl Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(|c: char| matches!(c, '"' | '\\') || misleads(c)) {
            let (clean, from) = rest.split_at(at);
            self.0.write_str(clean)?;
            let mut characters = from.chars();
            match characters.next() {
                Some('\n') => self.0.write_str("\\n")?,
                Some('\r') => self.0.write_str("\\r")?,
                Some('\t') => self.0.write_str("\\t")?,
                Some(c) if misleads(c) => write!(self.0, "\\u{:04x}", u32::from(c))?,
                Some(c) => write!(self.0, "\\{c}")?,
                None => {}
            }
            rest = characters.as_str();
        }
        self.0.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::testing;
    use super::*;

    /// The line that `run` logs, at noon.
    fn logged(format: LogFormat, colours: bool, run: impl FnOnce()) -> String {
        let line = testing::text(format, colours, run);
        let begin = line.find("20").unwrap();
        let end = begin + line[begin..].find('Z').unwrap() + 1;
        format!("{}2026-01-02T12:00:00.000000Z{}", &line[..begin], &line[end..])
    }

    fn everything() {
        tracing::warn!(
            target: "tidegate::throttle",
            key = "a \"b\"\n{\"x\":1}",
            path = "/plain",
            empty = "",
            shown = %"1.2.3.4",
            absent = Option::<u64>::None,
            count = 3_u64,
            below = -1_i64,
            duration_ms = 1.25_f64,
            endless = f64::INFINITY,
            up = true,
            error = %io::Error::other("reset"),
            escape = "\u{1b}[2J\u{9b}\u{7f}\u{202e}",
            "throttled"
        );
    }

    #[test]
    fn json_is_flat_and_in_order() {
        assert_eq!(
            logged(LogFormat::Json, false, everything),
            concat!(
                r#"{"timestamp":"2026-01-02T12:00:00.000000Z","level":"WARN","#,
                r#""target":"tidegate::throttle","message":"throttled","#,
                r#""key":"a \"b\"\n{\"x\":1}","path":"/plain","empty":"","shown":"1.2.3.4","#,
                r#""count":3,"below":-1,"duration_ms":1.25,"endless":null,"up":true,"#,
                r#""error":"reset","escape":"\u001b[2J\u009b\u007f\u202e"}"#,
                "\n"
            )
        );
    }

    #[test]
    fn a_pretty_line_is_one_line() {
        assert_eq!(
            logged(LogFormat::Pretty, false, everything),
            concat!(
                "2026-01-02T12:00:00.000000Z  WARN throttled ",
                r#"key="a \"b\"\n{\"x\":1}" path=/plain empty="" shown=1.2.3.4 "#,
                "count=3 below=-1 duration_ms=1.25 endless=null up=true error=reset ",
                r"escape=\u001b[2J\u009b\u007f\u202e",
                "\n"
            )
        );
    }

    #[test]
    fn pretty_has_colours_where_the_terminal_has() {
        let line = logged(LogFormat::Pretty, true, || tracing::info!(target: "other", a = 1, "hi"));
        assert_eq!(
            line,
            "\x1b[2m2026-01-02T12:00:00.000000Z\x1b[0m \x1b[32m INFO\x1b[0m \x1b[2mother\x1b[0m \
             \x1b[1mhi\x1b[0m \x1b[2ma=\x1b[0m1\n"
        );
    }

    #[test]
    fn a_line_of_json_is_read_back() {
        let text: String = ('\0'..='\u{a0}').chain("\u{2028}🦀".chars()).collect();
        let line = logged(LogFormat::Json, false, || tracing::info!(text = text.as_str(), "m"));
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["text"], text.as_str());
    }
}
