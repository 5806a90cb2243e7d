//! The output of `tidegate explain`: one value, which is printed for people and serialised for programs.

use std::fmt;
use std::net::IpAddr;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

/// The explanation of a request: facts, and sentences. A fact that does not apply is `None`.
#[derive(Default, Serialize)]
pub(super) struct Explanation {
    pub(super) method: String,
    pub(super) path: Option<String>,
    pub(super) host: Option<String>,
    pub(super) client: Option<IpAddr>,
    pub(super) route: Option<String>,
    pub(super) params: Option<Map<String, Value>>,
    pub(super) upstream: Option<Value>,
    pub(super) token: Option<Value>,
    pub(super) plan: Option<Value>,
    pub(super) status: Option<u16>,
    pub(super) allow: Option<Vec<String>>,
    pub(super) limits: Vec<ExplainedLimit>,
    /// The sentences about the request, by title.
    #[serde(serialize_with = "as_object")]
    pub(super) explanation: Vec<(&'static str, Vec<String>)>,
}

/// What a limit does with the request: facts, and sentences.
#[derive(Serialize)]
pub(super) struct ExplainedLimit {
    #[serde(flatten)]
    pub(super) facts: Value,
    pub(super) explanation: Vec<String>,
    /// The status and the reason with which it refuses the request.
    #[serde(skip)]
    pub(super) refusal: Option<(u16, String)>,
}

impl ExplainedLimit {
    pub(super) fn fact(&mut self, name: &str, value: impl Into<Value>) {
        self.facts[name] = value.into();
    }

    pub(super) fn say(&mut self, sentence: impl fmt::Display) {
        self.explanation.push(sentence.to_string());
    }
}

fn as_object<S: Serializer>(
    paragraphs: &[(&'static str, Vec<String>)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(paragraphs.iter().map(|(title, lines)| (title, lines)))
}

impl Explanation {
    /// Begins a paragraph. It replaces an earlier one with this title.
    pub(super) fn line(&mut self, title: &'static str, value: impl fmt::Display) {
        self.explanation.retain(|(earlier, _)| *earlier != title);
        self.explanation.push((title, vec![value.to_string()]));
    }

    /// Adds a line to the last paragraph.
    pub(super) fn more(&mut self, value: impl fmt::Display) {
        if let Some((_, lines)) = self.explanation.last_mut() {
            lines.push(value.to_string());
        }
    }

    /// Adds what the limits do. If one refuses the request with an error, no limit counts it. The first refusal is the
    /// answer.
    pub(super) fn add_limits(&mut self, limits: Vec<ExplainedLimit>) {
        self.limits = limits;
        let Some((status, why)) = self.limits.iter().find_map(|it| it.refusal.clone()) else {
            return;
        };
        self.line("answer", format_args!("{status}: {why}"));
        self.limits.iter_mut().for_each(|limit| limit.fact("applies", false));
        (self.status, self.allow) = (Some(status), None);
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.limits.iter().map(|limit| ("limit", &limit.explanation));
        let request = self.explanation.iter().map(|(title, lines)| (*title, lines));
        for (title, lines) in request.chain(limits) {
            for (title, line) in std::iter::once(title).chain(std::iter::repeat("")).zip(lines) {
                writeln!(f, "{title:<9} {line}")?;
            }
        }
        Ok(())
    }
}
