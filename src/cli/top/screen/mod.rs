//! The lines that show a status, for a terminal of any size.

use serde_json::Value;

use super::candidate;
use super::paint::{ScreenLine, Style};
use super::trend::{SECONDS, Trends};
use crate::cli::limits::{list, text};
use crate::cli::span::time;

/// The widest column of names, and of keys.
const NAME: usize = 24;
/// The columns of a figure.
const FIGURE: usize = 11;
/// The columns of what a key has left.
const LEFT: usize = 16;
/// The rows that a table shows before another one gets more.
const LEAST: usize = 2;
/// The fewest columns for the bars of a trend.
const LEAST_TREND: usize = 10;

/// From little to much.
const BARS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

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
            self.rejected(),
            self.near(),
            self.routes(),
            self.servers(),
        ];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.rows.is_empty()).collect();
        let room = size.height.saturating_sub(lines.len());
        for (part, rows) in parts.iter().zip(shared(&parts, room)) {
            lines.extend([ScreenLine::default(), part.head.clone()]);
            let (shown, more) = match part.rows.len().checked_sub(rows) {
                Some(more @ 1..) => (rows.saturating_sub(1), more + 1),
                _ => (part.rows.len(), 0),
            };
            lines.extend(part.rows.iter().take(shown).cloned());
            lines.extend(
                (more > 0).then(|| ScreenLine::of(Style::Faint, &format!("… {more} more"))),
            );
        }
        lines.truncate(size.height);
        lines.into_iter().map(|line| line.cut(size.width)).collect()
    }

    fn head(&self, width: usize) -> Vec<ScreenLine> {
        let status = self.status;
        let (config, requests) = (&status["config"], &status["requests"]);
        let first = ScreenLine::of(Style::Title, "tidegate ")
            .and(
                Style::Text,
                &format!(
                    "{} on {} at {}, ",
                    text(&status["version"]),
                    text(&status["host"]),
                    self.at
                ),
            )
            .and(Style::Text, &format!("up {}", time(&status["uptime_ms"])))
            .and(Style::Faint, &format!("  configuration {} since ", text(&config["version"])))
            .and(Style::Faint, &text(&config["since"]));
        let classes = |class: &str| {
            let of = |route: &Value| route["statuses_per_second"][class].as_f64();
            list(status, "routes").iter().filter_map(of).sum::<f64>()
        };
        let failed = requests["failed_per_second"].as_f64();
        let second = ScreenLine::of(Style::Title, &figure(requests["per_second"].as_f64()))
            .and(Style::Text, " requests/s")
            .value("2xx", &figure(Some(classes("2xx"))))
            .value("4xx", &figure(Some(classes("4xx"))))
            .value("5xx", &figure(Some(classes("5xx"))))
            .and(Style::Faint, "  failed ")
            .and(bad_if(failed.is_some_and(|it| it > 0.0)), &figure(failed))
            .value("waiting", &text(&requests["waiting"]))
            .value("connections", &text(&status["connections"]["open"]));
        let away =
            self.away.map(|away| ScreenLine::of(Style::Bad, &format!("{away}; trying again")));
        let alarms = list(status, "alarms").iter().flat_map(|alarm| {
            let since = alarm["since"].as_str().map(|since| format!(" since {since}"));
            let what = format!("{}{}.", text(&alarm["what"]), since.unwrap_or_default());
            let more = format!("{} {}", text(&alarm["means"]), text(&alarm["do"]));
            let more = wrapped(&more, width).into_iter();
            let more = more.map(|line| ScreenLine::of(Style::Text, &format!("  {line}")));
            [ScreenLine::of(Style::Bad, &what)].into_iter().chain(more).collect::<Vec<_>>()
        });
        let summary = status["summary"].as_str().map(|it| ScreenLine::of(Style::Text, it));
        [first]
            .into_iter()
            .chain(away)
            .chain(alarms)
            .chain(summary)
            .chain([second, self.store()])
            .collect()
    }

    fn store(&self) -> ScreenLine {
        let store = &self.status["store"];
        let (is_up, since) = (store["up"] == true, time(&store["since_ms"]));
        let line =
            ScreenLine::of(Style::Faint, "store ").and(Style::Text, &text(&store["location"]));
        let line = match is_up {
            true => line.and(Style::Good, &format!(" up {since}")),
            false => line.and(Style::Bad, &format!(" away {since}")),
        };
        let millis =
            |name: &str| store[name].as_f64().map_or("-".to_owned(), |it| format!("{it:.2} ms"));
        let errors = store["errors"].as_object();
        let errors = errors.map_or(0, |it| it.values().filter_map(Value::as_u64).sum());
        let away = list(store, "servers").iter().filter(|server| server["up"] != true);
        let away: Vec<_> = away.map(|server| text(&server["name"])).collect();
        let line = line
            .value("p50", &millis("p50_ms"))
            .value("p99", &millis("p99_ms"))
            .value("errors", &errors.to_string())
            .value("keys in this process", &text(&store["memory_keys"]));
        match away.is_empty() {
            true => line,
            false => line.and(Style::Bad, &format!("  away: {}", away.join(", "))),
        }
    }

    fn limits(&self, width: usize) -> ScreenPart {
        let limits = list(self.status, "limits");
        let names = column("limit", limits.iter().map(|limit| text(&limit["name"])));
        // Narrow terminals have fewer figures, but always the rejections.
        let mut figures = vec!["rejected", "allowed", "shadowed", "held"];
        let taken = |figures: usize| names + figures * FIGURE;
        while figures.len() > 1 && taken(figures.len()) > width {
            figures.pop();
        }
        figures.sort_unstable();
        let rate = taken(figures.len()) + FIGURE + 2 <= width;
        let used = taken(figures.len()) + if rate { FIGURE + 2 } else { 0 };
        let trend = width.saturating_sub(used + 2).min(SECONDS);
        let trend = if trend < LEAST_TREND { 0 } else { trend };
        let mut head = ScreenLine::of(Style::Faint, "limit").filled(names);
        if rate {
            head = head.and(Style::Faint, "  rate").filled(names + FIGURE + 2);
        }
        for figure in &figures {
            head = head.and(Style::Faint, &format!("{:>FIGURE$}", format!("{figure}/s")));
        }
        if trend > 0 {
            head = head.and(Style::Faint, "  rejected, last minute");
        }
        let row = |limit: &Value| {
            let name = text(&limit["name"]);
            let mut line = ScreenLine::of(Style::Text, &name).filled(names);
            if rate {
                let rate = text(&limit["rate"]);
                line = line.and(Style::Faint, &format!("  {rate}")).filled(names + FIGURE + 2);
            }
            for decision in &figures {
                let name = match *decision {
                    "held" => "delayed",
                    "shadowed" => "shadow",
                    same => same,
                };
                let number = limit[format!("{name}_per_second")].as_f64();
                let is_bad = *decision == "rejected" && number.is_some_and(|it| it > 0.0);
                line = line.and(bad_if(is_bad), &format!("{:>FIGURE$}", figure(number)));
            }
            if trend > 0 {
                line = bars(line.and(Style::Text, "  "), &self.trends.last(&name, trend));
            }
            line
        };
        ScreenPart { head, rows: limits.iter().map(row).collect() }
    }

    /// What candidates would have rejected.
    fn candidates(&self) -> ScreenPart {
        let limits = list(self.status, "limits").iter();
        let rows = limits.filter_map(|limit| {
            let sentence = candidate::sentence(&limit["candidate"])?;
            Some((text(&limit["name"]), ScreenLine::of(Style::Text, &sentence)))
        });
        ScreenPart::of("limit", "its candidate", rows.collect())
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
            let over = key["at_most_over"].as_u64().unwrap_or_default();
            let over = if over > 0 { format!(" (at most {over} too many)") } else { String::new() };
            let rate = figure(Some(now(key)));
            let counts = format!("{rate:>FIGURE$}{:>FIGURE$}  ", text(&key["count"]));
            let line = ScreenLine::of(Style::Text, &(counts + &key_text(key)));
            (limit, line.and(Style::Faint, &over))
        });
        let title = format!(
            "{:>FIGURE$}{:>FIGURE$}  key rejected most, in the last {window}",
            "rejected/s", "rejected"
        );
        ScreenPart::of("limit", &title, rows.collect())
    }

    /// The keys of all limits that are nearest to their limit.
    fn near(&self) -> ScreenPart {
        let mut keys = self.keys("near_keys");
        keys.retain(|(_, key)| key["next"] == true);
        let share = |key: &Value| key["share"].as_f64().unwrap_or(1.0);
        keys.sort_by(|(_, a), (_, b)| share(a).total_cmp(&share(b)));
        let rows = keys.into_iter().map(|(limit, key)| {
            let left = format!("{} left of {}", text(&key["remaining"]), text(&key["burst"]));
            let line = format!("{left:>LEFT$}  {}", key_text(key));
            (limit, ScreenLine::of(Style::Text, &line))
        });
        let title = format!("{:>LEFT$}  key nearest to its limit", "left");
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
        let number = |route: &Value, name: &str| route[name].as_f64().unwrap_or_default();
        let routes = list(self.status, "routes").iter();
        let mut routes: Vec<_> = routes.filter(|route| route["total"] != 0).collect();
        let busy = |route: &Value| number(route, "per_second");
        routes.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
        let columns =
            ["per_second", "delayed_per_second", "rejected_per_second", "shadow_per_second"];
        let rows = routes.into_iter().map(|route| {
            let line = columns.iter().fold(ScreenLine::default(), |line, column| {
                let number = number(route, column);
                let is_bad = *column == "rejected_per_second" && number > 0.0;
                line.and(bad_if(is_bad), &format!("{:>FIGURE$}", figure(Some(number))))
            });
            (text(&route["name"]), line)
        });
        let heads = ["requests/s", "held/s", "rejected/s", "shadowed/s"];
        let title: String = heads.iter().map(|head| format!("{head:>FIGURE$}")).collect();
        ScreenPart::of("route", &title, rows.collect())
    }

    fn servers(&self) -> ScreenPart {
        let row = |upstream: &Value, server: &Value| {
            let figures = ["requests_total", "answers_5xx_total", "in_flight", "retries_total"];
            let figures = figures.map(|name| format!("{:>FIGURE$}", text(&server[name])));
            let (style, state) = match server["up"] == true {
                true => (Style::Good, "up"),
                false => (Style::Bad, "set aside"),
            };
            let errors = server["errors"].as_object().into_iter().flatten();
            let errors: Vec<_> = errors.map(|(kind, count)| format!("{count} {kind}")).collect();
            let check = &server["last_check"];
            let passed = if check["passed"] == true { "passed" } else { "failed" };
            let since = format!("{state} since {}", text(&server["since"]));
            let line = ScreenLine::of(
                Style::Text,
                &(figures.concat() + "  " + &text(&server["url"]) + "  "),
            );
            let mut line = line.and(style, &since);
            if !errors.is_empty() {
                line = line.value("errors", &errors.join(", "));
            }
            if check.is_object() {
                line = line.value("last check", &format!("{passed} {}", text(&check["time"])));
            }
            (text(&upstream["name"]), line)
        };
        let rows = list(self.status, "upstreams").iter().flat_map(|upstream| {
            list(upstream, "servers").iter().map(move |server| row(upstream, server))
        });
        let heads = ["requests", "5xx", "in flight", "retries"].map(|it| format!("{it:>FIGURE$}"));
        let title = heads.concat() + "  server";
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

/// How many rows of these tables are shown in so many lines: first two of each, in their order. Then the table of
/// which the fewest are shown gets one more.
fn shared(parts: &[ScreenPart], mut room: usize) -> Vec<usize> {
    let mut rows = Vec::new();
    for part in parts {
        // Each table has an empty line and its head.
        let Some(left) = room.checked_sub(3) else { break };
        let least = LEAST.min(part.rows.len()).min(left + 1);
        room = left + 1 - least;
        rows.push(least);
    }
    while room > 0 {
        let wanting = rows.iter_mut().zip(parts).filter(|(rows, part)| **rows < part.rows.len());
        let Some((rows, _)) = wanting.min_by_key(|(rows, _)| **rows) else { break };
        (*rows, room) = (*rows + 1, room - 1);
    }
    rows
}

/// The text in lines that fit beside an indent of two, where its words do.
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

/// The columns for these names.
fn column(title: &str, names: impl Iterator<Item = String>) -> usize {
    let widest = names.map(|name| ScreenLine::of(Style::Text, &name).width()).max();
    widest.unwrap_or_default().max(title.len()).min(NAME)
}

fn bad_if(is_bad: bool) -> Style {
    if is_bad { Style::Bad } else { Style::Text }
}

/// A number with at most five characters in front of a unit.
fn figure(number: Option<f64>) -> String {
    match number {
        None => "-".to_owned(),
        Some(number) if number < 99.95 => format!("{number:.1}"),
        Some(number) if number < 99_999.5 => format!("{number:.0}"),
        Some(number) if number < 99_999_500.0 => format!("{:.0}k", number / 1e3),
        Some(number) => format!("{:.0}M", number / 1e6),
    }
}

/// Adds a bar for each second with rejections. The highest bar is the most of all these seconds.
fn bars(line: ScreenLine, seconds: &[f64]) -> ScreenLine {
    let most = seconds.iter().copied().fold(0.0, f64::max);
    let bar = |second: f64| {
        let step =
            BARS.iter().zip(1_u8..).find(|(_, step)| second * 8.0 <= most * f64::from(*step));
        if second > 0.0 { step.map_or("█", |(bar, _)| bar) } else { " " }
    };
    line.and(Style::Bad, &seconds.iter().map(|second| bar(*second)).collect::<String>())
}

#[cfg(test)]
mod tests;
