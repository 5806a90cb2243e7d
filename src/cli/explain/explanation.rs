//! The output of `tidegate explain`: sentences for people, and facts for programs.

use std::fmt;

use serde_json::{Map, Value, json};

/// The explanation of a request: as paragraphs with titles, and as facts.
pub(super) struct Explanation {
    paragraphs: Vec<(&'static str, Vec<String>)>,
    /// A fact that does not apply is null.
    facts: Value,
    /// The facts of each limit. Each limit has one paragraph too.
    limits: Vec<Value>,
    /// The status and the reason with which the first limit that refuses the request answers it.
    refused: Option<(u16, String)>,
}

/// The title of a limit's paragraph.
pub(super) const LIMIT: &str = "limit";

impl Explanation {
    pub(super) fn new(method: &str) -> Self {
        let facts = json!({
            "method": method,
            "path": null,
            "host": null,
            "client": null,
            "route": null,
            "params": null,
            "upstream": null,
            "token": null,
            "plan": null,
            "status": null,
            "allow": null,
        });
        Self { paragraphs: Vec::new(), facts, limits: Vec::new(), refused: None }
    }

    /// Begins a paragraph.
    pub(super) fn line(&mut self, title: &'static str, value: impl fmt::Display) {
        self.paragraphs.push((title, vec![value.to_string()]));
    }

    /// Adds a line to the last paragraph.
    pub(super) fn more(&mut self, value: impl fmt::Display) {
        if let Some((_, lines)) = self.paragraphs.last_mut() {
            lines.push(value.to_string());
        }
    }

    /// Sets a fact about the request.
    pub(super) fn fact(&mut self, name: &str, value: impl Into<Value>) {
        self.facts[name] = value.into();
    }

    /// Adds a limit with these facts.
    pub(super) fn limit(&mut self, facts: Value) {
        self.limits.push(facts);
    }

    /// Sets a fact about the last limit.
    pub(super) fn limit_fact(&mut self, name: &str, value: impl Into<Value>) {
        if let Some(limit) = self.limits.last_mut() {
            limit[name] = value.into();
        }
    }

    /// The last limit refuses the request with an error. Then no limit counts the request. The first refusal is the
    /// answer.
    pub(super) fn refuse(&mut self, status: u16, why: &str) {
        self.limit_fact("refuses", why);
        self.refused.get_or_insert_with(|| (status, why.to_owned()));
    }

    /// Adds the refusal, if there is one. This comes after the last limit.
    pub(super) fn finish_limits(&mut self) {
        let Some((status, why)) = self.refused.take() else { return };
        for limit in &mut self.limits {
            limit["applies"] = false.into();
        }
        self.fact("allow", Value::Null);
        self.fact("status", status);
        self.line("answer", format_args!("{status}: {why}"));
    }

    /// The explanation as JSON: the facts, and the sentences too.
    pub(super) fn into_json(self) -> Value {
        let Self { paragraphs, mut facts, limits, .. } = self;
        let (of_limits, others): (Vec<_>, Vec<_>) =
            paragraphs.into_iter().partition(|(title, _)| *title == LIMIT);
        let limits = limits.into_iter().zip(of_limits).map(|(mut limit, (_, lines))| {
            limit["explanation"] = lines.into();
            limit
        });
        facts["limits"] = limits.collect();
        let others = others.into_iter().map(|(title, lines)| (title.to_owned(), lines.into()));
        facts["explanation"] = Value::Object(others.collect::<Map<_, _>>());
        facts
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (title, lines) in &self.paragraphs {
            for (title, line) in [*title].into_iter().chain(std::iter::repeat("")).zip(lines) {
                writeln!(f, "{title:<9} {line}")?;
            }
        }
        Ok(())
    }
}
