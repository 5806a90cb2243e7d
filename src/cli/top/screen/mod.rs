//! The lines that show a status, for a terminal of any size.

use std::fmt::Display;

use serde_json::Value;

use super::candidate;
use super::paint::{ScreenLine, Style};
use super::trend::{SECONDS, Trends};
use crate::cli::admin::{list, text, time};
use crate::replay::report::bar;

/// The widest column of names, and of keys.
const NAME: usize = 24;
/// The columns of a figure.
const FIGURE: usize = 11;

/// What is shown.
pub(super) struct Screen<'s> {
    /// The endpoint's address.
    pub(super) at: &'s str,
    /// The last status.
    pub(super) status: &'s Value,
    pub(super) trends: &'s Trends,
    /// Why there is no newer status.
    pub(super) away: Option<&'s str>,
}

/// The columns and lines of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) width: usize,
    pub(super) height: usize,
}

/// A column of figures: its title, and the member of the status that it shows.
type Column = (&'static str, &'static str);

/// A table: its head and its rows.
struct ScreenPart {
    head: ScreenLine,
    rows: Vec<ScreenLine>,
}

impl Screen<'_> {
    /// The lines, cut to the size of the terminal.
    pub(super) fn lines(&self, size: Size) -> Vec<ScreenLine> {
        let mut lines = self.head(size.width);
        let parts = [
            self.limits(size.width),
            self.candidates(),
            self.plans(),
            self.rejected(),
            self.near(),
            self.routes(),
            self.servers(),
        ];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.rows.is_empty()).collect();
        let room = size.height.saturating_sub(lines.len());
        for (part, rows) in parts.iter().zip(shared(&parts, room)) {
            lines.extend([ScreenLine::default(), part.head.clone()]);
            let (shown, more) = match part.rows.len() - rows {
                0 => (rows, None),
                hidden => (rows - 1, Some(format!("… {} more", hidden + 1))),
            };
            lines.extend(part.rows.iter().take(shown).cloned());
            lines.extend(more.map(|more| ScreenLine::of(Style::Faint, more)));
        }
        lines.truncate(size.height);
        lines.into_iter().map(|line| line.cut(size.width)).collect()
    }

    fn head(&self, width: usize) -> Vec<ScreenLine> {
        let status = self.status;
        let (config, requests) = (&status["config"], &status["requests"]);
        let (version, host) = (text(&status["version"]), text(&status["host"]));
        let up = time(&status["uptime_ms"]);
        let since = text(&config["since"]);
        let first = ScreenLine::of(Style::Title, "tidegate ")
            .and(Style::Text, format_args!("{version} on {host} at {}, up {up}", self.at))
            .and(Style::Faint, format_args!("  configuration {} since {since}", config["version"]));
        let classes = |class: &str| {
            let of = |route: &Value| route["statuses_per_second"][class].as_f64();
            figure(Some(list(status, "routes").iter().filter_map(of).sum()))
        };
        let [refused, failed] =
            ["refused_per_second", "failed_per_second"].map(|name| requests[name].as_f64());
        let second = ScreenLine::of(Style::Title, figure(requests["per_second"].as_f64()))
            .and(Style::Text, " requests/s")
            .value("2xx", classes("2xx"))
            .value("4xx", classes("4xx"))
            .value("5xx", classes("5xx"))
            .and(Style::Faint, "  failed ")
            .and(bad_if(failed.is_some_and(|it| it > 0.0)), figure(failed))
            .value("waiting", text(&requests["waiting"]))
            .value("connections", text(&status["connections"]["open"]));
        let second = match refused.filter(|it| *it > 0.0) {
            Some(refused) => {
                second.and(Style::Bad, format_args!("  refused {}", figure(Some(refused))))
            }
            None => second,
        };
        let mut lines = vec![first];
        let away = self.away.map(|away| format!("{away}; trying again"));
        lines.extend(away.map(|away| ScreenLine::of(Style::Bad, away)));
        for alarm in list(status, "alarms") {
            let since = alarm["since"].as_str().map(|since| format!(" since {since}"));
            let what = format!("{}{}.", text(&alarm["what"]), since.unwrap_or_default());
            lines.push(ScreenLine::of(Style::Bad, what));
            let more = wrapped(&format!("{} {}", text(&alarm["means"]), text(&alarm["do"])), width);
            lines.extend(
                more.iter().map(|line| ScreenLine::of(Style::Text, format_args!("  {line}"))),
            );
        }
        lines.extend(status["summary"].as_str().map(|it| ScreenLine::of(Style::Text, it)));
        lines.extend([second, self.store()]);
        lines
    }

    fn store(&self) -> ScreenLine {
        let store = &self.status["store"];
        let (style, state) = match store["up"] == true {
            true => (Style::Good, "up"),
            false => (Style::Bad, "away"),
        };
        let millis =
            |name: &str| store[name].as_f64().map_or("-".to_owned(), |it| format!("{it:.2} ms"));
        let errors = store["errors"].as_object();
        let errors: u64 = errors.map_or(0, |it| it.values().filter_map(Value::as_u64).sum());
        let away = list(store, "servers").iter().filter(|server| server["up"] != true);
        let away: Vec<_> = away.map(|server| text(&server["name"])).collect();
        let line = ScreenLine::of(Style::Faint, "store ")
            .and(Style::Text, text(&store["location"]))
            .and(style, format_args!(" {state} {}", time(&store["since_ms"])))
            .value("p50", millis("p50_ms"))
            .value("p99", millis("p99_ms"))
            .value("errors", errors)
            .value("keys in this process", text(&store["memory_keys"]));
        match away.is_empty() {
            true => line,
            false => line.and(Style::Bad, format_args!("  away: {}", away.join(", "))),
        }
    }

    /// What matters most comes first: a narrow terminal cuts the ends of the lines.
    fn limits(&self, width: usize) -> ScreenPart {
        let limits = list(self.status, "limits");
        let columns = self.columns([
            ("rejected/s", "rejected_per_second"),
            ("allowed/s", "allowed_per_second"),
            ("held/s", "delayed_per_second"),
        ]);
        let names = column("limit", limits.iter().map(|limit| text(&limit["name"])));
        // Two spaces are before the figures, before the rate, and before the bars.
        let used = names + 2 + FIGURE * columns.len() + 2 + FIGURE + 2;
        let row = |limit: &Value| {
            let name = text(&limit["name"]);
            let rate = format!("  {:<FIGURE$}  ", text(&limit["rate"]));
            let seconds = self.trends.last(&name, width.saturating_sub(used).min(SECONDS));
            let most = seconds.iter().copied().fold(0.0, f64::max);
            let bars: String = seconds.iter().map(|second| bar(*second, most)).collect();
            let line = rates(limit, &columns).and(Style::Faint, rate).and(Style::Bad, bars);
            (name, line)
        };
        let title = format!("{}  {:<FIGURE$}  rejected, last minute", heads(&columns), "rate");
        ScreenPart::of("limit", &title, limits.iter().map(row).collect())
    }

    /// What candidates would have rejected.
    fn candidates(&self) -> ScreenPart {
        let limits = list(self.status, "limits").iter();
        let rows = limits.filter_map(|limit| {
            let sentence = candidate::sentence(&limit["candidate"])?;
            Some((text(&limit["name"]), ScreenLine::of(Style::Text, sentence)))
        });
        ScreenPart::of("limit", "its candidate", rows.collect())
    }

    /// The figures of limits by the plan of a request.
    fn plans(&self) -> ScreenPart {
        let rows = list(self.status, "limits").iter().filter_map(|limit| {
            let plans = limit["plans"].as_object()?.iter();
            let plans: Vec<_> =
                plans.map(|(name, rate)| format!("{name} {}", text(rate))).collect();
            Some((text(&limit["name"]), ScreenLine::of(Style::Text, plans.join(", "))))
        });
        ScreenPart::of("limit", "its plans", rows.collect())
    }

    /// The keys of all limits that are rejected most.
    fn rejected(&self) -> ScreenPart {
        let window = time(&self.status["rejected_keys_window_ms"]);
        let mut keys = self.keys("rejected_keys");
        let now = |key: &Value| key["per_second"].as_f64().unwrap_or_default();
        keys.sort_by(|(_, a), (_, b)| {
            now(b).total_cmp(&now(a)).then(b["count"].as_u64().cmp(&a["count"].as_u64()))
        });
        let rows = keys.into_iter().map(|(limit, key)| {
            let over = key["at_most_over"].as_u64().filter(|over| *over > 0);
            let over = over.map(|over| format!(" (at most {over} too many)")).unwrap_or_default();
            let counts = titles(&[&figure(Some(now(key))), &text(&key["count"])]);
            let line = ScreenLine::of(Style::Text, format_args!("{counts}  {}", key_text(key)));
            (limit, line.and(Style::Faint, over))
        });
        let title = titles(&["rejected/s", "rejected"]);
        let title = format!("{title}  key rejected most, in the last {window}");
        ScreenPart::of("limit", &title, rows.collect())
    }

    /// The keys of all limits that are nearest to their limit.
    fn near(&self) -> ScreenPart {
        let mut keys = self.keys("near_keys");
        keys.retain(|(_, key)| key["next"] == true);
        let share = |key: &Value| key["share"].as_f64().unwrap_or(1.0);
        keys.sort_by(|(_, a), (_, b)| share(a).total_cmp(&share(b)));
        let rows = keys.into_iter().map(|(limit, key)| {
            let counts = titles(&[&text(&key["remaining"]), &text(&key["burst"])]);
            let line = ScreenLine::of(Style::Text, format_args!("{counts}  {}", key_text(key)));
            (limit, line)
        });
        let title = titles(&["left", "of"]) + "  key nearest to its limit";
        ScreenPart::of("limit", &title, rows.collect())
    }

    /// A list of keys of all limits, each with its limit's name.
    fn keys(&self, name: &str) -> Vec<(String, &Value)> {
        let limits = list(self.status, "limits").iter();
        let of = |limit| list(limit, name).iter().map(move |key| (text(&limit["name"]), key));
        limits.flat_map(of).collect()
    }

    /// The routes that had requests, the busiest first.
    fn routes(&self) -> ScreenPart {
        let routes = list(self.status, "routes").iter();
        let mut routes: Vec<_> = routes.filter(|route| route["total"] != 0).collect();
        let busy = |route: &Value| route["per_second"].as_f64().unwrap_or_default();
        routes.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
        let columns = self.columns([
            ("requests/s", "per_second"),
            ("held/s", "delayed_per_second"),
            ("rejected/s", "rejected_per_second"),
        ]);
        let rows = routes.into_iter().map(|route| (text(&route["name"]), rates(route, &columns)));
        ScreenPart::of("route", &heads(&columns), rows.collect())
    }

    /// These columns, then a column for requests in shadow. If a limit marks requests, a column for marked requests
    /// follows.
    fn columns(&self, first: [Column; 3]) -> Vec<Column> {
        let is_marking = list(self.status, "limits").iter().any(|limit| limit["mode"] == "mark");
        let marked = is_marking.then_some(("marked/s", "marked_per_second"));
        let others = [("shadowed/s", "shadow_per_second")].into_iter().chain(marked);
        first.into_iter().chain(others).collect()
    }

    fn servers(&self) -> ScreenPart {
        let row = |upstream: &Value, server: &Value| {
            let figures = ["requests_total", "answers_5xx_total", "in_flight", "retries_total"];
            let figures: String = figures.map(|name| right(text(&server[name]))).concat();
            let (style, state) = match server["up"] == true {
                true => (Style::Good, "up"),
                false => (Style::Bad, "set aside"),
            };
            let errors = server["errors"].as_object().into_iter().flatten();
            let errors: Vec<_> = errors.map(|(kind, count)| format!("{count} {kind}")).collect();
            let check = &server["last_check"];
            let passed = if check["passed"] == true { "passed" } else { "failed" };
            let mut line = ScreenLine::of(Style::Text, figures)
                .and(Style::Text, format_args!("  {}  ", text(&server["url"])))
                .and(style, format_args!("{state} since {}", text(&server["since"])));
            if !errors.is_empty() {
                line = line.value("errors", errors.join(", "));
            }
            if check.is_object() {
                line = line.value("last check", format_args!("{passed} {}", text(&check["time"])));
            }
            (text(&upstream["name"]), line)
        };
        let rows = list(self.status, "upstreams").iter().flat_map(|upstream| {
            list(upstream, "servers").iter().map(move |server| row(upstream, server))
        });
        let title = titles(&["requests", "5xx", "in flight", "retries"]) + "  server";
        ScreenPart::of("upstream", &title, rows.collect())
    }
}

impl ScreenPart {
    /// Rows with a name each in the first column.
    fn of(names: &str, title: &str, rows: Vec<(String, ScreenLine)>) -> Self {
        let width = column(names, rows.iter().map(|(name, _)| name.clone()));
        let row = |style, name: &str| ScreenLine::of(style, name).filled(width).and(style, "  ");
        let head = row(Style::Faint, names).and(Style::Faint, title);
        let rows = rows.into_iter().map(|(name, line)| row(Style::Text, &name).then(line));
        Self { head, rows: rows.collect() }
    }
}

/// How many rows of each table are shown, if all tables together have `room` lines. The next row always goes to the
/// table with the fewest rows so far.
fn shared(parts: &[ScreenPart], room: usize) -> Vec<usize> {
    // Each table has an empty line, its head, and one row at least.
    let mut rows = vec![0; parts.len().min(room / 3)];
    for _ in rows.len() * 2..room {
        let wanting = rows.iter_mut().zip(parts).filter(|(rows, part)| **rows < part.rows.len());
        let Some((rows, _)) = wanting.min_by_key(|(rows, _)| **rows) else { break };
        *rows += 1;
    }
    rows
}

/// The text in lines that leave two columns for an indent. Only a word that is too long makes a line longer.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + word.chars().count() + 3 <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The key's text. A limit without a key has one bucket for all requests.
fn key_text(key: &Value) -> String {
    match (text(&key["key"]), key["name"].as_str()) {
        (key, _) if key.is_empty() => "(all requests)".to_owned(),
        (key, Some(name)) => format!("{key} ({name})"),
        (key, None) => key,
    }
}

/// The width of a column with these names.
fn column(title: &str, names: impl Iterator<Item = String>) -> usize {
    let widest = names.map(|name| ScreenLine::of(Style::Text, &name).width()).max();
    widest.unwrap_or_default().max(title.len()).min(NAME)
}

fn bad_if(is_bad: bool) -> Style {
    if is_bad { Style::Bad } else { Style::Text }
}

/// The values of these columns, which are rates per second. Rejections have the style of a bad state.
fn rates(of: &Value, columns: &[Column]) -> ScreenLine {
    columns.iter().fold(ScreenLine::default(), |line, (_, name)| {
        let number = of[*name].as_f64();
        let is_bad = *name == "rejected_per_second" && number.is_some_and(|it| it > 0.0);
        line.and(bad_if(is_bad), right(figure(number)))
    })
}

/// The titles of these columns.
fn heads(columns: &[Column]) -> String {
    columns.iter().map(|(title, _)| right(title)).collect()
}

/// The texts as columns.
fn titles(texts: &[&str]) -> String {
    texts.iter().map(right).collect()
}

/// A text at the right of a column.
fn right(text: impl Display) -> String {
    format!("{text:>FIGURE$}")
}

/// A number with at most five characters and a unit.
fn figure(number: Option<f64>) -> String {
    match number {
        None => "-".to_owned(),
        Some(number) if number < 99.95 => format!("{number:.1}"),
        Some(number) if number < 99_999.5 => format!("{number:.0}"),
        Some(number) if number < 99_999_500.0 => format!("{:.0}k", number / 1e3),
        Some(number) => format!("{:.0}M", number / 1e6),
    }
}

#[cfg(test)]
mod tests;
