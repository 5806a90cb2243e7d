//! Writes each event as one line, in JSON or in the pretty format. Control characters are escaped in both
//! formats: text from a client cannot begin a new line.

use std::error::Error;
use std::fmt::{self, Debug, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::plan::LogFormat;

/// Formats events as lines.
pub(super) struct Lines<T> {
    pub(super) format: LogFormat,
    pub(super) timer: T,
}

impl<S, N, T> FormatEvent<S, N> for Lines<T>
where
    S: Subscriber + for<'l> LookupSpan<'l>,
    N: for<'w> FormatFields<'w> + 'static,
    T: FormatTime,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match self.format {
            LogFormat::Json => self.json(writer, event),
            LogFormat::Pretty => self.pretty(writer, event),
        }
    }
}

impl<T: FormatTime> Lines<T> {
    fn json(&self, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        writer.write_str("{\"timestamp\":\"")?;
        self.timer.format_time(&mut writer)?;
        write!(writer, "\",\"level\":\"{}\",\"target\":", metadata.level())?;
        quoted(&mut writer, &metadata.target())?;
        let mut fields = JsonFields { writer, result: Ok(()) };
        event.record(&mut fields);
        fields.result?;
        fields.writer.write_str("}\n")
    }

    fn pretty(&self, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let paint = if writer.has_ansi_escapes() { &COLOURS } else { &PLAIN };
        writer.write_str(paint.dim)?;
        self.timer.format_time(&mut writer)?;
        let level = paint.level(*metadata.level());
        write!(writer, "{} {level}{:>5}{}", paint.reset, metadata.level(), paint.reset)?;
        // tidegate's own events are known by their message. They need no target.
        if !metadata.target().starts_with(env!("CARGO_PKG_NAME")) {
            write!(writer, " {}{}{}", paint.dim, metadata.target(), paint.reset)?;
        }
        let mut fields = PrettyFields { writer, paint, result: Ok(()) };
        event.record(&mut fields);
        fields.result?;
        fields.writer.write_char('\n')
    }
}

const MESSAGE: &str = "message";

/// Fields that are lists. In the event, a list is a text with an item on each line.
const LISTS: [&str; 3] = ["changed", "errors", "fields"];

fn is_list(field: &Field) -> bool {
    LISTS.contains(&field.name())
}

struct JsonFields<'w> {
    writer: Writer<'w>,
    result: fmt::Result,
}

impl JsonFields<'_> {
    fn field(&mut self, field: &Field, value: impl FnOnce(&mut Writer<'_>) -> fmt::Result) {
        let name = field.name().trim_start_matches("r#");
        self.result = self.result.and_then(|()| {
            self.writer.write_char(',')?;
            quoted(&mut self.writer, &name)?;
            self.writer.write_char(':')?;
            value(&mut self.writer)
        });
    }
}

impl Visit for JsonFields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.field(field, |writer| quoted(writer, &format_args!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field, |writer| match is_list(field) {
            true => list(writer, value),
            false => quoted(writer, &value),
        });
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.field(field, |writer| quoted(writer, &Chain(value)));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.field(field, |writer| write!(writer, "{value}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.field(field, |writer| write!(writer, "{value}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.field(field, |writer| write!(writer, "{value}"));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.field(field, |writer| match value.is_finite() {
            true => write!(writer, "{value}"),
            false => writer.write_str("null"),
        });
    }
}

struct PrettyFields<'w> {
    writer: Writer<'w>,
    paint: &'static Paint,
    result: fmt::Result,
}

impl PrettyFields<'_> {
    fn field(&mut self, field: &Field, value: &dyn fmt::Display) {
        let (name, paint) = (field.name().trim_start_matches("r#"), self.paint);
        let writer = &mut self.writer;
        self.result = self.result.and_then(|()| {
            if name == MESSAGE {
                write!(writer, " {}", paint.bold)?;
                write!(Escaped(writer), "{value}")?;
                return writer.write_str(paint.reset);
            }
            write!(writer, " {}{name}={}", paint.dim, paint.reset)?;
            let text = value.to_string();
            match text.is_empty() || text.contains(|c| " \"\\=".contains(c)) {
                true => quoted(writer, &text),
                false => Escaped(writer).write_str(&text),
            }
        });
    }
}

impl Visit for PrettyFields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.field(field, &format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match is_list(field) {
            true => self.field(field, &value.replace('\n', "; ")),
            false => self.field(field, &value),
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.field(field, &Chain(value));
    }
}

/// An error and what caused it.
struct Chain<'e>(&'e (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

/// A value as a JSON string.
fn quoted(writer: &mut Writer<'_>, value: &dyn fmt::Display) -> fmt::Result {
    writer.write_char('"')?;
    write!(Escaped(writer), "{value}")?;
    writer.write_char('"')
}

/// Lines as a JSON array of strings.
fn list(writer: &mut Writer<'_>, lines: &str) -> fmt::Result {
    writer.write_char('[')?;
    for (place, line) in lines.lines().enumerate() {
        if place > 0 {
            writer.write_char(',')?;
        }
        quoted(writer, &line)?;
    }
    writer.write_char(']')
}

/// Escapes characters that cannot stand in a JSON string, and every control character. A text then cannot
/// begin a line or move a terminal's cursor.
struct Escaped<'e, 'w>(&'e mut Writer<'w>);

impl Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(|c: char| matches!(c, '"' | '\\') || c.is_control()) {
            let (clean, from) = rest.split_at(at);
            self.0.write_str(clean)?;
            let mut characters = from.chars();
            match characters.next() {
                Some('\n') => self.0.write_str("\\n")?,
                Some('\r') => self.0.write_str("\\r")?,
                Some('\t') => self.0.write_str("\\t")?,
                Some(c) if c.is_control() => write!(self.0, "\\u{:04x}", u32::from(c))?,
                Some(c) => write!(self.0, "\\{c}")?,
                None => {}
            }
            rest = characters.as_str();
        }
        self.0.write_str(rest)
    }
}

/// The escape sequences of a terminal, or none.
struct Paint {
    dim: &'static str,
    bold: &'static str,
    red: &'static str,
    yellow: &'static str,
    green: &'static str,
    blue: &'static str,
    reset: &'static str,
}

const PLAIN: Paint =
    Paint { dim: "", bold: "", red: "", yellow: "", green: "", blue: "", reset: "" };

const COLOURS: Paint = Paint {
    dim: "\x1b[2m",
    bold: "\x1b[1m",
    red: "\x1b[31m",
    yellow: "\x1b[33m",
    green: "\x1b[32m",
    blue: "\x1b[34m",
    reset: "\x1b[0m",
};

impl Paint {
    fn level(&self, level: Level) -> &'static str {
        match level {
            Level::ERROR => self.red,
            Level::WARN => self.yellow,
            Level::INFO => self.green,
            _ => self.blue,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    struct Noon;

    impl FormatTime for Noon {
        fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
            writer.write_str("2026-01-02T12:00:00.000000Z")
        }
    }

    fn logged(format: LogFormat, colours: bool, run: impl FnOnce()) -> String {
        let bytes: Arc<Mutex<Vec<u8>>> = Arc::default();
        let out = Arc::clone(&bytes);
        struct Out(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Out {
            fn write(&mut self, line: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(line);
                Ok(line.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let layer = tracing_subscriber::fmt::layer()
            .event_format(Lines { format, timer: Noon })
            .with_ansi(colours)
            .with_writer(move || Out(Arc::clone(&out)));
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, run);
        let line = bytes.lock().unwrap().clone();
        String::from_utf8(line).unwrap()
    }

    fn everything() {
        let cause = io::Error::other("reset");
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
            error = &cause as &(dyn Error + 'static),
            escape = "\u{1b}[2J\u{9b}\u{7f}",
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
                r#""error":"reset","escape":"\u001b[2J\u009b\u007f"}"#,
                "\n"
            )
        );
    }

    #[test]
    fn pretty_is_one_line_too() {
        assert_eq!(
            logged(LogFormat::Pretty, false, everything),
            concat!(
                "2026-01-02T12:00:00.000000Z  WARN throttled ",
                r#"key="a \"b\"\n{\"x\":1}" path=/plain empty="" shown=1.2.3.4 "#,
                "count=3 below=-1 duration_ms=1.25 endless=inf up=true error=reset ",
                r"escape=\u001b[2J\u009b\u007f",
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
    fn json_is_what_a_parser_reads_back() {
        let text: String = ('\0'..='\u{a0}').chain("\u{2028}🦀".chars()).collect();
        let line = logged(LogFormat::Json, false, || tracing::info!(text = text.as_str(), "m"));
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["text"], text.as_str());
    }
}
