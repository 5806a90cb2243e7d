//! What `tidegate explain` says: sentences for people, and facts for programs.

use std::fmt;

use serde_json::{Map, Value, json};

/// Paragraphs of lines, with a title in front of each, and the same as facts.
#[derive(Default)]
pub(super) struct Explanation {
    paragraphs: Vec<(&'static str, Vec<String>)>,
    facts: Map<String, Value>,
    /// The facts of each limit. Each limit has one paragraph too.
    limits: Vec<Map<String, Value>>,
    /// Why the request is answered with 400, by the first limit that refuses it.
    refused: Option<String>,
}

/// The title of a limit's paragraph.
pub(super) const LIMIT: &str = "limit";

impl Explanation {
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

    /// Notes a fact about the request.
    pub(super) fn fact(&mut self, name: &str, value: impl Into<Value>) {
        self.facts.insert(name.to_owned(), value.into());
    }

    /// Begins the facts of a limit.
    pub(super) fn limit(&mut self, name: &str) {
        self.limits.push(Map::from_iter([("name".to_owned(), name.into())]));
    }

    /// Notes a fact about the last limit.
    pub(super) fn limit_fact(&mut self, name: &str, value: impl Into<Value>) {
        if let Some(limit) = self.limits.last_mut() {
            limit.insert(name.to_owned(), value.into());
        }
    }

    /// Notes that a limit refuses the request with 400: then no limit counts it. The first refusal is the answer.
    pub(super) fn refuse(&mut self, why: &str) {
        self.limit_fact("refuses", why);
        self.refused.get_or_insert_with(|| why.to_owned());
    }

    /// To be called behind the last limit.
    pub(super) fn finish_limits(&mut self) {
        let Some(why) = self.refused.take() else { return };
        for limit in &mut self.limits {
            limit.insert("applies".to_owned(), false.into());
        }
        self.facts.remove("allow");
        self.fact("status", 400);
        self.line("answer", format_args!("400: {why}"));
    }

    /// The facts, and the sentences beside them. A fact that does not apply is null.
    pub(super) fn to_json(&self) -> Value {
        let mut object: Map<String, Value> =
            ["method", "path", "host", "client", "route", "params", "upstream", "status", "allow"]
                .map(|name| (name.to_owned(), Value::Null))
                .into_iter()
                .collect();
        object.extend(self.facts.clone());
        let (of_limits, others): (Vec<_>, Vec<_>) =
            self.paragraphs.iter().partition(|(title, _)| *title == LIMIT);
        let limits = self.limits.iter().zip(of_limits).map(|(facts, (_, lines))| {
            let mut limit = facts.clone();
            limit.insert("explanation".to_owned(), json!(lines));
            Value::Object(limit)
        });
        object.insert("limits".to_owned(), limits.collect());
        let told = others.into_iter().map(|(title, lines)| ((*title).to_owned(), json!(lines)));
        object.insert("explanation".to_owned(), Value::Object(told.collect()));
        Value::Object(object)
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (title, lines) in &self.paragraphs {
            for (place, line) in lines.iter().enumerate() {
                let title = if place == 0 { title } else { "" };
                writeln!(f, "{title:<9} {line}")?;
            }
        }
        Ok(())
    }
}
