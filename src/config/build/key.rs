//! A limit's `key`: what it counts by.

use http::HeaderName;

use crate::config::file::{Item, Section};
use crate::config::problem::{Problem, Span, nearest};
use crate::request::key::KeySource;

const EXPECTED: &str = "expected `ip`, `path`, `method`, `host`, `route`, `header:NAME`, \
                        `cookie:NAME`, `query:NAME` or `param:NAME`";

const WORDS: [(&str, KeySource); 5] = [
    ("ip", KeySource::Ip),
    ("path", KeySource::Path),
    ("method", KeySource::Method),
    ("host", KeySource::Host),
    ("route", KeySource::Route),
];

const KINDS: [&str; 4] = ["header", "cookie", "query", "param"];

/// The parts of a key with their places; `None` where something was wrong with one.
pub(super) fn sources(section: &mut Section<'_>) -> Option<Vec<(KeySource, Span)>> {
    let items = match section.take("key") {
        Some(item) => item.list()?,
        None => Vec::new(),
    };
    let mut sources: Vec<(KeySource, Span)> = Vec::new();
    for item in &items {
        let Some(source) = source(item) else { continue };
        if let Some((_, first)) = sources.iter().find(|(other, _)| *other == source) {
            item.cx
                .note(item.refuse("expected each part once").related(first.clone(), "first here"));
            continue;
        }
        sources.push((source, item.span.clone()));
    }
    (sources.len() == items.len()).then_some(sources)
}

fn source(item: &Item<'_>) -> Option<KeySource> {
    let text = item.text_as(EXPECTED)?;
    if let Some((_, source)) = WORDS.iter().find(|(word, _)| *word == text.text) {
        return Some(source.clone());
    }
    let (kind, name) = text.text.split_once(':').unwrap_or((&text.text, ""));
    let source = match kind {
        "header" => HeaderName::from_bytes(name.as_bytes()).ok().map(KeySource::Header),
        "cookie" => is_cookie_name(name).then(|| KeySource::Cookie(name.to_owned())),
        "query" if !name.is_empty() => Some(KeySource::Query(name.to_owned())),
        "param" if !name.is_empty() => Some(KeySource::Param(name.to_owned())),
        _ => None,
    };
    if source.is_none() {
        item.cx.note(refusal(&text.refuse(EXPECTED), kind, name));
    }
    source
}

fn refusal(problem: &Problem, kind: &str, name: &str) -> Problem {
    let problem = problem.clone();
    if KINDS.contains(&kind) {
        let example = match kind {
            "header" => "x-api-key",
            "cookie" => "session",
            "query" => "api_key",
            _ => "id",
        };
        return problem.expecting(format!("expected a name, as in `{kind}:{example}`"));
    }
    let words = WORDS.iter().map(|(word, _)| *word);
    match nearest(kind, words.chain(KINDS)) {
        Some(near) if KINDS.contains(&near) && !name.is_empty() => {
            problem.expecting(format!("did you mean `{near}:{name}`?"))
        }
        Some(near) if KINDS.contains(&near) => {
            problem.expecting(format!("did you mean `{near}:NAME`?"))
        }
        Some(near) => problem.expecting(format!("did you mean `{near}`?")),
        None => problem,
    }
}

/// A token of RFC 9110, as RFC 6265 has it.
fn is_cookie_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}
